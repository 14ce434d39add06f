"""zarr-python reads what we store, and we read what zarr-python stores, value by value.

Arrays are drawn over data type, shape, chunk shape, shards, codecs and missing chunks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs as zc
from helpers.grids.zarr_arrays import (
    NUMBERS,
    STRUCT,
    assert_same,
    put,
    random_values,
    read_all,
    stored,
    words,
    write_all,
)
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from icechunk_format.errors import FormatError
from icechunk_format.zarr.zarr_json import parse_array_metadata

pytestmark = [
    pytest.mark.core,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
    # zarr-python compares random bits, signalling NaNs among them, with fill values.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]
OTHERS = (
    "<M8[ns]", "<M8[s]", "<m8[10s]", "<M8[D]", "<m8[us]", "<U4", "S5", "V3", ">i4", ">f8", ">U2",
)  # fmt: skip


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


ORDERS = [(a, b) for a in "<>" for b in "<>"]


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize(
    ("dtype", "codec"),
    [
        *[(f"{a}i4", zn.Delta(dtype=f"{a}i4", astype=f"{b}i4")) for a, b in ORDERS],
        *[(f"{a}i4", zn.Delta(dtype=f"{a}i4", astype=f"{b}i8")) for a, b in ORDERS],
        *[(f"{a}i4", zn.AsType(encode_dtype=f"{b}i8", decode_dtype=f"{a}i4")) for a, b in ORDERS],
        *[
            (f"{a}f8", zn.FixedScaleOffset(offset=1, scale=10, dtype=f"{a}f8", astype=f"{b}{n}"))
            for a, b in ORDERS
            for n in ("i2", "f8")
        ],
        *[(f"{a}f8", zn.Quantize(digits=3, dtype=f"{a}f8")) for a in "<>"],
    ],
    ids=str,
)
def test_filters_whose_parameters_name_a_byte_order(dtype: str, codec: Any, endian: Any) -> None:
    store = MemoryStore()
    # The document keeps no byte order of the elements, but zarr-python encodes right values only
    # from elements in the order that the filter names.
    array = zarr.create_array(
        store, name="x", shape=(11, 5), chunks=(3, 2), filters=[codec], dtype=np.dtype(dtype),
        serializer=zc.BytesCodec(endian=endian),
    )  # fmt: skip
    values = np.arange(1, 56).reshape(11, 5).astype(dtype[1:])
    array[:] = values.astype(dtype)
    metadata, ours = read_all(stored(store))
    assert_same(ours, values)
    again = MemoryStore()
    for key, data in write_all(metadata, ours).items():
        put(again, key, data)
    assert_same(read_all(stored(again))[1], values)
    # Of what quantize gave for ">f8", zarr-python swaps the bytes: its own chunks, too.
    if codec.codec_config["id"] != "quantize" or dtype == "<f8":
        assert_same(zarr.open_array(again, path="x", mode="r")[...], values)


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
    with raises(FormatError, object_key="x/c/0"):
        read_all(objects)
