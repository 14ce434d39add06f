"""Copies a group to a Delta table, and updates the copy to the tip of its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.mirroring.delta_table import DeltaTarget
    from icechunk_format.workflows.mirroring.mirror import (
        MirrorRequest,
        MirrorResult,
        bring_up_to_date,
    )
    from icechunk_format.workflows.mirroring.record import Selection
    from icechunk_format.workflows.mirroring.versions import Freshness, find_files, freshness

__all__ = [
    "DeltaTarget",
    "Freshness",
    "MirrorRequest",
    "MirrorResult",
    "Selection",
    "bring_up_to_date",
    "find_files",
    "freshness",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".delta_table": ["DeltaTarget"],
        ".mirror": ["MirrorRequest", "MirrorResult", "bring_up_to_date"],
        ".record": ["Selection"],
        ".versions": ["Freshness", "find_files", "freshness"],
    },
)
