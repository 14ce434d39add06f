"""Manifests keep every reference, whatever its kind, and lookups see what was written.

What cannot be written is refused, and a million references stay small and fast.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.effort import counted_lines
from helpers.files.manifest_rows import (
    ALWAYS,
    NODE,
    Seen,
    build,
    far_away,
    inline,
    manifest_of,
    native,
    references,
    round_trip,
    see,
    virtual,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode, encode_payload
from icechunk_format.encoding.manifest.strings import RefStrings
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.encoding.manifest.location_dictionary import LocationCompression


@settings(deadline=None)
@given(references(), st.sampled_from([None, ALWAYS]), st.sampled_from([1, 2]))
def test_every_reference_comes_back(
    case: tuple[int, Seen], policy: LocationCompression | None, spec_version: int
) -> None:
    ndim, rows = case
    refs = build(ndim, rows)
    assert see(refs) == rows
    found = round_trip(refs, location_compression=policy, spec_version=spec_version)
    assert see(found) == rows
    if rows:
        assert found.ndim == ndim


@settings(deadline=None)
@given(st.lists(references(), max_size=4))
def test_several_arrays_share_a_manifest(cases: list[tuple[int, Seen]]) -> None:
    whole = manifest_of(*[build(ndim, rows) for ndim, rows in cases])
    found = manifest.decode(encode(whole, location_compression=ALWAYS))
    assert found.id == whole.id
    assert found.num_chunk_refs == sum(len(rows) for _, rows in cases)
    assert [see(entry.refs) for entry in found.arrays] == [rows for _, rows in cases]
    for entry in whole.arrays:
        assert found.array(entry.node_id) is not None
    assert found.array(NodeId(b"\xff" * 8)) is None


@settings(deadline=None)
@given(references())
def test_equal_references_give_equal_bytes(case: tuple[int, Seen]) -> None:
    ndim, rows = case
    shuffled = dict(reversed(rows.items()))
    first = encode(manifest_of(build(ndim, rows)), location_compression=None)
    assert encode(manifest_of(build(ndim, shuffled)), location_compression=None) == first


@settings(deadline=None)
@given(references(), st.data())
def test_an_overlay_is_a_transaction(case: tuple[int, Seen], data: st.DataObject) -> None:
    ndim, rows = case
    places = st.tuples(*[st.integers(0, 3)] * ndim)
    changes = data.draw(st.dictionaries(places, native | inline | virtual, max_size=6))
    deleted = data.draw(st.lists(places, max_size=6))
    base = round_trip(build(ndim, rows), location_compression=ALWAYS) if rows else build(ndim, {})
    result = ChunkRefs.overlay(
        base,
        build(ndim, changes),
        np.array(deleted, dtype=np.uint32).reshape(len(deleted), ndim),
    )
    expected = {at: row for at, row in rows.items() if at not in deleted} | changes
    assert see(result) == expected
    assert see(round_trip(result, location_compression=ALWAYS)) == expected


@settings(deadline=None)
@given(references(), st.data())
def test_selections_survive_pickling_without_the_rest(
    case: tuple[int, Seen], data: st.DataObject
) -> None:
    ndim, rows = case
    refs = round_trip(build(ndim, rows), location_compression=ALWAYS)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(refs), max_size=len(refs))), dtype=np.bool_
    )
    taken = pickle.loads(pickle.dumps(refs.take(mask)))
    expected = {at: row for (at, row), keep in zip(sorted(rows.items()), mask, strict=True) if keep}
    assert see(taken) == expected
    assert see(taken.with_plain_locations()) == expected


def test_a_sparse_selection_lets_go_of_a_large_buffer() -> None:
    chunks = [bytes([i % 256]) * 20_000 for i in range(100)]
    refs = inline_refs(np.arange(100)[:, None], chunks)
    assert refs.take(np.array([5])).nbytes < 21_000
    assert refs.take(np.array([5])).inline(0) == chunks[5]
    assert refs.take(np.arange(60)).inline(59) == chunks[59]
    assert refs.strings is not None
    assert refs.take(np.arange(60)).strings.buffer is refs.strings.buffer  # type: ignore[union-attr]


def test_many_lists_of_texts_are_joined() -> None:
    parts = [
        virtual_refs([[i]], [f"s3://b/{i}"], [0], [1], etags=[None if i == 2 else f"e{i}"])
        for i in range(4)
    ]
    parts.insert(2, native_refs([[9]], np.zeros((1, 12), np.uint8), [1]))
    joined = ChunkRefs.concat(parts)
    assert joined.locations(np.arange(4)) == [f"s3://b/{i}" for i in range(4)]
    assert joined.etags(np.arange(5)) == ["e0", "e1", None, "e3", None]


def test_etags_shared_to_multiply_memory_are_not_copied() -> None:
    rows = np.arange(40)
    texts = RefStrings(
        buffer=np.frombuffer(b"0123456789", np.uint8),
        starts=np.zeros(40, np.int64),
        lengths=np.ones(40, np.uint32),
        etag_starts=rows % 2,
        etag_lengths=np.full(40, 9, np.uint32),
    )
    assert texts.used_bytes() == 1 + 40 * 9
    assert texts.compact() is texts
    assert texts.take(rows[:1]).compact().etags(rows[:1]) == ["012345678"]


def test_memory_is_that_of_columns_texts_and_index() -> None:
    refs = far_away(3)
    assert refs.strings is not None
    columns = (refs.coords, refs.kind, refs.chunk_id, refs.offset, refs.length, refs.last_modified)
    plain = sum(column.nbytes for column in columns)
    assert refs.nbytes == plain + refs.strings.nbytes
    texts = refs.strings
    assert texts.nbytes == texts.buffer.nbytes + texts.starts.nbytes + texts.lengths.nbytes
    assert refs.find(np.array([[1]])).tolist() == [1]
    assert refs.nbytes == plain + refs.strings.nbytes + refs.order.nbytes
    native = native_refs([[0]], np.zeros((1, 12), np.uint8), [1])
    assert native.nbytes == sum(
        getattr(native, name).nbytes
        for name in ("coords", "kind", "chunk_id", "offset", "length", "last_modified")
    )
    assert virtual_refs([[0]], ["a"], [0], [1], etags=[None]).strings.etag_starts is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "make",
    [
        lambda: native_refs([[0], [0]], np.zeros((2, 12), np.uint8), [1, 1]),
        lambda: native_refs([[0]], np.zeros((1, 12), np.uint8), [0]),
        lambda: native_refs([[0]], np.zeros((1, 8), np.uint8), [1]),
        lambda: native_refs([[-1]], np.zeros((1, 12), np.uint8), [1]),
        lambda: native_refs([[2**32]], np.zeros((1, 12), np.uint8), [1]),
        lambda: native_refs([[0.5]], np.zeros((1, 12), np.uint8), [1]),
        lambda: native_refs([0], np.zeros((1, 12), np.uint8), [1]),
        lambda: inline_refs([[0]], [b""]),
        lambda: inline_refs([[0]], [b"a", b"b"]),
        lambda: virtual_refs([[0]], [""], [0], [1]),
        lambda: virtual_refs([[0]], ["a", "b"], [0], [1]),
        lambda: virtual_refs([[0]], ["a"], [0], [1], location_of_row=np.array([1])),
        lambda: virtual_refs([[0]], ["a"], [0], [1], etags=["x", "y"]),
        lambda: virtual_refs([[0]], ["a"], [0], [1], last_modified=[2**32]),
        lambda: ChunkRefs.concat([]),
        lambda: ChunkRefs.concat([inline_refs([[0]], [b"a"]), inline_refs([[0, 0]], [b"a"])]),
        lambda: ChunkRefs.concat([inline_refs([[0]], [b"a"])] * 2),
        lambda: inline_refs([[0], [1]], [b"a", b"b"]).take(np.array([1, 0])),
        lambda: inline_refs([[0]], [b"a"]).location(0),
        lambda: far_away(1).inline(0),
        lambda: encode(
            Manifest(
                id=ManifestId(b"m" * 12),
                arrays=(ArrayManifest(node_id=NODE, refs=ChunkRefs.empty(1)),) * 2,
            )
        ),
    ],
)
def test_wrong_input_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_other_columns_of_blank_references_are_zero() -> None:
    refs = ChunkRefs.blank(np.zeros((2, 1), np.uint32), KIND_NATIVE)
    columns = (refs.chunk_id, refs.offset, refs.length, refs.last_modified)
    assert [column.dtype for column in columns] == [np.uint8, np.uint64, np.uint64, np.uint32]
    assert not any(column.any() for column in columns)
    assert refs.chunk_id.shape == (2, 12)


def test_columns_cannot_be_changed() -> None:
    refs = far_away(3)
    with pytest.raises(ValueError, match="read-only"):
        refs.offset[0] = 1


def test_a_million_references_are_small_and_need_no_loop() -> None:
    axis = np.arange(100)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    generator = np.random.default_rng(3)
    ids = generator.integers(0, 256, (10**6, 12), dtype=np.uint8)
    refs = native_refs(grid, ids, generator.integers(1, 10**6, 10**6))
    data, encoding = counted_lines(lambda: encode(manifest_of(refs)))
    decoded, decoding = counted_lines(lambda: manifest.decode(data).arrays[0].refs)
    found = decoded
    _, indexing = counted_lines(found.order.bounds)
    rows, selecting = counted_lines(lambda: found.select_box((5, 5, 5), (6, 15, 15)))
    assert (found.coords == grid).all()
    assert (found.chunk_id == ids).all()
    assert len(rows) == 100
    # None of them has a loop over references.
    assert encoding + decoding + indexing + selecting < 10_000
    assert found.nbytes / 10**6 <= 100


def test_the_bytes_stay_as_they_are() -> None:
    """Bytes that change need a comparison with the files of the reference first."""
    rows: Seen = {
        (0, 1): (KIND_NATIVE, b"i" * 12, 0, 9),
        (0, 2): (KIND_NATIVE, b"j" * 12, 7, 2**40),
        (1, 0): (KIND_INLINE, b"inline"),
        (2, 2): (KIND_VIRTUAL, "s3://b/one.nc", 5, 6, "etag", 0),
        (3, 0): (KIND_VIRTUAL, "s3://b/one.nc", 11, 12, None, 1_700_000_000),
    }
    arrays = [build(2, rows), build(2, {at: rows[at] for at in ((0, 1), (0, 2))}), build(0, {})]
    arrays += [build(2, {(1, 0): rows[1, 0]}), far_away(3)]
    payload = encode_payload(manifest_of(*arrays), location_compression=None)
    assert hashlib.sha256(payload).hexdigest()[:16] == "5562cc6e0e1e7137"
