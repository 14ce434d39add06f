"""Nodes as columns are compared, joined and taken like a list of nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.files.small_snapshots import MANIFEST, refs_of, small_snapshot

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot import node_columns
from icechunk_format.encoding.snapshot.file import ArrayNode
from icechunk_format.encoding.snapshot.node_columns import BytePool
from icechunk_format.encoding.snapshot.nodes import Nodes

NODES = list(small_snapshot().nodes)
A = 3  # the array /foo/a
ARRAY = NODES[A].array
assert ARRAY is not None

CHANGES = {
    "id": {"id": NodeId(b"another1")},
    "path": {"path": NodePath("/foo/9")},
    "document": {"user_data": b'{"zarr_format": 4}' * 20},
    "longer document": {"user_data": NODES[A].user_data + b" "},
    "kind": {"array": None},
    "shape": {"array": replace(ARRAY, shape=(101, 7))},
    "chunks": {"array": replace(ARRAY, num_chunks=(10, 2))},
    "dimensions": {"array": ArrayNode(shape=(1,), num_chunks=(1,), manifests=refs_of([], [], 1))},
    "names": {"array": replace(ARRAY, dimension_names=("time", "x"))},
    "other names": {"array": replace(ARRAY, dimension_names=("timE", None))},
    "no names": {"array": replace(ARRAY, dimension_names=None)},
    "manifests": {
        "array": replace(
            ARRAY,
            manifests=refs_of([b"b" * 12, MANIFEST], [[[0, 4], [0, 1]], [[4, 10], [0, 1]]], 2),
        )
    },
    "extents": {
        "array": replace(
            ARRAY, manifests=refs_of([b"a" * 12, MANIFEST], [[[0, 4], [0, 1]], [[4, 9], [0, 1]]], 2)
        )
    },
    "fewer manifests": {
        "array": replace(ARRAY, manifests=refs_of([MANIFEST], [[[0, 4], [0, 1]]], 2))
    },
}


def columns(nodes):
    return Nodes.of(nodes).columns


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("beside", [False, True])
def test_a_node_differs_if_anything_of_it_does(change, beside):
    others = [*NODES[:A], replace(NODES[A], **CHANGES[change]), *NODES[A + 1 :]]
    if beside:
        others[1] = replace(others[1], id=NodeId(b"another2"))
    expected = [left == right for left, right in zip(NODES, others, strict=True)]
    assert not expected[A]
    assert columns(NODES).equals(columns(others)).tolist() == expected
    assert columns(others).equals(columns(NODES)).tolist() == expected
    assert columns(others).equals(columns(others)).all()


def test_nodes_are_taken_from_two_lists():
    both = columns(NODES).take(np.array([7, 3, 5, 9]), columns(NODES[::-1]))
    assert list(Nodes(both)) == [NODES[n] for n in (1, 3, 5, 3)]
    kept = columns(NODES)
    assert kept.nbytes == kept.pool.size + sum(column.nbytes for column in kept._arrays().values())


def test_a_pool_of_many_buffers_is_joined_but_for_the_first():
    most = node_columns._MAX_BUFFERS
    parts = [np.frombuffer(bytes([65 + n]) * (n + 1), np.uint8) for n in range(most + 2)]
    pool, whole = BytePool([parts[0]]), parts[0].tobytes()
    for count, part in enumerate(parts[1:], 2):
        pool = pool.joined(BytePool([part]))
        whole += part.tobytes()
        assert len(pool._buffers) == (count if count <= most else count - most + 1)
        assert pool._buffers[0] is parts[0]
        assert pool.size == len(whole)
        starts = np.arange(len(whole))
        assert b"".join(pool.get_many(starts, np.ones_like(starts))) == whole
        assert pool.get(len(whole) - 1, 1) == whole[-1:]
