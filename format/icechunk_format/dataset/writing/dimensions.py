"""Finds the indices of all values of the dimension columns of a write, and checks them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.table.label_order import direction
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.columns.labels import (
    PlacedValues,
    in_order,
    place_indices,
    place_labels,
)
from icechunk_format.dataset.writing.prepared import ExistingArray, PreparedWrite
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.files.metadata_files import load_snapshot

if TYPE_CHECKING:
    from icechunk_format.dataset.writing.columns.new_arrays import NewArray

_MOST_LABELS_IN_CONTEXT: Final = 100_000


class DimensionPlaces:
    """Indices of the distinct values of each dimension column.

    Parameters
    ----------
    prepared
        The write.
    coordinates
        The distinct values of each dimension column.
    stay
        By dimension: how many of the labels that are there have to stay where they are; None for
        all. New labels are merged with the others, in order, where that is possible.

    Attributes
    ----------
    values
        By dimension: the distinct values as one array.
    placed
        By dimension: where they go.
    old_labels
        By dimension: the stored labels in the places that are there, in their new order.
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
        self.placed = {dim: self._place(dim) for dim in prepared.dims}

    def _place(self, dim: str) -> PlacedValues:
        values = self.values[dim]
        target = self._prepared.targets.get(dim)
        if target is None:
            return place_indices(values, dim=dim, old_size=self._old_size(dim))
        if isinstance(target, ExistingArray):
            old = self._read(target.variable)
            wish = (self._prepared.options.order or {}).get(dim)
            placed = place_labels(
                values,
                target.encoder,
                old,
                dim=dim,
                is_descending=_checked_order(wish, old, dim=dim) == "descending",
            )
            if dim in self._stay:
                placed, old = in_order(placed, old, self._stay[dim])
            self.old_labels[dim] = old
            _warn_of_disorder(dim, old, placed)
            return placed
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
                f"{', '.join(map(str, sorted(sizes)))} elements; rows have no single place there",
                dim=dim,
            )
        return sizes.pop() if sizes else 0

    def _order_of(self, dim: str, target: NewArray) -> tuple[NDArray[Any] | None, bool]:
        """Return the order that new labels had where they come from, if it can be known."""
        said = self._prepared.options.encoding.get(dim, {}).get("order")
        described = target.column.described.get("order")
        if said is None:
            said = (self._prepared.options.order or {}).get(dim)
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
        destination = self._prepared.destination
        assert destination.base is not None
        version = load_snapshot(destination.open_storage(), destination.base)
        return destination.reader(version, variable.node).read_box(
            [0] * len(variable.shape), variable.shape
        )

    def check_density(self, rows: int | None) -> None:
        """Refuse rows that cover next to nothing of the grid that they would make."""
        if rows is None or not self._prepared.dims:
            return
        counts = {dim: placed.distinct for dim, placed in self.placed.items()}
        cells = math.prod(counts.values())
        least = self._prepared.options.min_density
        if cells and rows < least * cells:
            sizes = " x ".join(f"{count} {dim}" for dim, count in counts.items())
            raise InvalidInputError(
                f"{rows} rows cover {rows / cells:.2g} of the {cells} cells of their "
                f"grid ({sizes}), less than minDensity={least}: this looks like points or tracks, "
                "not a grid, and would be stored nearly empty. Use one dimension for all points, "
                "or set minDensity lower",
                rows=rows,
                cells=cells,
            )

    def labels_for_messages(self, dims: tuple[str, ...]) -> dict[str, pa.Array]:
        """Return the labels of dimensions after the write, but for those that are very many."""
        found: dict[str, pa.Array] = {}
        budget = _MOST_LABELS_IN_CONTEXT
        for dim in dims:
            placed, target = self.placed[dim], self._prepared.targets.get(dim)
            if placed.new_labels is None or target is None or placed.size > budget:
                continue
            budget -= placed.size
            old = self.old_labels.get(dim)
            stored = placed.new_labels if old is None else np.concatenate([old, placed.new_labels])
            found[dim] = target.encoder.decoder.decode(stored)
        return found


def _checked_order(wish: str | None, old: NDArray[Any], *, dim: str) -> str | None:
    """Refuse an order that the existing labels do not have."""
    found = direction(old) if len(old) > 1 else 0
    has = "descending" if found < 0 else "ascending"
    if wish is not None and len(old) > 1 and (not found or wish != has):
        raise InvalidInputError(
            f"order={dim}={wish} is not the order of the labels that {dim!r} has, which "
            f"{f'is {has}' if found else 'is neither ascending nor descending'}; an append keeps "
            "them: leave it out, or write with mode=overwrite",
            dim=dim,
        )
    return wish


def _warn_of_disorder(dim: str, old: NDArray[Any], placed: PlacedValues) -> None:
    """Say that new labels, which go to the end, make sorted numbers or times unsorted."""
    new = placed.new_labels
    if new is None or not len(new) or old.dtype.kind not in "iufMm" or not direction(old):
        return
    if direction(np.concatenate([old, new])):
        return
    warnings.warn(
        f"the labels of dimension {dim!r} are no longer sorted after this write: new labels are "
        "put at the end of a dimension, and some of them belong before the old ones. Reads of "
        f"this package select by value all the same, but xarray's sel(slice(...)) and "
        f"method='nearest' fail until sortby({dim!r}). Write the whole table with "
        "mode=overwrite to store it in order",
        UserWarning,
        stacklevel=2,
    )


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
