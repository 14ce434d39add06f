"""Reduces arrays of a group along dimensions, in one commit or to values on the driver.

Rules of this file
------------------
1. One snapshot is read. The result is a group of new arrays, with the coordinates that do not have
   a reduced dimension, and with labels of groups.
2. The argument ``run`` runs the tasks, in this process or on Spark's executors with a shuffle.
3. Results without a target come to the driver, so their size is limited.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.node_path import NodePath, parse_node_path
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icechunk_format.grid.axes import RegularAxis
from icechunk_format.grid.groups import edges_of
from icechunk_format.groups.dimension_sets import named_variables
from icechunk_format.groups.variable import Variable
from icechunk_format.names import check_names
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.tables import Dataset
from icechunk_format.tables.requested import dataset_at, requested_snapshot
from icechunk_format.tables.writing.commit_arrays import (
    ArraysCommit,
    check_planned_lengths,
    commit_arrays,
    with_own_attributes,
)
from icechunk_format.tables.writing.part import (
    ArrayTarget,
    Destination,
    joined_chunks,
    path_in,
)
from icechunk_format.tables.writing.prepare import open_destination
from icechunk_format.tables.writing.result import WriteResult
from icechunk_format.tables.writing.storing import ChunkValues
from icechunk_format.workflows.mapping.edits import check_unedited
from icechunk_format.workflows.mapping.follow import why_other_results
from icechunk_format.workflows.mapping.record import (
    BEGINNING,
    RECORD_KEY,
    FollowRecord,
    parse_record,
)
from icechunk_format.workflows.rectangle import Ranges, common_sizes, selected_ranges
from icechunk_format.workflows.reducing.follow import (
    Changed,
    changed_since,
    known_array,
    part_name,
    recorded,
    touched_blocks,
)
from icechunk_format.workflows.reducing.grouping import (
    By,
    Grouping,
    LabelArray,
    grouping_of,
    stored_labels,
)
from icechunk_format.workflows.reducing.outputs import (
    Names,
    Wanted,
    check_wanted,
    numbers_of,
    output_of,
    part_target,
    repr_of,
    values_of_labels,
    wanted_statistics,
)
from icechunk_format.workflows.reducing.plan import Again, Planner
from icechunk_format.workflows.reducing.run import (
    ArrayReduction,
    ReduceReceipt,
    Reducing,
    reduce_tile,
)
from icechunk_format.workflows.reducing.statistics import Finish, Kind, parts_of
from icechunk_format.workflows.reducing.weights import factors_of, note_unweighted
from icechunk_format.workflows.relabelling import LabelGuard
from icechunk_format.workflows.running import in_process
from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import parse_group_metadata

Runner = Callable[[Reducing], Iterable[ReduceReceipt]]

#: The most bytes of a result that comes to the driver.
MOST_RESULT_BYTES: Final = 256 * 2**20
# Larger coordinates are left out of the result.
_MOST_LABELS: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceRequest:
    """Arguments of a reduction, as in ``icechunk_spark.reduce``.

    Parameters
    ----------
    read
        The group, its snapshot, and the selected region.
    target, options
        The repository of the result, and how it is committed; None for values on the driver.
    """

    read: ReadRequest
    statistics: Mapping[str, Names] | Names
    over: tuple[str, ...]
    by: By | None = None
    weights: Any = None
    target: Location | None
    options: WriteOptions
    memory: int
    follow: bool = False
    skipna: bool | None = None
    min_count: int | None = None
    ddof: int = 0
    keep_attrs: bool = True


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceResult:
    """The result of a reduction, or of its dry run.

    Attributes
    ----------
    arrays
        Paths of the arrays of statistics.
    direct, shuffled
        Number of source arrays without and with a shuffle.
    tasks
        Number of tasks.
    decoded_bytes
        Decoded bytes of the source arrays.
    shuffled_bytes
        Maximum bytes of parts that Spark shuffles.
    written_bytes
        Decoded bytes of the result.
    requests
        Maximum number of chunks to read and write. Missing chunks are not read, and chunks of fill
        values are not written.
    buffer_bytes
        Maximum bytes of parts that a task holds.
    layout
        Dimensions, coordinates and variables of the result, as xarray shows them.
    full_run
        The reason why a run with ``follow`` read everything; None if it read only what changed.
    commit
        The result of the write; None for a dry run.
    """

    arrays: tuple[str, ...]
    direct: int
    shuffled: int
    tasks: int
    decoded_bytes: int
    shuffled_bytes: int
    written_bytes: int
    requests: int
    buffer_bytes: int
    layout: str = ""
    full_run: str | None = None
    commit: WriteResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReducedArrays:
    """A result on the driver: stored values and attributes of each variable."""

    variables: Mapping[str, LabelArray]
    """Variables by name, as stored."""
    coordinates: tuple[str, ...]
    """Names of the coordinates among them."""
    attributes: Mapping[str, Any]
    """Attributes of the group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """The reductions, and the coordinates of the result."""

    dataset: Dataset
    arrays: Mapping[str, ArrayReduction]
    coordinates: Mapping[str, LabelArray]
    full_run: str | None = None
    is_unchanged: bool = False

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
class _Last:
    """The last run of a followed reduction, and what changed since."""

    base: Snapshot
    group: NodePath
    record: FollowRecord
    changed: Changed
    grouping: Grouping | None


