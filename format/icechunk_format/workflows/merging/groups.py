"""Merges the arrays of a group that both branches have grown, as raced writes are merged.

The changes of the source are treated as a write that was planned on the common snapshot, and is
planned again on the target: labels of both sides are joined, chunks and manifests are used again
where they fit, and other chunks are merged cell by cell, one at a time (see
``dataset.writing.replanning``). Cells that both sides gave one value do not conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.commit import apply_planned
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, WritePart, path_in
from icechunk_format.dataset.writing.plan import LabelChunks, WritePlan
from icechunk_format.dataset.writing.prepare import PreparedWrite
from icechunk_format.dataset.writing.replanning.adopt import Adoption, Picked, PlannedCommit
from icechunk_format.dataset.writing.replanning.conflicts import shown_cells
from icechunk_format.dataset.writing.replanning.landed import Rivals, can_move
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.changes.conflicts import Conflict, ConflictKind
from icechunk_format.repository.merging.sides import GroupMerge, Sides
from icechunk_format.repository.session.committing import Resolve
from icechunk_format.repository.session.session import WriteSession
from icechunk_format.spec.node_path import NodePath, parent
from icechunk_format.workflows.merging.changed import (
    changed_arrays,
    chunks_changed,
    edits_lacking_labels,
)
from icechunk_format.workflows.merging.describe import arrays_in, described, destination_of
from icechunk_format.workflows.merging.documents import merged_document
from icechunk_format.workflows.merging.labels import (
    CannotMerge,
    DimLabels,
    MergedLabels,
    dim_labels,
    encoder_of,
)

__all__ = ["described", "group_merges"]


def group_merges(sides: Sides, changes: ChangeSet) -> list[GroupMerge]:
    """Return a merge for each group whose arrays both sides have grown."""
    nodes = [sides.source.nodes.with_id(i) for i in changed_arrays(sides)]
    groups = {parent(node.path) for node in nodes if node is not None and node.array is not None}
    found: list[GroupMerge] = []
    for group in sorted(group for group in groups if group is not None):
        # Otherwise the conflict of documents or chunks remains.
        with suppress(FormatError, UnsupportedError):
            try:
                merge = _group_merge(sides, changes, group)
            except CannotMerge as error:
                merge = _Refused(group, str(error)) if error.args else None
            if merge is not None:
                found.append(merge)
    return found


@dataclass(frozen=True, slots=True)
class _Refused:
    """A group whose labels cannot be joined; its arrays remain in the changes."""

    group: NodePath
    problem: str

    def take_from(self, changes: ChangeSet) -> None:
        """Remove nothing."""

    def take_created(self, changes: ChangeSet) -> None:
        """Remove nothing."""

    def conflicts(self, resolve: Resolve | None, *, dry_run: bool) -> list[Conflict]:
        """Return the conflict."""
        kind = ConflictKind.LABELS_NOT_MERGED
        return [Conflict(kind=kind, path=self.group, labels=self.problem)]

    def apply(self, session: WriteSession) -> None:
        """Change nothing; a merge with such a conflict is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """An array that the source changed.

    ``base``, ``target`` and ``document``, which joins the changes of both sides but not the
    shape, are None if the source created it.
    """

    source: Variable
    base: Variable | None = None
    target: Variable | None = None
    document: ArrayMetadata | None = None


def _group_merge(sides: Sides, changes: ChangeSet, group: NodePath) -> GroupMerge | None:
    destination = destination_of(sides)
    snapshots = sides.base, sides.source, sides.target
    named = [arrays_in(snapshot, group) for snapshot in snapshots]
    sizes: dict[str, list[int]] = {}
    for side, arrays in enumerate(named):
        for dim, size in (pair for array in arrays.values() for pair in array.dimensions):
            seen = sizes.setdefault(dim, [0, 0, 0])
            if seen[side] not in (0, size):
                raise CannotMerge
            seen[side] = size
    old = [dim for dim, size in sizes.items() if size[0]]
    # The parent of a picked snapshot may have other labels at the same positions.
    if not sides.is_picked and not any(max(sizes[dim]) > sizes[dim][0] for dim in old):
        return None
    dims = {
        dim: dim_labels(
            destination,
            snapshots,
            [arrays.get(dim) for arrays in named],
            size,
            is_picked=sides.is_picked,
        )
        for dim, size in sizes.items()
    }
    grew = [any(sizes[dim][side] > sizes[dim][0] for dim in old) for side in (1, 2)]
    if not all(grew) and not any(dims[dim].moves for dim in old):
        return None
    changed = changed_arrays(sides)
    gone = {*changes.deleted, *changes.moved}
    return _GroupMerge(
        sides=sides,
        destination=destination,
        group=group,
        arrays={
            name: _same_array(sides, source, named[0].get(name), named[2].get(name))
            for name, source in named[1].items()
            if source.node.id in changed
        },
        dims=dims,
        kept={name: each for name, each in named[2].items() if each.node.id not in gone},
        chunks={
            source.path: chunks_changed(sides, destination, source, dims)
            for source in named[1].values()
            if source.node.id in changed
        },
    )


