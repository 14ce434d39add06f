"""A commit writes the manifests that its changes touch, in bounded pieces, and no others."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from helpers.grids.sessions import grid_session, manifest_ids, set_block, split_manifests
from helpers.raised import raises
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.encoding.ids import ManifestId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.file import Nodes
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.errors import FormatError
from icechunk_format.repository.commit import assemble, manifest_plan
from icechunk_format.repository.commit.assemble import manifest_files_of
from icechunk_format.repository.files import metadata_cache, store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks


def test_an_append_writes_only_what_is_appended(repository):
    session = grid_session(repository, (100, 10))
    set_block(session, range(50), range(10))
    session.commit("first")
    before = manifest_ids(repository)
    session = grid_session(repository, None)
    set_block(session, range(50, 52), range(10))
    result = session.commit("append")
    assert result.files_written["manifests"] == 1
    assert before < manifest_ids(repository)
    assert result.bytes_written["manifests"] < 500


def test_many_small_appends_do_not_leave_many_manifests(repository):
    for step in range(40):
        session = grid_session(repository, (40, 2))
        set_block(session, [step], range(2))
        session.commit("append")
    assert len(manifest_ids(repository)) <= manifest_plan.MAX_SMALL_MANIFESTS + 1
    assert len(stored_contents(repository, repository.resolve())) == 82


def test_only_touched_cells_are_rewritten(repository_v2):
    split_manifests(repository_v2, axis0=10)
    session = grid_session(repository_v2, (100, 2))
    set_block(session, range(100), range(2))
    assert session.commit("first").files_written["manifests"] == 10
    before = manifest_ids(repository_v2)
    session = grid_session(repository_v2, None)
    set_block(session, [5, 95], [0], payload=b"changed")
    assert session.commit("second").files_written["manifests"] == 2
    assert len(before & manifest_ids(repository_v2)) == 8


def test_a_rebuilt_manifest_is_split_by_the_rules_of_today(repository_v2):
    session = grid_session(repository_v2, (20,))
    set_block(session, range(20))
    assert session.commit("in one").files_written["manifests"] == 1
    split_manifests(repository_v2, axis0=10)
    session = grid_session(repository_v2, None)
    set_block(session, [5], payload=b"changed")
    result = session.commit("in two")
    assert result.files_written["manifests"] == 2
    node = repository_v2.snapshot(result.snapshot_id).node("/a")
    assert sorted(node.array.manifests.extents.tolist()) == [[[0, 10]], [[10, 20]]]
    contents = stored_contents(repository_v2, result.snapshot_id)
    expected = {f"a/c/{i}": b"changed" if i == 5 else b"x" for i in range(20)}
    assert {key: data for key, data in contents.items() if "/c/" in key} == expected


def test_overwriting_everything_reads_nothing(repository):
    session = grid_session(repository, (20, 5))
    set_block(session, range(20), range(5))
    first = session.commit("first").snapshot_id
    old = manifest_ids(repository, first)
    repository.storage.delete_many([f"manifests/{manifest_id}" for manifest_id in old])
    session = grid_session(repository, None)
    set_block(session, range(20), range(5), payload=b"new")
    session.commit("second")
    assert not old & manifest_ids(repository)
    contents = stored_contents(repository, repository.resolve())
    assert contents["a/c/19/4"] == b"new"


def test_attributes_and_growth_keep_manifests(repository):
    session = grid_session(repository, (20, 5))
    set_block(session, range(20), range(5))
    session.commit("first")
    before = manifest_ids(repository)
    session = repository.writable_session()
    session.update_metadata(
        "/a", array_document((40, 5), (1, 1)), shape=(40, 5), num_chunks=(40, 5)
    )
    result = session.commit("grow")
    assert "manifests" not in result.files_written or result.files_written["manifests"] == 0
    assert manifest_ids(repository) == before
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.updated_arrays) == 1
    assert not log.updated_chunks


def test_what_shrinking_dropped_stays_dropped(repository):
    session = grid_session(repository, (20,))
    set_block(session, range(20))
    session.commit("first")
    session = repository.writable_session()
    for length in (5, 20):
        document = array_document((length,), (1,), version=length)
        session.update_metadata("/a", document, shape=(length,), num_chunks=(length,))
    session.set_chunk("/a", [19], b"late")
    result = session.commit("shrink and grow")
    kept = stored_contents(repository, result.snapshot_id)
    assert sorted(kept) == sorted(
        ["zarr.json", "a/zarr.json", "a/c/19", *(f"a/c/{i}" for i in range(5))]
    )


def test_large_commits_are_cut_into_manifests_of_bounded_size(repository_v2):
    session = grid_session(repository_v2, (30, 30))
    session._assembler._format = type(session.format)(spec_version=2, max_refs=100)
    set_block(session, range(30), range(30))
    session.commit("first")
    snapshot = repository_v2.snapshot(repository_v2.resolve())
    assert snapshot.manifest_files.num_chunk_refs.tolist() == [90] * 10
    assert len(stored_contents(repository_v2, snapshot.id)) == 902


def test_deleting_all_chunks_leaves_no_manifest(repository):
    session = grid_session(repository, (4, 4))
    set_block(session, range(4), range(4))
    session.commit("first")
    session = repository.writable_session()
    coords = np.argwhere(np.ones((4, 4)))
    session.delete_chunks("/a", coords)
    result = session.commit("empty")
    snapshot = repository.snapshot(result.snapshot_id)
    assert len(snapshot.node("/a").array.manifests) == 0
    assert len(snapshot.manifest_files) == 0
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.updated_chunks[snapshot.node("/a").id]) == 16


def test_overlapping_manifests_of_others_are_put_in_order(repository):
    """Of two manifests that hold one place the first counts, before a rebuild and after it."""
    session = grid_session(repository, (6,))
    set_block(session, range(6), payload=b"first")
    result = session.commit("first")
    snapshot = repository.snapshot(result.snapshot_id)
    node = snapshot.node("/a")
    refs = store_chunks(repository.storage, [[2], [3]], [b"hidden"] * 2, inline_threshold=512)
    [[receipt]] = store_manifests(repository.storage, session.format, [(node.id, [refs])])
    new_id = [list(receipt.manifest_id.raw)]
    manifests = ManifestRefs(
        ids=np.concatenate([node.array.manifests.ids, new_id]).astype("u1"),
        extents=np.concatenate([node.array.manifests.extents, [[[2, 4]]]]).astype("u4"),
    )
    files = manifest_files_of(Nodes.of([node]), snapshot, [receipt])
    files = ManifestFiles.of(
        np.concatenate([files.ids, new_id]).astype("u1"),
        np.append(files.size_bytes, receipt.size_bytes),
        np.append(files.num_chunk_refs, 2),
    )
    damaged = replace(
        snapshot,
        nodes=tuple(
            replace(n, array=replace(n.array, manifests=manifests)) if n.id == node.id else n
            for n in snapshot.nodes
        ),
        manifest_files=files,
    )
    repository.storage.put(snapshot_key(snapshot.id), snapshot_file.encode(damaged))
    metadata_cache().clear()
    session = repository.writable_session()
    session.set_chunk("/a", [3], b"new")
    result = session.commit("in order")
    contents = stored_contents(repository, result.snapshot_id)
    found = [contents[f"a/c/{i}"] for i in range(6)]
    assert found == [b"first"] * 3 + [b"new"] + [b"first"] * 2


def test_a_manifest_that_the_base_does_not_list_is_damage(repository):
    session = grid_session(repository, (6,))
    set_block(session, range(6))
    result = session.commit("first")
    snapshot = repository.snapshot(result.snapshot_id)
    damaged = replace(snapshot, manifest_files=ManifestFiles.empty())
    repository.storage.put(snapshot_key(snapshot.id), snapshot_file.encode(damaged))
    metadata_cache().clear()
    session = repository.writable_session()
    session.create_group("/g", group_document())
    with raises(FormatError, match="the list of manifest files lacks", field="manifest_files"):
        session.commit("second")


def test_references_are_taken_as_given(repository):
    session = grid_session(repository, (6,))
    ids = np.arange(24, dtype=np.uint8).reshape(2, 12)
    session.set_refs("/a", native_refs([[0], [1]], ids, [5, 6], [100, 200]))
    session.set_refs("/a", virtual_refs([[3]], ["s3://bucket/key"], [7], [8], etags=["tag"]))
    result = session.commit("refs")
    snapshot = repository.snapshot(result.snapshot_id)
    refs = repository.manifest(snapshot.node("/a").array.manifests.manifest_id(0)).arrays[0].refs
    assert refs.offset.tolist() == [100, 200, 7]
    assert refs.location(2) == "s3://bucket/key"
    assert refs.etag(2) == "tag"


def test_the_manifest_that_is_not_listed_is_named():
    known, missing = (ManifestId(letter * 12) for letter in (b"a", b"b"))
    base = SimpleNamespace(
        id=SnapshotId(bytes(12)),
        manifest_files=ManifestFiles.of(
            ManifestId.rows([known]), np.array([1], np.uint64), np.array([1], np.uint32)
        ),
    )
    for ids in ([known, missing], [missing, known]):
        nodes = SimpleNamespace(manifest_ids=ManifestId.rows(ids))
        with raises(FormatError, match=str(missing), file_type="snapshot"):
            manifest_files_of(nodes, base)
    found = manifest_files_of(SimpleNamespace(manifest_ids=ManifestId.rows([known] * 2)), base)
    assert found.ids.tobytes() == known.raw
    none = SimpleNamespace(manifest_ids=ManifestId.rows([]))
    assert len(manifest_files_of(none, base)) == 0


def test_the_cost_of_a_group_counts_references_and_files():
    a, b, c = (ManifestId(letter * 12) for letter in (b"a", b"b", b"c"))
    counts = np.array([10, 20, 30])
    work = SimpleNamespace(
        changes=SimpleNamespace(receipts=[SimpleNamespace(num_chunk_refs=n) for n in (3, 4, 5)]),
        base=SimpleNamespace(ids=ManifestId.rows([a, b, c])),
        group=SimpleNamespace(base_rows=np.array([0, 2]), receipt_rows=np.array([1, 2])),
    )
    listed = ManifestFiles.of(ManifestId.rows([a, b, c]), counts, counts.astype(np.uint32))
    of_files = 4 * (assemble._REFS_AT_ONCE // assemble._FILES_AT_ONCE)
    assert assemble._cost(work, listed) == 10 + 30 + 4 + 5 + of_files


def test_files_are_written_once_if_a_commit_is_tried_again(repository_v2):
    split_manifests(repository_v2, axis0=2)
    session = grid_session(repository_v2, (6,))
    set_block(session, range(6))
    session.commit("first")
    session = repository_v2.writable_session()
    set_block(session, [0, 5], payload=b"y")
    tree = session._tree
    made = assemble.ManifestAssembler(repository_v2.storage, session.format)
    arrays = [(node, tree.changes.chunks[node.id]) for node in tree.changed_nodes()]
    once = made.assemble(arrays, tree.base.manifest_files)
    assert made.files_written == 2
    [files] = [found.files for found in once.values()]
    assert made.bytes_written == sum(receipt.size_bytes for receipt in files)
    again = made.assemble(arrays, tree.base.manifest_files)
    assert made.files_written == 2
    assert [found.files for found in again.values()] == [files]
    set_block(session, [0], payload=b"z")
    made.assemble(arrays, tree.base.manifest_files)
    assert made.files_written == 4
