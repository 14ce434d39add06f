"""Ways to damage snapshots, with their nodes and extents, and transaction logs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
from helpers.damage.planting import Damage, planting
from helpers.damage.repository import LINES, SMALL, Damaged, array_document, replace_bytes, swap_in
from helpers.sessions.model import group_document

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.envelope import FileType
from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles
from icechunk_format.encoding.tables.schema import TableSchema

DAMAGES: list[Damage] = []
damage = planting(DAMAGES)


# -- snapshots ---------------------------------------------------------------------------------


@damage("snapshot-time-reversed", "snapshot-differs-from-repo")
def time_runs_backwards(d: Damaged) -> None:
    d.edit_info(d.tip, flushed_at=1)


@damage("snapshot-missing")
def snapshot_deleted(d: Damaged) -> None:
    d.file(f"snapshots/{d.tip}").unlink()


@damage("snapshot-damaged")
def snapshot_cut_short(d: Damaged) -> None:
    d.truncate(f"snapshots/{d.tip}", 200)


@damage("snapshot-damaged")
def snapshot_header_flipped(d: Damaged) -> None:
    d.flip(f"snapshots/{d.tip}", 3)


@damage("snapshot-damaged")
def snapshot_of_a_newer_format(d: Damaged) -> None:
    d.flip(f"snapshots/{d.tip}", 36)


@damage("snapshot-id-mismatch")
def snapshot_over_another(d: Damaged) -> None:
    shutil.copy(d.file(f"snapshots/{d.first}"), d.file(f"snapshots/{d.tip}"))


@damage("snapshot-differs-from-repo")
def snapshot_of_another_time(d: Damaged) -> None:
    d.edit_snapshot(flushed_at=d.snapshot(d.tip).flushed_at + 1)


@damage("snapshot-unsorted")
def nodes_out_of_order(d: Damaged) -> None:
    change = swap_in(snapshot.SNAPSHOT, "nodes", 1, 2)
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("snapshot-unsorted")
def manifest_files_out_of_order(d: Damaged) -> None:
    change = swap_in(snapshot.SNAPSHOT, "manifest_files_v2")
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("node-path-duplicate")
def two_nodes_with_one_path(d: Damaged) -> None:
    twin = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, twin))
    # "/h" sorts last but one, so the renamed twin is also out of place; put it beside the other.
    key = f"snapshots/{d.tip}"
    paths = sorted(node.path for node in d.snapshot(d.tip).nodes)
    for at in range(paths.index("/h"), paths.index("/g") + 1, -1):
        d.edit_payload(key, FileType.SNAPSHOT, swap_in(snapshot.SNAPSHOT, "nodes", at - 1, at))
    d.edit_payload(key, FileType.SNAPSHOT, replace_bytes(b"\2\0\0\0/h\0", b"\2\0\0\0/g\0"))


@damage("node-path-odd")
def node_with_an_empty_segment(d: Damaged) -> None:
    odd = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/g//a")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, odd))


@damage("snapshot-damaged", "snapshot-unsorted")
def node_with_a_path_that_is_not_absolute(d: Damaged) -> None:
    spare = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, spare))
    change = replace_bytes(b"\2\0\0\0/h\0", b"\2\0\0\0'h\0")
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("snapshot-damaged", "snapshot-unsorted")
def node_with_a_path_that_is_not_text(d: Damaged) -> None:
    spare = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, spare))
    change = replace_bytes(b"\2\0\0\0/h\0", b"\2\0\0\0/\xff\0")
    d.edit_payload(f"snapshots/{d.tip}", FileType.SNAPSHOT, change)


@damage("node-id-duplicate")
def two_nodes_with_one_id(d: Damaged) -> None:
    twin = replace(d.node("/g"), path="/h")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, twin))


# The log of this version says that the group was changed.
@damage("node-parent-missing", "log-unknown-node")
def group_gone_from_under_its_arrays(d: Damaged) -> None:
    d.edit_snapshot(nodes=d.without("/g"))


@damage("node-parent-not-group")
def node_inside_an_array(d: Damaged) -> None:
    child = replace(d.node("/g"), id=NodeId(b"\1" * 8), path="/small/inner")
    d.edit_snapshot(nodes=(*d.snapshot(d.tip).nodes, child))


@damage("root-missing")
def no_root_group(d: Damaged) -> None:
    d.edit_snapshot(nodes=d.without("/"))


@damage("zarr-json-damaged")
def zarr_json_of_noise(d: Damaged) -> None:
    d.edit_node("/g", user_data=b"{ not json")


@damage("zarr-json-damaged")
def zarr_json_of_a_group_at_an_array(d: Damaged) -> None:
    d.edit_node(SMALL, user_data=group_document())


@damage("zarr-json-damaged")
def codecs_that_do_not_fit(d: Damaged) -> None:
    d.edit_node(
        SMALL, user_data=array_document((6,), (2,), [{"name": "crc32c"}, {"name": "bytes"}])
    )


@damage("array-shape-mismatch")
def shapes_differ(d: Damaged) -> None:
    d.edit_array(SMALL, shape=(8,))


@damage("array-grid-mismatch")
def grids_differ(d: Damaged) -> None:
    d.edit_array(SMALL, num_chunks=(4,))


@damage("array-names-mismatch")
def dimension_names_differ(d: Damaged) -> None:
    d.edit_array(LINES, dimension_names=("y", "z"))


@damage("manifest-unlisted")
def manifest_not_listed(d: Damaged) -> None:
    files = d.snapshot(d.tip).manifest_files
    kept = (files.ids != np.frombuffer(d.manifest_id(SMALL).raw, np.uint8)).any(axis=1)
    listed = ManifestFiles.of(files.ids[kept], files.size_bytes[kept], files.num_chunk_refs[kept])
    d.edit_snapshot(manifest_files=listed)


@damage("extents-overlap", "ref-outside-extents")
def extents_overlap(d: Damaged) -> None:
    boxes = [[0, 3], [0, 2]], [[2, 4], [1, 2]]
    d.edit_array(LINES, manifests=d.extents(LINES, *boxes))


@damage("extents-not-tight", "extents-outside-grid")
def extents_beyond_the_grid(d: Damaged) -> None:
    d.edit_array(SMALL, manifests=d.extents(SMALL, [[0, 9]]))


@damage("ref-outside-extents")
def extents_too_narrow(d: Damaged) -> None:
    d.edit_array(SMALL, manifests=d.extents(SMALL, [[0, 2]]))


@damage("ref-outside-grid", "extents-outside-grid")
def references_beyond_the_grid(d: Damaged) -> None:
    d.edit_node(
        SMALL,
        user_data=array_document((3,), (2,), [{"name": "bytes"}]),
        array=replace(d.node(SMALL).array, shape=(3,), num_chunks=(2,)),
    )


# -- transaction logs --------------------------------------------------------------------------


@damage("log-missing")
def log_deleted(d: Damaged) -> None:
    d.file(f"transactions/{d.tip}").unlink()


@damage("log-damaged")
def log_cut_short(d: Damaged) -> None:
    d.truncate(f"transactions/{d.first}", 90)


@damage("log-id-mismatch")
def log_over_another(d: Damaged) -> None:
    shutil.copy(d.file(f"transactions/{d.first}"), d.file(f"transactions/{d.tip}"))


@damage("log-unknown-node")
def log_of_unknown_nodes(d: Damaged) -> None:
    log = transaction_log.TransactionLog(id=d.tip, new_groups=(NodeId(b"\7" * 8),))
    d.file(f"transactions/{d.tip}").write_bytes(transaction_log.encode(log))


@damage("log-unsorted")
def log_out_of_order(d: Damaged) -> None:
    schema = TableSchema(
        "TransactionLog", id="id12", new_groups="offset", new_arrays="offset", c="offset",
        d="offset", e="offset", f="offset", updated_chunks="offset",
    )  # fmt: skip
    change = swap_in(schema, "updated_chunks")
    d.edit_payload(f"transactions/{d.first}", FileType.TRANSACTION_LOG, change)