def _same_array(
    sides: Sides, source: Variable, base: Variable | None, target: Variable | None
) -> _Array:
    if base is None and target is None and not sides.base.nodes.has_id(source.node.id):
        return _Array(source=source)
    if base is None or target is None or source.has_repeated_dimension:
        raise CannotMerge
    if not source.node.id == base.node.id == target.node.id:
        raise CannotMerge
    document = merged_document(base, source, target)
    return _Array(source=source, base=base, target=target, document=document)


@dataclass(slots=True, kw_only=True, eq=False)
class _GroupMerge:
    sides: Sides
    destination: Destination
    group: NodePath
    arrays: Mapping[str, _Array]
    dims: Mapping[str, DimLabels]
    kept: Mapping[str, Variable]
    """The arrays of the target, without those that the source deletes or moves."""
    chunks: Mapping[str, ChunkChanges]
    """By path: what the source changed."""
    planned: PlannedCommit | None = field(default=None, init=False)

    def take_from(self, changes: ChangeSet) -> None:
        """Remove the changes of these arrays; those that the source created remain."""
        for array in self.arrays.values():
            changes.updated.pop(array.source.node.id, None)
            changes.chunks.pop(array.source.node.id, None)

    def take_created(self, changes: ChangeSet) -> None:
        """Remove the arrays that the source created."""
        for array in self.arrays.values():
            changes.created.pop(array.source.node.id, None)

    def conflicts(self, resolve: Resolve | None, *, dry_run: bool) -> list[Conflict]:
        """Merge the chunks and store them unless ``dry_run``; return conflicts, settled or not."""
        problem = "too many chunks would have to move to put the labels in order"
        for array in self.arrays.values():
            changes = self.chunks[array.source.path]
            if array.base is not None and edits_lacking_labels(
                self.sides, self.destination, array.source, array.base, self.dims, changes
            ):
                path, problem = NodePath(array.source.path), "the branch lacks labels of its edits"
                return [Conflict(kind=ConflictKind.LABELS_NOT_MERGED, path=path, labels=problem)]
        stays = {dim: len(each.base) for dim, each in self.dims.items()}
        # As parallel appends: labels of the common snapshot move only if they have to.
        for stay in (stays, dict.fromkeys(self.dims, 0), {}):
            merged = {dim: each.merged(dim, stay.get(dim)) for dim, each in self.dims.items()}
            now = self._now(merged, resolve)
            if now.disordered or (now.moved and not can_move(now)):
                continue
            try:
                return self._merged(now, dry_run=dry_run)
            except InvalidInputError as error:
                # A merged chunk has a cell that neither side has.
                problem = str(error)
        grown = [dim for dim, each in self.dims.items() if each.source > len(each.base)]
        path = NodePath(path_in(self.group, grown[0] if grown else next(iter(self.dims))))
        return [Conflict(kind=ConflictKind.LABELS_NOT_MERGED, path=path, labels=problem)]

    def apply(self, session: WriteSession) -> None:
        """Change a session as merged."""
        assert self.planned is not None, "chunks were merged"
        apply_planned(session, self.planned)

    def _merged(self, now: WritePlan, *, dry_run: bool) -> list[Conflict]:
        sides = self.sides
        rivals = Rivals(base=sides.base, tip=sides.target, commits=tuple(sides.theirs))
        adoption = Adoption(
            self._plan(), now, rivals, Picked(snapshot=sides.source, dry_run=dry_run)
        )
        adoption.take_all(self.chunks)
        self.planned = adoption.commit
        writers = rivals.writers(adoption.lost_at)
        return [
            Conflict(
                kind=ConflictKind.CELLS_WRITTEN_TWICE,
                path=NodePath(now.arrays[name].path),
                node_id=now.arrays[name].node_id,
                snapshot_id=writers[-1] if writers else None,
                labels=shown_cells(now, *lost)[1],
            )
            for name, lost in adoption.lost.items()
        ]

    # -- the plan of the source, and the one on the target --------------------------------------

    def _targets(self, sizes: Mapping[str, int], *, is_source: bool) -> Iterator[ArrayTarget]:
        """Yield the arrays with chunks, as in the source or as merged."""
        for name, array in self.arrays.items():
            known, source = array.target, array.source
            if known is not None and known.is_dimension_coordinate:
                continue
            document = source.metadata if is_source else array.document or source.metadata
            before = array.base if is_source else known
            yield ArrayTarget(
                name=name,
                path=source.path,
                node_id=source.node.id,
                dims=source.dims,
                metadata=document.with_shape([sizes[dim] for dim in source.dims]),
                # In an array that the target does not have, cells may be unwritten.
                encoder=None if known is None else encoder_of(known),
                old_shape=None if before is None else before.shape,
            )

    def _plan(self) -> WritePlan:
        sizes = {dim: each.source for dim, each in self.dims.items()}
        return WritePlan(
            prepared=self._prepared(None),
            parts=(self._part(tuple(self._targets(sizes, is_source=True)), {}),),
            dimension_tables={
                dim: pa.table({"index": each.merged(dim, None).own})
                for dim, each in self.dims.items()
            },
            moved={dim: each.base for dim, each in self.dims.items()},
        )

    def _now(self, merged: Mapping[str, MergedLabels], resolve: Resolve | None) -> WritePlan:
        sizes = {dim: each.size for dim, each in merged.items()}
        targets = tuple(self._targets(sizes, is_source=False))
        return WritePlan(
            prepared=self._prepared(resolve),
            parts=(self._part(targets, merged),),
            dimension_tables={
                dim: pa.table({"index": each.indices}) for dim, each in merged.items()
            },
            created=tuple(array for array in targets if array.old_shape is None),
            resized=tuple(self._resized(sizes)),
            labels=tuple(self._labels(merged)),
            moved={dim: each.moved for dim, each in merged.items() if each.moved is not None},
            disordered=tuple(dim for dim, each in merged.items() if each.is_disordered),
        )

    def _resized(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, ArrayMetadata]]:
        """Yield the arrays of the target that grow or have another document."""
        for name, variable in self.kept.items():
            document = self.arrays[name].document if name in self.arrays else None
            document = document or variable.metadata
            shape = tuple(sizes[dim] for dim in variable.dims)
            if shape != variable.shape or document.to_bytes() != variable.metadata.to_bytes():
                yield variable.path, document.with_shape(shape)

    def _labels(self, merged: Mapping[str, MergedLabels]) -> Iterator[LabelChunks]:
        """Yield the labels of the target from the first chunk that changes on."""
        for dim, each in merged.items():
            variable = self.kept.get(dim)
            if each.labels is None or variable is None or each.first is None:
                continue
            metadata = variable.metadata.with_shape((each.size,))
            [axis] = metadata.grid.axes
            start = axis.bounds(int(axis.chunk_of(np.array([each.first]))[0]))[0]
            yield LabelChunks(
                path=variable.path, metadata=metadata, start=start, values=each.labels[start:]
            )

    def _part(
        self, arrays: tuple[ArrayTarget, ...], merged: Mapping[str, MergedLabels]
    ) -> WritePart:
        labels: dict[str, Any] = {dim: each.shown for dim, each in merged.items()}
        return WritePart(
            destination=self.destination,
            number=0,
            dims=tuple(self.dims),
            arrays=arrays,
            units=0,
            input_schema=pa.schema([]),
            table_dims=tuple(self.dims),
            labels={dim: shown for dim, shown in labels.items() if shown is not None},
        )

    def _prepared(self, resolve: Resolve | None) -> PreparedWrite:
        return PreparedWrite(
            destination=self.destination,
            options=WriteOptions(mode="append", branch=self.sides.branch, resolve=resolve),
            group=self.group,
            dims=tuple(self.dims),
            columns={},
            targets={},
            kept=self.kept,
            replaced={},
            missing_groups=(),
        )
