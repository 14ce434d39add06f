"""The difference of two versions adds up the changes of the commits between them."""

import numpy as np
import pytest

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.object_keys import transaction_log_key
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.encoding.transaction_log import MoveOperation, TransactionLog
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.repository.history import add_up
from icechunk_format.repository.history.diff import Move


def node_id(number):
    return NodeId(bytes([number]) * 8)


def snapshot_id(number):
    return SnapshotId(bytes([number]) * 12)


def snapshot(**paths):
    """Return a snapshot with nodes ``n1="/a"``: number and path."""
    nodes = [
        NodeSnapshot(id=node_id(int(name[1:])), path=NodePath(path), user_data=b"{}")
        for name, path in paths.items()
    ]
    return Snapshot(
        id=snapshot_id(1),
        flushed_at=0,
        message="",
        nodes=tuple(sorted(nodes, key=lambda node: node.path)),
    )


def log(number, **fields):
    return TransactionLog(id=snapshot_id(number), **fields)


def coords(*rows):
    return np.array(rows, dtype=np.uint32)


def test_paths_are_those_of_the_newer_version_and_of_the_older_for_what_is_gone():
    changes = add_up(
        [
            log(2, new_arrays=(node_id(3),), updated_groups=(node_id(1),)),
            log(3, deleted_arrays=(node_id(2),), updated_arrays=(node_id(3),)),
        ],
        older=snapshot(n1="/old", n2="/old/gone"),
        newer=snapshot(n1="/new", n3="/new/added"),
    )
    assert changes.new_arrays == ("/new/added",)
    assert changes.deleted_arrays == ("/old/gone",)
    assert changes.updated_groups == ("/new",)
    assert changes.updated_arrays == ("/new/added",)


def test_a_node_that_was_moved_deleted_and_restored_is_deleted_where_it_was():
    older, newer = snapshot(n1="/a"), snapshot(n1="/b")
    move = MoveOperation(
        from_path=NodePath("/a"), to_path=NodePath("/b"), node_id=node_id(1), is_array=False
    )
    logs = [
        log(2, moved_nodes=(move,)),
        log(3, deleted_groups=(node_id(1),)),
        log(4, new_groups=(node_id(1),)),
    ]
    changes = add_up(logs, older=older, newer=newer)
    assert changes.deleted_groups == ("/a",)
    assert changes.new_groups == ("/b",)


def test_what_was_created_and_deleted_in_between_is_left_out():
    changes = add_up(
        [
            log(2, new_groups=(node_id(9),), updated_chunks={node_id(9): coords([0])}),
            log(3, deleted_groups=(node_id(9),)),
        ],
        older=snapshot(),
        newer=snapshot(),
    )
    assert changes == add_up([], older=snapshot(), newer=snapshot())


def test_chunks_of_several_commits_are_joined_without_repeats():
    changes = add_up(
        [
            log(2, updated_chunks={node_id(1): coords([0, 1], [2, 0])}),
            log(3, updated_chunks={node_id(1): coords([0, 0], [2, 0])}),
        ],
        older=snapshot(n1="/a"),
        newer=snapshot(n1="/a"),
    )
    assert changes.updated_chunks["/a"].tolist() == [[0, 0], [0, 1], [2, 0]]
    assert changes.updated_chunks["/a"].dtype == np.uint32


def test_an_array_that_took_the_path_of_another_counts_alone():
    changes = add_up(
        [
            log(2, updated_chunks={node_id(1): coords([5])}),
            log(3, deleted_arrays=(node_id(1),)),
            log(4, new_arrays=(node_id(2),), updated_chunks={node_id(2): coords([1, 1])}),
        ],
        older=snapshot(n1="/a"),
        newer=snapshot(n2="/a"),
    )
    assert changes.deleted_arrays == changes.new_arrays == ("/a",)
    assert changes.updated_chunks["/a"].tolist() == [[1, 1]]


def test_moves_come_in_the_order_in_which_they_happened():
    def move(number, source, target):
        return log(
            number,
            moved_nodes=(
                MoveOperation(
                    from_path=NodePath(source),
                    to_path=NodePath(target),
                    node_id=node_id(1),
                    is_array=True,
                ),
            ),
        )

    changes = add_up(
        [move(2, "/a", "/z"), move(3, "/z", "/b")],
        older=snapshot(n1="/a"),
        newer=snapshot(n1="/b"),
    )
    assert changes.moved_nodes == (
        Move(from_path=NodePath("/a"), to_path=NodePath("/z")),
        Move(from_path=NodePath("/z"), to_path=NodePath("/b")),
    )


@pytest.fixture
def repository(four_commits):
    for number in (2, 4):
        four_commits.storage.put(
            transaction_log_key(snapshot_id(number)), transaction_log.encode(log(number))
        )
    return Repository.open(four_commits.location)


def test_a_missing_log_is_told(repository):
    assert repository.diff(snapshot_id(1), snapshot_id(2)).missing_logs == ()
    assert repository.diff(snapshot_id(1), snapshot_id(4)).missing_logs == (str(snapshot_id(3)),)


def test_a_version_does_not_differ_from_itself(repository):
    changes = repository.diff(snapshot_id(3), str(snapshot_id(3)))
    assert changes.updated_chunks == {}
    assert changes.missing_logs == ()


def test_versions_in_the_wrong_order_are_refused(repository):
    with pytest.raises(InvalidInputError, match="in the order of history"):
        repository.diff(snapshot_id(4), snapshot_id(1))
