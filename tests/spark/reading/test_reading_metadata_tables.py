"""Metadata tables reach Spark with schemas, versions and partitions, and in SQL.

What the rows say is tested without Spark, in ``tests/tables`` and ``tests/conformance``; here it
is that they arrive.
"""

from __future__ import annotations

import datetime
import functools
import json
import pickle

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit, struct, to_json
from pyspark.sql.types import StructType

from icechunk_format.options.declare import TABLE_NAMES as NAMES
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.options.parse import parse_read_options
from icechunk_spark.reading.plan import MetadataRead, open_read

pytestmark = pytest.mark.needs_reference


@pytest.fixture
def table(spark, weather):
    """Load a metadata table of the weather repository."""

    def load(name, **options):
        return spark.read.format("icechunk").options(**options).load(f"{weather.path}#{name}")

    return load


def reader_of(weather, name, schema=None, **options):
    parsed = parse_read_options({"path": f"{weather.path}#{name}", **options})
    opened = open_read(parsed)
    return opened.reader(schema or opened.schema)


def test_the_options_name_the_declared_tables():
    assert tuple(METADATA_TABLES) == NAMES


def test_every_table_arrives_with_its_schema_and_comments(table):
    frames = {name: table(name) for name in NAMES}
    for name, frame in frames.items():
        assert frame.columns == list(METADATA_TABLES[name].names)
        assert (
            frame.schema
            == MetadataRead(options=None, snapshot="", table=METADATA_TABLES[name]).schema
        )
        assert all(field.metadata["comment"].endswith(".") for field in frame.schema)
    # All tables in one job, each row as JSON.
    texts = [
        frame.select(lit(name).alias("name"), to_json(struct("*")).alias("row"))
        for name, frame in frames.items()
    ]
    rows = [
        (row.name, json.loads(row.row))
        for row in functools.reduce(DataFrame.union, texts).collect()
    ]
    assert {name for name, _ in rows} == set(NAMES)
    for name, row in rows:
        assert set(row) <= set(METADATA_TABLES[name].names)
    assert ("refs", "v1", "tag") in [(n, r.get("name"), r.get("type")) for n, r in rows]


def rows_of(weather, name, **options):
    reader = reader_of(weather, name, **options)
    return [row for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()]


def test_versions(weather):
    assert len(rows_of(weather, "history")) == 3
    assert len(rows_of(weather, "history", tag="v1")) == 2
    (newest, _) = rows_of(weather, "history", asOf=weather.between.isoformat())
    assert newest["snapshot_id"] == weather.v1
    (t2m,) = [r for r in rows_of(weather, "variables", snapshot=weather.v1) if r["name"] == "t2m"]
    assert t2m["stored_chunks"] == 16


def test_what_a_commit_added(table):
    """Chunks here are inline, so manifests are what is new."""
    added = table("chunks").join(table("chunks", tag="v1"), "manifest_id", "left_anti")
    assert {row.path for row in added.collect()} == {"/t2m"}


def test_changes_between_refs(weather):
    (row,) = rows_of(weather, "changes", to="main", **{"from": "v1"})
    assert row == {
        "path": "/t2m",
        "node_type": "array",
        "change": "chunks",
        "moved_from": None,
        "chunk_count": 4,
        "snapshot_id": None,
    }
    assert rows_of(weather, "changes", **{"from": weather.v2}) == []
    assert {r["change"] for r in rows_of(weather, "changes", to="v1")} == {"added", "chunks"}


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
