"""Checks snapshot files: nodes, hierarchy, ``zarr.json`` documents and lists of manifests.

Many versions share most nodes, so each distinct node is checked once (``SeenNodes``).

Specification: "Snapshot Files"; Zarr v3 core, "Metadata".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from icechunk_format.arrays.zarr_json import (
    ArrayMetadata,
    parse_array_metadata,
    parse_group_metadata,
)
from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.grid.boxes import first_overlap
from icechunk_format.maintenance.verifying.checks.readable import decoded
from icechunk_format.maintenance.verifying.checks.state import Version
from icechunk_format.maintenance.verifying.checks.uses import (
    ManifestEntry,
    ManifestUse,
    Said,
    VersionMark,
)
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.spec.envelope import SPEC_V2, FileType, unwrap
from icechunk_format.spec.id_columns import id_keys
from icechunk_format.spec.ids import ManifestId, encode_many
from icechunk_format.spec.node_path import ROOT, is_canonical, parent
from icechunk_format.spec.object_keys import SNAPSHOTS, snapshot_key
from icechunk_format.spec.snapshot import file as snapshot_file
from icechunk_format.spec.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.spec.snapshot.stored_order import unsorted_in_snapshot


class SeenNodes:
    """The nodes and the lists of manifests that were checked already; 16 bytes for each."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_new(self, *parts: bytes) -> bool:
        """Tell whether these bytes come for the first time."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        found = digest.digest()
        if found in self._digests:
            return False
        self._digests.add(found)
        return True


def check_snapshot(
    version: Version, data: bytes | None, report: Report
) -> tuple[Snapshot, VersionMark] | None:
    """Decode a snapshot file and check what concerns the file as a whole.

    Parameters
    ----------
    version
        The version that it should be.
    data
        The bytes of the file; None if it is missing.
    report
        Takes the findings.

    Returns
    -------
    tuple or None
        The snapshot and its mark, for further checks; None where there is nothing to check.
    """
    object_key = snapshot_key(version.snapshot_id)
    mark = VersionMark(str(version.snapshot_id), version.rank)
    where = mark.where(object_key)
    snapshot = decoded("snapshot", data, snapshot_file.decode, version.snapshot_id, report, where)
    if snapshot is None or data is None:
        return None
    if version.flushed_at is not None and snapshot.flushed_at != version.flushed_at:
        report.add(
            "snapshot-differs-from-repo",
            f"the file says that it was made {snapshot.flushed_at} microseconds after 1970, "
            f"'repo' says {version.flushed_at}",
            **where,
        )
    envelope = unwrap(data, file_type=FileType.SNAPSHOT, object_key=object_key)
    unsorted = unsorted_in_snapshot(envelope.payload, object_key=object_key)
    if unsorted:
        report.add(
            "snapshot-unsorted",
            f"the lists {', '.join(unsorted)} are out of order, so that other clients may not "
            "find what they hold",
            **where,
        )
    try:
        dict(snapshot.metadata)
    except FormatError as error:
        report.add("metadata-damaged", error.message, **where)
    return snapshot, mark


def check_nodes(
    snapshot: Snapshot, mark: VersionMark, report: Report, seen: SeenNodes, *, with_documents: bool
) -> Iterator[Said]:
    """Check nodes and lists of manifests; yield what the version says about manifests.

    Parameters
    ----------
    snapshot, mark
        The version.
    report
        Takes the findings.
    seen
        Nodes that were looked at in other versions, which are passed over.
    with_documents
        Whether chunks are to be decoded later, for which ``zarr.json`` is needed.
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
        if node.array is None:
            _check_group(node, mark, report)
        else:
            num_chunks = _check_array(snapshot.spec_version, node, node.array, mark, report)
            yield from _uses(node, node.array, num_chunks, mark, with_documents)


def _where(node: NodeSnapshot, mark: VersionMark) -> dict[str, Any]:
    object_key = f"{SNAPSHOTS}{mark.snapshot_id}"
    return mark.where(object_key, node_path=str(node.path), place=str(node.id))


def _check_hierarchy(snapshot: Snapshot, mark: VersionMark, report: Report) -> None:
    file = mark.where(snapshot_key(snapshot.id))
    for path in snapshot.duplicate_paths:
        report.add(
            "node-path-duplicate",
            f"more than one node has the path {path}; readers see one of them",
            node_path=str(path),
            place=str(path),
            **file,
        )
    is_group = {node.path: node.array is None for node in snapshot.nodes}
    if is_group and ROOT not in is_group:
        report.add("root-missing", "there are nodes, but no root group '/'", place="", **file)
    for node in snapshot.nodes:
        above = parent(node.path)
        if above is None:
            continue
        if not is_canonical(node.path):
            report.add(
                "node-path-odd",
                f"its path {str(node.path)!r} has an empty, '.' or '..' segment or a NUL, so that "
                "it is left out where groups are read as tables",
                **_where(node, mark),
            )
            continue
        if is_group.get(above) is False:
            report.add(
                "node-parent-not-group", f"its parent {above} is an array", **_where(node, mark)
            )
        elif above not in is_group and above != ROOT:
            report.add(
                "node-parent-missing",
                f"its parent group {above} is not there, so that listing groups does not find it",
                **_where(node, mark),
            )
    for node_id, count in Counter(node.id for node in snapshot.nodes).items():
        if count > 1:
            paths = [str(node.path) for node in snapshot.nodes if node.id == node_id]
            report.add(
                "node-id-duplicate",
                f"the nodes {', '.join(paths)} have one id, {node_id}, and so share their chunks",
                place=str(node_id),
                **file,
            )


