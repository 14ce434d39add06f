"""Merges the changes of a branch since the common ancestor, or of one snapshot, into a branch.

The changes of the source become one commit on the tip of the target, like those of a session that
began at the common ancestor. Conflicts are those of a rebase, except that one side may change
chunks of an array while the other appends to it or edits its attributes, and both may edit
different attributes. If the target moves while the merge is committed, the commit is rebased, or
the merge is repeated.

Rules of this file
------------------
1. No chunk is read or copied (see ``three_way``), except in arrays that grew on both sides, which
   the layer above merges by their labels (see ``sides``).
2. The commit records the tip of the source as ``merged_snapshot`` in the metadata reserved for
   Icechunk libraries, and the next merge starts from it.
3. The source is protected from a concurrent garbage collection; see ``branch_tip``.
4. The common ancestor is the newest snapshot that both histories contain. A history contains its
   ancestors, former ancestors that expired (``pruned_ancestor_tx_logs``), and snapshots that an
   ancestor merged.

Specification: merging is left to clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import le
from typing import Any, Final

from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.names import choose
from icechunk_format.repository.changes import conflicts as conflict_rules
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.conflicts import (
    Conflict,
    ConflictDetector,
    ConflictKind,
    TheirCommit,
)
from icechunk_format.repository.changes.group_lengths import changed_groups, length_conflicts
from icechunk_format.repository.changes.working_tree import WorkingTree
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.commit.commit import CommitResult, new_snapshot_id
from icechunk_format.repository.files import metadata_files as files
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.history.diff import Changes, add_up
from icechunk_format.repository.history.history import History, snapshots_after
from icechunk_format.repository.lifecycle.difference import difference
from icechunk_format.repository.merging.sides import Sides, array_merges
from icechunk_format.repository.merging.three_way import (
    changes_onto,
    chunks_changed,
    joined_metadata,
)
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.session.committing import OnConflict, Resolve
from icechunk_format.repository.state import conflict_errors
from icechunk_format.repository.state.branch_tip import BranchTip
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.spec.values.metadata_items import RESERVED_METADATA
from icechunk_format.storage.protocol import Storage

MERGED: Final = "merged_snapshot"
# Attempts while other writers commit.
_TRIES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """A merge, or its plan.

    Attributes
    ----------
    branch
        The target branch.
    source
        The snapshot whose changes were merged.
    base
        The common ancestor.
    changes
        The changes of the source since the base.
    conflicts
        Conflicting changes of both sides; after a merge, only those that ``resolve`` settled.
    commit
        The new commit; None if there were no changes, and for a dry run.
    """

    branch: str
    source: SnapshotId
    base: SnapshotId
    changes: Changes
    conflicts: tuple[Conflict, ...] = ()
    commit: CommitResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The two sides of a merge.

    Parameters
    ----------
    name
        The source for messages, such as ``branch 'dev'``.
    base
        None for the newest common snapshot.
    records
        Name in the metadata of the commit that records the source.
    """

    storage: Storage
    chunk_source: ChunkSource
    history: History
    format: ManifestFormat
    tip: BranchTip
    name: str
    source: SnapshotId
    target: SnapshotId
    base: SnapshotId | None = None
    records: str = MERGED

    def run(
        self,
        *,
        resolve: Resolve | None,
        message: str,
        metadata: Mapping[str, Any] | None,
        dry_run: bool,
    ) -> MergeResult:
        """Merge, with the arguments of ``Repository.merge``."""
        choose("resolve", resolve, (None, "ours", "theirs"))
        storage, branch = self.storage, self.tip.branch
        source = files.load_snapshot(storage, self.source)
        target = files.load_snapshot(storage, self.target)
        base = (
            _merge_base(storage, self.history, self.source, self.target)
            if self.base is None
            else files.load_snapshot(storage, self.base)
        )
        try:
            log = difference(storage, base, source, snapshot_id=new_snapshot_id())
        except NotFoundError as error:
            # The base has expired, and its manifests were garbage-collected.
            raise _base_gone(storage, self.source, self.target) from error
        changes, taken = changes_onto(storage, base, source, target, log)
        theirs = self._theirs(base, target)
        sides = Sides(
            branch=branch,
            format=self.format,
            chunk_source=self.chunk_source,
            base=base,
            source=source,
            target=target,
            theirs=theirs,
            ours=log,
            is_picked=self.base is not None,
            chunks_changed=partial(chunks_changed, storage, base, source, log),
        )
        arrays = array_merges()
        groups = arrays.group_merges(sides, changes)
        for group in groups:
            group.take_from(changes)
        detector = ConflictDetector(changes=changes, base=base, tip=target, theirs=theirs)
        detected = (
            c for c in detector.conflicts() if not _is_settled(c, changes, base, source, target)
        )
        found = [*taken, *detected]
        remaining = conflict_rules.resolved(found, resolve)
        for group in groups:
            # Nothing is stored for a merge that will be refused.
            lost = group.conflicts(resolve, dry_run=dry_run or bool(remaining))
            remaining += conflict_rules.resolved(lost, resolve)
            found += lost
        if not remaining:
            # Groups that are merged by labels are checked when their arrays are known.
            changed = changed_groups(changes, target) - {group.group for group in groups}
            found += length_conflicts(WorkingTree(target, changes), (source, target), changed)
        named = [self._named(arrays.described(sides, conflict)) for conflict in found]
        result = MergeResult(
            branch=branch,
            source=self.source,
            base=base.id,
            changes=add_up([log], older=base, newer=source),
            conflicts=tuple(named),
        )
        if dry_run:
            return result
        if remaining := conflict_rules.resolved(named, resolve):
            raise conflict_errors.merge_conflicts(storage, self.name, branch, remaining)
        conflict_rules.rebased(changes, tip=target, conflicts=found, resolve=resolve)
        session = WriteSession(storage, self.tip.using(source), target, self.format)
        session.take_over(changes)
        for group in groups:
            group.apply(session)
        if lengths := session.length_conflicts(source):
            raise conflict_errors.merge_conflicts(storage, self.name, branch, lengths)
        if not session.has_changes:
            return result
        noted = _with_notes(metadata, **{self.records: self.source})
        when: OnConflict = "fail" if groups else "rebase"
        commit = session.commit(message, metadata=noted, resolve=resolve, on_conflict=when)
        return replace(result, commit=commit)

    def _named(self, conflict: Conflict) -> Conflict:
        """Return a conflict with the message, the author and the time of its commit."""
        # Imported for conflicts only.
        from icechunk_format.display.plain_text import to_timestamp

        known = conflict.snapshot_id and self.history.snapshot_info(conflict.snapshot_id)
        if not known:
            return conflict
        author = known.metadata.get("author")
        time = to_timestamp(known.flushed_at).isoformat(sep=" ", timespec="seconds")
        text = f"{known.message!r}{f' by {author}' if author else ''}, {time}"
        return replace(conflict, commit=text)

    def _theirs(self, base: Snapshot, target: Snapshot) -> list[TheirCommit]:
        """Return the changes of the target since the base: its commits, or the difference."""
        since = snapshots_after(base.id, self.history.ancestry(target.id))
        if since is None:
            log = difference(self.storage, base, target, snapshot_id=target.id)
            return [TheirCommit(snapshot_id=target.id, log=log)]
        commits = []
        for info in reversed(since):
            for log_id in (*info.pruned_ancestor_tx_logs, info.id):
                log = files.load_transaction_log(self.storage, log_id)
                commits.append(TheirCommit(snapshot_id=info.id, log=log))
        return commits


