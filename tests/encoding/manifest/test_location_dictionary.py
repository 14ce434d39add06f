"""Locations are compressed with a dictionary where that pays, and are the same when read."""

from __future__ import annotations

import pickle

import numpy as np
import zstandard
from helpers.files.foreign_manifests import decoded
from helpers.files.manifest_rows import far_away, manifest_of, round_trip, see
from helpers.raised import raises

from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest import location_dictionary
from icechunk_format.encoding.manifest.chunk_refs import (
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.manifest.encode import encode, encode_payload
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression
from icechunk_format.encoding.tables.byte_ranges import ByteRanges
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError


def test_many_locations_get_a_dictionary_and_few_do_not() -> None:
    few = encode_payload(manifest_of(far_away(999)))
    many = encode_payload(manifest_of(far_away(1000)))
    assert b"GOES16_0000777" in few
    assert b"GOES16_0000777" not in many
    assert len(many) < len(few)
    found = manifest.decode_payload(many).arrays[0].refs
    assert found.strings is not None
    assert found.strings.dictionary is not None
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
    assert found.arrays[0].refs.strings is not None
    assert found.arrays[0].refs.strings.dictionary is not None


def test_new_locations_join_an_existing_dictionary() -> None:
    base = round_trip(far_away(2000))
    assert base.strings is not None
    changes = far_away(500, extra="_v2")
    merged = ChunkRefs.overlay(base, changes)
    found = round_trip(merged)
    assert found.strings is not None
    assert found.strings.dictionary == base.strings.dictionary
    assert found.strings.is_compressed is not None
    assert found.strings.is_compressed.all()
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
    assert found.strings is not None
    assert found.strings.dictionary is not None


def test_overlong_locations_stay_plain() -> None:
    longest = "s3://bucket/".ljust(1024, "x")
    names = [longest + "x", longest, *[f"s3://bucket/{i:06}/name" for i in range(1500)]]
    rows = np.arange(len(names))
    refs = virtual_refs(rows[:, None], names, rows, rows + 1)
    found = round_trip(refs)
    assert found.strings is not None
    assert found.strings.is_compressed is not None
    assert found.strings.is_compressed.sum() == 1501
    assert found.locations(rows) == names


def test_frames_of_overlong_locations_are_refused() -> None:
    for size in (1024, 1025):
        frame = np.frombuffer(zstandard.compress(b"x" * size), np.uint8)
        frames = ByteRanges(frame, np.array([0]), np.array([len(frame)]))
        if size == 1024:
            buffer, [start], _ = location_dictionary.decompress(b"d" * 9, frames, object_key="m")
            assert buffer[start : start + 1024].tobytes() == b"x" * 1024
            continue
        facts = {"object_key": "m", "file_type": "manifest", "field": "refs.compressed_location"}
        with raises(FormatError, match="expands to 1025 bytes", **facts):
            location_dictionary.decompress(b"d" * 9, frames, object_key="m")


def test_locations_that_give_no_dictionary_stay_plain() -> None:
    rows = np.arange(1000)
    refs = virtual_refs(
        rows[:, None], ["a"], rows, rows + 1, location_of_row=np.zeros(1000, dtype=np.int64)
    )
    found = round_trip(
        refs, location_compression=LocationCompression(dictionary_max_training_samples=1)
    )
    assert found.locations(rows) == ["a"] * 1000
    assert found.strings is not None
    assert found.strings.dictionary is None


def test_a_file_name_is_kept_once_for_all_its_chunks() -> None:
    rows = np.arange(10_000)
    names = [f"s3://bucket/{'long/' * 30}{i}.nc" for i in range(100)]
    refs = virtual_refs(rows[:, None], names, rows, rows + 1, location_of_row=rows // 100)
    found = round_trip(refs, location_compression=None)
    assert found.nbytes / len(rows) < 60
    assert manifest_of(found, found).nbytes == 2 * found.nbytes
    assert found.location(9999) == names[99]


def test_compressed_locations_need_a_dictionary_and_the_algorithm() -> None:
    frame = zstandard.compress(b"s3://bucket/x")
    row = {"index": [0], "compressed_location": frame}
    for options in ({}, {"algorithm": 0, "dictionary": b"anything"}):
        refs = decoded(row, {"index": [1], "location": "s3://plain"}, **options)
        assert refs.location(1) == "s3://plain"
        with raises(FormatError, field="location_dictionary"):
            refs.location(0)
    with raises(UnsupportedError, found=7, allowed=(0, 1)):
        decoded(row, algorithm=7)


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


def test_nothing_to_compress_is_fine() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    empty = ByteRanges(np.zeros(0, dtype=np.uint8), nothing, nothing)
    assert location_dictionary.train_dictionary([], max_size=10, level=3) is None
    assert location_dictionary.train_dictionary([b"", b""], max_size=2048, level=3) is None
    made = location_dictionary.compress(b"dictionary", empty, level=3)
    assert made[0].size == 0
    found = location_dictionary.decompress(b"dictionary", empty, object_key="m")
    assert found[0].size == 0
    long = np.array([2000], dtype=np.int64)
    too_long = ByteRanges(np.zeros(2000, np.uint8), long - 2000, long)
    with raises(InvalidInputError, found=2000, allowed=1024):
        location_dictionary.compress(b"d", too_long, level=3)


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
