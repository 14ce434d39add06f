"""Finds the blocks of a followed source that changed since the last run.

Rules of this file
------------------
1. Changes are read from transaction logs, so whole chunks count as changed. Rewritten arrays that
   lack a dimension, such as coordinates, are compared by value, since an append with xarray
   rewrites all of them.
2. A block counts as changed if any element that it reads, including overlap, or the attributes of
   an array may have changed. Attributes of the group are ignored.
3. Of further sources, a block reads the elements that match its labels. It also counts as changed
   if its labels match other elements than in the last run.
4. If the changes cannot be determined, all blocks count as changed, and the reason is reported.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import Variable, runs_of
from icechunk_format.groups.changing import ArrayTarget, path_in
from icechunk_format.options.location import location_of
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Dataset
from icechunk_format.workflows.changes import changes_since_run
from icechunk_format.workflows.changes.axis_changes import slabs
from icechunk_format.workflows.mapping.blocks import BlockGrid
from icechunk_format.workflows.mapping.others import OpenedOther, OtherSource, moved_elements
from icechunk_format.workflows.mapping.outputs import OutputArray, shortened
from icechunk_format.workflows.mapping.record import FollowRecord, known_array
from icechunk_format.zarr.fill_values import differs

# Arrays with more elements are not compared by value.
_MOST_ELEMENTS: Final = 1 << 23


def changed_blocks(
    repository: RepositoryReader,
    record: FollowRecord,
    new: Dataset,
    grid: BlockGrid,
    arrays: Mapping[str, OutputArray],
    others: Sequence[OpenedOther] = (),
) -> NDArray[np.int64] | str:
    """Return the numbers of blocks that may have changed, or a reason to compute all."""
    found = _changes_of(repository, record.snapshot_id, record.group, new, grid.paths, grid.sizes)
    if isinstance(found, str):
        return found
    mask = np.zeros(grid.groups.counts, dtype=bool)
    for dims, box in found.boxes:
        _mark(mask, grid, dims, box)
    for other, last in zip(others, record.others, strict=True):
        own = other.own
        dims_of = {*own.positions, *own.ranges}
        changes = _changes_of(
            other.repository, last["snapshot_id"], last["group"], other.dataset, own.paths, dims_of
        )
        if isinstance(changes, str):
            return f"others: {own.name!r}: {changes}"
        for dims, box in changes.boxes:
            _mark_other(mask, grid, own, dims, box)
        if changes.old is not None:
            moved = moved_elements(other, new, changes.old, grid.selected)
            for dim, elements in moved.items():
                _mark_blocks(mask, grid, {dim: _blocks_of(grid, dim, elements)})
    for output in arrays.values():
        # Elements that existed in the last run but were not selected.
        for dim, was in zip(output.target.dims, output.target.old_shape or (), strict=True):
            begin = was * output.factors.get(dim, 0) + grid.origin.get(dim, 0)
            end = grid.sizes.get(dim, 0) + grid.origin.get(dim, 0)
            if dim in output.factors and begin < end:
                _mark(mask, grid, (dim,), np.array([[begin, end]]))
    if record.failed is None:
        return "many blocks failed in the last run"
    for at in record.failed:
        if len(at) == mask.ndim and all(0 <= i < n for i, n in zip(at, mask.shape, strict=True)):
            mask[tuple(at)] = True
    return np.flatnonzero(mask)


class _Changes(NamedTuple):
    """Boxes of changed elements of a source, with their dimensions.

    `old` is the group at the snapshot of the last run; None if it is the same snapshot.
    """

    boxes: list[tuple[tuple[str, ...], Boxes]]
    old: Dataset | None


def _changes_of(
    repository: RepositoryReader,
    snapshot_id: str,
    group: str,
    new: Dataset,
    names: Iterable[str],
    dims: Iterable[str],
) -> _Changes | str:
    """Return the changes of a source since a snapshot, or a reason to compute all blocks."""
    if str(new.snapshot_id) == snapshot_id:
        return _Changes([], None)
    found = changes_since_run(repository, snapshot_id, group, new, list(names))
    if isinstance(found, str):
        return found
    changed = []
    for name, boxes in found.boxes.items():
        now = new.variables[name]
        if len(boxes) and _is_compared(now, set(dims)):
            boxes = _different(new, found.old, name)
        changed += [(now.dims, box) for box in boxes]
    return _Changes(changed, found.old)


def existing_arrays(
    record: FollowRecord, snapshot: Snapshot, group: NodePath, grid: BlockGrid
) -> dict[str, OutputArray] | str:
    """Return the arrays of the last run with their new shapes, or a reason not to reuse them."""
    found = {}
    for name, output in record.arrays.items():
        path, factors = path_in(group, name), output["factors"]
        variable = known_array(snapshot, group, record, name)
        if variable is None:
            return f"{path} was deleted or replaced since the last run"
        if not factors.keys() <= set(variable.dims) or not factors.keys() <= grid.sizes.keys():
            return f"{path} has other dimensions than after the last run"
        shape = [
            shortened(grid, name, dim, factors[dim]) if dim in factors else size
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        ]
        if any(now < was for now, was in zip(shape, variable.shape, strict=True)):
            return f"{path} would become shorter"
        target = ArrayTarget.of_existing(variable, variable.metadata.with_shape(shape))
        one = OutputArray(target=target, factors=factors, once=tuple(output["once"]))
        # Records of earlier releases have no such key.
        is_alike = one.needs_source and grid.dims.get(name) == variable.dims
        found[name] = replace(one, passed=output.get("passed", is_alike))
    return found


def why_other_results(known: FollowRecord, now: FollowRecord) -> str | None:
    """Return the reason why results differ from those of the last run, or None."""
    for what in ("repository", "group", "function", "function_version"):
        was, given = getattr(known, what), getattr(now, what)
        if was != given:
            return f"{what} was {was!r} and is {given!r}"
    names, former = ([one["name"] for one in record.others] for record in (now, known))
    if names != former:
        return f"others had the names {former} and have {names}"
    for one, before in zip(now.others, known.others, strict=True):
        for what in ("repository", "group", "settings"):
            if one[what] != before[what]:
                return f"{what} of {one['name']!r} was {before[what]!r} and is {one[what]!r}"
    for what in sorted({*known.settings, *now.settings}):
        was, given = known.settings.get(what), now.settings.get(what)
        if was != given:
            return f"{what} was {was!r} and is {given!r}"
    return None


def settings_of(grid: BlockGrid, **given: Any) -> dict[str, Any]:
    """Return all settings that affect the results, as JSON values."""
    settings = {
        # With the lengths of undivided dimensions, along which a result may have any length.
        "blocks": {d: s if grid.is_split(d) else [grid.sizes[d]] for d, s in grid.steps.items()},
        "dims": list(grid.sizes),
        "overlap": {dim: number for dim, number in grid.overlap.items() if number},
        "periodic": sorted(grid.cycles),
        "variables": sorted(grid.paths),
        # Records of earlier releases have no such keys.
        **({"origin": dict(grid.origin)} if grid.origin else {}),
        **grid.selection,
        **given,
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _is_compared(variable: Variable, dims: set[str]) -> bool:
    """Return True if an array lacks one of the dimensions, like coordinates and masks."""
    is_part = set(variable.dims) < dims or len(variable.dims) < 2
    return is_part and float(np.prod(variable.shape, dtype=float)) <= _MOST_ELEMENTS


def _different(new: Dataset, old: Dataset, name: str) -> Boxes:
    """Return boxes of the elements of an array that are new or differ in value."""
    sizes, former = new.variables[name].shape, old.variables[name].shape
    beyond = [
        np.array([(was, size)] if was < size else [], dtype=np.int64).reshape(-1, 2)
        for was, size in zip(former, sizes, strict=True)
    ]
    now = new.read(name, [0] * len(sizes), former)
    was = old.read(name)
    mask = differs(now, was)
    if mask.ndim == 1:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
        boxes = edges.reshape(-1, 1, 2).astype(np.int64)
    elif mask.any():
        at = np.argwhere(mask)
        boxes = np.stack([at.min(axis=0), at.max(axis=0) + 1], axis=-1)[None].astype(np.int64)
    else:
        boxes = np.empty((0, mask.ndim, 2), dtype=np.int64)
    return np.concatenate([boxes, slabs(beyond, sizes)])


def _mark(mask: NDArray[np.bool_], grid: BlockGrid, dims: Sequence[str], box: Boxes) -> None:
    """Mark the blocks that read any element of a box of an array."""
    ranges = [
        grid.near(dim, *(int(n) - grid.origin.get(dim, 0) for n in box[dims.index(dim)]))
        if dim in dims
        else [slice(None)]
        for dim in grid.sizes
    ]
    for at in itertools.product(*ranges):
        mask[at] = True


def _mark_other(
    mask: NDArray[np.bool_], grid: BlockGrid, own: OtherSource, dims: Sequence[str], box: Boxes
) -> None:
    """Mark the blocks that read any element of a box of an array of a further source."""
    blocks = {}
    for dim, (low, high) in zip(dims, box.tolist(), strict=True):
        if dim in own.positions:
            at = np.asarray(own.positions[dim])
            blocks[dim] = _blocks_of(grid, dim, (at >= low) & (at < high))
        elif low >= own.ranges[dim][1] or high <= own.ranges[dim][0]:
            return  # not selected
    _mark_blocks(mask, grid, blocks)


def _blocks_of(grid: BlockGrid, dim: str, elements: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the blocks along a dimension that read some elements."""
    found = np.zeros(-(-grid.sizes[dim] // grid.steps[dim]), dtype=bool)
    for low, high in runs_of(np.flatnonzero(elements)).tolist():
        for blocks in grid.near(dim, low, high):
            found[blocks] = True
    return found


def _mark_blocks(
    mask: NDArray[np.bool_], grid: BlockGrid, blocks: Mapping[str, NDArray[np.bool_]]
) -> None:
    """Mark the product of blocks along some dimensions."""
    counts = zip(grid.sizes, mask.shape, strict=True)
    mask[np.ix_(*(blocks.get(dim, np.ones(count, np.bool_)) for dim, count in counts))] = True


def recorded(arrays: Mapping[str, OutputArray]) -> dict[str, dict[str, Any]]:
    """Return the entries of arrays in a record."""
    return {
        name: {
            "node": str(output.target.node_id),
            "factors": dict(output.factors),
            "once": list(output.once),
            "passed": output.passed,
        }
        for name, output in arrays.items()
    }


def recorded_other(other: OpenedOther) -> dict[str, Any]:
    """Return the entry of a further source in a record."""
    own, request = other.own, other.request
    settings = {
        "variables": sorted(own.paths),
        "ranges": {dim: list(ends) for dim, ends in own.ranges.items()},
        **request.settings(),
    }
    return {
        "name": own.name,
        "repository": str(location_of(request.read)),
        "group": other.dataset.path,
        "snapshot_id": str(other.dataset.snapshot_id),
        "settings": json.loads(json.dumps(settings, default=str)),
    }
