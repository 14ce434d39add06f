"""Copies a group to a Delta table, and updates the copy to the tip of its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.mirroring.mirror import (
        MirrorRequest,
        MirrorResult,
        bring_up_to_date,
    )

__all__ = ["MirrorRequest", "MirrorResult", "bring_up_to_date"]

__getattr__, __dir__ = loaded_on_use(__name__, {".mirror": __all__})
