"""Plans the rechunking of one array.

Rules of this file
------------------
1. Chunks of the source are decoded once; those of the target are encoded once.
2. If both grids share edges that are close enough, one task reads and writes a group: *direct*.
   Otherwise tasks read groups of the source and cut them into pieces, which Spark shuffles to tasks
   that write groups of the target: *shuffled*. If memory allows only small pieces, a second shuffle
   joins them to intermediate groups, which are not stored.
3. All numbers are computed from the chunk edges along axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.groups import (
    Groups,
    between,
    cut,
    edges_of,
    join,
    windows,
)
from icechunk_format.groups import Variable, chunk_axes
from icechunk_format.groups.changing import ArrayTarget

# Minimum bytes of a shuffled array, and of a task.
_LEAST_TASK_BYTES: Final = 16 * 2**20
_LEAST_PIECE_BYTES: Final = 256 * 2**10
_TINY_PIECE_BYTES: Final = 2 * 2**10
_WAVES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayPlan:
    """The plan for one array."""

    target: ArrayTarget
    source_path: str
    origin: tuple[int, ...]
    """First selected element of the source along each axis; groups are relative to it."""
    kind: Literal["direct", "shuffled"]
    source: Groups
    """Groups of chunks of the source; equal to `groups` if tasks are direct."""
    groups: Groups
    """Groups of chunks of the target."""
    middle: Groups | None = None
    """Groups between two shuffles; None for one shuffle."""
    pieces: int
    """Maximum number of pieces to shuffle."""
    decoded_bytes: int
    """Decoded bytes of the array; an estimate for strings."""
    buffer_bytes: int
    """Bytes of the largest group."""
    source_chunks: int
    """Number of (inner) chunks to read, including missing chunks. A chunk that several groups read
    counts for each of them."""
    target_chunks: int
    """Number of chunks to write, including missing chunks."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        cut = 0 if self.kind == "direct" else len(self.source)
        return len(self.groups) + cut + (0 if self.middle is None else len(self.middle))

    @property
    def rounds(self) -> int:
        """Number of shuffles."""
        return 0 if self.kind == "direct" else 1 if self.middle is None else 2


def plan_array(
    variable: Variable,
    target: ArrayTarget,
    *,
    memory: int,
    cores: int | None,
    origin: Sequence[int] | None = None,
) -> ArrayPlan:
    """Plan one array.

    Parameters
    ----------
    memory
        Bytes of decoded values that a task may hold.
    cores
        Number of parallel tasks. None is one process without a shuffle, which reads chunks of the
        source several times if the grids do not share edges.

    Raises
    ------
    InvalidInputError
        The pieces would be too small to shuffle.
    """
    axes = chunk_axes(variable)
    origin = tuple(origin or (0,) * len(axes))
    shape = target.metadata.shape
    source = [
        cut(edges_of(axis), start, start + size)
        for axis, start, size in zip(axes, origin, shape, strict=True)
    ]
    edges = [edges_of(axis) for axis in target.metadata.grid.axes]
    item = variable.metadata.data_type.item_bytes
    total = item * int(np.prod([float(n) for n in shape]))
    common = windows(source, edges)
    # In one process, groups that share chunks read them again, so they are as large as possible.
    waves = _WAVES * cores if cores else 1
    at_once = min(memory, max(_LEAST_TASK_BYTES, total // waves))
    is_direct = common.largest * item <= memory and (
        total <= 2 * _LEAST_TASK_BYTES or len(common) >= 2 * (cores or 1)
    )
    groups = join(common.edges if is_direct else edges, source, common, at_once // item)
    parts = groups if is_direct else join(source, edges, common, at_once // item)
    pieces, middle = 0, None
    if not is_direct and cores is not None:
        pieces = _pieces(parts, groups)
        while total < pieces * _LEAST_PIECE_BYTES and at_once < memory:
            at_once = min(memory, 2 * at_once)
            groups = join(edges, source, common, at_once // item)
            parts = join(source, edges, common, at_once // item)
            pieces = _pieces(parts, groups)
        least = total // max(1, pieces)
        if least < _LEAST_PIECE_BYTES:
            middle = between(parts, groups)
            rounds = [_pieces(parts, middle), _pieces(middle, groups)]
            if 2 * max(rounds) < pieces:
                pieces, least = sum(rounds), total // max(rounds)
            else:
                middle = None
        if least < _TINY_PIECE_BYTES and pieces > 1:
            raise InvalidInputError(
                f"array {variable.path} would move in {pieces:,} pieces of about"
                f" {least:,} bytes; raise memory, or choose chunks more similar to the old ones",
                option="memory",
                variable=variable.name,
                pieces=pieces,
            )
    return ArrayPlan(
        target=target,
        source_path=variable.path,
        origin=origin,
        kind="shuffled" if pieces else "direct",
        source=parts,
        groups=groups,
        middle=middle,
        pieces=pieces,
        decoded_bytes=total,
        buffer_bytes=item * max(part.largest for part in (groups, parts, middle or groups)),
        source_chunks=_pieces(Groups(tuple(source)), parts if pieces else groups),
        target_chunks=int(np.prod([float(n) for n in target.metadata.grid.num_chunks])),
    )


def _pieces(source: Groups, target: Groups) -> int:
    """Return the number of intersections of the groups of source and target."""
    counts = [len(np.union1d(a, b)) - 1 for a, b in zip(source.edges, target.edges, strict=True)]
    return int(np.prod([float(count) for count in counts]))
