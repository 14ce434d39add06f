"""Constructs keep the rows that Spark's rules keep, and others are refused with their reason."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from helpers.raised import raises
from helpers.where.expressions import COLUMNS, ours
from sqlglot import exp

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where.compiler import Compiler
from icechunk_format.tables.selection.where.split import plan_where
from icechunk_format.tables.selection.where.types import TypeMismatchError, cast, column

TYPES = {name: values.type for name, values in COLUMNS.items()}


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("99.5 + 99.5 = 199.0", list(range(10))),
        ("i IN (t, b)", [0, 1, 4, 9]),
        ("i IN (t)", [0, 4]),
        ("INTERVAL 1 DAY + time > '2024-07-02'", [0, 1]),
        ("lead - INTERVAL 1 HOUR = INTERVAL 5 HOURS", [3]),
        ("date(time) + lead > '2024-07-01'", [1, 8]),
        ("date(time) - lead > '2024-07-01'", [1]),
        ("i + '1' = 2", [0]),
        # NaN is above every number.
        ("tan(d) > 0.5", [1, 3, 5, 6, 7, 9]),
        ("'1' + i = 2", [0]),
        ("d * '0.5' = 0.25", [5]),
        # A whole quotient is a BIGINT, which holds it.
        ("CAST(nullif(t, 1) AS TINYINT) DIV CAST(-1 AS TINYINT) = 128", [1]),
        ("flag = 'Yes'", [0, 3, 5, 8]),
        ("flag = '0'", [1, 4, 7, 9]),
        ("coalesce(CAST(CAST(NULL AS STRING) AS INT), i) = 3", [6]),
        ("date_format(time, 'yyyy') = '1582'", [9]),
        ("date_format(date '1000-01-01', 'yyyy') = '1000' AND i = 1", [0]),
        ("CAST(trim(s) AS STRING) = 'x'", [8]),
        ("CAST(concat(' ', CAST(i AS STRING), ' ') AS INT) = 2", [1]),
        ("abs(d) = 2.5", [8, 9]),
        ("isnan(abs(d)) AND abs(f) >= 0", [1]),
        ("time - INTERVAL '1 00:00:00.5' DAY TO SECOND = '2024-06-29 23:59:59.5'", [8]),
        ("s LIKE 'a!%c' ESCAPE '!'", [1]),
    ],
)
def test_rows_that_are_kept(sql: str, rows: list[int]) -> None:
    assert ours(sql) == rows


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("extract(CENTURY FROM time) = 1", "not supported"),
        ("i IS TRUE", "'i IS TRUE' is not supported"),
        ("date_format(date '0999-01-01', 'yyyy') = '0999'", "four digits"),
        ("date_format(time + INTERVAL 3000000 DAY, 'yyyy') = '2024'", "four digits"),
        ("floor(d * 0 + 9223372036854775808D) > 0", "beyond BIGINT"),
        ("ceil(h * 0 + 9223372036854775808D) > 0", "beyond BIGINT"),
        ("d & 1 = 1", "integers are needed here, not DOUBLE"),
        ("flag + 1 = 2", "BOOLEAN is not a number"),
        ("i + INTERVAL 1 DAY > i", "cannot be combined"),
        ("time * 2 > time", "cannot be combined"),
        ("time + 5 > '2024-01-01'", "cannot be combined"),
        ("time % INTERVAL 1 DAY = time", "cannot be combined"),
        ("lead * lead > lead", "cannot be combined"),
        (r"s LIKE 'a\\'", "has to be followed by"),
        ("s LIKE 'a!b' ESCAPE '!'", "has to be followed by"),
        ("s LIKE 'a!' ESCAPE '!'", "has to be followed by"),
        ("flag = 'maybe'", "'maybe' is not a BOOLEAN"),
        ("i = '99999999999999999999'", "is not a BIGINT"),
        ("lead > '1'", "a string cannot be cast to INTERVAL"),
        ("s = lead", "STRING cannot be cast to INTERVAL"),
        ("d > 123456789012345678901234567890123456789.0", "more than 38 digits"),
        ("i >", "an operand is missing"),
        ("(i > 1", r"Expecting \)"),
    ],
)
def test_reasons_of_what_is_refused(sql: str, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        ours(sql)


@pytest.mark.parametrize("kind", [exp.EQ, exp.LT, exp.Add, exp.BitwiseAnd, exp.Nullif, exp.Pow])
def test_parts_of_an_operator_that_are_not_known_are_refused(kind: type[exp.Expression]) -> None:
    """A newer parser may add one, which changes the meaning."""
    sides = {"this": exp.column("i"), "expression": exp.Literal.number(1)}
    Compiler(TYPES).compile(kind(**sides))
    with raises(InvalidInputError, construct=kind.__name__):
        Compiler(TYPES).compile(kind(**sides, ignore_signs=exp.true()))


@pytest.mark.parametrize("kind", [exp.Like, exp.ILike])
def test_parts_of_a_pattern_that_are_not_known_are_refused(kind: type[exp.Expression]) -> None:
    sides = {"this": exp.column("s"), "expression": exp.Literal.string("a%")}
    Compiler(TYPES).compile(kind(**sides))
    with raises(InvalidInputError, construct=kind.__name__):
        Compiler(TYPES).compile(kind(**sides, ignore_signs=exp.true()))
    escape = exp.Literal.string("!")
    Compiler(TYPES).compile(exp.Escape(this=kind(**sides), expression=escape))
    inner = kind(**sides, ignore_signs=exp.true())
    with raises(InvalidInputError, construct=kind.__name__):
        Compiler(TYPES).compile(exp.Escape(this=inner, expression=escape))


def test_cases_of_scalars_alone() -> None:
    residual = plan_where("CASE WHEN i > 2 THEN t ELSE i END = 5", TYPES, []).residual
    assert residual is not None
    for i, t, keeps in ((3, 5, True), (3, 4, False), (2, 5, False), (None, 5, False)):
        columns = {"i": pa.scalar(i, pa.int32()), "t": pa.scalar(t, pa.int8())}
        assert residual.evaluate(columns, 2).to_pylist() == [keeps] * 2


def test_a_decimal_has_its_38_digits() -> None:
    number = "9" * 36 + ".25"
    residual = plan_where(f"n = {number}", {"n": pa.decimal128(38, 2)}, []).residual
    assert residual is not None
    values = pa.array([Decimal(number), Decimal("0.25"), None], pa.decimal128(38, 2))
    assert residual.evaluate({"n": values}, 3).to_pylist() == [True, False, False]


@pytest.mark.parametrize("sql", ["d = {}", "d >= {}", "d IN ({}, 5.5)", "{} = d", "i * 0.001 = d"])
@pytest.mark.parametrize("thousandths", [9, 1413, 49861, -49861, 78353])
def test_a_decimal_becomes_the_nearest_double(sql: str, thousandths: int) -> None:
    number = f"{thousandths / 1000:.3f}"
    types = {"d": pa.float64(), "i": pa.int32()}
    residual = plan_where(sql.format(number), types, []).residual
    assert residual is not None
    columns = {"d": pa.array([float(number)]), "i": pa.array([thousandths], pa.int32())}
    assert residual.evaluate(columns, 1).to_pylist() == [True]


@pytest.mark.parametrize("kind", ["DECIMAL(20, 3)", "DECIMAL(3, 1)", "DECIMAL(12, 0)"])
@pytest.mark.parametrize("source", [pa.int8(), pa.int32(), pa.int64()])
def test_a_decimal_need_only_hold_the_values(kind: str, source: pa.DataType) -> None:
    residual = plan_where(f"CAST(n AS {kind}) > 0.5", {"n": source}, []).residual
    assert residual is not None
    columns = {"n": pa.array([1, -99, None, 99], source)}
    assert residual.evaluate(columns, 4).to_pylist() == [True, False, False, True]
    small = plan_where("CAST(n AS DECIMAL(2, 1)) > 0.5", {"n": source}, []).residual
    assert small is not None
    with pytest.raises(InvalidInputError, match="an error in Spark too"):
        small.evaluate(columns, 4)


def test_sums_of_decimals_have_up_to_38_digits() -> None:
    values = pa.array([Decimal("1.25"), Decimal("-0.25"), None], pa.decimal128(37, 2))
    residual = plan_where("n + 0.25 = 1.5", {"n": values.type}, []).residual
    assert residual is not None
    assert residual.evaluate({"n": values}, 3).to_pylist() == [True, False, False]
    with pytest.raises(InvalidInputError, match="39 digits"):
        plan_where("n + 0.25 = 1.5", {"n": pa.decimal128(38, 2)}, [])


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.bool_(), pa.int8()])
def test_nothing_is_cast_to_an_interval(kind: pa.DataType) -> None:
    with pytest.raises(TypeMismatchError):
        cast(column("c", kind), pa.duration("us"))
