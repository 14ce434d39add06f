"""Finds the rows of a table that changed between two snapshots, from transaction logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.changes.plan import (
        ChangePlan,
        change_conditions,
        with_change_columns,
    )
    from icechunk_format.workflows.changes.run import change_cost, run_changes
    from icechunk_format.workflows.changes.since import plan_changes_since, resolve_since
    from icechunk_format.workflows.changes.since_run import changes_since_run
    from icechunk_format.workflows.changes.steps import steps_to, touched_nodes

__all__ = [
    "ChangePlan",
    "change_conditions",
    "change_cost",
    "changes_since_run",
    "plan_changes_since",
    "resolve_since",
    "run_changes",
    "steps_to",
    "touched_nodes",
    "with_change_columns",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".plan": ["ChangePlan", "change_conditions", "with_change_columns"],
        ".run": ["change_cost", "run_changes"],
        ".since": ["plan_changes_since", "resolve_since"],
        ".since_run": ["changes_since_run"],
        ".steps": ["steps_to", "touched_nodes"],
    },
)
