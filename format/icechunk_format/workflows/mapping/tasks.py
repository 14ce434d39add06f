"""Computes and writes blocks of a mapping, on executors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.writing.part import Destination, TaskReceipt
from icechunk_format.dataset.writing.storing import TaskFiles
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import coords_of_boxes
from icechunk_format.workflows.mapping.blocks import Block, BlockGrid, StoredArray
from icechunk_format.workflows.mapping.placing import Layout, Placed, Result, check_like_first
from icechunk_format.workflows.running import Run


class BlockFunction(Protocol):
    """Computes the results of a block; picklable."""

    @property
    def name(self) -> str:
        """Name of the function."""

    def __call__(
        self, block: Block, arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any], /
    ) -> tuple[list[Result], dict[str, Any]]:
        """Return variables and attributes of the group."""

    def label(self, block: Block, arrays: Mapping[str, StoredArray], /) -> str:
        """Return the labels of a block, for messages."""

    def like(self, arrays: Mapping[str, tuple[Any, Mapping[str, Any]]], /) -> BlockFunction:
        """Return the function with times encoded as in arrays of these types and attributes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMapping:
    """The context of all tasks; picklable."""

    grid: BlockGrid
    function: BlockFunction
    destination: Destination
    arrays: Mapping[str, Placed]
    """The arrays of the result by name."""
    skips_errors: bool


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """The outcome of a block.

    Parameters
    ----------
    failed
        Labels and error of a skipped block.
    cleared
        Chunks of arrays of an earlier run to delete, ``int64 (n, ndim)`` by path.
    """

    number: int
    failed: str | None = None
    cleared: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


def map_blocks(
    work: BlockMapping, task: Sequence[tuple[int, Collection[str] | None]]
) -> tuple[TaskReceipt, list[Mapped]]:
    """Compute and write blocks, given as numbers with names of arrays or None, one by one."""
    blocks = TaskFiles(work.destination)
    done = [_map_block(work, blocks, *block) for block in task]
    return blocks.receipt(), done


def _map_block(
    work: BlockMapping, blocks: TaskFiles, number: int, names: Collection[str] | None
) -> Mapped:
    """Compute one block and write its arrays; `names` limits them."""
    block = work.grid.block(number)
    arrays = work.grid.read(block)
    placed = {
        name: one
        for name, one in work.arrays.items()
        if (one.is_written_by(block) if names is None else name in names)
    }
    try:
        results, _ = work.function(block, arrays, work.grid.attributes)
        found = {result.layout.name: result for result in results}
        label = work.function.label(block, arrays)
        if found.keys() != work.arrays.keys():
            raise InvalidInputError(
                f"block {label} has the variables {', '.join(found)}, and others"
                f" {', '.join(work.arrays)}; return the same for each block",
                block=label,
            )
        for name, result in found.items():
            check_like_first(work.arrays[name], block, result.layout, label)
    except InvalidInputError as error:
        if not work.skips_errors:
            raise
        gone = ((one.target, _chunks_of(one, block)) for one in placed.values())
        cleared = {target.path: at for target, at in gone if target.old_shape is not None}
        return Mapped(number, error.message, cleared)
    cleared = {}
    for name, one in placed.items():
        stored = blocks.write(one.target, one.box(block)[0], found[name].values)
        if one.target.old_shape is not None:
            held = {tuple(at) for refs in stored for at in refs.coords.tolist()}
            empty = [at for at in _chunks_of(one, block).tolist() if tuple(at) not in held]
            if empty:
                cleared[one.target.path] = np.array(empty, dtype=np.int64)
    return Mapped(number, None, cleared)


def _chunks_of(placed: Placed, block: Block) -> NDArray[np.int64]:
    """Return the chunks of a block that were in the old array, ``int64 (n, ndim)``."""
    edges = placed.target.metadata.grid.chunks_of_box(*placed.box(block))
    return coords_of_boxes(np.array(edges, np.int64).T[None]).astype(np.int64)


def first_layouts(
    grid: BlockGrid, function: BlockFunction, run: Run, skips_errors: bool
) -> tuple[int, list[Layout], dict[str, Any]]:
    """Return number and layouts of the first block whose function does not fail."""
    start, at_once, error = 0, 1, ""
    while start < len(grid):
        numbers = range(start, min(start + at_once, len(grid)))
        step = partial(_layouts, grid, function, skips_errors)
        found = sorted(run(step, numbers), key=itemgetter(0))
        for number, layouts, attributes, problem in found:
            if problem is None:
                return number, layouts, attributes
            error = error or problem
        start, at_once = numbers.stop, at_once * 8
    raise InvalidInputError(
        f"the function failed at each of {len(grid)} blocks, so the arrays of the result are not"
        f" known; the first: {error}",
        blocks=len(grid),
    )


def _layouts(
    grid: BlockGrid, function: BlockFunction, skips_errors: bool, number: int
) -> tuple[int, list[Layout], dict[str, Any], str | None]:
    """Return the number of a block, the layouts and attributes of its results, and its error."""
    block = grid.block(number)
    arrays = grid.read(block)
    try:
        results, attributes = function(block, arrays, grid.attributes)
    except InvalidInputError as error:
        if not skips_errors:
            raise
        return number, [], {}, error.message
    return number, [result.layout for result in results], attributes, None
