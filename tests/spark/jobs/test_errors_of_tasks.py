"""An error of a task reaches the user as itself, without the frames of Spark and of our library."""

from __future__ import annotations

import logging
import traceback

import pytest
from helpers.reference.virtual import virtual_chunks
from helpers.spark.connect_client import answer_over_connect
from helpers.spark.session import by_source
from py4j.protocol import Py4JError
from pyspark.errors import PythonException

import icechunk_spark
from icechunk_format.errors import (
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnauthorizedVirtualChunkError,
)
from icechunk_spark.jobs.errors import raised_in_jobs, raised_in_tasks

pytestmark = pytest.mark.needs_reference

MOST_LINES = 20


def rows(spark):
    return spark.range(2_000).selectExpr("id div 100 AS y", "id % 100 AS x", "sin(id) AS v")


@pytest.fixture
def damaged(spark, tmp_path):
    """Make a repository whose chunk objects are gone."""
    place = tmp_path / "damaged"
    icechunk_spark.write(rows(spark), str(place), dims=["y", "x"], chunks={"y": 10, "x": 100})
    for chunk in (place / "chunks").iterdir():
        chunk.unlink()
    return str(place)


@pytest.mark.each_spark
def test_a_write_raises_our_error_alone(spark, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, logger="icechunk_spark.jobs")
    twice = rows(spark).union(rows(spark).limit(1))
    with pytest.raises(InvalidInputError) as caught:
        icechunk_spark.write(twice, str(tmp_path / "r"), dims=["y", "x"])
    shown = "".join(traceback.format_exception(caught.value))
    assert len(shown.splitlines()) <= MOST_LINES
    assert "Py4J" not in shown
    assert "PythonException" not in shown
    assert "(y=0, x=0)" in str(caught.value).splitlines()[0]
    # Spark's report is not lost.
    assert any("PythonException" in str(record.exc_info) for record in caplog.records)


@pytest.mark.each_spark
@pytest.mark.parametrize("how", ["function", "source"])
@pytest.mark.parametrize("action", ["collect", "toLocalIterator"])
def test_a_read_shows_the_error_and_few_frames(spark, damaged, how, action):
    frame = (
        icechunk_spark.read(spark, damaged) if how == "function" else by_source(spark).load(damaged)
    )
    with pytest.raises(PythonException) as caught:
        list(getattr(frame, action)())
    found = [line for line in str(caught.value).splitlines() if line.strip()]
    assert len(found) <= MOST_LINES
    assert any(line.startswith("icechunk_format.errors.NotFoundError: ") for line in found)
    assert not any("awaitResult" in line or "java.base" in line for line in found)


def test_what_dies_keeps_sparks_report():
    report = PythonException("Python worker exited unexpectedly (crashed)")
    with pytest.raises(StorageError) as caught, raised_in_tasks("/data/r"):
        raise report
    assert caught.value.__cause__ is report
    stopped = Py4JError(
        "An error occurred while calling o1.collect.\n: java.lang.Stopped: now\n\tat x"
    )
    reason = r"aborted the job \(java.lang.Stopped: now\)"
    with pytest.raises(StorageError, match=reason), raised_in_tasks("/data/r"):
        raise stopped
    error = PythonException("Traceback\nicechunk_format.errors.NotFoundError: no tag 'v2'\n")
    with pytest.raises(NotFoundError) as found, raised_in_jobs("copying", "Nothing was changed"):
        raise error
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__


@pytest.mark.parametrize("options", [{}, {"layout": "chunks"}, {"layout": "summary"}])
def test_a_refused_virtual_chunk_is_found_when_a_read_is_planned(spark, tmp_path, options):
    built = virtual_chunks(tmp_path)
    with pytest.raises(UnauthorizedVirtualChunkError) as caught:
        icechunk_spark.read(spark, str(built.path), **options)
    [prefix] = built.virtual_prefixes
    assert caught.value.facts["url_prefix"] == prefix
    # What needs no virtual chunk needs no authorization.
    icechunk_spark.read(spark, str(built.path), layout="refs").count()
    icechunk_spark.read(spark, str(built.path), isel="dim_0=45:50", **options).count()
    icechunk_spark.read(spark, str(built.path), virtual_authorize=prefix, **options).count()


CLIENT = """
import json, sys, traceback
from pyspark.sql import SparkSession
import icechunk_spark
damaged, place, virtual = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
answer = {}
def lines(name, call):
    try:
        call()
    except Exception as error:
        shown = "".join(traceback.format_exception(error)).splitlines()
        answer[name] = [type(error).__name__, len(shown), str(error).splitlines()]
rows = spark.range(2000).selectExpr("id div 100 AS y", "id % 100 AS x", "sin(id) AS v")
lines("write", lambda: icechunk_spark.write(rows.union(rows.limit(1)), place, dims=["y", "x"]))
lines("read", lambda: icechunk_spark.read(spark, damaged).count())
lines("virtual", lambda: icechunk_spark.read(spark, virtual))
print("ANSWER " + json.dumps(answer))
"""


def test_over_connect(damaged, tmp_path):
    virtual = str(virtual_chunks(tmp_path / "virtual").path)
    answer = answer_over_connect(CLIENT, damaged, str(tmp_path / "r"), virtual)
    name, shown, text = answer["write"]
    assert name == "InvalidInputError"
    assert shown <= MOST_LINES
    assert "(y=0, x=0)" in text[0]
    name, _, text = answer["read"]
    assert len(text) <= MOST_LINES
    assert any(line.startswith("icechunk_format.errors.NotFoundError: ") for line in text)
    assert answer["virtual"][0] == "UnauthorizedVirtualChunkError"
