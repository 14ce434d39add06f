"""Imports a draft into a new repository of spec version 2, with its whole history.

Everything is stored under names that nothing refers to, and ``repo`` is created last and only once.
So the import is visible as a whole or not at all, and one that failed can be run again to the same
place.

Decisions
---------
1. First versions of the draft stand on one empty version, which released versions begin with. Times
   grow from parent to child; where those of a draft do not, the child is a microsecond later.
2. Ids of versions and nodes are digests. A node keeps its id as long as its number, its path and
   its number of dimensions stay. A version has its id of the draft in ``draft_snapshot_id``.
3. Groups that a path needs and the draft does not have are added, without attributes.
4. ``main`` is the newest of all branches and tags where the draft has no such branch.
5. Properties of no version go to the metadata of the repository, under ``imported_draft``.
6. Virtual chunks stay virtual, without containers: whoever reads decides which places to trust.
7. Memory: the references of one array, 64 MB of chunks and one chunk more, and some 100 bytes for
   every chunk that was copied.

Specification: both drafts; "Repo Info File", "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from icechunk_format.arrays.new_nodes import build_group_metadata
from icechunk_format.display.lazily import shown_by
from icechunk_format.drafts.model import DraftNode, DraftSnapshot
from icechunk_format.drafts.repository import DraftRepository, open_draft
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository.commit.assemble import files_of_receipts, with_files
from icechunk_format.repository.files.manifest_files import (
    ManifestFormat,
    ManifestReceipt,
    store_manifests,
)
from icechunk_format.repository.history.history import snapshot_summary
from icechunk_format.repository.lifecycle import create
from icechunk_format.repository.lifecycle.restore import difference
from icechunk_format.repository.lifecycle.upgraded_state import MAIN, RefsOfVersion1, upgraded_state
from icechunk_format.spec import transaction_log
from icechunk_format.spec.envelope import SPEC_V2
from icechunk_format.spec.ids import INITIAL_SNAPSHOT_ID, ChunkId, NodeId, SnapshotId
from icechunk_format.spec.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.spec.node_path import ancestors
from icechunk_format.spec.object_keys import REPO, chunk_key, snapshot_key, transaction_log_key
from icechunk_format.spec.repo_info import file as repo_info
from icechunk_format.spec.snapshot import file as snapshot
from icechunk_format.spec.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.spec.snapshot.manifest_lists import ManifestRefs
from icechunk_format.spec.snapshot.nodes import Nodes
from icechunk_format.spec.transaction_log import TransactionLog
from icechunk_format.spec.values.metadata_items import MetadataItems
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import Storage, check_writable

_FORMAT: Final = ManifestFormat(spec_version=SPEC_V2)
_BYTES_PER_BATCH: Final = 64 * 2**20
_CHUNKS_PER_BATCH: Final = 1024


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Result of an import, or of its dry run. Chunks that versions share count once.

    Parameters
    ----------
    kind
        Which draft it was: ``numbered refs`` or ``state file``.
    chosen_main
        The version that ``main`` was put at because the draft has no such branch; else None.
    virtual_prefixes
        Where virtual chunks lie: readers have to authorise these, and existing libraries need a
        virtual chunk container for each.
    snapshot_ids
        Id in the draft to the new id.
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
    target
        An empty place. Files that an interrupted import of the same draft left do no harm.
    dry_run
        Read all metadata, check them and count, but read no chunk and write nothing.
    progress
        Is told how many versions are done; see ``icechunk_format.progress``.

    Raises
    ------
    NotFoundError
        There is no draft, it holds no version, or an object of it is missing.
    AlreadyExistsError
        A repository or anything else is at the target.
    FormatError, UnsupportedError
        The draft is damaged, or uses what its text does not describe.
    ReadOnlyError, CommitOutcomeUnknownError, StorageError
        A store failed. Nothing of the import can be seen, unless the outcome is unknown.
    """
    draft = source if isinstance(source, DraftRepository) else open_draft(source)
    storage = open_storage(Location.of(target))
    versions = draft.snapshots()
    if not versions:
        problem = f"the draft at {draft.location} holds no version, so there is nothing to import"
        raise NotFoundError(problem, kind="snapshot")
    if not dry_run:
        check_writable(storage)
    imported = _imported(versions)
    create.check_new_root(storage, imported)
    branches, tags, chosen_main = draft.branches(), draft.tags(), None
    if MAIN not in branches:
        tips = {*branches.values(), *tags.values()}
        newest = max(versions, key=lambda version: (version.id in tips, version.written_at))
        chosen_main = branches[MAIN] = newest.id
    work = _Import(draft, None if dry_run else storage)
    work.store(imported[INITIAL_SNAPSHOT_ID], [])
    what = "Reading versions" if dry_run else "Importing versions"
    for version in counted(versions, progress, what, len(versions)):
        work.store(imported[_snapshot_id(version.id)], draft.nodes(version.id))
    if not dry_run:
        refs = RefsOfVersion1(
            branches={name: _snapshot_id(tip) for name, tip in branches.items()},
            tags={name: _snapshot_id(tip) for name, tip in tags.items()},
        )
        metadata = MetadataItems.of({"imported_draft": {"kind": draft.kind, **draft.properties()}})
        infos = {key: snapshot_summary(version) for key, version in imported.items()}
        state = upgraded_state(refs, infos, now=None, metadata_items=metadata)
        create.create_object(storage, REPO, repo_info.encode(state))
    return ImportReport(
        dry_run=dry_run,
        kind=draft.kind,
        snapshots=len(versions),
        branches=tuple(sorted(branches)),
        tags=tuple(sorted(tags)),
        chosen_main=chosen_main,
        native_chunks=len(work.copied),
        inline_chunks=work.inline,
        virtual_chunks=work.virtual,
        bytes_copied=sum(work.copied.values()),
        virtual_prefixes=tuple(sorted(work.virtual_prefixes)),
        snapshot_ids={version.id: str(_snapshot_id(version.id)) for version in versions},
    )


