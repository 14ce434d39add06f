"""The metadata tables through Spark: their schemas, versions, partitions, and SQL on them.

What the rows say is tested without Spark, in ``tests/dataset`` and ``tests/conformance``; here it
is that they arrive.
"""

from __future__ import annotations

import datetime
import pickle

import pytest
from pyspark.sql.types import StructType

from icechunk_format.dataset.metadata_tables import METADATA_TABLES
from icechunk_spark.options import METADATA_TABLES as NAMES
from icechunk_spark.options import parse_read_options
from icechunk_spark.tables import make_table_reader, resolve_versions, table_schema

pytestmark = pytest.mark.needs_reference


@pytest.fixture
def table(spark, weather):
    """Load a metadata table of the weather repository."""

    def load(name, **options):
        return spark.read.format("icechunk").options(**options).load(f"{weather.path}#{name}")

    return load


def reader_of(weather, name, schema=None, **options):
    parsed = parse_read_options({"path": f"{weather.path}#{name}", **options})
    pinned = resolve_versions(parsed)
    return make_table_reader(parsed, schema or table_schema(parsed), pinned=pinned)


def test_the_options_name_the_declared_tables():
    assert tuple(METADATA_TABLES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_table_arrives_with_its_schema_and_comments(table, name):
    loaded = table(name)
    rows = loaded.toArrow()
    assert rows.num_rows > 0
    assert rows.column_names == list(METADATA_TABLES[name].names)
    assert loaded.schema == table_schema(parse_read_options({"path": f"/x#{name}"}))
    assert all(field.metadata["comment"].endswith(".") for field in loaded.schema)


def test_versions(table, weather):
    assert table("history").count() == 3
    assert table("history", tag="v1").count() == 2
    assert table("history", asOf=weather.between.isoformat()).first().snapshot_id == weather.v1
    sql = "name = 't2m'"
    changed = table("chunks").join(table("chunks", tag="v1"), "manifest_id", "left_anti")
    assert {row.path for row in changed.collect()} == {"/t2m"}
    assert table("variables", snapshot=weather.v1).where(sql).first().stored_chunks == 16


def test_changes_between_refs(table, weather):
    (row,) = table("changes", to="main", **{"from": "v1"}).collect()
    assert row.asDict() == {
        "path": "/t2m",
        "node_type": "array",
        "change": "chunks",
        "moved_from": None,
        "chunk_count": 4,
        "snapshot_id": None,
    }
    assert table("changes", **{"from": weather.v2}).count() == 0
    assert {row.change for row in table("changes", to="v1").collect()} == {"added", "chunks"}


def test_instants_do_not_depend_on_the_session_time_zone(table, weather):
    committed = table("snapshots").where(f"snapshot_id = '{weather.v2}'").toArrow()
    (instant,) = committed["committed_at"].to_pylist()
    assert weather.between < instant < datetime.datetime.now(datetime.UTC)


def test_sql_with_a_users_schema(spark, weather):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW inside USING icechunk"
        f" OPTIONS (path '{weather.path}', table 'variables', group '/ocean')"
    )
    rows = spark.sql("SELECT path, dims, is_coordinate FROM inside ORDER BY path").collect()
    assert [(row.path, row.dims, row.is_coordinate) for row in rows] == [
        ("/ocean/salinity", ["station", "depth"], False),
        ("/ocean/station", ["station"], True),
    ]
    reader = spark.read.format("icechunk").schema("shape array<bigint>, path string")
    rows = reader.load(f"{weather.path}#variables").where("path = '/t2m'").collect()
    assert [tuple(row) for row in rows] == [([8, 6, 10], "/t2m")]


def test_readers_are_small_and_partitions_hold_what_was_asked_for(weather):
    reader = reader_of(weather, "chunks", rowsPerPartition="501")
    parts = reader.partitions()
    assert 1 < len(parts) <= 9
    assert len(pickle.dumps(reader)) < 3_000
    again = pickle.loads(pickle.dumps(reader))
    rows = sum(batch.num_rows for part in parts for batch in again.read(part))
    whole = reader_of(weather, "chunks")
    assert len(whole.partitions()) == 1
    assert rows == sum(batch.num_rows for batch in whole.read(whole.partitions()[0])) > 20
    assert list(whole.read(None)) == []


def test_a_column_that_is_not_there(spark, weather, last_line):
    reader = spark.read.format("icechunk").schema(StructType().add("pth", "string"))
    text = last_line(lambda: reader.load(f"{weather.path}#groups").count())
    assert "did you mean 'path'" in text
