"""Plans a write of cells, once the distinct values of its dimension columns are known.

Steps
-----
1. Find the index of each label: old labels keep their index, new labels follow.
2. Make the ``zarr.json`` of every array, with its shape after the write. If a dimension grows,
   arrays of the group without a column grow as well, so that the group remains one dataset.
3. Group variables that share blocks of chunks into parts, and number their cells.

A *block* is the smallest box of cells that consists of whole chunks of every variable; a task holds
one block at a time. A *unit* is a box of blocks. One task writes a unit, with one manifest for each
array, so the manifests of a write cover disjoint boxes (``cell_numbers``).

Rules of this file
------------------
1. The plan can be pickled. It holds distinct labels, never rows or chunks.
2. Planning creates nothing. If the repository does not exist, tasks store objects at its location,
   and the commit creates it.
3. Variables share blocks if the common block is not much larger than their chunks. Other variables
   form a separate part of the write, with a separate shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import ChunkAxis, RegularAxis, RunAxis, listed_edges
from icechunk_format.groups.changing import ChunkValues
from icechunk_format.tables.writing.cell_numbers import CELL, number_cells
from icechunk_format.tables.writing.columns.new_arrays import NewArray
from icechunk_format.tables.writing.dimensions import DimensionIndices, region_of_array
from icechunk_format.tables.writing.part import WritePart, WriteTarget
from icechunk_format.tables.writing.prepare import (
    ExistingArray,
    PreparedWrite,
    warn_of_fill_values,
)
from icechunk_format.zarr.zarr_json import ArrayMetadata

# The overhead of a task and a manifest dominates smaller units.
_LEAST_ROWS_PER_UNIT: Final = 250_000
_UNITS_PER_CORE: Final = 2
# A common block has at most this many times the cells of a chunk.
_MOST_GROWTH: Final = 4


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan(PreparedWrite):
    """A prepared write with the parts for tasks, and the changes of the commit."""

    parts: tuple[WritePart, ...]
    dimension_tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """By dimension: each ``value``, its ``index``, and its term of the cell number in each part.

    The number of a cell is the sum of its terms over the dimensions of a part.
    """
    row_count: int | None = None
    """Rows of the DataFrame when its coordinates were collected; None if unknown."""
    created: tuple[WriteTarget, ...] = ()
    resized: tuple[tuple[str, ArrayMetadata], ...] = ()
    """Existing arrays that grow: path and new document."""
    labels: tuple[ChunkValues, ...] = ()
    moved: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """By dimension, if labels of the base move: the new index of each."""
    disordered: tuple[str, ...] = ()
    """Dimensions whose new labels are planned at the end, out of order; the commit inserts them."""
    array_table: pa.Table | None = None
    """In the layouts of chunks: the numbers of units and blocks, by array."""

    @property
    def arrays(self) -> dict[str, WriteTarget]:
        """The arrays of all parts, by name."""
        return {array.name: array for part in self.parts for array in part.arrays}

    def indices(self, dim: str) -> NDArray[np.int64]:
        """Return the index along a dimension of each of its values."""
        found: NDArray[np.int64] = self.dimension_tables[dim].column("index").to_numpy()
        return found


def plan_write(
    prepared: PreparedWrite,
    coordinates: Mapping[str, pa.Array | pa.ChunkedArray],
    row_count: int | None = None,
    *,
    stay: Mapping[str, int] | None = None,
    time_zone: str = "UTC",
    cores: int | None = None,
) -> WritePlan:
    """Plan a write of cells.

    Parameters
    ----------
    prepared
        The result of ``prepare_write``.
    coordinates
        The distinct values of each dimension column, NULL included, in any order.
    row_count
        Rows of the DataFrame, if known.
    stay
        By dimension: the number of labels that keep their indices; see ``DimensionIndices``.
    time_zone
        Zone of times in the option ``replaceWhere``.
    cores
        Number of parallel tasks; units are made small enough for all of them.

    Raises
    ------
    InvalidInputError
        Coordinates are NULL, NaN or nearly equal to those of the array; rows cover too little of
        the grid, or not every cell of an array without a missing value.
    """
    return _Planner(prepared, coordinates, row_count, stay, time_zone, cores).plan()


class _Planner:
    def __init__(
        self,
        prepared: PreparedWrite,
        coordinates: Mapping[str, pa.Array | pa.ChunkedArray],
        row_count: int | None,
        stay: Mapping[str, int] | None,
        time_zone: str,
        cores: int | None,
    ) -> None:
        self._prepared = prepared
        self._rows = row_count
        self._rows_per_unit = prepared.options.rows_per_unit
        if cores is not None and row_count is not None:
            share = max(_LEAST_ROWS_PER_UNIT, row_count // (_UNITS_PER_CORE * cores))
            self._rows_per_unit = min(self._rows_per_unit, share)
        self._dimensions = DimensionIndices(prepared, coordinates, stay)
        self._indexed = self._dimensions.indexed
        self._dimensions.check_density(row_count)
        self._region = self._dimensions.replaced_region(time_zone)

    def _is_complete(self, dims: tuple[str, ...]) -> bool:
        """Return True if rows cover every cell of a new array with these dimensions."""
        cells = math.prod(self._indexed[dim].distinct for dim in self._prepared.dims)
        return self._rows == cells and all(
            self._indexed[dim].distinct == self._indexed[dim].size for dim in dims
        )

    # -- arrays -----------------------------------------------------------------------------

    def plan(self) -> WritePlan:
        """Return the plan."""
        prepared = self._prepared
        arrays = {name: self._array(name, target) for name, target in prepared.targets.items()}
        parts = self._parts([array for name, array in arrays.items() if name not in prepared.dims])
        labels = (self._labels(array) for name, array in arrays.items() if name in prepared.dims)
        return WritePlan(
            **prepared.stage(),
            parts=parts,
            dimension_tables=self._tables(parts),
            row_count=self._rows,
            created=tuple(a for a in arrays.values() if a.old_shape is None),
            resized=self._resized(),
            labels=tuple(found for found in labels if found is not None),
            moved={d: p.moved for d, p in self._indexed.items() if p.moved is not None},
            disordered=tuple(self._dimensions.disordered),
        )

    def _array(self, name: str, target: ExistingArray | NewArray) -> WriteTarget:
        shape = tuple(self._indexed[dim].size for dim in target.dims)
        if isinstance(target, ExistingArray):
            variable = target.variable
            for dim, size in variable.dimensions:
                if size != self._indexed[dim].old_size:
                    raise InvalidInputError(
                        f"array {variable.path} has {size} elements along {dim!r}, and the "
                        f"dimension has {self._indexed[dim].old_size}; repair the group first",
                        variable=name,
                    )
            metadata = variable.metadata.with_shape(shape)
            existing = WriteTarget.of_existing(variable, metadata)
            region = None
            if self._region is not None and name not in self._prepared.dims:
                region = region_of_array(variable, self._region)
            return replace(existing, encoder=target.encoder, region=region)
        options = self._prepared.options
        is_complete = self._is_complete(target.dims)
        if not is_complete and self._rows is not None and name not in self._prepared.dims:
            self._check_gaps(target, self._rows)
        metadata = target.metadata(
            shape,
            chunks=options.chunks or {},
            shards=options.shards or {},
            is_complete=is_complete or name in self._prepared.dims,
        )
        return replace(WriteTarget.of_new(metadata), encoder=target.encoder)

    def _check_gaps(self, target: NewArray, rows: int) -> None:
        if target.encoder.absent is not None:
            return
        cells = math.prod(self._indexed[dim].size for dim in target.dims)
        if rows > math.prod(self._indexed[dim].size for dim in self._prepared.dims):
            # Two rows have one cell; the task raises an error that names it.
            return
        name = target.column.name
        raise InvalidInputError(
            f"the {rows} rows do not cover all {cells} cells of {name!r}, and "
            f"{target.data_type.name} has no missing value for the others. The dimensions of this "
            f"write are ({', '.join(self._prepared.dims)}): if {name!r} is one, too, name all of "
            "them with the option dims; otherwise add the rows, or give it a missing value: "
            f"{target.advice}",
            variable=name,
        )

    def _labels(self, array: WriteTarget) -> ChunkValues | None:
        """Return the labels from the chunk of the first changed one on; None if none changes."""
        indexed = self._indexed[array.name]
        if indexed.labels is None or indexed.size == indexed.old_size:
            return None
        first = indexed.old_size
        if indexed.moved is not None:
            first = int(np.argmax(indexed.moved != np.arange(first)))
        return ChunkValues.changed(array.metadata, indexed.labels, first)

    def _resized(self) -> tuple[tuple[str, ArrayMetadata], ...]:
        grown = {dim: p for dim, p in self._indexed.items() if p.size > p.old_size}
        found, without_rows = [], []
        for variable in self._prepared.kept.values():
            is_named = variable.array.dimension_names is not None
            is_written = variable.name in self._prepared.targets
            if not is_named and not is_written:
                continue
            shape = tuple(
                grown[dim].size if dim in grown and size == grown[dim].old_size else size
                for dim, size in variable.dimensions
            )
            if shape != variable.shape:
                found.append((variable.path, variable.metadata.with_shape(shape)))
                if not is_written:
                    without_rows.append(variable)
        warn_of_fill_values(without_rows)
        return tuple(found)

    # -- parts ------------------------------------------------------------------------------

    def _parts(self, arrays: Sequence[WriteTarget]) -> tuple[WritePart, ...]:
        """Return parts of arrays that have the same dimensions and share blocks."""
        groups: list[list[WriteTarget]] = []
        for array in arrays:
            for group in groups:
                if set(group[0].dims) == set(array.dims) and _share_blocks([*group, array]):
                    group.append(array)
                    break
            else:
                groups.append([array])
        return tuple(self._part(number, group) for number, group in enumerate(groups))

    def _part(self, number: int, arrays: list[WriteTarget]) -> WritePart:
        prepared = self._prepared
        dims = tuple(dim for dim in prepared.dims if dim in arrays[0].dims)
        is_distinct = len(dims) < len(prepared.dims)
        numbers = number_cells(
            _common_axes(dims, arrays),
            [self._indexed[dim].indices for dim in dims],
            row_count=None if is_distinct else self._rows,
            rows_per_unit=self._rows_per_unit,
        )
        fields = [pa.field(CELL, pa.int64())]
        fields += [pa.field(a.name, prepared.columns[a.name].arrow_type) for a in arrays]
        return WritePart(
            destination=prepared.destination,
            number=number,
            dims=dims,
            arrays=tuple(arrays),
            units=numbers.units,
            input_schema=pa.schema(fields),
            numbers=numbers,
            table_dims=prepared.dims,
            labels=self._dimensions.labels_for_messages(dims),
        )

    def _tables(self, parts: Sequence[WritePart]) -> dict[str, pa.Table]:
        tables: dict[str, pa.Table] = {}
        for dim, indexed in self._indexed.items():
            columns: dict[str, Any] = {
                "value": self._dimensions.values[dim],
                "index": indexed.indices,
            }
            for part in parts:
                if dim in part.dims and part.numbers is not None:
                    axis = part.dims.index(dim)
                    columns[f"cell_{part.number}"] = part.numbers.terms(axis, indexed.indices)
            tables[dim] = pa.table(columns)
        return tables


def _share_blocks(arrays: Sequence[WriteTarget]) -> bool:
    """Return True if the common block is not much larger than the largest chunk."""
    largest = max(_most_cells(array.metadata.grid.axes) for array in arrays)
    return _most_cells(_common_axes(arrays[0].dims, arrays)) <= _MOST_GROWTH * largest


def _most_cells(axes: Sequence[ChunkAxis]) -> int:
    return math.prod(axis.largest for axis in axes)


def _common_axes(dims: Sequence[str], arrays: Sequence[WriteTarget]) -> tuple[ChunkAxis, ...]:
    """Return the axes of the blocks that hold whole chunks of all arrays."""
    return tuple(
        reduce(_joined, [array.metadata.grid.axes[array.dims.index(dim)] for array in arrays])
        for dim in dims
    )


def _joined(one: ChunkAxis, other: ChunkAxis) -> ChunkAxis:
    if one.edges is None and other.edges is None:
        # Limit a block to the size of the array.
        step = min(math.lcm(one.step, other.step), max(one.step, other.step, one.size))
        return RegularAxis(one.size, max(1, step))
    return RunAxis.of_edges(np.intersect1d(listed_edges(one), listed_edges(other)))
