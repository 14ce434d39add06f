"""Merges the changes of a branch since the common ancestor, or of one snapshot, into a branch.

The changes of the source become one commit on the tip of the target, like those of a session that
began at the common ancestor. Conflicts are those of a rebase, except that one side may change
chunks of an array while the other appends to it or edits its attributes, and both may edit
different attributes. If the target moves while the merge is committed, the commit is rebased, or
the merge is repeated.

Rules of this file
------------------
1. Cells belong to labels. No chunk is read or copied (see ``three_way``), except in groups in which
   a position has another label on one side (``positions``) or both sides grew, which are merged by
   their labels (``groups``) or are a conflict.
2. The commit records the tip of the source as ``merged_snapshot`` in the metadata reserved for
   Icechunk libraries, and the next merge starts from it.
3. The source is protected from a concurrent garbage collection; see ``branch_tip``.

Specification: merging is left to clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import le
from typing import Any

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import ancestors as ancestors_of
from icechunk_format.encoding.node_path import parent
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.encoding.values.metadata_items import RESERVED_METADATA
from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.groups.changing import Destination
from icechunk_format.names import choose
from icechunk_format.repository.changes import (
    ChangeSet,
    Conflict,
    ConflictDetector,
    ConflictKind,
    TheirCommit,
    WorkingTree,
    changed_groups,
    length_conflicts,
    rebased,
    resolved,
    same_meaning,
)
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.commit import CommitResult, new_snapshot_id
from icechunk_format.repository.files import ManifestFormat, load_snapshot, load_transaction_log
from icechunk_format.repository.history import Changes, History, add_up, snapshots_after
from icechunk_format.repository.lifecycle.difference import changed_chunks, difference
from icechunk_format.repository.session import OnConflict, Resolve, WriteSession
from icechunk_format.repository.state import BranchTip, RaceLost, merge_conflicts, until_won
from icechunk_format.storage.protocol import Storage
from icechunk_format.workflows.merging import common, groups
from icechunk_format.workflows.merging.documents import joined_metadata, was_changed_back
from icechunk_format.workflows.merging.labels import described
from icechunk_format.workflows.merging.sides import Sides
from icechunk_format.workflows.merging.three_way import (
    changes_onto,
    chunks_changed,
)


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
    records: str = common.MERGED

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
        source = load_snapshot(storage, self.source)
        target = load_snapshot(storage, self.target)
        base = (
            common.merge_base(storage, self.history, self.source, self.target)
            if self.base is None
            else load_snapshot(storage, self.base)
        )
        try:
            log = difference(storage, base, source, snapshot_id=new_snapshot_id())
        except NotFoundError as error:
            # The base has expired, and its manifests were garbage-collected.
            raise common.base_gone(storage, self.source, self.target) from error
        changes, taken = changes_onto(storage, base, source, target, log)
        theirs = self._theirs(base, target, changes)
        sides = Sides(
            branch=branch,
            destination=Destination(
                location=self.chunk_source.location,
                base=target.id,
                manifest_format=self.format,
                chunk_source=self.chunk_source,
            ),
            base=base,
            source=source,
            target=target,
            theirs=theirs,
            ours=log,
            is_picked=self.base is not None,
            chunks_changed=partial(chunks_changed, storage, base, source, log),
        )
        if self.base is None:
            taken += _decided_again(changes, base, target, theirs)
        merges, refused = groups.group_merges(sides, changes)
        for merge in merges:
            merge.take_from(changes)
        detector = ConflictDetector(changes=changes, base=base, tip=target, theirs=theirs)
        detected = (c for c in detector.conflicts() if not self._is_settled(c, changes, sides))
        found = [*taken, *detected, *refused]
        remaining = resolved(found, resolve)
        for merge in merges:
            # Nothing is stored for a merge that will be refused.
            lost = merge.conflicts(resolve, dry_run=dry_run or bool(remaining))
            remaining += resolved(lost, resolve)
            found += lost
        if not remaining:
            # Groups that are merged by labels are checked when their arrays are known.
            changed = changed_groups(changes, target) - {merge.group for merge in merges}
            found += length_conflicts(WorkingTree(target, changes), (source, target), changed)
        named = [self._named(described(sides, conflict)) for conflict in found]
        result = MergeResult(
            branch=branch,
            source=self.source,
            base=base.id,
            changes=add_up([log], older=base, newer=source),
            conflicts=tuple(named),
        )
        if dry_run:
            return result
        if remaining := resolved(named, resolve):
            raise merge_conflicts(storage, self.name, branch, remaining)
        rebased(changes, tip=target, conflicts=found, resolve=resolve)
        session = WriteSession(storage, self.tip.using(source), target, self.format)
        session.take_over(changes)
        for merge in merges:
            merge.apply(session)
        if lengths := session.length_conflicts(source):
            raise merge_conflicts(storage, self.name, branch, lengths)
        if not session.has_changes:
            return result
        noted = _with_notes(metadata, **{self.records: self.source})
        when: OnConflict = "fail" if merges else "rebase"
        commit = session.commit(
            message,
            metadata=noted,
            resolve=resolve,
            on_conflict=when,
            when_moved=partial(_check_moved, session),
        )
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
        string = f"{known.message!r}{f' by {author}' if author else ''}, {time}"
        return replace(conflict, commit=string)

    def _is_settled(self, conflict: Conflict, changes: ChangeSet, sides: Sides) -> bool:
        """Return True if the target's change of a node is compatible with those of the source.

        An append extends an array without moving chunks, and most attributes only describe it.
        Chunks that both sides wrote, and labels, are separate conflicts.
        """
        node_id = conflict.node_id
        if node_id is None:
            return False
        if conflict.kind is ConflictKind.MOVED_THERE:
            return not _takes_part(changes, sides.base, node_id)
        nodes = [s.nodes.with_id(node_id) for s in (sides.base, sides.source, sides.target)]
        was, ours, now = nodes
        if was is None or ours is None or now is None:
            return False
        if conflict.kind is ConflictKind.METADATA_UPDATED_TWICE:
            if joined_metadata(was, ours, now) is None:
                return False
            # A picked snapshot is applied again on purpose.
            states = (
                ()
                if sides.is_picked
                else (
                    commit.log.id
                    for commit in sides.theirs
                    if node_id in (*commit.log.updated_groups, *commit.log.updated_arrays)
                )
            )
            return not was_changed_back(self.storage, node_id, (was, ours, now), states)
        if conflict.kind is not ConflictKind.CHUNKS_OF_UPDATED_ARRAY or was.path != ours.path:
            return False
        if changes.chunks[node_id].replaces_all or was.array is None or now.array is None:
            return False
        shapes = was.array.shape, now.array.shape
        grew = len(shapes[0]) == len(shapes[1]) and all(map(le, *shapes))
        return grew and same_meaning(was, now)

    def _theirs(self, base: Snapshot, target: Snapshot, changes: ChangeSet) -> list[TheirCommit]:
        """Return the changes of the target since the base: its commits, or the difference.

        A commit that made an array smaller does not list the chunks that it dropped, so chunks of
        arrays with new metadata are compared as well.
        """
        since = snapshots_after(base.id, self.history.ancestry(target.id))
        if since is None:
            log = difference(self.storage, base, target, snapshot_id=target.id)
            return [TheirCommit(snapshot_id=target.id, log=log)]
        commits = []
        for info in reversed(since):
            for log_id in (*info.pruned_ancestor_tx_logs, info.id):
                log = load_transaction_log(self.storage, log_id)
                commits.append(TheirCommit(snapshot_id=info.id, log=log))
        updated = {node_id for commit in commits for node_id in commit.log.updated_arrays}
        coords = {}
        for node_id in updated & changes.chunks.keys():
            was, now = base.nodes.with_id(node_id), target.nodes.with_id(node_id)
            if was is not None and now is not None:
                coords[node_id] = changed_chunks(self.storage, was, base, now, target)
        net = TransactionLog(id=target.id, updated_chunks=coords)
        return [*commits, TheirCommit(snapshot_id=target.id, log=net)] if coords else commits


def merged(made: Callable[[], Merge], url: str, into: str, **arguments: Any) -> MergeResult:
    """Run a merge; repeat it if the branch moves while labels of both sides are joined."""

    def attempt(times_again: int) -> MergeResult | RaceLost:
        try:
            result = made().run(**arguments)
        except ConflictError as error:
            # Only the error of a commit that lost a race has this fact, not a merge conflict.
            if error.facts.get("found") is None:
                raise
            return RaceLost(error=error)
        commit = result.commit
        if commit is None:
            return result
        return replace(result, commit=replace(commit, rebased=commit.rebased + times_again))

    return until_won(attempt, url, branch=into)


def _check_moved(session: WriteSession, tip: Snapshot, theirs: Sequence[TheirCommit]) -> None:
    """Raise ConflictError, so that the merge is repeated, if other writers changed its groups.

    A rebase compares chunks, and a merge labels.
    """
    changes = session.changes
    own = {node.path for node in changes.created.values() if node.array is not None}
    own |= {path for i in (*changes.updated, *changes.chunks) if (path := tip.nodes.path_of_id(i))}
    groups_of_merge = {parent(path) for path in own}
    for commit in theirs:
        log = commit.log
        arrays = (*log.new_arrays, *log.updated_arrays, *log.updated_chunks, *log.deleted_arrays)
        paths = (tip.nodes.path_of_id(node_id) for node_id in arrays)
        if log.moved_nodes or any(
            path is None or parent(path) in groups_of_merge for path in paths
        ):
            raise ConflictError(
                f"other writers changed the groups of this merge into branch {session.branch!r}; "
                "nothing was committed. Merge again",
                branch=session.branch,
                found=str(tip.id),
            )


def _takes_part(changes: ChangeSet, base: Snapshot, node_id: NodeId) -> bool:
    """Return True if a merge changes a node, or one below it."""
    changed = {*changes.updated, *changes.deleted, *changes.moved, *changes.chunks}
    if node_id in changed:
        return True
    moved = base.nodes.path_of_id(node_id)
    paths = (base.nodes.path_of_id(other) for other in changed)
    return moved is not None and any(
        path is not None and moved in ancestors_of(path) for path in paths
    )


def _decided_again(
    changes: ChangeSet, base: Snapshot, target: Snapshot, theirs: Sequence[TheirCommit]
) -> list[Conflict]:
    """Return conflicts about nodes that the target has merged before and then changed back.

    A later snapshot may replace that of a merge, so that the merge is not recorded any more. Node
    ids are unique, so the logs of the target name a node of the source only if it had this node.
    """
    found = []
    for commit in theirs:
        log = commit.log
        gone = {*log.deleted_groups, *log.deleted_arrays} - log.relocated_nodes
        for node_id, node in changes.created.items():
            if node_id in gone:
                found.append((ConflictKind.NEW_NODE_DELETED, node, commit))
        for node_id, node in changes.deleted.items():
            if node_id in gone and target.nodes.has_id(node_id):
                found.append((ConflictKind.DELETED_NODE_RECREATED, node, commit))
    return [
        Conflict(kind=kind, path=node.path, node_id=node.id, snapshot_id=commit.snapshot_id)
        for kind, node, commit in found
    ]


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


def _with_notes(metadata: Mapping[str, Any] | None, **notes: object) -> dict[str, Any]:
    """Add notes to the commit metadata reserved for Icechunk libraries."""
    values = dict(metadata or {})
    reserved = values.get(RESERVED_METADATA, {})
    if isinstance(reserved, Mapping):
        values[RESERVED_METADATA] = {**reserved, **{k: str(v) for k, v in notes.items()}}
    return values
