"""Divides a group into blocks, and reads the stored arrays of a block.

Long because the grid, its blocks and their reads share the same edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import RegularAxis
from icechunk_format.grid.groups import Groups, edges_of
from icechunk_format.groups import SnapshotSource, Variable, named_variables
from icechunk_format.names import check_names
from icechunk_format.options.read import ReadRequest
from icechunk_format.tables import Dataset
from icechunk_format.workflows.horizontal.axes import circle_of, period_of
from icechunk_format.workflows.mapping.others import OtherSource, StoredArray
from icechunk_format.workflows.mapping.others.source import FETCHED_AT_ONCE
from icechunk_format.workflows.mapping.record import RECORD_KEY
from icechunk_format.workflows.mapping.spans import time_spans
from icechunk_format.workflows.rectangle import common_sizes, selected_ranges

# Bytes of decoded chunks that a task keeps for neighbouring blocks, for each source.
_KEPT: Final = 128 * 2**20
# Arrays of at most this number of elements, such as labels, are read once in a task.
_WHOLE: Final = 1 << 14


class OtherArrays(NamedTuple):
    """The arrays of a further source in a block, by name."""

    source: OtherSource
    arrays: dict[str, StoredArray]


class Cycle(NamedTuple):
    """One period of a periodic dimension.

    Parameters
    ----------
    elements
        The length of the dimension, or one less if the last label repeats the first.
    period
        Difference of labels that are one period apart, such as 360 degrees; None if unknown.
    """

    elements: int
    period: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A box of elements, by dimension.

    Parameters
    ----------
    number
        Number of the block, in C order of the dimensions.
    index
        Number of the block along each dimension.
    start, stop
        Range of elements along each dimension, without overlap.
    read_start, read_stop
        Range of elements with overlap. Along a periodic dimension, elements below 0 or beyond the
        length are at the other end.
    sizes
        Lengths of the dimensions.
    periods
        Period of the labels of periodic dimensions: 360 for longitudes in degrees.
    """

    number: int
    index: Mapping[str, int]
    start: Mapping[str, int]
    stop: Mapping[str, int]
    read_start: Mapping[str, int]
    read_stop: Mapping[str, int]
    sizes: Mapping[str, int]
    periods: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockGrid:
    """The blocks of a group; small and picklable.

    Parameters
    ----------
    sizes, steps, overlap
        Length, elements of a block, and elements of overlap at both sides, by dimension.
    paths
        Paths of the arrays of a block, by name.
    """

    source: SnapshotSource
    sizes: Mapping[str, int]
    steps: Mapping[str, int]
    overlap: Mapping[str, int]
    paths: Mapping[str, str]
    dims: Mapping[str, tuple[str, ...]]
    """The dimensions of each array, by name."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    cycles: Mapping[str, Cycle] = field(default_factory=dict)
    """The periods of periodic dimensions."""
    origin: Mapping[str, int] = field(default_factory=dict)
    """First selected element, by dimension; all other indices are relative to it."""
    selection: Mapping[str, str] = field(default_factory=dict)
    """The given selections as strings."""
    spans: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Smallest and largest stored value of times, by name."""
    others: tuple[OtherSource, ...] = ()

    @property
    def groups(self) -> Groups:
        """The boxes of all blocks."""
        axes = (RegularAxis(size, self.steps[dim]) for dim, size in self.sizes.items())
        return Groups(tuple(map(edges_of, axes)))

    def __len__(self) -> int:
        return len(self.groups)

    def is_split(self, dim: str) -> bool:
        """Return True if a dimension is divided into several blocks."""
        return self.steps[dim] < self.sizes[dim]

    def block(self, number: int) -> Block:
        """Return a block by its number."""
        lower, upper = self.groups.box(number)
        start, stop = (dict(zip(self.sizes, edges, strict=True)) for edges in (lower, upper))
        more = {dim: self.overlap.get(dim, 0) for dim in self.sizes}
        return Block(
            number=number,
            index={dim: start[dim] // self.steps[dim] for dim in self.sizes},
            start=start,
            stop=stop,
            read_start={
                dim: start[dim] - more[dim]
                if dim in self.cycles
                else max(0, start[dim] - more[dim])
                for dim in self.sizes
            },
            read_stop={
                dim: stop[dim] + more[dim]
                if dim in self.cycles
                else min(size, stop[dim] + more[dim])
                for dim, size in self.sizes.items()
            },
            sizes=dict(self.sizes),
            periods={d: t.period for d, t in self.cycles.items() if t.period is not None},
        )

    def outer_boxes(self) -> Iterator[tuple[str, list[int], list[int]]]:
        """Yield path, first elements and ends of each array in the first, middle and last block."""
        for number in sorted({0, len(self) // 2, len(self) - 1}):
            block = self.block(number)
            for name, dims in self.dims.items():
                lower, upper = (
                    [part[dim] + self.origin.get(dim, 0) for dim in dims]
                    for part in (block.start, block.stop)
                )
                yield self.paths[name], lower, upper

    def near(self, dim: str, low: int, high: int) -> list[slice]:
        """Return the ranges of blocks along a dimension that read elements in ``[low, high)``."""
        size, step, more = self.sizes[dim], self.steps[dim], self.overlap.get(dim, 0)
        spans = [(max(0, low - more), min(size, high + more))]
        if more and dim in self.cycles:
            # Blocks at the ends read each other's elements; one more, since a last label may repeat
            # the first.
            if low <= more:
                spans.append((max(0, size - more), size))
            if high >= size - more - 1:
                spans.append((0, min(size, more)))
        return [slice(first // step, -(-last // step)) for first, last in spans if first < last]

    @property
    def selected(self) -> dict[str, tuple[int, int]]:
        """The selected range of elements of each dimension."""
        first = {dim: self.origin.get(dim, 0) for dim in self.sizes}
        return {dim: (first[dim], first[dim] + size) for dim, size in self.sizes.items()}

    def has_array(self, name: str, dims: tuple[str, ...]) -> bool:
        """Return True if a source has an array of this name with these dimensions."""
        others = (one for one in self.others if name in one.dims)
        return self.dims.get(name) == dims or any(o.dims_in_block(name) == dims for o in others)

    def parts(self, dim: str, low: int, high: int) -> list[tuple[int, int]]:
        """Split a range of a block with overlap into ranges of the selected elements."""
        size = self.sizes[dim]
        parts = [(max(0, low), min(size, high))]
        if dim in self.cycles:
            cycle = self.cycles[dim].elements
            if low < 0:
                parts.insert(0, (cycle + low, cycle))
            if high > size:
                parts.append((size - cycle, high - cycle))
        return parts

    def reader(self) -> BlockReader:
        """Open the sources for the blocks of one task."""
        return BlockReader(self)


class BlockReader:
    """Reads the blocks of one task, and keeps the decoded chunks that neighbours share."""

    def __init__(self, grid: BlockGrid) -> None:
        self._grid = grid
        self._arrays = grid.source.open(_KEPT)
        self._others = [other.source.open(_KEPT) for other in grid.others]
        # Whole arrays without several chunks, such as most labels.
        self._whole: dict[str, NDArray[Any]] = {}

    def read(self, block: Block, names: Iterable[str] | None = None) -> dict[str, StoredArray]:
        """Read arrays of a block, by default all, with overlap."""
        grid, found = self._grid, {}
        for name in grid.paths if names is None else names:
            variable = self._arrays.variable(grid.paths[name])
            ranges = []
            for dim in variable.dims:
                origin = grid.origin.get(dim, 0)
                parts = grid.parts(dim, block.read_start[dim], block.read_stop[dim])
                ranges.append([(first + origin, end + origin) for first, end in parts])
            values = self._joined(variable, ranges)
            attributes = dict(variable.metadata.attributes)
            found[name] = StoredArray(variable.dims, values, attributes, grid.spans.get(name))
        return found

    def read_others(self, block: Block) -> list[OtherArrays]:
        """Read the arrays of the further sources of a block, with overlap."""
        grid = self._grid
        parts = {d: grid.parts(d, block.read_start[d], block.read_stop[d]) for d in grid.sizes}
        opened = zip(grid.others, self._others, strict=True)
        return [OtherArrays(other, other.read(arrays, parts)) for other, arrays in opened]

    def _joined(
        self,
        variable: Variable,
        ranges: Sequence[Sequence[tuple[int, int]]],
        chosen: tuple[tuple[int, int], ...] = (),
    ) -> NDArray[Any]:
        """Read ranges along each axis, and join them."""
        axis = len(chosen)
        if axis == len(ranges):
            return self._box(variable, chosen)
        parts = [self._joined(variable, ranges, (*chosen, part)) for part in ranges[axis]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)

    def _box(self, variable: Variable, box: tuple[tuple[int, int], ...]) -> NDArray[Any]:
        reader = self._arrays.reader(variable.path)
        if math.prod(variable.shape) <= _WHOLE:
            if variable.path not in self._whole:
                self._whole[variable.path] = reader.read_all()
            # Functions may change the values that they get.
            return self._whole[variable.path][tuple(slice(*ends) for ends in box)].copy()
        lower, upper = ([ends[end] for ends in box] for end in (0, 1))
        return reader.read_box(lower, upper, FETCHED_AT_ONCE)


def cut_into_blocks(
    dataset: Dataset,
    read: ReadRequest,
    blocks: Mapping[str, int],
    overlap: Mapping[str, int],
    periodic: Sequence[str],
) -> BlockGrid:
    """Return the blocks of a group.

    Parameters
    ----------
    read
        The data variables, by default all, and the selected range of each dimension. Coordinates,
        bounds and grid mappings are always read.
    blocks
        Elements of a block by dimension; -1 is the whole dimension. Default: the chunks of the
        largest variable.
    overlap
        Elements of overlap on both sides, by dimension, clipped to the array.
    periodic
        Dimensions whose two ends are adjacent.

    Raises
    ------
    InvalidInputError
        A dimension does not exist or has several lengths, or a number is invalid.
    """
    data = {variable.name: variable for variable in dataset.data_variables}
    named_variables(read.variables or (), dataset.variables, dataset.label)
    left_out = set() if read.variables is None else set(data) - set(read.variables)
    arrays = {n: v for n, v in dataset.variables.items() if n not in left_out}
    sizes = common_sizes(arrays.values(), dataset.label)
    chosen = selected_ranges(dataset, sizes, sel=read.sel, isel=read.isel)
    for dim in periodic:
        if dim in chosen and chosen[dim] != (0, sizes[dim]):
            raise InvalidInputError(
                f"periodic names {dim!r}, but only a part of it is selected, so its ends are"
                " not adjacent; leave it out",
                option="periodic",
                dimension=dim,
            )
    for option, given in (("blocks", blocks), ("overlap", overlap)):
        check_names(option, "dimension", given, sizes)
        for dim, number in given.items():
            least = 0 if option == "overlap" else 1
            if number < least and not (number == -1 and option == "blocks"):
                raise InvalidInputError(
                    f"{option}: {dim} is {number}; use a number from {least}"
                    + (", or -1 for all" if option == "blocks" else ""),
                    option=option,
                    dimension=dim,
                )
    leading = max(
        (v for v in arrays.values() if v.name in data),
        key=lambda v: float(np.prod([float(n) for n in v.shape])),
        default=None,
    )
    sizes |= {dim: stop - start for dim, (start, stop) in chosen.items()}
    steps = dict(sizes)
    if leading is not None:
        for dim, axis in zip(leading.dims, leading.metadata.grid.axes, strict=True):
            steps[dim] = axis.full_size(0) if axis.count else 1
    steps |= {d: sizes[d] if n == -1 else n for d, n in blocks.items()}
    return BlockGrid(
        source=dataset.source,
        sizes=sizes,
        steps={dim: max(1, min(steps[dim], size)) for dim, size in sizes.items()},
        overlap=dict(overlap),
        paths={name: variable.path for name, variable in arrays.items()},
        dims={name: variable.dims for name, variable in arrays.items()},
        # Drop the group's own record, if it is itself the result of a mapping.
        attributes={k: v for k, v in dataset.attributes.items() if k != RECORD_KEY},
        cycles=_cycles(dataset, sizes, overlap, periodic),
        origin={dim: start for dim, (start, _) in chosen.items() if start},
        selection={k: str(v) for k, v in (("sel", read.sel), ("isel", read.isel)) if v is not None},
        spans=time_spans(dataset, arrays),
    )


def _cycles(
    dataset: Dataset, sizes: Mapping[str, int], overlap: Mapping[str, int], periodic: Sequence[str]
) -> dict[str, Cycle]:
    """Return the period of each periodic dimension.

    Raises
    ------
    InvalidInputError
        A dimension does not exist or has no overlap, its longitudes do not go around the whole
        circle, or the overlap is more than one period.
    """
    found = {}
    for dim in periodic:
        if dim not in sizes or not overlap.get(dim):
            raise InvalidInputError(
                f"periodic names {dim!r}, but overlap names"
                f" {', '.join(overlap) or 'no dimension'}; periodic dimensions need an overlap",
                option="periodic",
                dimension=dim,
            )
        cycle = Cycle(sizes[dim], None)
        labels = dataset.variables.get(dim)
        period = None if labels is None else period_of(labels)
        if period is not None:
            circle = circle_of(dataset.read(dim), period)
            if circle is None or not circle.is_closed:
                raise InvalidInputError(
                    f"periodic names {dim!r}, but its labels do not cover a whole circle of"
                    f" {period:g} degrees, so its ends are not adjacent; leave it out",
                    option="periodic",
                    dimension=dim,
                )
            cycle = Cycle(sizes[dim] - circle.is_repeated, period)
        if overlap[dim] > cycle.elements:
            raise InvalidInputError(
                f"overlap: {dim} is {overlap[dim]}, but one period has {cycle.elements} elements;"
                " use at most that number",
                option="overlap",
                dimension=dim,
            )
        found[dim] = cycle
    return found
