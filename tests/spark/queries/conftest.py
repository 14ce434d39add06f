"""Small repositories with NULLs, NaNs, strange names and a descending dimension."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
ROWS = """
SELECT timestamp_ntz'2024-02-27 18:00:00' + make_dt_interval(0, 6 * t) AS time,
       20 - 5.0D * y AS latitude,
       'station ' || x AS `order`,
       IF((t + y + x) % 7 = 0, float('NaN'),
          IF((t + x) % 5 = 0, -0.0F, float(270 + t - y + x))) AS t2m,
       IF((t * y + x) % 4 = 0, NULL, t * 10 + y - x) AS `snow ``depth```,
       t * y AS `icechunk:1`
FROM range(8) AS a(t), range(9) AS b(y), range(4) AS c(x)
"""


@pytest.fixture(scope="session")
def cube(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a table of 288 cells in 24 chunks."""
    path = str(tmp_path_factory.mktemp("queries") / "cube")
    options = {
        "dims": "time,latitude,order",
        "chunks": "time=2,latitude=3,order=2",
        "encoding": '{"snow `depth`": {"_FillValue": -999}}',
    }
    spark.sql(ROWS).write.format("icechunk").options(**options).save(path)
    return path


@contextlib.contextmanager
def put_back(spark: SparkSession, *more: str) -> Iterator[None]:
    """Put back settings that a test changes in the session."""
    names = ("icechunk.pushdown", "spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    before = {name: spark.conf.get(name, None) for name in (*names, *QUICK, *more)}
    yield
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def set_quick(spark: SparkSession) -> None:
    """Let a session interpret queries of few rows, in few tasks."""
    for name, value in QUICK.items():
        spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    """Put back what a test sets in the session."""
    with put_back(spark):
        yield
