"""Parses one file with a parser of VirtualiZarr; the only module that imports it.

What a parser returns becomes columns at once: the ``zarr.json`` of each array, and its references.

Rules of this file
------------------
1. VirtualiZarr is imported by the first file that is parsed, on executors.
2. A parser is a callable ``(url, registry) -> ManifestStore``. Ours is chosen by name, or by the
   suffix and the first bytes of the file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    FileOpener,
    FileStore,
    SourceFile,
    is_folder,
)

Parser = Callable[..., Any]

_CLASSES: Final = {
    "hdf": "virtualizarr.parsers.HDFParser",
    "netcdf3": "virtualizarr.parsers.NetCDF3Parser",
    "zarr": "virtualizarr.parsers.ZarrParser",
    "kerchunk_json": "virtualizarr.parsers.KerchunkJSONParser",
    "kerchunk_parquet": "virtualizarr.parsers.KerchunkParquetParser",
    "fits": "virtualizarr.parsers.FITSParser",
    "grib": "gribberish.virtualizarr.GribberishParser",
}
# What parsers import when they are called, and the extra of VirtualiZarr that brings it.
_NEEDED: Final = {
    "hdf": ("h5py", "hdf"),
    "zarr": ("arro3", "zarr"),
    "kerchunk_parquet": ("fastparquet", "kerchunk-parquet"),
    "fits": ("astropy", "fits"),
    "grib": ("gribberish", "grib"),
}
_OTHER_NAMES: Final = {"hdf5": "hdf", "netcdf4": "hdf", "kerchunk": "kerchunk_json"}
PARSERS: Final = tuple(sorted({*_CLASSES, *_OTHER_NAMES}))
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
_ANY_ENCODING: Final = {"name": "default", "configuration": {"separator": "/"}}
_INLINED: Final = "__inlined__"
_INSTALL: Final = "pip install 'icechunk-spark[virtualize]' on the driver and on the executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArray:
    """An array of a file, and where its chunks lie.

    Parameters
    ----------
    path
        Below the root of the file, without a leading ``/``.
    text
        Its ``zarr.json``, with sorted keys, so that equal ones are parsed once.
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
    text: str
    coords: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    locations: list[str] | None = None
    inline: list[bytes | None] | None = None


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
) -> tuple[list[ParsedArray], dict[str, dict[str, Any]]]:
    """Return the arrays of a file, by path, and the attributes of its groups; the root is ``""``.

    Raises
    ------
    Exception
        Whatever the parser raises: the caller reports it as what is wrong with the file.
    UnsupportedError
        No parser is known for the file, or VirtualiZarr is not installed.
    """
    registry_class = _imported("obspec_utils.registry").ObjectStoreRegistry
    name = parser if isinstance(parser, str) else _kind(file, store, is_asked=parser is None)
    chosen = parser if callable(parser) else _parser_named(name)
    with contextlib.ExitStack() as stack:
        url = file.url
        held: Any = store
        if name == "kerchunk_parquet" and not callable(parser):
            url = stack.enter_context(_local_copy(file, opener))
        if is_folder(file.url) or name == "grib":
            held = _object_store(url, opener)
        scheme, _, rest = url.partition("://")
        root = f"{scheme}://{rest.partition('/')[0]}"
        result = chosen(url, registry_class({root: held}))
    if not hasattr(result, "_group"):
        raise UnsupportedError(
            f"the parser returned a {type(result).__name__}; a ManifestStore of VirtualiZarr is "
            "needed"
        )
    arrays: list[ParsedArray] = []
    groups: dict[str, dict[str, Any]] = {}
    _walk(result._group, "", file.url, arrays, groups)
    if name.startswith("kerchunk") or (name == "zarr" and _is_zarr_v2(file, opener)):
        arrays = [replace(array, text=_with_missing_value(array.text)) for array in arrays]
    return sorted(arrays, key=lambda array: array.path), groups


