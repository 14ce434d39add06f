"""Counts the reads of the tasks of a change feed.

Executors import this module; it needs neither sqlglot nor Spark.
"""

from __future__ import annotations

from icechunk_format.dataset.reading.costs import CostCounter, ReadCost, task_cost
from icechunk_format.workflows.changes.run import ChangeTask, loaded_scan, run_changes


def change_cost(_: None, task: ChangeTask) -> ReadCost:
    """Return the cost of one task of a feed.

    Tasks that compare two snapshots are run to count their rows, without reading chunks. Raises the
    errors of running the task.
    """
    scan, counter = loaded_scan(task.scan), CostCounter()
    cost = task_cost(scan.context, task.task, counter)
    if scan.check is not None:
        cost.rows = sum(batch.num_rows for batch in run_changes(None, task, counter.looked_up))
    return cost
