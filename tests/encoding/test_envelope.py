"""Header and frame of metadata files are checked, and bombs are refused."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
import zstandard
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding import envelope
from icechunk_format.encoding.envelope import (
    HEADER_SIZE,
    IMPLEMENTATION_NAME,
    MAGIC,
    FileType,
    unwrap,
    wrap,
)
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError

PAYLOAD = b"some flatbuffer " * 1000


def read(data: bytes, **options: int) -> bytes:
    return unwrap(data, file_type=FileType.SNAPSHOT, object_key="snapshots/X", **options).payload


def with_frame(frame: bytes) -> bytes:
    return wrap(b"", file_type=FileType.SNAPSHOT, spec_version=2)[:HEADER_SIZE] + frame


@settings(deadline=None)
@given(
    st.binary(max_size=5000),
    st.sampled_from(FileType),
    st.sampled_from([1, 2]),
    st.integers(min_value=0, max_value=19),
)
def test_what_was_wrapped_is_unwrapped(
    payload: bytes, file_type: FileType, spec_version: int, level: int
) -> None:
    data = wrap(payload, file_type=file_type, spec_version=spec_version, level=level)
    found = unwrap(data, file_type=file_type, object_key="k")
    assert found.payload == payload
    assert found.spec_version == spec_version


def test_the_header_is_the_documented_one() -> None:
    data = wrap(PAYLOAD, file_type=FileType.REPO_INFO, spec_version=2)
    assert data[:12] == bytes.fromhex("494345F09FA78A4348554E4B") == MAGIC
    assert data[12:36] == IMPLEMENTATION_NAME.encode().ljust(24, b" ")
    assert data[36:39] == bytes((2, 6, 1))
    assert zstandard.frame_content_size(data[39:]) == len(PAYLOAD)
    parameters = zstandard.get_frame_parameters(data[39:])
    assert (parameters.has_checksum, parameters.dict_id) == (False, 0)


@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD, bytes(300_000)])
def test_frames_of_all_writers_are_read(size: bool, checksum: bool, payload: bytes) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum)
    stream = compressor.compressobj()
    assert read(with_frame(compressor.compress(payload))) == payload
    assert read(with_frame(stream.compress(payload) + stream.flush())) == payload


def test_any_implementation_name_is_accepted() -> None:
    data = bytearray(wrap(PAYLOAD, file_type=FileType.SNAPSHOT, spec_version=1))
    data[12:36] = b"\xff\xfe other\0".ljust(24, b"\0")
    found = unwrap(bytes(data), file_type=FileType.SNAPSHOT, object_key="k")
    assert found.payload == PAYLOAD


def patched(offset: int, value: int) -> bytes:
    data = bytearray(wrap(PAYLOAD, file_type=FileType.SNAPSHOT, spec_version=2))
    data[offset] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "header"),
        (MAGIC, "header"),
        (patched(0, ord("i")), "header.magic"),
        (patched(36, 0), "header.spec_version"),
        (patched(37, 2), "header.file_type"),
        (patched(37, 3), "header.file_type"),
        (patched(38, 0), "header.compression"),
        (patched(38, 2), "header.compression"),
        (with_frame(b""), "payload"),
        (with_frame(b"not zstd at all"), "payload"),
        (with_frame(zstandard.compress(PAYLOAD)[:-1]), "payload"),
        (with_frame(zstandard.compress(PAYLOAD)[:6]), "payload"),
        (with_frame(zstandard.compress(PAYLOAD) * 2), "payload"),
        (with_frame(zstandard.compress(PAYLOAD) + b"\0"), "payload"),
        (with_frame(b"\x50\x2a\x4d\x18\x00\x00\x00\x00"), "payload"),
    ],
)
def test_damage_is_named(data: bytes, field: str) -> None:
    with raises(FormatError, object_key="snapshots/X", file_type="snapshot", field=field):
        read(data)


def test_newer_spec_versions_ask_for_an_upgrade() -> None:
    with raises(
        UnsupportedError,
        match=r"spec version 3.*upgrade",
        object_key="snapshots/X",
        found=3,
        allowed=(1, 2),
    ):
        read(patched(36, 3))


def test_frames_with_a_dictionary_are_refused() -> None:
    samples = [b"sample number %d of a text" % (i % 97) for i in range(2000)]
    dictionary = zstandard.train_dictionary(1024, samples)
    frame = zstandard.ZstdCompressor(dict_data=dictionary).compress(PAYLOAD)
    with raises(FormatError, match="dictionary", object_key="snapshots/X", field="payload"):
        read(with_frame(frame))


@pytest.mark.parametrize("size", [True, False])
def test_bombs_are_refused_before_they_expand(size: bool) -> None:
    content = struct.pack("<I4s", 8, b"Ichk") + bytes(49_999_992)
    frame = zstandard.ZstdCompressor(write_content_size=size).compress(content)
    with raises(FormatError, match="1000000", object_key="snapshots/X", field="payload"):
        read(with_frame(frame), max_size=1_000_000)
    assert read(with_frame(frame), max_size=50_000_000) == content


@pytest.mark.parametrize("size", [2**31 - 1, -1])
@pytest.mark.parametrize("head", [b"", struct.pack("<I4s", 8, b"Ichk")])
def test_a_small_file_takes_no_gigabytes(size: int, head: bytes) -> None:
    """A frame of 66 KB that holds 2 GB of zeros, with or without the start of a file."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=size > 0)
    stream = compressor.compressobj(size=size)
    zeros, count = bytes(2**20 - 1), 2**11 - 1
    frame = stream.compress(head) + b"".join(stream.compress(zeros) for _ in range(count))
    frame += stream.compress(bytes(2**31 - 1 - len(head) - count * len(zeros))) + stream.flush()
    assert len(frame) < 70_000
    data = with_frame(frame)
    tracemalloc.start()
    try:
        with raises(FormatError, field="payload"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 2**28 + 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [True, False])
