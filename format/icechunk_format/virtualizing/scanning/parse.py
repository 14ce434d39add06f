"""Parses one file with a parser of VirtualiZarr; the only module that imports it.

What a parser returns becomes columns at once: the ``zarr.json`` of each array, and its references.

Rules of this file
------------------
1. VirtualiZarr is imported by the first file that is parsed, on executors.
2. A parser is a callable ``(url, registry) -> ManifestStore``. Ours is chosen by name, or by the
   suffix and the first bytes of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.virtualizing.scanning.source_files import (
    FileOpener,
    FileStore,
    SourceFile,
    is_folder,
)

Parser = Callable[..., Any]

_CLASSES: Final = {
    "hdf": "HDFParser",
    "netcdf3": "NetCDF3Parser",
    "zarr": "ZarrParser",
    "kerchunk_json": "KerchunkJSONParser",
    "kerchunk_parquet": "KerchunkParquetParser",
    "fits": "FITSParser",
}
_OTHER_NAMES: Final = {"hdf5": "hdf", "netcdf4": "hdf", "kerchunk": "kerchunk_json"}
PARSERS: Final = tuple(sorted({*_CLASSES, *_OTHER_NAMES, "grib"}))
_MAGIC: Final = (
    (b"\x89HDF\r\n\x1a\n", "hdf"),
    (b"CDF\x01", "netcdf3"),
    (b"CDF\x02", "netcdf3"),
    (b"CDF\x05", "netcdf3"),
    (b"SIMPLE  =", "fits"),
    (b"GRIB", "grib"),
)
_SUFFIXES: Final = {
    ".zarr": "zarr",
    ".parq": "kerchunk_parquet",
    ".parquet": "kerchunk_parquet",
    ".json": "kerchunk_json",
}
_INLINED: Final = "__inlined__"
_INSTALL: Final = "pip install 'icechunk-spark[virtualize]' on the driver and on the executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArray:
    """An array of a file, and where its chunks lie.

    Parameters
    ----------
    path
        Below the root of the file, without a leading ``/``.
    document
        Its ``zarr.json``.
    coords
        int64, shape (n, ndim): places in its chunk grid.
    offsets, lengths
        int64, shape (n,): bytes.
    locations
        URL of each reference; None where all lie in the file itself.
    inline
        Encoded bytes of references that are no places in a file, None for the others; None where
        there are no such references.
    """

    path: str
    document: dict[str, Any]
    coords: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    locations: list[str] | None = None
    inline: list[bytes | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFile:
    """The arrays of a file, by path, and the attributes of its groups; the root is ``""``."""

    arrays: list[ParsedArray]
    groups: dict[str, dict[str, Any]]


def check_parser(parser: str | Parser | None) -> str | Parser | None:
    """Return a parser as executors take it.

    Raises
    ------
    InvalidInputError
        There is no parser of that name.
    """
    if parser is None or callable(parser):
        return parser
    name = str(parser).lower()
    if name not in PARSERS:
        raise InvalidInputError(
            f"parser={parser!r} is not known; choose one of {', '.join(PARSERS)}, give a callable "
            "(url, registry) -> ManifestStore, or leave it out to choose by the files",
            option="parser",
        )
    return _OTHER_NAMES.get(name, name)


def parse_file(
    file: SourceFile, store: FileStore, parser: str | Parser | None, opener: FileOpener
) -> ParsedFile:
    """Parse one file.

    Raises
    ------
    Exception
        Whatever the parser raises: the caller reports it as what is wrong with the file.
    UnsupportedError
        No parser is known for the file, or VirtualiZarr is not installed.
    """
    registry_class = _imported("obspec_utils.registry").ObjectStoreRegistry
    name = parser if isinstance(parser, str) else None if parser else _kind(file, store)
    chosen = parser if callable(parser) else _parser_named(name)
    scheme, _, rest = file.url.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    held: Any = _object_store(file, opener) if is_folder(file.url) else store
    result = chosen(file.url, registry_class({root: held}))
    if not hasattr(result, "_group"):
        raise UnsupportedError(
            f"the parser returned a {type(result).__name__}; a ManifestStore of VirtualiZarr is "
            "needed"
        )
    arrays: list[ParsedArray] = []
    groups: dict[str, dict[str, Any]] = {}
    _walk(result._group, "", file.url, arrays, groups)
    return ParsedFile(arrays=sorted(arrays, key=lambda array: array.path), groups=groups)


def _kind(file: SourceFile, store: FileStore) -> str:
    for suffix, kind in _SUFFIXES.items():
        if file.url.rstrip("/").lower().endswith(suffix):
            return kind
    if not store.size:
        raise InvalidInputError("the file is empty: it has 0 bytes")
    first = store.first_bytes()
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            return kind
    # A user block may stand before the contents of an HDF5 file.
    if any(first[at : at + 8] == _MAGIC[0][0] for at in (512, 1024, 2048, 4096, 8192)):
        return "hdf"
    raise UnsupportedError(
        f"its first bytes, {first[:8]!r}, are those of no known format (HDF5 or NetCDF4, NetCDF3, "
        "FITS, Zarr, Kerchunk); name the format with parser="
    )


def _parser_named(name: str | None) -> Parser:
    if name == "grib":
        raise UnsupportedError(
            "GRIB has no parser in VirtualiZarr; make Kerchunk references with kerchunk.grib2 and "
            "name those files, or give a callable as parser="
        )
    parsers = _imported("virtualizarr.parsers")
    parser: Parser = getattr(parsers, _CLASSES[str(name)])()
    return parser


@cache
def _imported(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"virtualize needs VirtualiZarr, which is not installed here ({error}); {_INSTALL}",
            package="virtualizarr",
        ) from error


def _object_store(file: SourceFile, opener: FileOpener) -> Any:
    """Return obstore's own client, for parsers that list folders."""
    location, _ = opener.find(file.url)
    if location.address.kind == "local":
        return _imported("obstore.store").LocalStore()
    clients = _imported("icechunk_format.storage.remote.obstore.clients")
    return clients.make_clients(location.address, location.checked_options).patient


