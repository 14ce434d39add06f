"""Chunks that are damaged or meant to harm end in a format error, at a bounded cost."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest
from helpers.arrays.codec_chains import LITTLE, PAIR, U3, chain, named
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc, zstd

from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.zarr.codecs import chain as chain_module
from icechunk_format.zarr.codecs.build import sharding_json


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
        with raises(FormatError, object_key="chunks/X", file_type="chunk", codec=name):
            made.decode(data, (100,), what="chunks/X")
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def zstd_frame(*blocks: tuple[int, bytes, int], header: bytes = b"\0\x58") -> bytes:
    """Return a frame of unknown content size from (kind, content, size) blocks."""
    out = b"\x28\xb5\x2f\xfd" + header
    for i, (kind, content, size) in enumerate(blocks):
        last = int(i == len(blocks) - 1)
        out += (last | kind << 1 | size << 3).to_bytes(3, "little") + content
    return out


def test_zstd_frames_that_do_not_say_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = chain([LITTLE, "zstd"])
    frame = zstd_frame((0, b"\1\0\0\0", 4), (1, b"\0", 8))
    assert numbers.decode(frame, (3,)).tolist() == [1, 0, 0]
    for shape in ((2,), (4,)):
        with pytest.raises(FormatError):
            numbers.decode(frame, shape)
    monkeypatch.setattr(chain_module, "MAX_VARIABLE_NBYTES", 2**20)
    words = chain(["vlen-utf8", "zstd"], "string")
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


def test_words_that_decompress_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "MAX_VARIABLE_NBYTES", 100)
    words = chain(["vlen-utf8", "gzip"], "string")
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
    with raises(FormatError, codec=codec):
        chain([LITTLE, codec]).decode(data, (1,))


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
