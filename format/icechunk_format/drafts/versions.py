"""Writing the versions of a draft as snapshots and transaction logs of spec version 2.

Rules of this file
------------------
1. Manifests are written once for all versions that share them, and for one array each.
2. What a version changed is found by comparing it with its parent in the draft, and chunks are
   compared only where the lists of manifests differ.
3. Memory: the nodes of a few versions, and the references of one array in two versions.

Specification: "Snapshot Files", "Chunk Manifest Files", "Transaction Log Files".
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from icechunk_format.drafts.model import DraftNode
from icechunk_format.drafts.zarr_documents import group_document
from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.repository.files.manifest_files import ManifestFormat, store_manifests
from icechunk_format.repository.lifecycle.create import FIRST_MESSAGE
from icechunk_format.spec import transaction_log as transaction_log_file
from icechunk_format.spec.envelope import SPEC_V2
from icechunk_format.spec.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icechunk_format.spec.node_path import ROOT, parent
from icechunk_format.spec.object_keys import snapshot_key, transaction_log_key
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.spec.snapshot import file as snapshot_file
from icechunk_format.spec.snapshot.file import ArrayNode, Nodes, NodeSnapshot, Snapshot
from icechunk_format.spec.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.spec.transaction_log import TransactionLog
from icechunk_format.spec.values.metadata_items import RESERVED_METADATA, MetadataItems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icechunk_format.drafts.converting import ChunkConverter
    from icechunk_format.drafts.model import DraftRepository, DraftSnapshot
    from icechunk_format.repository.files.manifest_files import ManifestReceipt
    from icechunk_format.spec.node_path import NodePath
    from icechunk_format.storage.protocol import Storage

ID_METADATA: Final = "draft_snapshot_id"
_ADDED: Final = -1
_KEPT_VERSIONS: Final = 4


def draft_snapshot_id(draft_id: str) -> SnapshotId:
    """Return the id of an imported version."""
    return SnapshotId(hashlib.blake2b(draft_id.encode(), digest_size=SnapshotId.SIZE).digest())


@dataclass(frozen=True, slots=True)
class _Manifests:
    """The manifests of an array that were written, for whatever version needs them."""

    refs: ManifestRefs
    files: tuple[ManifestReceipt, ...]


class VersionWriter:
    """Writes versions, parents first.

    Parameters
    ----------
    draft
        Where they come from.
    converter
        Copies their chunks.
    target
        Where they go; None to check and count only.

    Attributes
    ----------
    snapshot_ids
        Id in the draft to new id, of all versions so far.
    infos
        What ``repo`` will say of them.
    """

    def __init__(
        self, draft: DraftRepository, converter: ChunkConverter, target: Storage | None
    ) -> None:
        self._draft = draft
        self._converter = converter
        self._target = target
        self._format = ManifestFormat(spec_version=SPEC_V2)
        self._node_ids: dict[tuple[int, NodePath, bool], NodeId] = {}
        self._manifests: dict[tuple[object, ...], _Manifests] = {}
        self._versions: OrderedDict[str, dict[NodeId, DraftNode]] = OrderedDict()
        self.snapshot_ids: dict[str, SnapshotId] = {}
        self.infos: dict[SnapshotId, SnapshotInfo] = {}

    def begin(self, first_time: int) -> None:
        """Write the empty version that all others stand on, right before a time."""
        metadata = MetadataItems.of({RESERVED_METADATA: {"is_root": True}})
        info = SnapshotInfo(
            id=INITIAL_SNAPSHOT_ID,
            parent_id=None,
            flushed_at=max(first_time - 1, 0),
            message=FIRST_MESSAGE,
            metadata_items=metadata,
        )
        self._store(info, (), (), TransactionLog(id=info.id))

    def add(self, version: DraftSnapshot) -> None:
        """Write one version, whose parent is written.

        Raises
        ------
        NotFoundError, FormatError, UnsupportedError, StorageError
            As for ``import_draft``.
        """
        parent_id = INITIAL_SNAPSHOT_ID
        before: dict[NodeId, DraftNode] = {}
        if version.parent_id is not None:
            parent_id = self.snapshot_ids[version.parent_id]
            before = self._nodes_of(version.parent_id)
        snapshot_id = draft_snapshot_id(version.id)
        info = SnapshotInfo(
            id=snapshot_id,
            parent_id=parent_id,
            flushed_at=max(version.written_at, self.infos[parent_id].flushed_at + 1),
            message=version.message,
            metadata_items=_metadata(version),
        )
        nodes = self._nodes_of(version.id)
        stored: list[NodeSnapshot] = []
        files: list[ManifestReceipt] = []
        for node_id, node in nodes.items():
            if node.array is None:
                stored.append(NodeSnapshot(id=node_id, path=node.path, user_data=node.user_data))
                continue
            manifests = self._manifests_of(node_id, node)
            files += manifests.files
            array = ArrayNode(
                shape=node.array.shape,
                num_chunks=node.array.grid.num_chunks,
                dimension_names=node.array.dimension_names,
                manifests=manifests.refs,
            )
            stored.append(
                NodeSnapshot(id=node_id, path=node.path, user_data=node.user_data, array=array)
            )
        log = TransactionLog(id=snapshot_id)
        if self._target is not None:
            log = self._log(snapshot_id, before, nodes)
        stored.sort(key=lambda node: node.path)
        self._store(info, tuple(stored), tuple(files), log)
        self.snapshot_ids[version.id] = snapshot_id

    def _store(
        self,
        info: SnapshotInfo,
        nodes: tuple[NodeSnapshot, ...],
        files: tuple[ManifestReceipt, ...],
        log: TransactionLog,
    ) -> None:
        self.infos[info.id] = info
        if self._target is None:
            return
        ids = b"".join(file.manifest_id.raw for file in files)
        version = Snapshot(
            id=info.id,
            parent_id=None,
            spec_version=SPEC_V2,
            flushed_at=info.flushed_at,
            message=info.message,
            metadata_items=info.metadata_items,
            nodes=Nodes.of(nodes),
            manifest_files=ManifestFiles.of(
                np.frombuffer(ids, dtype=np.uint8).reshape(-1, ManifestId.SIZE),
                np.array([file.size_bytes for file in files], dtype=np.uint64),
                np.array([file.num_chunk_refs for file in files], dtype=np.uint32),
            ),
        )
        self._target.put_many(
            [
                (snapshot_key(info.id), snapshot_file.encode(version)),
                (transaction_log_key(info.id), transaction_log_file.encode(log)),
            ]
        )

    # -- nodes ------------------------------------------------------------------------------

    def _nodes_of(self, draft_id: str) -> dict[NodeId, DraftNode]:
        """Return the nodes of a version by their new ids, with the groups that are missing."""
        found = self._versions.get(draft_id)
        if found is None:
            found = {self._node_id(node): node for node in _complete(self._draft.nodes(draft_id))}
            self._versions[draft_id] = found
            while len(self._versions) > _KEPT_VERSIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(draft_id)
        return found

    def _node_id(self, node: DraftNode) -> NodeId:
        key = (node.id, node.path, node.array is not None)
        if key not in self._node_ids:
            self._node_ids[key] = NodeId.from_random(secrets.token_bytes(NodeId.SIZE))
        return self._node_ids[key]

    def _manifests_of(self, node_id: NodeId, node: DraftNode) -> _Manifests:
        key = (node_id, *_stored_chunks(node))
        found = self._manifests.get(key)
        if found is None:
            refs = self._converter.refs(self._draft.chunk_refs(node))
            files: list[ManifestReceipt] = []
            if self._target is not None:
                (files,) = store_manifests(self._target, self._format, [(node_id, refs)])
            ids = b"".join(file.manifest_id.raw for file in files)
            extents = np.array([file.extents for file in files], dtype=np.uint32)
            found = _Manifests(
                refs=ManifestRefs(
                    ids=np.frombuffer(ids, dtype=np.uint8).reshape(-1, ManifestId.SIZE),
                    extents=extents.reshape(len(files), refs.ndim, 2),
                ),
                files=tuple(files),
            )
            self._manifests[key] = found
        return found

    # -- changes ----------------------------------------------------------------------------

    def _log(
        self,
        snapshot_id: SnapshotId,
        before: dict[NodeId, DraftNode],
        nodes: dict[NodeId, DraftNode],
    ) -> TransactionLog:
        chunks: dict[NodeId, NDArray[np.uint32]] = {}
        new: dict[bool, list[NodeId]] = {True: [], False: []}
        updated: dict[bool, list[NodeId]] = {True: [], False: []}
        for node_id, node in nodes.items():
            is_array = node.array is not None
            old = before.get(node_id)
            if old is None:
                new[is_array].append(node_id)
            elif old.user_data != node.user_data:
                updated[is_array].append(node_id)
            if is_array and (old is None or _stored_chunks(old) != _stored_chunks(node)):
                coords = self._changed_chunks(old, node)
                if len(coords):
                    chunks[node_id] = coords
        gone: dict[bool, list[NodeId]] = {True: [], False: []}
        for node_id, node in before.items():
            if node_id not in nodes:
                gone[node.array is not None].append(node_id)
        return TransactionLog(
            id=snapshot_id,
            new_groups=tuple(new[False]),
            new_arrays=tuple(new[True]),
            deleted_groups=tuple(gone[False]),
            deleted_arrays=tuple(gone[True]),
            updated_groups=tuple(updated[False]),
            updated_arrays=tuple(updated[True]),
            updated_chunks=chunks,
        )

    def _changed_chunks(self, old: DraftNode | None, node: DraftNode) -> NDArray[np.uint32]:
        chunks = self._draft.chunk_refs(node)
        if old is None or old.array is None or node.array is None:
            return chunks.coords
        if old.array.ndim != node.array.ndim:
            raise FormatError(
                f"array {node.path!r} has {old.array.ndim} dimensions in one version and "
                f"{node.array.ndim} in the next; an array that was replaced has another number",
                file_type="draft snapshot",
                field=node.path,
            )
        return chunks.differs_from(self._draft.chunk_refs(old))


def _stored_chunks(node: DraftNode) -> tuple[object, ...]:
    """Return what tells whether two versions of an array have the same references."""
    grid = () if node.array is None else node.array.grid.num_chunks
    return node.manifests, grid


def _metadata(version: DraftSnapshot) -> MetadataItems:
    try:
        return MetadataItems.of({**version.properties, ID_METADATA: version.id})
    except InvalidInputError as error:
        raise FormatError(
            f"the properties of version {version.id} cannot be kept: {error.message}",
            object_key=version.id,
            file_type="draft snapshot",
            field="properties",
        ) from error


def _complete(nodes: list[DraftNode]) -> list[DraftNode]:
    """Return nodes with a group for each parent that is missing.

    Raises
    ------
    FormatError
        An array is the parent of another node.
    """
    by_path = {node.path: node for node in nodes}
    for node in nodes:
        above = parent(node.path)
        while above is not None:
            found = by_path.get(above)
            if found is None:
                by_path[above] = DraftNode(id=_ADDED, path=above, user_data=group_document({}))
            elif found.array is not None:
                raise FormatError(
                    f"array {above!r} has the node {node.path!r} below it; only groups have",
                    file_type="draft snapshot",
                    field=node.path,
                )
            above = None if above == ROOT else parent(above)
    return [by_path[path] for path in sorted(by_path)]
