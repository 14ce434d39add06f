"""Rows that are references to chunks, as columns of a manifest.

Rules of this file
------------------
1. Coordinates, offsets and locations go from Arrow to NumPy whole; a location is checked once,
   however many rows share it.
2. References to the repository's own objects are refused: they mean nothing in another repository,
   and in this one they exist already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.dataset.write_layout_columns import check_places
from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.chunk_refs import ChunkRefs
from icechunk_format.spec.ref_columns import inline_refs, virtual_refs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icechunk_format.dataset.write_context import ArrayTarget


def references(target: ArrayTarget, coords: NDArray[np.int64], rows: pa.Table) -> ChunkRefs:
    """Return references of one array as the rows describe them.

    Raises
    ------
    InvalidInputError
        A row lacks what its kind needs, is of another kind, or names a place outside of the grid.
    """
    check_places(target, coords, target.metadata.grid.num_chunks)
    kinds = rows.column("kind").combine_chunks()
    parts: list[ChunkRefs] = []
    known = 0
    for kind, make in (("virtual", _virtual), ("inline", _inline)):
        is_kind = pc.fill_null(pc.equal(kinds, kind), False)
        places = np.flatnonzero(np.asarray(is_kind.to_numpy(zero_copy_only=False)))
        if len(places):
            known += len(places)
            parts.append(make(target, coords[places], rows.take(pa.array(places))))
    if known < rows.num_rows:
        others = sorted({str(k) for k in pc.unique(kinds).to_pylist()} - {"virtual", "inline"})
        raise InvalidInputError(
            f"a row of array {target.name!r} has the kind {others[0]!r}; 'virtual' and 'inline' "
            "references can be written. Chunks inside of a repository are copied with "
            "layout=chunks",
            variable=target.name,
            kind=others[0],
        )
    return joined_refs(target, parts)


def _virtual(target: ArrayTarget, coords: NDArray[np.int64], rows: pa.Table) -> ChunkRefs:
    location = _column(rows, "location", target).dictionary_encode()
    known = location.dictionary.to_pylist()
    for text in known:
        scheme, separator, rest = text.partition("://")
        if not separator or not scheme or not rest:
            raise InvalidInputError(
                f"a virtual chunk of array {target.name!r} has the location {text!r}; an absolute "
                "URL is needed, like s3://bucket/file.nc or file:///data/file.nc",
                variable=target.name,
                location=text,
            )
    etags = rows.column("etag") if "etag" in rows.column_names else None
    modified = rows.column("last_modified") if "last_modified" in rows.column_names else None
    seconds = None
    if modified is not None and modified.null_count < len(modified):
        micro = pc.fill_null(modified.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0)
        seconds = micro.combine_chunks().to_numpy(zero_copy_only=False) // 1_000_000
    has_etag = etags is not None and etags.null_count < len(etags)
    return virtual_refs(
        coords,
        known,
        _column(rows, "offset", target).to_numpy(zero_copy_only=False),
        _column(rows, "length", target).to_numpy(zero_copy_only=False),
        location_of_row=location.indices.to_numpy(zero_copy_only=False),
        etags=etags.to_pylist() if etags is not None and has_etag else None,
        last_modified=seconds,
    )


def _inline(target: ArrayTarget, coords: NDArray[np.int64], rows: pa.Table) -> ChunkRefs:
    return inline_refs(coords, _column(rows, "data", target).to_pylist())


def _column(rows: pa.Table, name: str, target: ArrayTarget) -> pa.Array:
    column = rows.column(name).combine_chunks() if name in rows.column_names else None
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if column is None or column.null_count:
        raise InvalidInputError(
            f"a reference of array {target.name!r} has no {name!r}; virtual ones need location, "
            "offset and length, inline ones data",
            variable=target.name,
            column=name,
        )
    return column


def joined_refs(target: ArrayTarget, parts: list[ChunkRefs]) -> ChunkRefs:
    """Join references of one array; refuses a chunk that comes twice.

    Raises
    ------
    InvalidInputError
        Two parts have one chunk.
    """
    joined = ChunkRefs.concat(parts)
    if len(joined) < sum(map(len, parts)):
        raise InvalidInputError(
            f"a chunk of array {target.name!r} comes in more than one row; each has one",
            variable=target.name,
        )
    return joined
