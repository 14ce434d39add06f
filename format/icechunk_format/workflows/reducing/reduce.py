"""Reduces arrays of a group along dimensions, in one commit or to values on the driver.

Long because the steps of a call share the plan, the record and the base of the commit.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath, group_path
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.groups.changing import (
    ArraysCommit,
    ArrayTarget,
    ChunkValues,
    Destination,
    WriteResult,
    check_planned_lengths,
    commit_arrays,
    open_destination,
    path_in,
    with_own_attributes,
)
from icechunk_format.options.location import access_of, location_of
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository import Repository
from icechunk_format.workflows.dry_run import check_access
from icechunk_format.workflows.mapping.edits import check_unedited
from icechunk_format.workflows.mapping.follow import why_other_results
from icechunk_format.workflows.mapping.record import (
    BEGINNING,
    RECORD_KEY,
    FollowRecord,
    check_free,
    last_record,
)
from icechunk_format.workflows.reducing.arrays import LastRun, Otherwise, ReducePlan, plan_arrays
from icechunk_format.workflows.reducing.follow import (
    changed_since,
    recorded,
)
from icechunk_format.workflows.reducing.grouping import (
    LabelArray,
    grouping_of,
)
from icechunk_format.workflows.reducing.outputs import (
    repr_of,
)
from icechunk_format.workflows.reducing.request import (
    ReducedArrays,
    ReduceRequest,
    ReduceResult,
    Source,
)
from icechunk_format.workflows.reducing.run import (
    ReduceReceipt,
    Reducing,
    reduce_tile,
)
from icechunk_format.workflows.relabelling import LabelGuard
from icechunk_format.workflows.running import in_process
from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata

Runner = Callable[[Reducing], Iterable[ReduceReceipt]]

#: The most bytes of a result that comes to the driver.
MOST_RESULT_BYTES: Final = 256 * 2**20


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
    cores
        Number of parallel tasks; None for one process.
    """
    destination: Destination | None = None
    base: Snapshot | None = None
    if request.target is not None:
        opened = open_destination(request.target, request.options, access_of(request.read))
        if isinstance(opened, WriteResult):
            return ReduceResult(arrays=(), commit=opened)
        destination, base = opened
    group = group_path(request.options.group)
    source = Source.of(request)
    record = _record(request, source, destination) if request.follow else None
    known = last_record(base, group) if request.follow else None
    plan = _planned(request, source, group, base, known, record, cores=cores)
    if request.target is None:
        _check_small(plan)
    elif not plan.is_unchanged:
        if plan.full_run is not None or record is None:
            check_free(base, group, request.target, request.options.mode, known)
        check_planned_lengths(base, group, _all_targets(plan, group))
    if not plan.is_unchanged:
        _, ranges = source.ranges(request)
        check_access(source.dataset.source, plan.outer_boxes(ranges), fetch=dry_run)
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
    plan: ReducePlan,
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
    replaced = last_record(base, group)
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
        deleted=deleted,
        check=None if base is None else guard.check,
        message=f"Reduce {', '.join(plan.arrays)} over {', '.join(request.over)}",
    )


def _record(
    request: ReduceRequest, source: Source, destination: Destination | None
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


def _planned(
    request: ReduceRequest,
    source: Source,
    group: NodePath,
    base: Snapshot | None,
    known: FollowRecord | None,
    record: FollowRecord | None,
    *,
    cores: int | None,
) -> ReducePlan:
    """Return the plan of what changed, or of everything."""
    if record is None:
        return plan_arrays(request, source, group, None, cores=cores)
    reason = "no earlier result exists"
    if known is not None and base is not None:
        try:
            last = _last(request, source, group, base, known, record)
            plan = plan_arrays(request, source, group, last, cores=cores)
        except Otherwise as otherwise:
            reason = str(otherwise)
        else:
            return replace(plan, is_unchanged=last.changed.is_empty)
    return replace(plan_arrays(request, source, group, None, cores=cores), full_run=reason)


def _last(
    request: ReduceRequest,
    source: Source,
    group: NodePath,
    base: Snapshot,
    known: FollowRecord,
    record: FollowRecord,
) -> LastRun:
    """Return the last run; raise Otherwise if its result cannot be used."""
    reason = why_other_results(known, record)
    assert request.target is not None
    if reason is None:
        reason = _check_unedited(Repository.open(request.target), base, group, known)
    if reason is not None:
        raise Otherwise(reason)
    names = [variable.name for variable in source.chosen]
    changed = changed_since(source.repository, known, source.dataset, names, source.others(request))
    if isinstance(changed, str):
        raise Otherwise(changed)
    has_selection = request.read.sel is not None or request.read.isel is not None
    if has_selection and not changed.is_empty:
        raise Otherwise("elements changed, and sel or isel selects a part")
    grouping = None
    if request.by is not None:
        old = [changed.old.variables[name] for name in names]
        before = Source(
            repository=source.repository, dataset=changed.old, wanted=source.wanted, chosen=old
        )
        grouping = grouping_of(changed.old, request.by, request.over, *before.ranges(request))
    return LastRun(base=base, group=group, record=known, changed=changed, grouping=grouping)


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


def _all_targets(plan: ReducePlan, group: NodePath) -> list[ArrayTarget]:
    labels = [_label_target(group, one) for one in plan.coordinates.values()]
    return [*plan.targets, *labels]


def _check_small(plan: ReducePlan) -> None:
    nbytes = _written_bytes(plan)
    if nbytes > MOST_RESULT_BYTES:
        raise InvalidInputError(
            f"the result has {nbytes:,} bytes, and at most {MOST_RESULT_BYTES:,} come to the"
            " driver with to=None: give a repository with to=, or reduce more dimensions",
            option="to",
            found=nbytes,
            allowed=MOST_RESULT_BYTES,
        )


def _written_bytes(plan: ReducePlan) -> int:
    return sum(
        math.prod(target.metadata.shape) * target.metadata.data_type.item_bytes
        for target in plan.targets
    )


def _collected(
    request: ReduceRequest, plan: ReducePlan, receipts: Iterable[ReduceReceipt]
) -> ReducedArrays:
    """Return the values of all tasks as arrays."""
    values: dict[str, NDArray[Any]] = {
        target.path: target.metadata.fill_array(target.metadata.shape) for target in plan.targets
    }
    for receipt in receipts:
        for path, lower, found in receipt.values:
            at = tuple(slice(low, low + n) for low, n in zip(lower, found.shape, strict=True))
            index: Any = (*at, ...)
            values[path][index] = found
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


def _result(plan: ReducePlan, commit: WriteResult | None) -> ReduceResult:
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
