"""Parses one file, with a parser of VirtualiZarr unless it is HDF5; only this module imports it.

The result has the ``zarr.json`` and the references (as columns) of each array.

Rules of this file
------------------
1. VirtualiZarr is imported when the first file is parsed, on executors.
2. A parser is a callable ``(url, registry) -> ManifestStore``, chosen by the option, or else by the
   suffix and the first bytes of the file.
3. HDF5 files are parsed by ``hdf5``, with the options of ``HDFParser``, which does not check
   whether references represent the values of a dataset. Arrays of other parsers are checked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.workflows.virtualizing.scanning.grib import check_messages
from icechunk_format.workflows.virtualizing.scanning.hdf5 import check_hdf5, parse_hdf5
from icechunk_format.workflows.virtualizing.scanning.kerchunk import (
    fortran_arrays,
    kerchunk_groups,
    transposed,
)
from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    FileOpener,
    FileStore,
    SourceFile,
    is_folder,
)

Parser = Callable[..., Any]

_CLASSES: Final = {
    "netcdf3": "virtualizarr.parsers.NetCDF3Parser",
    "zarr": "virtualizarr.parsers.ZarrParser",
    "kerchunk_json": "virtualizarr.parsers.KerchunkJSONParser",
    "kerchunk_parquet": "virtualizarr.parsers.KerchunkParquetParser",
    "fits": "virtualizarr.parsers.FITSParser",
    "grib": "gribberish.virtualizarr.GribberishParser",
}
# Packages that parsers import when they are called, with the extra of VirtualiZarr.
_NEEDED: Final = {
    "hdf": ("h5py", "hdf"),
    "zarr": ("arro3", "zarr"),
    "kerchunk_parquet": ("fastparquet", "kerchunk-parquet"),
    "fits": ("astropy", "fits"),
    "grib": ("gribberish", "grib"),
}
_HDF5: Final = "hdf"
_OTHER_NAMES: Final = {"hdf5": _HDF5, "netcdf4": _HDF5, "kerchunk": "kerchunk_json"}
PARSERS: Final = tuple(sorted({*_CLASSES, *_OTHER_NAMES, _HDF5}))
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


def check_parser(parser: str | Parser | None) -> str | Parser | None:
    """Return a parser or its canonical name; raise InvalidInputError if it is unknown."""
    if parser is None or callable(parser):
        return parser
    name = str(parser).lower()
    if name not in PARSERS:
        raise InvalidInputError(
            f"parser={parser!r} is unknown; choose one of {', '.join(PARSERS)}, give a callable "
            "(url, registry) -> ManifestStore, or leave it out to choose by the files",
            option="parser",
        )
    return _OTHER_NAMES.get(name, name)


def parse_file(
    file: SourceFile, store: FileStore, parser: str | Parser | None, opener: FileOpener
) -> tuple[list[ParsedArray], dict[str, dict[str, Any]]]:
    """Return the arrays of a file, and attributes of its groups by path; the root is ``""``.

    Raises
    ------
    Exception
        Any error of the parser; the caller reports it as the problem of the file.
    UnsupportedError
        The format of the file is unknown, or VirtualiZarr is not installed.
    """
    name = parser if isinstance(parser, str) else _kind(file, store, is_needed=parser is None)
    if name == _HDF5 and (not callable(parser) or _is_hdf_parser(parser)):
        _check_package(name)
        dropped = set(getattr(parser, "drop_variables", None) or ())
        found, groups = parse_hdf5(store, group=getattr(parser, "group", None), dropped=dropped)
        return sorted(found, key=lambda array: array.path), groups
    if name == "kerchunk_json" and not callable(parser):
        return _parse_kerchunk(file, store)
    registry_class = _imported("obspec_utils.registry").ObjectStoreRegistry
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
    groups = {}
    _walk(result._group, "", file.url, arrays, groups)
    if name == _HDF5:
        check_hdf5(store, getattr(parser, "group", None), {array.path for array in arrays})
    if name == "grib" and not callable(parser):
        check_messages(arrays, store)
    if name == "kerchunk_parquet" and not callable(parser):
        arrays = _in_their_order(arrays, _parquet_documents(file, opener))
    if name.startswith("kerchunk") or (name == "zarr" and _is_zarr_v2(file, opener)):
        arrays = [
            replace(array, json_document=_with_missing_value(array.json_document))
            for array in arrays
        ]
    return sorted(arrays, key=lambda array: array.path), groups


def _parse_kerchunk(
    file: SourceFile, store: FileStore
) -> tuple[list[ParsedArray], dict[str, dict[str, Any]]]:
    """Return the arrays and the attributes of groups of a JSON file of Kerchunk."""
    _imported("virtualizarr")
    translator = _imported("virtualizarr.parsers.kerchunk.translator")
    arrays: list[ParsedArray] = []
    groups: dict[str, dict[str, Any]] = {}
    for path, refs in kerchunk_groups(store.get_range("", start=0, end=store.size)):
        is_v3 = "zarr.json" in refs
        found = translator.manifestgroup_from_kerchunk_refs(
            {"version": 1, "refs": refs}, group=path if is_v3 else None
        )
        own: list[ParsedArray] = []
        _walk(found, path, file.url, own, groups)
        if not is_v3:
            prefix = f"{path}/".lstrip("/")
            own = _in_their_order(own, {prefix + key: value for key, value in refs.items()})
        arrays += own
    arrays = [
        replace(array, json_document=_with_missing_value(array.json_document)) for array in arrays
    ]
    return sorted(arrays, key=lambda array: array.path), groups


def _in_their_order(arrays: list[ParsedArray], documents: dict[str, Any]) -> list[ParsedArray]:
    """Add a codec to the arrays whose chunks are in the order of Fortran."""
    others = fortran_arrays(documents)
    return [
        replace(array, json_document=transposed(array.json_document))
        if array.path in others
        else array
        for array in arrays
    ]


def _parquet_documents(file: SourceFile, opener: FileOpener) -> dict[str, Any]:
    storage, key = opener.open(file.url)
    found = json.loads(storage.get(f"{key.rstrip('/')}/.zmetadata").data)
    return dict(found["metadata"])


def _kind(file: SourceFile, store: FileStore, *, is_needed: bool) -> str:
    """Return the format of a file; if ``is_needed``, raise for an unknown format."""
    for suffix, kind in _SUFFIXES.items():
        if file.url.rstrip("/").lower().endswith(suffix):
            return kind
    if is_folder(file.url):
        if not is_needed:
            return ""
        raise UnsupportedError(
            "it is a folder whose name does not end like those of a known format (.zarr of Zarr, "
            ".parq or .parquet of Kerchunk); name the format with parser="
        )
    if not store.size:
        raise InvalidInputError("the file is empty: it has 0 bytes")
    first = store.first_bytes()
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            return kind
    # An HDF5 file may begin with a user block.
    if any(first[at : at + 8] == _MAGIC[0][0] for at in (512, 1024, 2048, 4096, 8192)):
        return "hdf"
    if not is_needed:
        return ""
    raise UnsupportedError(
        f"its first bytes, {first[:8]!r}, are not those of a known format (HDF5 or NetCDF4, "
        "NetCDF3, FITS, GRIB, Zarr, Kerchunk); name the format with parser="
    )


def _is_hdf_parser(parser: Parser) -> bool:
    """Return True if a parser is VirtualiZarr's of HDF5 and does not store object references."""
    kind = type(parser)
    is_own = (kind.__module__.partition(".")[0], kind.__name__) == ("virtualizarr", "HDFParser")
    return is_own and not getattr(parser, "links_and_references", False)


