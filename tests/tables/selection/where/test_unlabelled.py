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
