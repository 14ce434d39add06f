"""Describes one dataset of an HDF5 file: its document, and references to its chunks.

References are right only if the codecs of Zarr decode the stored bytes to the values that h5py
reads. Other datasets are read with h5py:

===================================================  ============================================
dataset                                              result
===================================================  ============================================
layout compact, or elements of variable length       values are read, and become inline chunks
chunks that skipped filters; filters that have no    marked as ``unreferable``: refused, or copied
codec, or shuffle behind another filter; numbers     if the call copies
with fewer bits than bytes, strings padded with
blanks, structures with gaps or mixed byte orders
layout virtual, external storage, external links,    refused, since their bytes are in other files,
no dataspace, unsupported types                      or cannot be represented
===================================================  ============================================
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups.changing import encoded_chunks
from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray, Unreferable
from icechunk_format.zarr.codecs.build import LITTLE_ENDIAN, default_codecs
from icechunk_format.zarr.data_types import DataType, data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

Codec = dict[str, Any]

_DROP: Final = "leave it out with parser=HDFParser(drop_variables=[{name!r}]) of VirtualiZarr"
# Numbers of filters, see https://github.com/HDFGroup/hdf5_plugins.
_DEFLATE, _SHUFFLE, _FLETCHER32, _BZIP2, _BLOSC, _ZSTD = 1, 2, 3, 307, 32001, 32015
_NAMES: Final = {4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
_BLOSC_NAMES: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_VLEN_CODEC: Final[Codec] = {"name": "vlen-utf8", "configuration": {}}


def check_dataset(found: Any, path: str) -> None:
    """Raise UnsupportedError for a dataset or link whose values are not in the file."""
    h5py, elsewhere = importlib.import_module("h5py"), ""
    name = path.rpartition("/")[2]
    if isinstance(found, h5py.ExternalLink):
        elsewhere = f"it is an external link to {found.path!r} in the file {found.filename!r}"
    elif found.shape is None:
        raise UnsupportedError(f"it has no dataspace; {_DROP.format(name=name)}", array=path)
    elif found.is_virtual:
        files = sorted({source.file_name for source in found.virtual_sources()})
        elsewhere = f"its layout is virtual, with values in {_shown(files)}"
    elif found.external:
        files = sorted({source for source, *_ in found.external})
        elsewhere = f"its storage is external, with values in {_shown(files)}"
    if elsewhere:
        raise UnsupportedError(
            f"{elsewhere}: values outside of the file are neither referenced nor copied; "
            f"virtualize those files, or {_DROP.format(name=name)}",
            array=path,
        )


def described(
    dataset: Any, path: str, names: Sequence[str], attributes: Mapping[str, Any]
) -> ParsedArray:
    """Return a dataset that `check_dataset` accepts as an array with references.

    Raises
    ------
    UnsupportedError
        Its type has no data type of Zarr; the fact ``array`` is its path.
    """
    shape, values, why, codecs = dataset.shape, None, None, None
    dtype, data_type, is_object = _data_type(dataset, path)
    fill = None if is_object and dtype.names else _fill_value(dataset, path)
    is_compact = _layout(dataset) == importlib.import_module("h5py").h5d.COMPACT
    if is_object or is_compact:
        stored = dataset.chunks or shape
        chunks = tuple(max(1, min(pair)) for pair in zip(stored, shape, strict=True))
        if dataset.size and (is_compact or dataset.id.get_storage_size()):
            values = _objects(dataset) if is_object else np.asarray(dataset[()], dataset.dtype)
        codecs = [_VLEN_CODEC] if data_type.is_variable_length else [_bytes_codec(dtype)]
    else:
        chunks = _chunk_shape(dataset)
        filters, why = _filters(dataset)
        why = why or _problem_of_type(dataset)
        codecs = default_codecs(data_type) if why else [_bytes_codec(dtype), *filters]
    rows = np.zeros((0, 3 + len(shape)), np.int64)
    if values is None and why is None:
        rows = _stored_chunks(dataset, chunks)
        if rows[:, 2].any():
            why = f"{np.count_nonzero(rows[:, 2]):,} of {len(rows):,} chunks skipped filters"
            rows = rows[:0]
    document = build_array_metadata(
        shape=shape,
        data_type=data_type,
        chunk_shape=chunks,
        fill_value=fill,
        codecs=codecs,
        dimension_names=names,
        attributes=attributes,
        node_path=f"/{path}",
    )
    inline: Sequence[bytes | None] | None = None
    if values is not None:
        values = values.astype(document.data_type.numpy, copy=False)
        coords, inline = encoded_chunks(document, (0,) * document.ndim, values)
        rows = np.pad(coords, [(0, 0), (3, 0)])
        rows[:, 1] = list(map(len, inline))
    return ParsedArray(
        path=path,
        json_document=json.dumps(document.raw, sort_keys=True),
        coords=rows[:, 3:],
        offsets=rows[:, 0],
        lengths=rows[:, 1],
        inline=inline,
        unreferable=None if why is None else Unreferable(dataset=dataset.name, reason=why),
    )


def string_of(data: bytes) -> str:
    """Decode a string as UTF-8, or else as Latin-1."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _shown(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    return f"{files[0]!r}{more}" if files else "other files"


