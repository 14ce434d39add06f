"""Maps the values of dimension columns to indices, and checks them.

Rules of this file
------------------
1. The condition of ``replaceWhere`` consists of conditions on single dimensions, joined by AND, so
   it selects positions along each. It is evaluated once, on the labels after the write as they are
   read; as TIMESTAMP, in the session's time zone, if the column of the rows is TIMESTAMP.
2. Every label of the rows must satisfy the condition; otherwise nothing is written.
3. Tasks replace the region in chunks with rows; ``cells.regions`` makes its other cells missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.display.plain_text import counted
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection, Variable
from icechunk_format.tables.selection.where.condition import Residual
from icechunk_format.tables.selection.where.unlabelled import selected
from icechunk_format.tables.table.table import direction
from icechunk_format.tables.writing.columns.checks import bad_encoding
from icechunk_format.tables.writing.columns.labels import (
    IndexedLabels,
    given_indices,
    in_order,
    index_labels,
)
from icechunk_format.tables.writing.prepare import ExistingArray, PreparedWrite

if TYPE_CHECKING:
    from icechunk_format.tables.writing.columns.new_arrays import NewArray

_MOST_LABELS_IN_CONTEXT: Final = 100_000


class DimensionIndices:
    """Indices of the distinct values of each dimension column.

    ``values`` and ``indexed`` are these values and their indices, by dimension. ``disordered`` are
    the dimensions whose sorted labels become unsorted by this write. ``stay`` is, by dimension, the
    number of labels that keep their indices (all, if the dimension is absent); later labels are
    sorted together with new ones if possible.
    """

    def __init__(
        self,
        prepared: PreparedWrite,
        coordinates: Mapping[str, pa.Array | pa.ChunkedArray],
        stay: Mapping[str, int] | None = None,
    ) -> None:
        self._prepared = prepared
        self._stay = stay or {}
        self.values = {dim: _one_array(coordinates[dim]) for dim in prepared.dims}
        self.disordered: list[str] = []
        self.indexed = {dim: self._index(dim) for dim in prepared.dims}

    def _index(self, dim: str) -> IndexedLabels:
        values = self.values[dim]
        target = self._prepared.targets.get(dim)
        if target is None:
            return given_indices(values, dim=dim, old_size=self._old_size(dim))
        if isinstance(target, ExistingArray):
            old = self._read(target.variable)
            wish = (self._prepared.options.order or {}).get(dim)
            indexed = index_labels(
                values,
                target.encoder,
                old,
                dim=dim,
                is_descending=_checked_order(wish, old, dim=dim) == "descending",
            )
            if dim in self._stay:
                indexed = in_order(indexed, self._stay[dim])
            if wish != "unsorted" and is_disordered(indexed):
                self.disordered.append(dim)
            return indexed
        order, is_descending = self._order_of(dim, target)
        return index_labels(
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
                f"arrays of group {self._prepared.group} have different sizes along {dim!r}: "
                f"{', '.join(map(str, sorted(sizes)))} elements; repair the group first",
                dim=dim,
            )
        return sizes.pop() if sizes else 0

    def _order_of(self, dim: str, target: NewArray) -> tuple[NDArray[Any] | None, bool]:
        """Return the order of new labels, from options, field metadata or the replaced labels."""
        options = self._prepared.options
        wishes = (
            options.encoding.get(dim, {}).get("order"),
            (options.order or {}).get(dim),
            target.column.described.get("order"),
        )
        wish = next((given for given in wishes if given is not None), None)
        if wish == "unsorted":
            wish = None
        if wish not in (None, "ascending", "descending") and not isinstance(wish, list):
            raise bad_encoding(dim, "order", wish, "must be ascending or descending")
        if isinstance(wish, list):
            dtype = target.data_type.numpy
            if dtype.kind in "Mm":
                return np.array(wish, np.int64).view(dtype), False
            return np.array(wish, dtype=object).astype(dtype), False
        if wish is not None:
            return None, wish == "descending"
        before = self._prepared.replaced.get(dim)
        if (
            before is None
            or not before.is_dimension_coordinate
            or before.metadata.data_type.numpy != target.data_type.numpy
        ):
            return None, False
        labels = self._read(before)
        order = direction(labels)
        return (labels if order == 0 else None), order < 0

    def _read(self, variable: Variable) -> NDArray[Any]:
        return self._prepared.destination.open_base().reader(variable.path).read_all()

    def check_density(self, rows: int | None) -> None:
        """Raise InvalidInputError if rows cover less than ``min_density`` of their grid."""
        if rows is None or not self._prepared.dims:
            return
        counts = {dim: indexed.distinct for dim, indexed in self.indexed.items()}
        cells = math.prod(counts.values())
        least = self._prepared.options.min_density
        if cells and rows < least * cells:
            sizes = " x ".join(f"{count} {dim}" for dim, count in counts.items())
            raise InvalidInputError(
                f"{rows} rows cover {rows / cells:.2g} of the {cells} cells of their grid "
                f"({sizes}), less than minDensity={least}; store points or tracks with one "
                "dimension for all points, or lower minDensity",
                rows=rows,
                cells=cells,
            )

    def labels_for_messages(self, dims: tuple[str, ...]) -> dict[str, pa.Array]:
        """Return the labels of dimensions after the write, without very long dimensions."""
        found: dict[str, pa.Array] = {}
        budget = _MOST_LABELS_IN_CONTEXT
        for dim in dims:
            indexed, target = self.indexed[dim], self._prepared.targets.get(dim)
            if indexed.labels is None or target is None or indexed.size > budget:
                continue
            budget -= indexed.size
            found[dim] = target.encoder.decoder.decode(indexed.labels)
        return found

    def replaced_region(self, time_zone: str) -> dict[str, DimSelection] | None:
        """Return the old positions that ``replaceWhere`` selects, by restricted dimension.

        Returns None without the option. Raises InvalidInputError if the condition is not on
        dimensions only, or a row does not satisfy it.
        """
        where = self._prepared.options.replace_where
        if where is None:
            return None
        labels = {dim: self._labels(dim) for dim in self._prepared.dims}
        kinds = {
            dim: pa.int64() if isinstance(values, range) else values.type
            for dim, values in labels.items()
        }
        region: dict[str, DimSelection] = {}
        for dim, condition in self._conditions(where, kinds, time_zone).items():
            found, indexed = labels[dim], self.indexed[dim]
            chosen = selected(condition, dim, found)
            inside = chosen.has(indexed.indices)
            if not inside.all():
                first = found[int(indexed.indices[np.argmin(inside)])]
                raise InvalidInputError(
                    f"replaceWhere={where!r} leaves out {counted(int((~inside).sum()), 'label')} of"
                    f" {dim!r} with rows, such as {dim}={first}; filter the rows with df.where, or"
                    " widen the condition",
                    option="replaceWhere",
                    dim=dim,
                    label=str(first),
                )
            if indexed.moved is None:
                region[dim] = chosen.of_first(indexed.old_size)
            else:
                region[dim] = DimSelection.of_mask(chosen.has(indexed.moved))
        return region

    def _conditions(
        self, where: str, kinds: Mapping[str, pa.DataType], time_zone: str
    ) -> dict[str, Residual]:
        # Imported here since sqlglot is slow to import and most writes have no condition.
        from icechunk_format.tables.selection.where.split import plan_where

        columns = {name: column.arrow_type for name, column in self._prepared.columns.items()}
        planned = plan_where(where, {**columns, **kinds}, kinds.keys(), time_zone)
        if planned.residual is not None or planned.never or not planned.dimension_conditions:
            raise InvalidInputError(
                f"replaceWhere={where!r} does not select positions along dimensions; write"
                f" conditions on {', '.join(kinds)}, each on one of them, joined by AND",
                option="replaceWhere",
                where=where,
            )
        return planned.dimension_conditions

    def _labels(self, dim: str) -> pa.Array | range:
        """Return all labels after the write, as they are read, or the range of positions."""
        target, indexed = self._prepared.targets.get(dim), self.indexed[dim]
        if target is None or indexed.labels is None:
            return range(indexed.size)
        labels = target.encoder.decoder.decode(indexed.labels)
        given = self.values[dim].type
        if pa.types.is_timestamp(given) and given.tz and pa.types.is_timestamp(labels.type):
            # Stored times are in UTC.
            labels = labels.cast(pa.timestamp("us", "UTC"))
        return labels


def _checked_order(wish: str | None, old: NDArray[Any], *, dim: str) -> str | None:
    """Return the order of new labels; raise InvalidInputError if existing labels differ."""
    if wish == "unsorted":
        return None
    found = direction(old) if len(old) > 1 else 0
    has = {-1: "descending", 0: "neither ascending nor descending", 1: "ascending"}[found]
    if wish is not None and len(old) > 1 and wish != has:
        raise InvalidInputError(
            f"order={dim}={wish} does not match the existing labels of {dim!r}, which are "
            f"{has}; an append keeps their order: leave it out, or write with mode=overwrite",
            dim=dim,
            found=has,
        )
    return wish


def is_disordered(indexed: IndexedLabels) -> bool:
    """Return True if appended labels make sorted numbers or times unsorted."""
    labels, old_size = indexed.labels, indexed.old_size
    if labels is None or indexed.size == old_size or labels.dtype.kind not in "iufMm":
        return False
    return bool(direction(labels[:old_size])) and not direction(labels)


def loses_order(sides: Sequence[NDArray[Any]], merged: NDArray[Any]) -> bool:
    """Return True if the labels of all sides ascend, or all descend, and merged ones do not."""
    ways = {direction(labels) for labels in sides if len(labels) > 1}
    return len(merged) > 1 and len(ways) == 1 and not ways & {0, direction(merged)}


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def region_of_array(
    variable: Variable, region: Mapping[str, DimSelection]
) -> tuple[DimSelection, ...] | None:
    """Return the positions along each axis; None if the array lacks a restricted dimension."""
    if not set(region) <= set(variable.dims):
        return None
    sizes = zip(variable.dims, variable.shape, strict=True)
    return tuple(region.get(dim, DimSelection.whole(size)) for dim, size in sizes)
