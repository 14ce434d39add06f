"""Snapshot files of both spec versions are read as they were written.

Ten thousand manifests are written and read in milliseconds.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.effort import counted_lines
from helpers.examples import by_day
from helpers.files.small_snapshots import MANIFEST, SNAPSHOT_ID, files_of, refs_of, small_snapshot
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import ManifestId, NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.decode_nodes import ARRAY_DATA, NODE_SNAPSHOT
from icechunk_format.encoding.snapshot.encode_nodes import EncodedNodes
from icechunk_format.encoding.snapshot.file import (
    SNAPSHOT,
    ArrayNode,
    ManifestFiles,
    ManifestRefs,
    NodeSnapshot,
    Snapshot,
)
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import InvalidInputError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
segments = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=4
).filter(lambda s: s not in (".", ".."))
paths = st.lists(segments, max_size=3).map(lambda parts: NodePath("/" + "/".join(parts)))
raw_ids = st.binary(min_size=12, max_size=12)


@st.composite
def arrays(draw: st.DrawFn) -> ArrayNode:
    shape = tuple(draw(st.lists(st.integers(0, 2**40), max_size=3)))
    # Regular grids only, so that both spec versions can hold them.
    num_chunks = tuple(
        -(-n // max(draw(st.integers(1, n + 1)), n // 2**31 + 1)) if n else 0 for n in shape
    )
    names = st.none() | texts.filter(bool)
    ids = draw(st.lists(raw_ids, max_size=4))
    bounds = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)).map(sorted)
    extents = [[draw(bounds) for _ in shape] for _ in ids]
    return ArrayNode(
        shape=shape,
        num_chunks=num_chunks,
        dimension_names=draw(st.none() | st.tuples(*(names for _ in shape))),
        manifests=refs_of(ids, extents, len(shape)),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    spec_version = draw(st.sampled_from([1, 2]))
    nodes = [
        NodeSnapshot(
            id=NodeId(draw(st.binary(min_size=8, max_size=8))),
            path=path,
            user_data=draw(st.binary(max_size=30)),
            array=draw(st.none() | arrays()),
        )
        for path in sorted(draw(st.sets(paths, max_size=4)))
    ]
    files = draw(
        st.lists(
            st.tuples(raw_ids, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=4
        )
    )
    parents = st.none() | raw_ids.map(SnapshotId) if spec_version == 1 else st.none()
    values = draw(st.dictionaries(texts, st.integers(-5, 5) | texts, max_size=2))
    return Snapshot(
        id=SnapshotId(draw(raw_ids)),
        parent_id=draw(parents),
        spec_version=spec_version,
        flushed_at=draw(st.integers(0, 2**64 - 1)),
        message=draw(texts),
        metadata_items=(
            MetadataItems.of(values, spec_version=spec_version) if values else MetadataItems()
        ),
        nodes=tuple(nodes),
        manifest_files=files_of(*files),
    )


@given(snapshots())
@settings(max_examples=by_day(60), deadline=None)
def test_what_was_written_is_read(original: Snapshot) -> None:
    data = snapshot.encode(original, level=1)
    found = snapshot.decode(data, object_key="snapshots/X")
    assert found == original
    assert snapshot.encode(found, level=1) == data
    assert found.duplicate_paths == ()
    assert found.metadata == original.metadata


@pytest.mark.parametrize("spec_version", [1, 2])
def test_values_survive_pickling(spec_version: int) -> None:
    original = small_snapshot(spec_version)
    assert pickle.loads(pickle.dumps(original)) == original


def test_lookups_by_path() -> None:
    tree = small_snapshot()
    assert tree.node("/foo/a").array.shape == (100, 7)
    assert tree.node("/foo/b") is None
    assert tree.node("/zzz") is None
    assert [n.path for n in tree.children("/")] == ["/foo", "/foo-x", "/scalar"]
    assert [n.path for n in tree.children("/foo")] == ["/foo/a"]
    assert [n.path for n in tree.descendants("/foo")] == ["/foo/a", "/foo/a/deep"]
    assert [n.path for n in tree.descendants("/")] == [n.path for n in tree.nodes[1:]]
    assert tree.children("/scalar") == ()
    assert tree.children("/nowhere") == ()


def test_lookups_of_manifests() -> None:
    tree = small_snapshot()
    ids = ManifestId.rows(map(ManifestId, (MANIFEST, b"z\0" * 6, b"x" * 12)))
    assert tree.manifest_files.sizes_of(ids).tolist() == [500, 7, 0]
    assert tree.manifest_files.counts_of(ids).tolist() == [6, 1, 0]
    assert ManifestFiles.empty().sizes_of(ids).tolist() == [0, 0, 0]
    refs = tree.node("/foo/a").array.manifests
    assert refs.manifest_id(1) == ManifestId(MANIFEST)


def test_lists_equal_lists_only() -> None:
    tree = small_snapshot()
    refs = tree.node("/foo/a").array.manifests
    assert refs != tree.node("/scalar").array.manifests
    assert refs != [1]
    assert tree.manifest_files != ManifestFiles.empty()
    assert tree.manifest_files != [1]
    assert tree.nodes != 1
    one = (b"m" * 12, 5, 6)
    for number, other in enumerate((b"n" * 12, 7, 7)):
        assert files_of(one) != files_of((*one[:number], other, *one[number + 1 :]))
    assert files_of(one) == files_of(one)


def test_an_empty_list_of_files_has_the_types_of_others() -> None:
    empty, one = ManifestFiles.empty(), files_of((b"m" * 12, 5, 6))
    for name in ("ids", "size_bytes", "num_chunk_refs"):
        assert getattr(empty, name).dtype == getattr(one, name).dtype


def test_sizes_of_files_are_exact() -> None:
    size = 2**60 + 1
    found = files_of((b"m" * 12, size, 6)).sizes_of(ManifestId.rows([ManifestId(b"m" * 12)]))
    assert (found.tolist(), found.dtype) == ([size], np.int64)


def test_columns_are_read_only() -> None:
    refs = small_snapshot().node("/foo/a").array.manifests
    with pytest.raises(ValueError, match="read-only"):
        refs.ids[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        refs.extents[0] = 0


def test_manifest_files_are_sorted_and_unique() -> None:
    files = files_of((b"b" * 12, 1, 2), (b"a" * 12, 3, 4), (b"b" * 12, 5, 6))
    assert files.ids.tobytes() == b"a" * 12 + b"b" * 12
    assert files.size_bytes.tolist() == [3, 1]
    assert files.num_chunk_refs.tolist() == [4, 2]


def payload(original: Snapshot) -> bytes:
    data = snapshot.encode(original)
    return unwrap(data, file_type=FileType.SNAPSHOT, object_key="k").payload


@pytest.mark.parametrize("spec_version", [1, 2])
def test_each_flavour_has_its_lists(spec_version: int) -> None:
    """Readers choose by presence, so the lists of the other version must be absent or empty."""
    root = read_root(payload(small_snapshot(spec_version)), SNAPSHOT, object_key="k", file_type="")
    is_v1 = spec_version == 1
    assert root.has("parent_id") == is_v1
    assert root.has("manifest_files")
    assert (root.vector("manifest_files", 32)[1] > 0) == is_v1
    assert root.has("manifest_files_v2") != is_v1
    for node in root.children("nodes", NODE_SNAPSHOT):
        if node.union_kind("node_data") == 2:
            continue
        array = node.child("node_data", ARRAY_DATA)
        assert array.has("shape")
        assert array.has("manifests")
        assert array.has("shape_v2") != is_v1
        if not is_v1:
            assert array.vector("shape", 16)[1] == 0


def test_the_parent_is_stored_in_version_1_only() -> None:
    original = replace(small_snapshot(2), parent_id=SnapshotId(b"p" * 12))
    assert snapshot.decode(snapshot.encode(original), object_key="k").parent_id is None


def test_nodes_are_written_in_the_order_of_raw_bytes() -> None:
    original = small_snapshot()
    shuffled = replace(original, nodes=original.nodes[::-1])
    root = read_root(payload(shuffled), SNAPSHOT, object_key="k", file_type="")
    assert [n.string("path") for n in root.children("nodes", NODE_SNAPSHOT)] == [
        "/",
        "/foo",
        "/foo-x",
        "/foo/a",
        "/foo/a/deep",
        "/scalar",
    ]


def changed_array(spec_version: int = 2, **changes: Any) -> Snapshot:
    tree = small_snapshot(spec_version)
    nodes = tuple(
        replace(n, array=replace(n.array, **changes)) if n.path == "/foo/a" else n
        for n in tree.nodes
    )
    return replace(tree, nodes=nodes)


def test_one_path_for_two_nodes_is_refused() -> None:
    tree = small_snapshot()
    with raises(InvalidInputError, found="/foo", allowed="unique paths"):
        snapshot.encode(replace(tree, nodes=(*tree.nodes, tree.nodes[1])))


@pytest.mark.parametrize(
    "changes",
    [{"shape": (100,)}, {"num_chunks": (1, 1, 1)}, {"dimension_names": ("x",)}],
)
def test_dimensions_that_disagree_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="must agree"):
        snapshot.encode(changed_array(**changes))


@pytest.mark.parametrize("num_chunks", [(0, 1), (101, 1), (60, 1)])
def test_version_1_refuses_grids_that_are_not_regular(num_chunks: tuple[int, ...]) -> None:
    with raises(InvalidInputError, allowed="a regular chunk grid"):
        snapshot.encode(changed_array(1, num_chunks=num_chunks))
    assert snapshot.encode(changed_array(2, num_chunks=num_chunks))


def test_a_grid_that_version_1_cannot_hold_is_named_with_its_axis() -> None:
    def array(path: str, *num_chunks: int) -> NodeSnapshot:
        made = ArrayNode(
            shape=(10,) * len(num_chunks),
            num_chunks=num_chunks,
            manifests=refs_of([], [], len(num_chunks)),
        )
        return NodeSnapshot(id=NodeId(b"12345678"), path=NodePath(path), user_data=b"", array=made)

    nodes = (array("/a", 1, 2), array("/b", 1, 1, 5), array("/c", 6), array("/d", 5))
    old = replace(small_snapshot(1), nodes=nodes)
    with raises(InvalidInputError, match="array '/c' .* along axis 0", found=(10, 6)):
        snapshot.encode(old)
    nodes = (array("/a", 1, 2), array("/b", 1, 1, 6, 1), array("/d", 5))
    with raises(InvalidInputError, match="array '/b' .* along axis 2", found=(10, 6)):
        snapshot.encode(replace(old, nodes=nodes))


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 0, 2), (1, 1)])
def test_short_dimensions_are_kept(spec_version: int, shape: tuple[int, ...]) -> None:
    changes = {"shape": shape, "num_chunks": shape, "dimension_names": None}
    original = changed_array(spec_version, **changes, manifests=refs_of([], [], len(shape)))
    assert snapshot.decode(snapshot.encode(original), object_key="k") == original


@pytest.mark.parametrize("is_v1", [True, False])
def test_the_list_of_nodes_ends_at_a_multiple_of_eight(is_v1: bool) -> None:
    for count in range(6):
        nodes = [
            NodeSnapshot(id=NodeId(b"12345678"), path=NodePath("/" + "a" * n), user_data=b"x" * n)
            for n in range(1, count + 1)
        ]
        encoded = EncodedNodes(Nodes.of(nodes), is_v1=is_v1)
        assert encoded.size % 8 == 0
        assert sum(map(len, encoded.blocks())) == encoded.size


WITH_NAMES, WITHOUT_NAMES = "140004000c0008001000", "10000400000008000c00"


def test_nothing_is_written_for_what_is_not_there() -> None:
    def encoded(*nodes: NodeSnapshot) -> bytes:
        return b"".join(map(bytes, EncodedNodes(Nodes.of(nodes), is_v1=False).blocks()))

    def array(path: str, name: str | None) -> NodeSnapshot:
        manifests = refs_of([], [], 1)
        made = ArrayNode(
            shape=(1,), num_chunks=(1,), dimension_names=name and (name,), manifests=manifests
        )
        return NodeSnapshot(id=NodeId(b"12345678"), path=NodePath(path), user_data=b"", array=made)

    assert encoded() == bytes(8)
    # The vtables of arrays with and without names.
    vtables = [bytes.fromhex(f"0c00{rest}") for rest in (WITH_NAMES, WITHOUT_NAMES)]
    for name, expected in (("x", [True, False]), (None, [False, True])):
        data = encoded(array("/a", name))
        assert [vtable in data for vtable in vtables] == expected


def test_a_higher_level_makes_a_smaller_file() -> None:
    nodes = [
        NodeSnapshot(id=NodeId(n.to_bytes(8, "big")), path=NodePath(f"/{n}"), user_data=b"%d" % n)
        for n in range(3000)
    ]
    version = replace(small_snapshot(), nodes=Nodes.of(sorted(nodes, key=lambda one: one.path)))
    one, three, nineteen = (snapshot.encode(version, level=level) for level in (1, 3, 19))
    assert len(nineteen) < len(one)
    assert one != three == snapshot.encode(version)


def test_columns_of_the_wrong_shape_are_refused() -> None:
    ids = np.zeros((2, 12), dtype=np.uint8)
    with raises(InvalidInputError, found=(2, 8), allowed=("n", 12)):
        ManifestRefs(ids=ids[:, :8], extents=np.zeros((2, 1, 2), dtype=np.uint32))
    with raises(InvalidInputError, found=(3, 1, 2), allowed=(2, "ndim", 2)):
        ManifestRefs(ids=ids, extents=np.zeros((3, 1, 2), dtype=np.uint32))
    with raises(InvalidInputError, found=(2, 1, 2), allowed=(2, "ndim", 2)):
        ManifestRefs(ids=ids, extents=np.zeros((2, 1, 2), dtype=np.int64))
    with raises(InvalidInputError, found=((2, 12), (1,), (2,)), allowed=((2, 12), (2,), (2,))):
        ManifestFiles(
            ids=ids,
            size_bytes=np.zeros(1, dtype=np.uint64),
            num_chunk_refs=np.zeros(2, dtype=np.uint32),
        )


def test_ten_thousand_manifests_take_milliseconds() -> None:
    n = 10_000
    ids = np.random.default_rng(0).integers(0, 256, (n, 12), dtype=np.uint8)
    extents = np.zeros((n, 3, 2), dtype=np.uint32)
    extents[:, 0, 0] = np.arange(n)
    extents[:, :, 1] = extents[:, :, 0] + 1
    array = ArrayNode(
        shape=(n, 1, 1),
        num_chunks=(n, 1, 1),
        manifests=ManifestRefs(ids=ids, extents=extents),
    )
    tree = Snapshot(
        id=SNAPSHOT_ID,
        flushed_at=0,
        message="",
        nodes=(NodeSnapshot(id=NodeId(bytes(8)), path=NodePath("/a"), user_data=b"", array=array),),
        manifest_files=ManifestFiles.of(
            ids, np.arange(n, dtype=np.uint64), np.ones(n, dtype=np.uint32)
        ),
    )
    data, writing = counted_lines(lambda: snapshot.encode(tree))
    found, reading = counted_lines(lambda: snapshot.decode(data, object_key="k"))
    assert found == tree
    assert writing + reading < 10_000  # no loop over references


@pytest.mark.parametrize(
    ("spec_version", "digest"), [(1, "4207a24cdacb63c0"), (2, "e75a71e619b74ecf")]
)
def test_the_bytes_stay_as_they_are(spec_version: int, digest: str) -> None:
    """Bytes that change need a comparison with the files of the reference first."""
    data = snapshot.encode(small_snapshot(spec_version))
    payload = unwrap(data, file_type=FileType.SNAPSHOT, object_key="k").payload
    assert hashlib.sha256(payload).hexdigest()[:16] == digest
