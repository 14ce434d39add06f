"""Manifests keep every reference, whatever its kind, and lookups see what was written.

Damage gives typed errors in bounded time, and a million references stay small and fast.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from typing import Any

import flatbuffers
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.spec import location_dictionary, manifest
from icechunk_format.spec.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL, ChunkRefs
from icechunk_format.spec.envelope import FileType, unwrap
from icechunk_format.spec.ids import ManifestId, NodeId
from icechunk_format.spec.location_dictionary import LocationCompression
from icechunk_format.spec.manifest import (
    ArrayManifest,
    ChunkRefSlot,
    Manifest,
    ManifestSlot,
)
from icechunk_format.spec.manifest_encode import encode, encode_payload
from icechunk_format.spec.ref_columns import inline_refs, native_refs, virtual_refs
from icechunk_format.spec.vector_assembly import (
    Assembly,
    TableLayout,
    bytes_field,
    offset_field,
)

NODE = NodeId(b"node-id-")
ALWAYS = LocationCompression(min_num_chunks=1)

# A reference as a test sees it: coordinates and everything that a reader would use.
Seen = dict[tuple[int, ...], tuple[Any, ...]]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
locations = st.sampled_from(["s3://b/one.nc", "s3://b/two.nc"]) | texts
u64 = st.integers(0, 2**64 - 1)
native = st.tuples(
    st.just(KIND_NATIVE),
    st.binary(min_size=12, max_size=12),
    st.sampled_from([0, 0, 7, 2**40]),
    st.integers(1, 2**63),
)
inline = st.tuples(st.just(KIND_INLINE), st.binary(min_size=1, max_size=40))
virtual = st.tuples(
    st.just(KIND_VIRTUAL),
    locations,
    u64,
    u64,
    st.none() | texts,
    st.sampled_from([0, 1_700_000_000]),
)


@st.composite
def references(draw: st.DrawFn) -> tuple[int, Seen]:
    ndim = draw(st.integers(0, 3))
    kinds = draw(
        st.sampled_from([native, inline, virtual, native | inline, native | inline | virtual])
    )
    coordinate = st.tuples(*[st.integers(0, 3) | st.just(2**32 - 1)] * ndim)
    return ndim, draw(st.dictionaries(coordinate, kinds, max_size=12))


def build(ndim: int, rows: Seen) -> ChunkRefs:
    """Make columns from rows with the three constructors, one per kind."""
    parts = [ChunkRefs.empty(ndim)]
    for kind in (KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL):
        chosen = {at: row for at, row in rows.items() if row[0] == kind}
        if not chosen:
            continue
        coords = np.array(list(chosen), dtype=np.int64).reshape(len(chosen), ndim)
        columns = [list(column) for column in zip(*chosen.values(), strict=True)]
        numbers = [np.array(c, dtype=np.uint64) if c[0].__class__ is int else c for c in columns]
        if kind == KIND_NATIVE:
            ids = np.frombuffer(b"".join(columns[1]), dtype=np.uint8).reshape(-1, 12)
            parts.append(native_refs(coords, ids, numbers[3], numbers[2]))
        elif kind == KIND_INLINE:
            parts.append(inline_refs(coords, columns[1]))
        else:
            parts.append(
                virtual_refs(
                    coords,
                    columns[1],
                    numbers[2],
                    numbers[3],
                    etags=columns[4],
                    last_modified=numbers[5],
                )
            )
    return ChunkRefs.concat(parts)


def see(refs: ChunkRefs) -> Seen:
    """Turn columns back into rows, checking the columns that a kind does not use."""
    seen: Seen = {}
    for row, coords in enumerate(refs.coords.tolist()):
        kind = int(refs.kind[row])
        offset, length = int(refs.offset[row]), int(refs.length[row])
        if kind == KIND_NATIVE:
            found: tuple[Any, ...] = (kind, refs.chunk_id[row].tobytes(), offset, length)
        elif kind == KIND_INLINE:
            found = (kind, refs.inline(row))
            assert (offset, length) == (0, len(found[1]))
        else:
            modified = int(refs.last_modified[row])
            found = (kind, refs.location(row), offset, length, refs.etag(row), modified)
        seen[tuple(coords)] = found
    assert list(seen) == sorted(seen)
    return seen


def manifest_of(*arrays: ChunkRefs) -> Manifest:
    return Manifest(
        id=ManifestId(b"manifest-id!"),
        arrays=tuple(
            ArrayManifest(node_id=NodeId(bytes([i]) * 8), refs=refs)
            for i, refs in enumerate(arrays)
        ),
    )


def round_trip(refs: ChunkRefs, **options: Any) -> ChunkRefs:
    found = manifest.decode(encode(manifest_of(refs), **options))
    return found.arrays[0].refs


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


def far_away(count: int, *, extra: str = "") -> ChunkRefs:
    """Refer to ``count`` different files with long names."""
    names = [f"s3://bucket/archive/year={i % 30}/GOES16_{i:07}{extra}.nc" for i in range(count)]
    rows = np.arange(count)
    return virtual_refs(rows[:, None], names, rows * 10, np.full(count, 5))


def test_many_locations_get_a_dictionary_and_few_do_not() -> None:
    few = encode_payload(manifest_of(far_away(999)))
    many = encode_payload(manifest_of(far_away(1000)))
    assert b"GOES16_0000777" in few
    assert b"GOES16_0000777" not in many
    assert len(many) < len(few)
    found = manifest.decode_payload(many).arrays[0].refs
    assert found.texts is not None
    assert found.texts.dictionary is not None
    assert found.locations(np.arange(1000)) == far_away(1000).locations(np.arange(1000))
    assert found.location(777).startswith("s3://bucket/archive/year=27/GOES16_0000777")


def test_arrays_without_locations_are_left_alone_by_compression() -> None:
    rows = np.arange(5)[:, None]
    arrays = [
        far_away(1500),
        native_refs(rows, np.zeros((5, 12), dtype=np.uint8), np.ones(5, dtype=np.int64)),
        inline_refs(rows, [b"chunk"] * 5),
    ]
    found = manifest.decode(encode(manifest_of(*arrays)))
    assert [see(entry.refs) for entry in found.arrays] == [see(refs) for refs in arrays]
    assert found.arrays[0].refs.texts is not None
    assert found.arrays[0].refs.texts.dictionary is not None


def test_new_locations_join_an_existing_dictionary() -> None:
    base = round_trip(far_away(2000))
    assert base.texts is not None
    changes = far_away(500, extra="_v2")
    merged = ChunkRefs.overlay(base, changes)
    found = round_trip(merged)
    assert found.texts is not None
    assert found.texts.dictionary == base.texts.dictionary
    assert found.texts.is_compressed is not None
    assert found.texts.is_compressed.all()
    expected = changes.locations(np.arange(500)) + base.locations(np.arange(500, 2000))
    assert found.locations(np.arange(2000)) == expected
    travelled = pickle.loads(pickle.dumps(found.take(np.array([3, 400, 1999]))))
    assert travelled.locations(np.arange(3)) == [expected[3], expected[400], expected[1999]]
    assert len(pickle.dumps(travelled)) < 6000


def test_different_dictionaries_are_replaced_by_one() -> None:
    first = round_trip(far_away(1500))
    other = round_trip(
        virtual_refs(
            np.arange(1500)[:, None] + 1500,
            [f"gs://elsewhere/{i:05}/data" for i in range(1500)],
            np.zeros(1500, dtype=np.int64),
            np.ones(1500, dtype=np.int64),
        )
    )
    joined = ChunkRefs.concat([first, other])
    found = round_trip(joined)
    assert found.locations(np.arange(3000)) == [
        *first.locations(np.arange(1500)),
        *other.locations(np.arange(1500)),
    ]
    assert found.texts is not None
    assert found.texts.dictionary is not None


def test_overlong_locations_stay_plain() -> None:
    names = ["s3://bucket/" + "x" * 2000, *[f"s3://bucket/{i:06}/name" for i in range(1500)]]
    rows = np.arange(len(names))
    refs = virtual_refs(rows[:, None], names, rows, rows + 1)
    found = round_trip(refs)
    assert found.texts is not None
    assert found.texts.is_compressed is not None
    assert found.texts.is_compressed.sum() == 1500
    assert found.locations(rows) == names


def test_locations_that_give_no_dictionary_stay_plain() -> None:
    rows = np.arange(1000)
    refs = virtual_refs(
        rows[:, None], ["a"], rows, rows + 1, location_of_row=np.zeros(1000, dtype=np.int64)
    )
    found = round_trip(
        refs, location_compression=LocationCompression(dictionary_max_training_samples=1)
    )
    assert found.locations(rows) == ["a"] * 1000
    assert found.texts is not None
    assert found.texts.dictionary is None


def test_a_file_name_is_kept_once_for_all_its_chunks() -> None:
    rows = np.arange(10_000)
    names = [f"s3://bucket/{'long/' * 30}{i}.nc" for i in range(100)]
    refs = virtual_refs(rows[:, None], names, rows, rows + 1, location_of_row=rows // 100)
    found = round_trip(refs, location_compression=None)
    assert found.nbytes / len(rows) < 60
    assert manifest_of(found, found).nbytes == 2 * found.nbytes
    assert found.location(9999) == names[99]


# -- what other writers may have written ------------------------------------------------------


def library_manifest(
    refs: list[dict[str, Any]],
    *,
    algorithm: int | None = None,
    dictionary: bytes | None = None,
) -> bytes:
    """Write one array with the flatbuffers library; a reference is a map of field to value."""
    builder = flatbuffers.Builder(256)
    tables = []
    for ref in refs:
        vectors = {
            name: builder.CreateByteVector(ref[name])
            for name in ("inline", "compressed_location")
            if name in ref
        }
        vectors |= {
            name: builder.CreateString(ref[name])
            for name in ("location", "checksum_etag")
            if name in ref
        }
        if "index" in ref:
            builder.StartVector(4, len(ref["index"]), 4)
            for value in reversed(ref["index"]):
                builder.PrependUint32(value)
            vectors["index"] = builder.EndVector()
        builder.StartObject(10)
        for slot, name in enumerate(
            ("index", "inline", "", "", "", "location", "checksum_etag", "", "compressed_location")
        ):
            if name in vectors:
                builder.PrependUOffsetTRelativeSlot(slot, vectors[name], 0)
        builder.PrependUint64Slot(2, ref.get("offset", 0), 0)
        builder.PrependUint64Slot(3, ref.get("length", 0), 0)
        if "chunk_id" in ref:
            builder.Prep(1, 12)
            for byte in reversed(ref["chunk_id"]):
                builder.PrependByte(byte)
            builder.PrependStructSlot(4, builder.Offset(), 0)
        builder.PrependUint32Slot(7, ref.get("last_modified", 0), 0)
        tables.append(builder.EndObject())
    dictionary_at = builder.CreateByteVector(dictionary) if dictionary is not None else None
    vector = offset_vector(builder, tables)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, vector, 0)
    struct_slot(builder, 0, NODE.raw)
    array = builder.EndObject()
    arrays = offset_vector(builder, [array])
    builder.StartObject(5)
    struct_slot(builder, 0, b"manifest-id!")
    builder.PrependUOffsetTRelativeSlot(1, arrays, 0)
    if dictionary_at is not None:
        builder.PrependUOffsetTRelativeSlot(2, dictionary_at, 0)
    if algorithm is not None:
        builder.PrependUint8Slot(3, algorithm, 1)
    builder.Finish(builder.EndObject(), file_identifier=b"Ichk")
    return bytes(builder.Output())


def offset_vector(builder: Any, positions: list[int]) -> int:
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return builder.EndVector()


def struct_slot(builder: Any, slot: int, raw: bytes) -> None:
    builder.Prep(1, len(raw))
    for byte in reversed(raw):
        builder.PrependByte(byte)
    builder.PrependStructSlot(slot, builder.Offset(), 0)


def decoded(*refs: dict[str, Any], **options: Any) -> ChunkRefs:
    return manifest.decode_payload(library_manifest(list(refs), **options)).arrays[0].refs


def test_of_several_payloads_the_first_in_order_counts() -> None:
    dictionary = b"s3://bucket/"
    frame = zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(dictionary)).compress(
        b"s3://bucket/compressed"
    )
    everything: dict[str, Any] = {
        "chunk_id": b"c" * 12,
        "compressed_location": frame,
        "location": "s3://plain",
        "inline": b"inline",
        "offset": 5,
        "length": 6,
    }
    rows = []
    for column, name in enumerate(["", "chunk_id", "compressed_location", "location"]):
        everything.pop(name, None)
        rows.append(everything | {"index": [column]})
    refs = decoded(*rows, dictionary=dictionary)
    assert see(refs) == {
        (0,): (KIND_NATIVE, b"c" * 12, 5, 6),
        (1,): (KIND_VIRTUAL, "s3://bucket/compressed", 5, 6, None, 0),
        (2,): (KIND_VIRTUAL, "s3://plain", 5, 6, None, 0),
        (3,): (KIND_INLINE, b"inline"),
    }


def test_chunks_may_be_packed_into_one_object() -> None:
    refs = decoded(
        {"index": [0], "chunk_id": b"p" * 12, "length": 10},
        {"index": [1], "chunk_id": b"p" * 12, "offset": 10, "length": 20},
    )
    assert see(refs) == {
        (0,): (KIND_NATIVE, b"p" * 12, 0, 10),
        (1,): (KIND_NATIVE, b"p" * 12, 10, 20),
    }


def test_references_out_of_order_are_sorted_and_the_first_of_equals_kept() -> None:
    refs = decoded(
        {"index": [2, 1], "inline": b"b"},
        {"index": [0, 9], "inline": b"a"},
        {"index": [2, 1], "inline": b"late"},
    )
    assert see(refs) == {(0, 9): (KIND_INLINE, b"a"), (2, 1): (KIND_INLINE, b"b")}


def test_an_array_without_references_is_fine() -> None:
    refs = decoded()
    assert len(refs) == 0
    assert refs.select_box((), ()).tolist() == []


def test_a_scalar_has_one_reference_without_coordinates() -> None:
    refs = decoded({"index": [], "inline": b"x"})
    assert refs.coords.shape == (1, 0)
    assert refs.find(np.zeros((1, 0), dtype=np.uint32)).tolist() == [0]
    assert refs.select_box((), ()).tolist() == [0]
    assert refs.extents().shape == (0, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"index": [0]}], "neither chunk id, nor location, nor inline"),
        ([{"inline": b"x"}], "required field is absent"),
        ([{"index": [0], "inline": b"x"}, {"index": [0, 0], "inline": b"x"}], "of 1 and of 2"),
    ],
)
def test_broken_references_are_named(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decoded(*rows)


def test_compressed_locations_need_a_dictionary_and_the_algorithm() -> None:
    frame = zstandard.compress(b"s3://bucket/x")
    row = {"index": [0], "compressed_location": frame}
    for options in ({}, {"algorithm": 0, "dictionary": b"anything"}):
        refs = decoded(row, {"index": [1], "location": "s3://plain"}, **options)
        assert refs.location(1) == "s3://plain"
        with pytest.raises(FormatError, match="no dictionary"):
            refs.location(0)
    with pytest.raises(UnsupportedError, match="algorithm 7"):
        decoded(row, algorithm=7)


def test_damaged_texts_fail_when_they_are_used() -> None:
    refs = decoded(
        {"index": [0], "compressed_location": b"not a frame"},
        {"index": [1], "compressed_location": zstandard.compress(b"\xff\xfe")},
        {"index": [2], "compressed_location": zstandard.compress(b"x" * 2000)},
        {
            "index": [3],
            "compressed_location": zstandard.ZstdCompressor(write_content_size=False).compress(
                b"y" * 2000
            ),
        },
        {"index": [4], "location": b"\xff\xfe", "checksum_etag": b"\xff"},
        {"index": [5], "compressed_location": b""},
        dictionary=b"raw content dictionary",
    )
    assert len(refs) == 6
    for row in range(6):
        with pytest.raises(FormatError):
            refs.location(row)
    with pytest.raises(FormatError, match="UTF-8"):
        refs.etag(4)


def test_lists_shared_by_arrays_to_multiply_memory_are_refused() -> None:
    made = Assembly("the test manifest")
    root = made.root(TableLayout({"id": bytes_field(0, 12), "arrays": offset_field(1)}))
    at, cells = made.offset_vector(50)
    root.point("arrays", at)
    arrays = made.records(TableLayout({"node_id": bytes_field(0, 8), "refs": offset_field(1)}), 50)
    cells.point(slice(None), arrays.positions)
    at, cells = made.offset_vector(1)
    arrays.point("refs", np.full(50, at))
    layout = TableLayout(
        {"index": offset_field(ChunkRefSlot.INDEX), "chunk_id": bytes_field(4, 12)}, embedded=500
    )
    refs = made.records(layout, 1)
    cells.point(slice(None), refs.positions)
    refs.point("index", refs.positions + layout.offsets["embedded_length"])
    refs.rows["embedded_length"] = 500
    with pytest.raises(FormatError, match="coordinates claim more bytes"):
        manifest.decode_payload(made.finish())


def test_texts_are_cut_from_wherever_they_lie() -> None:
    names = [f"s3://bucket/år/{i:04}" for i in range(1000)]
    rows = np.arange(1000)
    refs = round_trip(virtual_refs(rows[:, None], names, rows, rows + 1))
    plain = refs.with_plain_locations()
    assert plain.locations(rows) == names
    assert plain.locations(np.array([3, 999])) == [names[3], names[999]]
    buffer, starts, lengths = refs.location_ranges(np.array([7]))
    assert buffer[starts[0] : starts[0] + lengths[0]].tobytes().decode() == names[7]
    assert repr(plain) == "ChunkRefs(ndim=1, native=0, inline=0, virtual=1000)"


def test_a_sparse_selection_lets_go_of_a_large_buffer() -> None:
    chunks = [bytes([i % 256]) * 20_000 for i in range(100)]
    refs = inline_refs(np.arange(100)[:, None], chunks)
    assert refs.take(np.array([5])).nbytes < 21_000
    assert refs.take(np.array([5])).inline(0) == chunks[5]
    assert refs.take(np.arange(60)).inline(59) == chunks[59]


def test_nothing_to_compress_is_fine() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    data = np.zeros(0, dtype=np.uint8)
    assert location_dictionary.train_dictionary([], max_size=10, level=3) is None
    made = location_dictionary.compress(b"dictionary", data, nothing, nothing, level=3)
    assert made[0].size == 0
    found = location_dictionary.decompress(b"dictionary", data, nothing, nothing, object_key="m")
    assert found[0].size == 0
    long = np.array([2000], dtype=np.int64)
    with pytest.raises(InvalidInputError, match="2000 bytes"):
        location_dictionary.compress(b"d", np.zeros(2000, np.uint8), long - 2000, long, level=3)


def test_frames_without_a_size_are_read() -> None:
    dictionary = b"s3://bucket/"
    compressor = zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary), write_content_size=False
    )
    refs = decoded(
        {"index": [0], "compressed_location": compressor.compress(b"s3://bucket/one")},
        {"index": [1], "compressed_location": compressor.compress(b"s3://bucket/two")},
        dictionary=dictionary,
    )
    assert refs.locations(np.arange(2)) == ["s3://bucket/one", "s3://bucket/two"]


def test_texts_shared_to_multiply_memory_are_not_copied() -> None:
    # 5,000 references that take turns with two names of 100 kB: 500 MB when copied one by one.
    made = Assembly("the test manifest")
    root = made.root(
        TableLayout(
            {"id": bytes_field(ManifestSlot.ID, 12), "arrays": offset_field(ManifestSlot.ARRAYS)}
        )
    )
    arrays_at, arrays = made.offset_vector(1)
    root.point("arrays", arrays_at)
    array = made.records(TableLayout({"node_id": bytes_field(0, 8), "refs": offset_field(1)}), 1)
    arrays.point(slice(None), array.positions)
    refs_at, cells = made.offset_vector(5000)
    array.point("refs", refs_at)
    layout = TableLayout(
        {
            "index": offset_field(ChunkRefSlot.INDEX),
            "location": offset_field(ChunkRefSlot.LOCATION),
        },
        embedded=1,
    )
    records = made.records(layout, 5000)
    cells.point(slice(None), records.positions)
    records.point("index", records.positions + layout.offsets["embedded_length"])
    records.rows["embedded_length"] = 1
    records.rows["embedded"] = np.arange(5000)[:, None]
    names = [made.string(letter * 100_000) for letter in "xy"]
    records.point("location", np.array(names)[np.arange(5000) % 2])
    refs = manifest.decode_payload(made.finish()).arrays[0].refs
    assert refs.nbytes < 1_000_000
    assert refs.location(4999) == "y" * 100_000
    assert refs.compact().nbytes < 1_000_000
    assert len(pickle.dumps(refs)) < 1_000_000


# -- what callers may get wrong ---------------------------------------------------------------


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


def test_columns_cannot_be_changed() -> None:
    refs = far_away(3)
    with pytest.raises(ValueError, match="read-only"):
        refs.offset[0] = 1


# -- damage -----------------------------------------------------------------------------------


def use(whole: Manifest) -> None:
    """Touch everything that a reader would."""
    for entry in whole.arrays:
        refs = entry.refs
        virtual_rows = np.flatnonzero(refs.kind == KIND_VIRTUAL)
        with contextlib.suppress(FormatError):
            refs.locations(virtual_rows)
        refs.etags(virtual_rows)
        for row in np.flatnonzero(refs.kind == KIND_INLINE).tolist():
            refs.inline(row)
        refs.select_box([0] * refs.ndim, [2**32] * refs.ndim)
        refs.find(refs.coords)


def test_damage_only_gives_typed_errors_in_bounded_time() -> None:
    generator = np.random.default_rng(11)
    mixed: Seen = {
        (i, j): [
            (KIND_NATIVE, bytes([i]) * 12, j, 9),
            (KIND_INLINE, bytes([j + 1]) * 7),
            (KIND_VIRTUAL, f"s3://bucket/some/file/{i}", 4, 5, "tag", 6),
        ][(i + j) % 3]
        for i in range(4)
        for j in range(4)
    }
    whole = manifest_of(build(2, mixed), far_away(40))
    files = [
        encode(whole, location_compression=policy, spec_version=version)
        for policy, version in ((ALWAYS, 2), (None, 1))
    ]
    payloads = [unwrap(f, file_type=FileType.MANIFEST, object_key="m").payload for f in files]
    payloads.append(
        library_manifest(
            [
                {"index": [i], "location": f"s3://b/{i}", "checksum_etag": "e", "length": 4}
                if i % 2
                else {"index": [i], "inline": b"abc"}
                for i in range(12)
            ]
        )
    )
    interesting = np.array([0, 1, 2, 4, 8, 12, 16, 127, 128, 254, 255], dtype=np.uint8)
    refused = 0
    begin = time.process_time()
    for mutant in range(2000):
        broken = bytearray(payloads[mutant % len(payloads)])
        for at in generator.integers(0, len(broken), generator.integers(1, 4)).tolist():
            broken[at] = int(generator.choice(interesting))
        if mutant % 10 == 0:
            del broken[int(generator.integers(0, len(broken))) :]
        try:
            use(manifest.decode_payload(bytes(broken), object_key="manifests/X"))
        except (FormatError, UnsupportedError):
            refused += 1
    for mutant in range(1000):
        broken = bytearray(files[mutant % 2])
        broken[int(generator.integers(0, len(broken)))] ^= 1 << int(generator.integers(0, 8))
        try:
            use(manifest.decode(bytes(broken), object_key="manifests/X"))
        except (FormatError, UnsupportedError):
            refused += 1
    print(f"{refused} of 3000 refused in {time.process_time() - begin:.1f} s")
    assert refused > 500
    assert time.process_time() - begin < 60


# -- size and speed ---------------------------------------------------------------------------


def test_a_million_references_are_small_and_fast() -> None:
    axis = np.arange(100)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    generator = np.random.default_rng(3)
    ids = generator.integers(0, 256, (10**6, 12), dtype=np.uint8)
    refs = native_refs(grid, ids, generator.integers(1, 10**6, 10**6))
    times = [time.process_time()]
    data = encode(manifest_of(refs))
    times.append(time.process_time())
    found = manifest.decode(data).arrays[0].refs
    times.append(time.process_time())
    found.order.bounds()
    times.append(time.process_time())
    for corner in range(90):
        rows = found.select_box((corner, 5, 5), (corner + 1, 15, 15))
    times.append(time.process_time())
    encoding, decoding, indexing, selecting = np.diff(times)
    print(
        f"encode {encoding:.2f} s, decode {decoding:.2f} s, index {indexing * 1e3:.1f} ms, "
        f"box of 100 in {selecting / 90 * 1e6:.0f} us, {found.nbytes / 1e6:.0f} bytes per ref"
    )
    assert (found.coords == grid).all()
    assert (found.chunk_id == ids).all()
    assert len(rows) == 100
    assert decoding < 2
    assert encoding < 5
    assert found.nbytes / 10**6 <= 100
    assert selecting / 90 < 0.01