def _kind(file: SourceFile, store: FileStore, *, is_asked: bool) -> str:
    """Return the format of a file; where nobody asks for it, it may be unknown."""
    for suffix, kind in _SUFFIXES.items():
        if file.url.rstrip("/").lower().endswith(suffix):
            return kind
    if is_folder(file.url):
        return ""
    if not store.size:
        raise InvalidInputError("the file is empty: it has 0 bytes")
    first = store.first_bytes()
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            return kind
    # A user block may stand before the contents of an HDF5 file.
    if any(first[at : at + 8] == _MAGIC[0][0] for at in (512, 1024, 2048, 4096, 8192)):
        return "hdf"
    if not is_asked:
        return ""
    raise UnsupportedError(
        f"its first bytes, {first[:8]!r}, are those of no known format (HDF5 or NetCDF4, NetCDF3, "
        "FITS, GRIB, Zarr, Kerchunk); name the format with parser="
    )


def _parser_named(name: str) -> Parser:
    _imported("virtualizarr")
    module, extra = _NEEDED.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise UnsupportedError(
            f"files of the format {name!r} need the package {module}, which is not installed here; "
            f"pip install 'virtualizarr[{extra}]' on the driver and on the executors",
            package=module,
        )
    place, _, class_name = _CLASSES[name].rpartition(".")
    parser: Parser = getattr(_imported(place), class_name)()
    return parser


@cache
def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"virtualize needs VirtualiZarr, which is not installed here ({error}); {_INSTALL}",
            package="virtualizarr",
        ) from error


def _object_store(url: str, opener: FileOpener) -> Any:
    """Return obstore's own client, for parsers that list folders or read through obstore."""
    if url.startswith("file://"):
        return _imported("obstore.store").LocalStore()
    location, _ = opener.find(url)
    clients = _imported("icechunk_format.storage.remote.obstore.clients")
    return clients.make_clients(location.address, location.checked_options).patient


@contextlib.contextmanager
def _local_copy(file: SourceFile, opener: FileOpener) -> Iterator[str]:
    """Return the URL of a folder on the local disk with the objects of a folder elsewhere.

    The parser of Kerchunk Parquet reads through fsspec, which knows none of our options.
    """
    if file.url.startswith("file://"):
        yield file.url
        return
    storage, key = opener.open(file.url)
    prefix = key.rstrip("/") + "/"
    with tempfile.TemporaryDirectory() as folder:
        for info in storage.list(prefix):
            path = Path(folder, info.key[len(prefix) :]).resolve()
            if not path.is_relative_to(Path(folder).resolve()):
                raise UnsupportedError(f"object {info.key!r} lies outside of its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.get(info.key).data)
        yield Path(folder).resolve().as_uri()


def _is_zarr_v2(file: SourceFile, opener: FileOpener) -> bool:
    storage, key = opener.open(file.url)
    return storage.head(f"{key.rstrip('/')}/zarr.json") is None


@lru_cache(maxsize=4096)
def _with_missing_value(text: str) -> str:
    """Say by an attribute which value is missing, as Zarr v2 says by the fill value alone.

    VirtualiZarr makes 0 or NaN of a fill value that is null, so these two say nothing.
    """
    document = json.loads(text)
    fill, attributes = document["fill_value"], document.setdefault("attributes", {})
    if isinstance(fill, int | float) and not isinstance(fill, bool) and fill and fill == fill:
        dtype = np.dtype(document["data_type"])
        encode = _imported("virtualizarr.parsers.utils").encode_cf_fill_value
        attributes.setdefault("_FillValue", encode(dtype.type(fill), dtype))
    return json.dumps(document, sort_keys=True)


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
    # References say where chunks lie, so names of chunks mean nothing any more.
    document = {**array.metadata.to_dict(), "chunk_key_encoding": _ANY_ENCODING}
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
        text=json.dumps(document, default=_plain, sort_keys=True),
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