def _snapshot_id(draft_id: str) -> SnapshotId:
    return SnapshotId(hashlib.blake2b(draft_id.encode(), digest_size=SnapshotId.SIZE).digest())


def _node_id(node: DraftNode) -> NodeId:
    ndim = None if node.array is None else node.array.ndim
    text = f"{node.id} {ndim} {node.path}"
    return NodeId(hashlib.blake2b(text.encode(), digest_size=NodeId.SIZE).digest())


def _imported(versions: Sequence[DraftSnapshot]) -> dict[SnapshotId, Snapshot]:
    """Return all versions without their nodes, the empty first one among them."""
    root = create.root_snapshot(max(min(version.written_at for version in versions) - 1, 0))
    imported = {root.id: root}
    for version in versions:
        try:
            metadata = MetadataItems.of({**version.properties, "draft_snapshot_id": version.id})
        except InvalidInputError as error:
            problem = f"the properties of version {version.id} cannot be kept: {error.message}"
            raise FormatError(problem, object_key=version.id, file_type="snapshot") from error
        above = root.id if version.parent_id is None else _snapshot_id(version.parent_id)
        own = _snapshot_id(version.id)
        imported[own] = Snapshot(
            id=own,
            parent_id=above,
            flushed_at=max(version.written_at, imported[above].flushed_at + 1),
            message=version.message,
            metadata_items=metadata,
        )
    return imported


class _Import:
    """Writes versions, parents first, and counts; without a target it counts only."""

    def __init__(self, draft: DraftRepository, target: Storage | None) -> None:
        self._draft = draft
        self._target = target
        self._manifests: dict[tuple[object, ...], list[ManifestReceipt]] = {}
        self.copied: dict[bytes, int] = {}
        self.inline = self.virtual = 0
        self.virtual_prefixes: set[str] = set()

    def store(self, version: Snapshot, nodes: list[DraftNode]) -> None:
        """Write one version with its nodes; its parent is written."""
        stored = [self._stored(node) for node in _with_groups(nodes)]
        if self._target is None:
            return
        files = [receipt for _, receipts in stored for receipt in receipts]
        own = Nodes.of(node for node, _ in stored)
        version = replace(version, nodes=own, manifest_files=files_of_receipts(files))
        log = TransactionLog(id=version.id)
        if version.parent_id is not None:
            # Not by the cache of versions, which may hold what an earlier import wrote.
            above = snapshot_key(version.parent_id)
            before = snapshot.decode(self._target.get(above).data, object_key=above)
            log = difference(self._target, before, version, snapshot_id=version.id)
        key, log_key = snapshot_key(version.id), transaction_log_key(version.id)
        self._target.put_many(
            [(key, snapshot.encode(version)), (log_key, transaction_log.encode(log))]
        )

    def _stored(self, node: DraftNode) -> tuple[NodeSnapshot, Sequence[ManifestReceipt]]:
        """Return a node with its manifests, which versions share that have the same ones."""
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
        """Return the references of an array, whose chunks are counted and copied."""
        chunks = self._draft.chunk_refs(node)
        refs = chunks.released()
        self.inline += int((chunks.kind == KIND_INLINE).sum())
        virtual = np.flatnonzero(chunks.kind == KIND_VIRTUAL)
        self.virtual += len(virtual)
        for location in set(refs.locations(virtual)):
            if place := re.match("[^:/?#]+://[^/?#]*", location):
                self.virtual_prefixes.add(f"{place[0]}/")
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
    """Return nodes sorted by path, with a group for each parent that is missing."""
    by_path = {node.path: node for node in nodes}
    document = build_group_metadata().to_bytes()
    for node in nodes:
        for above in ancestors(node.path):
            added = DraftNode(id=-1, path=above, user_data=document)
            if by_path.setdefault(above, added).array is not None:
                problem = f"array {above!r} has the node {node.path!r} below it; only groups have"
                raise FormatError(problem, file_type="draft snapshot", field=node.path)
    return [by_path[path] for path in sorted(by_path)]
