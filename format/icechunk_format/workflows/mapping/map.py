"""Maps a function over blocks: plans, runs, and commits the resulting arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from icechunk_format.display import shown_by
from icechunk_format.encoding.node_path import NodePath, group_path
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import (
    ArraysCommit,
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
from icechunk_format.repository import Repository, RepositoryReader
from icechunk_format.storage.location import Location
from icechunk_format.tables import Dataset, open_requested
from icechunk_format.workflows.dry_run import PlannedGroup, check_access
from icechunk_format.workflows.mapping.agreement import (
    Disagreement,
    FirstValues,
    check_agreement,
)
from icechunk_format.workflows.mapping.blocks import BlockGrid, cut_into_blocks
from icechunk_format.workflows.mapping.edits import check_unedited
from icechunk_format.workflows.mapping.first_block import BlockFunction, first_layouts
from icechunk_format.workflows.mapping.follow import (
    changed_blocks,
    existing_arrays,
    recorded,
    recorded_other,
    settings_of,
    why_other_results,
)
from icechunk_format.workflows.mapping.others import OpenedOther, OtherRequest, open_other
from icechunk_format.workflows.mapping.outputs import Layout, OutputArray, output_array
from icechunk_format.workflows.mapping.record import (
    BEGINNING,
    MOST_FAILED,
    RECORD_KEY,
    FollowRecord,
    check_free,
    last_record,
)
from icechunk_format.workflows.mapping.skipping import check_skips, once_more
from icechunk_format.workflows.mapping.tasks import (
    BlockMapping,
    BlockTask,
    explain,
    map_blocks,
)
from icechunk_format.workflows.relabelling import LabelGuard
from icechunk_format.workflows.running import Run
from icechunk_format.zarr.zarr_json import parse_group_metadata

_TASK_BYTES: Final = 64 * 2**20
# The same for tasks that return rows, of which the JVM holds several copies.
_ROWS_TASK_BYTES: Final = 16 * 2**20
# Tasks for each core, so that all cores stay busy until the end.
_TASKS_OF_A_CORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRequest:
    """The sources of a mapping, with arguments of ``icechunk_spark.map_blocks``."""

    read: ReadRequest
    blocks: Mapping[str, int] | None
    overlap: Mapping[str, int] | None
    periodic: Sequence[str] = ()
    others: Sequence[OtherRequest] = ()

    def grid(self) -> BlockGrid:
        """Return the blocks of the group at the pinned snapshots."""
        return self.opened().grid

    def opened(self) -> OpenedBlocks:
        """Open all sources, each at one snapshot, and divide the first one into blocks."""
        repository, dataset = open_requested(self.read)
        grid = cut_into_blocks(
            dataset, self.read, self.blocks or {}, self.overlap or {}, self.periodic
        )
        if len(grid):
            check_access(grid.source, grid.outer_boxes(), fetch=False)
        others = [open_other(other, dataset, grid.selected) for other in self.others]
        grid = replace(grid, others=tuple(other.own for other in others))
        return OpenedBlocks(repository, dataset, grid, others)


class OpenedBlocks(NamedTuple):
    """The repository, the group and its blocks, and the further sources."""

    repository: RepositoryReader
    dataset: Dataset
    grid: BlockGrid
    others: list[OpenedOther]

    def tasks(
        self, numbers: Sequence[int], cores: int, *, returns_rows: bool = False
    ) -> list[Sequence[int]]:
        """Divide blocks into tasks: several small ones each, since each task has overhead."""
        grid = self.grid
        most_bytes = _ROWS_TASK_BYTES if returns_rows else _TASK_BYTES
        nbytes = sum(other.bytes_of_block(grid.steps) for other in grid.others)
        for name, dims in grid.dims.items():
            item = self.dataset.variables[name].metadata.data_type.item_bytes
            nbytes += item * math.prod(grid.steps[dim] for dim in dims)
        most = min(most_bytes // max(1, nbytes), len(numbers) // (_TASKS_OF_A_CORE * cores))
        starts = range(0, len(numbers), max(1, most))
        return [numbers[first : first + max(1, most)] for first in starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest:
    """A mapping and its target, with arguments of ``icechunk_spark.map_blocks``.

    Parameters
    ----------
    template
        Layouts of the whole result, and attributes of the group. None: compute one block to
        determine them.
    """

    source: BlocksRequest
    target: Location
    options: WriteOptions
    chunks: Mapping[str, int]
    encoding: Mapping[str, Mapping[str, Any]]
    skips_errors: bool
    follow: bool = False
    function_version: str | None = None
    template: tuple[list[Layout], dict[str, Any]] | None = None
    cores: int = 1
    """Number of tasks that run in parallel."""
    dry_run: bool = False
    """Plan only, and call the function with one block."""


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class MapBlocksResult:
    """The result of ``map_blocks``.

    Attributes
    ----------
    arrays
        Paths of the written arrays.
    blocks
        Number of blocks of the source.
    computed
        Number of blocks that this run computed.
    full_run
        The reason why a run with ``follow`` computed all blocks; None if it computed only changed
        blocks.
    failed
        Labels and errors of skipped blocks, one string for each.
    target
        With ``dry_run``, the group as it would be written: shapes, data types and chunks.
    commit
        The result of the write, which is skipped if no block changed; None with ``dry_run``.
    """

    arrays: tuple[str, ...]
    blocks: int
    computed: int = 0
    full_run: str | None = None
    failed: tuple[str, ...] = ()
    target: PlannedGroup | None = None
    commit: WriteResult | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapPlan:
    """The blocks to compute, and the arrays that they are written to."""

    numbers: Sequence[int]
    arrays: Mapping[str, OutputArray]
    attributes: Mapping[str, Any]
    """Attributes of the group."""
    full_run: str | None = None
    deleted: tuple[str, ...] = ()
    """Paths of arrays of the last run that this run does not produce."""
    first: FirstValues | None = None
    """Values of the first block, for comparison."""


def map_over_blocks(request: MapRequest, function: BlockFunction, run: Run) -> MapBlocksResult:
    """Map a function over blocks, in one commit."""
    source, options = request.source, request.options
    opened = open_destination(request.target, options, access_of(source.read))
    if isinstance(opened, WriteResult):
        return MapBlocksResult(arrays=(), blocks=0, commit=opened)
    destination, base = opened
    sources = source.opened()
    dataset, grid = sources.dataset, sources.grid
    if not len(grid):
        raise InvalidInputError(
            f"{source.read.path} has no elements to map over: a dimension has length 0",
            sizes=dict(grid.sizes),
        )
    group = group_path(options.group)
    record = FollowRecord(
        repository=str(location_of(source.read)),
        group=dataset.path,
        snapshot_id=str(dataset.snapshot_id),
        function=function.name,
        function_version=request.function_version,
        settings=settings_of(grid, chunks=request.chunks, encoding=request.encoding),
        base=BEGINNING if destination.base is None else str(destination.base),
        others=[recorded_other(other) for other in sources.others],
    )
    known = last_record(base, group) if request.follow else None
    plan: MapPlan | str = "no earlier result exists"
    if known is not None and base is not None:
        plan = _changes(request, sources, base, group, known, record)
    if isinstance(plan, str):
        check_free(base, group, request.target, request.options.mode, known)
        plan = _all_blocks(request, function, run, grid, group, known, plan)
    result = MapBlocksResult(
        arrays=tuple(output.target.path for output in plan.arrays.values()),
        blocks=len(grid),
        computed=len(plan.numbers),
        full_run=plan.full_run if request.follow else None,
        commit=WriteResult.skipped(
            options, destination.base, f"no block of {source.read.path} changed"
        ),
    )
    if not len(plan.numbers) and not request.dry_run:
        return result
    targets_of_run = [output.target for output in plan.arrays.values()]
    check_planned_lengths(base, group, targets_of_run, plan.deleted)
    attributes = with_own_attributes(base, group, plan.attributes, [*result.arrays, *plan.deleted])
    documents = {name: output.target.metadata for name, output in plan.arrays.items()}
    if request.skips_errors:
        check_skips(plan.arrays)
    if request.dry_run:
        if plan.first is None:
            first_layouts(grid, function, run, request.skips_errors)
        check_access(grid.source, grid.outer_boxes(), fetch=True)
        target = PlannedGroup(
            location=request.target, path=str(group), arrays=documents, attributes=attributes
        )
        return replace(result, target=target, commit=None)
    targets = {name: (one.data_type.numpy, one.attributes) for name, one in documents.items()}
    work = BlockMapping(
        grid=grid,
        function=function.like(targets),
        destination=destination,
        arrays=plan.arrays,
        skips_errors=request.skips_errors,
        first=plan.first,
    )
    tasks = [
        [BlockTask(number) for number in own] for own in sources.tasks(plan.numbers, request.cores)
    ]
    found = list(run(partial(map_blocks, work), tasks))
    done = sorted((one for _, own in found for one in own), key=attrgetter("number"))
    failed = [one.number for one in done if one.failed is not None]
    agreed = check_agreement(grid, plan.arrays, ((one.number, one.shared) for one in done))
    if isinstance(agreed, Disagreement):
        [error] = run(partial(explain, work), [agreed])
        raise error
    if failed:
        again = list(run(partial(map_blocks, work), once_more(plan.arrays, done, agreed)))
        found += again
        done += [one for _, own in again for one in own]
    replaced = last_record(base, group)
    if replaced is not None and replaced.arrays.keys() & plan.arrays.keys():
        attributes.pop(RECORD_KEY, None)
    if request.follow:
        skipped = [list(grid.block(number).index.values()) for number in failed[:MOST_FAILED]]
        record = replace(
            record,
            arrays=recorded(plan.arrays),
            failed=skipped if len(failed) <= MOST_FAILED else None,
        )
        attributes[RECORD_KEY] = record.to_json()
    names = ", ".join(plan.arrays)
    change = ArraysCommit(
        destination=destination,
        options=options,
        arrays=[output.target for output in plan.arrays.values()],
        groups={str(group): attributes},
        deleted=plan.deleted,
        check=None
        if base is None
        else LabelGuard(
            destination=destination, group=group, paths={*result.arrays, *plan.deleted}
        ).check,
        message=f"Map blocks to {names}"
        if len(plan.numbers) == len(grid)
        else f"Update {names}: {len(plan.numbers)} of {len(grid)} blocks",
    )
    return replace(
        result,
        failed=tuple(sorted(one.failed for one in done if one.failed is not None)),
        commit=commit_arrays(change, [receipt for receipt, _ in found]),
    )


def _changes(
    request: MapRequest,
    sources: OpenedBlocks,
    base: Snapshot,
    group: NodePath,
    known: FollowRecord,
    record: FollowRecord,
) -> MapPlan | str:
    """Return the plan of the changed blocks, or a reason to compute all."""
    repository, dataset, grid, others = sources
    reason = why_other_results(known, record)
    if reason is None:
        result = Repository.open(request.target)
        reason = check_unedited(result, base, group, known)
    if reason is not None:
        return reason
    arrays = existing_arrays(known, base, group, grid)
    if isinstance(arrays, str):
        return arrays
    numbers = changed_blocks(repository, known, dataset, grid, arrays, others)
    if isinstance(numbers, str):
        return numbers
    node = base.node(group)
    assert node is not None  # The group has the record.
    attributes = parse_group_metadata(node.user_data, node_path=group).attributes
    return MapPlan(numbers=numbers.tolist(), arrays=arrays, attributes=attributes)


def _all_blocks(
    request: MapRequest,
    function: BlockFunction,
    run: Run,
    grid: BlockGrid,
    group: NodePath,
    known: FollowRecord | None,
    reason: str,
) -> MapPlan:
    """Return the plan of all blocks, with arrays from the template or from one computed block."""
    lengths: Mapping[str, int] = grid.sizes
    first = None
    if request.template is not None:
        layouts, attributes = request.template
        alike = (one for one in layouts if grid.dims.get(one.name) == one.dims)
        passed = frozenset(layout.name for layout in alike if layout.may_pass)
    else:
        found = first_layouts(grid, function, run, request.skips_errors)
        layouts, attributes, first = list(found.layouts), dict(found.attributes), found.first
        passed = found.passed
        block = grid.block(found.number)
        lengths = {dim: block.stop[dim] - start for dim, start in block.start.items()}
    dims = {dim for layout in layouts for dim in layout.dims}
    check_names("chunks", "dimension", request.chunks, sorted(dims))
    names = [layout.name for layout in layouts]
    check_names("encoding", "variable", request.encoding, names)
    arrays = {
        layout.name: output_array(
            grid,
            layout,
            lengths,
            str(group),
            chunks=request.chunks,
            codecs=request.encoding.get(layout.name, {}).get("codecs"),
            passed=layout.name in passed,
        )
        for layout in layouts
    }
    former = () if known is None else known.arrays.keys() - arrays.keys()
    return MapPlan(
        numbers=range(len(grid)),
        arrays=arrays,
        attributes=attributes,
        full_run=reason,
        deleted=tuple(path_in(group, name) for name in sorted(former)),
        first=first,
    )
