"""Plans reads, and runs their tasks.

The names of this door import no planning, so that executors may take them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.tables.reading.costs import CostCounter, ReadCost, summed, task_cost
    from icechunk_format.tables.reading.layouts.block_reads import BlockReads
    from icechunk_format.tables.reading.layouts.blocks import Block, block_shape
    from icechunk_format.tables.reading.run import run_scan
    from icechunk_format.tables.reading.scan import ScanContext, ScanPlan, ScanTask
    from icechunk_format.tables.selection.labels import DURATION_EXAMPLES, read_duration
    from icechunk_format.tables.selection.where.condition import Residual
    from icechunk_format.tables.table.table import Column

__all__ = [
    "DURATION_EXAMPLES",
    "Block",
    "BlockReads",
    "Column",
    "CostCounter",
    "ReadCost",
    "Residual",
    "ScanContext",
    "ScanPlan",
    "ScanTask",
    "block_shape",
    "read_duration",
    "run_scan",
    "summed",
    "task_cost",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".costs": ["CostCounter", "ReadCost", "summed", "task_cost"],
        ".layouts.block_reads": ["BlockReads"],
        ".layouts.blocks": ["Block", "block_shape"],
        ".run": ["run_scan"],
        ".scan": ["ScanContext", "ScanPlan", "ScanTask"],
        "icechunk_format.tables.selection.labels": ["DURATION_EXAMPLES", "read_duration"],
        "icechunk_format.tables.selection.where.condition": ["Residual"],
        "icechunk_format.tables.table.table": ["Column"],
    },
)
