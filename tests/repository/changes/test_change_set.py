"""A change set has the log of its net changes, and an amendment joins the logs of two commits."""

from types import SimpleNamespace

import numpy as np

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.transaction_log import MoveOperation, TransactionLog
from icechunk_format.repository.changes import ChangeSet, ChunkChanges, metadata_of
from icechunk_format.repository.changes.change_set import joined_chunks, joined_logs
from icechunk_format.repository.changes.touched_chunks import TouchedChunks

ID = SnapshotId(b"s" * SnapshotId.SIZE)
G, A, H, B, K, C = (NodeId(letter * NodeId.SIZE) for letter in (b"g", b"a", b"h", b"b", b"k", b"c"))
GROUP = SimpleNamespace(array=None, user_data=b"{}")
ARRAY = SimpleNamespace(
    array=SimpleNamespace(shape=(4,), num_chunks=(2,), dimension_names=("x",)), user_data=b"{}"
)


def move(node_id, start, end, is_array=True):
    return MoveOperation(from_path=start, to_path=end, node_id=node_id, is_array=is_array)


def coords(*values):
    return np.array(values, np.uint32).reshape(-1, 1)


def lists_of(log):
    names = ("new", "deleted", "updated")
    return {
        f"{name}_{kind}": set(found)
        for name in names
        for kind in ("groups", "arrays")
        if (found := getattr(log, f"{name}_{kind}"))
    }


def test_a_log_lists_groups_and_arrays_apart():
    changes = ChangeSet(
        created={G: GROUP, A: ARRAY}, updated={H: GROUP, B: ARRAY}, deleted={K: GROUP, C: ARRAY}
    )
    assert changes.has_edits
    assert not changes.is_empty
    log = changes.transaction_log(ID)
    assert log.id == ID
    assert lists_of(log) == {
        "new_groups": {G},
        "new_arrays": {A},
        "updated_groups": {H},
        "updated_arrays": {B},
        "deleted_groups": {K},
        "deleted_arrays": {C},
    }


def test_moves_beside_other_changes_are_listed_as_deleted_and_created():
    moves = {G: move(G, "/g", "/h", is_array=False), A: move(A, "/g/a", "/h/a")}
    alone = ChangeSet(moved=moves)
    assert (alone.is_empty, alone.has_edits) == (False, False)
    assert alone.transaction_log(ID).moved_nodes == tuple(moves.values())
    assert lists_of(alone.transaction_log(ID)) == {}
    both = ChangeSet(moved=moves, created={B: ARRAY}).transaction_log(ID)
    assert both.moved_nodes == ()
    assert lists_of(both) == {
        "new_groups": {G},
        "deleted_groups": {G},
        "new_arrays": {A, B},
        "deleted_arrays": {A},
    }


def test_arrays_without_changed_chunks_are_no_change():
    untouched, cut, changed = ChunkChanges(1), ChunkChanges(1), ChunkChanges(1)
    cut.resize((1,))
    changed.delete(coords(1))
    assert ChangeSet().is_empty
    assert ChangeSet(chunks={A: untouched}).is_empty
    changes = ChangeSet(chunks={A: untouched, B: cut, C: changed})
    assert changes.has_edits
    assert {key: found.coords().tolist() for key, found in changes.touched().items()} == {C: [[1]]}


def test_metadata_is_compared_without_path_and_chunks():
    assert metadata_of(GROUP) == (b"{}",)
    assert metadata_of(ARRAY) == (b"{}", (4,), (2,), ("x",))


def test_what_an_amendment_deletes_of_the_first_commit_is_in_no_list():
    first = TransactionLog(
        id=ID, new_groups=(G, H), new_arrays=(A, B), updated_groups=(K,), updated_arrays=(C,)
    )
    second = TransactionLog(
        id=ID,
        deleted_groups=(G, K),
        deleted_arrays=(A, C),
        updated_groups=(H,),
        updated_arrays=(B,),
    )
    assert lists_of(joined_logs(first, second)) == {
        "new_groups": {H},
        "new_arrays": {B},
        "deleted_groups": {K},
        "deleted_arrays": {C},
    }
    assert lists_of(joined_logs(second, TransactionLog(id=ID))) == lists_of(second)
    assert lists_of(joined_logs(TransactionLog(id=ID), first)) == lists_of(first)


def test_a_node_that_was_moved_beside_other_changes_can_be_updated():
    first = TransactionLog(
        id=ID, new_groups=(G,), deleted_groups=(G,), new_arrays=(A,), deleted_arrays=(A,)
    )
    second = TransactionLog(id=ID, updated_groups=(G,), updated_arrays=(A,))
    assert lists_of(joined_logs(first, second)) == {
        **{f"{change}_groups": {G} for change in ("new", "deleted", "updated")},
        **{f"{change}_arrays": {A} for change in ("new", "deleted", "updated")},
    }


def test_moves_are_joined_and_those_back_are_none():
    first = TransactionLog(id=ID, moved_nodes=(move(A, "/a", "/b"), move(B, "/c", "/d")))
    second = TransactionLog(id=ID, moved_nodes=(move(A, "/b", "/e"), move(B, "/d", "/c")))
    assert joined_logs(first, second).moved_nodes == (move(A, "/a", "/e"),)
    other = TransactionLog(id=ID, moved_nodes=(move(C, "/x", "/y"),))
    assert joined_logs(first, other).moved_nodes == (*first.moved_nodes, *other.moved_nodes)


def test_changed_chunks_of_two_commits_are_joined_unless_the_array_is_deleted():
    first = TransactionLog(id=ID, updated_chunks={A: coords(1, 3), B: coords(0), C: coords(5)})
    second = TransactionLog(id=ID, deleted_arrays=(C,))
    touched = {A: TouchedChunks.of([], coords(2, 3)), K: TouchedChunks.of([], coords(7))}
    found = joined_chunks(first, second, touched)
    assert {key: chunks.coords().ravel().tolist() for key, chunks in found.items()} == {
        A: [1, 2, 3],
        B: [0],
        K: [7],
    }
    assert [found[key].count for key in (A, B, K)] == [3, 1, 1]
    assert touched.keys() == {A, K}
