"""Checks snapshot files (nodes, hierarchy, ``zarr.json``, lists of manifests) and transaction logs.

Rules of this file
------------------
1. Snapshots share most nodes, so each distinct node is checked once (``SeenNodes``).
2. A missing log is a warning, since only rebase and diff need logs, not reads of data.
3. New, updated or moved nodes of a log must be in its snapshot, unless they are also deleted in the
   log: the log of an amended commit has the changes of two commits. Deleted nodes are not looked
   up, since a rebase or an expiration may have replaced the parent that had them.

Specification: "Snapshot Files", "Transaction Log Files"; Zarr v3 core, "Metadata".
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from icechunk_format.encoding import transaction_log as transaction_log_file
from icechunk_format.encoding.envelope import SPEC_V2, FileType
from icechunk_format.encoding.ids import ManifestId, SnapshotId, encode_many, id_keys
from icechunk_format.encoding.node_path import ROOT, is_canonical, parent
from icechunk_format.encoding.object_keys import SNAPSHOTS, snapshot_key, transaction_log_key
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.stored_order import (
    unsorted_in_snapshot,
    unsorted_in_transaction_log,
)
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.grid.axes import ChunkAxis, RunAxis
from icechunk_format.grid.boxes import first_overlap
from icechunk_format.maintenance.verifying.checks.readable import check_order, decoded, reporting
from icechunk_format.maintenance.verifying.checks.state import RankedSnapshot
from icechunk_format.maintenance.verifying.checks.uses import (
    Claim,
    ManifestEntry,
    ManifestUse,
    SnapshotMark,
)
from icechunk_format.maintenance.verifying.findings import Report, Spot
from icechunk_format.zarr.zarr_json import (
    ArrayMetadata,
    parse_array_metadata,
    parse_group_metadata,
)

_SHOWN: Final = 3
_DOCUMENT: Final = ("zarr-json-damaged", "array-unsupported")


class SeenNodes:
    """The set of checked nodes and manifest lists, with 16 bytes for each."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_new(self, *parts: bytes) -> bool:
        """Return True if these bytes were not added before, and add them."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        found = digest.digest()
        if found in self._digests:
            return False
        self._digests.add(found)
        return True


def check_snapshot(ranked: RankedSnapshot, data: bytes | None, report: Report) -> Snapshot | None:
    """Decode and check a snapshot file; return None if it cannot be read.

    ``data`` is None if the file is missing.
    """
    here = ranked.mark.at(report, snapshot_key(ranked.snapshot_id))
    snapshot = decoded("snapshot", data, snapshot_file.decode, ranked.snapshot_id, here)
    if snapshot is None or data is None:
        return None
    if ranked.flushed_at is not None and snapshot.flushed_at != ranked.flushed_at:
        here.add(
            "snapshot-differs-from-repo",
            f"the file has the time {snapshot.flushed_at} in microseconds since 1970, 'repo' has "
            f"{ranked.flushed_at}",
        )
    check_order(data, FileType.SNAPSHOT, unsorted_in_snapshot, "snapshot-unsorted", here)
    with reporting(here, "metadata-damaged"):
        dict(snapshot.metadata)
    return _readable(snapshot, here)


def _readable(snapshot: Snapshot, here: Spot) -> Snapshot:
    """Return a snapshot without unreadable nodes; report these."""
    nodes = snapshot.nodes
    try:
        deque(nodes, maxlen=0)
    except FormatError:
        rows = []
        for row in range(len(nodes)):
            with reporting(here, "snapshot-damaged"):
                rows += [row for _ in nodes.take([row])]
        return replace(snapshot, nodes=nodes.subset(np.array(rows, dtype=np.intp)))
    return snapshot


def check_nodes(
    snapshot: Snapshot, mark: SnapshotMark, report: Report, seen: SeenNodes, *, with_documents: bool
) -> Iterator[Claim]:
    """Check nodes and lists of manifests; yield the snapshot's claims about manifests.

    Nodes and lists ``seen`` in other snapshots are skipped. Claims contain ``zarr.json`` only if
    ``with_documents``, for the decoding of chunks.
    """
    _check_hierarchy(snapshot, mark, report)
    yield from _check_manifest_files(snapshot, mark, report, seen)
    for node in snapshot.nodes:
        facts = [node.id.raw, node.path.encode(), node.user_data]
        if node.array is not None:
            sizes = (node.array.shape, node.array.num_chunks, node.array.dimension_names)
            facts += [
                repr((snapshot.spec_version, sizes)).encode(),
                node.array.manifests.ids.tobytes(),
                node.array.manifests.extents.tobytes(),
            ]
        if not seen.is_new(*facts):
            continue
        report.count("nodes")
        here = _at(node, mark, report)
        if node.array is None:
            with reporting(here, *_DOCUMENT):
                parse_group_metadata(node.user_data, node_path=str(node.path))
        else:
            num_chunks = _check_array(snapshot.spec_version, node, node.array, here)
            yield from _uses(node, node.array, num_chunks, mark, with_documents)


def _at(node: NodeSnapshot, mark: SnapshotMark, report: Report) -> Spot:
    object_key = f"{SNAPSHOTS}{mark.snapshot_id}"
    return mark.at(report, object_key, node_path=str(node.path), subject=str(node.id))


def _check_hierarchy(snapshot: Snapshot, mark: SnapshotMark, report: Report) -> None:
    here = mark.at(report, snapshot_key(snapshot.id))
    for path in snapshot.duplicate_paths:
        here.add(
            "node-path-duplicate",
            f"more than one node has the path {path}; readers see one of them",
            node_path=str(path),
            subject=str(path),
        )
    is_group = {node.path: node.array is None for node in snapshot.nodes}
    if is_group and ROOT not in is_group:
        here.add("root-missing", "there are nodes, but no root group '/'", subject="")
    for node in snapshot.nodes:
        above = parent(node.path)
        if above is None:
            continue
        if not is_canonical(node.path):
            _at(node, mark, report).add(
                "node-path-odd",
                f"its path {str(node.path)!r} has an empty, '.' or '..' segment or a NUL, so that "
                "it is left out where groups are read as tables",
            )
        elif is_group.get(above) is False:
            problem = f"its parent {above} is an array"
            _at(node, mark, report).add("node-parent-not-group", problem)
        elif above not in is_group and above != ROOT:
            _at(node, mark, report).add(
                "node-parent-missing",
                f"its parent group {above} does not exist, so that listing groups does not find it",
            )
    for node_id, count in Counter(node.id for node in snapshot.nodes).items():
        if count > 1:
            paths = [str(node.path) for node in snapshot.nodes if node.id == node_id]
            here.add(
                "node-id-duplicate",
                f"the nodes {', '.join(paths)} have one id, {node_id}, and so share their chunks",
                subject=str(node_id),
            )


def _check_manifest_files(
    snapshot: Snapshot, mark: SnapshotMark, report: Report, seen: SeenNodes
) -> Iterator[Claim]:
    """Compare the list of manifest files with the manifests that arrays use."""
    files = snapshot.manifest_files
    lists = [node.array.manifests.ids for node in snapshot.nodes if node.array is not None]
    used = np.concatenate([np.zeros((0, ManifestId.SIZE), np.uint8), *lists])
    if not seen.is_new(
        files.ids.tobytes(),
        files.size_bytes.tobytes(),
        files.num_chunk_refs.tobytes(),
        used.tobytes(),
    ):
        return
    listed_keys, used_keys = id_keys(files.ids), id_keys(used)
    is_listed = np.isin(used_keys, listed_keys)
    if not is_listed.all():
        owners = [node for node in snapshot.nodes if node.array is not None]
        owner = np.repeat(np.arange(len(owners)), [len(ids) for ids in lists])
        for row, string in zip(
            np.flatnonzero(~is_listed).tolist(), encode_many(used[~is_listed]), strict=True
        ):
            _at(owners[int(owner[row])], mark, report).add(
                "manifest-unlisted",
                f"it has chunks in manifest {string}, which is not in the snapshot's list of "
                "manifest files; other clients cannot read it",
            )
    unused = ~np.isin(listed_keys, used_keys)
    if unused.any():
        problem = f"{int(unused.sum())} manifest files are listed that no array uses"
        mark.at(report, snapshot_key(snapshot.id)).add("manifest-unused", problem)
    for raw, size, num_refs in zip(
        files.ids, files.size_bytes.tolist(), files.num_chunk_refs.tolist(), strict=True
    ):
        manifest_id = ManifestId(raw.tobytes())
        if seen.is_new(manifest_id.raw, b"%d %d" % (size, num_refs)):
            yield ManifestEntry(manifest_id=manifest_id, mark=mark, size=size, num_refs=num_refs)


def _check_array(
    spec_version: int, node: NodeSnapshot, array: ArrayNode, here: Spot
) -> tuple[int, ...]:
    """Check an array; return the number of chunks of its grid along each axis."""
    num_chunks = array.num_chunks
    with reporting(here, *_DOCUMENT):
        document = parse_array_metadata(node.user_data, node_path=str(node.path))
        num_chunks = _check_document(spec_version, array, document, here)
        if document.shape == array.shape:
            document.chunk_codecs()
    extents = array.manifests.extents
    limits = np.maximum(num_chunks, 1)
    outside = (extents[:, :, 1] > limits).any(axis=1)
    if outside.any():
        here.add(
            "extents-outside-grid",
            f"{int(outside.sum())} of its manifests cover chunks beyond its grid of "
            f"{list(num_chunks)} chunks",
        )
    overlap = first_overlap(extents)
    if overlap is not None:
        left, right = (array.manifests.manifest_id(row) for row in overlap)
        here.add(
            "extents-overlap",
            f"its manifests {left} and {right} cover the same chunks; readers take the first",
        )
    return num_chunks


def _check_document(
    spec_version: int, array: ArrayNode, document: ArrayMetadata, here: Spot
) -> tuple[int, ...]:
    """Compare ``zarr.json`` with the node; return the larger of both grids."""
    if document.shape != array.shape:
        here.add(
            "array-shape-mismatch",
            f"zarr.json has shape {list(document.shape)}, the snapshot {list(array.shape)}",
        )
        return array.num_chunks
    unnamed = (None,) * document.ndim
    if (document.dimension_names or unnamed) != (array.dimension_names or unnamed):
        here.add(
            "array-names-mismatch",
            f"zarr.json has dimension names {document.dimension_names}, the snapshot "
            f"{array.dimension_names}",
        )
    grid = document.grid.num_chunks
    # In version 1, writers derive the stored chunk length from the number of chunks, so the grids
    # may differ. The reference library also counts listed chunks beyond the shape.
    listed = tuple(_listed_chunks(axis) for axis in document.grid.axes)
    if spec_version >= SPEC_V2 and array.num_chunks not in (grid, listed):
        here.add(
            "array-grid-mismatch",
            f"zarr.json has {list(grid)} chunks, the snapshot {list(array.num_chunks)}",
        )
    return tuple(max(a, b) for a, b in zip(grid, array.num_chunks, strict=True))


def _listed_chunks(axis: ChunkAxis) -> int:
    return sum(count for _, count in axis.runs) if isinstance(axis, RunAxis) else axis.count


def _uses(
    node: NodeSnapshot,
    array: ArrayNode,
    num_chunks: tuple[int, ...],
    mark: SnapshotMark,
    with_documents: bool,
) -> Iterator[ManifestUse]:
    refs = array.manifests
    for row, extents in enumerate(refs.extents.tolist()):
        yield ManifestUse(
            manifest_id=refs.manifest_id(row),
            mark=mark,
            node_id=node.id,
            node_path=str(node.path),
            extents=tuple((low, high) for low, high in extents),
            num_chunks=num_chunks,
            document=node.user_data if with_documents else None,
        )


# -- transaction logs ----------------------------------------------------------------------------


def check_log(
    ranked: RankedSnapshot,
    log_id: SnapshotId,
    data: bytes | None,
    snapshot: Snapshot | None,
    report: Report,
) -> None:
    """Check a transaction log of a snapshot, or of an expired ancestor.

    ``data`` is None if the file is missing, ``snapshot`` if the snapshot could not be read.
    """
    object_key = transaction_log_key(log_id)
    here = ranked.mark.at(report, object_key)
    is_own = log_id == ranked.snapshot_id
    if data is None:
        if ranked.has_log or not is_own:
            here.add("log-missing", "the transaction log does not exist")
        return
    report.count("transaction logs")
    try:
        log = transaction_log_file.decode(data, object_key=object_key)
    except (FormatError, UnsupportedError) as error:
        here.add("log-damaged", error.message.splitlines()[0])
        return
    if log.id != log_id:
        here.add("log-id-mismatch", f"the file has the id {log.id}")
        return
    order = FileType.TRANSACTION_LOG, unsorted_in_transaction_log, "log-unsorted"
    check_order(data, *order, here, follows="")
    if is_own and snapshot is not None:
        _check_named_nodes(log, snapshot, here)


def _check_named_nodes(log: TransactionLog, snapshot: Snapshot, here: Spot) -> None:
    named = {*log.new_groups, *log.new_arrays, *log.updated_groups, *log.updated_arrays}
    named |= {move.node_id for move in log.moved_nodes} | set(log.updated_chunks)
    named -= {*log.deleted_groups, *log.deleted_arrays}
    unknown = sorted(named - {node.id for node in snapshot.nodes})
    # The log may name two nodes with the same path, of which the snapshot yields only one.
    if unknown and not snapshot.duplicate_paths:
        shown = ", ".join(map(str, unknown[:_SHOWN])) + (", ..." if len(unknown) > _SHOWN else "")
        here.add(
            "log-unknown-node",
            f"it records changes of {len(unknown)} nodes that the snapshot does not have: {shown}",
        )