# -- the type -----------------------------------------------------------------------------------


def _data_type(dataset: Any, path: str) -> tuple[np.dtype[Any], DataType, bool]:
    """Return the type of values, its data type, and True if elements are not stored in chunks."""
    h5py, dtype = importlib.import_module("h5py"), dataset.dtype
    is_object = dtype.kind == "O" or dtype.hasobject
    try:
        if h5py.check_vlen_dtype(dtype) in (str, bytes):
            return dtype, data_type_from_numpy("string"), True
        if is_object and dtype.names:
            dtype = _objects(dataset).dtype
        if not dtype.hasobject:
            return dtype, data_type_from_numpy(dtype), is_object
    except InvalidInputError as error:
        raise UnsupportedError(error.message, array=path) from error
    kind = h5py.check_vlen_dtype(dtype) or h5py.check_ref_dtype(dtype)
    raise UnsupportedError(
        f"its elements are of the type {kind}; of the types of variable length, only strings are "
        "supported; "
        f"{_DROP.format(name=path.rpartition('/')[2])}",
        array=path,
    )


def _problem_of_type(dataset: Any) -> str | None:
    """Return how stored elements differ from those of the NumPy type, or None."""
    h5py, dtype, stored = importlib.import_module("h5py"), dataset.dtype, dataset.id.get_type()
    if dtype.kind == "S":
        if stored.get_strpad() == h5py.h5t.STR_SPACEPAD:
            return "its strings are padded with blanks"
        return None
    if dtype.names:
        packed = np.dtype([(name, dtype[name]) for name in dtype.names])
        if packed.itemsize != stored.get_size() or len(_byte_orders(dtype)) > 1:
            return "its structures have gaps or mixed byte orders"
    if stored.equal(h5py.h5t.py_create(dtype, logical=True)):
        return None
    base = stored.get_super() if stored.get_class() == h5py.h5t.ENUM else stored
    if base.get_class() == h5py.h5t.INTEGER and base.get_precision() != 8 * base.get_size():
        bits, size = base.get_precision(), 8 * base.get_size()
        return f"its integers have {bits} of {size} bits, from bit {base.get_offset()}"
    return f"its type is stored in another way than {dtype}"


def _byte_orders(dtype: np.dtype[Any]) -> set[str]:
    base = dtype.base
    if base.names is None:
        return {">" if base.str.startswith(">") else "<"} if base.itemsize > 1 else set()
    return set().union(*(_byte_orders(base[name]) for name in base.names))


def _bytes_codec(dtype: np.dtype[Any]) -> Codec:
    if dtype.names is None and (dtype.itemsize == 1 or dtype.kind in "SV"):
        return {"name": "bytes"}
    is_big = ">" in _byte_orders(dtype)
    return {"name": "bytes", "configuration": {"endian": "big"}} if is_big else LITTLE_ENDIAN


def _fill_value(dataset: Any, path: str) -> Any:
    plist = dataset.id.get_create_plist()
    h5py = importlib.import_module("h5py")
    if plist.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED:
        return None
    found = dataset.fillvalue
    if isinstance(found, bytes) and dataset.dtype.kind == "O":
        return string_of(found)
    return found.item() if isinstance(found, np.generic) else found


# -- chunks -------------------------------------------------------------------------------------


def _layout(dataset: Any) -> int:
    found: int = dataset.id.get_create_plist().get_layout()
    return found


