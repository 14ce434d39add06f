"""Arranges rows of `sample` and `zonal` as cells, for ``to_xarray``.

A row of `sample` is a point, whose arrays have one value for each label of the kept dimensions. A
row of `zonal` is a zone at one label of each other dimension. Fields record the role of their
columns (``icechunk_spark.schema.result_field``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class ResultRows:
    """The columns of a result by role.

    Parameters
    ----------
    described
        The metadata of all columns, by name.
    """

    described: Mapping[str, Mapping[str, Any]]

    @property
    def keys(self) -> list[str]:
        """The columns of the points, or the keys of the zones."""
        return [name for name, held in self.described.items() if "called" in held]

    @property
    def arrays(self) -> dict[str, dict[str, int]]:
        """The sizes of kept dimensions of each column of arrays."""
        return {
            name: dict(zip(held["kept"], held["lengths"], strict=True))
            for name, held in self.described.items()
            if held.get("kept")
        }

    @property
    def cells_of_a_row(self) -> int:
        """The largest number of values of a column of arrays."""
        return max([1, *(prod(sizes.values()) for sizes in self.arrays.values())])

    def dimensions(self) -> list[str]:
        """Return the columns that are dimensions, those of the rows first."""
        found = self._of_role("dimension")
        keys = self.keys
        if len(keys) == 1 and not set(keys) & set(found):
            return [*keys, *found]
        return found

    def numbered(self, table: pa.Table, dims: list[str]) -> tuple[pa.Table, list[str]]:
        """Return the table and its dimensions, with one that numbers points or zones if needed."""
        keys = self.keys
        if not keys or set(keys) & set(dims):
            return table, dims
        name = str(self.described[keys[0]]["called"])
        while name in self.described:
            name += "_"
        # Without other dimensions, each row is a point or zone.
        numbers = _row_numbers(table.select(keys)) if dims else np.arange(len(table))
        return table.append_column(name, pa.array(numbers, pa.int64())), [name, *dims]

    def coordinates(
        self, table: pa.Table, dims: Sequence[str]
    ) -> dict[str, tuple[pa.Table, list[str]]]:
        """Return the columns that depend on the dimensions of the rows alone, and these."""
        keys = self.keys
        others = {name for name in self._of_role("dimension") if name not in keys}
        by = [name for name in dims if name not in others]
        found: dict[str, tuple[pa.Table, list[str]]] = {}
        if not keys or not by or len(by) == len(dims):
            return found
        _, firsts = np.unique(_row_numbers(table.select(by)), return_index=True)
        for name in keys:
            own = table.select([*by, name]) if name not in by else table.select(by)
            if name not in dims and len(np.unique(_row_numbers(own))) == len(firsts):
                found[name] = own.take(pa.array(firsts)), by
        return found

    def values_by_kept(self) -> dict[tuple[str, ...], list[str]]:
        """Return the columns of arrays by their dimensions, as these are named in the dataset."""
        labels = self._labels()
        found: dict[tuple[str, ...], list[str]] = {}
        for name, sizes in self.arrays.items():
            if name not in labels.values():
                kept = tuple(labels.get(dim, dim) for dim in sizes)
                found.setdefault(kept, []).append(name)
        return found

    def cells(self, table: pa.Table, dims: Sequence[str], names: Sequence[str]) -> pa.Table:
        """Return a row for each value of arrays of the same kept dimensions.

        `dims` are the columns that identify a row of the table; they are repeated.
        """
        sizes = self.arrays[names[0]]
        labels = self._labels()
        cells = prod(sizes.values())
        rows = pa.array(np.repeat(np.arange(len(table)), cells))
        columns = {name: table[name].combine_chunks().take(rows) for name in dims}
        along = np.indices(list(sizes.values())).reshape(len(sizes), -1)
        for (dim, size), positions in zip(sizes.items(), along, strict=True):
            column = labels.get(dim)
            if column is None:
                columns[dim] = pa.array(np.tile(positions, len(table)))
                continue
            chosen = np.add.outer(np.arange(len(table)) * size, positions).reshape(-1)
            columns[column] = _values(table[column], [size]).take(pa.array(chosen))
        for name in names:
            columns[name] = _values(table[name], list(self.arrays[name].values()))
        return pa.table(columns)

    def _of_role(self, role: str) -> list[str]:
        return [name for name, held in self.described.items() if held.get("role") == role]

    def _labels(self) -> dict[str, str]:
        """Return the column of labels by kept dimension."""
        arrays = self.arrays
        return {next(iter(arrays[name])): name for name in self._of_role("labels")}


def _row_numbers(rows: pa.Table) -> NDArray[np.int64]:
    """Return a number for each distinct row, in the order of the values."""
    frame = rows.to_pandas(date_as_object=False)
    for name in frame.columns:
        if any(isinstance(value, dict | list | np.ndarray) for value in frame[name]):
            frame[name] = frame[name].map(repr)
    numbers = frame.groupby(list(frame.columns), dropna=False).ngroup()
    return np.asarray(numbers, np.int64)


def _values(column: pa.ChunkedArray, sizes: Sequence[int]) -> pa.Array:
    """Return the values of nested arrays of these sizes; NULL for each value of a NULL array."""
    values = column.combine_chunks()
    for size in sizes:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        lengths = pc.list_value_length(values).drop_null()
        if pc.any(pc.not_equal(lengths, size)).as_py():
            raise InvalidInputError(
                f"arrays of a kept dimension with {size} labels have other lengths in some rows;"
                " convert the result of sample before its arrays are changed",
                allowed=size,
            )
        starts = (np.cumsum(valid) - 1) * size
        positions = np.add.outer(starts, np.arange(size)).reshape(-1)
        missing = np.repeat(~valid, size)
        values = values.drop_null().flatten().take(pa.array(positions, mask=missing))
    return values