def test_large_files_are_read_as_far_as_they_are_not_mostly_repeats(size: bool) -> None:
    content = struct.pack("<I4s", 8, b"Ichk") + bytes(2**28)
    small = zstandard.ZstdCompressor(level=1, write_content_size=size).compress(content)
    with raises(FormatError, match=str(2**28), object_key="snapshots/X", field="payload"):
        read(with_frame(small))
    with raises(InvalidInputError, allowed=2**28):
        wrap(content, file_type=FileType.SNAPSHOT, spec_version=2)
    content += random.Random(1).randbytes(2**18)
    frame = zstandard.ZstdCompressor(level=1, write_content_size=size).compress(content)
    assert read(with_frame(frame)) == content


def test_a_claimed_size_beyond_the_blocks_takes_no_memory() -> None:
    # Single segment, 8-byte content size, one raw block of 3 bytes.
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", 2**31 - 1) + b"\x19\x00\x00abc"
    with raises(
        FormatError, match="cannot hold more than 3", object_key="snapshots/X", field="payload"
    ):
        read(with_frame(frame))


def test_impossible_requests_to_write_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(InvalidInputError, found=3, allowed=(1, 2)):
        wrap(b"", file_type=FileType.SNAPSHOT, spec_version=3)
    with raises(InvalidInputError, found=23, allowed=(0, 22)):
        wrap(b"", file_type=FileType.SNAPSHOT, spec_version=2, level=23)
    monkeypatch.setattr("icechunk_format.encoding.envelope.DEFAULT_MAX_SIZE", len(PAYLOAD))
    with raises(InvalidInputError, found=16000, allowed=16000):
        wrap(PAYLOAD, file_type=FileType.SNAPSHOT, spec_version=2)


def test_a_frame_without_content_is_read_to_its_end() -> None:
    empty = zstandard.ZstdCompressor(write_checksum=True).compress(b"")
    assert read(with_frame(empty)) == b""
    for cut in range(1, 5):
        with raises(FormatError, match="cut short"):
            read(with_frame(empty[:-cut]))


def test_a_window_may_be_larger_than_the_content() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=29, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = stream.compress(b"content") + stream.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 2**29
    assert read(with_frame(frame)) == b"content"


def test_writers_keep_the_expansion_that_readers_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bytes(4001)
    frame = len(wrap(payload, file_type=FileType.SNAPSHOT, spec_version=2)) - HEADER_SIZE
    monkeypatch.setattr(envelope, "_UNLIMITED_SIZE", 0)
    monkeypatch.setattr(envelope, "_MOST_EXPANSION", 4001 // frame)
    with raises(InvalidInputError, found=4001, allowed=4001 // frame * frame):
        wrap(payload, file_type=FileType.SNAPSHOT, spec_version=2)
    monkeypatch.setattr(envelope, "_MOST_EXPANSION", 4001 // frame + 1)
    assert read(wrap(payload, file_type=FileType.SNAPSHOT, spec_version=2)) == payload


def test_content_that_is_too_short_for_a_flatbuffer_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(envelope, "_UNCHECKED_SIZE", 0)
    for content in (b"a", b"1234567", b"12345678", struct.pack("<I", 4) + b"Ichk" + bytes(8)):
        with raises(FormatError, field="payload", match="the content starts with"):
            read(with_frame(zstandard.compress(content)))
    whole = struct.pack("<I", 8) + b"Ichk" + bytes(8)
    assert read(with_frame(zstandard.compress(whole))) == whole
