"""Plans a write again on the newest snapshot, after other writers committed during it.

Algorithm
---------
1. Plan the same rows on the newest snapshot. New labels follow those of other writers, or are
   sorted among them if this puts all labels in order and few chunks must move.
2. Reuse the stored chunks. Chunks that move by whole chunks get new references; the others are
   merged, one by one, with the newest snapshot (``moves``, ``merge``).
3. Commit. If another writer commits first again, repeat from step 1.

The result is as if the write had begun after the other commits. A cell that two writers wrote is a
conflict.

Rules of this file
------------------
1. Chunks of tasks are read only to be merged, one at a time.
2. Arrays that other writers deleted, replaced or encoded again are conflicts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import overlapping_pairs
from icechunk_format.groups import arrays_in
from icechunk_format.groups.changing import WriteResult
from icechunk_format.groups.changing.result import committed_before
from icechunk_format.groups.variable import array_at
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.changes import ChunkChanges, TheirCommit, same_aspects
from icechunk_format.repository.files import ManifestReceipt, store_manifests
from icechunk_format.repository.session import WriteSession
from icechunk_format.tables.writing.chunks.plan import plan_layout_write
from icechunk_format.tables.writing.columns.checks import CF_KEYS
from icechunk_format.tables.writing.part import WriteTarget
from icechunk_format.tables.writing.plan import WritePlan, plan_write
from icechunk_format.tables.writing.prepare import PreparedWrite, prepare_again
from icechunk_format.tables.writing.replanning.adopt import (
    Adoption,
    PlannedCommit,
    stored_refs,
)
from icechunk_format.tables.writing.replanning.conflicts import cells_written_twice, refused
from icechunk_format.tables.writing.replanning.rivals import (
    Rivals,
    can_move,
    check_has_labels,
    find_moves,
)


class PlanIsOld(Exception):
    """Other writers changed arrays of the plan; ``finish_write`` catches this error."""

    def __init__(self, tip: Snapshot, theirs: Sequence[TheirCommit]) -> None:
        super().__init__("other writers committed since the write was planned")
        self.tip = tip
        self.theirs = tuple(theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Checks the commits of other writers before a session is rebased on them."""

    repository: Repository
    planned: PlannedCommit
    session: WriteSession

    def __call__(self, tip: Snapshot, theirs: Sequence[TheirCommit]) -> None:
        """Raise ``PlanIsOld`` unless the changes can be rebased on the new tip unchanged."""
        plan = self.planned.plan
        is_old = any(tip.node(path) is not None for path in plan.missing_groups)
        is_old |= _described(tip, plan) != _described(self.planned.base, plan)
        is_old |= any(map(self._is_shared, theirs))
        if is_old or committed_before(self.repository, plan.options) is not None:
            raise PlanIsOld(tip, theirs)

    def _is_shared(self, commit: TheirCommit) -> bool:
        """Return True if a commit wrote chunks of the session, or labels that the plan matched.

        Also True for any chunk of an array in which the plan moves labels: a chunk that the base
        did not have is none of the session's.
        """
        changes, plan = self.session.changes.chunks, self.planned.plan
        labels = [plan.array_path(dim) for dim in plan.dims]
        arrays = (array_at(self.planned.base, path) for path in labels)
        matched = {array.node.id for array in arrays if array is not None}
        matched |= {
            array.node.id
            for array in arrays_in(self.planned.base, plan.group).values()
            if plan.moved.keys() & set(array.dims)
        }
        return any(
            node_id in matched
            or (node_id in changes and bool(changes[node_id].touches(coords).any()))
            for node_id, coords in commit.log.updated_chunks.items()
        )


def _described(snapshot: Snapshot, prepared: PreparedWrite) -> dict[Any, Any]:
    """Return the state that a plan depends on: path, document and shape of the group's arrays."""
    arrays = arrays_in(snapshot, prepared.group).values()
    return {array.node.id: (array.path, array.node.user_data, array.shape) for array in arrays}


