"""Plans writes, runs their tasks, and commits the receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.tables.writing.cells.regions import (
        CellDeletion,
        CellReceipt,
        blank_cells,
        blanked,
        cell_tasks,
    )
    from icechunk_format.tables.writing.columns.checks import CF_KEYS, check_options
    from icechunk_format.tables.writing.columns.labels import in_order, index_labels
    from icechunk_format.tables.writing.columns.new_arrays import (
        codecs_of,
        described_attributes,
        named_type,
    )
    from icechunk_format.tables.writing.commit import apply_planned
    from icechunk_format.tables.writing.dimensions import is_disordered, loses_order
    from icechunk_format.tables.writing.part import WritePart, WriteTarget
    from icechunk_format.tables.writing.plan import WritePlan
    from icechunk_format.tables.writing.replanning.adopt import Adoption, PlannedCommit
    from icechunk_format.tables.writing.replanning.conflicts import shown_cells
    from icechunk_format.tables.writing.replanning.moves import DimMoves
    from icechunk_format.tables.writing.replanning.rivals import Rivals, can_move
    from icechunk_format.tables.writing.transaction_versions import applications

__all__ = [
    "CF_KEYS",
    "Adoption",
    "CellDeletion",
    "CellReceipt",
    "DimMoves",
    "PlannedCommit",
    "Rivals",
    "WritePart",
    "WritePlan",
    "WriteTarget",
    "applications",
    "apply_planned",
    "blank_cells",
    "blanked",
    "can_move",
    "cell_tasks",
    "check_options",
    "codecs_of",
    "described_attributes",
    "in_order",
    "index_labels",
    "is_disordered",
    "loses_order",
    "named_type",
    "shown_cells",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".replanning.moves": ["DimMoves"],
        ".transaction_versions": ["applications"],
        ".cells.regions": ["CellDeletion", "CellReceipt", "blank_cells", "blanked", "cell_tasks"],
        ".columns.checks": ["CF_KEYS", "check_options"],
        ".columns.labels": ["in_order", "index_labels"],
        ".columns.new_arrays": ["codecs_of", "described_attributes", "named_type"],
        ".commit": ["apply_planned"],
        ".dimensions": ["is_disordered", "loses_order"],
        ".part": ["WritePart", "WriteTarget"],
        ".plan": ["WritePlan"],
        ".replanning.adopt": ["Adoption", "PlannedCommit"],
        ".replanning.conflicts": ["shown_cells"],
        ".replanning.rivals": ["Rivals", "can_move"],
    },
)