def _walk(
    group: Any,
    path: str,
    url: str,
    arrays: list[ParsedArray],
    groups: dict[str, dict[str, Any]],
) -> None:
    groups[path] = dict(group.metadata.attributes)
    for name, array in group.arrays.items():
        arrays.append(_array(f"{path}/{name}".lstrip("/"), array, url))
    for name, inner in group.groups.items():
        _walk(inner, f"{path}/{name}".lstrip("/"), url, arrays, groups)


def _array(path: str, array: Any, url: str) -> ParsedArray:
    document = json.loads(json.dumps(array.metadata.to_dict(), default=_plain))
    # References say where chunks lie, so names of chunks mean nothing any more.
    document["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
    manifest = array.manifest
    grid = manifest.shape_chunk_grid
    paths = manifest._paths.reshape(-1)
    rows = np.flatnonzero(paths != "")
    coords = np.zeros((len(rows), 0), np.int64)
    if grid:
        coords = np.stack(np.unravel_index(rows, grid), axis=1).astype(np.int64)
    named = paths[rows]
    inlined = getattr(manifest, "_inlined", {})
    inline: list[bytes | None] | None = None
    if inlined:
        inline = [inlined.get(tuple(at)) for at in coords.tolist()]
    is_own = (named == url) | (named == _INLINED)
    return ParsedArray(
        path=path,
        document=document,
        coords=coords,
        offsets=manifest._offsets.reshape(-1)[rows].astype(np.int64),
        lengths=manifest._lengths.reshape(-1)[rows].astype(np.int64),
        locations=None if is_own.all() else named.tolist(),
        inline=inline,
    )


def _plain(value: Any) -> Any:
    for method in ("to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    return str(value)
