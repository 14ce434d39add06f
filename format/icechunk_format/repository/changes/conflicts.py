"""Detects conflicts between a session and commits of other writers, and rebases. Pure.

Long because one class holds the rules of one table.

Transaction logs list the changes of other writers, and their newest snapshot has the paths. These
changes conflict:

=====================  =========================================================================
ours                   conflicts with theirs
=====================  =========================================================================
chunks of an array     the same chunks; metadata of the array; the array deleted
metadata of a node     metadata of the node; the node deleted; chunks of an array, if the metadata
                       give them another meaning
a smaller array        the same as metadata; chunks with elements beyond the new shape
delete an array        anything done to the array, unless it was deleted as well and nothing is
                       at its path now
replace a node         the same; the node deleted
delete a group         the same for every array below; metadata of a group below; a node created
                       below
create a node          a node at the same path; no group (any more) to hold it
move a node            the node deleted; a node at the target; a node created below the source;
                       no group (any more) to hold it
an array of a group    an array of the same group with another length of a dimension
anything               any move
=====================  =========================================================================

Metadata of this session can be applied after chunks of other writers if the chunks keep their
positions and their meaning. The reverse is refused, since new metadata may change the meaning or
the number of chunks. Only chunks that both wrote can be resolved, by taking one side; contents are
never merged.

Specification: "Conflict resolution" is left to clients. All conflicts of the reference
implementation are refused here, and also changes that would lead to two nodes with one path, nodes
without a group or lost chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath, ancestors, parent
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.grid.boxes import box_of_grid, inside_box
from icechunk_format.repository.changes.grid_checks import whole_chunks_after
from icechunk_format.repository.changes.meaning import same_meaning

if TYPE_CHECKING:
    from icechunk_format.encoding.transaction_log import TransactionLog
    from icechunk_format.repository.changes.change_set import ChangeSet

_SHOWN_CHUNKS: Final = 5


class ConflictKind(Enum):
    """Kinds of conflict; the value is the description for users."""

    CHUNKS_WRITTEN_TWICE = "chunks that both wrote"
    CELLS_WRITTEN_TWICE = "cells that both wrote"
    LABELS_NOT_MERGED = "labels of both sides that cannot be joined"
    LENGTHS_DIFFER = "arrays of a group that would have different lengths"
    CHUNKS_OF_UPDATED_ARRAY = "chunks written here of an array whose metadata were changed there"
    CHUNKS_OF_DELETED_ARRAY = "chunks written here of an array that was deleted there"
    CHUNKS_OF_SHIFTED_ARRAY = "chunks written there of an array that was shifted here"
    CHUNKS_OF_SMALLER_ARRAY = "chunks written there that a smaller shape drops or cuts here"
    CHUNKS_OF_OTHER_MEANING = (
        "chunks written there, which metadata changed here give another meaning"
    )
    METADATA_UPDATED_TWICE = "metadata that both changed"
    METADATA_OF_DELETED_NODE = "metadata changed here of a node that was deleted there"
    DELETED_NODE_CHANGED = "deleted here, but changed there"
    DELETED_NODE_RECREATED = "deleted here, but deleted and created again there"
    REPLACED_NODE_DELETED = "replaced here, but deleted there"
    NODE_IN_DELETED_GROUP = "created or moved there, in a group that is deleted or moved here"
    NODE_EXISTS = "created here, but a node now exists at its path"
    NEW_NODE_DELETED = "created here, but merged before and deleted there"
    NO_GROUP_FOR_NODE = "created or moved here, but its parent group is gone or is an array now"
    MOVED_NODE_GONE = "moved here, but deleted there"
    MOVED_THERE = "moved there"


RESOLVABLE: Final = (ConflictKind.CHUNKS_WRITTEN_TWICE, ConflictKind.CELLS_WRITTEN_TWICE)
"""Kinds of conflict that ``resolve`` can settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirCommit:
    """A commit of another writer after the session began."""

    snapshot_id: SnapshotId
    log: TransactionLog


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conflict:
    """One conflict between the session and another writer.

    Attributes
    ----------
    kind
        Kind of conflict; its value is a description.
    path
        The path of the node in the session.
    node_id
        The node; None if the conflict is about a path.
    snapshot_id
        The commit of the other writer; None if not known.
    coords
        uint32, shape (n, ndim): the chunks, if the conflict is about chunks.
    labels
        The labels of the chunks or cells, for messages; None if only ``coords`` are known.
    commit
        Message and time of the commit; None if not known.
    """

    kind: ConflictKind
    path: NodePath
    node_id: NodeId | None = None
    snapshot_id: SnapshotId | None = None
    coords: NDArray[np.uint32] | None = None
    labels: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        string = f"{self.path}: {self.kind.value}"
        if self.labels is not None:
            string += f" ({self.labels})"
        elif self.coords is not None:
            shown = ", ".join(str(tuple(row)) for row in self.coords[:_SHOWN_CHUNKS].tolist())
            more = f" and {len(self.coords) - _SHOWN_CHUNKS} more"
            string += f" ({shown}{more if len(self.coords) > _SHOWN_CHUNKS else ''})"
        if self.snapshot_id is not None:
            string += f", in snapshot {self.snapshot_id}"
        return string if self.commit is None else f"{string} ({self.commit})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictDetector:
    """Finds the conflicts between a session and commits of other writers.

    Parameters
    ----------
    theirs
        The commits after ``base`` up to ``tip``, oldest first.
    """

    changes: ChangeSet
    base: Snapshot
    tip: Snapshot
    theirs: Sequence[TheirCommit]
    _commits_naming: dict[str, dict[NodeId, list[TheirCommit]]] = field(
        default_factory=dict, init=False
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield the conflicts, ordered by kind."""
        yield from self._their_moves()
        yield from self._chunks()
        yield from self._cut_chunks()
        yield from self._updates()
        yield from self._deletes()
        yield from self._new_paths()
        yield from self._orphans()

    def _their_moves(self) -> Iterator[Conflict]:
        for commit in self.theirs:
            for move in commit.log.moved_nodes:
                yield Conflict(
                    kind=ConflictKind.MOVED_THERE,
                    path=move.from_path,
                    node_id=move.node_id,
                    snapshot_id=commit.snapshot_id,
                )
            for node_id in sorted(commit.log.relocated_nodes):
                if self.base.nodes.has_id(node_id):
                    yield self._of(ConflictKind.MOVED_THERE, node_id, commit)

    def _chunks(self) -> Iterator[Conflict]:
        for node_id, changes in self.changes.chunks.items():
            if node_id in self.changes.created:
                continue
            has_writes = changes.replaces_all or changes.touched().count > 0
            if not has_writes:
                # A resize only, which conflicts like metadata.
                continue
            if not self.tip.nodes.has_id(node_id):
                yield self._by(ConflictKind.CHUNKS_OF_DELETED_ARRAY, node_id, "deleted_arrays")
                continue
            for commit in self._naming("updated_arrays", node_id):
                yield self._of(ConflictKind.CHUNKS_OF_UPDATED_ARRAY, node_id, commit)
            for commit in self._naming("updated_chunks", node_id):
                coords = commit.log.updated_chunks[node_id]
                if not len(coords):
                    continue
                if changes.replaces_all:
                    yield self._of(ConflictKind.CHUNKS_OF_SHIFTED_ARRAY, node_id, commit)
                    continue
                shared = coords[changes.touches(coords)]
                if len(shared):
                    yield self._of(ConflictKind.CHUNKS_WRITTEN_TWICE, node_id, commit, shared)

    def _cut_chunks(self) -> Iterator[Conflict]:
        """Check chunks that smaller arrays of this session drop or hide in part."""
        for node_id in {**self.changes.chunks, **self.changes.updated}:
            box = self._kept_chunks(node_id)
            if box is None or not self.tip.nodes.has_id(node_id):
                continue
            for commit in self._naming("updated_chunks", node_id):
                coords = commit.log.updated_chunks[node_id]
                cut = coords[~inside_box(coords, box)]
                if len(cut):
                    yield self._of(ConflictKind.CHUNKS_OF_SMALLER_ARRAY, node_id, commit, cut)

    def _kept_chunks(self, node_id: NodeId) -> NDArray[np.int64] | None:
        """Return the box of the chunks that an array keeps whole; None if it did not shrink."""
        was, now = self.base.nodes.with_id(node_id), self.changes.updated.get(node_id)
        limits = [] if was is None or now is None else [whole_chunks_after(was, now)]
        if node_id in self.changes.chunks:
            limits.append(self.changes.chunks[node_id].clip)
        counts = [limit for limit in limits if limit is not None]
        return box_of_grid(map(min, *counts, counts[0])) if counts else None

    def _updates(self) -> Iterator[Conflict]:
        for node_id, state in self.changes.updated.items():
            kind = "groups" if state.array is None else "arrays"
            if not self.tip.nodes.has_id(node_id):
                yield self._by(ConflictKind.METADATA_OF_DELETED_NODE, node_id, f"deleted_{kind}")
                continue
            for commit in self._naming(f"updated_{kind}", node_id):
                yield self._of(ConflictKind.METADATA_UPDATED_TWICE, node_id, commit)
            was = self.base.nodes.with_id(node_id)
            if was is None or same_meaning(was, state):
                continue
            for commit in self._naming("updated_chunks", node_id):
                coords = commit.log.updated_chunks[node_id]
                if len(coords):
                    changed = ConflictKind.CHUNKS_OF_OTHER_MEANING
                    yield self._of(changed, node_id, commit, coords)

    def _deletes(self) -> Iterator[Conflict]:
        replaced = {state.path for state in self.changes.created.values()}
        for node_id, gone in self.changes.deleted.items():
            if not self.tip.nodes.has_id(node_id):
                there = self.tip.node(gone.path)
                if there is not None:
                    yield self._taken(ConflictKind.DELETED_NODE_RECREATED, gone.path, there.id)
                elif gone.path in replaced:
                    yield self._by(ConflictKind.REPLACED_NODE_DELETED, node_id)
                continue
            changed = [
                *self._naming("updated_groups", node_id),
                *self._naming("updated_arrays", node_id),
                *(
                    commit
                    for commit in self._naming("updated_chunks", node_id)
                    if len(commit.log.updated_chunks[node_id])
                ),
            ]
            if changed:
                yield self._of(ConflictKind.DELETED_NODE_CHANGED, node_id, changed[0])

    def _new_paths(self) -> Iterator[Conflict]:
        """Check the path of every node that this session creates or moves."""
        moved = self.changes.moved
        targets = {state.path: node_id for node_id, state in self.changes.created.items()}
        targets.update((move.to_path, node_id) for node_id, move in moved.items())
        for path, node_id in sorted(targets.items()):
            if node_id in moved and not self.tip.nodes.has_id(node_id):
                yield self._by(ConflictKind.MOVED_NODE_GONE, node_id)
                continue
            there = self.tip.node(path)
            if there is not None and not self._leaves(there):
                yield self._taken(ConflictKind.NODE_EXISTS, path, there.id)
            above = parent(path)
            if above is None or self._is_our_group(targets.get(above)):
                continue
            holder = self.tip.node(above)
            if holder is None or holder.array is not None or self._leaves(holder):
                yield Conflict(
                    kind=ConflictKind.NO_GROUP_FOR_NODE,
                    path=path,
                    snapshot_id=None if holder is None else self._creator(holder.id),
                )

    def _orphans(self) -> Iterator[Conflict]:
        """Check nodes that other writers put in a group that this session deletes or moves."""
        gone = {n.path for n in self.changes.deleted.values() if n.array is None}
        gone |= {m.from_path for m in self.changes.moved.values() if not m.is_array}
        created = {
            node_id: commit.snapshot_id
            for commit in self.theirs
            for node_id in (
                *commit.log.new_groups,
                *commit.log.new_arrays,
                *(move.node_id for move in commit.log.moved_nodes),
            )
        }
        if not gone or not created:
            return
        for node_id, snapshot_id in created.items():
            node = self.tip.nodes.with_id(node_id)
            if node is not None and any(above in gone for above in ancestors(node.path)):
                yield Conflict(
                    kind=ConflictKind.NODE_IN_DELETED_GROUP,
                    path=node.path,
                    node_id=node_id,
                    snapshot_id=snapshot_id,
                )

    def _path_of(self, node_id: NodeId) -> NodePath:
        """Return the path of a node in the base or, if the session created it, in the session.

        In a merge, both sides may contain a node that the base does not have.
        """
        created = self.changes.created.get(node_id)
        path = self.base.nodes.path_of_id(node_id) if created is None else created.path
        path = path or self.tip.nodes.path_of_id(node_id)
        assert path is not None  # Changed nodes are in the base or in the tip.
        return path

    def _leaves(self, node: NodeSnapshot) -> bool:
        """Return True if the session deletes or moves a node of the tip."""
        return node.id in self.changes.deleted or node.id in self.changes.moved

    def _is_our_group(self, node_id: NodeId | None) -> bool:
        if node_id is None:
            return False
        created = self.changes.created.get(node_id)
        if created is not None:
            return created.array is None
        return not self.changes.moved[node_id].is_array

    def _creator(self, node_id: NodeId) -> SnapshotId | None:
        return self._first("new_groups", "new_arrays", node_id=node_id)

    def _first(self, *lists: str, node_id: NodeId) -> SnapshotId | None:
        """Return the first commit of other writers whose log has a node in one of these lists."""
        for name in lists:
            for commit in self._naming(name, node_id):
                return commit.snapshot_id
        return None

    def _naming(self, name: str, node_id: NodeId) -> Sequence[TheirCommit]:
        """Return the commits of other writers whose log has a node in a list, oldest first."""
        known = self._commits_naming.get(name)
        if known is None:
            # One pass over all logs for each list.
            known = self._commits_naming[name] = {}
            for commit in self.theirs:
                for named in getattr(commit.log, name):
                    known.setdefault(named, []).append(commit)
        return known.get(node_id, ())

    def _of(
        self,
        kind: ConflictKind,
        node_id: NodeId,
        commit: TheirCommit,
        coords: NDArray[np.uint32] | None = None,
    ) -> Conflict:
        return Conflict(
            kind=kind,
            path=self._path_of(node_id),
            node_id=node_id,
            snapshot_id=commit.snapshot_id,
            coords=coords,
        )

    def _taken(self, kind: ConflictKind, path: NodePath, node_id: NodeId) -> Conflict:
        """Return a conflict about an existing path, with the commit that created it."""
        made_by = self._creator(node_id)
        return Conflict(kind=kind, path=path, node_id=node_id, snapshot_id=made_by)

    def _by(self, kind: ConflictKind, node_id: NodeId, *lists: str) -> Conflict:
        """Return a conflict about a deleted node, with the commit that deleted it."""
        names = lists or ("deleted_groups", "deleted_arrays")
        culprit = self._first(*names, node_id=node_id)
        return Conflict(
            kind=kind, path=self._path_of(node_id), node_id=node_id, snapshot_id=culprit
        )


def resolved(conflicts: Sequence[Conflict], resolve: str | None) -> list[Conflict]:
    """Return the conflicts that remain; ``resolve`` settles what both wrote, and None nothing."""
    if resolve is None:
        return list(conflicts)
    return [c for c in conflicts if c.kind not in RESOLVABLE]


def rebased(
    changes: ChangeSet, *, tip: Snapshot, conflicts: Sequence[Conflict], resolve: str | None
) -> None:
    """Apply changes to a newer snapshot, after all conflicts were resolved.

    Nodes that other writers also deleted are dropped from the changes, and with ``"theirs"`` the
    chunks that both wrote.
    """
    for node_id in [n for n in changes.deleted if not tip.nodes.has_id(n)]:
        del changes.deleted[node_id]
    if resolve != "theirs":
        return
    shared = [
        (conflict.node_id, conflict.coords)
        for conflict in conflicts
        if conflict.node_id is not None and conflict.coords is not None
    ]
    for node_id, coords in shared:
        changes.chunks[node_id].yield_to_others(coords)
