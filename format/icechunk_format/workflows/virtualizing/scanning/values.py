"""Reads the values of arrays of files, and digests them."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.workflows.virtualizing.scanning.headers import metadata_of

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.parse import ParsedArray
    from icechunk_format.workflows.virtualizing.scanning.source_files import FileOpener, FileStore


@lru_cache(maxsize=4096)
def _codecs_of(text: str, path: str) -> Any:
    return metadata_of(text, path).chunk_codecs()


def read_values(
    array: ParsedArray, metadata: ArrayMetadata, store: FileStore, opener: FileOpener
) -> NDArray[Any]:
    """Return the values of an array of a file."""
    codecs = _codecs_of(array.text, array.path)
    values = metadata.fill_array(metadata.shape)
    for row, index in enumerate(array.coords.tolist()):
        raw = None if array.inline is None else array.inline[row]
        if raw is None:
            start = int(array.offsets[row])
            stop = start + int(array.lengths[row])
            if array.locations is None:
                raw = store.get_range("", start=start, end=stop)
            else:
                storage, key = opener.open(array.locations[row])
                raw = storage.get(key, start=start, end=stop).data
        lower, upper = metadata.grid.box_of(index)
        chunk = codecs.decode(raw, metadata.grid.full_chunk_shape(index))
        sizes = [b - a for a, b in zip(lower, upper, strict=True)]
        box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
        values[box] = chunk[tuple(slice(0, n) for n in sizes)]
    return values


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of dtype, shape and values."""
    found = hashlib.blake2b(f"{values.dtype} {values.shape}".encode(), digest_size=16)
    if values.dtype.hasobject:
        found.update(json.dumps(values.tolist(), default=str).encode())
    else:
        found.update(np.ascontiguousarray(values).tobytes())
    return found.digest()
