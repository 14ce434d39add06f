"""Refuses commits that replace the labels of a dimension below other arrays of the group.

Arrays are stored by position. If a commit replaces the labels of a dimension, the cells of an array
that it does not write would be at other labels.

Rules of this file
------------------
1. Labels are compared decoded: other units or another data type of the same labels are no change.
   NaN equals NaN, and 0 equals -0.
2. Labels are read only if the group has other arrays with the dimension. Memory is the labels.
3. Arrays of other lengths are left to ``group_lengths``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable, arrays_in
from icechunk_format.groups.changing import Destination
from icechunk_format.repository.changes import OF_VALUES, same_aspects
from icechunk_format.repository.session import WriteSession
from icechunk_format.tables.cf import attribute_decoder
from icechunk_format.zarr.fill_values import differs

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelGuard:
    """The arrays of a group that a commit writes or deletes; all others must keep their labels."""

    destination: Destination
    group: NodePath
    paths: Collection[str]

    def check(self, session: WriteSession, snapshot: Snapshot) -> None:
        """Raise InvalidInputError if the session relabels other arrays of a snapshot's group.

        The labels of the snapshot are those of the base, since others conflict with the session.
        """
        arrays = arrays_in(snapshot, self.group)
        for labels in arrays.values():
            if labels.path not in self.paths or not labels.is_dimension_coordinate:
                continue
            others = sorted(_labelled(arrays.values(), labels.dimensions[0], self.paths))
            if others:
                self._check_labels(session, labels, others)

    def _check_labels(self, session: WriteSession, old: Variable, others: list[str]) -> None:
        node = session.node(old.path)
        new = None if node is None or node.array is None else Variable(node)
        if new is None or not new.is_dimension_coordinate:
            raise _refused(old, others, "would be removed", "without labels")
        if new.shape != old.shape:
            return
        before = self.destination.open_base().reader(old.path).read_all()
        after = _pending_labels(self.destination, session, new)
        change = _change(old, before, new, after)
        if change is not None:
            raise _refused(old, others, f"would change{change}", "at other labels")


def _labelled(
    arrays: Iterable[Variable], dimension: tuple[str, int], paths: Collection[str]
) -> list[str]:
    """Return the paths of arrays with a dimension, without those that the commit writes."""
    return [v.path for v in arrays if dimension in v.dimensions and v.path not in paths]


def _pending_labels(
    destination: Destination, session: WriteSession, variable: Variable
) -> NDArray[np.generic]:
    """Read the stored labels of a dimension with the changes of a session."""
    metadata, [axis] = variable.metadata, variable.metadata.grid.axes
    values = metadata.fill_array(variable.shape)
    refs = session.chunk_refs(variable.path, (0,), (axis.count,))
    payloads = destination.chunk_source.fetch(refs, np.arange(len(refs)))
    for at, payload in zip(refs.coords[:, 0].tolist(), payloads, strict=True):
        start, stop = axis.bounds(at)
        chunk = variable.codecs.decode(payload, metadata.grid.full_chunk_shape((at,)))
        values[start:stop] = chunk[: stop - start]
    return values


def _change(
    old: Variable, before: NDArray[np.generic], new: Variable, after: NDArray[np.generic]
) -> str | None:
    """Describe the first label that differs; None if the labels are the same."""
    try:
        one, other = (
            attribute_decoder(v.attributes, v.metadata.data_type, name=v.name).decode(values)
            for v, values in ((old, before), (new, after))
        )
    except UnsupportedError:
        # Stored values of the same meaning are compared bit by bit.
        raw = (old.metadata.raw, new.metadata.raw)
        is_same = same_aspects(*raw, ("data_type",), OF_VALUES) and not differs(before, after).any()
        return None if is_same else ""
    changed = _differing(one, other)
    if not changed.any():
        return None
    at = int(np.argmax(changed))
    return f" ({one[at].as_py()} to {other[at].as_py()} at position {at})"


def _differing(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the positions with different labels."""
    if one.type == other.type and not pa.types.is_floating(one.type):
        joined = pa.chunked_array([one, other]).combine_chunks()
        codes = np.asarray(joined.dictionary_encode(null_encoding="encode").indices)
        return np.asarray(codes[: len(one)] != codes[len(one) :])
    numbers = [labels.to_numpy(zero_copy_only=False) for labels in (one, other)]
    if any(values.dtype.kind not in "iuf" for values in numbers):
        return np.ones(len(one), np.bool_)
    first, second = numbers
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.asarray(~same, np.bool_)


def _refused(labels: Variable, others: list[str], change: str, outcome: str) -> InvalidInputError:
    named = ", ".join(others[:_MOST_NAMED])
    if len(others) > _MOST_NAMED:
        named += f" and {len(others) - _MOST_NAMED} more"
    return InvalidInputError(
        f"the labels {labels.path} {change}, and the cells of {named}, which this run does not"
        f" replace, would be {outcome}; nothing was committed. Return all arrays with dimension"
        f" {labels.name!r} in the same run, choose another group, or delete the other arrays first",
        coordinate=labels.path,
        dimension=labels.name,
        arrays=others,
    )
