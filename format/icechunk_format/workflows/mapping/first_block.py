"""Defines the function of blocks, and computes one block to determine the arrays of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.agreement import FirstValues, unequal
from icechunk_format.workflows.mapping.blocks import (
    Block,
    BlockGrid,
    OtherArrays,
)
from icechunk_format.workflows.mapping.others import StoredArray
from icechunk_format.workflows.mapping.outputs import Layout, Result
from icechunk_format.workflows.running import Run


class BlockFunction(Protocol):
    """Computes the results of a block; picklable."""

    @property
    def name(self) -> str:
        """Name of the function."""

    def __call__(
        self,
        block: Block,
        arrays: Mapping[str, StoredArray],
        attributes: Mapping[str, Any],
        others: Sequence[OtherArrays] = (),
        /,
    ) -> tuple[list[Result], dict[str, Any]]:
        """Return variables and attributes of the group; may change the values of `arrays`."""

    def source(self, block: Block, arrays: Mapping[str, StoredArray], /) -> list[Result]:
        """Return arrays of the source as the function would return them unchanged."""

    def label(self, block: Block, arrays: Mapping[str, StoredArray], /) -> str:
        """Return the labels of a block, for messages."""

    def shown(self, layout: Layout, value: Any, /) -> str:
        """Return a stored value as text, for messages."""

    def like(self, arrays: Mapping[str, tuple[Any, Mapping[str, Any]]], /) -> BlockFunction:
        """Return the function with times encoded as in arrays of these types and attributes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstBlock:
    """Results of one block, which determine the arrays.

    Parameters
    ----------
    passed
        Names of results whose values are those of the source.
    problem
        Error of a failed block, which has no results.
    """

    number: int
    layouts: Sequence[Layout] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    first: FirstValues | None = None
    problem: str | None = None


def first_layouts(
    grid: BlockGrid, function: BlockFunction, run: Run, skips_errors: bool
) -> FirstBlock:
    """Return the layouts of the first block whose function does not fail."""
    start, at_once, error = 0, 1, ""
    while start < len(grid):
        numbers = range(start, min(start + at_once, len(grid)))
        step = partial(_layouts, grid, function, skips_errors)
        for found in sorted(run(step, numbers), key=attrgetter("number")):
            if found.problem is None:
                return found
            error = error or found.problem
        start, at_once = numbers.stop, at_once * 8
    raise InvalidInputError(
        f"the function failed at each of {len(grid)} blocks, so the arrays of the result are not"
        f" known; the first: {error}",
        blocks=len(grid),
    )


def _layouts(
    grid: BlockGrid, function: BlockFunction, skips_errors: bool, number: int
) -> FirstBlock:
    """Return the layouts and attributes of the results of a block, or its error."""
    block = grid.block(number)
    reader = grid.reader()
    arrays = reader.read(block)
    label = function.label(block, arrays)
    try:
        others = reader.read_others(block)
        results, attributes = function(block, arrays, grid.attributes, others)
    except InvalidInputError as error:
        if not skips_errors:
            raise
        return FirstBlock(number=number, problem=error.message)
    alike = [
        layout.name
        for layout, _ in results
        if layout.may_pass and grid.dims.get(layout.name) == layout.dims
    ]
    # Read again, since the function may change the arrays that it gets.
    before = {one.layout.name: one for one in function.source(block, reader.read(block, alike))}
    return FirstBlock(
        number=number,
        layouts=[result.layout for result in results],
        attributes=attributes,
        passed=frozenset(
            layout.name
            for layout, values in results
            if layout.name in before and is_same(before[layout.name], layout, values)
        ),
        first=FirstValues.of(grid, f"block {label}", results),
    )


def is_same(one: Result, layout: Layout, values: NDArray[Any]) -> bool:
    """Return True if two results are stored alike."""
    was = one.layout
    return (was.shape, was.dtype) == (layout.shape, layout.dtype) and not bool(
        unequal(one.values, values).any()
    )
