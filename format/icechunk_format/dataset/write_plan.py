"""The second half of planning a write: with the distinct coordinates, everything is decided.

Steps
-----
1. Each dimension gets its places: old labels keep theirs, new ones follow.
2. Every array gets its document, with its size after the write. Arrays of the group that no column
   names grow as well where a dimension grows, so that the group stays one dataset.
3. Variables that share blocks of chunks become parts; places become numbers of units and blocks.

Rules of this file
------------------
1. The plan can be pickled. It holds distinct coordinates, never rows or chunks.
2. Last of all, when nothing can be refused any more, a repository is created where there is none:
   tasks need a place to write to.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from icechunk_format.dataset.array_reader import ArrayReader
from icechunk_format.dataset.chunk_axis import grid_axes
from icechunk_format.dataset.label_order import direction
from icechunk_format.dataset.write_arrays import NewArray
from icechunk_format.dataset.write_context import (
    BLOCK,
    UNIT,
    ArrayTarget,
    WriteContext,
    index_name,
)
from icechunk_format.dataset.write_grid import common_axes, group_arrays, number_units
from icechunk_format.dataset.write_labels import (
    PlacedValues,
    place_indices,
    place_labels,
)
from icechunk_format.dataset.write_prepare import ExistingArray, PreparedWrite
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.objects import load_snapshot
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.ids import NodeId
from icechunk_format.storage.location import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from icechunk_format.arrays.zarr_json import ArrayMetadata
    from icechunk_format.dataset.variable import Variable

_MOST_LABELS_IN_CONTEXT: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChunks:
    """Labels that the driver writes: all from ``start`` on, which begins a chunk."""

    path: str
    metadata: ArrayMetadata
    start: int
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePart:
    """Variables that are written together.

    Parameters
    ----------
    number
        Of the part.
    dims, variables
        Names of columns.
    is_distinct
        Whether rows repeat along dimensions that the part has not, and must be made distinct.
    units
        How many units there are.
    context
        For the tasks.
    input_schema
        Of the batches that tasks take.
    """

    number: int
    dims: tuple[str, ...]
    variables: tuple[str, ...]
    is_distinct: bool
    units: int
    context: WriteContext
    input_schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """A write that is fully decided.

    Parameters
    ----------
    prepared
        What was known before.
    parts
        What tasks do; nearly always one part.
    dimension_tables
        By dimension: ``value``, ``index``, and ``unit_k`` and ``block_k`` for each part ``k``.
    base
        The version that the write starts from.
    created
        Arrays that are new.
    resized
        Existing arrays that grow: path and document.
    labels
        Labels that the driver writes.
    array_table
        In the layouts of chunks: what numbers the units and blocks of rows.
    """

    prepared: PreparedWrite
    parts: tuple[WritePart, ...]
    dimension_tables: Mapping[str, pa.Table] = field(default_factory=dict)
    base: Any = None
    created: tuple[ArrayTarget, ...] = ()
    resized: tuple[tuple[str, ArrayMetadata], ...] = ()
    labels: tuple[LabelChunks, ...] = ()
    array_table: pa.Table | None = None


def plan_write(
    prepared: PreparedWrite,
    coordinates: Mapping[str, pa.Array | pa.ChunkedArray],
    row_count: int | None = None,
) -> WritePlan:
    """Decide everything about a write of cells.

    Parameters
    ----------
    prepared
        From ``prepare_write``.
    coordinates
        The distinct values of each dimension column, NULL included, in any order.
    row_count
        Rows of the DataFrame, where known.

    Raises
    ------
    InvalidInputError
        Coordinates are NULL, NaN or nearly those that are there; rows cover too little of the
        grid; cells stay empty for which there is no missing value.
    AlreadyExistsError
        Something else is at the place of a new repository.
    """
    planner = _Planner(prepared, coordinates, row_count)
    planner.check_density()
    plan = planner.plan()
    return plan if plan.base is not None else with_repository(plan)


def with_repository(plan: WritePlan) -> WritePlan:
    """Create the repository of a plan that has none.

    Raises
    ------
    AlreadyExistsError
        Something is at its place.
    """
    options = plan.prepared.options
    repository = Repository.create(plan.prepared.location, spec_version=options.spec_version)
    return replace(plan, base=repository.resolve(branch="main"))


def new_node_id() -> NodeId:
    """Return an id for an array that tasks write before it exists."""
    return NodeId.from_random(secrets.token_bytes(NodeId.SIZE))


class _Planner:
    def __init__(
        self,
        prepared: PreparedWrite,
        coordinates: Mapping[str, pa.Array | pa.ChunkedArray],
        row_count: int | None,
    ) -> None:
        self._prepared = prepared
        self._rows = row_count
        self._values = {dim: _one_array(coordinates[dim]) for dim in prepared.dims}
        self._old_labels: dict[str, NDArray[Any]] = {}
        self._placed = {dim: self._place(dim) for dim in prepared.dims}

    # -- dimensions -------------------------------------------------------------------------

    def _place(self, dim: str) -> PlacedValues:
        values = self._values[dim]
        target = self._prepared.targets.get(dim)
        if target is None:
            return place_indices(values, dim=dim, old_size=self._old_size(dim))
        if isinstance(target, ExistingArray):
            old = self._read(target.variable)
            self._old_labels[dim] = old
            return place_labels(values, target.encoder, old, dim=dim)
        order, is_descending = self._order_of(dim, target)
        return place_labels(
            values, target.encoder, None, dim=dim, is_descending=is_descending, order=order
        )

    def _old_size(self, dim: str) -> int:
        sizes = {
            size
            for variable in self._prepared.kept.values()
            for name, size in variable.dimensions
            if name == dim
        }
        if len(sizes) > 1:
            raise InvalidInputError(
                f"arrays of group {self._prepared.group} disagree about the dimension {dim!r}: "
                f"{', '.join(map(str, sorted(sizes)))} elements; rows have no one place there",
                dim=dim,
            )
        return sizes.pop() if sizes else 0

    def _order_of(self, dim: str, target: NewArray) -> tuple[NDArray[Any] | None, bool]:
        """Return the order that new labels had where they come from, if it can be known."""
        said = self._prepared.options.encoding.get(dim, {}).get("order")
        described = target.column.described.get("order")
        wish = said if said is not None else described
        if wish not in (None, "ascending", "descending") and not isinstance(wish, list):
            raise InvalidInputError(
                f"encoding of {dim!r}: order={wish!r} is not known; choose ascending or descending",
                variable=dim,
            )
        if isinstance(wish, list):
            dtype = target.data_type.numpy
            if dtype.kind in "Mm":
                return np.array(wish, np.int64).view(dtype), False
            return np.array(wish, dtype=object).astype(dtype), False
        if wish is not None:
            return None, wish == "descending"
        before = self._prepared.replaced.get(dim)
        if before is None or not before.is_dimension_coordinate:
            return None, False
        if before.metadata.data_type.numpy != target.data_type.numpy:
            return None, False
        labels = self._read(before)
        order = direction(labels)
        return (labels if order == 0 else None), order < 0

    def _read(self, variable: Variable) -> NDArray[Any]:
        prepared = self._prepared
        assert prepared.base is not None
        storage = open_storage(prepared.location)
        reader = ArrayReader(
            storage=storage,
            snapshot=load_snapshot(storage, prepared.base),
            variable=variable,
            chunk_source=prepared.chunk_source,
        )
        return reader.read_box([0] * len(variable.shape), variable.shape)

    def check_density(self) -> None:
        """Refuse rows that cover next to nothing of the grid that they would make."""
        if self._rows is None or not self._prepared.dims:
            return
        counts = {dim: placed.distinct for dim, placed in self._placed.items()}
        cells = math.prod(counts.values())
        least = self._prepared.options.min_density
        if cells and self._rows < least * cells:
            sizes = " x ".join(f"{count} {dim}" for dim, count in counts.items())
            raise InvalidInputError(
                f"{self._rows} rows cover {self._rows / cells:.2g} of the {cells} cells of their "
                f"grid ({sizes}), less than minDensity={least}: this looks like points or tracks, "
                "not a grid, and would be stored nearly empty. Use one dimension for all points, "
                "or set minDensity lower",
                rows=self._rows,
                cells=cells,
            )

    def _is_complete(self, dims: tuple[str, ...]) -> bool:
        """Whether rows cover every cell of a new array with these dimensions."""
        cells = math.prod(self._placed[dim].distinct for dim in self._prepared.dims)
        return self._rows == cells and all(
            self._placed[dim].distinct == self._placed[dim].size for dim in dims
        )

    # -- arrays -----------------------------------------------------------------------------

    def plan(self) -> WritePlan:
        """Return the whole plan."""
        prepared = self._prepared
        arrays: dict[str, ArrayTarget] = {}
        labels: list[LabelChunks] = []
        for name, target in prepared.targets.items():
            array = self._array(name, target)
            if name not in prepared.dims:
                arrays[name] = array
                continue
            found = self._labels(array)
            if found is not None:
                labels.append(found)
            if isinstance(target, NewArray):
                arrays[name] = array
        is_variable = {name: a for name, a in arrays.items() if name not in prepared.dims}
        parts = self._parts(is_variable)
        return WritePlan(
            prepared=prepared,
            parts=tuple(part for part, _ in parts),
            dimension_tables=self._tables(parts),
            base=prepared.base,
            created=tuple(a for a in arrays.values() if a.old_shape is None),
            resized=self._resized(),
            labels=tuple(labels),
        )

    def _array(self, name: str, target: ExistingArray | NewArray) -> ArrayTarget:
        shape = tuple(self._placed[dim].size for dim in target.dims)
        if isinstance(target, ExistingArray):
            variable = target.variable
            for dim, size in variable.dimensions:
                if size != self._placed[dim].old_size:
                    raise InvalidInputError(
                        f"array {variable.path} has {size} elements along {dim!r}, and the "
                        f"dimension has {self._placed[dim].old_size}; repair the group first",
                        variable=name,
                    )
            return ArrayTarget(
                name=name,
                path=target.path,
                node_id=variable.node.id,
                dims=target.dims,
                metadata=variable.metadata.with_shape(shape),
                encoder=target.encoder,
                old_shape=variable.shape,
            )
        options = self._prepared.options
        is_complete = self._is_complete(target.dims)
        if not is_complete and self._rows is not None and name not in self._prepared.dims:
            self._check_gaps(target)
        metadata = target.metadata(
            shape,
            chunks=options.chunks or {},
            shards=options.shards or {},
            is_complete=is_complete or name in self._prepared.dims,
        )
        return ArrayTarget(
            name=name,
            path=target.path,
            node_id=new_node_id(),
            dims=target.dims,
            metadata=metadata,
            encoder=target.encoder,
        )

    def _check_gaps(self, target: NewArray) -> None:
        if target.encoder.absent is not None:
            return
        cells = math.prod(self._placed[dim].size for dim in target.dims)
        raise InvalidInputError(
            f"the {self._rows} rows do not cover all {cells} cells of {target.column.name!r}, and "
            f"{target.data_type.name} has no missing value for the others; give it one with "
            f'encoding={{"{target.column.name}": {{"_FillValue": ...}}}}, or add the rows',
            variable=target.column.name,
        )

    def _labels(self, array: ArrayTarget) -> LabelChunks | None:
        """Return the labels to write: whole chunks, from the first that changes."""
        placed = self._placed[array.name]
        assert placed.new_labels is not None
        if not len(placed.new_labels):
            return None
        if array.old_shape is None:
            return LabelChunks(
                path=array.path, metadata=array.metadata, start=0, values=placed.new_labels
            )
        [axis] = grid_axes(array.metadata.grid)
        start = axis.bounds(int(axis.chunk_of(np.array([placed.old_size]))[0]))[0]
        kept = self._old_labels[array.name][start:]
        values = np.concatenate([kept, placed.new_labels])
        return LabelChunks(path=array.path, metadata=array.metadata, start=start, values=values)

    def _resized(self) -> tuple[tuple[str, ArrayMetadata], ...]:
        grown = {dim: p for dim, p in self._placed.items() if p.size > p.old_size}
        found = []
        for variable in self._prepared.kept.values():
            is_named = variable.array.dimension_names is not None
            if not is_named and variable.name not in self._prepared.targets:
                continue
            shape = tuple(
                grown[dim].size if dim in grown and size == grown[dim].old_size else size
                for dim, size in variable.dimensions
            )
            if shape != variable.shape:
                found.append((variable.path, variable.metadata.with_shape(shape)))
        return tuple(found)

    # -- parts ------------------------------------------------------------------------------

    def _parts(self, arrays: Mapping[str, ArrayTarget]) -> list[tuple[WritePart, Any]]:
        by_dims: dict[frozenset[str], dict[str, tuple[tuple[str, ...], ArrayMetadata]]] = {}
        for name, array in arrays.items():
            by_dims.setdefault(frozenset(array.dims), {})[name] = (array.dims, array.metadata)
        found: list[tuple[WritePart, Any]] = []
        for members in by_dims.values():
            for names in group_arrays(members):
                found.append(self._part(len(found), [arrays[name] for name in names]))
        return found

    def _part(self, number: int, arrays: list[ArrayTarget]) -> tuple[WritePart, Any]:
        prepared = self._prepared
        dims = tuple(dim for dim in prepared.dims if dim in arrays[0].dims)
        axes = common_axes(dims, [(array.dims, array.metadata) for array in arrays])
        is_distinct = len(dims) < len(prepared.dims)
        numbers = number_units(
            dims,
            axes,
            {dim: self._placed[dim].places for dim in dims},
            row_count=None if is_distinct else self._rows,
            rows_per_unit=prepared.options.rows_per_unit,
        )
        names = [UNIT, BLOCK, *(index_name(n) for n in range(len(dims)))]
        fields = [pa.field(name, pa.int64()) for name in names]
        fields += [pa.field(a.name, prepared.columns[a.name].arrow_type) for a in arrays]
        context = WriteContext(
            location=prepared.location,
            part=number,
            dims=dims,
            axes=axes,
            arrays=tuple(arrays),
            base=prepared.base,
            chunk_source=prepared.chunk_source,
            manifest_format=prepared.manifest_format,
            labels=self._labels_for_messages(dims),
        )
        part = WritePart(
            number=number,
            dims=dims,
            variables=tuple(array.name for array in arrays),
            is_distinct=is_distinct,
            units=numbers.units,
            context=context,
            input_schema=pa.schema(fields),
        )
        return part, numbers

    def _labels_for_messages(self, dims: tuple[str, ...]) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        budget = _MOST_LABELS_IN_CONTEXT
        for dim in dims:
            placed, target = self._placed[dim], self._prepared.targets.get(dim)
            if placed.new_labels is None or target is None or placed.size > budget:
                continue
            budget -= placed.size
            old = self._old_labels.get(dim)
            stored = placed.new_labels if old is None else np.concatenate([old, placed.new_labels])
            found[dim] = target.encoder.decoder.decode(stored)
        return found

    def _tables(self, parts: list[tuple[WritePart, Any]]) -> dict[str, pa.Table]:
        tables: dict[str, pa.Table] = {}
        for dim, placed in self._placed.items():
            columns: dict[str, Any] = {"value": self._values[dim], "index": placed.places}
            for part, numbers in parts:
                if dim in part.dims:
                    columns[f"unit_{part.number}"] = numbers.unit_terms[dim]
                    columns[f"block_{part.number}"] = numbers.block_terms[dim]
            tables[dim] = pa.table(columns)
        return tables


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        joined = values.combine_chunks()
        return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)
    return values
