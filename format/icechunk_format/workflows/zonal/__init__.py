"""Computes zonal statistics: covered fractions of cells by polygons, and weighted statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.combining import Combining
    from icechunk_format.workflows.zonal.covering import Covering
    from icechunk_format.workflows.zonal.plan import ZonalContext, ZonalRequest, plan_zonal
    from icechunk_format.workflows.zonal.summing import Summing

__all__ = ["Combining", "Covering", "Summing", "ZonalContext", "ZonalRequest", "plan_zonal"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".combining": ["Combining"],
        ".covering": ["Covering"],
        ".plan": ["ZonalContext", "ZonalRequest", "plan_zonal"],
        ".summing": ["Summing"],
    },
)
