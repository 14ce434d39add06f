"""zarr-python is the oracle: what it stores we read, and what we store it reads, value by value.

Arrays are drawn over data type, shape, chunk shape, shards, codecs and missing chunks. Documents,
fill values and casts are compared with what zarr-python writes and computes.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs as zc
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zarr.codecs import numcodecs as zn
from zarr.core.buffer import default_buffer_prototype
from zarr.core.dtype import get_data_type_from_json
from zarr.storage import MemoryStore

from icechunk_format.arrays.codecs import ChunkCodecs
from icechunk_format.arrays.crc32c import crc32c
from icechunk_format.arrays.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.arrays.fill_values import decode_fill_value, encode_fill_value
from icechunk_format.arrays.new_nodes import build_array_metadata, build_group_metadata
from icechunk_format.arrays.zarr_json import (
    ArrayMetadata,
    parse_array_metadata,
    parse_group_metadata,
)
from icechunk_format.errors import FormatError, InvalidInputError

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
    # zarr-python compares random bits, signalling NaNs among them, with fill values.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
OTHERS = (
    "<M8[ns]", "<M8[s]", "<m8[10s]", "<M8[D]", "<m8[us]", "<U4", "S5", "V3", ">i4", ">f8", ">U2",
)  # fmt: skip
STRUCT = [("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<M8[s]")]


def stored(store: MemoryStore) -> dict[str, bytes]:
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def put(store: MemoryStore, key: str, data: bytes) -> None:
    store._store_dict[key] = default_buffer_prototype().buffer.from_bytes(data)


def read_all(objects: dict[str, bytes], name: str = "x") -> tuple[ArrayMetadata, np.ndarray]:
    """Read a whole array from its objects with our code alone."""
    metadata = parse_array_metadata(objects[f"{name}/zarr.json"], node_path=f"/{name}")
    metadata = pickle.loads(pickle.dumps(metadata))
    codecs = pickle.loads(pickle.dumps(metadata.chunk_codecs()))
    out = metadata.fill_array(metadata.shape)
    for coords in np.ndindex(*metadata.grid.num_chunks):
        key = "/".join([name, "c", *map(str, coords)])
        if key not in objects:
            continue
        chunk = codecs.decode(objects[key], metadata.grid.full_chunk_shape(coords), what=key)
        assert chunk.flags.c_contiguous
        assert chunk.flags.aligned
        assert chunk.dtype == metadata.data_type.numpy
        lo, hi = metadata.grid.box_of(coords)
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        out[box] = chunk[tuple(slice(0, b - a) for a, b in zip(lo, hi, strict=True))]
    return metadata, out


def write_all(metadata: ArrayMetadata, values: np.ndarray, name: str = "x") -> dict[str, bytes]:
    """Store a whole array with our code alone, leaving out chunks of fill values."""
    objects = {f"{name}/zarr.json": metadata.to_bytes()}
    codecs = metadata.chunk_codecs()
    for coords in np.ndindex(*metadata.grid.num_chunks):
        chunk = metadata.fill_array(metadata.grid.full_chunk_shape(coords))
        lo, hi = metadata.grid.box_of(coords)
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        chunk[tuple(slice(0, b - a) for a, b in zip(lo, hi, strict=True))] = values[box]
        if not codecs.is_all_fill(chunk):
            objects["/".join([name, "c", *map(str, coords)])] = codecs.encode(chunk)
    return objects


def assert_same(ours: np.ndarray, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    if ours.dtype.kind == "O":
        assert ours.tolist() == theirs.tolist()
        return
    assert ours.dtype == theirs.dtype.newbyteorder("=")
    # Bits, so that NaN payloads and signs of zero count.
    assert ours.tobytes() == np.ascontiguousarray(theirs.astype(ours.dtype)).tobytes()


def random_values(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    if dtype.names is not None:
        out = np.zeros(shape, dtype)
        for name in dtype.names:
            out[name] = random_values(dtype[name], shape, seed)
        return out
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        letters = np.array(list("aé漢😀z"))
        width = dtype.itemsize // 4
        words = ["".join(letters[rng.integers(0, 5, width)]) for _ in range(size)]
        return np.array(words, dtype).reshape(shape)
    raw = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape)
    return np.array(raw)


def words(size: int, kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = np.empty(size, dtype=object)
    for i, n in enumerate(rng.integers(0, 6, size)):
        out[i] = "é漢a"[: n % 4] * (n % 3) if kind == "string" else rng.bytes(int(n))
    return out


COMPRESSORS: dict[str, Any] = {
    "none": None,
    "zstd": zc.ZstdCodec(level=1),
    "zstd-checksum": zc.ZstdCodec(level=-3, checksum=True),
    "gzip": zc.GzipCodec(level=1),
    "blosc": zc.BloscCodec(),
    "blosc-lz4-bit": zc.BloscCodec(cname="lz4", shuffle="bitshuffle", clevel=1),
    "blosc-zlib-no": zc.BloscCodec(cname="zlib", shuffle="noshuffle", typesize=8, blocksize=64),
    "crc32c": zc.Crc32cCodec(),
    "n-zstd": zn.Zstd(level=2),
    "n-gzip": zn.GZip(level=1),
    "n-blosc": zn.Blosc(cname="lz4"),
    "n-zlib": zn.Zlib(level=1),
    "n-lz4": zn.LZ4(),
    "n-bz2": zn.BZ2(level=1),
    "n-lzma": zn.LZMA(preset=0),
    "n-crc32": zn.CRC32(),
    "n-crc32c": zn.CRC32C(),
    "n-adler32": zn.Adler32(location="end"),
    "n-fletcher32": zn.Fletcher32(),
    "n-jenkins": zn.JenkinsLookup3(initval=3),
}


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 7)) for _ in range(ndim))
    inner = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    layout: dict[str, Any] = {"shape": shape, "chunks": inner}
    if ndim and draw(st.booleans()):
        layout["shards"] = tuple(n * draw(st.integers(1, 3)) for n in inner)
    names = draw(st.lists(st.sampled_from(sorted(COMPRESSORS)), max_size=2))
    layout["compressors"] = [COMPRESSORS[n] for n in names if COMPRESSORS[n] is not None] or None
    if ndim and draw(st.booleans()):
        layout["filters"] = [zc.TransposeCodec(order=draw(st.permutations(range(ndim))))]
    return layout


def fill_some(array: Any, values: np.ndarray, seed: int) -> None:
    """Write values, but leave a block out so that chunks and inner chunks are missing."""
    if array.ndim == 0:
        if values.dtype.kind != "O":
            array[...] = values
        return
    keep = np.random.default_rng(seed).integers(0, 3)
    if keep == 0:
        array[...] = values
    elif keep == 1:
        half = tuple(slice(0, n // 2) for n in array.shape)
        array[half] = values[half]


@given(dtype=st.sampled_from([*NUMBERS, *OTHERS]), layout=layouts(), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_zarr_stores_is_read_and_stored_again_for_zarr(
    dtype: str, layout: dict[str, Any], seed: int
) -> None:
    numpy_dtype = np.dtype(dtype)
    values = random_values(numpy_dtype, layout["shape"], seed)
    store = MemoryStore()
    fill = random_values(numpy_dtype, (1,), seed + 1)[0] if seed % 2 else None
    array = zarr.create_array(store, name="x", dtype=numpy_dtype, fill_value=fill, **layout)
    fill_some(array, values, seed)
    # Opened again, because the document does not keep the payload of a NaN fill value.
    array = zarr.open_array(store, path="x", mode="r")
    metadata, ours = read_all(stored(store))
    if numpy_dtype.kind == "U":
        assert ours.tolist() == np.asarray(array[...]).tolist()
    else:
        assert_same(ours, array[...])
    # And back: same document, chunks by our encoder, values by their decoder.
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])


@given(kind=st.sampled_from(["string", "variable_length_bytes"]), layout=layouts())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_elements_of_variable_length(kind: str, layout: dict[str, Any]) -> None:
    shape = layout["shape"]
    values = words(math.prod(shape), kind, 3).reshape(shape)
    store = MemoryStore()
    array = zarr.create_array(store, name="x", dtype=kind, **layout)
    fill_some(array, values, len(shape))
    metadata, ours = read_all(stored(store))
    assert_same(ours, array[...])
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])


def test_structured_elements() -> None:
    store = MemoryStore()
    values = random_values(np.dtype(STRUCT), (5, 3), 0)
    fill = (7, 2.5, b"ab", 11)
    array = zarr.create_array(
        store, name="x", shape=(9, 3), chunks=(2, 2), dtype=np.dtype(STRUCT), fill_value=fill
    )
    array[:5] = values
    metadata, ours = read_all(stored(store))
    assert_same(ours, array[...])
    assert metadata.fill_value.item() == np.array([fill], np.dtype(STRUCT))[0].item()
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])


@pytest.mark.parametrize("location", ["start", "end"])
def test_shards_of_shards(location: str) -> None:
    store = MemoryStore()
    nested = zc.ShardingCodec(
        chunk_shape=(4, 4),
        codecs=[
            zc.ShardingCodec(
                chunk_shape=(2, 2),
                codecs=[zc.BytesCodec(endian="big"), zc.ZstdCodec()],
                index_location=location,
            )
        ],
        index_location=location,
    )
    array = zarr.create_array(
        store, name="x", shape=(17, 9), chunks=(8, 8), dtype="f4", fill_value=np.nan,
        serializer=nested, compressors=None, filters=None,
    )  # fmt: skip
    array[3:9, :5] = np.arange(30).reshape(6, 5)
    metadata, ours = read_all(stored(store))
    assert_same(ours, array[...])
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])


FILTERS: dict[str, tuple[str, Any]] = {
    "delta": ("int32", zn.Delta(dtype="<i4")),
    "delta-astype": ("int32", zn.Delta(dtype="<i4", astype="<i8")),
    "fixedscaleoffset": ("float64", zn.FixedScaleOffset(offset=0, scale=10, astype="<i2")),
    "astype": ("int32", zn.AsType(encode_dtype="<i8", decode_dtype="<i4")),
    "bitround": ("float32", zn.BitRound(keepbits=8)),
    "bitround-double": ("float64", zn.BitRound(keepbits=20)),
    "quantize": ("float64", zn.Quantize(digits=3)),
    "packbits": ("bool", zn.PackBits()),
    "scale_offset": ("int16", zc.ScaleOffset(offset=5, scale=3)),
    "scale_offset-float": ("float32", zc.ScaleOffset(offset=-2.5, scale=0.25)),
    "scale_offset-unsigned": ("uint64", zc.ScaleOffset(offset=0, scale=7)),
}


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("shards", [None, (6, 4)])
def test_filters(name: str, shards: tuple[int, int] | None) -> None:
    dtype, codec = FILTERS[name]
    store = MemoryStore()
    array = zarr.create_array(
        store, name="x", shape=(11, 5), chunks=(3, 2), shards=shards, dtype=dtype, filters=[codec]
    )
    values = (np.arange(55).reshape(11, 5) % 13).astype(dtype)
    array[:8] = values[:8]
    metadata, ours = read_all(stored(store))
    assert_same(ours, array[...])
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])


def test_a_shuffle_filter_before_a_compressor() -> None:
    store = MemoryStore()
    array = zarr.create_array(
        store, name="x", shape=(100,), chunks=(40,), dtype="f8",
        compressors=[zn.Shuffle(), zn.Zlib(level=4), zn.Fletcher32()],
    )  # fmt: skip
    array[:] = np.linspace(0, 1, 100)
    _, ours = read_all(stored(store))
    assert_same(ours, array[...])


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((10,), [[3, 3, 4]]),
        ((10, 7), [[1, 2, 3, 4], [5, 2]]),
        ((12, 6), [[4, 4, 4], [1, 1, 1, 1, 1, 1]]),
        ((5,), [[5]]),
    ],
)
def test_rectilinear_grids(shape: tuple[int, ...], chunks: list[list[int]]) -> None:
    with zarr.config.set({"array.rectilinear_chunks": True}):
        store = MemoryStore()
        array = zarr.create_array(store, name="x", shape=shape, chunks=chunks, dtype="i4")
        array[...] = np.arange(math.prod(shape)).reshape(shape)
        metadata, ours = read_all(stored(store))
        assert_same(ours, array[...])
        theirs = array._chunk_grid
        assert metadata.grid.num_chunks == theirs.grid_shape
        for coords in np.ndindex(*metadata.grid.num_chunks):
            spec = theirs[coords]
            lo, hi = metadata.grid.box_of(coords)
            assert tuple(slice(a, b, 1) for a, b in zip(lo, hi, strict=True)) == spec.slices
            assert metadata.grid.full_chunk_shape(coords) == spec.codec_shape
        again = MemoryStore()
        for key, data in write_all(metadata, ours).items():
            put(again, key, data)
        assert_same(ours, zarr.open_array(again, path="x", mode="r")[...])
        # A new shape gives the grid that zarr-python makes of it.
        for resized in (tuple(n + 5 for n in shape), tuple(max(n - 2, 0) for n in shape)):
            array.resize(resized)
            objects = stored(store)
            document = parse_array_metadata(objects["x/zarr.json"], node_path="/x")
            metadata = metadata.with_shape(resized)
            assert metadata.grid == document.grid
            assert document.grid.num_chunks == array._chunk_grid.grid_shape
            assert_same(read_all(objects)[1], array[...])


def documents() -> list[dict[str, Any]]:
    f8 = {"dtype": "f8", "shape": (4, 6), "chunks": (2, 3)}
    return [
        f8,
        f8 | {"fill_value": np.nan, "dimension_names": ("y", None)},
        f8 | {"fill_value": -np.inf, "attributes": {"units": "K", "é": [1, None, {"a": 2.5}]}},
        f8 | {"shards": (4, 6)},
        {"dtype": "i2", "shape": (), "chunks": (), "fill_value": -3},
        {"dtype": "bool", "shape": (3,), "chunks": (2,), "fill_value": True},
        {"dtype": "complex64", "shape": (3,), "chunks": (2,), "fill_value": 1 + 2j},
        {"dtype": "<M8[ns]", "shape": (3,), "chunks": (2,)},
        {"dtype": "<m8[7D]", "shape": (3,), "chunks": (2,), "fill_value": np.timedelta64(3, "7D")},
        {"dtype": "<U3", "shape": (3,), "chunks": (2,), "fill_value": "né"},
        {"dtype": "S3", "shape": (3,), "chunks": (2,), "fill_value": b"ab"},
        {"dtype": "V3", "shape": (3,), "chunks": (2,), "fill_value": np.void(b"abc")},
        {"dtype": "string", "shape": (3,), "chunks": (2,), "fill_value": "?"},
        {"dtype": "variable_length_bytes", "shape": (3,), "chunks": (2,), "fill_value": b"\0"},
        {"dtype": np.dtype(STRUCT), "shape": (3,), "chunks": (2,)},
    ]


@pytest.mark.parametrize("arguments", documents(), ids=lambda a: str(a["dtype"]))
def test_new_arrays_are_described_as_zarr_describes_them(arguments: dict[str, Any]) -> None:
    store = MemoryStore()
    zarr.create_array(store, name="x", **arguments)
    theirs = stored(store)["x/zarr.json"]
    parsed = parse_array_metadata(theirs, node_path="/x")
    built = build_array_metadata(
        shape=arguments["shape"],
        data_type=parsed.data_type,
        chunk_shape=arguments["chunks"],
        shard_shape=arguments.get("shards"),
        fill_value=parsed.fill_value,
        dimension_names=arguments.get("dimension_names"),
        attributes=arguments.get("attributes"),
        node_path="/x",
    )
    assert built.to_bytes() == theirs
    dtype = arguments["dtype"]
    assert data_type_from_numpy(dtype) == parsed.data_type


def test_new_groups_are_described_as_zarr_describes_them() -> None:
    store = MemoryStore()
    zarr.create_group(store, attributes={"a": float("nan"), "b": "ü"})
    theirs = stored(store)["zarr.json"]
    given_attributes = {"a": float("nan"), "b": "ü"}
    assert build_group_metadata(attributes=given_attributes).to_bytes() == theirs
    assert parse_group_metadata(theirs, node_path="/").attributes["b"] == "ü"


def test_consolidated_groups_are_read() -> None:
    store = MemoryStore()
    group = zarr.create_group(store)
    group.create_array("x", shape=(2,), dtype="i4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store)
    document = stored(store)["zarr.json"]
    assert b"consolidated_metadata" in document
    assert parse_group_metadata(document, node_path="/").attributes == {}


TYPE_JSON: list[Any] = [
    *NUMBERS,
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}},
    {"name": "numpy.datetime64", "configuration": {"unit": "μs", "scale_factor": 1}},
    {"name": "numpy.timedelta64", "configuration": {"unit": "generic", "scale_factor": 1}},
    {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}},
    {"name": "null_terminated_bytes", "configuration": {"length_bytes": 5}},
    {"name": "raw_bytes", "configuration": {"length_bytes": 5}},
    "string",
    "variable_length_bytes",
    "bytes",
    {
        "name": "struct",
        "configuration": {
            "fields": [
                {"name": "a", "data_type": "int32"},
                {
                    "name": "b",
                    "data_type": {
                        "name": "struct",
                        "configuration": {"fields": [{"name": "c", "data_type": "float16"}]},
                    },
                },
            ]
        },
    },
    {"name": "structured", "configuration": {"fields": [["a", "int32"], ["b", "float64"]]}},
]


@pytest.mark.parametrize("value", TYPE_JSON, ids=str)
def test_data_types_are_those_of_zarr(value: Any) -> None:
    theirs = get_data_type_from_json(value, zarr_format=3)
    ours = parse_data_type(value)
    native = theirs.to_native_dtype()
    if native.kind not in "OT":
        assert ours.numpy == native
    assert get_data_type_from_json(ours.to_json(), zarr_format=3) == theirs


FILL_JSON: list[tuple[str, Any]] = [
    *itertools.product(
        ("float16", "float32", "float64"),
        (0, 1, -2.5, "NaN", "Infinity", "-Infinity", "1.5", 65504),
    ),
    ("float16", "0x7e00"),
    ("float16", "0x3c00"),
    ("float32", "0x7fc00000"),
    ("float32", "0x3f800000"),
    ("float32", 9.969209968386869e36),
    ("float64", "0x7ff8000000000000"),
    ("float64", "0x3f800000"),
    ("int8", -128),
    ("int64", 2**63 - 1),
    ("uint64", 2**64 - 1),
    ("int32", 4.0),
    ("int32", "-7"),
    ("bool", True),
    ("bool", False),
    ("complex64", [1, "NaN"]),
    ("complex128", ["-Infinity", "0x3ff0000000000000"]),
    ("string", "x"),
    ("string", 3),
    ("variable_length_bytes", "AQI="),
]


@pytest.mark.parametrize(("name", "value"), FILL_JSON)
def test_fill_values_are_those_of_zarr(name: str, value: Any) -> None:
    theirs_type = get_data_type_from_json(name, zarr_format=3)
    theirs = theirs_type.from_json_scalar(value, zarr_format=3)
    data_type = parse_data_type(name)
    ours = decode_fill_value(value, data_type)
    np.testing.assert_equal(ours, theirs)
    encoded = encode_fill_value(ours, data_type)
    encoded_again = json.loads(json.dumps(encoded))
    np.testing.assert_equal(theirs_type.from_json_scalar(encoded_again, zarr_format=3), theirs)
    if not (isinstance(encoded, str) and encoded.startswith("0x")):
        expected = theirs_type.to_json_scalar(theirs, zarr_format=3)
        assert encoded_again == json.loads(json.dumps(expected))


@given(data=st.data(), name=st.sampled_from(NUMBERS))
@settings(max_examples=150, deadline=None)
def test_every_fill_value_survives_zarr(data: st.DataObject, name: str) -> None:
    data_type = parse_data_type(name)
    value = data.draw(hnp.from_dtype(data_type.numpy))
    encoded = json.loads(json.dumps(encode_fill_value(value, data_type)))
    assert decode_fill_value(encoded, data_type).tobytes() == value.tobytes()
    theirs = get_data_type_from_json(name, zarr_format=3).from_json_scalar(encoded, zarr_format=3)
    np.testing.assert_equal(np.asarray(theirs), np.asarray(value))


@given(st.binary(max_size=5000))
@settings(max_examples=100, deadline=None)
def test_checksums_are_those_of_the_reference_library(data: bytes) -> None:
    from icechunk_format.arrays.crc32c import crc32c_numpy

    google_crc32c = pytest.importorskip("google_crc32c")
    assert crc32c_numpy(data) == crc32c(data) == google_crc32c.value(data)


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
ROUNDINGS = (
    "nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away",
)  # fmt: skip


@given(
    source=st.sampled_from([*INTEGERS, *FLOATS]),
    target=st.sampled_from([*INTEGERS, *FLOATS]),
    rounding=st.sampled_from(ROUNDINGS),
    out_of_range=st.sampled_from([None, "clamp", "wrap"]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_casts_are_those_of_the_reference_library(
    source: str, target: str, rounding: str, out_of_range: str | None, data: st.DataObject
) -> None:
    cast_value_rs = pytest.importorskip("cast_value_rs")
    assume(out_of_range != "wrap" or target in INTEGERS)
    values = data.draw(hnp.arrays(source, st.integers(1, 4)))
    configuration = {"data_type": target, "rounding": rounding}
    if out_of_range is not None:
        configuration["out_of_range"] = out_of_range
    chain = [
        {"name": "cast_value", "configuration": configuration},
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    codecs = ChunkCodecs(chain, parse_data_type(source), np.dtype(source).type(0), ndim=1)
    try:
        expected = cast_value_rs.cast_array(
            values,
            target_dtype=np.dtype(target),
            rounding_mode=rounding,
            out_of_range_mode=out_of_range,
        )
    except ValueError:
        with pytest.raises(InvalidInputError, match="cast_value"):
            codecs.encode(values)
        return
    ours = np.frombuffer(codecs.encode(values), dtype=target)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))


def test_grib_messages_are_read_as_the_codec_of_gribberish_reads_them() -> None:
    pytest.importorskip("gribberish")
    iris_sample_data = pytest.importorskip("iris_sample_data")
    import gribberish.zarr  # noqa: F401  (registers the codec with zarr-python)

    file = Path(iris_sample_data.path) / "polar_stereo.grib2"
    message = file.read_bytes()
    for variable, dtype in (("TMP", "float64"), ("TMP", "float32"), ("latitude", "float64")):
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [200, 247],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [200, 247]}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": "NaN",
            "codecs": [{"name": "gribberish", "configuration": {"var": variable}}],
        }
        objects = {"x/zarr.json": json.dumps(document).encode(), "x/c/0/0": message}
        store = MemoryStore()
        for key, data in objects.items():
            put(store, key, data)
        assert_same(read_all(objects)[1], zarr.open_array(store, path="x", mode="r")[...])


def test_damaged_chunks_of_zarr_are_refused() -> None:
    store = MemoryStore()
    array = zarr.create_array(store, name="x", shape=(50,), chunks=(50,), dtype="f8")
    array[:] = np.arange(50)
    objects = stored(store)
    objects["x/c/0"] = objects["x/c/0"][:-7]
    with pytest.raises(FormatError, match="x/c/0"):
        read_all(objects)
