"""``spark.read.format("icechunk")`` gets rows by `mapInArrow` in registered classic sessions.

That they are the rows of the data source is asserted here for each kind of option; what the rows
are, in ``test_reading.py``.
"""

from __future__ import annotations

import pytest
from helpers.raised import raises
from helpers.spark.session import by_source, without_base
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import icechunk_spark
from icechunk_format.errors import InvalidInputError, NotFoundError

pytestmark = pytest.mark.needs_reference


def is_mapped(frame) -> bool:
    """Tell how the rows of a table come to Spark: by a function, or by the data source."""
    plan = frame._jdf.queryExecution().toString()
    assert ("MapInArrow" in plan) != ("BatchScan" in plan)
    return "MapInArrow" in plan


@pytest.fixture
def session(spark):
    """Register a session of its own."""
    session = spark.newSession()
    icechunk_spark.register(session)
    yield session
    icechunk_spark.unregister(session)


def icechunk(session):
    return session.read.format("icechunk")


WAYS = {
    "load(path)": lambda read, path: read.load(path),
    "option path": lambda read, path: read.option("path", path).load(),
    "options": lambda read, path: read.options(tag="v1", where="latitude > 40").load(path),
    "options of load": lambda read, path: read.load(path, tag="v1", variables="t2m"),
    "an option twice": lambda read, path: read.option("tag", "v9").option("Tag", "v1").load(path),
    "labels": lambda read, path: read.load(
        path, sel="latitude=44.9", isel="time=-1", sel_method="nearest"
    ),
    "stored values of a group": lambda read, path: read.load(path, group="ocean", decodeCf=False),
    "fewer dimensions": lambda read, path: read.load(path, variables="t2m,elevation"),
    "summary": lambda read, path: read.load(
        path, layout="summary", variables="t2m", block="time=8,latitude=6,longitude=10"
    ),
    "refs": lambda read, path: read.load(path, layout="refs", rowsPerPartition=7),
    "list": lambda read, path: read.load([path]),
    "text": lambda read, path: read.schema("t2m double, Latitude double").load(path),
    "columns": lambda read, path: read.schema(
        StructType().add("time", "timestamp").add("latitude", "double", nullable=False)
    ).load(path),
    "schema of load": lambda read, path: read.load(path, schema="latitude double"),
    "#history": lambda read, path: read.option("branch", "dev").load(f"{path}#history"),
    "table": lambda read, path: read.option("table", "variables").load(path),
    "columns of a table": lambda read, path: read.schema("path string").load(f"{path}#variables"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_table_is_that_of_the_source(session, spark, weather, way):
    ours = WAYS[way](icechunk(session), weather.path)
    theirs = WAYS[way](by_source(spark), weather.path)
    assert (is_mapped(ours), is_mapped(theirs)) == (True, False)
    assert ours.schema == without_base(theirs.schema)
    assert sorted(map(str, ours.collect())) == sorted(map(str, theirs.collect()))


def test_values_of_python_are_options(session, weather):
    frame = icechunk(session).option("sel", {"latitude": slice(45, 55)}).load(weather.path)
    assert frame.agg(F.min("latitude"), F.max("latitude")).first() == (45, 55)
    assert icechunk(session).options(variables=["t2m"]).load(weather.path).columns[-1] == "t2m"


def test_no_value_leaves_an_option_as_it_was(session, weather):
    # The data source of Spark 4.0 fails for it.
    frame = icechunk(session).option("tag", "v1").option("tag", None).load(weather.path)
    assert "tag=v1" in frame._jdf.queryExecution().toString()


def test_the_format_may_be_given_to_load(session, weather):
    assert is_mapped(session.read.load(weather.path, "IceChunk"))


def test_another_python_object_of_the_session(session, weather):
    same = SparkSession(session.sparkContext, session._jsparkSession)
    assert is_mapped(icechunk(same).load(weather.path))


def test_mistakes_are_errors_of_ours_at_load(session, weather):
    with raises(NotFoundError, kind="tag", name="v9"):
        icechunk(session).option("tag", "v9").load(weather.path)
    with raises(InvalidInputError, option="tga", nearest="tag"):
        icechunk(session).load(weather.path, tga="v1")
    with raises(InvalidInputError, column="t2", known=...):
        icechunk(session).schema("t2 float").load(weather.path)
    with pytest.raises(InvalidInputError, match=r"option 'path' is missing.*load\(path\)"):
        icechunk(session).load()
    with pytest.raises(AnalysisException, match="'path'"):
        icechunk(session).option("path", weather.path).load(weather.path)


def test_what_the_source_keeps(session, spark, weather):
    assert not is_mapped(by_source(spark).load(weather.path))
    sql = f"CREATE OR REPLACE TEMPORARY VIEW mapped USING icechunk OPTIONS (path '{weather.path}')"
    session.sql(sql)
    assert not is_mapped(session.table("mapped"))


def test_a_session_may_stay_with_the_source(session, weather):
    icechunk_spark.register(session, reader="source")
    assert not is_mapped(icechunk(session).load(weather.path))
    icechunk_spark.register(session)
    assert is_mapped(icechunk(session).load(weather.path))
    with pytest.raises(InvalidInputError, match="'function' or 'source', but is 'map'"):
        icechunk_spark.register(session, reader="map")


def test_unregistering_gives_the_source_back(session, spark, weather):
    icechunk_spark.unregister(session)
    assert not is_mapped(icechunk(session).load(weather.path))
    assert is_mapped(icechunk(spark).load(weather.path))


def test_nothing_is_replaced_when_no_session_is_left(spark):
    replaced = SparkSession.read
    icechunk_spark.unregister(spark)
    try:
        assert SparkSession.read is not replaced
        assert "pyspark" in SparkSession.read.fget.__module__
    finally:
        icechunk_spark.register(spark)
    assert SparkSession.read.__doc__


def test_other_formats_are_sparks(session, tmp_path):
    place = str(tmp_path / "table")
    session.range(3).write.parquet(place)
    assert session.read.parquet(place).count() == 3
    assert session.read.load(place).count() == 3
    read = session.read.format("icechunk").format("parquet").schema("id long")
    assert read.load(place).inputFiles()
