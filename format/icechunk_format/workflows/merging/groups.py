"""Merges the arrays of a group by their labels, like concurrent writes.

Long because its parts share the two sides of one group.

The changes of the source are treated as a write that was planned on the common snapshot and is
planned again on the target: labels of both sides are joined, chunks and manifests are reused if
possible, and other chunks are merged cell by cell, one at a time (see
``tables.writing.replanning``). Cells that both sides set to the same value do not conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import NodePath, parent
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.grid.boxes import box_of_grid, box_volumes, coords_of_boxes
from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.grid.index_maps import IndexMap
from icechunk_format.groups import DimSelection, Variable, arrays_in
from icechunk_format.groups.changing import ChunkValues, path_in
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.changes import ChangeSet, ChunkChanges, Conflict, ConflictKind
from icechunk_format.repository.session import Resolve, WriteSession
from icechunk_format.tables.writing import (
    Adoption,
    PlannedCommit,
    Rivals,
    WritePart,
    WritePlan,
    WriteTarget,
    apply_planned,
    can_move,
    shown_cells,
)
from icechunk_format.workflows.merging.documents import merged_document
from icechunk_format.workflows.merging.labels import (
    DimLabels,
    MergedLabels,
    dim_labels,
    encoder_of,
)
from icechunk_format.workflows.merging.positions import misplaced, touched_by_both
from icechunk_format.workflows.merging.sides import CannotMerge, Sides
from icechunk_format.zarr.fill_values import differs
from icechunk_format.zarr.zarr_json import ArrayMetadata

# Limit for the references of a side that inserted labels, which are held in memory.
_MOST_MOVED_CHUNKS: Final = 1_000_000


def group_merges(sides: Sides, changes: ChangeSet) -> tuple[list[GroupMerge], list[Conflict]]:
    """Return a merge for each group whose positions have other labels, or that both sides grew.

    Groups that cannot be merged by their labels are returned as conflicts.
    """
    nodes = [sides.source.nodes.with_id(i) for i in _changed_arrays(sides)]
    groups = {parent(node.path) for node in nodes if node is not None and node.array is not None}
    found: list[GroupMerge] = []
    refused: list[Conflict] = []
    for group in sorted(group for group in groups if group is not None):
        problem, merge = misplaced(sides, group), None
        try:
            merge = _group_merge(sides, changes, group, by_labels=problem is not None)
        except CannotMerge as error:
            problem = str(error) or problem
        except (FormatError, UnsupportedError):
            pass  # The conflict of documents or chunks remains, or the problem is refused.
        if merge is not None:
            found.append(merge)
        elif problem is not None:
            refused.append(_not_merged(group, problem))
    return found, refused


def _not_merged(path: str, problem: str) -> Conflict:
    kind = ConflictKind.LABELS_NOT_MERGED
    return Conflict(kind=kind, path=NodePath(path), labels=problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """An array that the source changed.

    ``document`` has the changes of both sides except the shape. It, ``base`` and ``target`` are
    None if the source created the array.
    """

    source: Variable
    base: Variable | None = None
    target: Variable | None = None
    document: ArrayMetadata | None = None


def _group_merge(
    sides: Sides, changes: ChangeSet, group: NodePath, *, by_labels: bool
) -> GroupMerge | None:
    """Return the merge of a group; None if its chunks are merged by their positions."""
    named = [arrays_in(each, group) for each in (sides.base, sides.source, sides.target)]
    sizes: dict[str, list[int]] = {}
    for side, arrays in enumerate(named):
        for dim, size in (pair for array in arrays.values() for pair in array.dimensions):
            seen = sizes.setdefault(dim, [0, 0, 0])
            if seen[side] not in (0, size):
                raise CannotMerge
            seen[side] = size
    old = [dim for dim, size in sizes.items() if size[0]]
    grew = [any(sizes[dim][side] > sizes[dim][0] for dim in old) for side in (1, 2)]
    shrank = (d for d in old if min(sizes[d]) < sizes[d][0] and touched_by_both(d, named))
    if not by_labels and not all(grew) and not any(shrank):
        return None
    dims = {
        dim: dim_labels(sides, [arrays.get(dim) for arrays in named], size)
        for dim, size in sizes.items()
    }
    changed = _changed_arrays(sides)
    for name, source in named[1].items():
        # Cells of an array that is the same have moved if labels have.
        there = named[2].get(name)
        if there is not None and there.node.id == source.node.id and _has_moved(source, dims):
            changed.add(source.node.id)
    gone = {*changes.deleted, *changes.moved}
    return GroupMerge(
        sides=sides,
        group=group,
        arrays={
            name: _same_array(sides, source, named[0].get(name), named[2].get(name))
            for name, source in named[1].items()
            if source.node.id in changed
        },
        base=named[0],
        dims=dims,
        kept={name: each for name, each in named[2].items() if each.node.id not in gone},
        chunks={
            source.path: _chunks_changed(sides, source, dims)
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


def _changed_arrays(sides: Sides) -> set[NodeId]:
    """Return the arrays that the source created, updated, wrote to or moved."""
    log = sides.ours
    return {*log.new_arrays, *log.updated_arrays, *log.updated_chunks}


def _has_moved(source: Variable, dims: Mapping[str, DimLabels]) -> bool:
    """Return True if elements of an array have another label in the source, at their positions."""
    maps = [dims[dim].ours for dim in source.dims]
    return any(each.still < min(each.before, each.after) for each in maps)


def _chunks_changed(sides: Sides, source: Variable, dims: Mapping[str, DimLabels]) -> ChunkChanges:
    """Return the changed chunks of an array, and all from the first moved label on."""
    found = sides.chunks_changed(source.node.id)
    reader = sides.destination.reader(sides.source, source)
    for axis, dim in enumerate(source.dims):
        ours, along = dims[dim].ours, source.metadata.grid.axes[axis]
        # Labels that the source only removed at the end move none.
        if source.node.id in sides.ours.new_arrays or ours.still >= min(ours.before, ours.after):
            continue
        low, counts = [0] * len(source.dims), source.metadata.grid.num_chunks
        low[axis] = int(along.chunk_of(np.array([ours.still]))[0])
        box = np.array([low, counts], np.int64).T[None]
        if box_volumes(box)[0] > _MOST_MOVED_CHUNKS:
            raise CannotMerge
        coords = coords_of_boxes(box)
        found.yield_to_others(coords)
        found.delete(coords)
        for refs, rows in reader.lookup.in_box(low, counts):
            found.set_refs(refs.take(rows))
    return found


def _has_edits(
    variable: Variable,
    values: NDArray[Any],
    before: NDArray[Any],
    at: tuple[NDArray[np.int64], ...],
) -> bool:
    """Return True if stored values differ from those before; ``at`` are the indices of these.

    Values at other indices are edits if they are neither the fill value nor the missing value.
    """
    was = variable.metadata.fill_array(values.shape)
    absent = encoder_of(variable).absent
    edited = differs(values, was)
    if absent is not None:
        edited &= differs(values, np.full_like(values, absent))
    edited[at] = differs(values[at], before)
    return bool(edited.any())


@dataclass(slots=True, kw_only=True, eq=False)
class GroupMerge:
    """The arrays of a group that are merged by their labels."""

    sides: Sides
    group: NodePath
    arrays: Mapping[str, _Array]
    base: Mapping[str, Variable]
    """The arrays of the common snapshot."""
    dims: Mapping[str, DimLabels]
    kept: Mapping[str, Variable]
    """The arrays of the target that the source does not delete or move."""
    chunks: Mapping[str, ChunkChanges]
    """The chunks that the source changed, by path."""
    planned: PlannedCommit | None = field(default=None, init=False)

    def take_from(self, changes: ChangeSet) -> None:
        """Remove the changes of these arrays, except arrays that the source created."""
        for array in self.arrays.values():
            changes.updated.pop(array.source.node.id, None)
            changes.chunks.pop(array.source.node.id, None)

    def conflicts(self, resolve: Resolve | None, *, dry_run: bool) -> list[Conflict]:
        """Merge the chunks and store them unless ``dry_run``; return conflicts, settled or not."""
        problem = "too many chunks would have to move to put the labels in order"
        if (edits := self._edits_of_removed()) is not None:
            return [edits]
        stays = {dim: len(each.both) for dim, each in self.dims.items()}
        # As for parallel appends: labels of the common snapshot move only if necessary.
        for stay in (stays, dict.fromkeys(self.dims, 0), {}):
            try:
                merged = {dim: each.merged(dim, stay.get(dim)) for dim, each in self.dims.items()}
                now = self._now(merged, resolve)
                if not now.disordered and (not now.moved or can_move(now)):
                    return self._merged(now, merged, dry_run=dry_run)
            except InvalidInputError as error:
                # A merged chunk has a cell without a value on both sides, or labels are nearly
                # equal.
                problem = str(error)
        grown = [dim for dim, each in self.dims.items() if each.ours.after > each.ours.before]
        name = grown[0] if grown else next(iter(self.dims))
        return [_not_merged(path_in(self.group, name), problem)]

    def apply(self, session: WriteSession) -> None:
        """Apply the merged arrays to a session."""
        assert self.planned is not None, "chunks were merged"
        apply_planned(session, self.planned)

    def _edits_of_removed(self) -> Conflict | None:
        """Return a conflict if one side changed cells at a label that the other one removed."""
        for array in self.arrays.values():
            coords = self.chunks[array.source.path].touched().coords()
            along = [(self.dims[dim].ours, self.dims[dim].lacking) for dim in array.source.dims]
            pair = (self.sides.source, array.source), array.base
            if self._has_edits(*pair, coords, along):
                problem = "the branch lacks labels of its edits"
                return _not_merged(array.source.path, problem)
        rivals = [commit.log.updated_chunks for commit in self.sides.theirs]
        for name, target in self.kept.items():
            if target.is_dimension_coordinate:
                continue
            along = [(self.dims[dim].theirs, self.dims[dim].removed) for dim in target.dims]
            found = [log[target.node.id] for log in rivals if target.node.id in log]
            coords = joined_coords(found, len(target.dims))
            base = self.base.get(name)
            if base is None or base.node.id != target.node.id:
                base, coords = None, coords_of_boxes(box_of_grid(target.array.num_chunks)[None])
            if self._has_edits((self.sides.target, target), base, coords, along):
                problem = "the source has removed labels of cells that the branch changed"
                return _not_merged(target.path, problem)
        return None

    def _has_edits(
        self,
        side: tuple[Snapshot, Variable],
        base: Variable | None,
        coords: NDArray[np.uint32],
        along: Sequence[tuple[IndexMap, NDArray[np.int64]]],
    ) -> bool:
        """Return True if an array of a side has other cells than the base at some indices.

        ``along`` are, by axis, the indices in the side of the elements of the base, and the indices
        to compare; ``coords`` are the chunks that may differ, all that exist for a new array. The
        base has no values in cells of new labels.
        """
        axes = side[1].metadata.grid.axes
        chunks = [
            each.chunk_of(gone)[np.isin(each.chunk_of(gone), at)]
            for each, (_, gone), at in zip(axes, along, coords.T, strict=True)
        ]
        if base is None or not any(len(each) for each in chunks):
            return any(len(each) for each in chunks)
        readers = [self.sides.destination.reader(*each) for each in (side, (self.sides.base, base))]
        known = [indices.indices for indices, _ in along]
        for axis, (_, gone) in enumerate(along):
            # Compare one label at a time, only in changed chunks.
            for index in gone[np.isin(axes[axis].chunk_of(gone), chunks[axis])].tolist():
                rows = [np.flatnonzero(each >= 0) for each in known]
                rows[axis] = np.flatnonzero(known[axis] == index)
                own = [np.arange(each.after) for each, _ in along]
                own[axis] = np.array([index])
                values, before = (
                    reader.read(list(map(DimSelection.of_indices, reader.shape, at)))
                    for reader, at in zip(readers, (own, rows), strict=True)
                )
                at = [each[row] for each, row in zip(known, rows, strict=True)]
                at[axis] = np.zeros(len(rows[axis]), np.int64)
                if _has_edits(side[1], values, before, np.ix_(*at)):
                    return True
        return False

    def _merged(
        self, now: WritePlan, merged: Mapping[str, MergedLabels], *, dry_run: bool
    ) -> list[Conflict]:
        sides = self.sides
        sizes = {dim: each.ours.after for dim, each in self.dims.items()}
        moves = {dim: each.moves(merged[dim]) for dim, each in self.dims.items()}
        rivals = Rivals(base=sides.base, tip=sides.target, commits=tuple(sides.theirs))
        before = {array.name: array for array in self._targets(sizes, is_source=True)}
        adoption = Adoption(before, now, rivals, moves, picked=sides.source, dry_run=dry_run)
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

    def _targets(self, sizes: Mapping[str, int], *, is_source: bool) -> Iterator[WriteTarget]:
        """Yield the arrays with chunks, in the state of the source or merged."""
        for name, array in self.arrays.items():
            known, source = array.target, array.source
            if known is not None and known.is_dimension_coordinate:
                continue
            document = source.metadata if is_source else array.document or source.metadata
            before = array.base if is_source else known
            yield WriteTarget(
                name=name,
                path=source.path,
                node_id=source.node.id,
                dims=source.dims,
                metadata=document.with_shape([sizes[dim] for dim in source.dims]),
                # Cells of an array that the target lacks may be unwritten.
                encoder=None if known is None else encoder_of(known),
                old_shape=None if before is None else before.shape,
            )

    def _now(self, merged: Mapping[str, MergedLabels], resolve: Resolve | None) -> WritePlan:
        sizes = {dim: each.tip.after for dim, each in merged.items()}
        targets = tuple(self._targets(sizes, is_source=False))
        dims = tuple(self.dims)
        part = WritePart(
            destination=self.sides.destination,
            number=0,
            dims=dims,
            arrays=targets,
            units=0,
            input_schema=pa.schema([]),
            table_dims=dims,
            labels={dim: each.shown for dim, each in merged.items() if each.shown is not None},
        )
        return WritePlan(
            destination=self.sides.destination,
            options=WriteOptions(mode="append", branch=self.sides.branch, resolve=resolve),
            group=self.group,
            dims=dims,
            columns={},
            targets={},
            kept=self.kept,
            replaced={},
            missing_groups=(),
            parts=(part,),
            resized=tuple(self._resized(sizes, targets)),
            labels=tuple(self._labels(merged)),
            moved={dim: each.tip.indices for dim, each in merged.items() if each.has_moved},
            disordered=tuple(dim for dim, each in merged.items() if each.is_disordered),
        )

    def _resized(
        self, sizes: Mapping[str, int], targets: Sequence[WriteTarget]
    ) -> Iterator[tuple[str, ArrayMetadata]]:
        """Yield the arrays to resize or update, after those of the source were created."""
        yield from ((array.path, array.metadata) for array in targets if array.old_shape is None)
        for name, variable in self.kept.items():
            document = self.arrays[name].document if name in self.arrays else None
            document = document or variable.metadata
            shape = tuple(sizes[dim] for dim in variable.dims)
            if shape != variable.shape or document.to_bytes() != variable.metadata.to_bytes():
                yield variable.path, document.with_shape(shape)

    def _labels(self, merged: Mapping[str, MergedLabels]) -> Iterator[ChunkValues]:
        """Yield the labels of the target, from the first changed chunk on."""
        for dim, each in merged.items():
            variable = self.kept.get(dim)
            if each.labels is None or variable is None or each.first is None:
                continue
            metadata = variable.metadata.with_shape((each.tip.after,))
            yield ChunkValues.changed(metadata, each.labels, each.first)
