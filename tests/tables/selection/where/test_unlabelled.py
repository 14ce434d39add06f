"""Positions of a dimension without labels are selected as if they were labels."""

import pyarrow as pa
import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.tables.selection.where import unlabelled
from icechunk_format.tables.selection.where.split import plan_where
from icechunk_format.tables.selection.where.unlabelled import selected

SIZE = 12
NUMBERS = st.one_of(
    st.integers(-3, SIZE + 3), st.sampled_from(["NULL", 2**40, -(2**40), "4.5", "2L"])
)
COMPARISONS = st.sampled_from(["=", "<=>", "<>", "<", "<=", ">", ">="])
SIMPLE = st.one_of(
    st.builds("x {} {}".format, COMPARISONS, NUMBERS),
    st.builds("{} {} x".format, NUMBERS, COMPARISONS),
    st.builds("x BETWEEN {} AND {}".format, NUMBERS, NUMBERS),
    st.lists(NUMBERS, min_size=1, max_size=4).map(
        lambda numbers: f"x IN ({', '.join(map(str, numbers))})"
    ),
    st.sampled_from(["x IS NULL", "x IS NOT NULL", "x % 3 = 1", "x + 1 > 4", "true", "x - x = 0"]),
)
CONDITIONS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        inner.map("NOT ({})".format),
    ),
    max_leaves=5,
)


def condition_of(sql):
    return plan_where(sql, {"x": pa.int64()}, ["x"]).dimension_conditions.get("x")


@given(CONDITIONS)
def test_positions_are_selected_like_labels(sql):
    condition = condition_of(sql)
    if condition is None:
        return
    expected = condition.positions("x", pa.array(range(SIZE), type=pa.int64()))
    assert selected(condition, "x", range(SIZE)) == expected


@given(CONDITIONS)
def test_long_disjunctions_are_selected_like_labels(sql):
    condition = condition_of(sql)
    if condition is None:
        return
    expected = condition.positions("x", pa.array(range(SIZE), type=pa.int64()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unlabelled, "_MOST_LISTED", 1)
        assert selected(condition, "x", range(SIZE)) == expected


def test_labels_are_compared_as_they_are():
    condition = condition_of("x > 20")
    assert selected(condition, "x", pa.array([10, 30, 40])) == DimSelection.span(3, 1, 3)


def test_too_many_positions_are_refused():
    with raises(InvalidInputError, dim="x", found=2**40, allowed=unlabelled.MOST_COMPARED):
        selected(condition_of("x % 7 = 0"), "x", range(2**40))


def test_as_many_positions_as_are_allowed_are_compared(monkeypatch):
    monkeypatch.setattr(unlabelled, "MOST_COMPARED", SIZE)
    condition = condition_of("x % 7 = 0")
    assert selected(condition, "x", range(SIZE)).positions().tolist() == [0, 7]
    with raises(InvalidInputError, dim="x", found=SIZE + 1, allowed=SIZE):
        selected(condition, "x", range(SIZE + 1))


HUGE = 2**40


@pytest.mark.parametrize(
    ("sql", "bounds"),
    [
        ("x < 5", (0, 5)),
        ("5 >= x", (0, 6)),
        ("x > 5 AND x <= 9", (6, 10)),
        ("x IS NULL", (0, 0)),
        ("x IS NOT NULL", (0, HUGE)),
        ("NOT x > 5", (0, 6)),
        ("NOT x >= 5", (0, 5)),
        ("NOT x < 5", (5, HUGE)),
        ("NOT x <= 5", (6, HUGE)),
        ("NOT x <> 5", (5, 6)),
        ("x = NULL OR x > 5", (6, HUGE)),
        ("NULL < x OR x > 5", (6, HUGE)),
        ("x = 7 OR 1 = 2", (7, 8)),
        ("x = 7 OR 1 = 1", (0, HUGE)),
        ("x <= 7 OR x > 5", (0, HUGE)),
        ("x < 7 OR x >= 7", (0, HUGE)),
        ("x IN (3, 4, NULL, -1, 1099511627776)", (3, 5)),
        ("x IN (-1, 0, 1)", (0, 2)),
    ],
)
def test_comparisons_with_constants_select_without_listing(sql, bounds):
    assert selected(condition_of(sql), "x", range(HUGE)) == DimSelection.span(HUGE, *bounds)


@pytest.mark.parametrize(
    ("sql", "keeps"),
    [
        ("(x < 5) = (1 = 1)", lambda x: x < 5),
        ("isnan(x) OR x = 3", lambda x: x == 3),
        ("CASE WHEN x > 3 THEN x < 6 ELSE x = 1 END", lambda x: x in (1, 4, 5)),
        ("x IN (2.0D, 4.5D)", lambda x: x == 2),
        ("x < 4.5", lambda x: x <= 4),
        ("NOT (x % 3 = 1)", lambda x: x % 3 != 1),
        ("x < 3 OR x > 8", lambda x: x < 3 or x > 8),
        ("x = 1 OR x IN (3, 4)", lambda x: x in (1, 3, 4)),
    ],
)
@pytest.mark.parametrize("listed", [1, 1 << 20])
def test_positions_of_a_short_dimension(sql, keeps, listed, monkeypatch):
    monkeypatch.setattr(unlabelled, "_MOST_LISTED", listed)
    found = selected(condition_of(sql), "x", range(SIZE))
    assert found.positions().tolist() == [x for x in range(SIZE) if keeps(x)]
