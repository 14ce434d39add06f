"""Compares the documents of an array by the meaning that they give to stored values. Pure.

A data type, codecs, a chunk grid or a CF attribute such as ``scale_factor`` decide how stored
chunks are read; the shape and all other attributes do not. Callers that decide by less name the
aspects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from icechunk_format.encoding.snapshot.file import NodeSnapshot

STORED: Final = ("data_type", "fill_value", "codecs", "storage_transformers")
"""Members of ``zarr.json`` that determine the meaning of stored bytes."""
MISSING: Final = ("_FillValue", "missing_value")
PACKING: Final = ("scale_factor", "add_offset", "_Unsigned")
OF_VALUES: Final = (*("units", "calendar", "scale_factor", "add_offset", *MISSING, "_Unsigned"),)
"""Attributes that define the meaning of stored values."""


def same_meaning(before: NodeSnapshot, after: NodeSnapshot) -> bool:
    """Return True if stored values have the same meaning; damaged documents must be equal."""
    if before.user_data == after.user_data:
        return True
    try:
        return _meaning(before) == _meaning(after)
    except (ValueError, AttributeError, TypeError):
        return False


def same_aspects(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    members: Iterable[str] = STORED,
    attributes: Iterable[str] = (),
) -> bool:
    """Return True if two documents agree on some members and attributes."""
    own, other = (document.get("attributes") or {} for document in (before, after))
    return all(before.get(key) == after.get(key) for key in members) and all(
        own.get(key) == other.get(key) for key in attributes
    )


def _meaning(node: NodeSnapshot) -> object:
    document: dict[str, Any] = json.loads(node.user_data)
    attributes = document.pop("attributes", None) or {}
    document.pop("shape", None)
    grid = document.get("chunk_grid")
    if grid is not None and grid["name"] != "regular":
        # The edges of a rectilinear grid grow with the array.
        document["chunk_grid"] = None
    return document, [attributes.get(key) for key in (*OF_VALUES, "dtype")]
