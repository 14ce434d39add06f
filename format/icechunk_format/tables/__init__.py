"""Reads and writes a group as tables: CF decoding, selections, metadata tables, plans and tasks.

The names of this door open and select tables, on the driver. Tasks take theirs from ``reading``,
since executors import no planning; ``cf`` decodes values, and ``writing`` writes rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.tables.catalog import TableFacts, checked_entries, read_catalog
    from icechunk_format.tables.dataset import Dataset, MissingChunks, open_dataset
    from icechunk_format.tables.metadata_tables.costs import cost_of_snapshot, inspection_cost
    from icechunk_format.tables.metadata_tables.history import change_rows, names_of, operation_rows
    from icechunk_format.tables.metadata_tables.read import (
        named_snapshot,
        plan_inspection,
        requested_inspection,
        resolve_change,
        resolve_snapshots,
        run_inspection,
    )
    from icechunk_format.tables.reading.plan import chunk_extents
    from icechunk_format.tables.requested import (
        dataset_at,
        open_requested,
        planning,
        requested_dataset,
        requested_scan,
        requested_snapshot,
        requested_table,
        selecting,
    )
    from icechunk_format.tables.selection.labels import Labels
    from icechunk_format.tables.selection.pruning import condition_on_values
    from icechunk_format.tables.selection.sel_isel import (
        Given,
        combined_selection,
        single_selectors,
    )
    from icechunk_format.tables.selection.select import Selecting, Selection
    from icechunk_format.tables.table.columns import ColumnFactory
    from icechunk_format.tables.table.table import Table, check_names

__all__ = [
    "ColumnFactory",
    "Dataset",
    "Given",
    "Labels",
    "MissingChunks",
    "Selecting",
    "Selection",
    "Table",
    "TableFacts",
    "change_rows",
    "check_names",
    "checked_entries",
    "chunk_extents",
    "combined_selection",
    "condition_on_values",
    "cost_of_snapshot",
    "dataset_at",
    "inspection_cost",
    "named_snapshot",
    "names_of",
    "open_dataset",
    "open_requested",
    "operation_rows",
    "plan_inspection",
    "planning",
    "read_catalog",
    "requested_dataset",
    "requested_inspection",
    "requested_scan",
    "requested_snapshot",
    "requested_table",
    "resolve_change",
    "resolve_snapshots",
    "run_inspection",
    "selecting",
    "single_selectors",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".selection.labels": ["Labels"],
        ".catalog": ["read_catalog", "checked_entries", "TableFacts"],
        ".dataset": ["Dataset", "MissingChunks", "open_dataset"],
        ".metadata_tables.costs": ["cost_of_snapshot", "inspection_cost"],
        ".metadata_tables.history": ["change_rows", "names_of", "operation_rows"],
        ".metadata_tables.read": [
            "named_snapshot",
            "plan_inspection",
            "requested_inspection",
            "resolve_change",
            "resolve_snapshots",
            "run_inspection",
        ],
        ".reading.plan": ["chunk_extents"],
        ".requested": [
            "dataset_at",
            "open_requested",
            "planning",
            "requested_dataset",
            "requested_scan",
            "requested_snapshot",
            "requested_table",
            "selecting",
        ],
        ".selection.pruning": ["condition_on_values"],
        ".selection.sel_isel": ["Given", "combined_selection", "single_selectors"],
        ".selection.select": ["Selecting", "Selection"],
        ".table.columns": ["ColumnFactory"],
        ".table.table": ["Table", "check_names"],
    },
)
