"""A repository of every data type and codec, written by zarr-python through the reference."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.codecs as zc
from helpers.builder import reference_repository
from helpers.grids.zarr_arrays import NUMBERS
from helpers.reference.repositories import ReferenceRepository
from zarr.codecs import numcodecs as zn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# Names of arrays, and the types that zarr-python is told.
OTHERS = {
    "datetime_ns": "<M8[ns]",
    "datetime_s": "<M8[s]",
    "datetime_days": "<M8[D]",
    "timedelta_10s": "<m8[10s]",
    "timedelta_us": "<m8[us]",
    "utf32": "<U4",
    "text": "string",
    "bytes_fixed": "S5",
    "bytes_variable": "variable_length_bytes",
    "raw": "V3",
    "struct": [("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<M8[s]")],
    "int32_big": ">i4",
    "float64_big": ">f8",
}
COMPRESSORS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [zc.ZstdCodec(level=1)],
    "zstd_checksum": [zc.ZstdCodec(level=-3, checksum=True)],
    "gzip": [zc.GzipCodec(level=1)],
    **{
        f"blosc_{name}_{shuffle}": [zc.BloscCodec(cname=name, shuffle=shuffle)]
        for name, shuffle in (
            ("blosclz", "shuffle"),
            ("lz4", "bitshuffle"),
            ("lz4hc", "noshuffle"),
            ("zlib", "shuffle"),
            ("zstd", "bitshuffle"),
        )
    },
    "crc32c": [zc.Crc32cCodec()],
    "zstd_crc32c": [zc.ZstdCodec(), zc.Crc32cCodec()],
    "n_zstd": [zn.Zstd(level=2)],
    "n_gzip": [zn.GZip(level=1)],
    "n_blosc": [zn.Blosc(cname="lz4")],
    "n_zlib": [zn.Zlib(level=1)],
    "n_lz4": [zn.LZ4()],
    "n_bz2": [zn.BZ2(level=1)],
    "n_lzma": [zn.LZMA(preset=0)],
    "n_shuffle": [zn.Shuffle(), zn.Zlib()],
    "n_crc32": [zn.CRC32()],
    "n_crc32c": [zn.CRC32C()],
    "n_adler32": [zn.Adler32(location="end")],
    "n_fletcher32": [zn.Fletcher32()],
    "n_jenkins": [zn.JenkinsLookup3(initval=3)],
}
FILTERS: dict[str, tuple[str, Any]] = {
    "transpose": ("float32", zc.TransposeCodec(order=(1, 0))),
    "n_delta": ("int32", zn.Delta(dtype="<i4")),
    "n_fixedscaleoffset": ("float64", zn.FixedScaleOffset(offset=0, scale=10, astype="<i2")),
    "n_astype": ("int32", zn.AsType(encode_dtype="<i8", decode_dtype="<i4")),
    "n_bitround": ("float32", zn.BitRound(keepbits=8)),
    "n_quantize": ("float64", zn.Quantize(digits=3)),
    "n_packbits": ("bool", zn.PackBits()),
    "scale_offset": ("int16", zc.ScaleOffset(offset=5, scale=3)),
    "scale_offset_float": ("float32", zc.ScaleOffset(offset=-2.5, scale=0.25)),
}
if importlib.util.find_spec("cast_value_rs") is not None:
    # zarr-python needs this wheel to cast.
    FILTERS["cast_value"] = ("float64", zc.CastValue(data_type="int16", rounding="nearest-even"))
SHAPE, CHUNKS = (5, 4), (2, 3)


def values_of(dtype: Any, seed: int) -> np.ndarray:
    """Return random elements of a type, NaN and the ends of its range among them."""
    rng = np.random.default_rng(seed)
    if dtype in ("string", "variable_length_bytes"):
        words = ["", "é漢a", "😀", "plain", "tab\t"] if dtype == "string" else [b"", b"\0a", b"xyz"]
        return np.array(words, dtype=object)[rng.integers(0, len(words), SHAPE)]
    numpy_dtype = np.dtype(dtype)
    if numpy_dtype.names is not None:
        out = np.zeros(SHAPE, numpy_dtype)
        for name in numpy_dtype.names:
            out[name] = values_of(numpy_dtype[name], seed)
        return out
    kind = numpy_dtype.kind
    if kind == "b":
        return rng.integers(0, 2, SHAPE).astype(bool)
    if kind in "iu":
        ends = np.iinfo(numpy_dtype)
        out = rng.integers(ends.min, ends.max, SHAPE, endpoint=True, dtype=numpy_dtype.name)
        out[0, :2] = ends.min, ends.max
        return out.astype(numpy_dtype)
    if kind in "fc":
        out = rng.normal(0, 100, SHAPE).astype(numpy_dtype)
        out[0] = np.nan, np.inf, -np.inf, -0.0
        return out
    if kind in "mM":
        step = {"ns": 10**9, "us": 10**6}.get(np.datetime_data(numpy_dtype)[0], 1)
        out = (rng.integers(-(10**5), 10**5, SHAPE) * step).astype(numpy_dtype)
        out[1, 1] = "NaT"
        return out
    letters = np.array(list("aé漢😀z" if kind == "U" else "abcde"))
    width = numpy_dtype.itemsize // (4 if kind == "U" else 1)
    words = ["".join(letters[rng.integers(0, 5, width)]) for _ in range(20)]
    if kind == "U":
        return np.array(words, numpy_dtype).reshape(SHAPE)
    return np.array([word.encode() for word in words], f"S{width}").view(numpy_dtype).reshape(SHAPE)


def _add(group: zarr.Group, name: str, dtype: Any, values: np.ndarray, **how: Any) -> None:
    """Write an array of which the last row is missing."""
    how = {"chunks": CHUNKS, "shape": SHAPE, **how}
    dtype = (
        dtype if isinstance(dtype, str) and not dtype.startswith(("<", ">")) else np.dtype(dtype)
    )
    array = group.create_array(name, dtype=dtype, dimension_names=("y", "x"), **how)
    # The last row lies in chunks of its own, which are never written.
    array[:4] = values[:4]


def build_zoo(directory: Path) -> ReferenceRepository:
    """Every data type, plain and in shards; every number through every compressor; filters."""
    repository = reference_repository(directory)
    session = repository.writable_session("main")
    fill_zoo(zarr.create_group(session.store))
    built = ReferenceRepository(path=directory, spec_version=2)
    built.snapshots["zoo"] = session.commit("every data type and every codec")
    return built


def fill_zoo(root: zarr.Group, numbers: Sequence[str] = NUMBERS) -> None:
    """Add the arrays to a group; only those of some numbers through every compressor."""
    types, shards, filters, grids = map(
        root.create_group, ("types", "shards", "filters", "rectilinear")
    )
    kinds = {name: name for name in NUMBERS} | OTHERS
    for seed, (name, dtype) in enumerate(kinds.items()):
        values = values_of(dtype, seed)
        _add(types, name, dtype, values)
        location = ("start", "end")[seed % 2]
        shard = {"shape": (4, 4), "index_location": location}
        _add(shards, name, dtype, values, chunks=(2, 2), shards=shard)
    for number, name in enumerate(NUMBERS):
        if name not in numbers:
            continue
        through = root.create_group(f"compressors/{name}")
        values = values_of(name, 50 + number)
        for codec, compressors in COMPRESSORS.items():
            _add(through, codec, name, values, compressors=compressors)
    small = (np.arange(20).reshape(SHAPE) % 13).astype("float64")
    for name, (dtype, codec) in FILTERS.items():
        _add(filters, name, dtype, small.astype(dtype), filters=[codec])
    for name, chunks in (("even", [[1, 4], [3, 1]]), ("single", [[2, 2, 1], [1, 1, 1, 1]])):
        _add(grids, name, "int32", values_of("int32", 3), chunks=chunks)
