"""Plans all arrays of a reduction: everything, or what changed since the last run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from icechunk_format.encoding.node_path import ROOT, NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import RegularAxis
from icechunk_format.grid.groups import edges_of
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import ArrayTarget
from icechunk_format.tables import Dataset
from icechunk_format.workflows.dry_run import ArrayBox
from icechunk_format.workflows.mapping.record import (
    FollowRecord,
    known_array,
)
from icechunk_format.workflows.rectangle import Ranges
from icechunk_format.workflows.reducing.follow import (
    Changed,
    part_name,
    touched_blocks,
)
from icechunk_format.workflows.reducing.grouping import (
    Grouping,
    LabelArray,
    grouping_of,
    stored_labels,
)
from icechunk_format.workflows.reducing.outputs import (
    Wanted,
    check_wanted,
    numbers_of,
    output_of,
    part_target,
    values_of_labels,
)
from icechunk_format.workflows.reducing.plan import Again, Planner
from icechunk_format.workflows.reducing.request import (
    ReduceRequest,
    Source,
)
from icechunk_format.workflows.reducing.run import (
    ArrayReduction,
)
from icechunk_format.workflows.reducing.statistics import Finish, Kind, parts_of
from icechunk_format.workflows.reducing.weights import factors_of, note_unweighted

# Larger coordinates are left out of the result.
_MOST_LABELS: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReducePlan:
    """The reductions, and the coordinates of the result."""

    dataset: Dataset
    arrays: Mapping[str, ArrayReduction]
    coordinates: Mapping[str, LabelArray]
    full_run: str | None = None
    is_unchanged: bool = False

    def outer_boxes(self, ranges: Ranges) -> Iterator[ArrayBox]:
        """Yield boxes of the first and of the last selected element of each array."""
        for array in self.arrays.values():
            dimensions = self.dataset.variables[array.name].dimensions
            bounds = [ranges.get(dim, (0, size)) for dim, size in dimensions]
            if all(low < high for low, high in bounds):
                lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
                yield array.source_path, lows, [low + 1 for low in lows]
                yield array.source_path, [high - 1 for high in highs], highs

    @property
    def targets(self) -> list[ArrayTarget]:
        """The arrays of statistics."""
        return [output.target for array in self.arrays.values() for output in array.outputs]

    @property
    def parts(self) -> dict[str, ArrayTarget]:
        """The arrays of parts, by name within the group."""
        return {
            part_name(name, part): target
            for name, array in self.arrays.items()
            for part, target in array.parts.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LastRun:
    """The last run of a followed reduction, and what changed since."""

    base: Snapshot
    group: NodePath
    record: FollowRecord
    changed: Changed
    grouping: Grouping | None


class Otherwise(Exception):
    """The reason why a result is computed as a whole."""


def plan_arrays(
    request: ReduceRequest,
    source: Source,
    group: NodePath,
    last: LastRun | None,
    *,
    cores: int | None,
) -> ReducePlan:
    """Return the plan of all arrays."""
    dataset, chosen = source.dataset, source.chosen
    dims = list(dict.fromkeys(dim for variable in chosen for dim in variable.dims))
    sizes, ranges = source.ranges(request)
    grouping = None
    if request.by is not None:
        grouping = grouping_of(dataset, request.by, request.over, sizes, ranges)
        if grouping.name in sizes and grouping.name != grouping.dim:
            raise InvalidInputError(
                f"by={request.by!r} makes the dimension {grouping.name!r}, which the variables"
                " have already",
                option="by",
                dimension=grouping.name,
            )
    kept = [dim for dim in dims if dim not in request.over]
    coordinates = _coordinates(dataset, chosen, kept, ranges)
    if grouping is not None:
        coordinates |= {one.name: one for one in grouping.labels}
    arrays = {
        variable.name: _array(
            request, dataset, variable, source.wanted[variable.name], grouping, ranges, group,
            list(coordinates), last, cores,
        )
        for variable in chosen
    }  # fmt: skip
    return ReducePlan(dataset=dataset, arrays=arrays, coordinates=coordinates)


def _coordinates(
    dataset: Dataset, chosen: Sequence[Variable], kept: Sequence[str], ranges: Ranges
) -> dict[str, LabelArray]:
    """Return the coordinates that have no reduced dimension, as stored."""
    data = {variable.name for variable in dataset.data_variables}
    names = {variable.name for variable in chosen}
    found = {}
    for variable in dataset.variables.values():
        is_kept = variable.name not in names | data and set(variable.dims) <= set(kept)
        if is_kept and math.prod(variable.shape) <= _MOST_LABELS:
            found[variable.name] = LabelArray(
                name=variable.name,
                dims=variable.dims,
                values=stored_labels(dataset, variable, ranges),
                attributes=dict(variable.attributes),
                fill_value=variable.metadata.fill_value,
            )
    return found


def _array(
    request: ReduceRequest,
    dataset: Dataset,
    variable: Variable,
    wanted: Sequence[Wanted],
    grouping: Grouping | None,
    ranges: Ranges,
    group: NodePath,
    names: Sequence[str],
    last: LastRun | None,
    cores: int | None,
) -> ArrayReduction:
    """Return the plan of one array."""
    over = [dim for dim in variable.dims if dim in request.over]
    if not over or (grouping is not None and grouping.dim not in over):
        lacking = grouping.dim if grouping is not None and over else ", ".join(request.over)
        raise InvalidInputError(
            f"variable {variable.name!r} of dimensions ({', '.join(variable.dims)}) has no"
            f" {lacking} to reduce: leave it out of statistics",
            option="over",
            variable=variable.name,
        )
    weighted = request.weights is not None
    check_wanted(
        variable, wanted, over, grouped=grouping is not None, weighted=weighted,
        skipna=request.skipna, ddof=request.ddof,
    )  # fmt: skip
    if not weighted and any(one.statistic == "mean" for one in wanted):
        note_unweighted(variable, dataset, over)
    bounds = [ranges.get(d, (0, n)) for d, n in variable.dimensions]
    origin, shape = [low for low, _ in bounds], [high - low for low, high in bounds]
    axis = variable.dims.index(over[0] if grouping is None else grouping.dim)
    codes = np.zeros(shape[axis], np.int64) if grouping is None else grouping.codes
    groups = 1 if grouping is None else grouping.size
    counts = np.bincount(codes[codes >= 0], minlength=groups)
    is_empty = np.asarray(counts == 0)
    values = numbers_of(variable)
    kind = Kind(
        dtype=values.dtype,
        axis=axis,
        others=tuple(n for n, dim in enumerate(variable.dims) if dim in over and n != axis),
        parts=parts_of((one.statistic for one in wanted), weighted=weighted),
        skipna=request.skipna is not False,
        is_weighted=weighted,
    )
    planner = Planner(
        name=variable.name,
        axes=variable.codecs.chunk_axes(variable.metadata.grid),
        origin=origin,
        shape=shape,
        codes=codes,
        groups=groups,
        kind=kind,
        item_bytes=max(variable.metadata.data_type.item_bytes, values.dtype.itemsize),
        whole=any(one.share is not None for one in wanted),
        memory=request.memory,
        cores=cores,
    )
    again = None if last is None else _again(request, variable, wanted, grouping, planner, last)
    tiles = planner.plan() if again is None else planner.plan_again(again)
    axes = tuple(
        n
        for n, dim in enumerate(variable.dims)
        if dim not in over or (grouping is not None and n == axis)
    )
    whole_shape = [groups if n == axis else size for n, size in enumerate(shape)]
    dims = [variable.dims[n] for n in axes]
    if grouping is not None:
        dims = [grouping.name if dim == grouping.dim else dim for dim in dims]
    labels = dataset.variables.get(over[0])
    labels = None if labels is None or labels.dims != (over[0],) else labels
    if labels is None and any(one.statistic.startswith("idx") for one in wanted):
        raise InvalidInputError(
            f"idxmin and idxmax are labels of {over[0]!r}, which has none in {dataset.label}; use"
            " argmin or argmax, which give positions",
            option="statistics",
            dimension=over[0],
        )
    outputs = tuple(
        output_of(
            variable,
            one,
            group=group,
            dims=dims,
            shape=[whole_shape[n] for n in axes],
            chunk_shape=[tiles.chunk_shape[n] for n in axes],
            weighted=weighted,
            has_empty=bool(is_empty.any()),
            keep_attrs=request.keep_attrs,
            names=names,
            labels=labels,
        )
        for one in wanted
    )
    parts = {}
    if request.follow:
        above = "" if group == ROOT else group
        parts = {
            part: part_target(kind, part, f"{above}/{part_name(variable.name, part)}", outputs[0])
            for part in kind.parts
        }
    if last is not None:
        outputs = tuple(
            replace(output, target=_existing(last, output.target.name, output.target))
            for output in outputs
        )
        parts = {
            part: _existing(last, part_name(variable.name, part), target)
            for part, target in parts.items()
        }
    finish = Finish(ddof=request.ddof, min_count=request.min_count, is_empty=is_empty)
    indexed = [output for output in outputs if output.statistic.startswith("idx")]
    if indexed:
        assert labels is not None
        missing = np.nan if indexed[0].missing is None else indexed[0].missing
        stored = values_of_labels(labels, stored_labels(dataset, labels, ranges))
        finish = replace(finish, labels=stored, missing_label=missing)
    return ArrayReduction(
        name=variable.name,
        source_path=variable.path,
        origin=tuple(origin),
        codes=codes,
        kind=kind,
        values=values,
        plan=tiles,
        axes=axes,
        outputs=outputs,
        finish=finish,
        factors=factors_of(dataset, variable, request.weights, ranges),
        parts=parts,
        is_merged=again is not None and again.start > 0,
    )


def _again(
    request: ReduceRequest,
    variable: Variable,
    wanted: Sequence[Wanted],
    grouping: Grouping | None,
    planner: Planner,
    last: LastRun,
) -> Again:
    """Return what is computed of a variable; raise Otherwise if that is everything."""
    before, axis = last.changed.old.variables[variable.name], planner.kind.axis
    size = before.shape[axis]
    if grouping is not None:
        old = last.grouping
        assert old is not None
        is_same = np.array_equal(old.codes, grouping.codes[:size]) and all(
            one.attributes == now.attributes
            and one.values.dtype == now.values.dtype
            and np.array_equal(one.values, now.values[: len(one.values)])
            for one, now in zip(old.labels, grouping.labels, strict=True)
        )
        if not is_same:
            raise Otherwise(f"the groups of {grouping.dim} changed")
    output = known_array(last.base, last.group, last.record, wanted[0].name)
    if output is None or output.metadata.grid.chunk_shape is None:
        raise Otherwise(f"{wanted[0].name} was deleted or replaced since the last run")
    chunks = list(output.metadata.grid.chunk_shape)
    chunk_shape = [
        chunks.pop(0) if n in planner.kept or (n == axis and grouping is not None) else 1
        for n in range(len(variable.shape))
    ]
    boxes = last.changed.boxes[variable.name]
    edges = [
        edges_of(RegularAxis(n, step)) if one in planner.kept else np.array([0, n], np.int64)
        for one, (n, step) in enumerate(zip(variable.shape, chunk_shape, strict=True))
    ]
    tiles, groups = touched_blocks(boxes, edges, axis, planner.codes, planner.kept)
    others = [n for one, n in enumerate(before.shape) if one != axis]
    is_longer = others == [n for one, n in enumerate(variable.shape) if one != axis]
    start = 0
    if last.changed.appended and is_longer and not planner.whole:
        start = size
        tiles, groups = np.arange(math.prod(len(own) - 1 for own in edges)), planner.codes[size:]
        groups = np.unique(groups[groups >= 0])
    return Again(
        chunk_shape=tuple(chunk_shape), tiles=tuple(tiles.tolist()), groups=groups, start=start
    )


def _existing(last: LastRun, name: str, target: ArrayTarget) -> ArrayTarget:
    """Return the array of the last run in place of a new one, if it would be the same."""
    found = known_array(last.base, last.group, last.record, name)
    if found is None:
        raise Otherwise(f"{name} was deleted or replaced since the last run")
    metadata = found.metadata.with_shape(target.metadata.shape)
    new, old = dict(target.metadata.raw), dict(metadata.raw)
    for key in ("data_type", "fill_value", "attributes"):
        # As strings, since NaN differs from itself.
        if json.dumps(new[key], sort_keys=True) != json.dumps(old[key], sort_keys=True):
            raise Otherwise(f"{name} would have another {key}")
    return ArrayTarget.of_existing(found, metadata)
