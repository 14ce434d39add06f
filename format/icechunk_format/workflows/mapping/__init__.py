"""Maps a function over labelled blocks of a group, and writes the results to arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.mapping.map import (
        BlocksRequest,
        MapBlocksResult,
        MapRequest,
        map_over_blocks,
    )
    from icechunk_format.workflows.mapping.others import OtherRequest

__all__ = ["BlocksRequest", "MapBlocksResult", "MapRequest", "OtherRequest", "map_over_blocks"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".map": ["BlocksRequest", "MapBlocksResult", "MapRequest", "map_over_blocks"],
        ".others": ["OtherRequest"],
    },
)
