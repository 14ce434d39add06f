"""The ``zarr.json`` of nodes of the drafts, which store its parts instead.

Decisions
---------
1. Chunk keys are written as ``{"name": "default", "separator": "/"}`` whatever the draft says:
   they name chunks to Zarr only, and the released format knows no other spelling.
2. A fill value that is absent becomes the zero of the data type, since Zarr demands one.
3. Storage transformers are refused; no reader could undo them.

Specification: Zarr v3; ``ZarrArrayMetadata`` and ``array_metadata`` of the drafts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from icechunk_format.arrays.data_types import parse_data_type
from icechunk_format.arrays.fill_values import default_fill_value, encode_fill_value
from icechunk_format.arrays.zarr_json import dump_document, parse_array_metadata
from icechunk_format.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icechunk_format.arrays.zarr_json import ArrayMetadata


def group_document(attributes: Mapping[str, Any]) -> bytes:
    """Return the document of a group."""
    return dump_document({"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"})


def array_document(
    *,
    path: str,
    shape: Sequence[int],
    data_type: Any,
    chunk_shape: Sequence[int],
    fill_value: Any,
    codecs: Sequence[Mapping[str, Any]],
    dimension_names: Sequence[str | None] | None,
    attributes: Mapping[str, Any],
) -> tuple[bytes, ArrayMetadata]:
    """Return the document of an array, and the same read.

    Parameters
    ----------
    fill_value
        As JSON; None for the zero of the data type.

    Raises
    ------
    FormatError
        The parts do not fit together.
    UnsupportedError
        The data type or grid is not known.
    """
    known = parse_data_type(data_type, node_path=path)
    if fill_value is None:
        fill_value = encode_fill_value(default_fill_value(known), known)
    document: dict[str, Any] = {
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [dict(codec) for codec in codecs],
        "attributes": dict(attributes),
    }
    if dimension_names is not None:
        document["dimension_names"] = list(dimension_names)
    document |= {"zarr_format": 3, "node_type": "array", "storage_transformers": []}
    data = dump_document(document)
    metadata = parse_array_metadata(data, node_path=path)
    # Asked for here, so that what cannot be read fails with the node and not with its chunks.
    if len(metadata.grid.num_chunks) != metadata.ndim:
        raise FormatError(f"array {path!r} has chunks of another number of dimensions")
    return data, metadata


def json_float(value: Any) -> Any:
    """Return a float as Zarr writes it in JSON: what JSON lacks becomes a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    # Writers of plain JSON have nothing but null for what is no number.
    return "NaN" if value is None else value