class _Otherwise(Exception):
    """The reason why a result is computed as a whole."""


def one_process(work: Reducing, progress: ProgressOption = None) -> Iterable[ReduceReceipt]:
    """Run the tasks one after another."""
    tasks = [(name, *read) for name, array in work.arrays.items() for read in array.plan.reads]
    running = in_process(lambda task: reduce_tile(work, task), tasks)
    return counted(running, progress, "Reducing", len(tasks))


def reduce_arrays(
    request: ReduceRequest, run: Runner, *, cores: int | None, dry_run: bool
) -> ReduceResult | ReducedArrays:
    """Reduce arrays, in one commit or to values.

    Parameters
    ----------
    run
        Runs all tasks, and returns the receipts.
    cores
        Number of parallel tasks; None for one process.

    Raises
    ------
    InvalidInputError
        An argument cannot be used, or the result is too large for the driver.
    AlreadyExistsError
        The target group already has arrays.
    ConflictError
        Other writers changed the same arrays; nothing was committed.
    """
    destination: Destination | None = None
    base: Snapshot | None = None
    if request.target is not None:
        opened = open_destination(request.target, request.options, access_of(request.read))
        if isinstance(opened, WriteResult):
            return _result(_Plan(dataset=None, arrays={}, coordinates={}), opened)  # type: ignore[arg-type]
        destination, base = opened
    group = parse_node_path(f"/{(request.options.group or '').strip('/')}")
    repository = Repository.open(location_of(request.read))
    source = _Source.of(request, repository)
    record = _record(request, source, destination) if request.follow else None
    known = _known(base, group) if request.follow else None
    plan = _planned(request, source, group, base, known, record, cores=cores)
    if request.target is None:
        _check_small(plan)
    elif not plan.is_unchanged:
        if plan.full_run is not None or record is None:
            _check_free(base, group, request, known)
        check_planned_lengths(base, group, _all_targets(plan, group))
    if dry_run:
        return _result(plan, None)
    if plan.is_unchanged:
        assert destination is not None
        reason = f"nothing of {request.read.path} changed"
        return _result(plan, WriteResult.skipped(request.options, destination.base, reason))
    work = Reducing(
        source=source.dataset.source,
        destination=destination,
        arrays=plan.arrays,
        memory=request.memory,
    )
    receipts = list(run(work))
    if destination is None:
        return _collected(request, plan, receipts)
    change = _change(request, plan, group, destination, base, known, record, receipts)
    files = [receipt.files for receipt in receipts if receipt.files is not None]
    return _result(plan, commit_arrays(change, files))


def _change(
    request: ReduceRequest,
    plan: _Plan,
    group: NodePath,
    destination: Destination,
    base: Snapshot | None,
    known: FollowRecord | None,
    record: FollowRecord | None,
    receipts: Sequence[ReduceReceipt],
) -> ArraysCommit:
    """Return the commit of a result."""
    labels = {name: _label_target(group, one) for name, one in plan.coordinates.items()}
    targets = {target.name: target for target in [*plan.targets, *labels.values()]}
    paths = [target.path for target in targets.values()]
    former = () if known is None else known.arrays.keys() - targets.keys() - plan.parts.keys()
    deleted = [path_in(group, name) for name in sorted(former)]
    own = {k: v for k, v in plan.dataset.attributes.items() if k != RECORD_KEY}
    attributes = with_own_attributes(
        base, str(group), own if request.keep_attrs else {}, [*paths, *deleted]
    )
    replaced = _known(base, group)
    if replaced is not None and replaced.arrays.keys() & targets.keys():
        attributes.pop(RECORD_KEY, None)
    if record is not None:
        arrays = recorded({**targets, **plan.parts})
        attributes[RECORD_KEY] = replace(record, arrays=arrays).to_json()
    guard = LabelGuard(destination=destination, group=group, paths={*paths, *deleted})
    return ArraysCommit(
        destination=destination,
        options=request.options,
        arrays=[*targets.values(), *plan.parts.values()],
        groups={str(group): attributes},
        values=[
            ChunkValues(metadata=labels[name].metadata, start=0, values=one.values)
            for name, one in plan.coordinates.items()
        ],
        cleared=joined_chunks(receipt.cleared for receipt in receipts),
        deleted=deleted,
        check=None if base is None else guard.check,
        message=f"Reduce {', '.join(plan.arrays)} over {', '.join(request.over)}",
    )


