"""Each conflict names the node, the commit that it meets and the chunks; other changes fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.transaction_log import MoveOperation, TransactionLog
from icechunk_format.repository.changes import (
    ChangeSet,
    ChunkChanges,
    ConflictDetector,
    ConflictKind,
    TheirCommit,
    rebased,
    resolved,
)

K = ConflictKind
R, G, A, B, H, N = (NodeId(letter * NodeId.SIZE) for letter in (b"r", b"g", b"a", b"b", b"h", b"n"))
FIRST, SECOND = (SnapshotId(letter * SnapshotId.SIZE) for letter in (b"1", b"2"))
BASE = {G: "/g", A: "/g/a", B: "/b"}
NO_CHUNKS = np.empty((0, 1), np.uint32)


def coords(*values):
    return np.array(values, np.uint32).reshape(-1, 1)


def node(node_id, path, is_array):
    return SimpleNamespace(
        id=node_id,
        path=path,
        array=SimpleNamespace(shape=(4,), num_chunks=(4,)) if is_array else None,
        user_data=b"{}",
    )


def snapshot(paths):
    """Return what a detector asks a snapshot; nodes R, G and H are groups."""
    nodes = {key: node(key, path, key not in (R, G, H)) for key, path in {R: "/", **paths}.items()}
    by_path = {one.path: one for one in nodes.values()}
    of_id = SimpleNamespace(
        has_id=nodes.__contains__,
        with_id=nodes.get,
        path_of_id=lambda key: nodes[key].path if key in nodes else None,
    )
    return SimpleNamespace(nodes=of_id, node=by_path.get)


def chunks(*written, shifted=False):
    made = ChunkChanges(1)
    made.delete(coords(*written))
    if shifted:
        made.replace_all(made.pending()[0], NO_CHUNKS)
    return made


def found(changes, tip, *logs, base=BASE):
    """Return the conflicts with the commits FIRST and SECOND, which have these logs."""
    theirs = [
        TheirCommit(snapshot_id=key, log=TransactionLog(id=key, **lists))
        for key, lists in zip((FIRST, SECOND), logs, strict=False)
    ]
    detector = ConflictDetector(
        changes=ChangeSet(**changes), base=snapshot(base), tip=snapshot(tip), theirs=theirs
    )
    return [
        (
            one.kind,
            one.path,
            one.node_id,
            one.snapshot_id,
            None if one.coords is None else one.coords.ravel().tolist(),
        )
        for one in detector.conflicts()
    ]


def without(*gone):
    return {key: path for key, path in BASE.items() if key not in gone}


def move(key, start, end, is_array=True):
    return MoveOperation(from_path=start, to_path=end, node_id=key, is_array=is_array)


NEW_ARRAY, NEW_GROUP = node(N, "/g/n", is_array=True), node(N, "/g/n", is_array=False)
ARRAY, GROUP = node(A, "/g/a", is_array=True), node(G, "/g", is_array=False)

CASES = {
    "the same chunks": (
        {"chunks": {A: chunks(1, 2), B: chunks(1)}},
        BASE,
        [{"updated_chunks": {A: coords(0)}}, {"updated_chunks": {A: coords(2, 3)}}],
        [(K.CHUNKS_WRITTEN_TWICE, "/g/a", A, SECOND, [2])],
    ),
    "no chunk in a log": (
        {"chunks": {A: chunks(1, shifted=True)}, "deleted": {B: node(B, "/b", is_array=True)}},
        BASE,
        [{"updated_chunks": {A: NO_CHUNKS, B: NO_CHUNKS}}],
        [],
    ),
    "a shifted array": (
        {"chunks": {A: chunks(1, shifted=True), B: chunks(1, shifted=True)}},
        BASE,
        [{"updated_chunks": {A: coords(7)}}, {"updated_chunks": {A: coords(1)}}],
        [
            (K.CHUNKS_OF_SHIFTED_ARRAY, "/g/a", A, FIRST, None),
            (K.CHUNKS_OF_SHIFTED_ARRAY, "/g/a", A, SECOND, None),
        ],
    ),
    "chunks of arrays that are updated or gone": (
        {"chunks": {A: chunks(1), B: chunks(1)}},
        without(B),
        [{"updated_arrays": (A,)}, {"deleted_arrays": (B,)}],
        [
            (K.CHUNKS_OF_UPDATED_ARRAY, "/g/a", A, FIRST, None),
            (K.CHUNKS_OF_DELETED_ARRAY, "/b", B, SECOND, None),
        ],
    ),
    "chunks of a new array": (
        {"created": {N: NEW_ARRAY}, "chunks": {N: chunks(1), A: ChunkChanges(1)}},
        BASE,
        [{"updated_arrays": (A,), "updated_chunks": {A: coords(1)}}],
        [],
    ),
    "a smaller array": (
        {"chunks": {A: chunks(0), B: chunks(0)}},
        BASE,
        [{"updated_chunks": {A: coords(2), B: coords(1, 4)}}],
        [],
    ),
    "metadata of both": (
        {"updated": {A: ARRAY, G: GROUP}},
        BASE,
        [{"updated_groups": (G,)}, {"updated_arrays": (A,), "updated_chunks": {A: coords(1)}}],
        [
            (K.METADATA_UPDATED_TWICE, "/g/a", A, SECOND, None),
            (K.METADATA_UPDATED_TWICE, "/g", G, FIRST, None),
        ],
    ),
    "metadata of nodes that are gone": (
        {"updated": {A: ARRAY, G: GROUP}},
        without(A, G),
        [{"deleted_groups": (A, G)}, {"deleted_arrays": (A, G)}],
        [
            (K.METADATA_OF_DELETED_NODE, "/g/a", A, SECOND, None),
            (K.METADATA_OF_DELETED_NODE, "/g", G, FIRST, None),
        ],
    ),
    "another meaning": (
        {
            "updated": {
                A: SimpleNamespace(array=ARRAY.array, user_data=b'{"fill_value": 1}'),
                B: SimpleNamespace(array=ARRAY.array, user_data=b'{"fill_value": 1}'),
            }
        },
        BASE,
        [{"updated_chunks": {A: NO_CHUNKS, B: coords(3)}}],
        [(K.CHUNKS_OF_OTHER_MEANING, "/b", B, FIRST, [3])],
    ),
    "deleted, but changed": (
        {"deleted": {A: ARRAY, B: node(B, "/b", is_array=True), G: GROUP}},
        BASE,
        [{"updated_chunks": {A: coords(1)}, "updated_groups": (G,)}, {"updated_arrays": (A, B)}],
        [
            (K.DELETED_NODE_CHANGED, "/g/a", A, SECOND, None),
            (K.DELETED_NODE_CHANGED, "/b", B, SECOND, None),
            (K.DELETED_NODE_CHANGED, "/g", G, FIRST, None),
        ],
    ),
    "deleted twice, and created again": (
        {"deleted": {A: ARRAY}},
        {**without(A), H: "/g/a"},
        [{"deleted_arrays": (A,)}, {"new_groups": (H,)}],
        [(K.DELETED_NODE_RECREATED, "/g/a", H, SECOND, None)],
    ),
    "replaced, but deleted": (
        {"deleted": {A: ARRAY}, "created": {N: node(N, "/g/a", is_array=True)}},
        without(A),
        [{}, {"deleted_arrays": (A,)}],
        [(K.REPLACED_NODE_DELETED, "/g/a", A, SECOND, None)],
    ),
    "a new node at a path": (
        {"created": {N: NEW_ARRAY}},
        {**BASE, H: "/g/n"},
        [{}, {"new_groups": (H,)}],
        [(K.NODE_EXISTS, "/g/n", H, SECOND, None)],
    ),
    "a new node in the place of one that is deleted or moved": (
        {
            "created": {N: node(N, "/g/a", is_array=True), H: node(H, "/b", is_array=False)},
            "deleted": {A: ARRAY},
            "moved": {B: move(B, "/b", "/c")},
        },
        BASE,
        [{}],
        [],
    ),
    "no group for a new node": (
        {"created": {N: NEW_ARRAY}},
        without(G, A),
        [{"deleted_groups": (G,)}],
        [(K.NO_GROUP_FOR_NODE, "/g/n", None, None, None)],
    ),
    "an array instead of the group": (
        {"created": {N: node(N, "/h/n", is_array=True)}},
        {**BASE, N: "/h"},
        [{"new_arrays": (N,)}],
        [(K.NO_GROUP_FOR_NODE, "/h/n", None, FIRST, None)],
    ),
    "a group of ours that holds it": (
        {"created": {H: node(H, "/h", is_array=False), N: node(N, "/h/n", is_array=True)}},
        BASE,
        [{}],
        [],
    ),
    "an array of ours that does not": (
        {"created": {A: node(A, "/h", is_array=True), N: node(N, "/h/n", is_array=True)}},
        {B: "/b"},
        [{}],
        [(K.NO_GROUP_FOR_NODE, "/h/n", None, None, None)],
    ),
    "a moved group that holds it": (
        {"moved": {G: move(G, "/g", "/h", is_array=False), A: move(A, "/g/a", "/h/a")}},
        BASE,
        [{}],
        [],
    ),
    "a moved node that is gone": (
        {"moved": {A: move(A, "/g/a", "/c")}},
        without(A),
        [{}, {"deleted_arrays": (A,)}],
        [(K.MOVED_NODE_GONE, "/g/a", A, SECOND, None)],
    ),
    "their moves": (
        {"chunks": {B: chunks(1)}},
        {G: "/h", A: "/h/a", B: "/b"},
        [{"moved_nodes": (move(G, "/g", "/h", is_array=False),)}],
        [(K.MOVED_THERE, "/g", G, FIRST, None)],
    ),
    "their moves beside other changes": (
        {"chunks": {B: chunks(1)}},
        {**BASE, A: "/c"},
        [{"new_arrays": (A, N), "deleted_arrays": (A, N)}],
        [(K.MOVED_THERE, "/g/a", A, FIRST, None)],
    ),
    "a new node in a group that is deleted": (
        {"deleted": {G: GROUP, A: ARRAY}},
        {**BASE, N: "/g/n", H: "/h"},
        [{"new_groups": (H,)}, {"new_arrays": (N,)}],
        [(K.NODE_IN_DELETED_GROUP, "/g/n", N, SECOND, None)],
    ),
    "a new node deep in a group that is moved": (
        {"moved": {G: move(G, "/g", "/k", is_array=False), A: move(A, "/g/a", "/k/a")}},
        {**BASE, H: "/g/h", N: "/g/h/n"},
        [{"new_groups": (H,)}, {"new_arrays": (N,)}],
        [
            (K.NODE_IN_DELETED_GROUP, "/g/h", H, FIRST, None),
            (K.NODE_IN_DELETED_GROUP, "/g/h/n", N, SECOND, None),
        ],
    ),
    "a new node that is deleted again": (
        {"deleted": {G: GROUP, A: ARRAY}},
        BASE,
        [{"new_arrays": (N,)}, {"deleted_arrays": (N,)}],
        [],
    ),
    "a new node below an array that is deleted": (
        {"deleted": {A: ARRAY}, "moved": {B: move(B, "/b", "/c")}},
        {**BASE, H: "/g/a/h", N: "/b/n"},
        [{"new_groups": (H,), "new_arrays": (N,)}],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_conflicts_are_those_of_the_rules(case):
    changes, tip, logs, expected = CASES[case]
    assert found(changes, tip, *logs) == expected


def test_chunks_that_smaller_arrays_drop():
    cut = chunks(0)
    cut.resize((2,))
    first = {"updated_chunks": {A: coords(0, 1)}}
    second = {"updated_chunks": {A: coords(1, 2, 5)}}
    dropped = (K.CHUNKS_OF_SMALLER_ARRAY, "/g/a", A, SECOND, [2, 5])
    twice = (K.CHUNKS_WRITTEN_TWICE, "/g/a", A, FIRST, [0])
    assert found({"chunks": {A: cut}}, BASE, first, second) == [twice, dropped]
    gone = (K.CHUNKS_OF_DELETED_ARRAY, "/g/a", A, None, None)
    assert found({"chunks": {A: cut}}, without(A), first, second) == [gone]
    only_cut = ChunkChanges(1)
    only_cut.resize((2,))
    assert found({"chunks": {A: only_cut}}, BASE, first, second) == [dropped]
    assert found({"chunks": {A: only_cut}}, BASE, {"updated_arrays": (A,)}) == []


def test_in_a_merge_both_sides_may_have_a_node_that_the_base_lacks():
    tip = {**BASE, N: "/there"}
    conflicts = found(
        {"chunks": {N: chunks(1)}}, tip, {"new_arrays": (N,), "updated_chunks": {N: coords(1)}}
    )
    assert conflicts == [(K.CHUNKS_WRITTEN_TWICE, "/there", N, FIRST, [1])]
    ours = {"created": {N: NEW_ARRAY}, "updated": {N: NEW_ARRAY}}
    conflicts = found(ours, tip, {"updated_arrays": (N,)})
    assert conflicts == [(K.METADATA_UPDATED_TWICE, "/g/n", N, FIRST, None)]


def test_a_rebase_drops_what_others_deleted_and_the_chunks_of_others():
    changes = ChangeSet(
        deleted={A: ARRAY, B: node(B, "/b", is_array=True)}, chunks={B: chunks(1, 2)}
    )
    detector = ConflictDetector(
        changes=changes,
        base=snapshot(BASE),
        tip=snapshot(without(A)),
        theirs=[
            TheirCommit(
                snapshot_id=FIRST, log=TransactionLog(id=FIRST, updated_chunks={B: coords(2)})
            )
        ],
    )
    conflicts = [one for one in detector.conflicts() if one.kind is K.CHUNKS_WRITTEN_TWICE]
    assert resolved(conflicts, None) == conflicts
    assert resolved(conflicts, "ours") == resolved(conflicts, "theirs") == []
    for resolve, left in (("ours", [1, 2]), ("theirs", [1])):
        rebased(changes, tip=snapshot(without(A)), conflicts=conflicts, resolve=resolve)
        assert changes.deleted.keys() == {B}
        assert changes.chunks[B].touched().coords().ravel().tolist() == left
