"""Extracts array names and chunk coordinates from rows of the layouts ``chunks`` and ``refs``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.errors import InvalidInputError


def array_names(column: pa.Array) -> pa.Array:
    """Return the names of arrays: the last segment of each path."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    names = [text.rpartition("/")[2] for text in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def chunk_coords(column: pa.Array, ndim: int, name: str) -> NDArray[np.int64]:
    """Return a column of lists as ``int64 (n, ndim)``."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    lengths = pc.list_value_length(column)
    flat = column.flatten()
    is_wrong = column.null_count or flat.null_count
    if is_wrong or (len(column) and not pc.all(pc.equal(lengths, ndim)).as_py()):
        raise InvalidInputError(
            f"a row of array {name!r} has a chunk that is not a list of {ndim} numbers, one for "
            "each dimension",
            variable=name,
        )
    found: NDArray[np.int64] = flat.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found.reshape(len(column), ndim)


def check_coords(target: ArrayTarget, coords: NDArray[np.int64], counts: tuple[int, ...]) -> None:
    """Raise InvalidInputError if coordinates are outside of the chunk grid."""
    wrong = ((coords < 0) | (coords >= np.array(counts, np.int64).reshape(1, -1))).any(axis=1)
    if wrong.any():
        found = coords[int(np.argmax(wrong))].tolist()
        raise InvalidInputError(
            f"array {target.name!r} of shape {target.metadata.shape} has {list(counts)} chunks, so "
            f"there is no chunk {found}; give a larger shape with the option encoding",
            variable=target.name,
            chunk=tuple(found),
        )
