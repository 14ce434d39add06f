"""Converts rows of the layouts of chunks to coordinates, and those of ``refs`` to references.

Rules of this file
------------------
1. Coordinates, offsets and locations are converted from Arrow to NumPy as whole columns. Each
   distinct location is checked once.
2. References to objects in ``chunks/`` are refused: the objects do not exist in another repository,
   and this repository already has the references.
3. Locations that readers do not fetch are refused: malformed URLs, ``.`` and ``..`` segments, and,
   if the repository has virtual chunk containers, locations outside of them and of the prefixes
   that the write authorizes (as in the reference library). Schemes are stored in lower case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs, inline_refs, virtual_refs
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing.containers import (
    NAMED,
    authorized_prefixes,
    outside_of,
    prefixes_of,
)
from icechunk_format.groups.changing.targets import ArrayTarget
from icechunk_format.repository.chunks import shown
from icechunk_format.repository.chunks.virtual_url import MalformedUrlError, parse_url

if TYPE_CHECKING:
    from icechunk_format.repository.chunks import ChunkSource

_SCHEME: Final = r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(?P<rest>://(?s:.*))$"
# A host or bucket without user or port, and a path of names that do not begin with a dot.
_PLAIN: Final = (
    r"^([A-Za-z][A-Za-z0-9+-]*://[A-Za-z0-9][A-Za-z0-9._-]*|file://)"
    r"(/[A-Za-z0-9_=+,~-][A-Za-z0-9._=+,~-]*)+$"
)


def references(
    target: ArrayTarget,
    coords: NDArray[np.int64],
    rows: pa.Table,
    source: ChunkSource,
) -> tuple[ChunkRefs, set[str]]:
    """Return the references of rows of one array, and URL prefixes for new containers."""
    check_coords(target, coords, target.metadata.grid.num_chunks)
    kinds = rows.column("kind").combine_chunks()
    virtual, inline = (
        np.flatnonzero(pc.fill_null(pc.equal(kinds, kind), False).to_numpy(zero_copy_only=False))
        for kind in ("virtual", "inline")
    )
    if len(virtual) + len(inline) < rows.num_rows:
        others = sorted({str(k) for k in pc.unique(kinds).to_pylist()} - {"virtual", "inline"})
        raise InvalidInputError(
            f"a row of array {target.name!r} has the kind {others[0]!r}; only 'virtual' and "
            "'inline' references can be written, and other chunks be copied with layout=chunks",
            variable=target.name,
            kind=others[0],
        )
    parts: list[ChunkRefs] = []
    prefixes: set[str] = set()
    if len(virtual):
        taken = rows.take(pa.array(virtual))
        refs, prefixes = _virtual(target, coords[virtual], taken, source)
        parts.append(refs)
    if len(inline):
        data = _column(rows.take(pa.array(inline)), "data", target)
        parts.append(inline_refs(coords[inline], data.to_pylist()))
    return ChunkRefs.concat(parts), prefixes


def _virtual(
    target: ArrayTarget,
    coords: NDArray[np.int64],
    rows: pa.Table,
    source: ChunkSource,
) -> tuple[ChunkRefs, set[str]]:
    location = _column(rows, "location", target).dictionary_encode()
    locations = _checked_locations(target, location.dictionary)
    prefixes = _new_prefixes(target, locations, source)
    etags = rows.column("etag") if "etag" in rows.column_names else None
    modified = rows.column("last_modified") if "last_modified" in rows.column_names else None
    seconds = None
    if modified is not None and modified.null_count < len(modified):
        micro = pc.fill_null(modified.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 0)
        seconds = micro.combine_chunks().to_numpy(zero_copy_only=False) // 1_000_000
    has_etag = etags is not None and etags.null_count < len(etags)
    refs = virtual_refs(
        coords,
        locations.to_pylist(),
        _column(rows, "offset", target).to_numpy(zero_copy_only=False),
        _column(rows, "length", target).to_numpy(zero_copy_only=False),
        location_of_row=location.indices.to_numpy(zero_copy_only=False),
        etags=etags.to_pylist() if etags is not None and has_etag else None,
        last_modified=seconds,
    )
    return refs, prefixes


def _checked_locations(target: ArrayTarget, locations: pa.Array) -> pa.Array:
    """Return distinct locations with the scheme in lower case; raise for unreadable ones."""
    # Plain URLs are not parsed one by one: there may be millions of files.
    plain = pc.match_substring_regex(locations, _PLAIN)
    for string in locations.filter(pc.invert(plain)).to_pylist():
        try:
            parse_url(string)
        except MalformedUrlError as error:
            raise InvalidInputError(
                f"a virtual chunk of array {target.name!r} has the location {shown(string)!r}, "
                f"which readers do not fetch: {error}; an absolute URL is needed, like "
                "s3://bucket/file.nc or file:///data/file.nc",
                variable=target.name,
                location=shown(string),
                allowed="an absolute URL",
            ) from None
    parts = pc.extract_regex(locations, _SCHEME)
    scheme = pc.ascii_lower(parts.field("scheme"))
    return pc.binary_join_element_wise(scheme, parts.field("rest"), "")


def _new_prefixes(target: ArrayTarget, locations: pa.Array, source: ChunkSource) -> set[str]:
    """Return prefixes for new containers; raise for locations outside of existing containers."""
    # Containers whose prefix does not end with "/" are ignored by every reader.
    usable = [item for item in source.containers if item.url_prefix.endswith("/")]
    outside = outside_of(locations, usable)
    prefixes, outside = authorized_prefixes(outside, source.access.authorized)
    refused = outside if usable else outside.filter(pc.starts_with(outside, NAMED))
    if not len(refused):
        return prefixes | prefixes_of(outside)
    string = refused[0].as_py()
    known = [c.url_prefix if c.name is None else f"{c.url_prefix} ({c.name})" for c in usable]
    raise InvalidInputError(
        f"a virtual chunk of array {target.name!r} has the location {shown(string)!r}, which is "
        "outside of all virtual chunk containers of the repository; containers are: "
        f"{', '.join(map(shown, known)) or 'none'}. Correct the location, or give its prefix with "
        "the option virtual.authorize, so that the write adds a container for it",
        variable=target.name,
        location=shown(string),
        containers=tuple(known),
    )


def _column(rows: pa.Table, name: str, target: ArrayTarget) -> pa.Array:
    column = rows.column(name).combine_chunks() if name in rows.column_names else None
    if column is None or column.null_count:
        raise InvalidInputError(
            f"a reference of array {target.name!r} has no {name!r}; virtual ones need location, "
            "offset and length, inline ones data",
            variable=target.name,
            column=name,
        )
    return column


def array_names(column: pa.Array) -> pa.Array:
    """Return the names of arrays: the last segment of each path."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    names = [string.rpartition("/")[2] for string in encoded.dictionary.to_pylist()]
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
