"""Rechunks arrays of a group, in place or into another repository or group, in one commit.

Rules of this file
------------------
1. One snapshot is read. If arrays are replaced in place, it is the base of the commit: a concurrent
   change of the same arrays is a conflict, and nothing is committed. If other writers only
   appended, the whole job is planned and run again on top of their commit.
2. The argument ``run`` runs the tasks, in this process or on Spark's executors with a shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.encoding.node_path import NodePath, group_path
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_format.groups import Variable, named_variables
from icechunk_format.groups.changing import (
    ArraysCommit,
    ArrayTarget,
    TaskReceipt,
    WriteResult,
    check_planned_lengths,
    commit_arrays,
    open_destination,
    path_in,
    with_own_attributes,
)
from icechunk_format.names import check_names
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.progress import ProgressOption, counted
from icechunk_format.repository import Repository
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.storage.location import Location
from icechunk_format.tables import Dataset, dataset_at, requested_snapshot
from icechunk_format.workflows.changes.rechunked import SAME_VALUES, mark
from icechunk_format.workflows.dry_run import ArrayBox, PlannedGroup, check_access
from icechunk_format.workflows.rechunking.beside import is_append
from icechunk_format.workflows.rechunking.documents import (
    Sizes,
    is_lossless,
    rechunked_document,
)
from icechunk_format.workflows.rechunking.plan import ArrayPlan, plan_array
from icechunk_format.workflows.rechunking.run import Rechunking, copy_group
from icechunk_format.workflows.rectangle import Ranges, common_sizes, selected_ranges
from icechunk_format.workflows.running import in_process

Runner = Callable[[Rechunking], Iterable[TaskReceipt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RechunkRequest:
    """Arguments of a rechunking, as in ``icechunk_spark.rechunk``."""

    read: ReadRequest
    """The group, its snapshot, and the variables to rechunk."""
    target: Location
    options: WriteOptions
    chunks: Sizes
    shards: Mapping[str, int] | None
    encoding: Mapping[str, Mapping[str, Any]]
    memory: int


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class RechunkResult:
    """The result of a rechunking, or of its dry run.

    Attributes
    ----------
    arrays
        Paths of the new arrays.
    direct, shuffled
        Number of arrays without and with a shuffle.
    tasks
        Number of tasks.
    decoded_bytes
        Decoded bytes of all arrays.
    shuffled_bytes
        Maximum number of bytes that Spark shuffles.
    pieces
        Maximum number of pieces of read chunks that Spark shuffles.
    requests
        Maximum number of chunks to read and write; in one process, a chunk that several groups need
        counts for each of them. Missing chunks are not read, and chunks of fill values are not
        written.
    buffer_bytes
        Maximum bytes of values that a task holds.
    rounds
        Maximum number of shuffles of an array: 0, 1, or 2 with intermediate groups.
    target
        With ``dry_run``, the group as it would be written: shapes, data types and chunks.
    commit
        The result of the write; None for a dry run.
    """

    arrays: tuple[str, ...]
    direct: int
    shuffled: int
    tasks: int
    decoded_bytes: int
    shuffled_bytes: int
    pieces: int
    requests: int
    buffer_bytes: int
    rounds: int = 0
    target: PlannedGroup | None = None
    commit: WriteResult | None = None


def one_process(work: Rechunking, progress: ProgressOption = None) -> Iterable[TaskReceipt]:
    """Run the tasks one after another."""
    tasks = [(path, n) for path, plan in work.arrays.items() for n in range(len(plan.groups))]
    running = in_process(lambda task: copy_group(work, task), tasks)
    return counted(running, progress, "Rechunking", len(tasks))


def rechunk_arrays(
    request: RechunkRequest, run: Runner, *, cores: int | None, dry_run: bool
) -> RechunkResult:
    """Rechunk arrays, in one commit.

    Parameters
    ----------
    cores
        Number of parallel tasks; None for one process.
    """
    return until_won(
        lambda _: _rechunk_once(request, run, cores=cores, dry_run=dry_run),
        request.target,
        branch=request.options.branch,
    )


def _is_beside_append(request: RechunkRequest, dataset: Dataset, names: list[str]) -> bool:
    """Return True if other writers only appended to the arrays since they were read."""
    repository = Repository.open(location_of(request.read))
    try:
        tip = repository.resolve(branch=request.options.branch)
        now = dataset_at(request.read, repository, tip)
    except NotFoundError:
        return False
    return is_append(repository, dataset, now, names)


def _rechunk_once(
    request: RechunkRequest, run: Runner, *, cores: int | None, dry_run: bool
) -> RechunkResult | RaceLost:
    """Plan, run and commit on the current state of the repository."""
    read, location = request.read, location_of(request.read)
    place = request.target
    opened = open_destination(place, request.options, access_of(read))
    if isinstance(opened, WriteResult):
        return _result([], opened)
    destination, base = opened
    repository = Repository.open(location)
    in_place = place.url == location.url
    is_tip = not (read.tag or read.snapshot or read.as_of)
    if in_place and is_tip and read.branch in (None, request.options.branch):
        assert destination.base is not None, "the repository exists"
        snapshot_id = destination.base
    else:
        snapshot_id = requested_snapshot(read, repository)
    dataset = dataset_at(read, repository, snapshot_id)
    wanted = request.options.group
    group = group_path(dataset.path if wanted is None else wanted)
    replaces = in_place and str(group) == dataset.path
    chosen = _chosen(dataset, request, replaces=replaces)
    ranges = _ranges(dataset, chosen, request, replaces=replaces)
    existing = set() if base is None else {n.path for n in base.children(group)}
    plans: dict[str, ArrayPlan] = {}
    for variable in chosen:
        path = path_in(NodePath(group), variable.name)
        if path in existing and not replaces:
            raise AlreadyExistsError(
                f"an array already exists at {path} of {place}; choose another group, or delete it",
                kind="array",
                path=path,
            )
        shape = tuple(
            ranges[dim][1] - ranges[dim][0] if dim in ranges else size
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        )
        target = _target(variable, shape, request, path)
        if replaces and target.metadata.raw == variable.metadata.raw:
            continue
        origin = [ranges.get(dim, (0, 0))[0] for dim in variable.dims]
        plans[path] = plan_array(
            variable, target, memory=request.memory, cores=cores, origin=origin
        )
    check_planned_lengths(base, group, [plan.target for plan in plans.values()])
    check_access(dataset.source, chain.from_iterable(map(_ends, plans.values())), fetch=dry_run)
    if dry_run:
        planned = PlannedGroup(
            location=place,
            path=str(group),
            arrays={plan.target.name: plan.target.metadata for plan in plans.values()},
            attributes=dataset.attributes,
        )
        return replace(_result(list(plans.values()), None), target=planned)
    if not plans:
        reason = "all arrays have these chunks"
        return _result([], WriteResult.skipped(request.options, destination.base, reason))
    work = Rechunking(
        source=dataset.source, destination=destination, arrays=plans, memory=request.memory
    )
    attributes = with_own_attributes(base, group, dataset.attributes, plans)
    is_exact = all(is_lossless(plan.target.metadata.raw["codecs"]) for plan in plans.values())
    keeps_values = replaces and snapshot_id == destination.base and is_exact
    change = ArraysCommit(
        destination=destination,
        options=request.options,
        arrays=[plan.target for plan in plans.values()],
        groups={str(group): None if replaces else attributes},
        metadata={SAME_VALUES: mark(plan.target.node_id for plan in plans.values())}
        if keeps_values
        else {},
        message=f"Rechunk {', '.join(plan.target.name for plan in plans.values())}",
    )
    receipts = run(work)
    try:
        done = commit_arrays(change, receipts)
    except ConflictError as error:
        # With another target, appends to the source do not conflict.
        is_race = replaces and snapshot_id == destination.base
        is_race &= request.options.on_conflict == "rebase"
        names = [plan.target.name for plan in plans.values()]
        if not (is_race and _is_beside_append(request, dataset, names)):
            raise
        return RaceLost(error=error)
    return _result(list(plans.values()), done)


def _ends(plan: ArrayPlan) -> Iterator[ArrayBox]:
    """Yield the boxes of the source for the first, the middle and the last group of the target."""
    count = len(plan.groups)
    for number in sorted({0, count // 2, count - 1}) if count else ():
        lower, upper = (np.add(edge, plan.origin).tolist() for edge in plan.groups.box(number))
        yield plan.source_path, lower, upper


def _chosen(dataset: Dataset, request: RechunkRequest, *, replaces: bool) -> list[Variable]:
    """Return the arrays to rechunk."""
    arrays = list(dataset.variables.values())
    dims = sorted({dim for variable in arrays for dim in variable.dims})
    chunks = {} if request.chunks == "auto" else request.chunks
    check_names("chunks", "dimension", chunks, dims)
    check_names("shards", "dimension", request.shards or (), dims)
    check_names("encoding", "variable", request.encoding, sorted(dataset.variables))
    if request.read.variables is not None:
        named_variables(request.read.variables, dataset.variables, dataset.label)
        wanted = {*request.read.variables} | (
            set() if replaces else {v.name for v in arrays if v.dims == (v.name,)}
        )
        return [variable for variable in arrays if variable.name in wanted]
    if not replaces or request.chunks == "auto":
        return arrays
    sizes = {*chunks, *(request.shards or ())}
    return [v for v in arrays if sizes & {*v.dims} or v.name in request.encoding]


def _ranges(
    dataset: Dataset, chosen: Sequence[Variable], request: RechunkRequest, *, replaces: bool
) -> Ranges:
    """Return the selected range of each dimension."""
    sel, isel = request.read.sel, request.read.isel
    if sel is None and isel is None:
        return {}
    if replaces:
        raise InvalidInputError(
            "sel and isel would cut the arrays in place and drop what is not selected; give to= or"
            " to_group= for the selected part",
            option="isel" if sel is None else "sel",
        )
    return selected_ranges(dataset, common_sizes(chosen, dataset.label), sel=sel, isel=isel)


def _target(
    variable: Variable, shape: tuple[int, ...], request: RechunkRequest, path: str
) -> ArrayTarget:
    encoding = request.encoding.get(variable.name, {})
    if others := set(encoding) - {"codecs"}:
        raise InvalidInputError(
            f"encoding of {variable.name!r} has {', '.join(sorted(others))}; only codecs can be"
            " set, since stored values do not change",
            option="encoding",
            variable=variable.name,
        )
    is_label = variable.dims == (variable.name,)
    chunks: Sizes = {variable.name: -1} if is_label else request.chunks
    metadata = rechunked_document(
        variable, shape, chunks, None if is_label else request.shards, encoding.get("codecs"), path
    )
    return ArrayTarget.of_new(metadata)


def _result(plans: list[ArrayPlan], commit: WriteResult | None) -> RechunkResult:
    shuffled = [plan for plan in plans if plan.kind == "shuffled"]
    return RechunkResult(
        arrays=tuple(plan.target.path for plan in plans),
        direct=len(plans) - len(shuffled),
        shuffled=len(shuffled),
        tasks=sum(plan.tasks for plan in plans),
        decoded_bytes=sum(plan.decoded_bytes for plan in plans),
        shuffled_bytes=sum(plan.decoded_bytes * plan.rounds for plan in shuffled),
        rounds=max((plan.rounds for plan in plans), default=0),
        pieces=sum(plan.pieces for plan in shuffled),
        requests=sum(plan.source_chunks + plan.target_chunks for plan in plans),
        buffer_bytes=max((plan.buffer_bytes for plan in plans), default=0),
        commit=commit,
    )
