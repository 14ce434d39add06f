"""Damage to a manifest gives typed errors, in bounded time and memory."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers.files.foreign_manifests import decoded, library_manifest
from helpers.files.manifest_rows import ALWAYS, Seen, build, far_away, manifest_of
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.manifest.encode import encode
from icechunk_format.encoding.tables.bulk_writer import Assembly, TableLayout
from icechunk_format.encoding.tables.byte_ranges import joined
from icechunk_format.errors import FormatError, UnsupportedError


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([{"index": [0]}], {"field": "refs"}),
        ([{"inline": b"x"}], {"field": "refs.index", "missing": "index"}),
        (
            [{"index": [0], "inline": b"x"}, {"index": [0, 0], "inline": b"x"}],
            {"field": "refs.index", "found": (1, 2)},
        ),
    ],
)
def test_broken_references_are_named(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    with raises(FormatError, **facts):
        decoded(*rows)


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
    with raises(FormatError, field="refs.checksum_etag"):
        refs.etag(4)


def test_lists_shared_by_arrays_to_multiply_memory_are_refused() -> None:
    made = Assembly("the test manifest")
    root = made.root(TableLayout(manifest.MANIFEST, ("id", "arrays")))
    at, arrays = made.table_vector(TableLayout(manifest.ARRAY_MANIFEST), 50)
    root.point("arrays", at)
    layout = TableLayout(manifest.CHUNK_REF, ("index", "chunk_id"), embedded=500)
    at, refs = made.table_vector(layout, 1)
    arrays.point("refs", np.full(50, at))
    refs.point("index", refs.positions + layout.offsets["embedded_length"])
    refs.rows["embedded_length"] = 500
    with raises(FormatError, match="coordinates take more bytes", field="refs.index"):
        manifest.decode_payload(made.finish())


def test_texts_shared_to_multiply_memory_are_not_copied() -> None:
    # 5,000 references that take turns with two names of 100 kB: 500 MB when copied one by one.
    made = Assembly("the test manifest")
    root = made.root(TableLayout(manifest.MANIFEST, ("id", "arrays")))
    arrays_at, array = made.table_vector(TableLayout(manifest.ARRAY_MANIFEST), 1)
    root.point("arrays", arrays_at)
    layout = TableLayout(manifest.CHUNK_REF, ("index", "location"), embedded=1)
    refs_at, records = made.table_vector(layout, 5000)
    array.point("refs", refs_at)
    records.point("index", records.positions + layout.offsets["embedded_length"])
    records.rows["embedded_length"] = 1
    records.rows["embedded"] = np.arange(5000)[:, None]
    names = made.byte_vectors(*joined([letter * 100_000 for letter in (b"x", b"y")]))
    records.point("location", names[np.arange(5000) % 2])
    refs = manifest.decode_payload(made.finish()).arrays[0].refs
    assert refs.nbytes < 1_000_000
    assert refs.location(4999) == "y" * 100_000
    assert refs.compact().nbytes < 1_000_000
    assert len(pickle.dumps(refs)) < 1_000_000


def test_texts_shared_by_arrays_to_multiply_memory_are_not_copied() -> None:
    # 200 arrays with one list of references, which has a name of 100 kB: 20 MB if copied for each.
    made = Assembly("the test manifest")
    root = made.root(TableLayout(manifest.MANIFEST, ("id", "arrays")))
    arrays_at, arrays = made.table_vector(TableLayout(manifest.ARRAY_MANIFEST), 200)
    root.point("arrays", arrays_at)
    layout = TableLayout(manifest.CHUNK_REF, ("index", "location"), embedded=1)
    refs_at, records = made.table_vector(layout, 1)
    arrays.point("refs", np.full(200, refs_at))
    records.point("index", records.positions + layout.offsets["embedded_length"])
    records.rows["embedded_length"] = 1
    records.point("location", made.byte_vectors(*joined([b"x" * 100_000])))
    file = made.finish()
    found = [array.refs.strings for array in manifest.decode_payload(file).arrays]
    assert all(texts is not None for texts in found)
    buffers = {id(texts.buffer): len(texts.buffer) for texts in found if texts is not None}
    assert sum(buffers.values()) < 5 * len(file)


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
    named: set[object] = set()
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
    for mutant in range(2000):
        broken = bytearray(payloads[mutant % len(payloads)])
        for at in generator.integers(0, len(broken), generator.integers(1, 4)).tolist():
            broken[at] = int(generator.choice(interesting))
        if mutant % 10 == 0:
            del broken[int(generator.integers(0, len(broken))) :]
        try:
            use(manifest.decode_payload(bytes(broken), object_key="manifests/X"))
        except (FormatError, UnsupportedError) as error:
            named.add(error.facts["object_key"])
            refused += 1
    for mutant in range(1000):
        broken = bytearray(files[mutant % 2])
        broken[int(generator.integers(0, len(broken)))] ^= 1 << int(generator.integers(0, 8))
        try:
            use(manifest.decode(bytes(broken), object_key="manifests/X"))
        except (FormatError, UnsupportedError) as error:
            named.add(error.facts["object_key"])
            refused += 1
    assert refused > 500
    assert named == {"manifests/X"}
