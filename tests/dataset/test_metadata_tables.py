"""Metadata tables say what a repository holds, and divide the work without losing a reference.

Repositories are written with this project's own sessions, in memory, so that what each row must
say is known from what was written.
"""

import itertools
import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.arrays.data_types import parse_data_type
from icechunk_format.arrays.new_nodes import build_array_metadata, build_group_metadata
from icechunk_format.dataset import inspection, manifest_rows
from icechunk_format.dataset.inspection import plan_inspection, resolve_change, run_inspection
from icechunk_format.dataset.manifest_rows import chunk_batches, cut_manifests, manifest_batches
from icechunk_format.dataset.metadata_tables import METADATA_TABLES, STORED_COLUMNS
from icechunk_format.dataset.node_rows import group_rows, variable_rows
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.repository import objects
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.ids import ManifestId, NodeId, SnapshotId
from icechunk_format.spec.manifest import ArrayManifest, Manifest
from icechunk_format.spec.manifest_encode import encode as encode_manifest
from icechunk_format.spec.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.spec.object_keys import manifest_key
from icechunk_format.spec.ref_columns import inline_refs, native_refs, virtual_refs
from icechunk_format.spec.snapshot import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.storage.location import Location, open_storage

GROUP = build_group_metadata(attributes=None).to_bytes()
_numbers = itertools.count(1)


def new_location():
    return Location(f"memory://metadata-tables-{next(_numbers)}")


def read(repository, name, **arguments):
    """Read a table as Spark does: a pickled plan, task by task. Returns rows, and tasks."""
    plan = plan_inspection(repository, METADATA_TABLES[name], **arguments)
    context, tasks = pickle.loads(pickle.dumps((plan.context, plan.tasks)))
    rows = []
    for task in tasks:
        for batch in run_inspection(context, task):
            batch.validate(full=True)
            assert batch.schema == context.arrow_schema
            rows += batch.to_pylist()
    return rows, tasks


def rows_of(repository, name, **arguments):
    return read(repository, name, **arguments)[0]


def array_document(shape, chunks, *, dims=None, attributes=None, dtype="float32", shards=None):
    return build_array_metadata(
        shape=shape,
        data_type=parse_data_type(dtype, node_path="/x"),
        chunk_shape=chunks,
        shard_shape=shards,
        fill_value=0,
        dimension_names=dims,
        attributes=attributes or {},
        node_path="/x",
    ).to_bytes()


