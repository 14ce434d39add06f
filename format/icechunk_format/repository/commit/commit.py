"""Stores the files of a new snapshot, before the branch is moved to it.

Order of writing
----------------
1. Chunks are stored during the session, by it or by executors.
2. Changed manifests are stored, then the snapshot and its transaction log.
3. ``repo`` (version 2) or the ref of the branch (version 1) is replaced, on the condition that the
   branch has not moved. This step makes the whole commit visible atomically.

If the branch has moved before step 2 or in step 3, the changes are rebased on the new tip
(``conflicts``) and step 2 is repeated; unchanged manifests are not written again. A failed commit
deletes nothing: its objects are garbage, or belong to a commit that succeeded after all.

Specification: "Snapshot Files", "Transaction Log Files", "Consistency and Optimistic Concurrency".
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.encoding.transaction_log import EncodedLog, TransactionLog
from icechunk_format.encoding.values.metadata_items import (
    RESERVED_METADATA,
    MetadataItems,
    checked_values,
)
from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.repository.commit.assemble import ManifestAssembler, manifest_files_of
from icechunk_format.repository.files.manifest_files import ManifestFormat, ManifestReceipt
from icechunk_format.repository.files.metadata_files import snapshot_objects
from icechunk_format.repository.history.history import snapshot_summary
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.transitions import MAX_CLOCK_SKEW
from icechunk_format.storage.protocol import Storage

if TYPE_CHECKING:
    from icechunk_format.repository.changes.working_tree import WorkingTree


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """A commit that succeeded.

    Attributes
    ----------
    snapshot_id
        The new snapshot.
    parent_id
        The parent of the new snapshot; after a rebase, not the base of the session.
    branch
        The branch that was moved.
    rebased
        Number of rebases over commits of other writers before this commit.
    files_written, bytes_written
        Number and bytes of stored files by kind: ``chunks``, ``manifests``, ``snapshots``,
        ``transactions``. Files that executors stored are not counted.
    """

    snapshot_id: SnapshotId
    parent_id: SnapshotId | None
    branch: str
    rebased: int = 0
    files_written: Mapping[str, int] = field(default_factory=dict)
    bytes_written: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A snapshot with stored files that no ref points to yet."""

    info: SnapshotInfo
    snapshot: Snapshot
    written: Written

    def result(self, branch: str, *, rebased: int = 0) -> CommitResult:
        """Return the result of the commit after a branch was moved to the snapshot."""
        return CommitResult(
            snapshot_id=self.info.id,
            parent_id=self.info.parent_id,
            branch=branch,
            rebased=rebased,
            files_written=self.written.files,
            bytes_written=self.written.bytes,
        )


@dataclass(slots=True)
class Written:
    """Counts files and bytes by kind."""

    files: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, files: int, size: int) -> None:
        """Count files of a kind with ``size`` bytes in total."""
        self.files[kind] = self.files.get(kind, 0) + files
        self.bytes[kind] = self.bytes.get(kind, 0) + size

    def add_chunks(self, refs: ChunkRefs) -> None:
        """Count the objects of stored chunks."""
        is_native = refs.kind == KIND_NATIVE
        self.add("chunks", int(is_native.sum()), int(refs.length[is_native].sum()))

    def add_all(self, other: Written) -> None:
        """Count the files of another count, too."""
        for kind, files in other.files.items():
            self.add(kind, files, other.bytes[kind])


def new_snapshot_id() -> SnapshotId:
    """Return a random id."""
    return SnapshotId(secrets.token_bytes(SnapshotId.SIZE))


