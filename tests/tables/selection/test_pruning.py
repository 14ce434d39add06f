"""Conditions that an engine evaluates again leave rows in, and never take one out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.tables.selection.pruning import (
    condition_on_rows,
    condition_on_values,
    prune,
)
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.selection.where.split import plan_where

DIMS = {"x": 4, "y": 3}
LABELS = {"x": pa.array([10, 20, 30, 40]), "y": pa.array([1.5, None, -2.0])}
VALUES = {
    "v": pa.array([1.0, 2.0, None, 0.0]),
    "n": pa.array([1, 0, 2, None], pa.int32()),
    "s": pa.array(["a", "b", None, ""]),
    "t": pa.array([0, 1, 2, None], pa.timestamp("us")),
}
COLUMNS = {name: column.type for name, column in (LABELS | VALUES).items()}


def pruned(*conjuncts, base=None):
    return prune(
        conjuncts,
        base or Selection(dims={}),
        dims=DIMS,
        columns=COLUMNS,
        coordinate=LABELS.__getitem__,
        time_zone="UTC",
    )


def positions(found):
    return {name: one.positions().tolist() for name, one in found.selection.dims.items()}


def kept(residual):
    return residual.evaluate(VALUES, 4).to_pylist()


def test_conditions_on_dimensions_select_exactly():
    found = pruned("x > 10", "x < 40", "y IS NOT NULL")
    assert positions(found) == {"x": [1, 2], "y": [0, 2]}
    assert (found.selection.residual, found.rows) == (None, None)
    assert found.used == ("x > 10", "x < 40", "y IS NOT NULL")
    assert (found.left, found.is_exact, found.is_total) == ((), True, True)
    base = Selection(dims={"x": DimSelection.span(4, 0, 2)})
    assert positions(pruned("x > 10", base=base)) == {"x": [1]}
    assert positions(pruned(base=base)) == {"x": [0, 1]}


def test_conditions_on_values_are_evaluated_together():
    found = pruned("v >= 1", "n > 0", "x = 20")
    assert positions(found) == {"x": [1]}
    assert (found.is_exact, found.is_total) == (False, True)
    condition = found.selection.residual
    assert condition.columns == ("v", "n")
    assert condition.sql == "v >= 1 AND n > 0"
    assert (condition.required, len(condition.optional)) == (None, 2)
    assert kept(condition) == [True, False, False, False]
    assert pruned("v >= 1").selection.residual.expression.operation != "and"


def test_a_required_condition_stays():
    base = Selection(dims={}, residual=plan_where("n / 1 > 0", COLUMNS, ()).residual)
    condition = pruned("v >= 0", base=base).selection.residual
    assert condition.required is base.residual
    assert condition.columns == ("n", "v")
    assert condition.expression.operation == "and"
    assert kept(condition) == [True, False, False, False]
    assert pruned("x = 20", base=base).selection.residual is base.residual
    failing = Selection(dims={}, residual=plan_where("1 / n > 0", COLUMNS, ()).residual)
    with pytest.raises(InvalidInputError):
        kept(pruned("v >= 0", base=failing).selection.residual)


def test_a_condition_that_fails_on_some_row_removes_none():
    found = pruned("1 / n > 0.7", "v < 2")
    assert (found.is_exact, found.is_total) == (False, False)
    assert kept(found.selection.residual) == [True, False, False, True]
    assert kept(pruned("1 / n > 0.7").selection.residual) == [True] * 4
    assert not pruned("1 / n > 0.7", "v < 2", "s = 'a'").is_total


def test_only_the_required_condition_needs_a_zone():
    columns = {"t": pa.timestamp("us", "UTC"), "v": pa.float64()}
    base = Selection(dims={}, residual=plan_where("hour(t) = 2", columns, (), None).residual)
    options = {"dims": {}, "columns": columns, "coordinate": pa.array, "time_zone": "Asia/Tokyo"}
    condition = prune(["hour(t) = 3"], base, **options).selection.residual
    assert condition.needs_zone
    other = condition.in_zone("UTC")
    assert not other.needs_zone
    rows = {"t": pa.array([2 * 3_600_000_000], columns["t"]), "v": pa.array([1.0])}
    assert other.evaluate(rows, 1).to_pylist() == [False]
    assert other.required.evaluate(rows, 1).to_pylist() == [True]
    assert not prune(["v > 1"], Selection(dims={}), **options).selection.residual.needs_zone


def test_what_is_never_true_selects_nothing():
    found = pruned("x = 10 AND x = 20 AND 1 = 2", "v > 1")
    assert positions(found) == {"x": [], "y": []}
    assert found.used == ("x = 10 AND x = 20 AND 1 = 2", "v > 1")


def test_what_cannot_be_compiled_is_left_with_the_reason():
    found = pruned("nothing = 1", "x = 20")
    assert positions(found) == {"x": [1]}
    assert found.used == ("x = 20",)
    ((sql, reason),) = found.left
    assert sql == "nothing = 1"
    assert "nothing" in reason
    assert (found.is_exact, found.is_total) == (False, False)


@pytest.mark.parametrize("call", ["exp(v)", "ln(v)", "sin(v)", "power(v, 2)", "radians(v)"])
def test_functions_whose_last_digit_differs_are_left(call):
    name = call.partition("(")[0]
    for sql in (f"{call} > 1", f"NOT ({call} + 1 > 1)", f"v > 1 AND {call} > 1"):
        assert pruned(sql).left == ((sql, f"{name} may differ in the last digit"),)
    assert not pruned("sqrt(v) > 1").left
    assert pruned("upper(s) = 'A'").left


def test_conditions_on_rows_and_on_values():
    found = condition_on_rows(["v > 0", "n = 1", "nothing"], COLUMNS, "UTC")
    assert found.selection.dims == {}
    assert found.selection.residual is None
    assert kept(found.rows) == [True, False, False, False]
    assert found.used == ("v > 0", "n = 1")
    assert condition_on_rows([], COLUMNS, "UTC").rows is None
    assert kept(condition_on_values("v > 0", COLUMNS, "UTC")) == [True, True, False, False]
    assert condition_on_values("1 = 1", COLUMNS, "UTC") is None
    with raises(InvalidInputError, option="where", match="1 / n > 0' may fail on some values"):
        condition_on_values("1 / n > 0", COLUMNS, "UTC")


@pytest.mark.parametrize(
    ("sql", "is_total"),
    [
        *((f"v {operator} 1", True) for operator in ("=", "<>", "<", "<=", ">", ">=", "<=>")),
        *(
            (f"{part}(t) = 1", True)
            for part in ("year", "quarter", "month", "day", "hour", "minute", "second")
        ),
        ("v IN (1, 2) OR NOT (v IS NULL AND isnan(v))", True),
        ("coalesce(v, 1) > 0", True),
        ("startswith(s, 'a') OR endswith(s, 'a') OR contains(s, 'a')", True),
        ("year(t) + 1 = 2", False),
        ("CAST(v AS INT) = 1", False),
        ("CAST(hour(t) AS STRING) = '1'", False),
        ("n + 1 > 0", False),
        ("v > 0 AND n + 1 > 0", False),
        ("n + 1 > 0 AND v > 0", False),
        ("NOT (n % 2 = 1)", False),
    ],
)
def test_conditions_that_cannot_fail_are_known(sql, is_total):
    assert pruned(sql).is_total == is_total