def _chunk_shape(dataset: Any) -> tuple[int, ...]:
    """Return the shape of chunks; a chunk longer than its axis is cut, if its start has the data.

    This is possible for chunks without filters, along the first axis.
    """
    shape = dataset.shape
    if dataset.chunks is None:
        return tuple(max(1, size) for size in shape)
    cut = tuple(min(c, max(1, size)) for c, size in zip(dataset.chunks, shape, strict=True))
    is_plain = not dataset.id.get_create_plist().get_nfilters()
    return cut if is_plain and cut[1:] == dataset.chunks[1:] else tuple(dataset.chunks)


def _stored_chunks(dataset: Any, chunks: Sequence[int]) -> NDArray[np.int64]:
    """Return the offset, length, filter mask and index of each chunk, in row-major order."""
    ndim = len(dataset.shape)
    if dataset.chunks is None:
        # A dataset without storage has an offset if the file begins with a user block.
        start, length = dataset.id.get_offset(), dataset.id.get_storage_size()
        if start is None or not length:
            return np.zeros((0, 3 + ndim), np.int64)
        return np.array([[start, length, 0, *(0,) * ndim]], np.int64)
    found: list[Any] = []
    dataset.id.chunk_iter(found.append)
    rows = np.array(
        [(one.byte_offset, one.size, one.filter_mask, *one.chunk_offset) for one in found],
        np.int64,
    ).reshape(-1, 3 + ndim)
    rows[:, 3:] //= np.array(dataset.chunks)
    if tuple(chunks) != dataset.chunks:
        rows[:, 1] = math.prod(chunks) * dataset.dtype.itemsize
    return rows[np.lexsort(rows[:, :2:-1].T)]


def _filters(dataset: Any) -> tuple[list[Codec], str | None]:
    """Return the filters of a dataset as codecs, or why they have none."""
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    codecs: list[Codec] = []
    for number, (code, _, values, name) in enumerate(filters):
        if code == _SHUFFLE and number:
            return [], "its filter shuffle follows another filter"
        codec = _codec_of(code, tuple(values), dataset.dtype.itemsize)
        if codec is None:
            named = _NAMES.get(code) or string_of(name).partition(";")[0] or code
            return [], f"its filter {named} has no codec of Zarr"
        codecs.append(codec)
    return codecs, None


@lru_cache(maxsize=256)
def _codec_of(code: int, values: tuple[int, ...], itemsize: int) -> Codec | None:
    def codec(name: str, **configuration: Any) -> Codec:
        return {"name": f"numcodecs.{name}", "configuration": configuration}

    match code:
        case _ if code == _SHUFFLE:
            return codec("shuffle", elementsize=values[0] if values else itemsize)
        case _ if code == _DEFLATE:
            return codec("zlib", level=values[0] if values else 1)
        case _ if code == _FLETCHER32:
            return codec("fletcher32")
        case _ if code == _BZIP2:
            return codec("bz2", level=values[0] if values else 9)
        case _ if code == _ZSTD:
            return codec("zstd", level=values[0] if values else 0, checksum=False)
        case _ if code == _BLOSC and len(values) >= 7 and values[6] < len(_BLOSC_NAMES):
            blocksize, clevel, shuffle, cname = values[3:7]
            name = _BLOSC_NAMES[cname]
            return codec("blosc", blocksize=blocksize, clevel=clevel, shuffle=shuffle, cname=name)
    return None


# -- values -------------------------------------------------------------------------------------


def _objects(dataset: Any) -> NDArray[Any]:
    """Return strings, or structures whose strings have the length of the longest."""
    dtype = dataset.dtype
    values = np.asarray(dataset[()], dtype=dtype)
    if dtype.names is None:
        return _strings(values)
    columns = {
        name: _strings(values[name]) if dtype[name].hasobject else values[name]
        for name in dtype.names
    }
    fields: list[tuple[str, Any]] = []
    for name, column in columns.items():
        own: Any = column.dtype.newbyteorder("<")
        if column.dtype.hasobject:
            own = f"<U{max([1, *map(len, column.ravel())])}"
        fields.append((name, own))
    packed = np.zeros(values.shape, np.dtype(fields))
    for name, column in columns.items():
        packed[name] = column
    return packed


def _strings(values: NDArray[Any]) -> NDArray[Any]:
    found = np.empty(values.shape, dtype=object)
    strings = [string_of(v) if isinstance(v, bytes) else v for v in values.ravel().tolist()]
    if not all(isinstance(string, str) for string in strings):
        raise InvalidInputError("of the types of variable length, only strings are supported")
    found.reshape(-1)[:] = strings
    return found
