"""Metadata tables show what the reference library shows of repositories that it wrote itself."""

import asyncio
import json

import icechunk
import pytest
from helpers.reference import repositories as reference_repositories

from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.repository import Repository
from icechunk_format.tables import plan_inspection, resolve_change, run_inspection

CASES = [
    ("branches_and_tags", 1),
    ("branches_and_tags", 2),
    ("split_manifests", 2),
    ("virtual_chunks", 1),
    ("virtual_chunks", 2),
    ("moved_nodes", 2),
    ("sharded_arrays", 2),
    ("detached_snapshot", 2),
    ("expired_history", 2),
    ("long_operations_log", 2),
]

KINDS = {
    "native": icechunk.ChunkType.native,
    "inline": icechunk.ChunkType.inline,
    "virtual": icechunk.ChunkType.virtual,
}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-v{case[1]}")
def reference(request, tmp_path_factory):
    return reference_repositories.build(*request.param, tmp_path_factory.mktemp("reference"))


def read(repository, name, **arguments):
    plan = plan_inspection(repository, METADATA_TABLES[name], refs_per_task=700, **arguments)
    return [
        row
        for task in plan.tasks
        for batch in run_inspection(plan.context, task)
        for row in batch.to_pylist()
    ]


def version(info):
    # Keys of the reference's own are not shown by it.
    metadata = {k: v for k, v in info.metadata.items() if k != "__icechunk"}
    return (info.id, info.parent_id, info.written_at, info.message, metadata)


def version_of(row):
    metadata = {k: v for k, v in json.loads(row["metadata"]).items() if k != "__icechunk"}
    return (row["snapshot_id"], row["parent_id"], row["committed_at"], row["message"], metadata)


def test_history_and_refs(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    refs = {(row["type"], row["name"]): row for row in read(ours, "refs")}
    assert {name for kind, name in refs if kind == "branch"} == set(theirs.list_branches())
    assert {name for kind, name in refs if kind == "tag"} == set(theirs.list_tags())
    for (kind, name), row in refs.items():
        if kind == "deleted tag":
            continue
        expected = list(theirs.ancestry(**{kind: name}))
        rows = read(ours, "history", snapshot_id=ours.resolve(**{kind: name}))
        assert [version_of(found) for found in rows] == [version(info) for info in expected]
        assert [found["position"] for found in rows] == list(range(len(expected)))
        assert (row["snapshot_id"], row["committed_at"]) == (
            expected[0].id,
            expected[0].written_at,
        )


def test_snapshots(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    rows = {row["snapshot_id"]: row for row in read(ours, "snapshots")}
    reachable = {
        info.id: info
        for kind, names in (("branch", theirs.list_branches()), ("tag", theirs.list_tags()))
        for name in names
        for info in theirs.ancestry(**{kind: name})
    }
    for snapshot_id, info in reachable.items():
        assert version_of(rows[snapshot_id]) == version(info)
    if reference.spec_version == 2:
        listed = {info["id"] for info in theirs.inspect_repo_info()["snapshots"]}
        assert set(rows) == listed
    else:
        assert set(rows) == set(reachable)
    for name in theirs.list_branches():
        assert name in rows[theirs.lookup_branch(name)]["branches"]
    for name in theirs.list_tags():
        assert name in rows[theirs.lookup_tag(name)]["tags"]


def test_manifests_and_chunks_of_every_version(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    for info in theirs.ancestry(branch="main"):
        snapshot_id = ours.resolve(snapshot=info.id)
        found = [
            (row["manifest_id"], row["size_bytes"], row["num_chunk_refs"])
            for row in read(ours, "manifests", snapshot_id=snapshot_id)
        ]
        expected = theirs.list_manifest_files(info.id)
        assert sorted(found) == sorted((m.id, m.size_bytes, m.num_chunk_refs) for m in expected)
        session = theirs.readonly_session(snapshot_id=info.id)
        chunks = read(ours, "chunks", snapshot_id=snapshot_id)
        variables = read(ours, "variables", snapshot_id=snapshot_id)
        for variable in variables:
            path = variable["path"]
            coords = asyncio.run(coordinates_of(session, path))
            mine = [row for row in chunks if row["path"] == path]
            assert {tuple(row["chunk"]) for row in mine} == coords
            assert len(mine) == len(coords) == variable["stored_chunks"]
            for row in mine:
                assert session.chunk_type(path, row["chunk"]) == KINDS[row["kind"]]
        assert {row["path"] for row in chunks} <= {row["path"] for row in variables}


async def coordinates_of(session, path):
    return {coords async for coords in session.chunk_coordinates(path)}


def test_stored_bytes_add_up_to_the_repository(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    if len(list(theirs.ancestry(branch="main"))) != 2:
        # The reference counts all versions together, so only one may have chunks.
        return
    rows = read(ours, "variables", snapshot_id=ours.resolve())
    stats = theirs.chunk_storage_stats()
    assert sum(row["virtual_bytes"] for row in rows) == stats.virtual_bytes
    stored = stats.native_bytes + stats.inlined_bytes
    assert sum(row["stored_bytes"] for row in rows) == stored


def test_operations(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    if reference.spec_version == 1:
        assert read(ours, "operations") == []
        return
    found = [
        (row["kind"].replace("_", ""), row["at"], row["backup_path"])
        for row in read(ours, "operations")
    ]
    assert found == [
        (type(entry.kind).__name__.lower(), entry.updated_at, entry.backup_path)
        for entry in theirs.ops_log()
    ]


def test_changes_between_any_two_versions(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    history = [info.id for info in theirs.ancestry(branch="main")]
    for last in range(len(history)):
        for first in range(last + 1, len(history)):
            older, newer = resolve_change(ours, older=history[first], newer=history[last])
            rows = read(ours, "changes", older_id=older, snapshot_id=newer)
            expected = theirs.diff(from_snapshot_id=history[first], to_snapshot_id=history[last])

            def paths(change, node_type, rows=rows):
                wanted = (change, node_type)
                return {r["path"] for r in rows if (r["change"], r["node_type"]) == wanted}

            assert paths("added", "group") == expected.new_groups
            assert paths("added", "array") == expected.new_arrays
            assert paths("removed", "group") == expected.deleted_groups
            assert paths("removed", "array") == expected.deleted_arrays
            assert paths("updated", "group") == expected.updated_groups
            assert paths("updated", "array") == expected.updated_arrays
            counts = {r["path"]: r["chunk_count"] for r in rows if r["change"] == "chunks"}
            assert counts == {
                path: len(chunks) for path, chunks in expected.updated_chunks.items() if chunks
            }
            moved = {(r["moved_from"], r["path"]) for r in rows if r["change"] == "moved"}
            assert moved == set(expected.moved_nodes)
