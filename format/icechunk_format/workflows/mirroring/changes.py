"""Finds the cells that changed since the snapshot of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.dataset.reading.scan import ScanPlan
from icechunk_format.errors import NotFoundError
from icechunk_format.grid.cover import Boxes
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.workflows.changes import touched_nodes
from icechunk_format.workflows.changes.axis_changes import slabs
from icechunk_format.workflows.changes.cells import (
    SnapshotTable,
    axis_changes,
    changed_cells,
    why_values_differ,
)

if TYPE_CHECKING:
    from icechunk_format.repository import RepositoryReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(SnapshotTable):
    """The table of a snapshot, and the scan that copies it."""

    plan: ScanPlan


def cell_changes(
    repository: RepositoryReader, logs: Sequence[SnapshotId], old: Source, new: Source
) -> Boxes | str:
    """Return boxes of the cells that differ between two snapshots, or a reason why all may differ.

    Boxes may overlap, and extend beyond the table.
    """
    reason = _why_all_differ(old, new)
    if reason is not None:
        return reason
    variables = new.variables()
    copied = [column.path for column in new.columns().values() if column.path is not None]
    try:
        touched = touched_nodes(repository, logs, {variables[path].node.id for path in copied})
    except NotFoundError as error:
        return error.message
    for path in copied:
        if variables[path].shape and touched.smallest.get(variables[path].node.id) == ():
            return f"{path} was changed in a snapshot that expired"
    axes = axis_changes(old, new, touched)
    boxes = (
        slabs([axis.fresh for axis in axes], new.table.sizes),
        slabs([axis.moved for axis in axes], old.table.sizes),
        changed_cells(new, old, touched),
    )
    return np.concatenate(boxes)


def _why_all_differ(old: Source, new: Source) -> str | None:
    if old.table.dims != new.table.dims:
        was, now = (", ".join(source.table.dims) for source in (old, new))
        return f"the dimensions were ({was}) and are ({now})"
    if old.table.names != new.table.names:
        was, now = (", ".join(source.table.names) for source in (old, new))
        return f"the columns were {was} and are {now}"
    if old.columns().keys() != new.columns().keys() or _condition(old) != _condition(new):
        return "the condition on values has another meaning"
    reasons = (why_values_differ(column, new, old) for column in new.columns().values())
    return next((reason for reason in reasons if reason is not None), None)


def _condition(source: Source) -> str | None:
    residual = source.chosen.residual
    return None if residual is None else residual.sql