def merged(made: Callable[[], Merge], **arguments: Any) -> MergeResult:
    """Run a merge; repeat it if the branch moves while labels of both sides are joined."""
    for _ in range(_TRIES):
        try:
            return made().run(**arguments)
        except ConflictError as error:
            # Only the error of a commit that lost a race has this fact, not a merge conflict.
            if error.facts.get("found") is None:
                raise
            lost = error
    raise lost


def _is_settled(
    conflict: Conflict, changes: ChangeSet, base: Snapshot, source: Snapshot, target: Snapshot
) -> bool:
    """Return True if the target's change of a node is compatible with those of the source.

    An append extends an array without moving chunks, and most attributes only describe it. Chunks
    that both sides wrote are a separate conflict.
    """
    node_id = conflict.node_id
    if conflict.kind is ConflictKind.METADATA_UPDATED_TWICE and node_id is not None:
        was, ours, now = (side.nodes.with_id(node_id) for side in (base, source, target))
        if was is None or ours is None or now is None:
            return False
        return joined_metadata(was, ours, now) is not None
    if conflict.kind is not ConflictKind.CHUNKS_OF_UPDATED_ARRAY or node_id is None:
        return False
    if changes.chunks[node_id].replaces_all:
        return False
    was, now = base.nodes.with_id(node_id), target.nodes.with_id(node_id)
    if was is None or now is None or was.array is None or now.array is None:
        return False
    shapes = was.array.shape, now.array.shape
    grew = len(shapes[0]) == len(shapes[1]) and all(map(le, *shapes))
    return grew and bool(array_merges().keeps_meaning(was, now))


