"""Plans the reduction of one array.

A *tile* is a box of the dimensions that stay, and a *strand* a set of elements of those that are
reduced. A task reads one strand of one tile, chunk by chunk, and holds only its parts.

Long because a plan is one piece of arithmetic: tiles, strands, and both for what is computed again.

Rules of this file
------------------
1. Tiles and strands are cut at edges of chunks, so that each chunk is decoded once.
2. If no two strands have elements of one group, tasks are *direct*: they finish and write their
   groups. This is so if tiles alone give enough tasks, and if groups have chunks of their own, such
   as months of arrays with a chunk for each time. Otherwise tasks are *shuffled*: parts are sent
   to tasks that combine them.
3. All numbers are computed from chunk edges along axes and the groups of one axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import ChunkAxis, RegularAxis
from icechunk_format.grid.groups import Edges, Groups, edges_of
from icechunk_format.groups import DimSelection
from icechunk_format.workflows.reducing.statistics import Kind, part_dtype

_LEAST_TASK_BYTES: Final = 16 * 2**20
_WAVES: Final = 3
# Decoded bytes of a chunk of the result.
_CHUNK_BYTES: Final = 8 * 2**20
# Below, groups do not get chunks of their own.
_LEAST_CHUNK_BYTES: Final = 64 * 2**10
_ITEM: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strand:
    """Elements of the reduced dimensions that one task reads, for each tile.

    Parameters
    ----------
    positions
        Selected elements along the axis of groups.
    groups
        The groups of these elements, ascending.
    ranges
        Range of elements along each other reduced axis.
    """

    positions: DimSelection
    groups: NDArray[np.int64]
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TilePlan:
    """Tiles and strands of an array.

    Parameters
    ----------
    tiles
        Boxes of the source; the reduced axes are whole.
    blocks
        Boxes of the result with all axes, that shuffled tasks combine: tiles, and ranges of groups.
    chunk_shape
        Shape of a chunk of the result, with all axes.
    piece_bytes
        Maximum bytes of all parts that are shuffled.
    state_bytes
        Bytes of the parts of the largest task.
    """

    kind: Literal["direct", "shuffled"]
    tiles: Groups
    strands: tuple[Strand, ...]
    blocks: Groups
    chunk_shape: tuple[int, ...]
    decoded_bytes: int
    piece_bytes: int
    state_bytes: int
    source_chunks: int
    chosen: tuple[int, ...] | None = None
    """The tiles to compute; None is all."""

    @property
    def reads(self) -> list[tuple[int, int]]:
        """Tile and strand of each task that reads."""
        tiles = range(len(self.tiles)) if self.chosen is None else self.chosen
        return [(tile, strand) for tile in tiles for strand in range(len(self.strands))]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        reads = len(self.reads)
        return reads if self.kind == "direct" else reads + len(self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Again:
    """The part of an existing result that is computed again, along the chunks that it has.

    Parameters
    ----------
    chunk_shape
        Shape of a chunk of the result, with all axes.
    tiles
        Tiles to compute.
    groups
        Groups to compute, ascending.
    start
        First new element along the axis of groups, if parts of others are stored; 0 reads all.
    """

    chunk_shape: tuple[int, ...]
    tiles: tuple[int, ...]
    groups: NDArray[np.int64]
    start: int = 0


@dataclass(kw_only=True, eq=False)
class Planner:
    """Plans one array.

    Parameters
    ----------
    axes
        The chunks of the array.
    origin, shape
        The selected box of the array.
    codes, groups
        The group of each selected element along the axis of groups, and the number of groups.
    item_bytes
        Decoded bytes of an element.
    whole
        True if a task must hold all values of a group, for quantiles.
    cores
        Number of parallel tasks. None is one process without a shuffle.
    """

    name: str
    axes: Sequence[ChunkAxis]
    origin: Sequence[int]
    shape: Sequence[int]
    codes: NDArray[np.int64]
    groups: int
    kind: Kind
    item_bytes: int
    whole: bool
    memory: int
    cores: int | None

    def __post_init__(self) -> None:
        reduced = {self.kind.axis, *self.kind.others}
        self.kept = [axis for axis in range(len(self.shape)) if axis not in reduced]
        self.over = math.prod(self.shape[axis] for axis in reduced)
        self.total = self.item_bytes * math.prod(self.shape)
        kind = self.kind
        parts = sum(
            part_dtype(part, kind.dtype, weighted=kind.is_weighted).itemsize for part in kind.parts
        )
        self.cell_bytes = parts + _ITEM
        # A block of one chunk along each reduced axis.
        self.chunk = math.prod(min(self.axes[axis].largest, self.shape[axis]) for axis in reduced)

    def plan(self) -> TilePlan:
        """Plan all tiles and groups.

        Raises InvalidInputError if the values of a group do not fit into `memory`, although they
        must be together.
        """
        lengths = self._lengths()
        tile = math.prod(lengths)
        tiles = math.prod(
            -(-self.shape[axis] // lengths[number]) for number, axis in enumerate(self.kept)
        )
        fits = tile * self.groups * self.cell_bytes <= self.memory // 2
        if self.cores is None:
            strands = [self._all()] if fits and not self.whole else self._ranges(tile)
            kind: Literal["direct", "shuffled"] = "direct"
        else:
            kind, strands = self._strands(tile, tiles, fits=fits)
        is_parted = kind == "direct" and len(strands) > 1
        each = self._chunk_groups(tile)
        if is_parted:
            each = math.gcd(each, *self._ends_of_runs(strands))
        chunk_shape = [1] * len(self.shape)
        for axis, length in zip(self.kept, lengths, strict=True):
            chunk_shape[axis] = length
        chunk_shape[self.kind.axis] = each
        tile_grid, blocks = self._grids(chunk_shape)
        most = max((len(strand.groups) for strand in strands), default=0)
        sent = sum(len(strand.groups) for strand in strands) if kind == "shuffled" else 0
        kept = math.prod(self.shape[axis] for axis in self.kept)
        return TilePlan(
            kind=kind,
            tiles=tile_grid,
            strands=tuple(strands),
            blocks=blocks,
            chunk_shape=tuple(chunk_shape),
            decoded_bytes=self.total,
            piece_bytes=sent * kept * (self.cell_bytes - _ITEM),
            state_bytes=tile * most * self.cell_bytes
            + (self.item_bytes * tile * self._longest(strands) if self.whole else 0),
            source_chunks=math.prod(len(self._edges(axis)) - 1 for axis in range(len(self.shape))),
        )

    def plan_again(self, again: Again) -> TilePlan:
        """Plan some tiles and groups of an existing result, in direct tasks."""
        tile_grid, blocks = self._grids(again.chunk_shape)
        tile = math.prod(again.chunk_shape[axis] for axis in self.kept)
        each = again.chunk_shape[self.kind.axis]
        # Chunks of the result are written as a whole.
        parts = np.unique(again.groups // each)
        chunk_groups = [
            np.arange(n * each, min((n + 1) * each, self.groups), dtype=np.int64)
            for n in parts.tolist()
        ]
        cells = tile * sum(map(len, chunk_groups)) * self.cell_bytes
        if cells <= self.memory // 2 and not self.whole and chunk_groups:
            chunk_groups = [np.concatenate(chunk_groups)]
        new = np.arange(len(self.codes)) >= again.start
        strands = [
            self._strand(DimSelection.of_mask(np.isin(self.codes, own) & new), own)
            for own in chunk_groups
        ]
        if self.whole and not self._holds(tile, strands):
            raise self._too_large(tile, strands)
        count = len(again.tiles)
        others = math.prod(self.shape[axis] for axis in self.kind.others)
        read = sum(strand.positions.count for strand in strands) * others
        kept = min(math.prod(self.shape[axis] for axis in self.kept), count * tile)
        chunks = math.prod(
            -(-again.chunk_shape[axis] // max(1, self.axes[axis].largest)) for axis in self.kept
        ) * math.prod(len(self._edges(axis)) - 1 for axis in self.kind.others)
        along = sum(s.positions.count_chunks(self.axes[self.kind.axis]) for s in strands)
        most = max((len(strand.groups) for strand in strands), default=0)
        return TilePlan(
            kind="direct",
            tiles=tile_grid,
            strands=tuple(strands),
            blocks=blocks,
            chunk_shape=again.chunk_shape,
            decoded_bytes=self.item_bytes * read * kept,
            piece_bytes=0,
            state_bytes=tile * most * self.cell_bytes,
            source_chunks=count * chunks * along,
            chosen=again.tiles,
        )

    def _grids(self, chunk_shape: Sequence[int]) -> tuple[Groups, Groups]:
        """Return the tiles of the source, and the blocks of the result."""
        tiles: list[Edges] = []
        blocks: list[Edges] = []
        for axis, (size, step) in enumerate(zip(self.shape, chunk_shape, strict=True)):
            if axis in self.kept:
                tiles.append(edges_of(RegularAxis(size, step)))
                blocks.append(tiles[-1])
                continue
            tiles.append(np.array([0, size], dtype=np.int64))
            count = self.groups if axis == self.kind.axis else 1
            blocks.append(edges_of(RegularAxis(count, step)))
        return Groups(tuple(tiles)), Groups(tuple(blocks))

    def _edges(self, axis: int) -> Edges:
        """Return the chunk edges of the selected part of an axis."""
        start, size = self.origin[axis], self.shape[axis]
        edges = np.clip(edges_of(self.axes[axis]), start, start + size) - start
        return np.unique(edges) if size else edges[:1]

    def _lengths(self) -> list[int]:
        """Return the elements of a tile along each axis that stays."""
        sizes = [max(1, self.shape[axis]) for axis in self.kept]
        lengths = [
            min(self.axes[axis].largest or 1, size)
            for axis, size in zip(self.kept, sizes, strict=True)
        ]
        wanted = max(_LEAST_TASK_BYTES, self.total // (_WAVES * self.cores)) if self.cores else None
        read_at_once = self.over if self.whole else self.chunk
        growing = [n for n, size in enumerate(sizes) if lengths[n] < size]
        while growing:
            # The last axis first: its chunks are neighbours.
            number = growing[-1]
            longer = min(2 * lengths[number], sizes[number])
            tile = math.prod(lengths) // lengths[number] * longer
            fits = (
                tile * max(self.groups, 1) * self.cell_bytes <= self.memory // 4
                and tile * read_at_once * self.item_bytes <= self.memory // 4
                and tile * _ITEM <= _CHUNK_BYTES
                and (wanted is None or tile * self.over * self.item_bytes <= wanted)
            )
            if not fits:
                growing.pop()
                continue
            lengths[number] = longer
            if longer == sizes[number]:
                growing.pop()
        return lengths

    def _chunk_groups(self, tile: int) -> int:
        """Return the groups of a chunk of the result."""
        return max(1, min(self.groups, _CHUNK_BYTES // (_ITEM * tile)))

    def _ends_of_runs(self, strands: Sequence[Strand]) -> list[int]:
        """Return the ends of the runs of groups in strands."""
        found: set[int] = set()
        for strand in strands:
            for first, end in runs_of_groups(strand.groups):
                found |= {int(strand.groups[first]), int(strand.groups[end - 1]) + 1}
        return sorted(found - {self.groups})

    def _strand(self, positions: DimSelection, groups: NDArray[np.int64] | None = None) -> Strand:
        if groups is None:
            groups = np.unique(self.codes[positions.positions()])
        ranges = tuple((0, self.shape[axis]) for axis in self.kind.others)
        return Strand(positions=positions, groups=groups[groups >= 0], ranges=ranges)

    def _all(self) -> Strand:
        size = len(self.codes)
        used = self.codes >= 0
        positions = DimSelection.whole(size) if used.all() else DimSelection.of_mask(used)
        return self._strand(positions, np.arange(self.groups, dtype=np.int64))

    def _longest(self, strands: Sequence[Strand]) -> int:
        others = math.prod(self.shape[axis] for axis in self.kind.others)
        return others * max((strand.positions.count for strand in strands), default=0)

    def _ranges(self, tile: int) -> list[Strand]:
        """Return strands of ranges of groups, which read chunks that they share again."""
        each = self._chunk_groups(tile)
        count = max(1, self.memory // 2 // (tile * self.cell_bytes))
        step = max(each, count // each * each)
        while True:
            strands = [
                self._strand(
                    DimSelection.of_mask((self.codes >= first) & (self.codes < first + step)),
                    np.arange(first, min(first + step, self.groups), dtype=np.int64),
                )
                for first in range(0, self.groups, step)
            ]
            if not self.whole or self._holds(tile, strands):
                return strands
            if step == 1:
                raise self._too_large(tile, strands)
            step = max(1, step // 2)

    def _holds(self, tile: int, strands: Sequence[Strand]) -> bool:
        return tile * self._longest(strands) * self.item_bytes <= self.memory

    def _too_large(self, tile: int, strands: Sequence[Strand]) -> InvalidInputError:
        needed = tile * self._longest(strands) * self.item_bytes
        return InvalidInputError(
            f"quantiles and the median of {self.name!r} need all values of a group in one task,"
            f" which are {needed:,} bytes for one chunk of the dimensions that stay, more than"
            f" memory={self.memory:,}: raise memory, or rechunk the array first so that a chunk has"
            " more elements along the reduced dimensions and fewer along the others",
            option="memory",
            variable=self.name,
            found=needed,
            allowed=self.memory,
        )

    def _strands(
        self, tile: int, tiles: int, *, fits: bool
    ) -> tuple[Literal["direct", "shuffled"], list[Strand]]:
        assert self.cores is not None
        enough = tiles >= 2 * self.cores or self.total <= 2 * _LEAST_TASK_BYTES
        if self.whole:
            strands = [self._all()]
            if enough and self._holds(tile, strands):
                return "direct", strands
            apart = self._apart(self.groups)
            for found in (apart, strands):
                if found and self._holds(tile, found):
                    return "direct", found
            raise self._too_large(tile, apart or strands)
        if enough and fits:
            return "direct", [self._all()]
        wanted = max(2, -(-_WAVES * self.cores // tiles))
        if tile * _ITEM >= _LEAST_CHUNK_BYTES:
            least = -(-tile * self.groups * self.cell_bytes // max(1, self.memory // 2))
            apart = self._apart(max(wanted, least))
            most = max((len(one.groups) for one in apart), default=0)
            if len(apart) >= min(wanted, self.cores, self.groups) > 1 and (
                tile * most * self.cell_bytes <= self.memory // 2
            ):
                return "direct", apart
        return "shuffled", self._cut(tile, wanted)

    def _apart(self, wanted: int) -> list[Strand]:
        """Return at most `wanted` strands without common groups and chunks, or none."""
        used = np.flatnonzero(self.codes >= 0)
        if not len(used):
            return []
        edges = self._edges(self.kind.axis)
        chunks = np.searchsorted(edges, used, "right") - 1
        pairs = np.unique(np.stack([chunks, self.codes[used]]), axis=1)
        # The component of each chunk and group: the first chunk that it is connected with.
        of_chunk = np.arange(len(edges) - 1)
        of_group = np.full(self.groups, len(edges))
        while True:
            before = of_chunk.copy()
            np.minimum.at(of_group, pairs[1], of_chunk[pairs[0]])
            np.minimum.at(of_chunk, pairs[0], of_group[pairs[1]])
            if np.array_equal(before, of_chunk):
                break
        component = np.unique(of_chunk[chunks], return_inverse=True)[1]
        counts = np.bincount(component)
        if len(counts) < 2:
            return []
        share = np.cumsum(counts) - counts / 2
        bins = np.minimum((share * wanted / len(used)).astype(np.int64), wanted - 1)
        of_bin = bins[component]
        return [
            self._strand(DimSelection.of_indices(len(self.codes), used[of_bin == number]))
            for number in np.unique(bins)
        ]

    def _cut(self, tile: int, wanted: int) -> list[Strand]:
        """Return strands of contiguous elements along the reduced axis with enough chunks."""
        reduced = [self.kind.axis, *self.kind.others]
        edges = {axis: self._edges(axis) for axis in reduced}
        axis = self.kind.axis
        if len(edges[axis]) - 1 < wanted:
            axis = max(reduced, key=lambda one: len(edges[one]))
        while True:
            count = min(wanted, len(edges[axis]) - 1)
            ends = np.unique(np.linspace(0, len(edges[axis]) - 1, count + 1).round().astype(int))
            cuts = edges[axis][ends]
            strands = [
                self._between(axis, low, high) for low, high in itertools.pairwise(cuts.tolist())
            ]
            strands = [strand for strand in strands if len(strand.groups)]
            most = max((len(strand.groups) for strand in strands), default=0)
            if tile * most * self.cell_bytes <= self.memory // 2 or count < wanted:
                return strands
            if axis != self.kind.axis or count == len(edges[axis]) - 1:
                return strands
            wanted *= 2

    def _between(self, axis: int, low: int, high: int) -> Strand:
        size = len(self.codes)
        if axis == self.kind.axis:
            used = np.zeros(size, dtype=bool)
            used[low:high] = self.codes[low:high] >= 0
            return self._strand(DimSelection.of_mask(used))
        whole = self._all()
        ranges = tuple(
            (low, high) if other == axis else (0, self.shape[other]) for other in self.kind.others
        )
        return Strand(positions=whole.positions, groups=whole.groups, ranges=ranges)


def runs_of_groups(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers among ascending ones, as indices."""
    starts = np.flatnonzero(np.diff(groups, prepend=-2) != 1)
    ends = np.append(starts[1:], len(groups))
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
