"""The effort of conflict detection is in proportion to the changes of both writers."""

import pytest
from helpers.effort import counted_lines

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import ROOT
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.repository.changes import (
    ChangeSet,
    ConflictDetector,
    ConflictKind,
    TheirCommit,
)

COUNT = 4000
TIP = SnapshotId(b"tip.........")
ARRAY = ArrayNode(shape=(4,), num_chunks=(4,), manifests=ManifestRefs.empty(1))


def ids(first=0, count=COUNT):
    return [NodeId(number.to_bytes(8, "big")) for number in range(first, first + count)]


def snapshot(nodes):
    return Snapshot(
        id=TIP, flushed_at=0, message="", nodes=tuple(sorted(nodes, key=lambda node: node.path))
    )


def tree(members):
    root = NodeSnapshot(id=NodeId(b"root...."), path=ROOT, user_data=b"")
    group = NodeSnapshot(id=NodeId(b"group..."), path="/g", user_data=b"")
    arrays = [
        NodeSnapshot(id=i, path=f"/g/{i.raw.hex()}", user_data=b"", array=ARRAY) for i in members
    ]
    return snapshot([root, group, *arrays])


def states(members):
    return {
        i: NodeSnapshot(id=i, path=f"/g/{i.raw.hex()}", user_data=b"x", array=ARRAY)
        for i in members
    }


def updated_twice():
    base = tree(ids())
    log = TransactionLog(id=TIP, updated_arrays=tuple(ids()))
    return ChangeSet(updated=states(ids())), base, base, log, ConflictKind.METADATA_UPDATED_TWICE


def created_in_a_deleted_group():
    base, tip = tree(ids()), tree([*ids(), *ids(COUNT)])
    gone = {node.id: node for node in base.nodes if node.path != ROOT}
    log = TransactionLog(id=TIP, new_arrays=tuple(ids(COUNT)))
    return ChangeSet(deleted=gone), base, tip, log, ConflictKind.NODE_IN_DELETED_GROUP


def created_twice():
    base, tip = tree([]), tree(ids())
    log = TransactionLog(id=TIP, new_arrays=tuple(ids()))
    ours = dict(zip(ids(COUNT), states(ids()).values(), strict=True))
    return ChangeSet(created=ours), base, tip, log, ConflictKind.NODE_EXISTS


def deleted_and_changed():
    base = tree(ids())
    log = TransactionLog(id=TIP, updated_arrays=tuple(ids()))
    return ChangeSet(deleted=states(ids())), base, base, log, ConflictKind.DELETED_NODE_CHANGED


def updated_and_deleted():
    log = TransactionLog(id=TIP, deleted_arrays=tuple(ids()))
    kind = ConflictKind.METADATA_OF_DELETED_NODE
    return ChangeSet(updated=states(ids())), tree(ids()), tree([]), log, kind


@pytest.mark.parametrize(
    "case",
    [
        updated_twice,
        created_in_a_deleted_group,
        created_twice,
        deleted_and_changed,
        updated_and_deleted,
    ],
)
def test_effort_is_in_proportion_to_the_changes(case):
    changes, base, tip, log, kind = case()
    theirs = [TheirCommit(snapshot_id=TIP, log=log)]
    detector = ConflictDetector(changes=changes, base=base, tip=tip, theirs=theirs)
    found, lines = counted_lines(lambda: list(detector.conflicts()))
    assert {conflict.kind for conflict in found} == {kind}
    assert len(found) == COUNT
    assert {conflict.snapshot_id for conflict in found} == {TIP}
    # A comparison of each with each has 16 million.
    assert lines < COUNT**2 // 4