def store_snapshot(
    storage: Storage,
    format: ManifestFormat,
    *,
    base: Snapshot,
    nodes: Nodes,
    files: ManifestFiles,
    log: TransactionLog | EncodedLog,
    replaced: SnapshotInfo | None = None,
    message: str,
    metadata: MetadataItems,
    written: Written,
    clock_is_known: bool = False,
    beside: Iterable[tuple[str, bytes]] = (),
) -> StoredSnapshot:
    """Store a snapshot and its transaction log, after its manifests.

    Parameters
    ----------
    base
        The snapshot that the changes are based on, which must be older; also the parent.
    nodes, files
        All nodes of the new snapshot, and its list of manifest files.
    log
        The log, with the id of the new snapshot.
    replaced
        For an amendment: the replaced snapshot, whose parent and expired logs are kept.
    clock_is_known
        True if this machine's clock was just compared with the storage's.
    beside
        Keys and bytes of further objects to store concurrently.
    """
    now = now_in_microseconds()
    flushed_at = max(now, base.flushed_at + 1)
    new = Snapshot(
        id=log.id,
        parent_id=base.id if replaced is None else replaced.parent_id,
        spec_version=format.spec_version,
        flushed_at=flushed_at,
        message=message,
        metadata_items=metadata,
        nodes=nodes,
        manifest_files=files,
    )
    stored = snapshot_objects(new, log, level=format.config.compression_level)
    storage.put_many([*stored, *beside])
    for kind, (_, data) in zip(("snapshots", "transactions"), stored, strict=True):
        written.add(kind, 1, len(data))
    if flushed_at != now or not clock_is_known:
        _check_clock(storage, new)
    info = snapshot_summary(new)
    if replaced is not None:
        info = replace(info, pruned_ancestor_tx_logs=replaced.pruned_ancestor_tx_logs)
    return StoredSnapshot(info=info, snapshot=new, written=written)


def store_nodes(
    assembler: ManifestAssembler, tree: WorkingTree, *, joins_small: bool
) -> tuple[Nodes, ManifestFiles]:
    """Store the manifests of changed arrays; return the new nodes and manifest files."""
    base, changes = tree.base, tree.changes
    changed = tree.changed_nodes()
    rewritten = [
        (node, chunks)
        for node in changed
        if (chunks := changes.chunks.get(node.id)) is not None and not chunks.is_empty
    ]
    assembled = assembler.assemble(rewritten, base.manifest_files, joins_small=joins_small)
    written: list[ManifestReceipt] = []
    for position, node in enumerate(changed):
        found = assembled.get(node.id)
        if found is None or node.array is None:
            continue
        changed[position] = replace(node, array=replace(node.array, manifests=found.refs))
        written += found.files
    nodes = tree.with_changed(changed)
    return nodes, manifest_files_of(nodes, base, written)


def _check_clock(storage: Storage, stored: Snapshot) -> None:
    """Raise an error if the clocks of this machine and of the storage differ too much.

    A snapshot from the future would prevent other writers from committing until that time.
    """
    key = snapshot_key(stored.id)
    found = storage.head(key)
    if found is None:
        raise StorageError(f"{key!r} was stored in {storage.root_url} just now and does not exist")
    ahead = stored.flushed_at - int(found.last_modified.timestamp() * 1_000_000)
    if abs(ahead) > MAX_CLOCK_SKEW:
        direction = "ahead of" if ahead > 0 else "behind"
        raise InvalidInputError(
            f"this snapshot would be dated {abs(ahead) / 1e6:.0f} s {direction} the clock of "
            f"{storage.root_url}; {MAX_CLOCK_SKEW / 1e6:.0f} s are tolerated. Nothing was "
            "committed: correct the clock of this machine, or wait if the parent snapshot has "
            "that date",
            flushed_at=stored.flushed_at,
        )


def commit_metadata(
    given: Mapping[str, Any] | None, *, spec_version: int, rebased: int = 0, **notes: Any
) -> MetadataItems:
    """Return the metadata of a snapshot: the user's, and ``notes`` of this library."""
    values = checked_values(given)
    if rebased:
        notes["rebase_attempts"] = rebased
    if notes:
        reserved = values.get(RESERVED_METADATA, {})
        if not isinstance(reserved, dict):
            raise InvalidInputError(
                f"the name {RESERVED_METADATA!r} in commit metadata belongs to Icechunk libraries, "
                f"which keep a map there, not {reserved!r}; choose another name",
                found=reserved,
            )
        values[RESERVED_METADATA] = {**reserved, **notes}
    return MetadataItems.of(values, spec_version=spec_version)
