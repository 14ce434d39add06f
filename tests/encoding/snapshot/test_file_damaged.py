"""Damage to a snapshot is named by its field, in bounded time, and gives typed errors only."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from helpers.damage.files import damaged_files
from helpers.effort import counted_lines
from helpers.files.handmade_snapshots import made, node_table, refs_table, with_array
from helpers.files.small_snapshots import MANIFEST, small_snapshot
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.decode_nodes import (
    ARRAY_DATA,
    DIMENSION_NAME,
    DIMENSION_SHAPE_V2,
    GROUP_DATA,
    NODE_SNAPSHOT,
)
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_FILE, MANIFEST_REF
from icechunk_format.encoding.values.metadata_items import METADATA_ITEM
from icechunk_format.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from icechunk_format.encoding.tables.writer import TableWriter


def shape_v1(*numbers: int) -> dict[str, Any]:
    content = struct.pack(f"<{len(numbers)}Q", *numbers)
    return {
        "shape_v2": None,
        "shape": lambda w: w.records(content, count=len(numbers) // 2, alignment=8),
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": None}, "id"),
        ({"nodes": None}, "nodes"),
        ({"message": None}, "message"),
        ({"metadata": lambda w: w.offsets([w.table(METADATA_ITEM)])}, "metadata[0].name"),
        ({"manifest_files": None, "manifest_files_v2": None}, "manifest_files"),
        (
            {"manifest_files_v2": lambda w: w.offsets([w.table(MANIFEST_FILE, size_bytes=1)])},
            "manifest_files_v2.id",
        ),
    ],
)
def test_contradictions_of_the_snapshot_are_named(changes: dict[str, Any], field: str) -> None:
    assert damaged_field(made(**changes)) == field


def damaged_field(data: bytes) -> Any:
    with pytest.raises(FormatError) as caught:
        snapshot.decode(data, object_key="snapshots/X")
    assert caught.value.facts["object_key"] == "snapshots/X"
    assert caught.value.facts["file_type"] == "snapshot"
    return caught.value.facts["field"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": None}, "nodes.id"),
        ({"path": None}, "nodes.path"),
        ({"user_data": None}, "nodes.user_data"),
        ({"node_data": None}, "nodes.node_data"),
        ({"node_data_type": None}, "nodes.node_data"),
    ],
)
def test_contradictions_of_a_node_are_named(changes: dict[str, Any], field: str) -> None:
    def nodes(w: TableWriter) -> int:
        fields: dict[str, Any] = {
            "id": b"12345678",
            "path": w.string("/a"),
            "user_data": w.blob(b"{}"),
            "node_data_type": 2,
            "node_data": w.table(GROUP_DATA),
        }
        return w.offsets([w.table(NODE_SNAPSHOT, **(fields | changes))])

    assert damaged_field(made(nodes=nodes)) == field


@pytest.mark.parametrize("path", ["", "relative"])
def test_paths_that_are_not_absolute_are_refused_alone(path: str) -> None:
    data = made(
        nodes=lambda w: w.offsets([node_table(w), node_table(w, path), node_table(w, "/b")])
    )
    found = snapshot.decode(data, object_key="snapshots/X")
    assert found.node("/b").path == "/b"
    assert found.node("/a").path == "/a"
    # What is carried over to a new version is not looked at.
    again = snapshot.decode(snapshot.encode(found), object_key="snapshots/X")
    number = sorted(["/a", path, "/b"]).index(path)
    with raises(FormatError, object_key="snapshots/X", field=f"nodes[{number}].path"):
        list(again.nodes)


def test_odd_paths_of_existing_writers_are_kept_and_hide_no_other_node() -> None:
    odd = ["/nul\0", "/x//y", "/x/", "/x/./y", "/x/../y", "//"]
    data = made(nodes=lambda w: w.offsets([node_table(w, path) for path in ["/b", *odd, "/a"]]))
    found = snapshot.decode(data, object_key="snapshots/x")
    assert [node.path for node in found.nodes] == sorted(["/a", "/b", *odd])
    assert [node.path for node in found.children("/")] == ["/a", "/b"]
    again = snapshot.decode(snapshot.encode(found), object_key="snapshots/x")
    assert again.nodes == found.nodes


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"shape_v2": None, "shape": None}, "nodes.node_data.shape"),
        ({"manifests": None}, "nodes.node_data.manifests"),
        (shape_v1(5, 0), "nodes.node_data.shape"),
        (shape_v1(4, 2, 2**40, 1), "nodes.node_data.shape"),
        (
            {"dimension_names": lambda w: w.offsets([w.table(DIMENSION_NAME)])},
            "nodes.node_data.dimension_names",
        ),
        (
            {"manifests": lambda w: w.offsets([refs_table(w, (0, 1))])},
            "nodes.node_data.manifests.extents",
        ),
        (
            {"manifests": lambda w: w.offsets([refs_table(w, (0, 1), (2, 1))])},
            "nodes.node_data.manifests.extents",
        ),
        (
            {"manifests": lambda w: w.offsets([w.table(MANIFEST_REF, object_id=MANIFEST)])},
            "nodes.node_data.manifests.extents",
        ),
        (
            {
                "manifests": lambda w: w.offsets(
                    [w.table(MANIFEST_REF, extents=w.records(bytes(16), count=2))]
                )
            },
            "nodes.node_data.manifests.object_id",
        ),
    ],
)
def test_contradictions_of_an_array_are_named(changes: dict[str, Any], field: str) -> None:
    assert damaged_field(with_array(**changes)) == field


def test_a_newer_kind_of_node_asks_for_an_upgrade() -> None:
    data = made(nodes=lambda w: w.offsets([node_table(w, node_data_type=3)]))
    with raises(
        UnsupportedError, match=r"kind 3.*upgrade", object_key="k", found=3, allowed=(1, 2)
    ):
        snapshot.decode(data, object_key="k")


def test_arrays_that_share_references_are_bounded() -> None:
    """Many arrays around one list of references must not multiply it."""

    def nodes(w: TableWriter) -> int:
        refs = w.offsets([refs_table(w)] * 20_000)
        shape = w.records(b"", count=0)
        dimensions = w.offsets([])
        made_nodes = []
        for number in range(5_000):
            array = w.table(ARRAY_DATA, shape=shape, manifests=refs, shape_v2=dimensions)
            made_nodes.append(node_table(w, f"/{number}", node_data_type=1, node_data=array))
        return w.offsets(made_nodes)

    data = made(nodes=nodes)
    field, lines = counted_lines(lambda: damaged_field(data))
    assert field == "nodes.node_data.manifests"
    assert lines < 1_000_000  # 100 million references are described


_SHARED = {
    "nodes.path": lambda w: {"path": w.string("/" + "x" * 100_000)},
    "nodes.user_data": lambda w: {"user_data": w.blob(b" " * 200_000)},
    "nodes.node_data.shape": lambda w: {
        "shape_v2": w.offsets([w.table(DIMENSION_SHAPE_V2, array_length=1, num_chunks=1)] * 10_000)
    },
    "nodes.node_data.dimension_names": lambda w: {
        "shape_v2": w.offsets([w.table(DIMENSION_SHAPE_V2, array_length=1, num_chunks=1)]),
        "dimension_names": w.offsets([w.table(DIMENSION_NAME, name=w.string("n" * 200_000))]),
    },
}


@pytest.mark.parametrize("field", _SHARED)
def test_nodes_that_share_their_parts_are_bounded(field: str) -> None:
    """Metadata that 400 nodes share is read for each, and takes many times the size of the file."""

    def nodes(w: TableWriter, count: int) -> int:
        shared = _SHARED[field](w)
        of_array = {name: at for name, at in shared.items() if name in ARRAY_DATA.fields}
        empty = {"shape": w.records(b"", count=0), "manifests": w.offsets([])}
        empty["shape_v2"] = w.offsets([])
        array = w.table(ARRAY_DATA, **(empty | of_array))
        fields = {"id": bytes(8), "node_data_type": 1, "node_data": array}
        if shared.keys() != of_array.keys():
            fields |= shared
        fields = {"user_data": w.blob(b"{}"), "path": w.string("/a")} | fields
        return w.offsets([w.table(NODE_SNAPSHOT, **fields) for _ in range(count)])

    snapshot.decode(made(nodes=lambda w: nodes(w, 1)), object_key="snapshots/X")
    assert damaged_field(made(nodes=lambda w: nodes(w, 400))) == field


def test_the_empty_table_of_a_group_is_a_table() -> None:
    data = made(nodes=lambda w: w.offsets([node_table(w, node_data=w.blob(bytes(5000)))]))
    assert damaged_field(data) == "nodes.node_data vtable"


@pytest.mark.parametrize("spec_version", [1, 2])
def test_damaged_files_give_typed_errors_only(spec_version: int) -> None:
    named: set[object] = set()
    original = snapshot.encode(small_snapshot(spec_version))
    outcomes = {"read": 0, "refused": 0}
    for damaged in damaged_files(original, FileType.SNAPSHOT, count=1000, seed=spec_version):
        try:
            found = snapshot.decode(damaged, object_key="k")
            found.metadata  # noqa: B018 - must not fail otherwise either
            list(found.nodes)
            snapshot.encode(found)
            outcomes["read"] += 1
        except (FormatError, UnsupportedError) as error:
            named.add(error.facts["object_key"])
            outcomes["refused"] += 1
    assert outcomes["refused"] > 300
    assert named == {"k"}
    assert outcomes["read"] > 30
