"""The reference reads, extends, amends and rebases over what we wrote, and we over theirs.

Single operations of the reference read what readers never look at: differences, amendments,
rebases, and the manifests and logs of large commits.
"""

import asyncio
import itertools
import secrets

import icechunk
import numpy as np
import pytest
from helpers.builder import add_array
from helpers.raised import raises
from helpers.reference.sessions import (
    PROTOTYPE,
    open_reference,
    put_chunk,
    reference_contents,
    start,
)
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.errors import ConflictError
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository import Repository
from icechunk_format.repository.files import ManifestReceipt, store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks


def get_chunk(session, key):
    return asyncio.run(session.store.get(key, PROTOTYPE)).to_bytes()


def test_the_reference_sees_the_same_differences(tmp_path):
    repository = start(tmp_path)
    base = repository.resolve()
    session = repository.writable_session()
    session.set_chunk("/g/a", [1], b"new")
    session.delete_chunks("/g/a", [[2]])
    session.update_metadata("/b", array_document((9,), (1,)), shape=(9,), num_chunks=(9,))
    session.create_group("/n", group_document())
    add_array(session, "/n/c", (2,))
    session.set_chunk("/n/c", [1], b"c")
    session.update_metadata("/g", group_document(5))
    tip = session.commit("changes").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(base), to_snapshot_id=str(tip))
    assert found.new_groups == {"/n"}
    assert found.new_arrays == {"/n/c"}
    assert found.updated_groups == {"/g"}
    assert found.updated_arrays == {"/b"}
    assert {path: sorted(map(tuple, coords)) for path, coords in found.updated_chunks.items()} == {
        "/g/a": [(1,), (2,)],
        "/n/c": [(1,)],
    }
    session = repository.writable_session()
    session.delete("/n")
    gone = session.commit("gone").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(tip), to_snapshot_id=str(gone))
    assert found.deleted_groups == {"/n"}
    assert found.deleted_arrays == {"/n/c"}
    session = repository.writable_session()
    session.move("/g", "/b-group")
    moved = session.commit("moved").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(gone), to_snapshot_id=str(moved))
    assert sorted(map(tuple, found.moved_nodes)) == [
        ("/g", "/b-group"),
        ("/g/a", "/b-group/a"),
    ]


def test_the_reference_amends_what_we_committed_and_we_amend_theirs(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path)
    session = theirs.writable_session("main")
    put_chunk(session.store, "b/c/0", b"amended")
    amended = session.amend("amended by the reference")
    infos = list(Repository.open(str(tmp_path)).ancestry())
    assert str(infos[0].id) == amended
    assert len(infos) == 2
    ours = repository.writable_session()
    ours.set_chunk("/b", [1], b"again")
    result = ours.amend("amended by us")
    contents = reference_contents(open_reference(tmp_path).readonly_session("main"))
    assert (contents["b/c/0"], contents["b/c/1"]) == (b"amended", b"again")
    history = list(open_reference(tmp_path).ancestry(branch="main"))
    assert [info.message for info in history] == ["amended by us", "Repository initialized"]
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.new_arrays) == 2
    assert log.updated_arrays == ()
    assert [len(coords) for coords in log.updated_chunks.values()] == [6, 6]
    diff = open_reference(tmp_path).diff(
        from_snapshot_id=history[1].id, to_snapshot_id=history[0].id
    )
    assert diff.new_arrays == {"/b", "/g/a"}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_reference_rebases_over_us_and_we_over_them(tmp_path, spec_version):
    repository = start(tmp_path, spec_version)
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/0", b"theirs")
    ours = repository.writable_session()
    ours.set_chunk("/b", [1], b"ours")
    ours.commit("ours first")
    theirs.commit("theirs over ours", rebase_with=icechunk.ConflictDetector())

    ours = repository.writable_session()
    ours.set_chunk("/b", [2], b"ours")
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/3", b"theirs")
    theirs.commit("theirs first")
    assert ours.commit("ours over theirs").rebased == 1
    contents = stored_contents(repository, repository.resolve())
    assert [contents[f"b/c/{i}"] for i in range(4)] == [b"theirs", b"ours", b"ours", b"theirs"]
    assert reference_contents(open_reference(tmp_path).readonly_session("main")) == contents