def _check_package(name: str) -> None:
    module, extra = _NEEDED.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise UnsupportedError(
            f"files of the format {name!r} need the package {module}, which is not installed here; "
            f"pip install 'virtualizarr[{extra}]' on the driver and on the executors",
            package=module,
        )


def _parser_named(name: str) -> Parser:
    _imported("virtualizarr")
    _check_package(name)
    module_name, _, class_name = _CLASSES[name].rpartition(".")
    parser: Parser = getattr(_imported(module_name), class_name)()
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
    """Return an obstore client, for parsers that list folders or read through obstore."""
    if url.startswith("file://"):
        return _imported("obstore.store").LocalStore()
    location, _ = opener.find(url)
    clients = _imported("icechunk_format.storage.remote.obstore.clients")
    return clients.make_clients(location.address, location.checked_options).patient


@contextlib.contextmanager
def _local_copy(file: SourceFile, opener: FileOpener) -> Iterator[str]:
    """Copy a folder to local disk; yield the URL of the copy.

    The parser of Kerchunk Parquet reads through fsspec without storage options.
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
                raise UnsupportedError(f"object {info.key!r} is outside of its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.get(info.key).data)
        yield Path(folder).resolve().as_uri()


def _is_zarr_v2(file: SourceFile, opener: FileOpener) -> bool:
    storage, key = opener.open(file.url)
    return storage.head(f"{key.rstrip('/')}/zarr.json") is None


@lru_cache(maxsize=4096)
def _with_missing_value(string: str) -> str:
    """Add ``_FillValue`` to an array of Zarr v2, where the fill value marks missing values.

    Not for 0 and NaN, which VirtualiZarr also uses for a fill value of null.
    """
    document = json.loads(string)
    fill, attributes = document["fill_value"], document.setdefault("attributes", {})
    if isinstance(fill, int | float) and not isinstance(fill, bool) and fill and fill == fill:
        dtype = np.dtype(document["data_type"])
        encode = _imported("virtualizarr.parsers.utils").encode_cf_fill_value
        attributes.setdefault("_FillValue", encode(dtype.type(fill), dtype))
    return json.dumps(document, sort_keys=True)


def _walk(
    group: Any, path: str, url: str, arrays: list[ParsedArray], groups: dict[str, dict[str, Any]]
) -> None:
    groups[path] = dict(group.metadata.attributes)
    for name, array in group.arrays.items():
        arrays.append(_array(f"{path}/{name}".lstrip("/"), array, url))
    for name, inner in group.groups.items():
        _walk(inner, f"{path}/{name}".lstrip("/"), url, arrays, groups)


def _array(path: str, array: Any, url: str) -> ParsedArray:
    # Chunk keys are irrelevant, since chunks are found by references.
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
        inline = [inlined.get(tuple(index)) for index in coords.tolist()]
    is_own = (named == url) | (named == _INLINED)
    return ParsedArray(
        path=path,
        json_document=json.dumps(document, default=_plain, sort_keys=True),
        coords=coords,
        offsets=_positions(manifest._offsets.reshape(-1)[rows], path),
        lengths=_positions(manifest._lengths.reshape(-1)[rows], path),
        locations=None if is_own.all() else named.tolist(),
        inline=inline,
    )


def _positions(found: NDArray[Any], path: str) -> NDArray[np.int64]:
    """Return offsets or lengths; those of references may be any numbers."""
    if found.size and (int(found.max()) >= 2**62 or int(found.min()) < 0):
        raise UnsupportedError(
            f"a reference begins or ends at byte {int(found.max()):,}, and no file has as many "
            "bytes; make the references again",
            array=path,
        )
    return found.astype(np.int64)


def _plain(value: Any) -> Any:
    for method in ("to_dict", "tolist"):
        if hasattr(value, method):
            return getattr(value, method)()
    return str(value)
