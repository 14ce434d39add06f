"""Merges the labels of one dimension that two branches have changed since a common snapshot.

Labels are compared as they are stored. Labels of the common snapshot must exist on both sides;
equal labels that both sides have added are one label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.dataset.cf.decode import attribute_decoder
from icechunk_format.dataset.cf.encode import VariableEncoder, missing_value
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.columns.labels import in_order, index_stored
from icechunk_format.dataset.writing.dimensions import is_disordered
from icechunk_format.dataset.writing.part import Destination
from icechunk_format.dataset.writing.replanning.landed import label_positions
from icechunk_format.spec.snapshot.file import Snapshot

_MOST_SHOWN: Final = 100_000


class CannotMerge(Exception):
    """The arrays of a group are not merged by their labels; a message says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MergedLabels:
    """The labels of both sides.

    Parameters
    ----------
    own, indices
        ``int64``: labels of the source that take part, by their index in the source and here.
    size
        Elements of the dimension.
    moved
        ``int64``: the index of each label of the target; None if all stay.
    labels
        As they are stored; None for a dimension without labels.
    first
        The first index whose label the target does not have there; None if it has all.
    is_disordered
        True if sorted labels are not sorted any more.
    shown
        Decoded labels for messages; None if there are too many.
    """

    own: NDArray[np.int64]
    indices: NDArray[np.int64]
    size: int
    moved: NDArray[np.int64] | None = None
    labels: NDArray[Any] | None = None
    first: int | None = None
    is_disordered: bool = False
    shown: pa.Array | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DimLabels:
    """The labels of a dimension on both sides.

    Parameters
    ----------
    base
        ``int64``: by index in the common snapshot, the index in the source.
    source, target
        Elements on each side.
    moves
        True if labels of the common snapshot have another index on one of the sides.
    variable
        The array of labels; None if there is none.
    stored
        Stored labels of source and target.
    lacking
        ``int64``: indices in the source of labels of the common snapshot that the target does not
        have. Only the parent of a picked snapshot may have such labels.
    """

    base: NDArray[np.int64]
    source: int
    target: int
    moves: bool = False
    variable: Variable | None = None
    stored: tuple[NDArray[Any], NDArray[Any]] | None = None
    lacking: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def merged(self, dim: str, stay: int | None) -> MergedLabels:
        """Join the labels of both sides; the first ``stay`` of the target keep their index.

        None is all of them: new labels of the source follow.
        """
        own = np.delete(np.arange(self.source, dtype=np.int64), self.lacking)
        if self.stored is None or self.variable is None or not self.target:
            return MergedLabels(own=own, indices=own, size=max(self.source, self.target))
        labels, old = self.stored
        encoder = encoder_of(self.variable)
        found = index_stored(labels[own], encoder, old, dim=dim, source="the source adds labels")
        known = old
        if stay is not None:
            found, known = in_order(found, old, stay)
        assert found.new_labels is not None
        final = np.concatenate([known, found.new_labels])
        first = self.target if found.moved is None else int(np.argmax(known != old))
        return MergedLabels(
            own=own,
            indices=found.indices,
            size=found.size,
            moved=found.moved,
            labels=final,
            first=first if first < found.size else None,
            is_disordered=is_disordered(known, found),
            shown=encoder.decoder.decode(final) if found.size <= _MOST_SHOWN else None,
        )


def encoder_of(variable: Variable) -> VariableEncoder:
    """Return what is known of the values of an array: their decoder, and the missing value."""
    attributes, data_type = variable.attributes, variable.metadata.data_type
    decoder = attribute_decoder(attributes, data_type, name=variable.name)
    return VariableEncoder(
        name=variable.name,
        data_type=data_type,
        absent=missing_value(attributes, decoder, data_type),
        decoder=decoder,
    )


def dim_labels(
    destination: Destination,
    snapshots: Sequence[Snapshot],
    found: Sequence[Variable | None],
    sizes: Sequence[int],
    *,
    is_picked: bool,
) -> DimLabels:
    """Read the labels of a dimension in the common snapshot, the source and the target.

    Raises
    ------
    CannotMerge
        Labels were removed, changed, given to one side only, or repeat.
    """
    was, source, target = sizes
    arrays = [each for each in found if each is not None and each.is_dimension_coordinate]
    same = np.arange(was, dtype=np.int64)
    if not arrays:
        if min(source, target) < was:
            raise CannotMerge
        return DimLabels(base=same, source=source, target=target)
    is_missing = any(size and each not in arrays for each, size in zip(found, sizes, strict=True))
    if is_missing or len({array.metadata.data_type.numpy for array in arrays}) > 1:
        raise CannotMerge
    labels = [
        np.empty(0)
        if variable is None
        else destination.reader(snapshot, variable.node).read_box((0,), variable.shape)
        for snapshot, variable in zip(snapshots, found, strict=True)
    ]
    at = [label_positions(labels[0], side) for side in labels[1:]]
    has_all = at[0] is not None and at[1] is not None
    if at[0] is None or (at[1] is None and not is_picked):
        raise CannotMerge("one side has removed or changed labels of the common snapshot")
    if any(len(np.unique(side)) < len(side) for side in labels[1:]):
        raise CannotMerge
    return DimLabels(
        base=at[0],
        source=source,
        target=target,
        moves=not has_all or any(not np.array_equal(positions, same) for positions in at),
        variable=found[2] or found[1],
        stored=(labels[1], labels[2]),
        lacking=at[0][:0] if has_all else at[0][~np.isin(labels[0], labels[2])],
    )
