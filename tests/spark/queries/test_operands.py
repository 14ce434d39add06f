"""Operands of aggregates are columns, or arithmetic whose result NumPy and Spark agree on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icechunk_format.tables.reading.layouts.arithmetic import Step
from icechunk_spark.queries.operands import NotRewritten, operand, tokens_of

TYPES = {
    "t": pa.float32(),
    "d": pa.float64(),
    "i": pa.int64(),
    "u": pa.decimal128(20, 0),
    "s": pa.string(),
}
DOUBLE = Step("double")
READ = {
    "`t`": ("t", ()),
    "((`d`))": ("d", ()),
    "CAST(`t` AS DOUBLE)": ("t", (DOUBLE,)),
    "(CAST(`t` AS DOUBLE) - 273.15D)": ("t", (DOUBLE, Step("subtract", 273.15))),
    "(`d` * -1.5E-3D)": ("d", (Step("multiply", -0.0015),)),
    "(2.0D - `d`)": ("d", (Step("subtract", 2.0, is_first=True),)),
    "(`t` * CAST('1.5' AS FLOAT))": ("t", (Step("multiply", 1.5),)),
    "(- (`d` / 4.0D))": ("d", (Step("divide", 4.0), Step("negate"))),
    "abs((CAST(`i` AS DOUBLE) + 1.0D))": ("i", (DOUBLE, Step("add", 1.0), Step("abs"))),
    "(`d` + CAST('-Infinity' AS DOUBLE))": ("d", (Step("add", float("-inf")),)),
}
REFUSED = (
    "`nothing`",
    "(`i` + 1L)",
    "(`t` + 1.0D)",
    "(`d` / 0.0D)",
    "(1.0D / `d`)",
    "(`d` * `d`)",
    "(`d` % 2.0D)",
    "CAST(`u` AS DOUBLE)",
    "CAST(`s` AS DOUBLE)",
    "CAST(`d` AS FLOAT)",
    "(- `i`)",
    "abs(`i`)",
    "SQRT(`d`)",
    "(`d` + 1)",
    "(`d` + 1BD)",
    "`d` + 1.0D * 2.0D",
    "(`t` * CAST('1.00000005960464477539' AS FLOAT))",
)


@pytest.mark.parametrize("sql", READ)
def test_operands(sql: str):
    found = operand(tokens_of(sql), TYPES)
    assert (found.column, found.steps) == READ[sql]


@pytest.mark.parametrize("sql", REFUSED)
def test_operands_that_only_spark_computes(sql: str):
    with pytest.raises(NotRewritten):
        operand(tokens_of(sql), TYPES)
