"""Pushed filters keep the rows of Spark's, and Spark's stale plan is still there."""

from __future__ import annotations

import datetime
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.spark.repositories import LATITUDES, SHAPE, T2M
from pyspark.sql import datasource
from pyspark.sql import functions as F

from icechunk_spark.reading.pushdown import filter_sql

pytestmark = pytest.mark.needs_reference

HAS_PUSHDOWN = hasattr(datasource, "EqualTo")
CONF = "spark.sql.python.filterPushdown.enabled"
CELLS = int(np.prod(SHAPE))


@pytest.fixture
def read(spark, weather):
    """Load the weather repository through the data source, which alone gets filters."""
    return lambda **options: spark.read.format("icechunk").options(**options).load(weather.path)


@pytest.fixture
def pushing(spark, read):
    """Return a loader of frames that take Spark's filters, with Spark's setting on."""
    spark.conf.set(CONF, "true")
    yield lambda **options: read(pushdown="true", **options)
    spark.conf.unset(CONF)


needs_pushdown = pytest.mark.skipif(not HAS_PUSHDOWN, reason="Spark 4.1 brought filter pushdown")


@needs_pushdown
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("latitude >= 50", (LATITUDES >= 50).sum() * 80),
        ("latitude = 45 AND t2m > 300.1", int((T2M[:, 3] > 300.1).sum())),
        ("latitude IN (35, 60) AND t2m IS NOT NULL", 2 * 80),
        ("t2m IS NULL", 3),
        ("NOT (latitude <= 40)", (LATITUDES > 40).sum() * 80),
        ("latitude > 1000", 0),
        ("time < TIMESTAMP_NTZ '2024-07-01 12:00:00'", 120),
        ("latitude > 50 OR t2m = 1.0", None),
        ("sqrt(latitude) > 7", None),
    ],
)
def test_filters_give_the_rows_of_spark(pushing, read, condition, expected):
    frame = pushing().where(condition)
    found = frame.agg(F.count("*"), F.sum("t2m")).first()
    unpushed = read().where(condition).agg(F.count("*"), F.sum("t2m")).first()
    assert found == unpushed
    if expected is not None:
        assert found[0] == expected


@needs_pushdown
def test_filters_join_the_option(pushing):
    frame = pushing(where="latitude >= 50 OR latitude = 35").where("latitude <= 50")
    assert frame.count() == 2 * 80


@needs_pushdown
def test_no_filter_reads_everything(pushing):
    assert pushing().count() == CELLS


@needs_pushdown
def test_without_sparks_setting_spark_names_it(read, last_line):
    assert CONF in last_line(lambda: read(pushdown="true").count())


@needs_pushdown
def test_sparks_stale_plan_is_still_there(pushing):
    """Spark 4.1 to 4.3 keep one plan per load. If this fails, Spark is mended: think again."""
    frame = pushing()
    north, south = frame.where("latitude >= 50"), frame.where("latitude < 40")
    assert north.count() == 3 * 80
    assert frame.count() == 3 * 80, "right would be all cells"
    assert north.union(south).count() != 4 * 80, "mended"
    apart = pushing().where("latitude >= 50").union(pushing().where("latitude < 40"))
    assert apart.count() == 4 * 80


@pytest.mark.skipif(HAS_PUSHDOWN, reason="Spark 4.0 has no filter pushdown")
def test_before_4_1_the_error_names_where(read, last_line):
    assert "'where'" in last_line(lambda: read(pushdown="true").count())


# --- filters as text --------------------------------------------------------------------------

COLUMNS = frozenset({"a", "b`c"})


def make(kind: str, **attributes: object) -> object:
    return type(kind, (SimpleNamespace,), {})(**attributes)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "(`a` = 1)"),
        (True, "(`a` = TRUE)"),
        (1.5, "(`a` = 1.5)"),
        (Decimal("1E+3"), "(`a` = 1000)"),
        ("it's", "(`a` = 'it''s')"),
        (datetime.datetime(2024, 7, 1, 12), "(`a` = TIMESTAMP_NTZ '2024-07-01 12:00:00')"),
        (
            datetime.datetime(2024, 7, 1, tzinfo=datetime.UTC),
            "(`a` = TIMESTAMP '2024-07-01 00:00:00+00:00')",
        ),
        (datetime.date(2024, 7, 1), "(`a` = DATE '2024-07-01')"),
        (float("nan"), None),
        (float("inf"), None),
        ("back\\slash", None),
        (b"bytes", None),
    ],
)
def test_literals_are_exact_or_left_to_spark(value, text):
    assert filter_sql(make("EqualTo", attribute=("a",), value=value), COLUMNS) == text


def test_shapes_of_filters():
    inner = make("In", attribute=("b`c",), value=[1, 2])
    assert filter_sql(make("Not", child=inner), COLUMNS) == "(NOT (`b``c` IN (1, 2)))"
    assert filter_sql(make("IsNull", attribute=("a",)), COLUMNS) == "(`a` IS NULL)"
    assert filter_sql(make("In", attribute=("a",), value=[1, b"x"]), COLUMNS) is None
    assert filter_sql(make("StringContains", attribute=("a",), value="x"), COLUMNS) is None
    assert filter_sql(make("EqualTo", attribute=("a", "b"), value=1), COLUMNS) is None
    assert filter_sql(make("EqualTo", attribute=("z",), value=1), COLUMNS) is None
