"""Determines if other writers only appended while arrays were rechunked in place.

Rules of this file
------------------
1. An append extends an array and changes no existing element. Changed chunks that contain existing
   elements are compared bit by bit, if they are few.
2. If the changes cannot be determined, elements count as changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Dataset
from icechunk_format.workflows.changes import steps_to, touched_nodes
from icechunk_format.workflows.changes.changed_boxes import why_another_array
from icechunk_format.workflows.changes.steps import TouchedNodes
from icechunk_format.zarr.fill_values import differs

_MOST_CHUNKS_COMPARED: Final = 1000
_MOST_BYTES_COMPARED: Final = 1 << 30


def is_append(
    repository: RepositoryReader, old: Dataset, new: Dataset, names: Sequence[str]
) -> bool:
    """Return True if some of the arrays were extended and no existing element changed."""
    grown = False
    for name in names:
        before, now = old.variables[name], new.variables.get(name)
        if now is None or why_another_array(now, before) is not None:
            return False
        grown = grown or now.shape != before.shape
        if now.shape == before.shape and now.metadata.to_bytes() != before.metadata.to_bytes():
            return False
    if not grown:
        return False
    try:
        info = repository.snapshot_info(new.snapshot_id)
        steps = steps_to(repository, info, old.snapshot_id)
        logs = [log for step in steps for log in step.logs]
        touched = touched_nodes(repository, logs, {old.variables[name].node.id for name in names})
    except (NotFoundError, InvalidInputError):
        return False
    return all(_keeps(old, new, name, touched) for name in names)


def _keeps(old: Dataset, new: Dataset, name: str, touched: TouchedNodes) -> bool:
    """Return True if an array still has all of its old elements."""
    before, now = old.variables[name], new.variables[name]
    smallest = touched.smallest.get(now.node.id, before.shape)
    if len(smallest) != len(before.shape) or any(
        size < was for size, was in zip((*smallest, *now.shape), before.shape * 2, strict=True)
    ):
        return False
    coords = touched.chunks.get(now.node.id)
    if coords is None:
        return True
    grid = before.metadata.grid
    # Chunks of the grown array have the same indices; the last ones may also contain new elements.
    inside = np.all(coords < np.array(grid.num_chunks, dtype=np.int64), axis=1)
    chunks = np.unique(coords[inside], axis=0)
    left = _MOST_BYTES_COMPARED
    if len(chunks) > _MOST_CHUNKS_COMPARED:
        return False
    for at in chunks.tolist():
        lower, upper = grid.box_of(at)
        was, value = (dataset.read(name, lower, upper) for dataset in (old, new))
        left -= was.nbytes
        if left < 0 or differs(was, value).any():
            return False
    return True
