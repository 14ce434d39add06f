"""The tables of manifests and chunks lose no reference, however manifests are shared and cut.

What is shown is what readers find: of overlapping manifests the first one counts, a manifest that
several arrays share is one row, and no task opens more references than it was told to.
"""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from helpers.builder import new_location, new_repository
from helpers.spark.inspected_repositories import (
    GROUP,
    add_array,
    array_document,
    read,
    rows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ManifestId, NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import native_refs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode as encode_manifest
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.options.metadata_tables import METADATA_TABLES, STORED_COLUMNS
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_files as objects
from icechunk_format.storage.location import open_storage
from icechunk_format.tables.metadata_tables import manifests as manifest_rows
from icechunk_format.tables.metadata_tables import read as inspection
from icechunk_format.tables.metadata_tables.manifests import (
    chunk_batches,
    cut_manifests,
    manifest_batches,
)
from icechunk_format.tables.metadata_tables.nodes import variable_rows


def test_chunks_of_every_kind(weather):
    repository, first, second = weather
    rows = rows_of(repository, "chunks", snapshot_id=second)
    by_place = {(row["path"], *row["chunk"]): row for row in rows}
    assert set(by_place) == {
        ("/lat", 0),
        ("/sea/ice", 0, 0),
        ("/sea/ice", 1, 0),
        ("/t", 0, 0),
        ("/t", 0, 1),
        ("/t", 1, 1),
    }
    native, inline = by_place["/t", 1, 1], by_place["/t", 0, 1]
    assert (native["kind"], native["offset"], native["length"]) == ("native", 0, 200)
    assert (inline["kind"], inline["offset"], inline["length"]) == ("inline", None, 5)
    assert native["chunk_id"] is not None
    assert inline["chunk_id"] is None
    tagged, dated = by_place["/sea/ice", 0, 0], by_place["/sea/ice", 1, 0]
    assert (tagged["kind"], tagged["location"]) == ("virtual", "s3://other/a.nc")
    assert (tagged["offset"], tagged["length"], tagged["etag"]) == (8, 1000, "tag")
    assert dated["last_modified"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert tagged["last_modified"] is None
    assert len(rows_of(repository, "chunks", snapshot_id=first)) == 5
    assert {
        row["path"] for row in rows_of(repository, "chunks", snapshot_id=second, group="/sea")
    } == {"/sea/ice"}


def test_manifests_name_their_arrays_and_extents(weather):
    repository, _, second = weather
    rows = rows_of(repository, "manifests", snapshot_id=second)
    assert [row["manifest_id"] for row in rows] == sorted(row["manifest_id"] for row in rows)
    uses = {row["arrays"][0]: row for row in rows}
    assert set(uses) == {"/lat", "/sea/ice", "/t"}
    assert uses["/t"]["num_chunk_refs"] == 3
    assert uses["/t"]["extents"] == [{"path": "/t", "start": [0, 0], "stop": [2, 2]}]
    listed = {row["manifest_id"] for row in rows_of(repository, "chunks", snapshot_id=second)}
    assert listed == {row["manifest_id"] for row in rows}
    stored = {key.key: key.size for key in repository.storage.list("manifests/")}
    for row in rows:
        assert stored[f"manifests/{row['manifest_id']}"] == row["size_bytes"]
    assert len(rows_of(repository, "manifests", snapshot_id=second, group="/sea")) == 1


def shared_manifests():
    """Build arrays that share manifests, use one twice, and overlap; one manifest is not listed."""
    storage = open_storage(new_location())
    node_ids = [NodeId(bytes([number] * 8)) for number in range(3)]
    grids = [np.argwhere(np.ones(shape)) for shape in ((4, 3), (5,), (4, 3))]

    def manifest(number, nodes):
        made = Manifest(
            id=ManifestId(bytes([number] * 12)),
            arrays=tuple(
                ArrayManifest(
                    node_id=node_ids[n],
                    refs=native_refs(
                        grids[n],
                        np.full((len(grids[n]), 12), number, dtype=np.uint8),
                        np.full(len(grids[n]), number),
                    ),
                )
                for n in nodes
            ),
        )
        storage.put(manifest_key(made.id), encode_manifest(made))

    manifest(1, [0, 1])
    manifest(2, [0, 2])
    manifest(3, [2])
    uses = {
        "/a": (0, [1, 2], [[[0, 2], [0, 3]], [[1, 4], [0, 2]]]),
        "/b": (1, [1, 1], [[[0, 2]], [[4, 5]]]),
        "/c": (2, [3], [[[0, 4], [0, 3]]]),
    }
    nodes = tuple(
        NodeSnapshot(
            id=node_ids[n],
            path=path,
            user_data=array_document(grids[n].max(axis=0) + 1, (1,) * grids[n].shape[1]),
            array=ArrayNode(
                shape=tuple(grids[n].max(axis=0) + 1),
                num_chunks=tuple((grids[n].max(axis=0) + 1).tolist()),
                manifests=ManifestRefs(
                    ids=np.array([[i] * 12 for i in ids], dtype=np.uint8),
                    extents=np.array(extents, dtype=np.uint32),
                ),
            ),
        )
        for path, (n, ids, extents) in uses.items()
    )
    files = ManifestFiles.of(
        np.array([[1] * 12, [2] * 12, [9] * 12], dtype=np.uint8), [0, 500, 600], [17, 24, 1]
    )
    return storage, Snapshot(
        id=SnapshotId(bytes(12)), flushed_at=0, message="", nodes=nodes, manifest_files=files
    )


def test_shared_and_overlapping_manifests_are_shown_as_readers_find_them():
    storage, snapshot = shared_manifests()
    parts = [(0, 0, 2), (1, 0, 2), (2, 0, 1)]
    columns = ["path", "chunk", "length"]
    found = pa.Table.from_batches(chunk_batches(storage, snapshot, parts, columns)).to_pylist()
    places = {(row["path"], *row["chunk"]): row["length"] for row in found}
    assert len(places) == len(found)
    # The first extents that hold a chunk decide: row 1 of /a is of manifest 1, not of 2.
    expected = {("/a", i, j): 1 for i in range(2) for j in range(3)}
    expected |= {("/a", i, j): 2 for i in range(2, 4) for j in range(2)}
    expected |= {("/b", i): 1 for i in (0, 1, 4)}
    expected |= {("/c", i, j): 3 for i in range(4) for j in range(3)}
    assert places == expected
    # The same when each manifest is a task of its own.
    alone = [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2), (2, 0, 1)]
    again = pa.Table.from_batches(chunk_batches(storage, snapshot, alone, columns)).to_pylist()
    assert again == found
    rows = list(variable_rows(storage, snapshot, parts, METADATA_TABLES["variables"].names))
    assert [(row["stored_chunks"], row["missing_chunks"]) for row in rows] == [
        (10, 2),
        (3, 2),
        (12, 0),
    ]
    assert [row["manifest_count"] for row in rows] == [2, 1, 1]


def test_manifests_that_are_shared_unlisted_or_unused():
    _, snapshot = shared_manifests()
    rows = pa.Table.from_batches(manifest_batches(snapshot, [0, 1, 2], unused=True)).to_pylist()
    assert [(row["size_bytes"], row["num_chunk_refs"], row["arrays"]) for row in rows] == [
        (None, 17, ["/a", "/b"]),
        (500, 24, ["/a"]),
        (None, None, ["/c"]),
        (600, 1, []),
    ]
    assert rows[0]["extents"] == [
        {"path": "/a", "start": [0, 0], "stop": [2, 3]},
        {"path": "/b", "start": [0], "stop": [2]},
        {"path": "/b", "start": [4], "stop": [5]},
    ]
    assert rows[3]["extents"] == []
    used = pa.Table.from_batches(manifest_batches(snapshot, [1], unused=False)).to_pylist()
    assert [row["arrays"] for row in used] == [["/b"]]


def test_chunks_outside_of_a_shrunk_grid_are_stored_but_miss_nothing():
    storage, snapshot = shared_manifests()
    node = snapshot.nodes[2]
    shrunk = replace(node, array=replace(node.array, shape=(2, 3), num_chunks=(2, 3)))
    snapshot = replace(snapshot, nodes=(*snapshot.nodes[:2], shrunk))
    (row,) = variable_rows(storage, snapshot, [(2, 0, 1)], STORED_COLUMNS)
    assert (row["stored_chunks"], row["missing_chunks"]) == (12, 0)


@given(
    st.lists(st.lists(st.integers(1, 50), max_size=8), max_size=6),
    st.integers(1, 120),
)
@settings(max_examples=200, deadline=None)
def test_cutting_covers_every_manifest_once_and_bounds_tasks(references, target):
    costs = [np.array(counts, dtype=np.float64) for counts in references]
    arrays = [number * 10 for number in range(len(costs))]
    tasks = cut_manifests(arrays, costs, target)
    covered = [
        (array, manifest)
        for task in tasks
        for array, start, stop in task
        for manifest in range(start, stop)
    ]
    assert covered == [(a, m) for a, c in zip(arrays, costs, strict=True) for m in range(len(c))]
    for task in tasks:
        each = [
            references[array // 10][m] for array, start, stop in task for m in range(start, stop)
        ]
        assert sum(each) - each[-1] < target
        assert len({part[0] for part in task}) == len(task)


def test_many_references_are_cut_and_opened_a_few_at_a_time(monkeypatch):
    """No task, and no moment of one, opens more references than it was told to."""
    repository = new_repository()
    session = repository.writable_session()
    session.create_group("/", GROUP)
    add_array(session, "/x", (4000,), (1,))
    coords = np.arange(4000).reshape(-1, 1)
    ids = np.zeros((4000, 12), dtype=np.uint8)
    ids[:, :2] = coords.astype("<u2").view(np.uint8)
    session.set_refs("/x", native_refs(coords, ids, np.full(4000, 7)))
    tip = session.commit("many").snapshot_id
    snapshot = repository.snapshot(tip)
    node = snapshot.nodes[-1]
    # The same references behind forty extents: what a split manifest list looks like.
    extents = np.stack([np.arange(0, 4000, 100), np.arange(100, 4001, 100)], axis=-1)
    split = ManifestRefs(
        ids=np.repeat(node.array.manifests.ids[:1], 40, axis=0),
        extents=extents.reshape(40, 1, 2).astype(np.uint32),
    )
    nodes = (*snapshot.nodes[:-1], replace(node, array=replace(node.array, manifests=split)))
    snapshot = replace(snapshot, nodes=nodes)
    monkeypatch.setattr(Repository, "snapshot", lambda *_: snapshot)
    monkeypatch.setattr(inspection, "pinned_snapshot", lambda *_: snapshot)
    monkeypatch.setattr(manifest_rows, "_REFS_AT_ONCE", 300)
    opened = []
    real = objects.load_manifests
    monkeypatch.setattr(
        "icechunk_format.repository.files.chunk_lookup.load_manifests",
        lambda storage, ids: opened.append(len(ids)) or real(storage, ids),
    )
    rows, tasks = read(repository, "chunks", snapshot_id=tip, refs_per_task=450)
    assert sorted(row["chunk"][0] for row in rows) == list(range(4000))
    assert 8 <= len(tasks) <= 12
    assert max(opened) <= 4
    (row,) = rows_of(repository, "variables", snapshot_id=tip, refs_per_task=450)
    assert (row["stored_chunks"], row["stored_bytes"]) == (4000, 28_000)
