"""Maps a function over blocks: plans, runs, and commits the arrays that it returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.dataset.writing.arrays.blocks import ArrayBlocks
from icechunk_format.dataset.writing.arrays.commit import ArraysCommit, commit_arrays
from icechunk_format.dataset.writing.part import Destination, TaskReceipt
from icechunk_format.dataset.writing.prepare import open_destination
from icechunk_format.dataset.writing.result import WriteResult
from icechunk_format.display.lazily import shown_by
from icechunk_format.errors import AlreadyExistsError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.node_path import parse_node_path
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mapping.blocks import Block, BlockGrid, StoredArray, cut_into_blocks
from icechunk_format.workflows.mapping.placing import Placed, Result, check_like_first, place
from icechunk_format.workflows.running import Run


class BlockFunction(Protocol):
    """Computes the results of a block; picklable."""

    def __call__(
        self, block: Block, arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any], /
    ) -> tuple[list[Result], dict[str, Any]]:
        """Return variables and attributes of the group."""

    def label(self, block: Block, arrays: Mapping[str, StoredArray], /) -> str:
        """Return the labels of a block, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRequest:
    """The group whose blocks are read; see ``icechunk_spark.map_blocks``."""

    location: Location
    version: Mapping[str, Any]
    group: str | None
    authorize: Sequence[str]
    virtual_options: Mapping[str, str]
    blocks: Mapping[str, int] | None
    overlap: Mapping[str, int] | None
    variables: Sequence[str] | None

    def grid(self) -> BlockGrid:
        """Return the blocks, pinned to a snapshot."""
        repository = Repository.open(self.location)
        dataset = open_dataset(
            repository,
            repository.resolve(**self.version),
            self.group,
            authorize=self.authorize,
            virtual_options=self.virtual_options,
        )
        source = repository.chunk_source(
            authorized=self.authorize, virtual_options=self.virtual_options
        )
        return cut_into_blocks(
            dataset,
            self.location,
            source,
            blocks=self.blocks,
            overlap=self.overlap,
            variables=self.variables,
        )


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class MapBlocksResult:
    """A finished ``map_blocks``.

    Parameters
    ----------
    arrays
        Paths of the new arrays.
    blocks
        Number of blocks.
    failed
        Labels and errors of blocks that were skipped.
    commit
        The result of the write.
    """

    arrays: tuple[str, ...]
    blocks: int
    failed: tuple[str, ...]
    commit: WriteResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMapping:
    """The context of all tasks; picklable."""

    grid: BlockGrid
    function: BlockFunction
    destination: Destination
    arrays: Mapping[str, Placed]
    """By name."""
    skips_errors: bool


def first_results(
    grid: BlockGrid, function: BlockFunction, number: int
) -> tuple[list[Result], dict[str, Any]]:
    """Return the results of one block."""
    block = grid.block(number)
    return function(block, grid.read(block), grid.attributes)


def map_block(work: BlockMapping, number: int) -> tuple[TaskReceipt | None, str | None]:
    """Compute and write one block; return its receipt, or its labels and error."""
    block = work.grid.block(number)
    arrays = work.grid.read(block)
    try:
        results, _ = work.function(block, arrays, work.grid.attributes)
        found = {result.name: result for result in results}
        label = work.function.label(block, arrays)
        if found.keys() != work.arrays.keys():
            raise InvalidInputError(
                f"block {label} has the variables {', '.join(found)}, and the first block"
                f" {', '.join(work.arrays)}; return the same for each block",
                block=label,
            )
        for name, result in found.items():
            check_like_first(work.arrays[name], block, result, label)
    except InvalidInputError as error:
        if not work.skips_errors:
            raise
        return None, error.message
    blocks = ArrayBlocks(work.destination)
    for name, result in found.items():
        placed = work.arrays[name]
        if placed.is_written_by(block):
            blocks.write(placed.target, placed.start(block), result.values)
    return blocks.receipt(), None


def map_over_blocks(
    request: BlocksRequest,
    function: BlockFunction,
    run: Run,
    *,
    target: Location,
    options: WriteOptions,
    chunks: Mapping[str, int],
    codecs: Mapping[str, Sequence[Any]],
    skips_errors: bool,
) -> MapBlocksResult:
    """Map a function over blocks, in one commit; see ``icechunk_spark.map_blocks``."""
    opened = open_destination(target, options, request.authorize, request.virtual_options)
    if isinstance(opened, WriteResult):
        return MapBlocksResult(arrays=(), blocks=0, failed=(), commit=opened)
    destination, base = opened
    grid = request.grid()
    if not len(grid):
        raise InvalidInputError(
            f"{request.location} has no elements to map over: a dimension has length 0",
            sizes=dict(grid.sizes),
        )
    group = parse_node_path(f"/{(options.group or '').strip('/')}")
    taken = [] if base is None else [n.path for n in base.children(group) if n.array is not None]
    if taken and options.mode == "errorifexists":
        raise AlreadyExistsError(
            f"group {group} of {target} has arrays already ({', '.join(taken)}); choose another"
            " group, or mode='overwrite' to replace arrays of the same names",
            kind="arrays",
            group=str(group),
        )
    [(results, attributes)] = run(_First(grid, function), [0])
    first = grid.block(0)
    arrays = {
        result.name: place(
            grid, first, result, str(group), chunks=chunks, codecs=codecs.get(result.name)
        )
        for result in results
    }
    work = BlockMapping(
        grid=grid,
        function=function,
        destination=destination,
        arrays=arrays,
        skips_errors=skips_errors,
    )
    done = list(run(_Each(work), range(len(grid))))
    change = ArraysCommit(
        destination=destination,
        options=options,
        arrays=[placed.target for placed in arrays.values()],
        groups={str(group): attributes},
        message=f"Map blocks to {', '.join(arrays)}",
    )
    commit = commit_arrays(change, [receipt for receipt, _ in done if receipt is not None])
    return MapBlocksResult(
        arrays=tuple(placed.target.path for placed in arrays.values()),
        blocks=len(grid),
        failed=tuple(sorted(error for _, error in done if error is not None)),
        commit=commit,
    )


@dataclass(frozen=True, slots=True)
class _First:
    grid: BlockGrid
    function: BlockFunction

    def __call__(self, number: int) -> tuple[list[Result], dict[str, Any]]:
        return first_results(self.grid, self.function, number)


@dataclass(frozen=True, slots=True)
class _Each:
    work: BlockMapping

    def __call__(self, number: int) -> tuple[TaskReceipt | None, str | None]:
        return map_block(self.work, number)
