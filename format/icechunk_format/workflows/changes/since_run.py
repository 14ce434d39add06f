"""Finds the changes of a source since the last run of a workflow that follows it.

Rules of this file
------------------
1. Changes are read from transaction logs, so whole chunks count as changed.
2. If the logs cannot show the changes, the reason is returned, and the workflow computes
   everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import Variable
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Dataset, open_dataset
from icechunk_format.workflows.changes.changed_boxes import changed_boxes, why_another_array
from icechunk_format.workflows.changes.steps import steps_to, touched_nodes


class SinceRun(NamedTuple):
    """The changes of a source since the last run."""

    old: Dataset
    """The source at the last run."""
    boxes: Mapping[str, Boxes]
    """Boxes of elements that may differ, by variable."""


def changes_since_run(
    repository: RepositoryReader, snapshot_id: str, group: str, new: Dataset, names: Sequence[str]
) -> SinceRun | str:
    """Return the changes of some arrays, or a reason to compute everything.

    Parameters
    ----------
    snapshot_id, group
        The source at the last run.
    """
    try:
        old_id = SnapshotId.parse(snapshot_id)
        # Raises if the snapshot has expired.
        repository.resolve(snapshot=old_id)
        old = open_dataset(repository, old_id, group)
        info = repository.snapshot_info(new.snapshot_id)
        steps = steps_to(repository, info, old_id, any_history=True)
        nodes = {new.variables[name].node.id for name in names}
        touched = touched_nodes(repository, [log for step in steps for log in step.logs], nodes)
    except (NotFoundError, InvalidInputError) as error:
        return f"the changes since snapshot {snapshot_id} are unknown: {error.message}"
    boxes = {}
    for name in names:
        now, before = new.variables[name], old.variables.get(name)
        reason = _why_other_values(now, before)
        if reason is not None:
            return reason
        boxes[name] = changed_boxes(now, before, touched)
    return SinceRun(old, boxes)


def _why_other_values(now: Variable, before: Variable | None) -> str | None:
    """Return a reason why all values of an array may have changed, or None."""
    reason = why_another_array(now, before)
    if reason is not None:
        return reason
    assert before is not None
    # As strings, since NaN differs from itself.
    mine, former = (json.dumps(v.attributes, sort_keys=True) for v in (now, before))
    if mine != former:
        return f"the attributes of {now.path} changed"
    if any(size < was for size, was in zip(now.shape, before.shape, strict=True)):
        return f"{now.path} became shorter"
    return None
