"""Merges labels that two branches have changed since a common snapshot.

Stored labels are compared. Labels that the target removed stay removed, if the source did not edit
their cells; equal labels added by both sides become one label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import parent
from icechunk_format.errors import IcechunkError
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import Variable, arrays_in
from icechunk_format.repository.changes import Conflict, same_meaning
from icechunk_format.tables.cf import VariableEncoder, attribute_decoder, missing_value
from icechunk_format.tables.writing import (
    DimMoves,
    in_order,
    index_labels,
    is_disordered,
    loses_order,
)
from icechunk_format.workflows.merging.sides import CannotMerge, Sides

_MOST_SHOWN: Final = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedLabels:
    """The joined labels of both sides.

    Parameters
    ----------
    indices
        ``int64``: the merged index of each label of ``DimLabels.own``.
    tip
        The merged index of each element of the target.
    labels
        Stored labels; None for a dimension without labels.
    is_disordered
        True if sorted labels become unsorted.
    shown
        Decoded labels for messages; None if there are too many.
    """

    indices: NDArray[np.int64]
    tip: IndexMap
    labels: NDArray[Any] | None = None
    is_disordered: bool = False
    shown: pa.Array | None = None

    @property
    def has_moved(self) -> bool:
        """True if an element of the target has another index, or none."""
        return self.tip.still < self.tip.before

    @property
    def first(self) -> int | None:
        """The first index with another label than in the target, or a new one; None without."""
        size = self.tip.after
        return (
            min(self.tip.still, max(size - 1, 0))
            if size != self.tip.before or self.has_moved
            else None
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class DimLabels:
    """The labels of a dimension on both sides.

    Parameters
    ----------
    ours, theirs
        The index in the source and in the target of each element of the common snapshot.
    variable, stored
        The array of labels in the target, and the stored labels of source and target; None if the
        target has none.
    """

    ours: IndexMap
    theirs: IndexMap
    variable: Variable | None = None
    stored: tuple[NDArray[Any], NDArray[Any]] | None = None

    @property
    def both(self) -> NDArray[np.int64]:
        """The elements of the common snapshot that both sides have."""
        return np.flatnonzero((self.ours.indices >= 0) & (self.theirs.indices >= 0))

    @property
    def lacking(self) -> NDArray[np.int64]:
        """Indices in the source of elements that the target removed."""
        found = self.ours.of(self.theirs.gone)
        return found[found >= 0]

    @property
    def removed(self) -> NDArray[np.int64]:
        """Indices in the target of elements that the source removed."""
        found = self.theirs.of(self.ours.gone)
        return found[found >= 0]

    @property
    def own(self) -> NDArray[np.int64]:
        """Indices in the source of the labels that are merged."""
        return np.delete(np.arange(self.ours.after), self.lacking)

    def merged(self, dim: str, stay: int | None) -> MergedLabels:
        """Join the labels of both sides; the first ``stay`` of the target keep their index.

        If ``stay`` is None, all keep their index, and new labels of the source follow. Only sorted
        numbers and times must then stay sorted.
        """
        own, target = self.own, self.theirs.after
        if self.stored is None or self.variable is None:
            size = max(self.ours.after, target)
            return MergedLabels(indices=own, tip=IndexMap.resized(target, size))
        labels, old = self.stored
        left = np.delete(np.arange(target), self.removed)
        encoder = encoder_of(self.variable)
        found = index_labels(labels[own], encoder, old[left], dim=dim)
        if stay is not None:
            found = in_order(found, stay)
        tip = np.full(target, -1, np.int64)
        tip[left] = np.arange(len(left)) if found.moved is None else found.moved
        final = found.labels
        assert final is not None
        return MergedLabels(
            indices=found.indices,
            tip=IndexMap.of_indices(tip, found.size),
            labels=final,
            is_disordered=is_disordered(found)
            or (stay is not None and loses_order((labels, old), final)),
            shown=encoder.decoder.decode(final) if found.size <= _MOST_SHOWN else None,
        )

    def moves(self, merged: MergedLabels) -> DimMoves:
        """Return the moves of the elements of all sides to their merged indices."""
        rows = np.full(self.ours.after, -1, np.int64)
        rows[self.own] = merged.indices
        size = merged.tip.after
        to = IndexMap.of_indices(rows, size)
        return DimMoves.of(rows=to, was=self.ours, theirs=self.theirs, tip=merged.tip)


def encoder_of(variable: Variable) -> VariableEncoder:
    """Return an encoder with the decoder and the missing value of an array."""
    attributes, data_type = variable.attributes, variable.metadata.data_type
    decoder = attribute_decoder(attributes, data_type, name=variable.name)
    return VariableEncoder(
        name=variable.name,
        data_type=data_type,
        absent=missing_value(attributes, decoder, data_type),
        decoder=decoder,
    )


def dim_labels(sides: Sides, found: Sequence[Variable | None], sizes: Sequence[int]) -> DimLabels:
    """Read the labels of a dimension in the common snapshot, the source and the target.

    Raises
    ------
    CannotMerge
        Labels were removed by the source, added to a dimension on one side only, or repeat.
    """
    was, source, target = sizes
    arrays = [each for each in found if each is not None and each.is_dimension_coordinate]
    if not arrays:
        if min(source, target) < was:
            raise CannotMerge
        return DimLabels(ours=IndexMap.resized(was, source), theirs=IndexMap.resized(was, target))
    is_missing = any(size and each not in arrays for each, size in zip(found, sizes, strict=True))
    if is_missing or len({array.metadata.data_type.numpy for array in arrays}) > 1:
        raise CannotMerge
    if not all(same_meaning(arrays[0].node, array.node) for array in arrays[1:]):
        raise CannotMerge(f"one side has changed the meaning of the labels of {arrays[0].name!r}")
    labels = [
        np.empty(0) if variable is None else sides.destination.reader(snapshot, variable).read_all()
        for snapshot, variable in zip((sides.base, sides.source, sides.target), found, strict=True)
    ]
    if any(len(np.unique(side)) < len(side) for side in labels[1:]):
        raise CannotMerge
    ours, theirs = (IndexMap.of_labels(labels[0], side) for side in labels[1:])
    # The labels of a dimension that the target lacks are those of the source, in its order.
    stored = None if found[2] is None else (labels[1], labels[2])
    return DimLabels(ours=ours, theirs=theirs, variable=found[2], stored=stored)


def described(sides: Sides, conflict: Conflict) -> Conflict:
    """Add the labels of its chunks to a conflict."""
    node = None if conflict.node_id is None else sides.target.nodes.with_id(conflict.node_id)
    coords, above = conflict.coords, None if node is None else parent(node.path)
    if node is None or node.array is None or above is None or coords is None or not len(coords):
        return conflict
    try:
        variable, named = Variable(node), arrays_in(sides.target, above)
        spans = []
        for dim, axis, at in zip(
            variable.dims, variable.metadata.grid.axes, coords.T.astype(np.int64), strict=True
        ):
            low, high = axis.start_of(np.array([at.min(), at.max() + 1])).tolist()
            shown = f"[{low}:{high}]"
            labels = named.get(dim)
            if labels is not None and labels.is_dimension_coordinate and low < high:
                shown = f" {_ends(sides, labels, low, high - 1)}"
            spans.append(f"{dim}{shown}")
    # Conflicts of damaged arrays are reported with chunk indices only.
    except IcechunkError:
        return conflict
    return replace(conflict, labels=", ".join(spans))


def _ends(sides: Sides, variable: Variable, first: int, last: int) -> str:
    reader = sides.destination.reader(sides.target, variable)
    decoder = encoder_of(variable).decoder
    values = [
        decoder.decode(reader.read_box((at,), (at + 1,)))[0].as_py()
        for at in dict.fromkeys((first, last))
    ]
    return "..".join(map(str, values))
