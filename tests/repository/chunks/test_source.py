"""Chunk payloads come back exactly from every kind of place, or raise."""

import pickle
from datetime import UTC, datetime

import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ChunkId
from icechunk_format.encoding.manifest.chunk_refs import (
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.object_keys import chunk_key
from icechunk_format.errors import (
    ChunkModifiedError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnauthorizedVirtualChunkError,
)
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.chunks.source import TO_END
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.options import VirtualAccess

PACKED = bytes(range(256)) * 4


def chunk_id(number):
    return ChunkId(bytes([number]) * 12)


def native(coords, ids, lengths, offsets=None):
    raw = np.array([list(chunk_id(n).raw) for n in ids], dtype=np.uint8)
    return native_refs(coords, raw, lengths, offsets)


@pytest.fixture
def source(memory_repository):
    """Write two chunk objects, beside a bucket of virtual ones."""
    storage = memory_repository.storage
    storage.put(chunk_key(chunk_id(1)), b"first chunk")
    storage.put(chunk_key(chunk_id(2)), PACKED)
    open_storage(Location("memory://virtual-bucket")).put("dir/file.bin", PACKED)
    return ChunkSource(
        location=memory_repository.location,
        access=VirtualAccess(("memory://virtual-bucket/dir/",)),
    )


@pytest.fixture
def mixed_refs():
    """One array of chunks of all three kinds, two of them parts of one object."""
    return ChunkRefs.concat(
        [
            native([[0], [1], [2]], [1, 2, 2], [11, 100, 24], [0, 300, 1000]),
            inline_refs([[3]], [b"inline bytes"]),
            virtual_refs([[4]], ["memory://virtual-bucket/dir/file.bin"], [256], [8]),
        ]
    )


PAYLOADS = [b"first chunk", PACKED[300:400], PACKED[1000:1024], b"inline bytes", PACKED[256:264]]


def test_chunks_of_all_kinds_come_in_the_order_of_the_rows(source, mixed_refs):
    assert source.fetch(mixed_refs, np.arange(5)) == PAYLOADS
    rows = np.array([4, 0, 3, 3, 1])
    assert source.fetch(mixed_refs, rows) == [PAYLOADS[row] for row in rows]
    assert source.fetch(mixed_refs, np.array([], dtype=np.int64)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_range_is_a_slice_of_the_payload(source, mixed_refs, data):
    rows = data.draw(st.lists(st.integers(0, 4), max_size=8))
    ranges, expected = [], []
    for row in rows:
        payload = PAYLOADS[row]
        if data.draw(st.booleans()):
            last = data.draw(st.integers(1, len(payload)))
            ranges.append((-last, TO_END))
            expected.append(payload[-last:])
        else:
            start = data.draw(st.integers(0, len(payload)))
            end = data.draw(st.integers(start, len(payload)))
            ranges.append((start, end))
            expected.append(payload[start:end])
    found = source.fetch(
        mixed_refs,
        np.array(rows, dtype=np.int64),
        np.array(ranges, dtype=np.int64).reshape(-1, 2),
    )
    assert found == expected


@pytest.mark.parametrize("wrong", [(0, 12), (12, 12), (5, 4), (-12, TO_END), (0, -1)])
@pytest.mark.parametrize("row", [0, 3, 4])
def test_a_range_outside_of_the_payload_is_refused(source, mixed_refs, row, wrong):
    if row == 3 and wrong in ((0, 12), (12, 12), (-12, TO_END)):
        wrong = tuple(bound + 1 if bound == 12 else bound - 1 for bound in wrong)
    with raises(FormatError, field="range"):
        source.fetch(mixed_refs, np.array([row]), np.array([wrong]))


def test_ranges_need_one_pair_per_row(source, mixed_refs):
    with raises(InvalidInputError, match=r"\(2, 2\) is needed", found=(1, 2)):
        source.fetch(mixed_refs, np.arange(2), np.array([[0, 1]]))


@pytest.mark.parametrize(("offset", "length"), [(0, 12), (5, 7), (100, 1), (2**40, 1)])
def test_a_reference_beyond_its_object_is_an_error_of_the_format(source, offset, length):
    with raises(
        FormatError, match="shorter than its reference records", object_key=chunk_key(chunk_id(1))
    ):
        source.fetch(native([[0]], [1], [length], [offset]), np.array([0]))


@pytest.mark.parametrize(("offset", "length"), [(0, 2**63), (2**64 - 1, 1), (2**63 - 1, 2**40)])
def test_an_absurd_reference_is_refused_before_any_request(source, offset, length):
    refs = native([[0]], [1], np.array([length], dtype=np.uint64), np.array([offset], np.uint64))
    with raises(FormatError, field="length", offset=offset, length=length):
        source.fetch(refs, np.array([0]))


def test_a_missing_chunk_object_is_named(source):
    with raises(NotFoundError, match="garbage collection", kind="object") as caught:
        source.fetch(native([[0]], [9], [4]), np.array([0]))
    assert caught.value.facts["key"] == chunk_key(chunk_id(9))


def test_nothing_is_fetched_when_one_chunk_of_many_is_not_authorized(source, mixed_refs):
    refs = ChunkRefs.concat([mixed_refs, virtual_refs([[5]], ["memory://other/x"], [0], [1])])
    with raises(UnauthorizedVirtualChunkError, url_prefix=...):
        source.fetch(refs, np.arange(6))


def test_checksums_of_virtual_objects_are_kept(source):
    bucket = open_storage(Location("memory://virtual-bucket"))
    info = bucket.head("dir/file.bin")
    url = "memory://virtual-bucket/dir/file.bin"
    written = int(info.last_modified.timestamp())
    good = virtual_refs(
        [[0], [1], [2]],
        [url] * 3,
        [0, 8, 16],
        [8] * 3,
        etags=[info.version.etag, f'"{info.version.etag}"', None],
        last_modified=[0, 0, written + 1],
    )
    assert source.fetch(good, np.arange(3)) == [PACKED[0:8], PACKED[8:16], PACKED[16:24]]
    other_etag = virtual_refs([[0]], [url], [0], [8], etags=["other"])
    older = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
    other_time = virtual_refs([[0]], [url], [0], [8], last_modified=[older])
    for refs, wanted in ((other_etag, "etag 'other'"), (other_time, "2000-01-01 00:00:00 UTC")):
        with raises(ChunkModifiedError, match=wanted, key="dir/file.bin"):
            source.fetch(refs, np.array([0]))


def test_a_source_travels_and_shows_no_credential(memory_repository, mixed_refs):
    source = ChunkSource(
        location=memory_repository.location,
        access=VirtualAccess(("s3://bucket/",), {"key": "ABCDEF", "secret": "very-secret"}),
    )
    arrived = pickle.loads(pickle.dumps(source))
    assert arrived == source
    assert dict(arrived.access.options) == {"key": "ABCDEF", "secret": "very-secret"}
    assert "very-secret" not in repr(arrived)
    assert "ABCDEF" not in str(arrived)
