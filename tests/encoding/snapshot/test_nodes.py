"""Changed node columns equal a new list of the nodes, at little cost."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.effort import counted_lines
from helpers.files.small_snapshots import SNAPSHOT_ID, refs_of, small_snapshot
from helpers.raised import raises

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.snapshot.nodes import ArrayNode, Nodes, NodeSnapshot
from icechunk_format.errors import InvalidInputError


def random_node(chance: random.Random, path: str) -> NodeSnapshot:
    array = None
    if chance.random() < 0.7:
        shape = tuple(chance.randrange(1, 50) for _ in range(chance.randrange(4)))
        ids = [chance.randbytes(12) for _ in range(chance.randrange(3))]
        names = tuple(chance.choice(["x", "größe", None]) for _ in shape)
        array = ArrayNode(
            shape=shape,
            num_chunks=shape,
            dimension_names=chance.choice([None, names]),
            manifests=refs_of(ids, [[[0, n] for n in shape] for _ in ids], len(shape)),
        )
    return NodeSnapshot(
        id=NodeId(chance.randbytes(8)),
        path=NodePath(path),
        user_data=chance.randbytes(chance.randrange(40)),
        array=array,
    )


@pytest.mark.parametrize("seed", range(20))
def test_changed_nodes_equal_nodes_built_anew(seed: int) -> None:
    """Ten commits on top of one another, each read from what it wrote every other time."""
    chance = random.Random(seed)
    names = ["/", *(f"/{c}{s}" for c in "ab" for s in ("", "-", "/x", "/x/y", "0", "/é"))]
    nodes, expected = Nodes.of(()), {}
    for turn in range(10):
        new = [random_node(chance, p) for p in chance.sample(names, chance.randrange(6))]
        gone = {*(node.path for node in new), *chance.sample(names, chance.randrange(3))}
        nodes = nodes.changed(gone, new)
        expected = {p: n for p, n in expected.items() if p not in gone}
        expected.update((node.path, node) for node in new)
        if turn % 2:
            version = Snapshot(id=SNAPSHOT_ID, flushed_at=1, message="", nodes=nodes)
            nodes = snapshot.decode(snapshot.encode(version), object_key="k").nodes
        assert list(nodes) == [expected[path] for path in sorted(expected)]
        for path in names:
            assert nodes.at(path) == expected.get(path)
        for node in expected.values():
            assert nodes.with_id(node.id) == node
            assert nodes.path_of_id(node.id) == node.path
        assert nodes.with_id(NodeId(b"unknown.")) is None


def test_children_pass_by_what_they_hold() -> None:
    paths = ["/", "/a", "/a-", "/a-/x", "/a/b", "/a/b/c", "/a/d", "/a0", "/orphan/x/y", "/z"]
    nodes = Nodes.of(NodeSnapshot(id=NodeId(b"n" * 8), path=p, user_data=b"") for p in paths)
    assert [nodes[n].path for n in nodes.children("/")] == ["/a", "/a-", "/a0", "/z"]
    assert [nodes[n].path for n in nodes.children("/a")] == ["/a/b", "/a/d"]
    assert not nodes.children("/orphan")
    assert [nodes[n].path for n in nodes.descendants("/a")] == ["/a/b", "/a/b/c", "/a/d"]


def test_a_new_node_takes_the_place_of_none_that_stays() -> None:
    nodes = small_snapshot().nodes
    with raises(
        InvalidInputError,
        match="two nodes have the path '/foo'",
        found="/foo",
        allowed="unique paths",
    ):
        nodes.changed([], [nodes[1]])


def many(count: int) -> Snapshot:
    root = NodeSnapshot(id=NodeId(b"root...."), path=NodePath("/"), user_data=b"{}")
    refs = refs_of([b"m" * 12], [[[0, 4], [0, 2]]], 2)
    arrays = [
        NodeSnapshot(
            id=NodeId(number.to_bytes(8, "little")),
            path=NodePath(f"/v{number:06}"),
            user_data=b'{"zarr_format": 3, "attributes": {"number": %d}}' % number * 8,
            array=ArrayNode(
                shape=(number, 9), num_chunks=(4, 2), dimension_names=("t", "x"), manifests=refs
            ),
        )
        for number in range(count)
    ]
    return Snapshot(id=SNAPSHOT_ID, flushed_at=1, message="", nodes=Nodes.of([root, *arrays]))


def test_one_node_of_very_many_is_read_and_changed_without_making_the_others() -> None:
    data = snapshot.encode(many(20_000))
    found, reading = counted_lines(lambda: snapshot.decode(data, object_key="k"))
    node, finding = counted_lines(lambda: found.node("/v012345"))
    assert node is not None
    assert node.array is not None
    assert node.array.shape == (12_345, 9)
    assert reading + finding < 60_000  # making a node takes many lines
    other = NodeSnapshot(**{**fields(node), "array": None})
    changed, changing = counted_lines(lambda: found.nodes.changed([node.path], [other]))
    version = Snapshot(id=SNAPSHOT_ID, flushed_at=2, message="", nodes=changed)
    again, writing = counted_lines(lambda: snapshot.encode(version))
    assert changing + writing < 20_000
    read = snapshot.decode(again, object_key="k")
    assert len(read.nodes) == 20_001
    assert read.node("/v012345").array is None
    assert read.node("/v012344") == found.node("/v012344")
    assert np.array_equal(read.nodes.columns.ids, found.nodes.columns.ids)


def fields(node: NodeSnapshot) -> dict[str, object]:
    return {"id": node.id, "path": node.path, "user_data": node.user_data}


def test_bytes_of_nodes_that_are_gone_are_given_up() -> None:
    nodes = many(500).nodes
    size = nodes.columns.nbytes
    for number in range(300):
        node = nodes[1 + number]
        nodes = nodes.changed([node.path], [NodeSnapshot(**fields(node))])
    for number in range(450):
        nodes = nodes.changed([f"/v{number:06}"], [])
    assert len(nodes) == 51
    assert nodes.columns.nbytes < size / 2


def test_no_node_has_a_path_that_is_not_unicode() -> None:
    nodes = small_snapshot().nodes
    for path in ("/\ud800", "/foo\udfff", "\ud800"):
        assert nodes.at(path) is None
        assert nodes.number_of(path) is None
        assert list(nodes.descendants(path)) == list(nodes.children(path)) == []
        assert nodes.changed([path], []) == nodes
