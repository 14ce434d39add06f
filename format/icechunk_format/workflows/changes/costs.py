"""Counts what the tasks of a change feed read.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

from icechunk_format.dataset.reading.costs import CostCounter, ReadCost, task_cost
from icechunk_format.workflows.changes.run import ChangeTask, loaded_scan, run_changes


def change_cost(_: None, task: ChangeTask) -> ReadCost:
    """Return what one task of a feed reads.

    If the task compares two snapshots, its rows are made to be counted, which reads no chunk.

    Raises
    ------
    IcechunkError
        As when the task runs.
    """
    scan, counter = loaded_scan(task.scan), CostCounter()
    cost = task_cost(scan.context, task.task, counter)
    if scan.check is not None:
        cost.rows = sum(batch.num_rows for batch in run_changes(None, task, counter.looked_up))
    return cost