def test_both_find_the_same_conflicts(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/0", b"theirs")
    ours = repository.writable_session()
    late = repository.writable_session()
    ours.set_chunk("/b", [0], b"ours")
    late.set_chunk("/b", [0], b"late")
    ours.commit("ours first")
    with pytest.raises(icechunk.RebaseFailedError) as caught:
        theirs.commit("theirs", rebase_with=icechunk.ConflictDetector())
    [conflict] = caught.value.conflicts
    assert conflict.conflict_type == icechunk.ConflictType.ChunkDoubleUpdate
    assert conflict.conflicted_chunks == [[0]]
    with raises(ConflictError, branch="main", kinds=("CHUNKS_WRITTEN_TWICE",)):
        late.commit("late")


def test_the_reference_reads_and_extends_manifests_of_executors(tmp_path):
    repository = start(tmp_path)
    session = repository.writable_session()
    add_array(session, "/w", (40, 8))
    node_id = session.node("/w").id
    receipts = []
    expected = {}
    for block in range(4):
        coords = list(itertools.product(range(block * 10, block * 10 + 10), range(8)))
        payloads = [bytes([block, j]) * 400 for _, j in coords]
        expected.update(
            (f"w/c/{i}/{j}", payload) for (i, j), payload in zip(coords, payloads, strict=True)
        )
        refs = store_chunks(repository.storage, coords, payloads, inline_threshold=512)
        [written] = store_manifests(repository.storage, session.format, [(node_id, [refs])])
        receipts += written
    session.add_manifests("/w", receipts)
    session.commit("parallel")
    theirs = open_reference(tmp_path)
    assert len(theirs.list_manifest_files(theirs.lookup_branch("main"))) == 6
    found = reference_contents(theirs.readonly_session("main"))
    assert {k: v for k, v in found.items() if k.startswith("w/c")} == expected
    session = theirs.writable_session("main")
    put_chunk(session.store, "w/c/15/3", b"theirs")
    session.commit("theirs on top")
    expected["w/c/15/3"] = b"theirs"
    theirs.rewrite_manifests("one manifest", branch="main")
    contents = stored_contents(repository, repository.resolve())
    assert {k: v for k, v in contents.items() if k.startswith("w/c")} == expected


def test_a_large_commit_cut_into_manifests_is_readable(tmp_path):
    """Bulk references, cut into several manifests, through the reference's eyes."""
    repository = start(tmp_path)
    session = repository.writable_session()
    add_array(session, "/big", (300, 300))
    coords = np.argwhere(np.ones((300, 300), dtype=bool))
    session.set_chunks("/big", coords, [b"%d" % n for n in range(len(coords))])
    session._assembler._format = type(session.format)(spec_version=2, max_refs=20_000)
    session.commit("big")
    theirs = open_reference(tmp_path)
    assert len(theirs.list_manifest_files(theirs.lookup_branch("main"))) == 7
    opened = theirs.readonly_session("main")
    for i, j in ((0, 0), (66, 299), (150, 7), (299, 299)):
        assert get_chunk(opened, f"big/c/{i}/{j}") == b"%d" % (i * 300 + j)


def test_a_log_of_a_million_chunks_is_readable(tmp_path):
    """Boxes, gaps and single chunks of many tasks, generated block by block while it is written."""
    repository = start(tmp_path)
    session = repository.writable_session()
    shape = (400, 50, 50)
    add_array(session, "/big", shape)
    is_there = np.ones(shape, dtype=bool)
    is_there[::7, ::3, 5] = False
    is_there[300:] = False
    receipts = []
    for low, high in itertools.product(range(0, 300, 100), (0, 25)):
        part = np.zeros(shape, dtype=bool)
        part[low : low + 100, high : high + 25] = is_there[low : low + 100, high : high + 25]
        coords = CoordSet.of(np.argwhere(part))
        extents = tuple(map(tuple, coords.bounds().tolist()))
        receipts.append(
            ManifestReceipt(
                manifest_id=ManifestId(secrets.token_bytes(12)),
                size_bytes=1,
                num_chunk_refs=coords.count,
                extents=extents,
                coords=coords,
            )
        )
    # Nobody reads these manifests here; what counts is the log.
    session.add_manifests("/big", receipts)
    session.set_chunk("/big", [350, 1, 2], b"x")
    is_there[350, 1, 2] = True
    result = session.commit("big")
    log = repository.transaction_log(result.snapshot_id)
    expected = np.argwhere(is_there)
    assert sum(map(len, log.updated_chunks.values())) == len(expected) > 700_000
    theirs = open_reference(tmp_path)
    found = theirs.diff(
        from_snapshot_id=str(result.parent_id), to_snapshot_id=str(result.snapshot_id)
    )
    assert (np.array(sorted(found.updated_chunks["/big"])) == expected).all()
    [coords] = log.updated_chunks.values()
    assert (coords == expected).all()
