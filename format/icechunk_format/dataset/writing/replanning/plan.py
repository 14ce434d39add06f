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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from icechunk_format.dataset.writing.chunks.plan import plan_layout_write
from icechunk_format.dataset.writing.options import CF_KEYS
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.dataset.writing.plan import WritePlan, plan_write
from icechunk_format.dataset.writing.prepare import PreparedWrite, prepare_again
from icechunk_format.dataset.writing.replanning.adopt import (
    PlannedCommit,
    adopt,
    disjoint_manifests,
)
from icechunk_format.dataset.writing.replanning.conflicts import refused
from icechunk_format.dataset.writing.replanning.landed import Rivals, array_at, can_move
from icechunk_format.dataset.writing.result import WriteResult, find_committed
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.changes.conflicts import TheirCommit
from icechunk_format.repository.session import WriteSession
from icechunk_format.spec.snapshot.file import Snapshot


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
        if is_old or find_committed(self.repository, plan.options) is not None:
            raise PlanIsOld(tip, theirs)

    def _is_shared(self, commit: TheirCommit) -> bool:
        """Return True if a commit wrote chunks of the session, or labels that the plan matched."""
        changes, plan = self.session.changes.chunks, self.planned.plan
        labels = {plan.array_path(dim) for dim in plan.dims}
        matched = {node.id for node in self.planned.base.nodes if str(node.path) in labels}
        return any(
            node_id in matched
            or (node_id in changes and bool(changes[node_id].touches(coords).any()))
            for node_id, coords in commit.log.updated_chunks.items()
        )


def _described(snapshot: Snapshot, prepared: PreparedWrite) -> dict[Any, Any]:
    """Return the state that a plan depends on: path, document and shape of the group's arrays."""
    return {
        node.id: (node.path, node.user_data, node.array.shape)
        for node in snapshot.children(prepared.group)
        if node.array is not None
    }


def plan_again(first: PlannedCommit, found: PlanIsOld) -> PlannedCommit | WriteResult:
    """Plan a write again on the newest snapshot, reusing the chunks stored for the first plan."""
    plan, manifests, base = first.plan, first.manifests, first.base
    rivals = Rivals(base=base, tip=found.tip, commits=found.theirs)
    if plan.options.mode == "overwrite":
        raise refused(
            plan,
            f"group {plan.group}, which this write replaces, was changed since it was planned",
            snapshots=rivals.ids,
        )
    options = replace(
        plan.options,
        group=str(plan.group),
        dims=plan.dims if plan.options.layout == "cells" else plan.options.dims,
        merge_schema=True,
    )
    if plan.options.layout != "cells":
        options = _with_their_shapes(options, plan, found.tip)
    prepared = prepare_again(plan, found.tip, options)
    if isinstance(prepared, WriteResult):
        return prepared
    if options.layout == "cells":
        values = {dim: table.column("value") for dim, table in plan.dimension_tables.items()}
        # Labels of the base keep their indices; labels of other writers may move.
        sizes = {dim: array_at(base, prepared.array_path(dim)) for dim in prepared.dims}
        stay = {
            dim: 0 if node is None or node.array is None else node.array.shape[0]
            for dim, node in sizes.items()
        }
        now = plan_write(prepared, values, plan.row_count, stay=stay)
        if now.moved and not now.disordered and can_move(now):
            # Inserting labels may fail if it leaves cells of a chunk without a row.
            with suppress(InvalidInputError):
                return adopt(
                    plan, _same_arrays(plan, now, set(manifests), rivals), manifests, rivals
                )
        if now.moved:
            now = plan_write(prepared, values, plan.row_count)
        check_order(now)
    else:
        now = plan_layout_write(prepared)
    return adopt(plan, _same_arrays(plan, now, set(manifests), rivals), manifests, rivals)


def check_order(plan: WritePlan) -> None:
    """Raise if new labels are out of order and too many chunks would move to insert them.

    Raises
    ------
    InvalidInputError
        The labels cannot be inserted.
    """
    if plan.disordered and (plan.options.replace_where or _inserted(plan) is None):
        raise _out_of_order(plan)


def insert_labels(first: PlannedCommit) -> PlannedCommit:
    """Insert new labels in order, moving chunks of the base and of the tasks.

    Raises
    ------
    InvalidInputError
        The labels cannot be inserted, or a moved chunk has cells without a value.
    """
    plan, rivals = first.plan, Rivals(base=first.base, tip=first.base, commits=())
    now = _inserted(plan)
    if now is None:
        raise _out_of_order(plan)
    manifests = disjoint_manifests(plan, first.manifests)
    return adopt(plan, _same_arrays(plan, now, set(manifests), rivals), manifests, rivals)


def _inserted(plan: WritePlan) -> WritePlan | None:
    values = {dim: table.column("value") for dim, table in plan.dimension_tables.items()}
    return _in_order(plan, values, plan.row_count)


def _in_order(
    prepared: PreparedWrite, values: dict[str, Any], row_count: int | None
) -> WritePlan | None:
    """Return the plan with all labels in order; None if none moves, or too many chunks do."""
    now = plan_write(prepared, values, row_count, stay=dict.fromkeys(prepared.dims, 0))
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


def _same_arrays(plan: WritePlan, now: WritePlan, written: set[str], rivals: Rivals) -> WritePlan:
    """Return the new plan with the arrays that tasks wrote; raise if one was changed."""
    changed = written | {path for path, _ in plan.resized}
    kept: dict[str, ArrayTarget] = {}
    for name, old in plan.arrays.items():
        if old.old_shape is not None and old.path not in changed:
            continue
        new = now.arrays.get(name)
        if new is None or (old.old_shape is not None and new.node_id != old.node_id):
            raise refused(
                plan,
                f"array {old.path} was deleted or replaced since this write was planned",
                snapshots=rivals.ids,
                variables=(name,),
            )
        if new.dims != old.dims or not _is_encoded_alike(old, new):
            raise refused(
                plan,
                f"array {old.path} was given another encoding or other dimensions since this "
                "write was planned",
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


def _is_encoded_alike(one: ArrayTarget, other: ArrayTarget) -> bool:
    # Attributes that do not affect the encoding of values may change during a write.
    documents = [one.metadata.raw, other.metadata.raw]
    types = [document["data_type"] for document in documents]
    decoding = [
        {key: (document.get("attributes") or {}).get(key) for key in (*CF_KEYS, "dtype")}
        for document in documents
    ]
    return types[0] == types[1] and decoding[0] == decoding[1]
