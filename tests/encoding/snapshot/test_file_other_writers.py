"""Snapshots that other writers may have written differently are read for what they mean."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from helpers.files.handmade_snapshots import made, node_table, refs_table, with_array
from helpers.files.small_snapshots import MANIFEST

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.decode_nodes import (
    DIMENSION_NAME,
    GROUP_DATA,
    NODE_SNAPSHOT,
)
from icechunk_format.encoding.snapshot.manifest_lists import MANIFEST_FILE
from icechunk_format.encoding.values.metadata_items import METADATA_ITEM

if TYPE_CHECKING:
    from icechunk_format.encoding.tables.writer import TableWriter


def test_component_order_and_duplicates_are_read() -> None:
    data = made(
        nodes=lambda w: w.offsets(
            [
                node_table(w, "/a"),
                node_table(w, "/a/b"),
                node_table(w, "/a-b"),
                node_table(w, "/a/b", id=b"second--"),
                node_table(w, "/a/b", id=b"third---"),
            ]
        )
    )
    found = snapshot.decode(data, object_key="k")
    assert [n.path for n in found.nodes] == ["/a", "/a-b", "/a/b"]
    assert found.duplicate_paths == ("/a/b",)
    assert found.node("/a/b").id == NodeId(b"12345678")


def test_references_without_ranges_cover_the_whole_grid() -> None:
    data = with_array(manifests=lambda w: w.offsets([refs_table(w, (2, 3), (0, 1)), refs_table(w)]))
    refs = snapshot.decode(data, object_key="k").node("/a").array.manifests
    assert refs.extents.tolist() == [[[2, 3], [0, 1]], [[0, 10], [0, 2]]]


def test_references_of_other_writers_are_read() -> None:
    """Tables in any order with vtables of their own, as a general builder leaves them."""
    data = with_array(
        manifests=lambda w: w.offsets([refs_table(w, (i, i + 1), (0, 2)) for i in range(10)])
    )
    refs = snapshot.decode(data, object_key="k").node("/a").array.manifests
    assert refs.extents[:, 0, 0].tolist() == list(range(10))
    assert refs.ids.tobytes() == MANIFEST * 10


def test_empty_dimension_names_mean_unnamed() -> None:
    data = with_array(
        dimension_names=lambda w: w.offsets(
            [
                w.table(DIMENSION_NAME, name=w.string("")),
                w.table(DIMENSION_NAME, name=w.string("x")),
            ]
        )
    )
    array = snapshot.decode(data, object_key="k").node("/a").array
    assert array.dimension_names == (None, "x")


def test_version_1_counts_chunks_from_their_length() -> None:
    shape = struct.pack("<8Q", 100, 30, 0, 0, 5, 9, 2**62, 2**31)
    data = with_array(
        spec_version=1,
        shape_v2=None,
        shape=lambda w: w.records(shape, count=4, alignment=8),
    )
    array = snapshot.decode(data, object_key="k").node("/a").array
    assert array.shape == (100, 0, 5, 2**62)
    assert array.num_chunks == (4, 0, 1, 2**31)


def test_the_spec_byte_and_the_lists_are_independent() -> None:
    """Version 1 in the header of a file with version 2 lists only changes the metadata."""

    def item(w: TableWriter) -> int:
        return w.offsets([w.table(METADATA_ITEM, name=w.string("a"), value=w.blob(b"\x07"))])

    data = made(
        spec_version=1,
        metadata=item,
        manifest_files_v2=lambda w: w.offsets([w.table(MANIFEST_FILE, id=MANIFEST, size_bytes=9)]),
    )
    found = snapshot.decode(data, object_key="k")
    assert found.metadata == {"a": 7}
    assert found.manifest_files.ids.tobytes() == MANIFEST
    assert found.manifest_files.size_bytes.tolist() == [9]
    assert found.manifest_files.num_chunk_refs.tolist() == [0]


def test_nodes_that_share_a_table_at_the_end_of_the_file_are_read() -> None:
    def nodes(w: TableWriter) -> int:
        return w.offsets([node_table(w)] * 1000)

    found = snapshot.decode(made(nodes=nodes), object_key="k")
    assert [node.path for node in found.nodes] == ["/a"]
    assert found.duplicate_paths == ("/a",)


def test_a_repeated_path_that_is_not_utf8_is_named_as_far_as_it_goes() -> None:
    def nodes(w: TableWriter) -> int:
        fields = {"id": b"12345678", "user_data": w.blob(b""), "path": w.blob(b"/a\xff")}
        kind = {"node_data_type": 2, "node_data": w.table(GROUP_DATA)}
        return w.offsets([w.table(NODE_SNAPSHOT, **fields, **kind) for _ in range(2)])

    found = snapshot.decode(made(nodes=nodes), object_key="k")
    assert found.duplicate_paths == ("/a\ufffd",)
