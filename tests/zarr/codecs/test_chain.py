"""Chains of codecs store known bytes, and give back the elements that they were given."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers.arrays.codec_chains import BIG, LITTLE, PAIR, U3, chain, named
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.codecs.build import default_codecs, sharding_json
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import fill_array

TIME = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}


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
        (
            "int32",
            [named("numcodecs.delta", dtype="<i4", astype=">i4"), LITTLE],
            [1, 3],
            b"\1\0\0\0\2\0\0\0",
        ),
        (
            "float64",
            [named("numcodecs.fixedscaleoffset", offset=1, scale=10, astype=">i2"), BIG],
            [1.5],
            b"\0\5",
        ),
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


class Counted:
    """A decompressor that counts the bytes after a stream, which it copies."""

    copied = 0

    def __init__(self, inner):
        self.inner = inner
        self.decompress = inner.decompress

    @property
    def eof(self):
        return self.inner.eof

    @property
    def unused_data(self):
        rest = self.inner.unused_data
        Counted.copied += len(rest)
        return rest


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_many_empty_streams_are_not_copied_again_and_again(module, monkeypatch):
    made = chain([LITTLE, f"numcodecs.{module.__name__}"])
    codec = made._byte_codecs[-1]
    monkeypatch.setattr(Counted, "copied", 0)
    monkeypatch.setattr(
        codec, "make_decompressor", lambda make=codec.make_decompressor: Counted(make())
    )
    empty, value = module.compress(b""), module.compress(b"\1\0\0\0")
    for data in (empty * 2000 + value, value + empty * 2000, empty + value):
        assert made.decode(data, (1,)).tolist() == [1]
        assert Counted.copied <= 1024 * 2002 + 2 * len(data)
        Counted.copied = 0


def test_padding_and_members_of_gzip() -> None:
    made = chain([LITTLE, "gzip"])
    halves = gzip.compress(b"\1\0") + gzip.compress(b"\0\0") + bytes(5)
    assert made.decode(halves, (1,)).tolist() == [1]


def test_an_empty_blosc_container() -> None:
    made = chain([LITTLE, "blosc"])
    assert made.decode(made.encode(np.zeros(0, "i4")), (0,)).shape == (0,)


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
    with raises(InvalidInputError, match="dimensions", node_path="/a"):
        chain([LITTLE]).decode(b"", (1, 1))
    with pytest.raises(InvalidInputError):
        chain([LITTLE]).decode(b"", (-1,))
    with raises(UnsupportedError, match="in memory", nbytes=4398046511104, limit=17179869184):
        chain([LITTLE, "zstd"]).decode(b"", (2**40,))


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
        empty = fill_array(shards.data_type, shards.fill_value, (2,))
        assert shards.decode(shards.encode(empty), (2,)).tolist() == [0, 0]
    narrow = chain([named("numcodecs.quantize", digits=1, astype="f4"), LITTLE], "float64")
    with raises(InvalidInputError, node_path="/a", codec="numcodecs.quantize"):
        narrow.encode(np.array([1.0]))
