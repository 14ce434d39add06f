"""Merges the documents of an array that both branches have grown: their attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from icechunk_format.arrays.zarr_json import ArrayMetadata, dump_document, parse_array_metadata
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.options import CF_KEYS
from icechunk_format.workflows.merging.labels import CannotMerge

_DECODING: Final = (*CF_KEYS, "dtype")


def merged_document(base: Variable, source: Variable, target: Variable) -> ArrayMetadata:
    """Return the document of the target with the attributes that the source changed.

    Raises
    ------
    CannotMerge
        Both sides changed one attribute, or one side changed what stored values mean.
    """
    documents = [_without_shape(each) for each in (base, source, target)]
    attributes = [dict(each.attributes) for each in (base, source, target)]
    decoding = [{key: found.get(key) for key in _DECODING} for found in attributes]
    if any(document != documents[0] for document in documents[1:]) or any(
        found != decoding[0] for found in decoding[1:]
    ):
        raise CannotMerge
    was, ours, theirs = attributes
    merged = dict(theirs)
    for key in dict.fromkeys([*was, *ours]):
        if ours.get(key) == was.get(key) and (key in ours) == (key in was):
            continue
        both = (key in theirs) != (key in was) or theirs.get(key) != was.get(key)
        if both and (theirs.get(key), key in theirs) != (ours.get(key), key in ours):
            raise CannotMerge
        if key in ours:
            merged[key] = ours[key]
        else:
            merged.pop(key, None)
    if merged == theirs:
        return target.metadata
    document = {**target.metadata.raw, "attributes": merged}
    return parse_array_metadata(dump_document(document), node_path=target.node.path)


def _without_shape(variable: Variable) -> Mapping[str, Any]:
    """Return what must be equal on both sides; edges of unequal chunks grow with the array."""
    raw = dict(variable.metadata.raw)
    grid = raw.get("chunk_grid")
    if isinstance(grid, Mapping) and grid.get("name") != "regular":
        raw["chunk_grid"] = grid.get("name")
    kept = {key: value for key, value in raw.items() if key not in ("shape", "attributes")}
    return {**kept, "dims": variable.dims, "path": variable.path}
