"""Maps the values of dimension columns to indices, and checks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.table.table import direction
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.columns.labels import (
    IndexedLabels,
    given_indices,
    in_order,
    index_labels,
)
from icechunk_format.dataset.writing.prepare import ExistingArray, PreparedWrite
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.dataset.writing.columns.new_arrays import NewArray

_MOST_LABELS_IN_CONTEXT: Final = 100_000


class DimensionIndices:
    """Indices of the distinct values of each dimension column.

    Parameters
    ----------
    stay
        By dimension: the number of labels that keep their indices (all, if the dimension is
        absent). Later labels are sorted together with new ones if possible.

    Attributes
    ----------
    values
        By dimension: the distinct values as one array.
    indexed
        By dimension: the indices of these values.
    old_labels
        By dimension: the stored labels before ``old_size``, in their order after the write.
    disordered
        Dimensions whose sorted labels become unsorted by this write.
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
        self.old_labels: dict[str, NDArray[Any]] = {}
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
                indexed, old = in_order(indexed, old, self._stay[dim])
            self.old_labels[dim] = old
            if wish != "unsorted" and is_disordered(old, indexed):
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
            raise InvalidInputError(
                f"encoding of {dim!r}: order={wish!r} must be ascending or descending",
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
            labels = indexed.new_labels
            if labels is None or target is None or indexed.size > budget:
                continue
            budget -= indexed.size
            if dim in self.old_labels:
                labels = np.concatenate([self.old_labels[dim], labels])
            found[dim] = target.encoder.decoder.decode(labels)
        return found


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


def is_disordered(old: NDArray[Any], indexed: IndexedLabels) -> bool:
    """Return True if appended labels make sorted numbers or times unsorted."""
    new = indexed.new_labels
    if new is None or not len(new) or old.dtype.kind not in "iufMm" or not direction(old):
        return False
    return not direction(np.concatenate([old, new]))


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
