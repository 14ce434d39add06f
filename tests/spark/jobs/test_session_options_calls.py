"""Every public function with a path gets the defaults of its session."""

from __future__ import annotations

import inspect
from datetime import timedelta

import pyarrow as pa
import pytest
from helpers.raised import raises
from pyspark.errors import PySparkException

import icechunk_spark
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark import maintenance
from icechunk_spark.mirroring.read import _located

URL = "s3://bucket/r"
FAST = {"storage_max_retries": "0"}
# Nothing listens on these ports: the one in an error is that of the settings that a call used.
OF_HADOOP, OF_ENVIRONMENT = "127.0.0.1:1", "127.0.0.1:2"
#: Arguments that are paths of repositories.
PATHS = {"path", "source", "target", "to"}
#: Functions whose target is a Delta table, which records the path of the repository.
OF_COPIES = {"mirrored", "freshness"}


@pytest.fixture
def settings(spark, monkeypatch):
    """Set other settings of S3 in Hadoop than in the environment, and register the session."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{OF_ENVIRONMENT}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "environment")
    given = {
        "fs.s3a.access.key": "K",
        "fs.s3a.secret.key": "S",
        "fs.s3a.endpoint": f"http://{OF_HADOOP}",
        "fs.s3a.endpoint.region": "us-east-1",
    }
    hadoop = spark._jsc.hadoopConfiguration()
    before = {name: hadoop.get(name) for name in given}
    for name, value in given.items():
        hadoop.set(name, value)
    icechunk_spark.register(
        spark, storage_from_spark=True, virtual_authorize=["s3://a/", "s3://b,c/"]
    )
    yield
    icechunk_spark.register(spark)
    for name, value in before.items():
        hadoop.unset(name) if value is None else hadoop.set(name, value)


def calls(spark, tmp_path):
    """Return a call of each function with a path."""
    on, age = {"spark": spark, "path": URL, **FAST}, {"older_than": timedelta(days=9)}
    frame = spark.createDataFrame([(1, 1.0)], "x int, v double")
    local = str(tmp_path / "r")
    table = pa.table({"x": pa.array([1], pa.int32()), "v": [1.0]})
    write_table(local, table, WriteOptions(mode="append", dims=("x",)))
    here = {"spark": spark, "path": local}
    slow = {"to": URL, "to_options": FAST}
    blocks = {"function": lambda ds: ds}
    return {
        "delete": [{**on, "where": "x = 1"}],
        "estimate": [on],
        "map_blocks": [{**on, **blocks, "to": local, "to_options": {}}, {**here, **blocks, **slow}],
        "mirror": [{**on, "target": str(tmp_path / "delta")}],
        "read": [on],
        "read_blocks": [{**on, **blocks, "schema": "v double"}],
        "rechunk": [{**on, "chunks": {"x": 1}}, {**here, "chunks": {"x": 1}, **slow}],
        "reduce": [
            {**on, "statistics": "mean", "over": "x", "to": None},
            {**here, "statistics": "mean", "over": "x", **slow},
        ],
        "sample": [{"points": frame, "path": URL, "on": {"x": "x"}, **FAST}],
        "view": [{**on, "name": "a"}, {**on, "name": "b", "tag": "v1"}],
        "virtualize": [{**on, "files": str(tmp_path / "*.nc")}],
        "write": [{"df": frame, "path": URL, "dims": "x", **FAST}],
        "zonal": [
            {"zones": frame.selectExpr("'POINT EMPTY' AS g"), "path": URL, "geometry": "g", **FAST}
        ],
        "collect_garbage": [{**on, **age}],
        "copy": [
            {"spark": spark, "source": URL, "target": local, "source_options": FAST},
            {"spark": spark, "source": local, "target": URL, "target_options": FAST},
        ],
        "expire_snapshots": [{**on, **age}],
        "rewrite_manifests": [on],
        "verify": [on],
    }


FUNCTIONS = {
    name: found
    for module in (icechunk_spark, maintenance)
    for name in module.__all__
    if inspect.isfunction(found := getattr(module, name))
    and PATHS & set(inspect.signature(found).parameters)
    and name not in OF_COPIES
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_with_a_path_use_the_settings_of_the_session(spark, settings, tmp_path, name):
    for given in calls(spark, tmp_path)[name]:
        with pytest.raises(IcechunkError) as caught:
            FUNCTIONS[name](**given)
        assert OF_HADOOP in str(caught.value)


def test_copies_locate_their_repository_with_the_settings(spark, settings):
    found = _located(spark, FAST, URL)
    assert dict(found.options)["endpoint_url"] == f"http://{OF_HADOOP}"
    assert dict(_located(spark, {}, "/folder").options) == {}


@pytest.mark.parametrize("reader", ["function", "source"])
def test_readers_writers_and_streams_use_the_settings(spark, settings, tmp_path, reader):
    icechunk_spark.register(spark, storage_from_spark=True, reader=reader)
    frame = spark.createDataFrame([(1, 1.0)], "x int, v double")
    rows = spark.readStream.schema("x int, v double").parquet(str(tmp_path))
    quick = {"storage.max_retries": "0"}

    def start():
        to = rows.writeStream.format("icechunk").options(**quick, dims="x")
        to.option("checkpointLocation", str(tmp_path / "c")).start(URL)

    sql = f"SELECT * FROM icechunk('{URL}', `storage.max_retries` => '0')"
    calls = [
        lambda: spark.read.format("icechunk").options(**quick).load(URL),
        lambda: spark.read.format("icechunk").options(**quick, path=URL).load(),
        lambda: spark.readStream.format("icechunk").options(**quick).load(URL),
        lambda: frame.write.format("icechunk").options(**quick, dims="x").save(URL),
        start,
        lambda: spark.sql(sql),
    ]
    for call in calls:
        with pytest.raises((IcechunkError, PySparkException)) as caught:
            call()
        assert OF_HADOOP in str(caught.value)


def test_other_storages_do_not_get_the_settings_of_s3(spark, settings, tmp_path):
    frame = spark.createDataFrame([(1, 1.0)], "x int, v double")
    path = str(tmp_path / "r")
    frame.write.format("icechunk").option("dims", "x").save(path)
    icechunk_spark.view(spark, "local", path)
    assert spark.read.format("icechunk").load(path).count() == 1
    assert spark.table("local").count() == 1
    assert spark.sql(f"SELECT * FROM icechunk('{path}')").count() == 1
    assert icechunk_spark.rechunk(spark, path, chunks={"x": 1}, dry_run=True)
    assert maintenance.expire_snapshots(spark, path, timedelta(days=1))
    for url in ("http://127.0.0.1:1/r", "abfss://c@a.dfs.core.windows.net/r"):
        with pytest.raises(IcechunkError) as caught:
            icechunk_spark.read(
                spark, url, **FAST, **({"storage_timeout": "1"} if "abfss" in url else {})
            )
        assert "is not an option" not in str(caught.value)


def test_sql_says_that_the_settings_are_for_python(spark, tmp_path):
    option = "`storage.from_spark`"
    for statement in (
        f"SELECT * FROM icechunk('{URL}', {option} => 'true')",
        f"CREATE TEMPORARY VIEW w USING icechunk OPTIONS (path '{URL}', {option} 'true')",
    ):
        with pytest.raises(PySparkException, match="is for functions and readers in Python"):
            spark.sql(statement)


def test_register_checks_its_arguments(spark):
    for name, value in (
        ("storage_from_spark", "false"),
        ("storage_from_spark", 1),
        ("virtual_authorize", 5),
        ("virtual_authorize", [5]),
        ("virtual_authorize", None),
        ("virtual_authorize", ["nonsense"]),
        ("reader", "functions"),
    ):
        with raises(InvalidInputError, option=name):
            icechunk_spark.register(spark, **{name: value})