def _known(base: Snapshot | None, group: NodePath) -> FollowRecord | None:
    """Return the record of the last run."""
    node = None if base is None else base.node(group)
    if node is None or node.array is not None:
        return None
    attributes = parse_group_metadata(node.user_data, node_path=group).attributes
    return parse_record(attributes.get(RECORD_KEY))


def _record(
    request: ReduceRequest, source: _Source, destination: Destination | None
) -> FollowRecord:
    """Return the record of this run, without arrays."""
    if destination is None:
        raise InvalidInputError(
            "follow=True needs a result that is stored: give a repository with to=",
            option="follow",
        )
    weights = request.weights
    if weights is not None and not isinstance(weights, str):
        data = np.ascontiguousarray(weights.values).tobytes()
        weights = [*map(str, weights.dims), hashlib.blake2b(data, digest_size=16).hexdigest()]
    settings = {
        "statistics": {
            name: [[one.statistic, one.name] for one in own] for name, own in source.wanted.items()
        },
        "over": list(request.over),
        "by": repr(request.by),
        "weights": weights,
        "skipna": request.skipna,
        "min_count": request.min_count,
        "ddof": request.ddof,
        "keep_attrs": request.keep_attrs,
        "sel": None if request.read.sel is None else str(request.read.sel),
        "isel": None if request.read.isel is None else str(request.read.isel),
    }
    return FollowRecord(
        repository=str(location_of(request.read)),
        group=source.dataset.path,
        snapshot_id=str(source.dataset.snapshot_id),
        function="icechunk_spark.reduce",
        function_version=None,
        settings=json.loads(json.dumps(settings)),
        base=BEGINNING if destination.base is None else str(destination.base),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """The group that is reduced, and its variables."""

    repository: Repository
    dataset: Dataset
    wanted: Mapping[str, list[Wanted]]
    chosen: list[Variable]

    @classmethod
    def of(cls, request: ReduceRequest, repository: Repository) -> _Source:
        read = request.read
        dataset = dataset_at(read, repository, requested_snapshot(read, repository))
        wanted = wanted_statistics(request.statistics, _default_names(dataset, request))
        chosen = named_variables(list(wanted), dataset.variables, dataset.label)
        dims = list(dict.fromkeys(dim for variable in chosen for dim in variable.dims))
        check_names("over", "dimension", request.over, dims)
        if len(set(request.over)) < len(request.over) or not request.over:
            raise InvalidInputError(
                f"over has {', '.join(request.over) or 'no dimension'}; name each reduced dimension"
                " once",
                option="over",
            )
        return cls(repository=repository, dataset=dataset, wanted=wanted, chosen=chosen)

    def ranges(self, request: ReduceRequest) -> tuple[dict[str, int], Ranges]:
        """Return the lengths of selected dimensions, and the selected ranges."""
        sizes = common_sizes(self.chosen, self.dataset.label)
        read = request.read
        ranges = selected_ranges(self.dataset, sizes, sel=read.sel, isel=read.isel)
        return sizes | {dim: stop - start for dim, (start, stop) in ranges.items()}, ranges

    def others(self, request: ReduceRequest) -> list[str]:
        """Return the names of labels and weights."""
        dims = {dim for variable in self.chosen for dim in variable.dims}
        data = {variable.name for variable in self.dataset.data_variables}
        names = {variable.name for variable in self.chosen}
        return [
            one.name
            for one in self.dataset.variables.values()
            if one.name not in names
            and (one.name == request.weights or one.name not in data)
            and (not one.dims or dims & {*one.dims})
        ]


def _planned(
    request: ReduceRequest,
    source: _Source,
    group: NodePath,
    base: Snapshot | None,
    known: FollowRecord | None,
    record: FollowRecord | None,
    *,
    cores: int | None,
) -> _Plan:
    """Return the plan of what changed, or of everything."""
    if record is None:
        return _plan(request, source, group, None, cores=cores)
    reason = "no earlier result exists"
    if known is not None and base is not None:
        try:
            last = _last(request, source, group, base, known, record)
            plan = _plan(request, source, group, last, cores=cores)
        except _Otherwise as otherwise:
            reason = str(otherwise)
        else:
            return replace(plan, is_unchanged=last.changed.is_empty)
    return replace(_plan(request, source, group, None, cores=cores), full_run=reason)


def _last(
    request: ReduceRequest,
    source: _Source,
    group: NodePath,
    base: Snapshot,
    known: FollowRecord,
    record: FollowRecord,
) -> _Last:
    """Return the last run; raise _Otherwise if its result cannot be used."""
    reason = why_other_results(known, record)
    assert request.target is not None
    if reason is None:
        reason = _check_unedited(Repository.open(request.target), base, group, known)
    if reason is not None:
        raise _Otherwise(reason)
    names = [variable.name for variable in source.chosen]
    changed = changed_since(source.repository, known, source.dataset, names, source.others(request))
    if isinstance(changed, str):
        raise _Otherwise(changed)
    has_selection = request.read.sel is not None or request.read.isel is not None
    if has_selection and not changed.is_empty:
        raise _Otherwise("elements changed, and sel or isel selects a part")
    grouping = None
    if request.by is not None:
        old = [changed.old.variables[name] for name in names]
        before = _Source(
            repository=source.repository, dataset=changed.old, wanted=source.wanted, chosen=old
        )
        grouping = grouping_of(changed.old, request.by, request.over, *before.ranges(request))
    return _Last(base=base, group=group, record=known, changed=changed, grouping=grouping)


def _check_unedited(
    repository: Repository, base: Snapshot, group: NodePath, known: FollowRecord
) -> str | None:
    try:
        return check_unedited(repository, base, group, known)
    except ConflictError as error:
        raise ConflictError(
            f"{error.facts['path']} was changed by snapshot {error.facts['snapshot']} after the"
            " last run that follows its source; only what changed would be computed, which mixes"
            " both. Delete the array to compute everything again, or write the result to another"
            " group",
            path=error.facts["path"],
            snapshot=error.facts["snapshot"],
        ) from error


def _plan(
    request: ReduceRequest,
    source: _Source,
    group: NodePath,
    last: _Last | None,
    *,
    cores: int | None,
) -> _Plan:
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
    return _Plan(dataset=dataset, arrays=arrays, coordinates=coordinates)


def _default_names(dataset: Dataset, request: ReduceRequest) -> list[str]:
    """Return the names of variables if none are given: numbers with a reduced dimension."""
    if request.read.variables is not None:
        return list(request.read.variables)
    return [
        variable.name
        for variable in dataset.data_variables
        if set(request.over) & {*variable.dims} and variable.metadata.data_type.numpy.kind in "biuf"
    ]


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
    last: _Last | None,
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
        above = "" if group == "/" else group
        parts = {
            part: part_target(
                kind, part, path_in(group, part_name(variable.name, part)), outputs[0]
            )
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
    last: _Last,
) -> Again:
    """Return what is computed of a variable; raise _Otherwise if that is everything."""
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
            raise _Otherwise(f"the groups of {grouping.dim} changed")
    output = known_array(last.base, last.group, last.record, wanted[0].name)
    if output is None or output.metadata.grid.chunk_shape is None:
        raise _Otherwise(f"{wanted[0].name} was deleted or replaced since the last run")
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
    if last.changed.appended and is_longer and not planner.whole:
        tiles, groups = np.arange(math.prod(len(own) - 1 for own in edges)), planner.codes[size:]
        groups = np.unique(groups[groups >= 0])
        return Again(
            chunk_shape=tuple(chunk_shape), tiles=tuple(tiles.tolist()), groups=groups, start=size
        )
    return Again(chunk_shape=tuple(chunk_shape), tiles=tuple(tiles.tolist()), groups=groups)


def _existing(last: _Last, name: str, target: ArrayTarget) -> ArrayTarget:
    """Return the array of the last run in place of a new one, if it would be the same."""
    found = known_array(last.base, last.group, last.record, name)
    if found is None:
        raise _Otherwise(f"{name} was deleted or replaced since the last run")
    metadata = found.metadata.with_shape(target.metadata.shape)
    new, old = dict(target.metadata.raw), dict(metadata.raw)
    for key in ("data_type", "fill_value", "attributes"):
        # As strings, since NaN differs from itself.
        if json.dumps(new[key], sort_keys=True) != json.dumps(old[key], sort_keys=True):
            raise _Otherwise(f"{name} would have another {key}")
    return ArrayTarget.of_existing(found, metadata)


def _label_target(group: NodePath, label: LabelArray) -> ArrayTarget:
    """Return the array of a coordinate, in one chunk."""
    dtype = label.values.dtype
    metadata = build_array_metadata(
        shape=label.values.shape,
        data_type=parse_data_type("string") if dtype.hasobject else data_type_from_numpy(dtype),
        chunk_shape=[max(1, size) for size in label.values.shape],
        fill_value=label.fill_value,
        dimension_names=label.dims,
        attributes=label.attributes,
        node_path=path_in(group, label.name),
    )
    return ArrayTarget.of_new(metadata)


def _all_targets(plan: _Plan, group: NodePath) -> list[ArrayTarget]:
    labels = [_label_target(group, one) for one in plan.coordinates.values()]
    return [*plan.targets, *labels]


def _check_free(
    base: Snapshot | None, group: NodePath, request: ReduceRequest, known: FollowRecord | None
) -> None:
    """Raise AlreadyExistsError if the group has arrays that may not be replaced."""
    nodes = [] if base is None else [n for n in base.children(group) if n.array is not None]
    own = set() if known is None else {path_in(group, name) for name in known.arrays}
    taken = [node.path for node in nodes if node.path not in own]
    if taken and request.options.mode == "errorifexists":
        raise AlreadyExistsError(
            f"group {group} of {request.target} already has arrays ({', '.join(taken)}); choose"
            " another group, or mode='overwrite' to replace arrays with the same names",
            kind="arrays",
            group=str(group),
        )


def _check_small(plan: _Plan) -> None:
    nbytes = _written_bytes(plan)
    if nbytes > MOST_RESULT_BYTES:
        raise InvalidInputError(
            f"the result has {nbytes:,} bytes, and at most {MOST_RESULT_BYTES:,} come to the"
            " driver with to=None: give a repository with to=, or reduce more dimensions",
            option="to",
            found=nbytes,
            allowed=MOST_RESULT_BYTES,
        )


def _written_bytes(plan: _Plan) -> int:
    return sum(
        math.prod(target.metadata.shape) * target.metadata.data_type.item_bytes
        for target in plan.targets
    )


def _collected(
    request: ReduceRequest, plan: _Plan, receipts: Iterable[ReduceReceipt]
) -> ReducedArrays:
    """Return the values of all tasks as arrays."""
    values: dict[str, NDArray[Any]] = {
        target.path: target.metadata.fill_array(target.metadata.shape) for target in plan.targets
    }
    for receipt in receipts:
        for path, lower, found in receipt.values:
            at = tuple(slice(low, low + n) for low, n in zip(lower, found.shape, strict=True))
            values[path][(*at, ...)] = found
    variables = dict(plan.coordinates)
    for target in plan.targets:
        variables[target.name] = LabelArray(
            name=target.name,
            dims=target.dims,
            values=values[target.path],
            attributes=target.metadata.attributes,
        )
    return ReducedArrays(
        variables=variables,
        coordinates=tuple(plan.coordinates),
        attributes=plan.dataset.attributes if request.keep_attrs else {},
    )


def _result(plan: _Plan, commit: WriteResult | None) -> ReduceResult:
    plans = [array.plan for array in plan.arrays.values()]
    outputs = [output for array in plan.arrays.values() for output in array.outputs]
    sizes: dict[str, int] = {}
    for target in plan.targets:
        sizes |= dict(zip(target.dims, target.metadata.shape, strict=True))
    shuffled = [one for one in plans if one.kind == "shuffled"]
    written = sum(math.prod(target.metadata.grid.num_chunks) for target in plan.targets)
    return ReduceResult(
        arrays=tuple(target.path for target in plan.targets),
        direct=len(plans) - len(shuffled),
        shuffled=len(shuffled),
        tasks=sum(one.tasks for one in plans),
        decoded_bytes=sum(one.decoded_bytes for one in plans),
        shuffled_bytes=sum(one.piece_bytes for one in plans),
        written_bytes=_written_bytes(plan),
        requests=sum(one.source_chunks for one in plans) + written,
        buffer_bytes=max((one.state_bytes for one in plans), default=0),
        layout=repr_of(sizes, plan.coordinates.values(), outputs) if outputs else "",
        full_run=plan.full_run,
        commit=commit,
    )
