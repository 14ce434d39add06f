"""Arithmetic of values with constants keeps their type, and never warns."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from icechunk_format.tables.reading.layouts.arithmetic import Step, computed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_are_applied_in_order_in_the_type_of_the_values(dtype):
    values = np.array([1.5, -0.1, np.nan, np.inf, 3e38], dtype=dtype)
    steps = [Step("subtract", 0.1), Step("multiply", 3.0), Step("negate"), Step("abs")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = computed(values, steps)
    with np.errstate(all="ignore"):
        expected = np.abs(-((values - dtype(0.1)) * dtype(3.0)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


def test_the_constant_may_come_first():
    values = np.array([2.0, 0.0])
    assert computed(values, [Step("subtract", 1.0, is_first=True)]).tolist() == [-1.0, 1.0]
    assert computed(values, [Step("divide", 4.0)]).tolist() == [0.5, 0.0]


def test_integers_are_converted_as_by_a_jvm():
    values = np.array([2**53 + 1, -(2**63), 7], dtype=np.int64)
    found = computed(values, [Step("double")])
    assert found.tolist() == [2.0**53, -(2.0**63), 7.0]
    single = np.array([0.1], dtype=np.float32)
    assert computed(single, [Step("double")]).tolist() == [float(np.float32(0.1))]
    assert computed(single, []) is single