def add_array(session, path, shape, chunks, **arguments):
    shards = arguments.get("shards")
    session.create_array(
        path,
        array_document(shape, chunks, **arguments),
        shape=shape,
        num_chunks=[-(-n // c) for n, c in zip(shape, shards or chunks, strict=True)],
        dimension_names=arguments.get("dims"),
    )


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def weather(request):
    """Two commits: arrays of each kind of chunk; then one chunk more, and new metadata."""
    repository = Repository.create(new_location(), spec_version=request.param)
    session = repository.writable_session()
    session.create_group("/", build_group_metadata(attributes={"title": "é"}).to_bytes())
    session.create_group("/sea", GROUP)
    add_array(session, "/lat", (4,), (4,), dims=("lat",), dtype="float64")
    attributes = {"units": "K", "standard_name": "air_temperature", "coordinates": "height"}
    add_array(session, "/t", (4, 6), (2, 3), dims=("lat", "lon"), attributes=attributes)
    add_array(session, "/height", (), ())
    add_array(session, "/sea/ice", (8, 8), (2, 2), dims=(None, "x"), shards=(4, 8))
    session.set_chunk("/lat", (0,), b"i" * 9)
    session.set_refs(
        "/t",
        native_refs([(0, 0), (1, 1)], np.arange(24, dtype=np.uint8).reshape(2, 12), [100, 200]),
    )
    session.set_refs(
        "/sea/ice",
        virtual_refs(
            [(0, 0), (1, 0)],
            ["s3://other/a.nc", "s3://other/b.nc"],
            [8, 16],
            [1000, 2000],
            etags=["tag", None],
            last_modified=[0, 1_700_000_000],
        ),
    )
    first = session.commit("write it", metadata={"by": "us"}).snapshot_id
    repository.create_tag("v1", first)
    session = repository.writable_session()
    session.set_refs("/t", inline_refs([(0, 1)], [b"12345"]))
    session.update_metadata("/sea", build_group_metadata(attributes={"new": 1}).to_bytes())
    second = session.commit("change it").snapshot_id
    return repository, first, second


# --- versions ---------------------------------------------------------------------------------


def test_history_is_newest_first_and_at_any_version(weather):
    repository, first, second = weather
    rows = rows_of(repository, "history", snapshot_id=second)
    assert [row["message"] for row in rows[:2]] == ["change it", "write it"]
    assert [row["position"] for row in rows] == [0, 1, 2]
    assert rows[0]["parent_id"] == rows[1]["snapshot_id"] == str(first)
    assert rows[2]["parent_id"] is None
    assert json.loads(rows[1]["metadata"])["by"] == "us"
    assert abs((datetime.now(UTC) - rows[0]["committed_at"]).total_seconds()) < 60
    assert rows_of(repository, "history", snapshot_id=first)[0]["message"] == "write it"


def test_snapshots_name_their_refs_and_include_those_off_main(weather):
    repository, first, second = weather
    repository.create_branch("dev", first)
    session = repository.writable_session("dev")
    session.delete("/height")
    third = session.commit("elsewhere").snapshot_id
    rows = rows_of(repository, "snapshots")
    assert [row["snapshot_id"] for row in rows[:3]] == [str(third), str(second), str(first)]
    assert [(row["branches"], row["tags"]) for row in rows] == [
        (["dev"], []),
        (["main"], []),
        ([], ["v1"]),
        ([], []),
    ]
    assert [row["pruned_logs"] for row in rows] == [0] * 4
    if repository.spec_version == 2:
        # Version 2 lists what no ref reaches any more.
        repository.delete_branch("dev")
        assert len(rows_of(repository, "snapshots")) == 4


def test_refs_with_a_deleted_tag(weather):
    repository, first, second = weather
    repository.create_tag("gone", first)
    repository.delete_tag("gone")
    rows = rows_of(repository, "refs")
    assert [(row["name"], row["type"], row["snapshot_id"]) for row in rows] == [
        ("main", "branch", str(second)),
        ("v1", "tag", str(first)),
        ("gone", "deleted tag", None),
    ]
    assert rows[1]["committed_at"] < rows[0]["committed_at"]
    assert rows[2]["committed_at"] is None


def test_operations_are_the_log(weather):
    repository, first, second = weather
    rows = rows_of(repository, "operations")
    if repository.spec_version == 1:
        assert rows == []
        return
    assert [row["kind"] for row in rows] == [
        "new_commit",
        "tag_created",
        "new_commit",
        "repo_initialized",
    ]
    assert (rows[0]["branch"], rows[0]["snapshot_id"]) == ("main", str(second))
    assert (rows[1]["tag"], rows[1]["branch"]) == ("v1", None)
    assert json.loads(rows[2]["details"]) == {"branch": "main", "new_snap_id": str(first)}
    assert rows[0]["backup_path"] is None
    assert rows[1]["backup_path"].startswith("repo.")


def test_changes_by_node(weather):
    repository, first, second = weather
    assert resolve_change(repository) == (first, second)
    assert resolve_change(repository, older="v1", newer=str(second)) == (first, second)
    found = rows_of(repository, "changes", older_id=first, snapshot_id=second)
    assert [
        (row["path"], row["node_type"], row["change"], row["chunk_count"]) for row in found
    ] == [
        ("/sea", "group", "updated", None),
        ("/t", "array", "chunks", 1),
    ]


def test_a_move_is_a_change():
    repository = Repository.create(new_location())
    session = repository.writable_session()
    session.create_group("/", GROUP)
    session.create_group("/a", GROUP)
    add_array(session, "/a/x", (2,), (1,))
    session.commit("before")
    session = repository.writable_session()
    session.move("/a/x", "/y")
    session.commit("after")
    older, newer = resolve_change(repository)
    (row,) = rows_of(repository, "changes", older_id=older, snapshot_id=newer)
    assert (row["path"], row["change"], row["moved_from"]) == ("/y", "moved", "/a/x")
    assert row["node_type"] == "array"


def test_versions_of_changes_that_cannot_be_compared(weather):
    repository, first, second = weather
    with pytest.raises(NotFoundError, match=r"no branch or tag 'v2' in memory.*v1, main"):
        resolve_change(repository, newer="v2")
    with pytest.raises(NotFoundError, match="there is no snapshot"):
        resolve_change(repository, newer=str(SnapshotId(bytes(range(12)))))
    root = rows_of(repository, "history", snapshot_id=first)[-1]["snapshot_id"]
    with pytest.raises(InvalidInputError, match="first of its history"):
        resolve_change(repository, newer=root)
    repository.create_branch("v1", second)
    with pytest.raises(InvalidInputError, match="a branch and a tag"):
        resolve_change(repository, older="v1")
    with pytest.raises(InvalidInputError, match="not an ancestor"):
        rows_of(repository, "changes", older_id=second, snapshot_id=first)


# --- nodes ------------------------------------------------------------------------------------


def test_groups(weather):
    repository, first, second = weather
    rows = rows_of(repository, "groups", snapshot_id=second)
    assert [(row["path"], row["name"], row["array_count"], row["group_count"]) for row in rows] == [
        ("/", "", 3, 1),
        ("/sea", "sea", 1, 0),
    ]
    assert rows[0]["attributes"] == '{"title": "é"}'
    assert rows[1]["attributes"] == '{"new": 1}'
    assert rows_of(repository, "groups", snapshot_id=first)[1]["attributes"] == "{}"
    assert [
        row["path"] for row in rows_of(repository, "groups", snapshot_id=second, group="sea")
    ] == ["/sea"]


def test_variables(weather):
    repository, _, second = weather
    rows = {row["name"]: row for row in rows_of(repository, "variables", snapshot_id=second)}
    counts = {
        name: [row[column] for column in sorted(STORED_COLUMNS)] for name, row in rows.items()
    }
    assert sorted(STORED_COLUMNS) == [
        "missing_chunks",
        "stored_bytes",
        "stored_chunks",
        "virtual_bytes",
        "virtual_chunks",
    ]
    assert counts == {
        "height": [1, 0, 0, 0, 0],
        "ice": [0, 0, 2, 3000, 2],
        "lat": [0, 9, 1, 0, 0],
        "t": [1, 305, 3, 0, 0],
    }
    t, ice = rows["t"], rows["ice"]
    assert (t["group"], t["dims"], t["shape"], t["chunks"]) == ("/", ["lat", "lon"], [4, 6], [2, 3])
    assert (t["units"], t["standard_name"], t["long_name"]) == ("K", "air_temperature", None)
    assert (t["dtype"], t["fill_value"], t["shards"]) == ("float32", "0.0", None)
    assert (t["total_chunks"], t["manifest_count"], t["problem"]) == (4, 1, None)
    assert (ice["group"], ice["dims"]) == ("/sea", ["dim_0", "x"])
    assert (ice["chunks"], ice["shards"], ice["total_chunks"]) == ([2, 2], [4, 8], 2)
    assert json.loads(ice["codecs"])[0]["name"] == "sharding_indexed"
    assert {name for name, row in rows.items() if row["is_coordinate"]} == {"lat", "height"}


def test_variables_without_stored_columns_open_no_manifest(weather, monkeypatch):
    repository, _, second = weather

    def refuse(*_):
        raise AssertionError("a manifest was opened")

    monkeypatch.setattr("icechunk_format.dataset.chunk_lookup.load_manifests", refuse)
    rows = rows_of(repository, "variables", snapshot_id=second, columns=["shape", "path"])
    assert rows[-1] == {"shape": [4, 6], "path": "/t"}
    with pytest.raises(AssertionError, match="was opened"):
        rows_of(repository, "variables", snapshot_id=second, columns=["path", "stored_bytes"])


def test_nodes_that_cannot_be_read_are_rows_that_say_so():
    good = array_document((4,), (2,), attributes={"units": "m"})
    unknown = json.loads(good) | {"codecs": [*json.loads(good)["codecs"], {"name": "made-up"}]}
    odd_type = json.loads(good) | {"data_type": {"name": "made-up", "configuration": {"n": 1}}}
    documents = {
        "/": b"not json",
        "/broken": b'{"zarr_format": 3, "node_type": "array"}',
        "/codec": json.dumps(unknown).encode(),
        "/dtype": json.dumps(odd_type).encode(),
        "/good": good,
        "/old": json.dumps(json.loads(good) | {"zarr_format": 2}).encode(),
    }
    nodes = tuple(
        NodeSnapshot(
            id=NodeId(bytes([number] * 8)),
            path=path,
            user_data=data,
            array=None
            if path == "/"
            else ArrayNode(shape=(4,), num_chunks=(2,), manifests=ManifestRefs.empty(1)),
        )
        for number, (path, data) in enumerate(documents.items())
    )
    snapshot = Snapshot(id=SnapshotId(bytes(12)), flushed_at=0, message="", nodes=nodes)
    (group,) = group_rows(snapshot, range(len(nodes)))
    assert "attributes" not in group
    assert "/" in group["problem"]
    storage = open_storage(new_location())
    parts = [(number, 0, 0) for number in range(1, len(nodes))]
    columns = METADATA_TABLES["variables"].names
    rows = {row["name"]: row for row in variable_rows(storage, snapshot, parts, columns)}
    assert rows["good"]["problem"] is None
    assert "dtype" not in rows["broken"]
    assert rows["broken"]["missing_chunks"] == 2
    assert "made-up" in rows["codec"]["problem"]
    assert rows["codec"]["chunks"] == [2]
    assert json.loads(rows["dtype"]["dtype"]) == {"name": "made-up", "configuration": {"n": 1}}
    assert "made-up" in rows["dtype"]["problem"]
    assert rows["old"]["problem"]
    assert all("\n" not in (row["problem"] or "") for row in rows.values())


def test_attributes_that_utf8_cannot_hold():
    repository = Repository.create(new_location())
    session = repository.writable_session()
    half = {"units": "\ud800m", "é": "\ud800"}
    session.create_group("/", json.dumps(json.loads(GROUP) | {"attributes": half}).encode())
    document = json.loads(array_document((1,), (1,))) | {"attributes": half}
    session.create_array("/x", json.dumps(document).encode(), shape=(1,), num_chunks=(1,))
    tip = session.commit("half a pair").snapshot_id
    (group,) = rows_of(repository, "groups", snapshot_id=tip)
    (variable,) = rows_of(repository, "variables", snapshot_id=tip)
    assert json.loads(group["attributes"]) == json.loads(variable["attributes"]) == half
    assert variable["units"] == "?m"


# --- manifests and chunks ---------------------------------------------------------------------


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


def test_a_version_without_nodes_has_no_rows():
    repository = Repository.create(new_location())
    root = repository.resolve()
    for name in ("groups", "variables", "manifests", "chunks"):
        assert rows_of(repository, name, snapshot_id=root) == []
    assert len(rows_of(repository, "snapshots")) == 1


def test_a_group_that_is_not_there(weather):
    repository, _, second = weather
    with pytest.raises(NotFoundError, match=r"no group /see.*/sea"):
        rows_of(repository, "chunks", snapshot_id=second, group="/see")
    with pytest.raises(InvalidInputError, match="takes no group"):
        rows_of(repository, "snapshots", group="/sea")
    with pytest.raises(InvalidInputError, match="needs snapshot_id and older_id"):
        rows_of(repository, "changes")


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
    repository = Repository.create(new_location())
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
        "icechunk_format.dataset.chunk_lookup.load_manifests",
        lambda storage, ids, hints: opened.append(len(ids)) or real(storage, ids, hints),
    )
    rows, tasks = read(repository, "chunks", snapshot_id=tip, refs_per_task=450)
    assert sorted(row["chunk"][0] for row in rows) == list(range(4000))
    assert 8 <= len(tasks) <= 12
    assert max(opened) <= 4
    (row,) = rows_of(repository, "variables", snapshot_id=tip, refs_per_task=450)
    assert (row["stored_chunks"], row["stored_bytes"]) == (4000, 28_000)


@pytest.mark.parametrize("table", METADATA_TABLES.values(), ids=lambda table: table.name)
def test_every_column_is_documented(table):
    assert len(set(table.names)) == len(table.names)
    for column in table.columns:
        assert column.about.endswith("."), column.name
        assert column.about[0].isupper() or column.about[0] == "`", column.name
