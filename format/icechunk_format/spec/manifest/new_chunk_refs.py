"""Makes columns of new chunk references (native, inline or virtual) from a writer's values.

Rules of this file
------------------
1. Wrong shapes, ranges, repeats and empty chunks raise ``InvalidInputError``, so that the result
   can be stored without further checks.
2. Rows may come in any order; the result is sorted by coordinate.

Spec: "ChunkRef".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.coordinate_set import checked_coords
from icechunk_format.spec.manifest.chunk_refs import (
    CHUNK_ID_SIZE,
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.spec.manifest.texts import RefTexts
from icechunk_format.spec.tables.byte_ranges import joined


def native_refs(
    coords: ArrayLike,
    chunk_ids: NDArray[np.uint8],
    lengths: ArrayLike,
    offsets: ArrayLike | None = None,
) -> ChunkRefs:
    """Make references to chunks in the repository's own objects.

    ``coords`` are integers, shape (n, ndim), in any order; ``chunk_ids`` uint8, shape (n, 12);
    ``lengths`` and ``offsets`` bytes, shape (n,).
    """
    at = checked_coords(coords)
    sizes = _column("lengths", lengths, np.uint64, (len(at),))
    if (sizes == 0).any():
        raise InvalidInputError(
            "a native chunk of 0 bytes cannot be referenced; omit chunks that hold only fill values"
        )
    return replace(
        ChunkRefs.blank(at, KIND_NATIVE),
        chunk_id=_column("chunk_ids", chunk_ids, np.uint8, (len(at), CHUNK_ID_SIZE)),
        length=sizes,
        offset=_column("offsets", offsets, np.uint64, (len(at),)),
    ).distinct()


def inline_refs(coords: ArrayLike, chunks: Sequence[bytes]) -> ChunkRefs:
    """Make references that hold the encoded bytes of their chunks."""
    at = checked_coords(coords)
    _check_count(len(at), len(chunks), "inline chunks")
    if not all(chunks):
        raise InvalidInputError(
            "an inline chunk of 0 bytes cannot be stored; omit chunks that hold only fill values"
        )
    buffer, starts, sizes = joined(chunks)
    return replace(
        ChunkRefs.blank(at, KIND_INLINE),
        length=sizes.astype(np.uint64),
        texts=RefTexts(buffer=buffer, starts=starts, lengths=sizes.astype(np.uint32)),
    ).distinct()


def virtual_refs(
    coords: ArrayLike,
    locations: Sequence[str],
    offsets: ArrayLike,
    lengths: ArrayLike,
    *,
    location_of_row: NDArray[np.integer[Any]] | None = None,
    etags: Sequence[str | None] | None = None,
    last_modified: ArrayLike | None = None,
) -> ChunkRefs:
    """Make references to byte ranges of objects outside the repository.

    Parameters
    ----------
    locations
        Absolute URLs, one per row; or the distinct ones, with ``location_of_row``.
    location_of_row
        Integers, shape (n,): the index in ``locations`` for each row.
    last_modified
        Seconds since 1970, shape (n,), 0 if unknown.
    """
    at = checked_coords(coords)
    if not all(locations):
        raise InvalidInputError("the location of a virtual chunk must not be empty")
    buffer, starts, sizes = joined([location.encode("utf-8") for location in locations])
    if location_of_row is not None:
        _check_count(len(at), len(location_of_row), "location numbers")
        number = np.asarray(location_of_row)
        if number.size and not 0 <= int(np.min(number)) <= int(np.max(number)) < len(locations):
            raise InvalidInputError(f"location numbers must be below {len(locations)}")
        starts, sizes = starts[number], sizes[number]
    _check_count(len(at), len(starts), "locations")
    texts = RefTexts(buffer=buffer, starts=starts, lengths=sizes.astype(np.uint32))
    if etags is not None:
        _check_count(len(at), len(etags), "etags")
        raw, etag_starts, etag_sizes = joined([(etag or "").encode("utf-8") for etag in etags])
        has_etag = np.array([etag is not None for etag in etags], dtype=np.bool_)
        if has_etag.any():
            texts = replace(
                texts,
                buffer=np.concatenate([buffer, raw]),
                etag_starts=np.where(has_etag, etag_starts + buffer.size, -1),
                etag_lengths=etag_sizes.astype(np.uint32),
            )
    return replace(
        ChunkRefs.blank(at, KIND_VIRTUAL),
        offset=_column("offsets", offsets, np.uint64, (len(at),)),
        length=_column("lengths", lengths, np.uint64, (len(at),)),
        last_modified=_column("last_modified", last_modified, np.uint32, (len(at),)),
        texts=texts,
    ).distinct()


def _column(
    name: str, values: ArrayLike | None, dtype: type, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return values as ``dtype``, zeros for None, refusing other shapes and lossy conversions."""
    given = np.zeros(shape, dtype=dtype) if values is None else np.asarray(values)
    if given.shape != shape:
        raise InvalidInputError(f"{name} must have shape {shape}, found {given.shape}")
    limits = np.iinfo(dtype)
    if given.size and given.dtype.kind not in "iu":
        raise InvalidInputError(f"{name} must be integers, found {given.dtype}")
    if given.size and not limits.min <= int(np.min(given)) <= int(np.max(given)) <= limits.max:
        raise InvalidInputError(f"{name} must be from {limits.min} to {limits.max}")
    return np.array(given, dtype=dtype)


def _check_count(expected: int, found: int, what: str) -> None:
    if expected != found:
        raise InvalidInputError(f"expected {expected} {what}, one per coordinate, found {found}")
