"""Reads and changes the arrays of a group, by positions along its dimensions.

The names of this door read boxes; those of ``changing`` change arrays. Rows, columns and labels are
the matter of ``tables``, above this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.groups.array_reader import ArrayReader, DecodedChunks
    from icechunk_format.groups.chunk_edges import (
        AxisPick,
        chunk_axes,
        chunk_cells,
        chunk_selections,
        cut_axes,
        leading_variable,
        pick,
        product_coords,
    )
    from icechunk_format.groups.dimension_sets import named_variables
    from icechunk_format.groups.opened import SnapshotArrays, SnapshotSource
    from icechunk_format.groups.pipeline import read_ahead
    from icechunk_format.groups.positions import DimSelection, runs_of
    from icechunk_format.groups.variable import Variable, arrays_in

__all__ = [
    "ArrayReader",
    "AxisPick",
    "DecodedChunks",
    "DimSelection",
    "SnapshotArrays",
    "SnapshotSource",
    "Variable",
    "arrays_in",
    "chunk_axes",
    "chunk_cells",
    "chunk_selections",
    "cut_axes",
    "leading_variable",
    "named_variables",
    "pick",
    "product_coords",
    "read_ahead",
    "runs_of",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".array_reader": ["ArrayReader", "DecodedChunks"],
        ".chunk_edges": [
            "AxisPick",
            "chunk_axes",
            "chunk_cells",
            "chunk_selections",
            "cut_axes",
            "leading_variable",
            "pick",
            "product_coords",
        ],
        ".dimension_sets": ["named_variables"],
        ".opened": ["SnapshotArrays", "SnapshotSource"],
        ".pipeline": ["read_ahead"],
        ".positions": ["DimSelection", "runs_of"],
        ".variable": ["Variable", "arrays_in"],
    },
)
