"""Aligns further sources of a mapping with blocks, by labels, and reads their parts of blocks."""

from __future__ import annotations

from icechunk_format.workflows.mapping.others.changed import moved_elements
from icechunk_format.workflows.mapping.others.opening import (
    OpenedOther,
    OtherRequest,
    open_other,
)
from icechunk_format.workflows.mapping.others.source import OtherSource, Positions, StoredArray

__all__ = [
    "OpenedOther",
    "OtherRequest",
    "OtherSource",
    "Positions",
    "StoredArray",
    "moved_elements",
    "open_other",
]
