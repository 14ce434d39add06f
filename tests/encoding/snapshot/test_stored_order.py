"""Lists out of order are found and named, as other clients would miss what is in them."""

from __future__ import annotations

import pytest
from helpers.files import repo_infos
from helpers.files.foreign_manifests import library_manifest
from helpers.files.handmade_snapshots import made, node_table
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.repo_info.lists import REF
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_FILE
from icechunk_format.encoding.snapshot.stored_order import (
    stored_manifest,
    unsorted_in_repo,
    unsorted_in_snapshot,
    unsorted_in_transaction_log,
)
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.transaction_log import NODE_LISTS, TRANSACTION_LOG, UPDATED_CHUNKS
from icechunk_format.errors import FormatError

IDS = (b"a", b"b", b"c")


def refs(w, *names):
    return w.offsets([w.table(REF, name=w.string(name)) for name in names])


def flags(w, *numbers):
    content = b"".join(number.to_bytes(2, "little") for number in numbers)
    return w.records(content, count=len(numbers))


def payload(data, file_type):
    return unwrap(data, file_type=file_type, object_key="k").payload


REPO_LISTS = {
    "tags": refs,
    "branches": refs,
    "deleted_tags": lambda w, *names: w.offsets([w.string(name) for name in names]),
    "snapshots": lambda w, *names: w.offsets(
        [repo_infos.snapshot_table(w, id=name.encode() * 12) for name in names]
    ),
    "enabled_feature_flags": lambda w, *names: flags(w, *(ord(name) for name in names)),
    "disabled_feature_flags": lambda w, *names: flags(w, *(ord(name) for name in names)),
}


@pytest.mark.parametrize("name", REPO_LISTS)
@pytest.mark.parametrize(
    ("items", "is_sorted"),
    [("ab", True), ("aab", True), ("ba", False), ("abca", False), ("", True)],
)
def test_lists_of_a_repository(name, items, is_sorted):
    data = repo_infos.made(**{name: lambda w: REPO_LISTS[name](w, *items)})
    found = unsorted_in_repo(payload(data, FileType.REPO_INFO), object_key="k")
    assert found == ([] if is_sorted else [name])


def manifest_files(w, items):
    return w.offsets(
        [w.table(MANIFEST_FILE, id=item.encode() * 12, size_bytes=1) for item in items]
    )


@pytest.mark.parametrize(
    ("items", "is_sorted"), [("ab", True), ("aab", True), ("ba", False), ("abca", False)]
)
def test_lists_of_a_snapshot(items, is_sorted):
    def found(**changes):
        return unsorted_in_snapshot(payload(made(**changes), FileType.SNAPSHOT), object_key="k")

    def expected(name):
        return [] if is_sorted else [name]

    nodes = {"nodes": lambda w: w.offsets([node_table(w, f"/{item}") for item in items])}
    assert found(**nodes) == expected("nodes")
    new = {"manifest_files_v2": lambda w: manifest_files(w, items)}
    assert found(**new) == expected("manifest_files_v2")
    # Sizes come after the id, and have no order.
    content = b"".join(item.encode() * 12 + bytes([255 - n]) * 20 for n, item in enumerate(items))
    old = {
        "manifest_files_v2": None,
        "manifest_files": lambda w: w.records(content, count=len(items), alignment=8),
    }
    assert found(**old) == expected("manifest_files")
    assert found(**nodes, **new) == expected("nodes") + expected("manifest_files_v2")


@pytest.mark.parametrize("name", [*NODE_LISTS, "updated_chunks"])
@pytest.mark.parametrize(("items", "is_sorted"), [("ab", True), ("aab", True), ("ba", False)])
def test_lists_of_a_transaction_log(name, items, is_sorted):
    writer = TableWriter()
    raw = {one: b"".join(item.encode() * 8 for item in "ab") for one in NODE_LISTS}
    ids = [item.encode() * 8 for item in items]
    if name in raw:
        raw[name] = b"".join(ids)
    fields = {one: writer.records(data, count=len(data) // 8) for one, data in raw.items()}
    chunks = ids if name == "updated_chunks" else []
    none = writer.offsets([])
    fields["updated_chunks"] = writer.offsets(
        [writer.table(UPDATED_CHUNKS, node_id=one, chunks=none) for one in chunks]
    )
    root = writer.table(TRANSACTION_LOG, id=bytes(12), **fields)
    found = unsorted_in_transaction_log(writer.finish(root), object_key="k")
    assert found == ([] if is_sorted else [name])


def test_references_of_a_manifest():
    rows = [
        {"index": [0, 1], "inline": b"x"},
        {"index": [0, 1], "inline": b"y", "location": "s3://b/x"},
        {"index": [1, 0], "inline": b"z"},
    ]
    stored = stored_manifest(library_manifest(rows), object_key="k")
    assert stored.is_sorted
    (array,) = stored.arrays
    assert array.is_sorted
    assert array.repeated.tolist() == [[0, 1]]
    assert array.ambiguous.tolist() == [[0, 1]]
    turned = library_manifest(rows[::-1])
    (array,) = stored_manifest(turned, object_key="k").arrays
    assert not array.is_sorted
    assert array.repeated.tolist() == [[0, 1]]
    plain = library_manifest([rows[0], rows[2]])
    (array,) = stored_manifest(plain, object_key="k").arrays
    assert (array.is_sorted, len(array.repeated), len(array.ambiguous)) == (True, 0, 0)


@pytest.mark.parametrize(
    ("payloads", "is_ambiguous"),
    [
        ({"chunk_id": bytes(12)}, False),
        ({"chunk_id": bytes(12), "inline": b"x"}, True),
        ({"chunk_id": bytes(12), "location": "s3://b/x"}, True),
        ({"location": "s3://b/x", "compressed_location": b"x"}, True),
        ({"compressed_location": b"x"}, False),
    ],
)
def test_references_with_two_payloads_are_ambiguous(payloads, is_ambiguous):
    data = library_manifest([{"index": [3], **payloads}])
    (array,) = stored_manifest(data, object_key="k").arrays
    assert array.ambiguous.tolist() == ([[3]] if is_ambiguous else [])


def test_damage_names_the_object():
    for read, kind in (
        (unsorted_in_repo, "repo info"),
        (unsorted_in_snapshot, "snapshot"),
        (unsorted_in_transaction_log, "transaction log"),
        (stored_manifest, "manifest"),
    ):
        with raises(FormatError, object_key="place", file_type=kind):
            read(b"\xff" * 40, object_key="place")