def _check_manifest_files(
    snapshot: Snapshot, mark: VersionMark, report: Report, seen: SeenNodes
) -> Iterator[Said]:
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
        for row, text in zip(
            np.flatnonzero(~is_listed).tolist(), encode_many(used[~is_listed]), strict=True
        ):
            report.add(
                "manifest-unlisted",
                f"it takes chunks from manifest {text}, which is not in the snapshot's list of "
                "manifest files; other clients cannot read it",
                **_where(owners[int(owner[row])], mark),
            )
    unused = ~np.isin(listed_keys, used_keys)
    if unused.any():
        report.add(
            "manifest-unused",
            f"{int(unused.sum())} manifest files are listed that no array uses",
            **mark.where(snapshot_key(snapshot.id)),
        )
    for raw, size, num_refs in zip(
        files.ids, files.size_bytes.tolist(), files.num_chunk_refs.tolist(), strict=True
    ):
        manifest_id = ManifestId(raw.tobytes())
        if seen.is_new(manifest_id.raw, b"%d %d" % (size, num_refs)):
            yield ManifestEntry(manifest_id=manifest_id, mark=mark, size=size, num_refs=num_refs)


def _check_group(node: NodeSnapshot, mark: VersionMark, report: Report) -> None:
    try:
        parse_group_metadata(node.user_data, node_path=str(node.path))
    except FormatError as error:
        report.add("zarr-json-damaged", error.message, **_where(node, mark))
    except UnsupportedError as error:
        report.add("array-unsupported", error.message, **_where(node, mark))


def _check_array(
    spec_version: int, node: NodeSnapshot, array: ArrayNode, mark: VersionMark, report: Report
) -> tuple[int, ...]:
    """Check an array by itself; return the chunks of its grid per axis."""
    where = _where(node, mark)
    num_chunks = array.num_chunks
    try:
        document = parse_array_metadata(node.user_data, node_path=str(node.path))
        num_chunks = _check_document(spec_version, array, document, where, report)
        if document.shape == array.shape:
            document.chunk_codecs()
    except FormatError as error:
        report.add("zarr-json-damaged", error.message, **where)
    except UnsupportedError as error:
        report.add("array-unsupported", error.message.splitlines()[0], **where)
    extents = array.manifests.extents
    limits = np.maximum(num_chunks, 1)
    outside = (extents[:, :, 1] > limits).any(axis=1)
    if outside.any():
        report.add(
            "extents-outside-grid",
            f"{int(outside.sum())} of its manifests cover chunks beyond its grid of "
            f"{list(num_chunks)} chunks",
            **where,
        )
    overlap = first_overlap(extents)
    if overlap is not None:
        left, right = (array.manifests.manifest_id(row) for row in overlap)
        report.add(
            "extents-overlap",
            f"its manifests {left} and {right} cover the same chunks; readers take the first",
            **where,
        )
    return num_chunks


def _check_document(
    spec_version: int,
    array: ArrayNode,
    document: ArrayMetadata,
    where: dict[str, Any],
    report: Report,
) -> tuple[int, ...]:
    """Compare ``zarr.json`` with the node; return the larger grid of the two."""
    if document.shape != array.shape:
        report.add(
            "array-shape-mismatch",
            f"zarr.json says shape {list(document.shape)}, the snapshot {list(array.shape)}",
            **where,
        )
        return array.num_chunks
    unnamed = (None,) * document.ndim
    if (document.dimension_names or unnamed) != (array.dimension_names or unnamed):
        report.add(
            "array-names-mismatch",
            f"zarr.json says dimension names {document.dimension_names}, the snapshot "
            f"{array.dimension_names}",
            **where,
        )
    grid = document.grid.num_chunks
    # Version 1 stores a chunk length that writers compute back from the number of chunks.
    if spec_version >= SPEC_V2 and grid != array.num_chunks:
        report.add(
            "array-grid-mismatch",
            f"zarr.json makes {list(grid)} chunks, the snapshot {list(array.num_chunks)}",
            **where,
        )
    return tuple(max(a, b) for a, b in zip(grid, array.num_chunks, strict=True))


def _uses(
    node: NodeSnapshot,
    array: ArrayNode,
    num_chunks: tuple[int, ...],
    mark: VersionMark,
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