def parent_of(history: History, snapshot_id: SnapshotId, url: str) -> SnapshotId:
    """Return the parent of a snapshot, for picking its changes."""
    info = history.snapshot_info(snapshot_id)
    parent = None if info is None else info.parent_id
    if info is None or parent is None:
        raise InvalidInputError(
            f"snapshot {snapshot_id} of {url} is the first one of its history, so it has no "
            "changes to pick",
            snapshot=str(snapshot_id),
        )
    if info.pruned_ancestor_tx_logs:
        raise ConflictError(
            f"the parent of snapshot {snapshot_id} of {url} has expired, so its own changes are "
            "unknown; merge a branch at it instead",
            snapshot=str(snapshot_id),
        )
    return parent


def _merge_base(
    storage: Storage, history: History, source: SnapshotId, target: SnapshotId
) -> Snapshot:
    """Return the newest snapshot that both histories contain.

    Raises ConflictError if the snapshot has expired and its file no longer exists, or the histories
    share none.
    """
    ours, theirs = _contained(history, source), _contained(history, target)
    shared = [i for i in ours if i in theirs]
    # Listed snapshots, newest first, then expired ones.
    listed = [info for i in shared if (info := ours[i] or theirs[i]) is not None]
    expired = [i for i in shared if ours[i] is None and theirs[i] is None]
    newest = max(listed, key=lambda info: info.flushed_at, default=None)
    if newest is not None and (newest.parent_id is not None or not expired):
        return files.load_snapshot(storage, newest.id)
    for snapshot_id in expired:
        try:
            return files.load_snapshot(storage, snapshot_id)
        except NotFoundError:
            break
    raise _base_gone(storage, source, target)


def _base_gone(storage: Storage, source: SnapshotId, target: SnapshotId) -> ConflictError:
    """Return the error for two snapshots whose newest common snapshot cannot be read."""
    return ConflictError(
        f"snapshots {source} and {target} of {storage.root_url} cannot be merged: their newest "
        "common snapshot has expired and was collected, so the changes of each side are unknown. "
        "Write the changes again in a session on the branch",
        source=str(source),
        target=str(target),
    )


def _with_notes(metadata: Mapping[str, Any] | None, **notes: object) -> dict[str, Any]:
    """Add notes to the commit metadata reserved for Icechunk libraries."""
    values = dict(metadata or {})
    reserved = values.get(RESERVED_METADATA, {})
    if isinstance(reserved, Mapping):
        values[RESERVED_METADATA] = {**reserved, **{k: str(v) for k, v in notes.items()}}
    return values


def _contained(history: History, tip: SnapshotId) -> dict[SnapshotId, SnapshotInfo | None]:
    """Return the snapshots of a history with their entries; None for expired ones."""
    found: dict[SnapshotId, SnapshotInfo | None] = {}
    waiting = [tip]
    while waiting:
        for info in history.ancestry(waiting.pop()):
            if found.get(info.id) is not None:
                break
            found[info.id] = info
            for log_id in reversed(info.pruned_ancestor_tx_logs):
                found.setdefault(log_id, None)
            merged = _merged_snapshot(info)
            if merged is None or found.get(merged) is not None:
                continue
            if history.snapshot_info(merged) is None:
                found.setdefault(merged, None)
            else:
                waiting.append(merged)
    return found


def _merged_snapshot(info: SnapshotInfo) -> SnapshotId | None:
    notes = info.metadata.get(RESERVED_METADATA)
    text = notes.get(MERGED) if isinstance(notes, dict) else None
    try:
        return None if text is None else SnapshotId.parse(str(text))
    except ValueError:
        return None
