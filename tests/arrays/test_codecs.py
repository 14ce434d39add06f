"""Chains of codecs: known bytes both ways, limits on what hostile bytes may cost, and refusals."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import pickle
import sys
import tracemalloc
import types
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc, registry, zstd
from numcodecs.abc import Codec

from icechunk_format.arrays import registered_codecs
from icechunk_format.arrays.codec_defaults import default_codecs, sharding_json
from icechunk_format.arrays.codecs import ChunkCodecs
from icechunk_format.arrays.data_types import DataType, parse_data_type
from icechunk_format.arrays.fill_values import default_fill_value
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
U3 = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}}
TIME = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
PAIR = {
    "name": "struct",
    "configuration": {
        "fields": [
            {"name": "a", "data_type": "bool"},
            {"name": "b", "data_type": U3},
            {
                "name": "c",
                "data_type": {
                    "name": "struct",
                    "configuration": {"fields": [{"name": "d", "data_type": "bool"}]},
                },
            },
        ]
    },
}


def named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def chain(codecs: list[Any], data_type: Any = "int32", ndim: int = 1, **more: Any) -> ChunkCodecs:
    of = data_type if isinstance(data_type, DataType) else parse_data_type(data_type)
    return ChunkCodecs(codecs, of, default_fill_value(of), ndim=ndim, node_path="/a", **more)


@pytest.mark.parametrize(
    ("data_type", "codecs", "values", "data"),
    [
        ("int16", [LITTLE], [1, -2], b"\1\0\xfe\xff"),
        ("int16", [BIG], [1, -2], b"\0\1\xff\xfe"),
        ("int16", [{"name": "endian", "configuration": {"endian": "big"}}], [1], b"\0\1"),
        ("uint8", ["bytes"], [1, 255], b"\1\xff"),
        ("bool", ["bytes"], [True, False], b"\1\0"),
        ("complex64", [BIG], [1j], b"\0\0\0\0\x3f\x80\0\0"),
        ("r16", ["bytes"], [b"\1\2"], b"\1\2"),
        (U3, [BIG], ["é"], b"\0\0\0\xe9\0\0\0\0\0\0\0\0"),
        ("string", ["vlen-utf8"], ["é", ""], b"\2\0\0\0\2\0\0\0\xc3\xa9\0\0\0\0"),
        ("bytes", ["vlen-bytes"], [b"\1"], b"\1\0\0\0\1\0\0\0\1"),
        ("int8", ["bytes", "crc32c"], [1], b"\1" + (0xA016D052).to_bytes(4, "little")),
        ("int8", ["bytes", named("numcodecs.crc32")], [1], b"\x1b\xdf\x05\xa5\1"),
        (
            "int8",
            ["bytes", named("numcodecs.crc32c", location="start")],
            [1],
            b"\x52\xd0\x16\xa0\1",
        ),
        ("int8", ["bytes", named("numcodecs.adler32")], [1], b"\x02\x00\x02\x00\1"),
        ("int16", [LITTLE, named("numcodecs.shuffle", elementsize=2)], [1, 2], b"\1\2\0\0"),
        ("int16", [LITTLE, "numcodecs.shuffle"], [1, 2], b"\1\2\0\0"),
        ("bool", ["numcodecs.packbits", "bytes"], [1, 0, 1], b"\5\xa0"),
        ("int8", [named("numcodecs.delta", dtype="i1"), "bytes"], [1, 3, 2], b"\1\2\xff"),
        ("int16", [named("scale_offset", offset=1, scale=2), LITTLE], [1, 4], b"\0\0\6\0"),
        ("int16", [named("scale_offset", offset="1", scale=-1), LITTLE], [3], b"\xfe\xff"),
        ("float32", [named("scale_offset", scale=2.0), LITTLE], [0.5], b"\0\0\x80\x3f"),
        ("float64", [named("cast_value", data_type="uint8"), "bytes"], [3.0], b"\3"),
    ],
)
def test_known_bytes(data_type: Any, codecs: list[Any], values: list[Any], data: bytes) -> None:
    made = chain(codecs, data_type)
    array = np.array(values, dtype=made.data_type.numpy)
    assert made.encode(array) == data
    for given_data in (data, memoryview(data)):
        decoded = made.decode(given_data, (len(values),))
        assert decoded.dtype == made.data_type.numpy
        assert decoded.tolist() == array.tolist()


def test_transposed_elements() -> None:
    data = bytes([0, 3, 1, 4, 2, 5])
    for order in ([1, 0], "F"):
        made = chain([named("transpose", order=order), "bytes"], "int8", ndim=2)
        decoded = made.decode(data, (2, 3))
        assert decoded.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert decoded.flags.c_contiguous
        assert made.encode(decoded) == data
    plain = chain([named("transpose", order="C"), "bytes"], "int8", ndim=2)
    assert plain.encode(decoded) == bytes(range(6))
    scalar = chain([named("transpose", order=[]), "bytes"], "int8", ndim=0)
    assert scalar.decode(b"\7", ()).item() == 7


COMPRESSORS = [
    "zstd", "gzip", "blosc", "numcodecs.zstd", "numcodecs.gzip", "numcodecs.blosc",
    "numcodecs.zlib", "numcodecs.bz2", "numcodecs.lzma", "numcodecs.lz4",
    named("blosc", cname="lz4", shuffle="bitshuffle", typesize=300, clevel=1, blocksize=0),
    named("zstd", level=-5, checksum=True),
    named("numcodecs.lzma", format=3, filters=[{"id": lzma.FILTER_LZMA2, "preset": 1}]),
    named("numcodecs.lzma", format=2, preset=1),
    named("numcodecs.lzma", format=3, filters=[{"id": lzma.FILTER_LZMA1, "preset": 1}]),
]  # fmt: skip


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=60))
@settings(max_examples=15, deadline=None)
def test_compressors_there_and_back(compressor: Any, values: list[int]) -> None:
    made = chain([LITTLE, compressor])
    array = np.array(values, dtype=np.int32)
    data = made.encode(array)
    assert made.decode(data, array.shape).tolist() == values
    bound = made.encoded_bound(array.shape)
    assert bound is not None
    assert len(data) <= bound
    for shape in ((len(values) + 1,), (max(len(values) - 1, 0),)):
        if shape != array.shape:
            with pytest.raises(FormatError):
                made.decode(data, shape)


@given(st.lists(st.text(max_size=5), max_size=20))
@settings(max_examples=50, deadline=None)
def test_texts_there_and_back(values: list[str]) -> None:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    for codecs in (["vlen-utf8"], ["vlen-utf8", "zstd"], ["vlen-utf8", "gzip", "crc32c"]):
        made = chain(codecs, "string")
        try:
            data = made.encode(array)
        except InvalidInputError:
            # Half of a surrogate pair is a Python string, and no text.
            assert any(0xD800 <= ord(letter) <= 0xDFFF for word in values for letter in word)
            return
        assert made.decode(data, array.shape).tolist() == values
        assert made.encoded_bound(array.shape) is None


def test_default_codecs_store_every_kind_of_element() -> None:
    for data_type, values in (
        ("float64", [1.5, math.nan]),
        ("int8", [1, 2]),
        ("string", ["a", "b"]),
        ("bytes", [b"a", b""]),
        (U3, ["abc", ""]),
        (TIME, ["2001-01-01", "NaT"]),
        (PAIR, [(True, "é", (False,)), (False, "", (True,))]),
    ):
        of = parse_data_type(data_type)
        made = chain(default_codecs(of), of)
        array = np.array(values, dtype=of.numpy)
        assert made.decode(made.encode(array), (2,)).tobytes() == array.tobytes() or of.kind in (
            "string",
            "bytes",
        )
        assert "zstd" in repr(made)


def test_arrays_in_other_forms_are_stored_the_same() -> None:
    made = chain([LITTLE], "int32", ndim=2)
    array = np.arange(6, dtype="i4").reshape(2, 3)
    assert made.encode(array.astype(">i4")) == array.tobytes()
    assert made.encode(np.asfortranarray(array)) == array.tobytes()
    assert made.encode(np.repeat(array, 2, axis=1)[:, ::2]) == array.tobytes()
    text = chain([LITTLE], U3)
    assert text.encode(np.array(["a"])) == text.encode(np.array(["a"], "U3"))
    assert text.encode(np.array(["a"], np.dtypes.StringDType())) == text.encode(np.array(["a"]))
    words = chain(["vlen-utf8"], "string")
    assert words.encode(np.array(["a", "bc"])) == words.encode(np.array(["a", "bc"], object))
    raw = chain(["bytes"], {"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}})
    assert raw.encode(np.array([b"a"])) == b"a\0\0"


@pytest.mark.parametrize(
    ("data_type", "codecs", "values"),
    [
        ("int32", [LITTLE], np.zeros(3)),
        ("int32", [LITTLE], np.zeros((3, 3), "i4")),
        (U3, [LITTLE], np.array(["toolong"])),
        (U3, [LITTLE], np.array([b"a"])),
        ("int32", [LITTLE], np.array(["a"], np.dtypes.StringDType())),
        ("string", ["vlen-utf8"], np.array([b"a"], object)),
        ("string", ["vlen-utf8"], np.array([None], object)),
        ("string", ["vlen-utf8"], np.array([b"a"])),
        ("bytes", ["vlen-bytes"], np.array(["a"], object)),
        ("int8", [named("scale_offset", scale=100), "bytes"], np.array([2], "i1")),
        ("float32", [named("cast_value", data_type="int8"), "bytes"], np.array([np.nan], "f4")),
    ],
)
def test_values_that_cannot_be_stored(
    data_type: Any, codecs: list[Any], values: np.ndarray
) -> None:
    with pytest.raises(InvalidInputError):
        chain(codecs, data_type).encode(values)


def test_decoded_arrays_are_aligned_wherever_they_came_from() -> None:
    made = chain([LITTLE], "float64")
    data = memoryview(b"\0" + np.arange(3.0).tobytes())[1:]
    decoded = made.decode(data, (3,))
    assert decoded.flags.aligned
    assert decoded.tolist() == [0, 1, 2]


def test_chains_are_pickled_and_shared_between_threads() -> None:
    made = pickle.loads(pickle.dumps(chain([LITTLE, named("blosc", cname="zstd", clevel=1)])))
    arrays = [np.arange(i, i + 500, dtype="i4") for i in range(40)]
    with ThreadPoolExecutor(8) as threads:
        stored = list(threads.map(made.encode, arrays))
        decoded = list(threads.map(lambda data: made.decode(data, (500,)), stored))
    for array, back in zip(arrays, decoded, strict=True):
        np.testing.assert_array_equal(array, back)
    # Many shapes through one chain: what is kept per shape stays bounded.
    plain = chain([LITTLE])
    for n in range(200):
        assert plain.decode(bytes(4 * n), [n]).shape == (n,)


@pytest.mark.parametrize(
    ("codecs", "problem"),
    [
        ([], "1 to 64"),
        ([LITTLE] * 65, "1 to 64"),
        (["zstd"], "exactly one"),
        ([LITTLE, LITTLE], "exactly one"),
        (["zstd", LITTLE], "exactly one"),
        ([LITTLE, named("transpose", order=[0])], "exactly one"),
        ([3], "a name"),
        (["bytes"], "endian"),
        ([named("bytes", endian="middle")], "endian"),
        (["vlen-utf8"], "string"),
        ([named("transpose", order=[1]), LITTLE], "order"),
        ([named("transpose", order="K"), LITTLE], "order"),
        ([named("transpose", order=[True]), LITTLE], "order"),
        (["transpose", LITTLE], "order"),
        ([LITTLE, named("zstd", level=23)], "level"),
        ([LITTLE, named("zstd", level="3")], "level"),
        ([LITTLE, named("zstd", checksum=1)], "checksum"),
        ([LITTLE, named("gzip", level=10)], "level"),
        ([LITTLE, named("blosc", cname="brotli")], "cname"),
        ([LITTLE, named("blosc", cname=["lz4"])], "cname"),
        ([LITTLE, named("blosc", shuffle="mix")], "shuffle"),
        ([LITTLE, named("blosc", shuffle=["shuffle"])], "shuffle"),
        ([LITTLE, named("blosc", typesize=0)], "typesize"),
        ([LITTLE, named("blosc", clevel=10)], "clevel"),
        ([LITTLE, named("numcodecs.blosc", shuffle=3)], "shuffle"),
        ([LITTLE, named("numcodecs.shuffle", elementsize=0)], "elementsize"),
        ([LITTLE, named("numcodecs.crc32c", location="middle")], "location"),
        ([LITTLE, named("numcodecs.crc32", location="middle")], "numcodecs refuses"),
        ([LITTLE, named("numcodecs.lz4", speed=3)], "numcodecs refuses"),
        ([named("scale_offset", scale=0), LITTLE], "scale"),
        ([named("scale_offset", scale=0.5), LITTLE], "scale"),
        ([named("scale_offset", offset=2**40), LITTLE], "offset"),
        ([named("numcodecs.delta", dtype="i4", astype="no"), LITTLE], "numcodecs refuses"),
        ([named("numcodecs.astype", encode_dtype="O"), LITTLE], "encode_dtype"),
        ([named("numcodecs.astype", encode_dtype="T"), LITTLE], "encode_dtype"),
        (["numcodecs.packbits", "bytes"], "bool"),
        ([named("cast_value", data_type="complex64"), LITTLE], "casts"),
        ([named("numcodecs.bitround", keepbits=1, x=1), LITTLE], "numcodecs refuses"),
        ([named("sharding_indexed"), "zstd"], "chunk_shape"),
        ([named("sharding_indexed", chunk_shape=[0])], "chunk_shape"),
        ([named("sharding_indexed", chunk_shape=[1, 1])], "dimensions"),
        ([named("sharding_indexed", chunk_shape=[1], index_location="middle")], "index_location"),
        ([named("sharding_indexed", chunk_shape=[1], codecs=3)], "codecs"),
        ([named("sharding_indexed", chunk_shape=[1], codecs=["zstd"])], "exactly one"),
        ([named("sharding_indexed", chunk_shape=[1], index_codecs=[LITTLE, "zstd"])], "fixed size"),
    ],
)
def test_impossible_chains(codecs: list[Any], problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        chain(codecs)
    assert caught.value.facts["object_key"] == "/a"
    assert caught.value.facts["file_type"] == "zarr.json"
    assert caught.value.facts["field"].startswith("codecs")


@pytest.mark.parametrize(
    ("codecs", "data_type"),
    [
        (["bytes"], "string"),
        ([named("scale_offset"), "vlen-utf8"], "string"),
        ([named("scale_offset"), LITTLE], "complex64"),
        (["vlen-bytes"], "string"),
        ([named("cast_value", data_type="int8"), "bytes"], "bool"),
        ([named("cast_value", data_type="uint8"), sharding_json([1], ["bytes"])], "float32"),
    ],
)
def test_chains_that_do_not_suit_the_elements(codecs: list[Any], data_type: str) -> None:
    of = parse_data_type(data_type)
    fill = np.float32(np.nan) if data_type == "float32" else default_fill_value(of)
    with pytest.raises(FormatError):
        ChunkCodecs(codecs, of, fill, ndim=1)


def test_shards_within_shards_without_end() -> None:
    nested: list[Any] = [LITTLE]
    for _ in range(30):
        nested = [sharding_json([1], nested)]
    with pytest.raises(FormatError, match="deep"):
        chain(nested)


@pytest.mark.parametrize(
    ("codec", "package"),
    [
        ("imagecodecs_jpeg2k", "imagecodecs"),
        ("pcodec", "numcodecs[pcodec]"),
        ("zfpy", "numcodecs[zfpy]"),
        ("numcodecs.mystery", None),
        ("x" * 10_000, None),
    ],
)
@pytest.mark.parametrize("before", [[], [LITTLE]])
def test_missing_codecs_name_the_package(
    codec: str, package: str | None, before: list[Any]
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        chain([*before, codec])
    assert caught.value.facts["package"] == package
    assert caught.value.facts["node_path"] == "/a"
    assert len(str(caught.value)) < 500
    if package is not None:
        assert f"pip install '{package}'" in str(caught.value)


@pytest.mark.parametrize("name", ["gribberish", "numcodecs.pcodec", "numcodecs.zfpy"])
def test_missing_libraries_name_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = name.removeprefix("numcodecs.")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnsupportedError, match="pip install"):
        chain([name], "float64")


@pytest.mark.parametrize("name", ["pickle", "numcodecs.pickle", "json2", "msgpack2", "base64"])
def test_codecs_that_run_or_reshape_what_they_read_are_not_reachable(name: str) -> None:
    for codecs in ([name], [LITTLE, name], [name, LITTLE]):
        with pytest.raises(UnsupportedError):
            chain(codecs)


class Negate(Codec):
    """A codec of another package, usable in every place of a chain."""

    codec_id = "negate"

    def __init__(self, strength: int = 1) -> None:
        if strength != 1:
            raise ValueError("too strong")

    def encode(self, buf: Any) -> Any:
        return -np.asarray(buf) if isinstance(buf, np.ndarray) else bytes(255 - b for b in buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return self.encode(buf)


class NegateElements(Negate):
    codec_id = "negate-elements"

    def encode(self, buf: Any) -> Any:
        return (-buf).tobytes()

    def decode(self, buf: Any, out: Any = None) -> Any:
        return -np.frombuffer(buf, dtype="<i4")


@pytest.fixture
def negate_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.codec_registry, "negate", Negate)
    monkeypatch.setitem(registry.codec_registry, "negate-elements", NegateElements)


@pytest.mark.usefixtures("negate_is_registered")
@pytest.mark.parametrize(
    "codecs",
    [["negate", LITTLE], [LITTLE, "negate"], ["negate-elements"], ["negate-elements", "zstd"]],
)
def test_codecs_that_other_packages_register(codecs: list[Any]) -> None:
    made = chain(codecs)
    array = np.array([1, -5, 7], dtype="i4")
    assert made.decode(made.encode(array), (3,)).tolist() == [1, -5, 7]
    with pytest.raises(FormatError):
        made.decode(made.encode(array), (2,))
    with pytest.raises(FormatError, match="refuses"):
        chain([named("negate", strength=2)])


def test_packages_that_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def __init__(self, value: Any) -> None:
            self.value = value

        def load(self) -> Any:
            if self.value is None:
                raise ImportError("half installed")
            return self.value

    monkeypatch.setitem(registry.entries, "negate-2", Entry(Negate))
    monkeypatch.setitem(registry.entries, "broken", Entry(None))
    monkeypatch.setitem(registry.entries, "foreign", Entry(object))
    assert chain([LITTLE, "negate-2"]).encode(np.array([-1], "i4")) == b"\0\0\0\0"
    for name in ("broken", "foreign"):
        with pytest.raises(UnsupportedError):
            chain([LITTLE, name])
    # Packages may announce themselves to zarr-python instead.
    announced = [Entry(Negate)]
    monkeypatch.setattr(registered_codecs, "entry_points", lambda **_: announced)
    assert chain([LITTLE, "negate-3"]).encode(np.array([-1], "i4")) == b"\0\0\0\0"


def bomb(size: int) -> bytes:
    return bytes(size)


BOMB = 64 * 2**20


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("zstd", zstd.compress(bomb(BOMB), 1)),
        ("gzip", gzip.compress(bomb(BOMB), 1, mtime=0)),
        ("gzip", gzip.compress(bomb(300), 1, mtime=0) * 2),
        ("numcodecs.zlib", zlib.compress(bomb(BOMB), 1)),
        ("numcodecs.bz2", bz2.compress(bomb(BOMB), 1)),
        ("numcodecs.lzma", lzma.compress(bomb(BOMB), preset=0)),
        ("blosc", blosc.compress(bomb(BOMB), b"zstd", 1)),
        ("numcodecs.lz4", bytes(numcodecs.LZ4().encode(bomb(BOMB)))),
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + (2**60).to_bytes(8, "little") + b"\1\0\0"),
        (
            "blosc",
            b"\2\1\x21\4"
            + (2**31 - 1).to_bytes(4, "little") * 2
            + (20).to_bytes(4, "little")
            + b"abcd",
        ),
        ("numcodecs.lz4", b"\xff\xff\xff\x7f" + b"ab"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bombs_cost_neither_memory_nor_time(name: str, data: bytes) -> None:
    made = chain([LITTLE, name])
    made.encode(np.zeros(100, "i4"))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="chunk") as caught:
            made.decode(data, (100,), what="chunks/X")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.facts["object_key"] == "chunks/X"
    assert caught.value.facts["file_type"] == "chunk"


def zstd_frame(*blocks: tuple[int, bytes, int], header: bytes = b"\0\x58") -> bytes:
    """Return a frame of unknown content size from (kind, content, size) blocks."""
    out = b"\x28\xb5\x2f\xfd" + header
    for i, (kind, content, size) in enumerate(blocks):
        last = int(i == len(blocks) - 1)
        out += (last | kind << 1 | size << 3).to_bytes(3, "little") + content
    return out


def test_zstd_frames_that_do_not_say_their_size() -> None:
    numbers = chain([LITTLE, "zstd"])
    frame = zstd_frame((0, b"\1\0\0\0", 4), (1, b"\0", 8))
    assert numbers.decode(frame, (3,)).tolist() == [1, 0, 0]
    for shape in ((2,), (4,)):
        with pytest.raises(FormatError):
            numbers.decode(frame, shape)
    words = chain(["vlen-utf8", "zstd"], "string", max_variable_nbytes=2**20)
    content = b"\1\0\0\0\3\0\0\0abc"
    frame = zstd_frame((0, content, len(content)))
    assert words.decode(frame, (1,)).tolist() == ["abc"]
    assert words.decode(frame + frame[:0], (1,)).tolist() == ["abc"]
    for bad in (
        zstd_frame(*[(1, b"\0", 131072)] * 20),
        frame[:-1],
        frame[:7],
        frame[:5] + bytes(3),
        frame + b"tail",
        b"\x28\xb5\x2f\xfd\0\x58\0\0",
        b"nonsense." * 3,
        b"\x28\xb5\x2f\xfd\xe0\1\1\1\1",
        zstd_frame((1, b"\0", 131072), *[(1, b"\0", 131072)] * 8),
    ):
        with pytest.raises(FormatError):
            words.decode(bad, (1,))
    checksummed = zstd_frame((1, b"\0", 4), header=b"\4\x58") + b"\1\2\3\4"
    with pytest.raises(FormatError):
        words.decode(checksummed, (1,))


def test_words_that_decompress_beyond_the_limit() -> None:
    words = chain(["vlen-utf8", "gzip"], "string", max_variable_nbytes=100)
    short = words.encode(np.array(["a" * 50], object))
    assert words.decode(short, (1,)).tolist() == ["a" * 50]
    with pytest.raises(FormatError, match="more than 100"):
        words.decode(words.encode(np.array(["a" * 500], object)), (1,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0",
        b"\2\0\0\0\1\0\0\0a",
        b"\xff\xff\xff\xff",
        b"\1\0\0\0\xff\xff\xff\xff",
        b"\1\0\0\0\2\0\0\0a",
        b"\1\0\0\0\1\0\0\0\xff",
    ],
)
def test_damaged_words(data: bytes) -> None:
    with pytest.raises(FormatError):
        chain(["vlen-utf8"], "string").decode(data, (1,))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        ("crc32c", b"abc"),
        ("crc32c", bytes(8)),
        ("numcodecs.crc32", b"ab"),
        ("numcodecs.fletcher32", bytes(7)),
        ("numcodecs.jenkins_lookup3", b"ab"),
        ("gzip", b""),
        ("gzip", gzip.compress(bytes(4), mtime=0)[:-1]),
        ("gzip", gzip.compress(bytes(4), mtime=0) + b"x"),
        ("gzip", gzip.compress(bytes(3), mtime=0)),
        ("numcodecs.bz2", bz2.compress(bytes(4))[:-1]),
        ("numcodecs.bz2", bz2.compress(bytes(3))),
        ("numcodecs.bz2", b""),
        ("numcodecs.lz4", b"ab"),
        ("blosc", b"short"),
        ("blosc", blosc.compress(bytes(40), b"lz4", 5)[:-1]),
        ("blosc", blosc.compress(bytes(40), b"lz4", 5) + b"\0"),
        ("blosc", blosc.compress(b"", b"lz4", 5)),
        ("zstd", b""),
    ],
)
def test_damaged_streams(codec: str, data: bytes) -> None:
    with pytest.raises(FormatError, match="codec"):
        chain([LITTLE, codec]).decode(data, (1,))


def test_padding_and_members_of_gzip() -> None:
    made = chain([LITTLE, "gzip"])
    halves = gzip.compress(b"\1\0") + gzip.compress(b"\0\0") + bytes(5)
    assert made.decode(halves, (1,)).tolist() == [1]


def test_an_empty_blosc_container() -> None:
    made = chain([LITTLE, "blosc"])
    assert made.decode(made.encode(np.zeros(0, "i4")), (0,)).shape == (0,)


def test_snappy_inside_blosc_is_said_to_be_missing() -> None:
    header = bytearray(blosc.compress(np.arange(4000, dtype="i4"), b"lz4", 5))
    header[2] = (header[2] & 0x1F) | 2 << 5
    with pytest.raises(UnsupportedError, match="snappy"):
        chain([LITTLE, "blosc"]).decode(bytes(header), (4000,))


@pytest.mark.parametrize(
    ("data_type", "codecs", "data"),
    [
        (U3, [LITTLE], b"\0\0\x11\0" + bytes(8)),
        (U3, [LITTLE], b"\0\xd8\0\0" + bytes(8)),
        (U3, [LITTLE], b"\xff" * 12),
        (PAIR, [LITTLE], b"\2" + bytes(13)),
        (PAIR, [LITTLE], b"\1\xff\xff\xff\xff" + bytes(9)),
        (PAIR, [LITTLE], bytes(13) + b"\2"),
        ("bool", ["numcodecs.packbits", "bytes"], b"\2\xff"),
        ("int8", [named("scale_offset", scale=3), "bytes"], b"\4"),
        ("int8", [named("scale_offset", offset=100), "bytes"], b"\x64"),
        ("int8", [named("cast_value", data_type="int16"), LITTLE], b"\0\1"),
        ("int8", [named("numcodecs.astype", encode_dtype="i2"), LITTLE], b"\0"),
    ],
)
def test_elements_that_cannot_be(data_type: Any, codecs: list[Any], data: bytes) -> None:
    with pytest.raises(FormatError):
        chain(codecs, data_type).decode(data, (1,))


def test_booleans_are_zero_and_one_whatever_was_stored() -> None:
    decoded = chain(["bytes"], "bool").decode(b"\2\0\xff", (3,))
    assert decoded.view(np.uint8).tolist() == [1, 0, 1]


def test_text_beyond_the_first_plane() -> None:
    made = chain([LITTLE], U3)
    array = np.array(["😀z", "\ue000"], "U3")
    assert made.decode(made.encode(array), (2,)).tolist() == ["😀z", "\ue000"]


def test_scaling_by_minus_one_at_the_edge_of_the_range() -> None:
    made = chain([named("scale_offset", offset=-1, scale=-1), "bytes"], "int8")
    array = np.array([127, 0], "i1")
    assert made.decode(made.encode(array), (2,)).tolist() == array.tolist()
    assert made.encode(np.zeros(0, "i1")) == b""
    assert made.decode(b"", (0,)).shape == (0,)


def test_chunks_of_another_shape_than_the_array() -> None:
    with pytest.raises(InvalidInputError, match="dimensions"):
        chain([LITTLE]).decode(b"", (1, 1))
    with pytest.raises(InvalidInputError):
        chain([LITTLE]).decode(b"", (-1,))
    with pytest.raises(UnsupportedError, match="in memory"):
        chain([LITTLE, "zstd"]).decode(b"", (2**40,))


def test_fill_values_of_a_chain() -> None:
    made = chain([LITTLE])
    assert made.fill_array((2,)).tolist() == [0, 0]
    assert made.is_all_fill(np.zeros(3, "i4"))
    assert not made.is_all_fill(np.ones(3, "i4"))


def test_filters_of_numcodecs() -> None:
    for data_type, codec, values, expected in (
        ("float32", named("numcodecs.bitround", keepbits=2), [1.1, 100.0], [1.0, 96.0]),
        ("float64", named("numcodecs.quantize", digits=1), [0.12], [0.125]),
        ("float64", named("numcodecs.quantize", digits=1, dtype="f8"), [0.12], [0.125]),
        ("int32", named("numcodecs.astype", encode_dtype="u1"), [3], [3]),
        ("int32", named("numcodecs.delta", astype="i8"), [3, 1], [3, 1]),
        (
            "float64",
            named("numcodecs.fixedscaleoffset", offset=1, scale=10, astype="i2"),
            [1.52],
            [1.5],
        ),
    ):
        made = chain([codec, LITTLE, "zstd"], data_type)
        data = made.encode(np.array(values, made.data_type.numpy))
        assert made.decode(data, (len(values),)).tolist() == expected
        # Fill values go the same way, so that shards behind a filter know theirs.
        shards = chain([codec, sharding_json([1], [LITTLE])], data_type)
        assert shards.decode(shards.encode(shards.fill_array((2,))), (2,)).tolist() == [0, 0]
    narrow = chain([named("numcodecs.quantize", digits=1, astype="f4"), LITTLE], "float64")
    with pytest.raises(InvalidInputError, match="float32"):
        narrow.encode(np.array([1.0]))


class Panic(BaseException):
    """Stands for what a Rust library raises when it gives up."""


Panic.__name__ = "PanicException"


class GribLibrary(types.SimpleNamespace):
    """Stands for gribberish: the last section of a message is float64 elements."""

    @staticmethod
    def parse_grib_array(message: bytes, offset: int, *options: bool) -> np.ndarray:
        if message.endswith(b"panic"):
            raise Panic("index out of bounds")
        if message.endswith(b"stop"):
            raise KeyboardInterrupt
        values = np.frombuffer(message[87:], "<f8")
        return values[::-1] if any(options) else values

    @staticmethod
    def parse_grib_message_metadata(message: bytes, offset: int) -> Any:
        return types.SimpleNamespace(latlng=lambda *options: (np.ones(2), np.zeros(2)))


def grib(data: bytes, *, points: int, rows: int = 1, edition: int = 2, template: int = 0) -> bytes:
    section_3 = b"\3\0" + points.to_bytes(4, "big") + b"\0\0" + template.to_bytes(2, "big")
    section_3 += bytes(16) + (points // rows).to_bytes(4, "big") + rows.to_bytes(4, "big")
    parts = [b"\1" + bytes(21), section_3 + bytes(7)]
    message = b"".join((len(part) + 4).to_bytes(4, "big") + part for part in parts)
    return b"GRIB\0\0\0" + bytes([edition]) + bytes(8) + message + data


def test_grib_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gribberish", GribLibrary())
    values = np.array([1.0, 2.0]).tobytes()
    message = grib(values, points=2)
    assert len(message) == 87 + 16
    made = chain([named("gribberish", var="TMP")], "float32", ndim=2)
    assert made.decode(message, (1, 2)).tolist() == [[1, 2]]
    flipped = chain([named("gribberish", var="TMP", north_up=True)], "float64")
    assert flipped.decode(message, (2,)).tolist() == [2, 1]
    assert chain([named("gribberish", var="latitude")], "float64").decode(message, (2,)).all()
    assert not chain([named("gribberish", var="longitude")], "float64").decode(message, (2,)).any()
    scaled = chain([named("scale_offset", offset=-1.0), "gribberish"], "float64")
    assert scaled.decode(message, (2,)).tolist() == [0, 1]
    assert scaled.encoded_bound((2,)) is None
    for bad, shape in (
        (message, (1, 3)),
        (message, (1, 1)),
        (b"BUFR" + message[4:], (1, 2)),
        (message[:15], (1, 2)),
        (message[:60], (1, 2)),
        (message[:37], (1, 2)),
        (message[:16] + bytes(30), (1, 2)),
        (grib(values, points=2, edition=1), (1, 2)),
        (grib(values, points=3, rows=2), (1, 3)),
        (grib(values, points=3), (1, 3)),
        (grib(b"panic", points=2), (1, 2)),
    ):
        with pytest.raises(FormatError, match="gribberish"):
            made.decode(bad, shape)
    coordinate = chain([named("gribberish", var="latitude")], "float64")
    with pytest.raises(FormatError, match="points"):
        coordinate.decode(grib(b"", points=2**31), (2,))
    with pytest.raises(KeyboardInterrupt):
        made.decode(grib(b"stop", points=2), (1, 2))
    with pytest.raises(InvalidInputError, match="read only"):
        made.encode(np.zeros((1, 2), "f4"))
    with pytest.raises(FormatError, match="var"):
        chain([named("gribberish", var=3)], "float64")


def test_pcodec() -> None:
    pytest.importorskip("pcodec")
    made = chain(["numcodecs.pcodec"], "float64", ndim=2)
    array = np.linspace(0, 1, 600).reshape(20, 30)
    data = made.encode(array)
    np.testing.assert_array_equal(made.decode(data, (20, 30)), array)
    for shape in ((20, 31), (20, 29)):
        with pytest.raises(FormatError):
            made.decode(data, shape)
    with pytest.raises(FormatError):
        made.decode(data[:-3], (20, 30))
    with pytest.raises(FormatError):
        chain(["numcodecs.pcodec"], "string")


class Objects(NegateElements):
    def decode(self, buf: Any, out: Any = None) -> Any:
        return np.array([None, None], object)


class Wide(NegateElements):
    def decode(self, buf: Any, out: Any = None) -> Any:
        return -np.frombuffer(buf, dtype=">i8")

    def encode(self, buf: Any) -> Any:
        return (-buf).astype(">i8").tobytes()


class WideArrays(Negate):
    def encode(self, buf: Any) -> Any:
        return np.asarray(buf).astype("i8")


def test_what_other_libraries_give_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zfpy", types.SimpleNamespace())
    array = np.array([1, 2], "i4")
    for codec_class in (NegateElements, Wide):
        monkeypatch.setitem(registry.codec_registry, "zfpy", codec_class)
        made = chain(["numcodecs.zfpy"])
        decoded = made.decode(made.encode(array), (2,))
        assert decoded.dtype == np.dtype("i4")
        assert decoded.tolist() == [1, 2]
    monkeypatch.setitem(registry.codec_registry, "zfpy", Objects)
    with pytest.raises(FormatError, match="object"):
        chain(["numcodecs.zfpy"]).decode(b"", (2,))
    with pytest.raises(FormatError, match="does not store"):
        chain(["numcodecs.zfpy"], "string")
    monkeypatch.setitem(registry.codec_registry, "wide-arrays", WideArrays)
    with pytest.raises(InvalidInputError, match="int64"):
        chain(["wide-arrays", LITTLE]).encode(array)
    monkeypatch.setitem(registry.codec_registry, "objects", Objects)
    with pytest.raises(FormatError, match="object"):
        chain(["objects", LITTLE]).decode(array.tobytes(), (2,))


def test_zfp() -> None:
    pytest.importorskip("zfpy")
    made = chain([named("numcodecs.zfpy", mode=4, tolerance=0.01)], "float64", ndim=2)
    array = np.linspace(0, 1, 64).reshape(8, 8)
    np.testing.assert_allclose(made.decode(made.encode(array), (8, 8)), array, atol=0.01)


CHAINS = {
    "zstd": ([LITTLE, "zstd"], "int32"),
    "blosc": ([LITTLE, "blosc"], "int32"),
    "gzip": ([LITTLE, "gzip"], "int32"),
    "lz4": ([LITTLE, "numcodecs.lz4"], "int32"),
    "lzma": ([LITTLE, "numcodecs.lzma"], "int32"),
    "crc32c": ([LITTLE, "crc32c", "zstd"], "int32"),
    "words": (["vlen-utf8"], "string"),
    "zstd-words": (["vlen-utf8", "zstd"], "string"),
    "shard": ([sharding_json([4], [LITTLE, "zstd"])], "int32"),
    "plain-shard": (
        [named("sharding_indexed", chunk_shape=[4], codecs=[LITTLE], index_codecs=[LITTLE])],
        "int32",
    ),
    "text": ([LITTLE], U3),
}


@pytest.mark.parametrize("name", sorted(CHAINS))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_chunks_give_arrays_of_the_asked_shape_or_a_format_error(
    name: str, data: st.DataObject
) -> None:
    codecs, data_type = CHAINS[name]
    made = chain(codecs, data_type)
    if data_type == "string":
        array = np.array(["abc", "", "é"] * 4, object)
    else:
        array = np.arange(12).astype(made.data_type.numpy)
    stored = bytearray(made.encode(array))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(stored) - 1, 0)))
        edit = data.draw(st.sampled_from(["flip", "cut", "insert", "large"]))
        if edit == "flip" and stored:
            stored[at] ^= data.draw(st.integers(1, 255))
        elif edit == "cut":
            del stored[at : at + data.draw(st.integers(1, 30))]
        elif edit == "insert":
            stored[at:at] = data.draw(st.binary(max_size=8))
        else:
            stored[at : at + 4] = data.draw(st.sampled_from([b"\xff" * 4, b"\xff\xff\xff\x7f"]))
    try:
        decoded = made.decode(bytes(stored), (12,))
    except (FormatError, UnsupportedError):
        return
    assert decoded.shape == (12,)
    assert decoded.dtype == made.data_type.numpy
    assert len(decoded.tolist()) == 12
