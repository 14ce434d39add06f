"""Runs the tasks of a reduction: reads strands of tiles, combines parts, and writes statistics.

Long because reading, combining and writing share the parts of a tile.

Rules of this file
------------------
1. A task decodes each of its chunks once, and holds one block of values and the parts of its tile.
2. Parts are pickled and compressed, one piece for each block of the result that a strand has parts
   of.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.grid.groups import Box
from icechunk_format.groups import ArrayReader, DimSelection, SnapshotSource
from icechunk_format.groups.changing import ArrayTarget, Destination, TaskFiles, TaskReceipt
from icechunk_format.tables.cf import VariableDecoder
from icechunk_format.workflows.reducing.plan import Strand, TilePlan, runs_of_groups
from icechunk_format.workflows.reducing.statistics import (
    NOWHERE,
    BlockParts,
    Finish,
    Kind,
    Parts,
    merge,
)
from icechunk_format.zarr.codecs.compressors import Blosc

_BLOCK_BYTES: Final = 32 * 2**20
_MOST_PIECE_BYTES: Final = 2**31
# Doubles represent every integer up to this one.
_LARGEST_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """How stored values become numbers; `decoder` is None for values that need no decoding."""

    dtype: np.dtype[Any]
    decoder: VariableDecoder | None = None
    missing: tuple[Any, ...] = ()
    """Missing values among stored times, which are reduced without decoding."""

    def decode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return numbers, with NaN for missing values."""
        if self.decoder is None:
            values = stored.astype(self.dtype, copy=False)
            for one in self.missing:
                values = np.where(stored == one, self.dtype.type(np.nan), values)
            if self.missing and stored.dtype.itemsize == 8 and stored.dtype.kind != "f":
                _check_exact(values)
            return values
        numbers, valid = self.decoder.decode_numeric(stored)
        numbers = numbers.astype(self.dtype, copy=False)
        if valid is None or self.dtype.kind != "f":
            return numbers
        return np.where(valid, numbers, self.dtype.type(np.nan))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """Weights along some axes of the array; their product is the weight of an element.

    Parameters
    ----------
    axes
        The axes of the array, in order of the axes of the weights.
    values
        The weights of the selected elements; None if they are read from the array at `path`.
    """

    axes: tuple[int, ...]
    values: NDArray[np.float64] | None = None
    path: str = ""
    numbers: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Output:
    """One statistic and the array that holds it."""

    statistic: str
    share: float | None
    """The quantile, from 0 to 1."""
    target: ArrayTarget
    missing: Any = None
    """The stored value of a missing result; None for NaN."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayReduction:
    """The plan for one array.

    Parameters
    ----------
    origin
        First selected element along each axis.
    codes
        The group of each selected element along the axis of groups.
    axes
        The axes of the array that the result has.
    """

    name: str
    source_path: str
    origin: tuple[int, ...]
    codes: NDArray[np.int64]
    kind: Kind
    values: Values
    plan: TilePlan
    axes: tuple[int, ...]
    outputs: tuple[Output, ...]
    finish: Finish
    factors: tuple[Factor, ...] = ()
    parts: Mapping[str, ArrayTarget] = field(default_factory=dict)
    """Arrays that store parts, by part; empty unless a result follows its source."""
    is_merged: bool = False
    """True if stored parts are merged with those of the elements that are read."""

    @property
    def is_whole(self) -> bool:
        """True if a task must hold all values of a group."""
        return any(output.share is not None for output in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reducing:
    """The context of all tasks; picklable.

    Parameters
    ----------
    destination
        None if results are returned rather than stored.
    arrays
        The reductions by name of the source variable.
    """

    source: SnapshotSource
    destination: Destination | None
    arrays: Mapping[str, ArrayReduction]
    memory: int


class Reduced(NamedTuple):
    """Values of a result that a task returns: the path, the first element, and the values."""

    path: str
    lower: tuple[int, ...]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReduceReceipt:
    """The outcome of a task: files, or values."""

    files: TaskReceipt | None = None
    values: tuple[Reduced, ...] = ()


class Piece(NamedTuple):
    """The parts that a strand has for one block of the result."""

    group: int
    box: bytes
    """Groups of the parts, as ``int64`` bytes."""
    values: bytes


def reduce_tile(work: Reducing, task: tuple[str, int, int]) -> ReduceReceipt:
    """Reduce a strand of a tile and write its groups; for direct arrays."""
    name, tile, number = task
    array = work.arrays[name]
    strand = array.plan.strands[number]
    results = _Results(work)
    reading = _Reading(work, array, tile, strand)
    state = reading.state()
    results.write(array, array.plan.tiles.box(tile), strand.groups, state, reading.quantiles)
    return results.receipt()


def cut_strand(work: Reducing, task: tuple[str, int, int]) -> Iterator[Piece]:
    """Reduce a strand of a tile; yield its parts, one piece for each block of the result."""
    name, tile, number = task
    array = work.arrays[name]
    strand, axis, blocks = array.plan.strands[number], array.kind.axis, array.plan.blocks
    state = _Reading(work, array, tile, strand).state()
    lower, _ = array.plan.tiles.box(tile)
    edges = blocks.edges[axis]
    of_group = np.searchsorted(edges, strand.groups, "right") - 1
    for part in np.unique(of_group).tolist():
        rows = np.flatnonzero(of_group == part)
        start = [0 if one == axis else low for one, low in enumerate(lower)]
        at = [
            part if one == axis else int(np.searchsorted(edges, low, "right")) - 1
            for one, (low, edges) in enumerate(zip(start, blocks.edges, strict=True))
        ]
        some = {
            key: np.ascontiguousarray(values.take(rows, axis=axis)) for key, values in state.items()
        }
        groups = strand.groups[rows]
        yield Piece(
            int(np.ravel_multi_index(at, blocks.counts)), groups.tobytes(), _serialized(some)
        )


def combine_pieces(work: Reducing, name: str, pieces: Iterable[Piece]) -> ReduceReceipt:
    """Combine the parts of blocks of the result, sorted by block, and write them."""
    array, results = work.arrays[name], _Results(work)
    axis = array.kind.axis
    for number, found in itertools.groupby(pieces, key=lambda piece: piece.group):
        lower, upper = array.plan.blocks.box(number)
        first, end = lower[axis], upper[axis]
        shape = [high - low for low, high in zip(lower, upper, strict=True)]
        state = array.kind.state(tuple(shape))
        for piece in found:
            groups = np.frombuffer(piece.box, np.int64) - first
            merge(array.kind, state, _unpacked(piece.values), groups)
        results.write(array, (lower, upper), np.arange(first, end), state, {})
    return results.receipt()


def _check_exact(values: NDArray[Any]) -> None:
    if (np.abs(values) > _LARGEST_EXACT).any():
        raise UnsupportedError(
            "times with missing values are reduced as doubles, which would round these: they are"
            " more than 2^53 units from their epoch; store them in coarser units"
        )


class _Results:
    """Writes or keeps statistics."""

    def __init__(self, work: Reducing) -> None:
        self._files = None if work.destination is None else TaskFiles(work.destination)
        self._kept: list[Reduced] = []

    def receipt(self) -> ReduceReceipt:
        """Return what was written or kept."""
        files = None if self._files is None else self._files.receipt()
        return ReduceReceipt(files=files, values=tuple(self._kept))

    def write(
        self,
        array: ArrayReduction,
        box: Box,
        groups: NDArray[np.int64],
        state: Parts,
        quantiles: Mapping[float, NDArray[Any]],
    ) -> None:
        """Write the statistics of some groups in a box of the source or of the result."""
        for output in array.outputs:
            dtype = output.target.metadata.data_type.numpy
            if output.share is not None:
                values = quantiles[output.share].astype(dtype)
            else:
                wide = np.dtype(np.float64) if output.missing is not None else dtype
                values = array.finish.statistic(output.statistic, array.kind, state, wide, groups)
            if output.missing is not None:
                values = np.where(np.isnan(values), output.missing, values).astype(dtype)
            if output.statistic.startswith("arg"):
                _check_there(array, output, values)
            self._put_groups(array, output.target, box, groups, values)
        for part, target in array.parts.items():
            self._put_groups(array, target, box, groups, state[part])

    def _put_groups(
        self,
        array: ArrayReduction,
        target: ArrayTarget,
        box: Box,
        groups: NDArray[np.int64],
        values: NDArray[Any],
    ) -> None:
        """Write the values of some groups in a box."""
        axis = array.kind.axis
        for first, end in runs_of_groups(groups):
            some = values[(*(slice(None),) * axis, slice(first, end))]
            lower = [int(groups[first]) if one == axis else low for one, low in enumerate(box[0])]
            shape = [some.shape[one] for one in array.axes]
            self._put(target, tuple(lower[one] for one in array.axes), some.reshape(shape))

    def _put(self, target: ArrayTarget, start: tuple[int, ...], values: NDArray[Any]) -> None:
        if self._files is None:
            self._kept.append(Reduced(target.path, start, values))
            return
        # Unlike ascontiguousarray, this keeps an array without axes as it is.
        self._files.write(target, start, np.asarray(values, order="C"))


def _check_there(array: ArrayReduction, output: Output, values: NDArray[Any]) -> None:
    if (values == NOWHERE).any():
        idx = output.statistic.replace("arg", "idx")
        raise InvalidInputError(
            f"{output.statistic} of {array.name!r} has no value for {(values == NOWHERE).sum()}"
            f" results, since all of their values are missing; use {idx}, which gives labels that"
            " may be missing",
            variable=array.name,
            statistic=output.statistic,
        )


class _Reading:
    """Reads a strand of a tile, and computes its parts."""

    def __init__(self, work: Reducing, array: ArrayReduction, tile: int, strand: Strand) -> None:
        self._array, self._strand, self._kind = array, strand, array.kind
        self._arrays = work.source.open()
        self._reader = self._arrays.reader(array.source_path)
        self._weights = {
            factor.path: self._arrays.reader(factor.path) for factor in array.factors if factor.path
        }
        self._box = array.plan.tiles.box(tile)
        self._destination = work.destination
        self._limit = min(_BLOCK_BYTES, max(1, work.memory // 4))
        self.quantiles: dict[float, NDArray[Any]] = {}

    def state(self) -> Parts:
        """Return the parts of the groups of the strand."""
        kind, strand = self._kind, self._strand
        lower, upper = self._box
        shape = [high - low for low, high in zip(lower, upper, strict=True)]
        for axis in (kind.axis, *kind.others):
            shape[axis] = len(strand.groups) if axis == kind.axis else 1
        state = kind.state(tuple(shape))
        if self._array.is_merged:
            self._load(state)
        for selections in self._blocks():
            positions = selections[kind.axis].positions() - self._array.origin[kind.axis]
            stored = self._reader.read(selections)
            values = self._array.values.decode(stored)
            codes = np.searchsorted(strand.groups, self._array.codes[positions])
            if kind.parts:
                weights = self._weights_of(selections, values.ndim)
                block = BlockParts(kind, values, codes, positions, weights)
                merge(kind, state, block.parts(), block.segments.groups)
            if self._array.is_whole:
                self._add_quantiles(values, codes, shape)
        return state

    def _load(self, state: Parts) -> None:
        """Read the stored parts of the groups of the strand."""
        array, axis = self._array, self._kind.axis
        assert self._destination is not None
        base = self._destination.open_base()
        lower, upper = (list(edge) for edge in self._box)
        groups = self._strand.groups.tolist()
        for part, target in array.parts.items():
            reader, old = base.reader(target.path), target.old_shape
            assert old is not None
            for first, end in runs_of_groups(self._strand.groups):
                lower[axis], upper[axis] = groups[first], groups[end - 1] + 1
                low = [lower[n] for n in array.axes]
                high = [min(upper[n], size) for n, size in zip(array.axes, old, strict=True)]
                if any(a >= b for a, b in zip(low, high, strict=True)):
                    continue  # groups that are new
                values = reader.read_box(low, high)
                shape = [1] * len(lower)
                for n, size in zip(array.axes, values.shape, strict=True):
                    shape[n] = size
                rows = slice(first, first + shape[axis])
                state[part][(*(slice(None),) * axis, rows)] = values.reshape(shape)

    def _blocks(self) -> Iterator[list[DimSelection]]:
        """Yield the selections of blocks of bounded size, cut at edges of chunks."""
        kind, reader = self._kind, self._reader
        lower, upper = self._box
        origin = self._array.origin
        item = max(reader.item_bytes, self._array.values.dtype.itemsize)
        reduced = (kind.axis, *kind.others)
        tile = math.prod(
            high - low
            for axis, (low, high) in enumerate(zip(lower, upper, strict=True))
            if axis not in reduced
        )
        left = self._limit // max(1, tile * item)
        if self._array.is_whole:
            left = np.iinfo(np.int64).max
        ranges = dict(zip(kind.others, self._strand.ranges, strict=True))
        chosen: dict[int, list[DimSelection]] = {}
        chunks = {axis: min(reader.axes[axis].largest, reader.shape[axis]) for axis in reduced}
        for number, axis in enumerate((*kind.others[::-1], kind.axis)):
            rest = (*kind.others[::-1], kind.axis)[number + 1 :]
            others = math.prod(chunks[one] for one in rest)
            if axis == kind.axis:
                within = self._strand.positions.positions() + origin[axis]
            else:
                within = np.arange(*ranges[axis]) + origin[axis]
            most = max(1, left // max(1, others))
            parts = _cut_at_chunks(reader, axis, within, most)
            chosen[axis] = parts
            left //= max(1, max((part.count for part in parts), default=1))
        kept = [
            DimSelection.span(reader.shape[axis], low + start, high + start)
            for axis, (low, high, start) in enumerate(zip(lower, upper, origin, strict=True))
        ]
        for parts_of_block in itertools.product(*(chosen[axis] for axis in reduced)):
            for axis, part in zip(reduced, parts_of_block, strict=True):
                kept[axis] = part
            yield list(kept)

    def _weights_of(
        self, selections: Sequence[DimSelection], ndim: int
    ) -> NDArray[np.float64] | None:
        """Return the product of all factors, with all axes."""
        product: NDArray[np.float64] | None = None
        for factor in self._array.factors:
            if factor.values is None:
                assert factor.numbers is not None
                stored = self._weights[factor.path].read([selections[one] for one in factor.axes])
                found = factor.numbers.decode(stored).astype(np.float64)
            else:
                at = [selections[one].positions() - self._array.origin[one] for one in factor.axes]
                found = factor.values[np.ix_(*at)] if at else factor.values
            if np.isnan(found).any():
                raise InvalidInputError(
                    f"weights of {self._array.name!r} have missing values, of which xarray and"
                    " this library know no meaning: set them to 0",
                    option="weights",
                    variable=self._array.name,
                )
            order = np.argsort(factor.axes)
            shape = [1] * ndim
            for axis, size in zip(factor.axes, found.shape, strict=True):
                shape[axis] = size
            found = found.transpose(order).reshape(shape)
            product = found if product is None else product * found
        return product

    def _add_quantiles(
        self, values: NDArray[Any], codes: NDArray[np.int64], shape: Sequence[int]
    ) -> None:
        """Compute quantiles from all values of the strand, which are one block."""
        kind = self._kind
        before = (slice(None),) * kind.axis
        axes = (kind.axis, *kind.others)
        for output in self._array.outputs:
            if output.share is None or output.share in self.quantiles:
                continue
            held = np.full(shape, np.nan)
            for group in np.unique(codes).tolist():
                some = values.compress(codes == group, axis=kind.axis)
                # As in xarray, of which quantiles of float32 are doubles, and medians are not.
                share = output.share if output.statistic == "median" else np.float64(output.share)
                held[(*before, slice(group, group + 1))] = _quantile(some, share, axes, kind.skipna)
            self.quantiles[output.share] = held


def _quantile(
    values: NDArray[Any], share: float, axes: tuple[int, ...], skipna: bool
) -> NDArray[Any]:
    if skipna and values.dtype.kind == "f" and np.isnan(values).any():
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of results without a value
            return np.asarray(np.nanquantile(values, share, axis=axes, keepdims=True))
    return np.asarray(np.quantile(values, share, axis=axes, keepdims=True))


def _cut_at_chunks(
    reader: ArrayReader, axis: int, elements: NDArray[np.int64], most: int
) -> list[DimSelection]:
    """Cut ascending elements of an axis into selections of whole chunks, of at most `most`."""
    chunks = reader.axes[axis].chunk_of(elements)
    starts = np.flatnonzero(np.diff(chunks, prepend=-1))
    ends = np.append(starts[1:], len(elements))
    found, first = [], 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - first > most and start > first:
            found.append(elements[first:start])
            first = start
    if first < len(elements):
        found.append(elements[first:])
    return [DimSelection.of_indices(reader.shape[axis], part) for part in found]


def _serialized(state: Parts) -> bytes:
    plain = {
        key: (str(values.dtype), values.shape, values.tobytes()) for key, values in state.items()
    }
    return bytes(_PACKING.encode(pickle.dumps(plain)))


def _unpacked(data: bytes) -> Parts:
    # Safe to pickle: the bytes are those that this job packed.
    plain = pickle.loads(_PACKING.decode(data, _MOST_PIECE_BYTES, False))
    return {
        key: np.frombuffer(held, dtype).reshape(shape)
        for key, (dtype, shape, held) in plain.items()
    }


_PACKING: Final = Blosc("pieces", "lz4", 5, blosc.SHUFFLE, 0, 8)
