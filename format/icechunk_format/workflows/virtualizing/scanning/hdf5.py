"""Parses HDF5 and NetCDF4 files with h5py.

Each dataset becomes a document and references like those of VirtualiZarr, but is checked first, as
references are right only for plain chunks (``hdf5_dataset``).

Rules of this file
------------------
1. A file is read only through its ``FileStore``. Datasets and links whose bytes are in other files
   are refused: the HDF5 library would open any local file that they name.
2. Strings that are not UTF-8 are decoded as Latin-1.
3. NetCDF4 dimensions without a coordinate are left out, as are links without a target.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import struct
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.workflows.virtualizing.scanning.hdf5_dataset import (
    check_dataset,
    described,
    string_of,
)
from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray
from icechunk_format.workflows.virtualizing.scanning.source_files import BLOCK, FileStore

Visited = tuple[str, Any]
"""Path and object; an external link is itself the object."""

_HIDDEN: Final = frozenset(
    [
        *("REFERENCE_LIST", "CLASS", "DIMENSION_LIST", "NAME"),
        *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
    ]
)
_BLOCKS_IN_MEMORY: Final = 64


def parse_hdf5(
    store: FileStore, *, group: str | None = None, dropped: Collection[str] = ()
) -> tuple[list[ParsedArray], dict[str, dict[str, Any]]]:
    """Return the arrays of a file or of one group, and attributes of groups by path.

    Objects named in `dropped` are left out, in all groups.

    Raises
    ------
    UnsupportedError
        An object cannot be read; the fact ``array`` is its path.
    Exception
        Any error of the HDF5 library.
    """
    arrays: list[ParsedArray] = []
    groups: dict[str, dict[str, Any]] = {}
    with _opened(store) as file:
        for path, found in _visited(file, group, dropped):
            if isinstance(found, _h5py().Group):
                groups[path] = _attributes(found, path)
                continue
            check_dataset(found, path)
            attributes = _attributes(found, path)
            if "_FillValue" in attributes and found.dtype.kind not in "SUO":
                attributes["_FillValue"] = _encoded_fill(attributes["_FillValue"], found, path)
            names = _dimension_names(found, path)
            arrays.append(described(found, path, names, attributes))
    return arrays, groups


def check_hdf5(store: FileStore, group: str | None, paths: Collection[str]) -> None:
    """Raise UnsupportedError if references cannot represent one of the arrays of another parser."""
    with _opened(store) as file:
        for path, found in _visited(file, group, ()):
            if path not in paths or isinstance(found, _h5py().Group):
                continue
            check_dataset(found, path)
            if found.dtype.kind == "O":
                continue
            array = described(found, path, _dimension_names(found, path), {})
            if array.unreferable is not None or array.inline is not None:
                why = "the layout is compact" if array.inline else array.unreferable.reason  # type: ignore[union-attr]
                raise UnsupportedError(
                    f"{why}, which this parser does not support; use parser='hdf'", array=path
                )


def read_hdf5(
    store: FileStore,
    dataset: str,
    lower: Sequence[int] | None = None,
    upper: Sequence[int] | None = None,
) -> NDArray[Any]:
    """Return the values of a dataset, or of a box of it, as h5py converts them."""
    box = tuple(slice(a, b) for a, b in zip(lower or (), upper or (), strict=True))
    with _opened(store) as file:
        found = file[dataset]
        check_dataset(found, dataset.lstrip("/"))
        values = np.asarray(found[box] if box else found[()], dtype=found.dtype)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


class _BlockReader(io.RawIOBase):
    """A file for h5py, which reads whole blocks and keeps some of them."""

    def __init__(self, store: FileStore) -> None:
        self._store, self._at = store, 0
        self._block = lru_cache(maxsize=_BLOCKS_IN_MEMORY)(self._fetch)

    def _fetch(self, number: int) -> bytes:
        end = min((number + 1) * BLOCK, self._store.size)
        return self._store.get_range("", start=number * BLOCK, end=end)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._store.size)
        return self._at

    def readinto(self, buffer: Any) -> int:
        start, end = self._at, min(self._at + len(buffer), self._store.size)
        if end <= start:
            return 0
        if end - start > _BLOCKS_IN_MEMORY // 2 * BLOCK:
            data = self._store.get_range("", start=start, end=end)
        else:
            first = start // BLOCK
            blocks = range(first, -(-end // BLOCK))
            data = b"".join(map(self._block, blocks))[start - first * BLOCK : end - first * BLOCK]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def _opened(store: FileStore) -> Iterator[Any]:
    with _h5py().File(_BlockReader(store), "r") as file:
        yield file


@cache
def _h5py() -> Any:
    with contextlib.suppress(ImportError):
        importlib.import_module("hdf5plugin")  # registers more filters
    return importlib.import_module("h5py")


def _visited(file: Any, group: str | None, dropped: Collection[str]) -> Iterator[Visited]:
    """Yield the groups, datasets and external links of a file or of one group."""
    root = file.get(group or "/")
    if not isinstance(root, _h5py().Group):
        raise InvalidInputError(f"the file has no group {group!r}")
    yield from _visited_in(root, "", dropped, ())


def _visited_in(
    group: Any, path: str, dropped: Collection[str], above: tuple[int, ...]
) -> Iterator[Visited]:
    h5py = _h5py()
    address = h5py.h5o.get_info(group.id).addr
    if address in above:
        raise UnsupportedError("the group is a link to a group above it", array=path)
    yield path, group
    for name in group:
        inner = f"{path}/{name}".lstrip("/")
        if name in dropped:
            continue
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            yield inner, link
            continue
        found = group.get(name)
        if isinstance(found, h5py.Group):
            yield from _visited_in(found, inner, dropped, (*above, address))
        elif isinstance(found, h5py.Dataset) and not _is_bare_dimension(found):
            yield inner, found


def _is_bare_dimension(dataset: Any) -> bool:
    """Return True if a dataset only names a dimension of NetCDF4, without values."""
    if "_Netcdf4Dimid" not in dataset.attrs or dataset.is_virtual:
        return False
    if dataset.chunks is not None:
        return dataset.id.chunk_iter(lambda _: True) is None  # stops at the first chunk
    return not dataset.id.get_storage_size()


def _dimension_names(dataset: Any, path: str) -> list[str]:
    """Return the names of the dimension scales, of any group; scales are their own dimensions."""
    names = []
    for axis in range(len(dataset.shape)):
        scales = dataset.dims[axis]
        if len(scales) == 1:
            names.append(str(scales[0].name))
        elif _h5py().h5ds.is_scale(dataset.id):
            names.append(str(dataset.name))
        elif len(scales):
            raise UnsupportedError(
                f"its axis {axis} has {len(scales)} dimension scales, and only one is supported",
                array=path,
            )
        else:
            names.append(f"phony_dim_{axis}")
    return [name.rpartition("/")[2] for name in names]


def _attributes(found: Any, path: str) -> dict[str, Any]:
    """Return the attributes of a group or dataset as JSON."""
    attributes: dict[str, Any] = {}
    for given in found.attrs:
        name = _repaired(given)
        if given in _HIDDEN:
            continue
        try:
            value = _attribute(found.attrs[given])
        except Exception as error:  # h5py raises anything on types that it does not convert
            raise UnsupportedError(
                f"its attribute {name!r} cannot be read ({error}); remove it from the file",
                array=path,
            ) from error
        if not (isinstance(value, str) and value == "DIMENSION_SCALE"):
            attributes[name] = value
    return attributes


def _attribute(value: Any) -> Any:
    if isinstance(value, _h5py().Empty):
        return ""
    if isinstance(value, bytes):
        return string_of(value) or " "
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind != "S":
        value = value.reshape(-1)[0]
    return _json_of(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def _json_of(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json_of(item) for item in value]
    if isinstance(value, bytes):
        return string_of(value)
    if isinstance(value, bool | int | float):
        return value
    return _repaired(str(value))


def _repaired(string: str) -> str:
    """Decode bytes as Latin-1 that h5py could not decode as UTF-8."""
    return string_of(string.encode("utf-8", "surrogateescape"))


def _encoded_fill(value: Any, dataset: Any, path: str) -> Any:
    """Return ``_FillValue`` as xarray encodes it in Zarr."""
    try:
        kind = dataset.dtype.kind
        if kind == "f":
            return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
        if kind == "b":
            return bool(value)
        if kind in "iu" and int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UnsupportedError(
        f"its attribute _FillValue is {value!r}, which is not one value of {dataset.dtype}",
        array=path,
    )