def plan_again(first: PlannedCommit, rivals: Rivals) -> PlannedCommit | WriteResult:
    """Plan a write again on the newest snapshot, reusing the chunks stored for the first plan."""
    plan = first.plan
    if plan.options.mode == "overwrite":
        raise refused(
            plan,
            f"group {plan.group}, which this write replaces, was changed since it was planned",
            snapshots=rivals.ids,
        )
    options = replace(plan.options, group=str(plan.group), merge_schema=True)
    if options.layout == "cells":
        check_has_labels(plan, rivals)
        options = replace(options, dims=plan.dims)
    else:
        options = _with_their_shapes(options, plan, rivals.tip)
    prepared = prepare_again(plan, rivals.tip, options)
    if isinstance(prepared, WriteResult):
        return prepared
    if options.layout != "cells":
        return _adopted(first, plan_layout_write(prepared), rivals)
    # Labels of the base keep their indices; labels of other writers may move.
    labels = {dim: array_at(rivals.base, prepared.array_path(dim)) for dim in prepared.dims}
    stay = {dim: 0 if array is None else array.shape[0] for dim, array in labels.items()}
    now = _same_rows(prepared, plan, stay)
    if now.moved and not now.disordered and can_move(now):
        # Inserting labels may fail if it leaves cells of a chunk without a row.
        with suppress(InvalidInputError):
            return _adopted(first, now, rivals)
    if now.moved:
        now = _same_rows(prepared, plan)
    check_order(now)
    return _adopted(first, now, rivals)


def _same_rows(
    prepared: PreparedWrite, plan: WritePlan, stay: Mapping[str, int] | None = None
) -> WritePlan:
    """Plan the rows of a plan again."""
    values = {dim: table.column("value") for dim, table in plan.dimension_tables.items()}
    return plan_write(prepared, values, plan.row_count, stay=stay)


def _adopted(first: PlannedCommit, now: WritePlan, rivals: Rivals) -> PlannedCommit:
    """Reuse the chunks stored for the first plan in a new plan of the same rows.

    Raises ConflictError if other writers wrote cells of this write and ``resolve`` is not set.
    """
    now = _same_arrays(first, now, rivals)
    stored = {path: ChunkChanges(len(found[0].extents)) for path, found in first.manifests.items()}
    for path, changes in stored.items():
        changes.add_receipts(first.manifests[path])
    plan = first.plan
    labels = [len(np.unique(plan.indices(dim))) for dim in plan.dimension_tables]
    has_all_rows = plan.row_count == math.prod(labels)
    moves = find_moves(plan, now, rivals)
    adoption = Adoption(plan.arrays, now, rivals, moves, has_all_rows=has_all_rows)
    adoption.take_all(stored)
    if adoption.lost and now.options.resolve is None:
        raise cells_written_twice(now, adoption.lost, rivals.writers(adoption.lost_at))
    return adoption.commit


def check_order(plan: WritePlan) -> None:
    """Raise InvalidInputError if new labels are out of order and too many chunks would move."""
    if plan.disordered and (plan.options.replace_where or _inserted(plan) is None):
        raise _out_of_order(plan)


def insert_labels(first: PlannedCommit) -> PlannedCommit:
    """Insert new labels in order, moving chunks of the base and of the tasks.

    Raises InvalidInputError if too many chunks would move, or one has cells without a value.
    """
    now = _inserted(first.plan)
    if now is None:
        raise _out_of_order(first.plan)
    joined = replace(first, manifests=_disjoint_manifests(first.plan, first.manifests))
    return _adopted(joined, now, Rivals(base=first.base, tip=first.base, commits=()))


