"""Copies a group into a Delta table of Parquet files, and keeps the copy at the branch's tip."""

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
