"""``where`` means what ``df.where`` means.

Every expression is evaluated twice over the same rows: by our own evaluation, and by Spark as a
filter. Tests without Spark use its answers, which are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.where.expressions import (
    COLUMNS,
    EXPRESSIONS,
    REFUSED,
    ROWS,
    check_answers,
    expressions,
    ours,
)

from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    # Compiling hundreds of expressions to Java takes minutes, and evaluating ten rows no time.
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    # NaN stays NaN only through Arrow; pandas would make it NULL.
    table = spark.createDataFrame(pa.table(COLUMNS)).coalesce(1)
    yield table.withColumn("time", table.time.cast("timestamp_ntz"))
    for name in settings:
        spark.conf.unset(name)


def test_every_expression_keeps_the_rows_that_spark_keeps(rows: DataFrame) -> None:
    # One job for all of them: a filter keeps a row where its condition is TRUE.
    kept = rows.selectExpr(
        *(
            f"coalesce(({sql}), false) AS c{number}"
            for number, sql in enumerate(expressions(EXPRESSIONS))
        )
    ).toArrow()
    wrong, answers = {}, {}
    for number, sql in enumerate(expressions(EXPRESSIONS)):
        theirs = [row for row, keep in enumerate(kept.column(f"c{number}").to_pylist()) if keep]
        answers[sql] = " ".join(map(str, theirs))
        if ours(sql) != theirs:
            wrong[sql] = {"ours": ours(sql), "spark": theirs}
    assert not wrong
    check_answers("expressions", answers)


def test_the_expressions_tell_rows_apart() -> None:
    every = expressions(EXPRESSIONS)
    assert sum(0 < len(ours(sql)) < ROWS for sql in every) > 0.9 * len(every)


@pytest.mark.parametrize("sql", expressions(REFUSED))
def test_what_spark_refuses_is_refused(rows: DataFrame, sql: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException):
        rows.where(sql).count()
    with pytest.raises(InvalidInputError):
        ours(sql)