def _disjoint_manifests(
    plan: WritePlan, manifests: Mapping[str, list[ManifestReceipt]]
) -> dict[str, list[ManifestReceipt]]:
    """Join the manifests of an array if their boxes overlap, which readers do not support."""
    destination = plan.destination
    storage = destination.open_storage()
    found = dict(manifests)
    for array in plan.arrays.values():
        receipts = found.get(array.path, [])
        boxes = np.array([receipt.extents for receipt in receipts], np.uint32)
        if len(receipts) < 2 or not any(len(p) for p in overlapping_pairs(boxes)):
            continue
        joined = ChunkRefs.concat(list(stored_refs(storage, array.node_id, receipts)))
        parts = [(array.node_id, [joined])]
        [found[array.path]] = store_manifests(storage, destination.manifest_format, parts)
    return found


def _inserted(plan: WritePlan) -> WritePlan | None:
    """Return the plan with all labels in order; None if none moves, or too many chunks do."""
    now = _same_rows(plan, plan, dict.fromkeys(plan.dims, 0))
    return now if now.moved and not now.disordered and can_move(now) else None


def _out_of_order(plan: WritePlan) -> InvalidInputError:
    dim = plan.disordered[0]
    return InvalidInputError(
        f"new labels of dimension {dim!r} are between existing ones, and too many chunks would have"
        " to move to keep the labels sorted: choose another chunk shape, write the whole table with"
        f" mode=overwrite, or put the labels at the end with order={dim}=unsorted (xarray then"
        f" needs sortby({dim!r}) for slices)",
        dim=dim,
        option="order",
    )


def _with_their_shapes(options: WriteOptions, plan: WritePlan, tip: Snapshot) -> WriteOptions:
    """Return options with shapes at least as large as in the newest snapshot."""
    encoding = dict(options.encoding)
    for target in plan.arrays.values():
        node = tip.node(target.path)
        given = encoding.get(target.name)
        if node is None or node.array is None or given is None or given.get("shape") is None:
            continue
        shape, theirs = target.metadata.shape, node.array.shape
        if len(shape) == len(theirs):
            larger = [max(pair) for pair in zip(shape, theirs, strict=True)]
            encoding[target.name] = {**given, "shape": larger}
            if target.old_shape is None:
                # Another writer also created the array; ``_same_arrays`` compares both.
                encoding[target.name] = {"shape": larger}
    return replace(options, encoding=encoding)


def _same_arrays(first: PlannedCommit, now: WritePlan, rivals: Rivals) -> WritePlan:
    """Return the new plan with the arrays that tasks wrote; raise if one was changed."""
    plan = first.plan
    changed = {*first.manifests, *dict(plan.resized)}
    kept: dict[str, WriteTarget] = {}
    for name, old in plan.arrays.items():
        if old.old_shape is not None and old.path not in changed:
            continue
        new = now.arrays.get(name)
        problem = "deleted or replaced"
        if new is not None and (old.old_shape is None or new.node_id == old.node_id):
            is_alike = new.dims == old.dims and _is_encoded_alike(old, new)
            problem = "" if is_alike else "given another encoding or other dimensions"
        if new is None or problem:
            raise refused(
                plan,
                f"array {old.path} was {problem} since this write was planned",
                snapshots=rivals.ids,
                variables=(name,),
            )
        same_fill = old.metadata.raw["fill_value"] == new.metadata.raw["fill_value"]
        if new.old_shape is None and same_fill:
            document = old.metadata.with_shape(new.metadata.shape)
            kept[name] = replace(new, node_id=old.node_id, metadata=document)
    parts = [
        replace(part, arrays=tuple(kept.get(array.name, array) for array in part.arrays))
        for part in now.parts
    ]
    created = tuple(kept.get(array.name, array) for array in now.created)
    return replace(now, parts=tuple(parts), created=created)


def _is_encoded_alike(one: WriteTarget, other: WriteTarget) -> bool:
    # Attributes that do not affect the encoding of values may change during a write.
    documents = one.metadata.raw, other.metadata.raw
    return same_aspects(*documents, members=["data_type"], attributes=(*CF_KEYS, "dtype"))
