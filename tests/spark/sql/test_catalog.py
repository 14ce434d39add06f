"""Catalogs give tables names in a session, and credentials by name reach every way to read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.raised import raises
from pyspark.errors import PySparkException

import icechunk_spark
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path):
    """Return a folder of two repositories; one has a tag and a newer snapshot."""
    for name, rows in (("weather", 3), ("ocean", 2), ("weather", 5)):
        table = pa.table({"x": pa.array(range(rows), pa.int32()), "v": [1.0] * rows})
        write_table(str(tmp_path / name), table, WriteOptions(mode="append", dims=("x",)))
        repository = Repository.open(str(tmp_path / name))
        if rows == 3:
            repository.create_tag("v1", repository.resolve(branch="main"))
    return tmp_path


def test_a_catalog_gives_tables_names(spark: SparkSession, lake: Path):
    tables = {
        "t_weather": {"path": "weather", "tags": ["v1"], "comment": "Hourly", "variables": "v"},
        "t_history": "weather#history",
    }
    path = lake / "catalog.json"
    path.write_text(json.dumps({"tables": tables}))
    assert icechunk_spark.attach(spark, str(path)) == ["t_weather", "t_weather@v1", "t_history"]
    counts = spark.sql(
        "SELECT (SELECT count(*) FROM t_weather), (SELECT count(*) FROM `t_weather@v1`)"
    )
    assert counts.first() == (5, 3)
    found = {row["name"]: row for row in icechunk_spark.tables(spark).collect()}
    assert list(found) == ["t_history", "t_weather", "t_weather@v1"]
    row = found["t_weather@v1"]
    assert (row["rows"], row["tag"], row["comment"], row["problem"]) == (3, "v1", "Hourly", None)
    assert row["age"].total_seconds() > 0
    spark.catalog.dropTempView("t_history")
    (lake / "weather" / "repo").unlink()
    rows = icechunk_spark.tables(spark).orderBy("name").collect()
    assert [row["name"] for row in rows] == ["t_weather", "t_weather@v1"]
    assert "no Icechunk repository" in rows[0]["problem"]


def test_a_folder_at_an_earlier_time_beside_the_newest(spark: SparkSession, lake: Path):
    assert icechunk_spark.attach(spark, str(lake), prefix="f_") == ["f_ocean", "f_weather"]
    repository = Repository.open(str(lake / "weather"))
    tagged = repository.snapshot_info(repository.resolve(tag="v1")).flushed_at / 1e6
    names = icechunk_spark.attach(
        spark,
        {"tables": {"weather": str(lake / "weather")}},
        prefix="old_",
        as_of=datetime.fromtimestamp(tagged + 1e-3, UTC),
    )
    assert names == ["old_weather"]
    assert spark.table("old_weather").count() == 3
    assert spark.table("f_weather").count() == 5


def test_nothing_is_attached_if_one_table_is_wrong(spark: SparkSession, lake: Path):
    weather = str(lake / "weather")
    tables = {"n_right": weather, "n_none": str(lake / "none"), "n_tag": {"path": weather}}
    tables["n_tag"] = {"path": weather, "tag": "v9"}
    with raises(InvalidInputError, option="catalog", match="has 2 tables that cannot") as caught:
        icechunk_spark.attach(spark, {"tables": tables})
    assert "'n_none': there is no Icechunk" in str(caught.value)
    assert not spark.catalog.tableExists("n_right")
    with raises(InvalidInputError, option="only", match="has no table 'n_other'"):
        icechunk_spark.attach(spark, {"tables": tables}, only=["n_other"])
    assert icechunk_spark.attach(spark, {"tables": tables}, only=["n_right"]) == ["n_right"]
    with pytest.raises(IcechunkError, match="catalog must be"):
        icechunk_spark.attach(spark, 5)


def test_credentials_by_name_reach_every_way_to_read(spark: SparkSession, lake: Path):
    path = str(lake / "weather")
    icechunk_spark.register(spark, credentials={"linked": {"follow_symlinks": True}})
    try:
        sql = f"SELECT count(*) FROM icechunk('{path}', credentials => '{{}}')"
        assert spark.sql(sql.format("linked")).first()[0] == 5
        icechunk_spark.attach(
            spark, {"tables": {"c_weather": {"path": path, "credentials": "linked"}}}
        )
        assert spark.table("c_weather").count() == 5
        with pytest.raises(PySparkException, match="no credentials are named 'lnked': did you"):
            spark.sql(sql.format("lnked"))
        other = spark.newSession()
        with raises(InvalidInputError, option="credentials"):
            icechunk_spark.read(other, path, credentials="linked")
    finally:
        icechunk_spark.register(spark)
    with raises(InvalidInputError, option="credentials"):
        icechunk_spark.read(spark, path, credentials="linked")


def test_a_view_renews_its_credentials_at_each_query(spark: SparkSession, lake: Path, monkeypatch):
    import icechunk_format.storage.credentials as module

    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.0)
    calls = []

    def renewed():
        calls.append(len(calls))
        return {"follow_symlinks": "true" if len(calls) % 2 else "false"}

    icechunk_spark.register(spark, credentials={"renewed": renewed})
    try:
        icechunk_spark.view(spark, "renewing", str(lake / "weather"), credentials="renewed")
        before = len(calls)
        assert spark.table("renewing").where("x > 2").count() == 2
        between = len(calls)
        assert spark.table("renewing").where("x > 2").count() == 2
        assert before < between < len(calls)
    finally:
        icechunk_spark.register(spark)
