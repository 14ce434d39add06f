"""Cuts blocks of cells into batches of rows, and builds each column of labels once.

The rows of a block are in C order. A batch is a whole number of steps along one axis. Labels of
later axes are therefore the same in all batches of a block (and often in the next block): they are
built once and sliced. Labels of earlier axes are one repeated value.

Values are sliced from the block's columns; they are copied only if rows are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BATCH_ROWS = 65_536
"""Rows of a batch; Spark reads batches of this size fastest."""

_MOST_KEPT_COLUMNS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """The columns of a block, before they are cut into batches."""

    shape: tuple[int, ...]
    labels: Mapping[int, tuple[str, pa.Array]]
    """Name and values of each requested label column, by axis."""
    keys: Sequence[Hashable]
    """For each axis, a key; blocks with equal keys have equal labels along it."""
    values: Mapping[str, pa.Array]
    """Columns of the whole block in C order, by name."""
    keep: pa.BooleanArray | None = None
    """``bool`` column of the block, or None to keep all rows."""


class BatchBuilder:
    """Cuts blocks into batches; keeps label columns from block to block."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, pa.Array] = {}

    def batches(self, block: BlockRows) -> Iterator[dict[str, pa.Array]]:
        """Yield the columns of each batch by name."""
        shape = block.shape
        axis, inner = len(shape) - 1, 1
        while axis >= 0 and inner * shape[axis] <= BATCH_ROWS:
            inner *= shape[axis]
            axis -= 1
        if axis < 0:
            yield from self._cut(block, 0, inner, self._columns(block, axis, inner, 1, ()))
            return
        steps = max(1, BATCH_ROWS // inner)
        # Even batches: 17 of 43 steps rather than 16 of 45 and a last one of 1.
        steps = -(-shape[axis] // -(-shape[axis] // steps))
        offset = 0
        for outer in product(*(range(n) for n in shape[:axis])):
            columns = self._columns(block, axis, inner, steps, outer)
            for step in range(0, shape[axis], steps):
                count = min(steps, shape[axis] - step) * inner
                along = self._along(block, axis, inner)
                cut = {name: column.slice(step * inner, count) for name, column in along.items()}
                yield from self._cut(block, offset, count, {**columns, **cut})
                offset += count

    def _cut(
        self, block: BlockRows, offset: int, count: int, labels: Mapping[str, pa.Array]
    ) -> Iterator[dict[str, pa.Array]]:
        columns = {
            name: column if len(column) == count else column.slice(0, count)
            for name, column in labels.items()
        }
        for name, column in block.values.items():
            columns[name] = column.slice(offset, count)
        if block.keep is not None:
            keep = block.keep.slice(offset, count)
            if keep.true_count < count:
                columns = {name: column.filter(keep) for name, column in columns.items()}
                if not keep.true_count:
                    return
        yield columns

    def _columns(
        self, block: BlockRows, axis: int, inner: int, steps: int, outer: tuple[int, ...]
    ) -> dict[str, pa.Array]:
        """Return the label columns of all other axes, with the length of the longest batch."""
        rows = steps * inner
        columns = {}
        for number, (name, labels) in block.labels.items():
            if number < axis:
                key: Hashable = ("before", number, block.keys[number], outer[number], rows)
                index = partial(np.full, rows, outer[number], dtype=np.int32)
            elif number > axis:
                key = ("behind", number, block.keys[number], block.shape[axis + 1 :], rows)
                index = partial(_numbers_behind, block.shape, number, rows)
            else:
                continue
            columns[name] = self._taken(key, labels, index)
        return columns

    def _along(self, block: BlockRows, axis: int, inner: int) -> dict[str, pa.Array]:
        if axis not in block.labels:
            return {}
        name, labels = block.labels[axis]
        if inner == 1:
            return {name: labels}
        key = ("along", axis, block.keys[axis], inner)
        index = partial(np.repeat, np.arange(block.shape[axis], dtype=np.int32), inner)
        return {name: self._taken(key, labels, index)}

    def _taken(
        self, key: Hashable, labels: pa.Array, index: Callable[[], NDArray[np.int32]]
    ) -> pa.Array:
        """Return the kept column of a key, or else the labels with these numbers, to be kept."""
        column = self._kept.get(key)
        if column is None:
            if len(self._kept) >= _MOST_KEPT_COLUMNS:
                # Drop the oldest entry: dictionaries keep the order of insertion.
                del self._kept[next(iter(self._kept))]
            column = self._kept[key] = labels.take(pa.array(index()))
        return column


def _numbers_behind(shape: Sequence[int], number: int, rows: int) -> NDArray[np.int32]:
    below = int(np.prod(shape[number + 1 :], dtype=np.int64))
    index = np.repeat(np.arange(shape[number], dtype=np.int32), below)
    return np.tile(index, rows // len(index)) if len(index) else index


def join_thin(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Join neighbouring batches of few rows, since Spark spends a fixed time on each batch.

    Batches of at least half of ``rows`` are passed on unchanged.
    """
    waiting: list[pa.RecordBatch] = []
    filled = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and filled + batch.num_rows > rows:
            yield from _joined(waiting, schema)
            waiting, filled = [], 0
        if not waiting and batch.num_rows >= rows // 2:
            yield batch
            continue
        waiting.append(batch)
        filled += batch.num_rows
    yield from _joined(waiting, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
        yield from table.to_batches()
    else:
        yield from batches
