"""Determines what of a followed reduction must be computed again.

A result that follows its source also stores the parts of its statistics, in the group ``.parts``
below its own.

==============================================  ===================================================
since the last run                              is read
==============================================  ===================================================
nothing changed                                 nothing, and nothing is committed
the axis of groups was appended to              the new elements; their parts are merged with those
                                                that are stored
elements changed, or another dimension grew     all elements of their groups and tiles
labels, attributes, settings or arrays changed  everything
==============================================  ===================================================

Rules of this file
------------------
1. Changes are read from transaction logs. An append that also writes a chunk of old elements is
   recognized by comparing them. Labels are compared by value.
2. If changes cannot be determined, everything is computed, and the reason is reported. So it is for
   a selection, and for quantiles of data that were appended to, which have no parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.cover import Boxes
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Dataset
from icechunk_format.workflows.changes import changes_since_run
from icechunk_format.workflows.mapping.record import FollowRecord
from icechunk_format.workflows.rechunking.beside import is_append
from icechunk_format.zarr.fill_values import differs

PARTS_GROUP: Final = ".parts"
"""The group of stored parts, below that of the result."""
# Larger arrays are not compared by value.
_MOST_ELEMENTS: Final = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changed:
    """The changes of a source since the last run.

    Parameters
    ----------
    old
        The source at the last run.
    boxes
        Boxes of elements that may differ, by variable; empty if nothing changed.
    appended
        True if no element changed that existed at the last run.
    """

    old: Dataset
    boxes: Mapping[str, Boxes]
    appended: bool

    @property
    def is_empty(self) -> bool:
        """True if no element changed."""
        return not any(len(boxes) for boxes in self.boxes.values())


def part_name(variable: str, part: str) -> str:
    """Return the name of the array of a part, within the group of the result."""
    return f"{PARTS_GROUP}/{variable}_{part}"


def changed_since(
    repository: RepositoryReader,
    record: FollowRecord,
    new: Dataset,
    names: Sequence[str],
    others: Sequence[str],
) -> Changed | str:
    """Return what changed in arrays since the last run, or a reason to compute everything.

    Parameters
    ----------
    names, others
        Names of the reduced arrays, and of labels and weights.
    """
    found = changes_since_run(repository, record.snapshot_id, record.group, new, [*names, *others])
    if isinstance(found, str):
        return found
    old, boxes = found.old, {name: found.boxes[name] for name in names}
    for name in others:
        if len(found.boxes[name]) and not _keeps_values(old, new, name):
            return f"{new.variables[name].path} changed"
    appended = any(len(found) for found in boxes.values()) and is_append(
        repository, old, new, names
    )
    return Changed(old=old, boxes=boxes, appended=appended)


def recorded(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of arrays in a record, by name within the group."""
    return {
        name: {"node": str(target.node_id), "factors": {}, "once": []}
        for name, target in arrays.items()
    }


def touched_blocks(
    boxes: Boxes,
    edges: Sequence[NDArray[np.int64]],
    axis: int,
    codes: NDArray[np.int64],
    kept: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tiles and groups that elements of boxes are in.

    Parameters
    ----------
    edges
        The edges of tiles along each axis.
    kept
        The axes that stay.
    """
    counts = [len(own) - 1 for own in edges]
    mask = np.zeros(counts, dtype=bool)
    of_axis = np.zeros(len(codes), dtype=bool)
    for box in boxes:
        index: list[slice] = [slice(None)] * len(counts)
        for one in kept:
            first = int(np.searchsorted(edges[one], box[one, 0], "right")) - 1
            index[one] = slice(first, int(np.searchsorted(edges[one], box[one, 1], "left")))
        mask[tuple(index)] = True
        of_axis[int(box[axis, 0]) : int(box[axis, 1])] = True
    groups = np.unique(codes[of_axis])
    return np.flatnonzero(mask), groups[groups >= 0]


def _keeps_values(old: Dataset, new: Dataset, name: str) -> bool:
    """Return True if an array still has its old values, and perhaps more."""
    sizes = old.variables[name].shape
    if float(np.prod(sizes, dtype=float)) > _MOST_ELEMENTS:
        return False
    return not differs(new.read(name, [0] * len(sizes), sizes), old.read(name)).any()
