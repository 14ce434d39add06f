"""Cuts a table into files: boxes of whole chunks of the leading array.

The table's cells are divided into groups of chunks, which are the same in every snapshot. A file
holds a group or a part of it: if the array grows inside a group, the new cells get a separate file,
and the older file is kept.

Rules of this file
------------------
1. A box is ``int64 (ndim, 2)``: the range of elements along each dimension.
2. A file never extends beyond its group, so missing cells are found group by group.
3. Costs grow with the sum of files, groups and changed chunks, not with their product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.cover import Boxes, clip, cover, paint
from icechunk_format.grid.groups import edges_of
from icechunk_format.groups import DimSelection

ROWS_PER_FILE: Final = 2_000_000
"""Rows of a file, unless its columns are wide."""
_BYTES_PER_FILE: Final = 128 * 2**20
# Approximate limit for the number of files of the default size, which grows instead; an explicit
# size may give more files.
_MAX_DEFAULT_FILES: Final = 50_000
_MAX_FILES: Final = 1_000_000
# If chunks change, groups may become larger than before, or than one chunk.
_LARGEST_GROWTH: Final = 4
_NAME: Final = re.compile(r"cells-(all|\d+_\d+(?:-\d+_\d+)*)-[0-9a-f]{16}\.parquet")


def file_name(box: Boxes, token: str) -> str:
    """Return the name of the file of a box; ``token`` is 16 hexadecimal digits."""
    bounds = "-".join(f"{low}_{high}" for low, high in box.tolist())
    return f"cells-{bounds or 'all'}-{token}.parquet"


def boxes_in_names(names: Sequence[str], ndim: int) -> Boxes | None:
    """Parse the boxes in names of files, ``(n, ndim, 2)``; None if a name has no box."""
    boxes = np.zeros((len(names), ndim, 2), dtype=np.int64)
    for number, name in enumerate(names):
        match = _NAME.fullmatch(name)
        bounds = [] if match is None or match[1] == "all" else match[1].split("-")
        if match is None or len(bounds) != ndim or any(len(pair) > 40 for pair in bounds):
            return None
        boxes[number] = np.array([pair.split("_") for pair in bounds], dtype=np.int64).reshape(
            ndim, 2
        )
    return boxes


def is_file_name(name: str) -> bool:
    """Return True if a name has the format of ``file_name``."""
    return _NAME.fullmatch(name) is not None


def value_bytes(arrow_type: pa.DataType) -> int:
    """Return the approximate size of a value in bytes."""
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:  # strings and lists have no width
        return 20


def chunks_per_file(
    axes: Sequence[ChunkAxis], row_bytes: int, rows_per_file: int | None
) -> tuple[int, ...]:
    """Return the number of chunks of a group along each dimension.

    The leading axis is cut first and later axes stay whole, so that a group is contiguous. Along
    the cut axis, a group may be longer than the current array.
    """
    cells = 1.0
    for axis in axes:
        cells *= axis.size or axis.step
    wanted = rows_per_file or max(
        min(ROWS_PER_FILE, _BYTES_PER_FILE // max(row_bytes, 1)), cells / _MAX_DEFAULT_FILES
    )
    steps = [max(axis.count, 1) for axis in axes]
    for number, axis in enumerate(axes):
        cells /= max(axis.count, 1)
        fitting = int(wanted // max(cells, 1.0))
        steps[number] = max(fitting, 1)
        if fitting:
            break
    return tuple(steps)


def groups_of_files(
    former: Sequence[ChunkAxis], axes: Sequence[ChunkAxis], steps: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the chunks of a group after rechunking, so that each older group is in one group.

    Returns None if there is no such number, or groups would be much larger than before.
    """
    found: list[int] = []
    cells, least, chunk = 1.0, 1.0, 1.0
    for was, now, step in zip(former, axes, steps, strict=True):
        if was.edges is not None or now.edges is not None:
            if type(was) is not type(now):
                return None
            found.append(step)
            continue
        size = math.lcm(was.step * step, now.step) if was.step != now.step else was.step * step
        found.append(size // now.step)
        cells *= min(size, now.size)
        least *= min(was.step * step, now.size)
        chunk *= min(now.step, now.size)
    return tuple(found) if cells <= _LARGEST_GROWTH * max(least, chunk) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroups:
    """The groups of chunks of a table that are copied to files."""

    axes: tuple[ChunkAxis, ...]
    """Chunk edges of the table along each dimension."""
    steps: tuple[int, ...]
    """Chunks of a group along each dimension."""
    selections: tuple[DimSelection, ...]
    """Copied positions along each dimension."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of groups along each dimension."""
        return tuple(
            -(-axis.count // step) for axis, step in zip(self.axes, self.steps, strict=True)
        )

    def rows(self, boxes: Boxes) -> NDArray[np.int64]:
        """Count the selected cells of each box."""
        rows = np.ones(len(boxes), dtype=np.int64)
        for number, selection in enumerate(self.selections):
            rows *= _count(selection, boxes[:, number])
        return rows

    def fit(self, boxes: Boxes) -> NDArray[np.bool_]:
        """Return a mask of the boxes that are inside the arrays and each in one group."""
        fits = np.ones(len(boxes), dtype=bool)
        for number, axis in enumerate(self.axes):
            low, high = boxes[:, number, 0], boxes[:, number, 1]
            fits &= (low >= 0) & (low < high) & (high <= axis.size)
            if axis.size:
                first, last = (np.clip(e, 0, axis.size - 1) for e in (low, high - 1))
                fits &= self._group(number, first) == self._group(number, last)
        return fits

    def missing(self, kept: Boxes) -> Boxes:
        """Return boxes, in C order, of all selected cells outside of the kept boxes.

        Kept boxes must be disjoint, and each in one group.

        Raises
        ------
        InvalidInputError
            There would be more than a million files.
        """
        ndim, shape = len(self.axes), self.shape
        if not ndim:
            return np.zeros((0 if len(kept) else 1, 0, 2), dtype=np.int64)
        if float(np.prod([float(n) for n in shape])) > _MAX_FILES:
            raise InvalidInputError(
                f"rowsPerPartition would cut the copy into more than {_MAX_FILES:,} files; raise"
                " it, leave it out, or select less"
            )
        sides = []
        for axis, step in zip(self.axes, self.steps, strict=True):
            edges = edges_of(axis, step)
            sides.append(np.stack([edges[:-1], edges[1:]], axis=1))
        wanted = reduce(np.multiply.outer, map(_count, self.selections, sides))
        held, files = np.zeros((2, *shape), dtype=np.int64)
        owners = tuple(self._group(n, kept[:, n, 0]) for n in range(ndim))
        np.add.at(held, owners, self.rows(kept))
        np.add.at(files, owners, 1)
        open_groups = np.argwhere(held < wanted)
        boxes = np.stack([side[open_groups[:, n]] for n, side in enumerate(sides)], axis=1)
        partly = files[tuple(open_groups.T)] > 0
        parts = [boxes[~partly]]
        if partly.any():
            numbers = np.ravel_multi_index(owners, shape)
            order = np.argsort(numbers, kind="stable")
            ordered = numbers[order]
            wholes = np.ravel_multi_index(tuple(open_groups[partly].T), shape)
            for box, number in zip(boxes[partly], wholes, strict=True):
                first, last = np.searchsorted(ordered, [number, number + 1])
                cut, covered = cover(box, kept[order[first:last]])
                parts.append(cut[~covered])
        found = np.concatenate(parts)
        found = found[self.rows(found) > 0]
        return found[np.lexsort([found[:, n, 0] for n in reversed(range(ndim))])]

    def _group(self, number: int, elements: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(self.axes[number].chunk_of(elements) // self.steps[number])


def _count(selection: DimSelection, ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the selected positions in each range ``(start, stop)`` of a dimension."""
    first, last = selection.rank(ranges.T)
    return np.asarray(np.maximum(last - first, 0))


def touched(boxes: Boxes, changed: Boxes) -> NDArray[np.bool_]:
    """Return a mask of the boxes that hold a cell of any changed box.

    The edges of the boxes form a coarse grid. The changed boxes are widened to this grid and
    marked; cumulative sums give the number of marked cells in each box.
    """
    if not len(boxes):
        return np.zeros(0, dtype=bool)
    ndim = boxes.shape[1]
    edges = [np.unique(boxes[:, n]) for n in range(ndim)]
    region = np.array([(e[0], e[-1]) for e in edges], dtype=np.int64).reshape(ndim, 2)
    widened, _ = clip(changed, region)
    if not ndim or not len(widened):
        return np.full(len(boxes), len(widened) > 0)
    sides = np.empty_like(boxes)
    for n, edge in enumerate(edges):
        sides[:, n] = np.searchsorted(edge, boxes[:, n])
        widened[:, n, 0] = edge[np.searchsorted(edge, widened[:, n, 0], side="right") - 1]
        widened[:, n, 1] = edge[np.searchsorted(edge, widened[:, n, 1])]
    sums = np.pad((paint(widened, edges) > 0).astype(np.int64), [(1, 0)] * ndim)
    for n in range(ndim):
        np.cumsum(sums, axis=n, out=sums)
    count = np.zeros(len(boxes), dtype=np.int64)
    for corner in product((0, 1), repeat=ndim):
        sign = -1 if (ndim - sum(corner)) % 2 else 1
        count += sign * sums[tuple(sides[:, n, side] for n, side in enumerate(corner))]
    return count > 0
