"""Imports a draft with its whole history to a new repository of spec version 2.

The ``repo`` object is created last, so an import is visible completely or not at all, and a failed
import can be repeated with the same target.

Decisions
---------
1. The first snapshots of the draft get an empty parent, as in released repositories. A child that
   is not later than its parent gets the parent's timestamp plus a microsecond.
2. Ids of snapshots and nodes are digests. The id of a node changes only with its number, path or
   number of dimensions. The metadata ``draft_snapshot_id`` has a snapshot's id in the draft.
3. Missing parent groups are added, without attributes.
4. If the draft has no branch ``main``, it is created at the newest snapshot of all branches and
   tags.
5. Properties of the draft and its branches become metadata of the repository, ``imported_draft``.
6. Virtual chunks stay virtual, without containers: each reader authorizes their locations.
7. Memory: the references of one array, 64 MB of chunks plus one chunk, and about 100 bytes for each
   copied chunk.

Specification: both drafts; "Repo Info File", "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.drafts.model import DraftNode, DraftSnapshot
from icechunk_format.drafts.repository import DraftRepository, open_draft
from icechunk_format.encoding.envelope import SPEC_V2
from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, ChunkId, NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.encoding.node_path import ancestors
from icechunk_format.encoding.object_keys import REPO, chunk_key, snapshot_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository.commit.assemble import files_of_receipts, with_files
from icechunk_format.repository.files import ManifestFormat, ManifestReceipt, store_manifests
from icechunk_format.repository.files.metadata_files import snapshot_objects
from icechunk_format.repository.history.history import snapshot_summary
from icechunk_format.repository.lifecycle import create
from icechunk_format.repository.lifecycle.difference import difference
from icechunk_format.repository.lifecycle.upgraded_state import MAIN, RefsOfVersion1, upgraded_state
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import Storage, check_writable
from icechunk_format.zarr.new_nodes import build_group_metadata

_FORMAT: Final = ManifestFormat(spec_version=SPEC_V2)
_BYTES_PER_BATCH: Final = 64 * 2**20
_CHUNKS_PER_BATCH: Final = 1024


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """The result of an import or of its dry run. Chunks shared by snapshots are counted once.

    Attributes
    ----------
    dry_run
        True if nothing was written.
    kind
        The kind of draft: ``numbered refs`` or ``state file``.
    snapshots
        Number of snapshots.
    branches, tags
        Their names.
    chosen_main
        The snapshot chosen for ``main`` if the draft has no such branch; else None.
    native_chunks, inline_chunks, virtual_chunks
        Number of chunks of each kind.
    bytes_copied
        Size of the native chunks.
    virtual_prefixes
        URL prefixes of virtual chunks. Readers must authorize these, and other libraries need a
        virtual chunk container for each.
    snapshot_ids
        New id of each snapshot, by its id in the draft.
    """

    dry_run: bool
    kind: str
    snapshots: int
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    chosen_main: str | None
    native_chunks: int
    inline_chunks: int
    virtual_chunks: int
    bytes_copied: int
    virtual_prefixes: tuple[str, ...]
    snapshot_ids: Mapping[str, str] = field(default_factory=dict)


def import_draft(
    source: DraftRepository | Place,
    target: Place,
    *,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> ImportReport:
    """Import a draft with the history of all its branches and tags into a new repository.

    Parameters
    ----------
    source
        The draft, or its location.
    target
        An empty location, or one with files of an interrupted import of the same draft.
    dry_run
        Read, check and count all metadata, but read no chunks and write nothing.
    progress
        Called with the number of finished snapshots, as in ``icechunk_format.progress``.

    Returns
    -------
    ImportReport
        Counts, and the new ids of all snapshots.

    Raises
    ------
    NotFoundError
        The draft does not exist, has no snapshots, or lacks an object.
    AlreadyExistsError
        The target has a repository or other objects.
    FormatError, UnsupportedError
        The draft is damaged, or uses features that its specification does not describe.
    ReadOnlyError, CommitOutcomeUnknownError, StorageError
        A storage failed. The import is not visible, unless the outcome is unknown.

    Examples
    --------
    >>> report = import_draft("s3://old/draft", "s3://new/repository")  # doctest: +SKIP
    >>> report.snapshots  # doctest: +SKIP
    3
    """
    draft = source if isinstance(source, DraftRepository) else open_draft(source)
    storage = open_storage(Location.of(target))
    snapshots = draft.snapshots()
    if not snapshots:
        problem = f"the draft at {draft.location} has no snapshot to import"
        raise NotFoundError(problem, kind="snapshot")
    if not dry_run:
        check_writable(storage)
    imported = _imported(snapshots)
    create.check_new_root(storage, imported)
    branches, tags, chosen_main = draft.branches(), draft.tags(), None
    if MAIN not in branches:
        tips = {*branches.values(), *tags.values()}
        newest = max(snapshots, key=lambda snapshot: (snapshot.id in tips, snapshot.written_at))
        chosen_main = branches[MAIN] = newest.id
    work = _Import(draft, None if dry_run else storage)
    work.store(imported[INITIAL_SNAPSHOT_ID], [])
    what = "Reading snapshots" if dry_run else "Importing snapshots"
    for snapshot in counted(snapshots, progress, what, len(snapshots)):
        work.store(imported[_snapshot_id(snapshot.id)], draft.nodes(snapshot.id))
    if not dry_run:
        refs = RefsOfVersion1(
            branches={name: _snapshot_id(tip) for name, tip in branches.items()},
            tags={name: _snapshot_id(tip) for name, tip in tags.items()},
        )
        metadata = MetadataItems.of({"imported_draft": {"kind": draft.kind, **draft.properties()}})
        infos = {key: snapshot_summary(snapshot) for key, snapshot in imported.items()}
        state = upgraded_state(refs, infos, now=None, metadata_items=metadata)
        create.create_object(storage, REPO, repo_info.encode(state))
    return ImportReport(
        dry_run=dry_run,
        kind=draft.kind,
        snapshots=len(snapshots),
        branches=tuple(sorted(branches)),
        tags=tuple(sorted(tags)),
        chosen_main=chosen_main,
        native_chunks=len(work.copied),
        inline_chunks=work.inline,
        virtual_chunks=work.virtual,
        bytes_copied=sum(work.copied.values()),
        virtual_prefixes=tuple(sorted(work.virtual_prefixes)),
        snapshot_ids={snapshot.id: str(_snapshot_id(snapshot.id)) for snapshot in snapshots},
    )


def _snapshot_id(draft_id: str) -> SnapshotId:
    return SnapshotId(hashlib.blake2b(draft_id.encode(), digest_size=SnapshotId.SIZE).digest())


def _node_id(node: DraftNode) -> NodeId:
    ndim = None if node.array is None else node.array.ndim
    string = f"{node.id} {ndim} {node.path}"
    return NodeId(hashlib.blake2b(string.encode(), digest_size=NodeId.SIZE).digest())


def _imported(snapshots: Sequence[DraftSnapshot]) -> dict[SnapshotId, Snapshot]:
    """Return all snapshots without nodes, including the empty first snapshot."""
    root = create.root_snapshot(max(min(snapshot.written_at for snapshot in snapshots) - 1, 0))
    imported = {root.id: root}
    for snapshot in snapshots:
        try:
            metadata = MetadataItems.of({**snapshot.properties, "draft_snapshot_id": snapshot.id})
        except InvalidInputError as error:
            problem = f"the properties of snapshot {snapshot.id} cannot be stored: {error.message}"
            raise FormatError(problem, object_key=snapshot.id, file_type="snapshot") from error
        above = root.id if snapshot.parent_id is None else _snapshot_id(snapshot.parent_id)
        own = _snapshot_id(snapshot.id)
        imported[own] = Snapshot(
            id=own,
            parent_id=above,
            flushed_at=max(snapshot.written_at, imported[above].flushed_at + 1),
            message=snapshot.message,
            metadata_items=metadata,
        )
    return imported


class _Import:
    """Writes snapshots, parents first, and counts; only counts without a target."""

    def __init__(self, draft: DraftRepository, target: Storage | None) -> None:
        self._draft = draft
        self._target = target
        self._manifests: dict[tuple[object, ...], list[ManifestReceipt]] = {}
        self.copied: dict[bytes, int] = {}
        self.inline = self.virtual = 0
        self.virtual_prefixes: set[str] = set()

    def store(self, snapshot: Snapshot, nodes: list[DraftNode]) -> None:
        """Write one snapshot with its nodes, after its parent."""
        stored = [self._stored(node) for node in _with_groups(nodes)]
        if self._target is None:
            return
        files = [receipt for _, receipts in stored for receipt in receipts]
        own = Nodes.of(node for node, _ in stored)
        snapshot = replace(snapshot, nodes=own, manifest_files=files_of_receipts(files))
        log = TransactionLog(id=snapshot.id)
        if snapshot.parent_id is not None:
            # Bypasses the cache of snapshots, which may hold those of an earlier import.
            above = snapshot_key(snapshot.parent_id)
            before = snapshot_file.decode(self._target.get(above).data, object_key=above)
            log = difference(self._target, before, snapshot, snapshot_id=snapshot.id)
        self._target.put_many(snapshot_objects(snapshot, log))

    def _stored(self, node: DraftNode) -> tuple[NodeSnapshot, Sequence[ManifestReceipt]]:
        """Return a node with its manifests, which are stored once for snapshots that share them."""
        node_id, array = _node_id(node), node.array
        if array is None:
            return NodeSnapshot(id=node_id, path=node.path, user_data=node.user_data), ()
        key = (node_id, node.manifests, array.grid.num_chunks)
        if key not in self._manifests:
            refs, self._manifests[key] = self._refs(node), []
            if self._target is not None:
                (self._manifests[key],) = store_manifests(
                    self._target, _FORMAT, [(node_id, [refs])]
                )
        files = self._manifests[key]
        stored = ArrayNode(
            shape=array.shape,
            num_chunks=array.grid.num_chunks,
            dimension_names=array.dimension_names,
            manifests=with_files(ManifestRefs.empty(array.ndim), np.arange(0), files),
        )
        whole = NodeSnapshot(id=node_id, path=node.path, user_data=node.user_data, array=stored)
        return whole, files

    def _refs(self, node: DraftNode) -> ChunkRefs:
        """Count and copy the chunks of an array; return its references."""
        chunks = self._draft.chunk_refs(node)
        refs = chunks.converted()
        self.inline += int((chunks.kind == KIND_INLINE).sum())
        virtual = np.flatnonzero(chunks.kind == KIND_VIRTUAL)
        self.virtual += len(virtual)
        for location in set(refs.locations(virtual)):
            if prefix := re.match("[^:/?#]+://[^/?#]*", location):
                self.virtual_prefixes.add(f"{prefix[0]}/")
        new = []
        for row in np.flatnonzero(chunks.kind == KIND_NATIVE).tolist():
            chunk_id = refs.chunk_id[row].tobytes()
            if chunk_id not in self.copied:
                self.copied[chunk_id] = int(chunks.length[row])
                new.append(row)
        if self._target is not None and new:
            sized = zip(new, chunks.length[new].tolist(), strict=True)
            for rows in sized_batches(sized, _CHUNKS_PER_BATCH, _BYTES_PER_BATCH):
                keys = [chunk_key(ChunkId(refs.chunk_id[row].tobytes())) for row in rows]
                contents = self._draft.read_chunks(chunks, rows)
                self._target.put_many(zip(keys, contents, strict=True))
        return refs


def _with_groups(nodes: list[DraftNode]) -> list[DraftNode]:
    """Return nodes sorted by path, with a group for each missing parent."""
    by_path = {node.path: node for node in nodes}
    document = build_group_metadata().to_bytes()
    for node in nodes:
        for above in ancestors(node.path):
            added = DraftNode(id=-1, path=above, user_data=document)
            if by_path.setdefault(above, added).array is not None:
                problem = f"array {above!r} has the node {node.path!r} below it; only groups can"
                raise FormatError(problem, file_type="draft snapshot", field=node.path)
    return [by_path[path] for path in sorted(by_path)]
