"""Plans the rechunking of one array.

Rules of this file
------------------
1. Chunks of the source are decoded once; those of the target are encoded once.
2. If both grids share edges that are close enough, one task reads and writes a group: *direct*.
   Otherwise tasks read groups of the source and cut them into pieces, which Spark shuffles to tasks
   that write groups of the target: *shuffled*.
3. Everything is computed from the edges of chunks along axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.rechunking.groups import Groups, edges_of, join, windows

# Minimum bytes of a shuffled array, and of a task.
_LEAST_TASK_BYTES: Final = 16 * 2**20
_LEAST_PIECE_BYTES: Final = 64 * 2**10
_TINY_PIECE_BYTES: Final = 2 * 2**10
_WAVES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayPlan:
    """The plan of moving the values of one array.

    Parameters
    ----------
    target
        The new array.
    source_path
        The array that is read.
    source, groups
        Groups of chunks of the source (equal to `groups` if tasks are direct) and of the target.
    pieces
        Maximum number of pieces to shuffle.
    decoded_bytes
        Bytes of the whole array; an estimate for strings.
    buffer_bytes
        Bytes of the largest group that a task holds.
    source_chunks, target_chunks
        Numbers of (inner) chunks to read, and of chunks to write, stored or missing.
    """

    target: ArrayTarget
    source_path: str
    kind: Literal["direct", "shuffled"]
    source: Groups
    groups: Groups
    pieces: int
    decoded_bytes: int
    buffer_bytes: int
    source_chunks: int
    target_chunks: int

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.groups) + (0 if self.kind == "direct" else len(self.source))


def plan_array(
    variable: Variable, target: ArrayTarget, *, memory: int, cores: int | None
) -> ArrayPlan:
    """Plan one array.

    Parameters
    ----------
    memory
        Bytes of decoded values that a task may hold.
    cores
        Tasks that run at once; None is one process without a shuffle, which reads chunks of the
        source several times if the grids do not share edges.

    Raises
    ------
    InvalidInputError
        The pieces would be too small to shuffle.
    """
    axes = variable.codecs.chunk_axes(variable.metadata.grid)
    source = [edges_of(axis) for axis in axes]
    edges = [edges_of(axis) for axis in target.metadata.grid.axes]
    dtype = variable.metadata.data_type.numpy
    item = 64 if dtype.hasobject else max(1, dtype.itemsize)
    total = item * int(np.prod([float(n) for n in variable.shape]))
    common = windows(source, edges)
    at_once = min(memory, max(_LEAST_TASK_BYTES, total // (_WAVES * (cores or 1))))
    is_direct = common.largest * item <= memory and (
        total <= 2 * _LEAST_TASK_BYTES or len(common) >= 2 * (cores or 1)
    )
    groups = join(common.edges if is_direct else edges, source, common, at_once // item)
    parts = groups if is_direct else join(source, edges, common, at_once // item)
    pieces = 0
    if not is_direct and cores is not None:
        pieces = _pieces(parts, groups)
        while total < pieces * _LEAST_PIECE_BYTES and at_once < memory:
            at_once = min(memory, 2 * at_once)
            groups = join(edges, source, common, at_once // item)
            parts = join(source, edges, common, at_once // item)
            pieces = _pieces(parts, groups)
        if total < pieces * _TINY_PIECE_BYTES:
            raise InvalidInputError(
                f"array {variable.path} would move in {pieces:,} pieces of about"
                f" {total // pieces:,} bytes; raise memory, or rechunk in two steps through chunks"
                " of a shape between the old and the new one",
                option="memory",
                variable=variable.name,
                pieces=pieces,
            )
    return ArrayPlan(
        target=target,
        source_path=variable.path,
        kind="shuffled" if pieces else "direct",
        source=parts,
        groups=groups,
        pieces=pieces,
        decoded_bytes=total,
        buffer_bytes=item * max(groups.largest, parts.largest),
        source_chunks=int(np.prod([float(axis.count) for axis in axes])),
        target_chunks=int(np.prod([float(n) for n in target.metadata.grid.num_chunks])),
    )


def _pieces(source: Groups, target: Groups) -> int:
    """Return the number of boxes into which both groups divide an array."""
    counts = [len(np.union1d(a, b)) - 1 for a, b in zip(source.edges, target.edges, strict=True)]
    return int(np.prod([float(count) for count in counts]))
