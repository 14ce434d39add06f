"""Puts rows that Spark returned back onto the grid of their array, to compare them with NumPy.

Rules of this file
------------------
1. Rows come in any order, so each row is placed by its coordinates. Every cell of the grid must
   come exactly once: a row too many or too few is a failure, whatever its values.
2. Values are compared exactly, without tolerance.
3. ``decoded`` says what a missing value is: NULL for NaN and NaT with CF decoding, and without it
   no NULL at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

Labels = Mapping[str, np.ndarray]
Values = Mapping[str, np.ndarray]


def assert_cells(table: pa.Table, labels: Labels, values: Values, *, decoded: bool) -> None:
    """Check that a table of the layout ``cells`` holds each cell once, with the right values.

    Parameters
    ----------
    table
        The rows; its columns must be the dimensions, then the values, in the given orders.
    labels
        For each dimension its labels, which must differ from one another.
    values
        For each other column an array that broadcasts to the shape of the grid.
    decoded
        Whether NaN and NaT stand for missing values.
    """
    assert table.column_names == [*labels, *values]
    shape = tuple(len(of_dim) for of_dim in labels.values())
    positions = row_positions(table, labels)
    np.testing.assert_array_equal(np.sort(positions), np.arange(np.prod(shape, dtype=int)))
    for name, array in values.items():
        flat = np.broadcast_to(np.asarray(array), shape).reshape(-1)
        assert_column(table[name], flat[positions], decoded=decoded, name=name)


def row_positions(table: pa.Table, labels: Labels) -> np.ndarray:
    """Return for each row its place in the grid, counted in C order."""
    shape = tuple(len(of_dim) for of_dim in labels.values())
    if not labels or not table.num_rows:
        return np.zeros(table.num_rows, dtype=np.int64)
    indices = []
    for dim, of_dim in labels.items():
        assert table[dim].null_count == 0
        known = pd.Index(_comparable(np.asarray(of_dim)))
        found = known.get_indexer(pd.Index(_comparable(table[dim].to_numpy())))
        assert (found >= 0).all(), f"{dim} has labels that the array has not"
        indices.append(found)
    return np.ravel_multi_index(indices, shape)


def _comparable(values: np.ndarray) -> np.ndarray:
    return values.astype("datetime64[us]") if values.dtype.kind == "M" else values


def assert_column(
    column: pa.ChunkedArray, expected: np.ndarray, *, decoded: bool, name: str
) -> None:
    """Check the values of a column, row by row."""
    kind = expected.dtype.kind
    if expected.dtype.names is not None:
        for field in expected.dtype.names:
            assert_column(
                pc.struct_field(column, field),
                expected[field],
                decoded=decoded,
                name=f"{name}.{field}",
            )
    elif kind == "c":
        missing = np.isnan(expected) & decoded
        np.testing.assert_array_equal(column.is_null().to_numpy(), missing, err_msg=name)
        column, expected = column.filter(pa.array(~missing)), expected[~missing]
        for field, part in (("re", expected.real), ("im", expected.imag)):
            assert_column(
                pc.struct_field(column, field), part, decoded=False, name=f"{name}.{field}"
            )
    elif kind in "mM":
        _assert_times(column, expected, name)
    elif kind == "f":
        missing = np.isnan(expected) & decoded
        np.testing.assert_array_equal(column.is_null().to_numpy(), missing, err_msg=name)
        found = column.to_numpy(zero_copy_only=False) if len(column) else np.array([])
        np.testing.assert_array_equal(found, expected.astype("float64"), err_msg=name)
    elif kind in "iu" and not pa.types.is_decimal(column.type):
        assert column.null_count == 0, name
        np.testing.assert_array_equal(column.to_numpy(), expected, err_msg=name)
    else:
        assert column.to_pylist() == [_plain(value) for value in expected.tolist()], name


def _assert_times(column: pa.ChunkedArray, expected: np.ndarray, name: str) -> None:
    unit = f"{expected.dtype.kind}8[us]"
    exact = expected.astype(unit)
    assert (exact.astype(expected.dtype) == expected)[~np.isnat(expected)].all()
    found = column.to_numpy(zero_copy_only=False).astype(unit)
    np.testing.assert_array_equal(found, exact, err_msg=name)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value
