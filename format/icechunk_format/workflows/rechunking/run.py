"""Runs the tasks of a rechunking: reads groups, cuts and joins pieces, and writes groups.

Rules of this file
------------------
1. Stored values are copied bit by bit, without CF decoding.
2. A piece with only the fill value is not sent. Other pieces are compressed with a fast codec,
   since Spark copies each byte several times.
3. Memory of a task is one group of values, a batch of encoded chunks, and the references of the
   task.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from icechunk_format.grid.groups import Box, Groups
from icechunk_format.groups import SnapshotSource
from icechunk_format.groups.changing import Destination, TaskFiles, TaskReceipt, index_of_box
from icechunk_format.workflows.rechunking.plan import ArrayPlan
from icechunk_format.zarr.codecs.compressors import Blosc
from icechunk_format.zarr.fill_values import is_all_fill

_PIECE_BYTES: Final = 16 * 2**20
_FETCHED_AT_ONCE: Final = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rechunking:
    """The context of all tasks; picklable."""

    source: SnapshotSource
    destination: Destination
    arrays: Mapping[str, ArrayPlan]
    """Plans by path of the new array."""
    memory: int = _FETCHED_AT_ONCE
    """Maximum bytes of encoded chunks that a task holds, up to a limit."""

    def read(self, plan: ArrayPlan, box: Box) -> NDArray[Any]:
        """Read a box of the selected part of an array of the source."""
        lower, upper = (np.add(edge, plan.origin).tolist() for edge in box)
        reader = self.source.open().reader(plan.source_path)
        return reader.read_box(lower, upper, min(_FETCHED_AT_ONCE, self.memory))


class Piece(NamedTuple):
    """The values of a box that is sent to one group."""

    group: int
    box: bytes
    """First elements and ends along each axis, as ``int64`` bytes."""
    values: bytes


def copy_group(work: Rechunking, task: tuple[str, int]) -> TaskReceipt:
    """Copy one group of the target; a task is the path of the new array and a group number."""
    path, number = task
    plan = work.arrays[path]
    lower, upper = plan.groups.box(number)
    blocks = TaskFiles(work.destination)
    blocks.write(plan.target, lower, work.read(plan, (lower, upper)))
    return blocks.receipt()


def cut_group(work: Rechunking, task: tuple[str, int]) -> Iterator[Piece]:
    """Read a group of the source; yield its pieces."""
    path, number = task
    plan = work.arrays[path]
    box = plan.source.box(number)
    yield from _cut(plan, box, work.read(plan, box), plan.middle or plan.groups)


def cut_again(work: Rechunking, path: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join pieces to intermediate groups, and cut these for groups of the target."""
    plan = work.arrays[path]
    assert plan.middle is not None
    for box, values in _joined(plan, plan.middle, pieces):
        yield from _cut(plan, box, values, plan.groups)


def _cut(plan: ArrayPlan, box: Box, values: NDArray[Any], groups: Groups) -> Iterator[Piece]:
    fill = plan.target.metadata.fill_value
    for group, shared in groups.meeting(box):
        for part in _bounded(shared, values.itemsize):
            piece = np.ascontiguousarray(values[index_of_box(box[0], *part)])
            if not is_all_fill(piece, fill):
                yield Piece(group, np.array(part, np.int64).tobytes(), _compressed(piece))


def write_groups(work: Rechunking, path: str, pieces: Iterable[Piece]) -> TaskReceipt:
    """Write groups of the target from their pieces, sorted by group."""
    plan = work.arrays[path]
    blocks = TaskFiles(work.destination)
    for (lower, _), values in _joined(plan, plan.groups, pieces):
        blocks.write(plan.target, lower, values)
    return blocks.receipt()


def _joined(
    plan: ArrayPlan, groups: Groups, pieces: Iterable[Piece]
) -> Iterator[tuple[Box, NDArray[Any]]]:
    """Join the pieces of each group; yield boxes and values."""
    for number, found in itertools.groupby(pieces, key=lambda piece: piece.group):
        lower, upper = groups.box(number)
        values = plan.target.metadata.fill_array([b - a for a, b in zip(lower, upper, strict=True)])
        for piece in found:
            box = np.frombuffer(piece.box, np.int64).reshape(2, -1)
            shape = tuple((box[1] - box[0]).tolist())
            part = _decompressed(piece.values, values.dtype, shape)
            values[index_of_box(lower, *box.tolist())] = part
        yield (lower, upper), values


def _bounded(box: Box, item: int) -> Iterator[Box]:
    """Yield a box in parts of bounded size, cut along the longest axes."""
    lower, upper = box
    shape = [high - low for low, high in zip(lower, upper, strict=True)]
    nbytes = item * math.prod(shape)
    if nbytes <= _PIECE_BYTES or max(shape, default=1) == 1:
        yield box
        return
    axis = max(range(len(shape)), key=shape.__getitem__)
    step = max(1, shape[axis] * _PIECE_BYTES // nbytes)
    for start in range(lower[axis], upper[axis], step):
        stop = min(start + step, upper[axis])
        part = (
            (*lower[:axis], start, *lower[axis + 1 :]),
            (*upper[:axis], stop, *upper[axis + 1 :]),
        )
        yield from _bounded(part, item)


def _compressed(values: NDArray[Any]) -> bytes:
    # Safe to pickle: the objects are strings and bytes that this job decoded.
    if values.dtype.hasobject:
        return pickle.dumps(values)
    return bytes(_compressor(values.dtype).encode(values.reshape(-1).view(np.uint8).data))


def _decompressed(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.hasobject:
        return np.asarray(pickle.loads(data)).reshape(shape)
    nbytes = dtype.itemsize * math.prod(shape)
    return np.frombuffer(_compressor(dtype).decode(data, nbytes, True), dtype).reshape(shape)


def _compressor(dtype: np.dtype[Any]) -> Blosc:
    return Blosc("pieces", "lz4", 5, blosc.SHUFFLE, 0, min(dtype.itemsize, blosc.MAX_TYPESIZE))
