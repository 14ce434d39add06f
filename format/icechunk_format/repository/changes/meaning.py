"""Compares the documents of an array by the meaning that they give to stored values. Pure.

A data type, codecs, a chunk grid or a CF attribute such as ``scale_factor`` decide how stored
chunks are read; the shape and all other attributes do not.
"""

from __future__ import annotations

import json
from typing import Any, Final

from icechunk_format.encoding.snapshot.file import NodeSnapshot

_ATTRIBUTES: Final = (
    *("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned"),
    *("units", "calendar", "dtype"),
)


def same_meaning(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    """Return True if stored values have the same meaning; damaged documents must be equal."""
    if before.user_data == after.user_data:
        return True
    try:
        return _meaning(before) == _meaning(after)
    except (ValueError, AttributeError, TypeError):
        return False


def _meaning(node: NodeSnapshot) -> object:
    document: dict[str, Any] = json.loads(node.user_data)
    attributes = document.pop("attributes", None) or {}
    document.pop("shape", None)
    grid = document.get("chunk_grid")
    if grid is not None and grid["name"] != "regular":
        # The edges of a rectilinear grid grow with the array.
        document["chunk_grid"] = None
    return document, [attributes.get(key) for key in _ATTRIBUTES]
