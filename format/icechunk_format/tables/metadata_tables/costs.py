"""Counts the rows of metadata tables, and the manifests that their tasks open.

Executors import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from icechunk_format.encoding.ids import rows_of_ids
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.groups import Variable
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.tables.metadata_tables.manifests import Task, manifest_costs
from icechunk_format.tables.metadata_tables.read import (
    InspectionContext,
    InspectionPlan,
    run_inspection,
)
from icechunk_format.tables.reading.costs import ReadCost


def inspection_cost(context: InspectionContext, task: Task) -> ReadCost:
    """Return the rows of a task, and the manifests that it opens.

    Rows are counted by making them with one column, which needs no manifest. Raises the errors of
    running the task.
    """
    table = METADATA_TABLES[context.table]
    one = replace(context, columns=(table.names[0],))
    rows = sum(batch.num_rows for batch in run_inspection(one, task))
    return replace(_opened(context, [task]), rows=rows)


def cost_of_snapshot(plan: InspectionPlan) -> ReadCost:
    """Return the cost of all tasks of ``chunks``, from the counts that the snapshot records."""
    _, snapshot = plan.context.opened()
    arrays = plan.context.arrays(snapshot)
    refs = sum(float(costs.sum()) for costs in manifest_costs(snapshot, arrays, opening=0))
    return replace(_opened(plan.context, plan.tasks), rows=round(refs))


def _opened(context: InspectionContext, tasks: Iterable[Task]) -> ReadCost:
    if not context.opens_manifests:
        return ReadCost()
    _, snapshot = context.opened()
    costs = [_manifests(snapshot, task) for task in tasks]
    return ReadCost(requests=sum(n for n, _ in costs), stored_bytes=sum(size for _, size in costs))


def _manifests(snapshot: Snapshot, task: Task) -> tuple[int, int]:
    """Return the number of manifests that a task opens, and their bytes."""
    files = snapshot.manifest_files
    lists = [
        Variable(snapshot.nodes[number]).array.manifests.ids[start:stop]
        for number, start, stop in task
    ]
    if not lists:
        return 0, 0
    rows = np.unique(rows_of_ids(files.ids, np.concatenate(lists)))
    return len(rows), int(files.size_bytes[rows[rows >= 0]].sum())
