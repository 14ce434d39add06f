"""Stores arrays in other chunks: reads groups of chunks, cuts them into pieces, and joins these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.rechunking.rechunk import (
        RechunkRequest,
        RechunkResult,
        one_process,
        rechunk_arrays,
    )

__all__ = ["RechunkRequest", "RechunkResult", "one_process", "rechunk_arrays"]

__getattr__, __dir__ = loaded_on_use(__name__, {".rechunk": __all__})
