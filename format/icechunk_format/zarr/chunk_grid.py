"""Converts between chunk coordinates and element indices of an array.

Rules of this file
------------------
1. A range is half-open: ``start`` is inside and ``stop`` is not.
2. A grid covers the shape and may exceed it. Bounds are clipped to the shape, but a chunk is always
   *stored* with its full shape.
3. A rectilinear axis is stored as runs of equal chunks, so its memory does not grow with the number
   of chunks.

Spec: Zarr v3 core, "Regular chunk grids", and the registered extension ``rectilinear``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.grid.axes import ChunkAxis, RegularAxis, RunAxis
from icechunk_format.zarr.named_configuration import (
    INT64_MAX,
    Member,
    is_integer,
    parse_named_configuration,
    shortened,
)


class ChunkGrid:
    """The chunk grid of an array.

    Attributes
    ----------
    num_chunks
        Chunks per axis with at least one element of the array.
    chunk_shape
        The shape of every chunk of a regular grid; ``None`` for a rectilinear one.
    """

    __slots__ = ("axes", "chunk_shape", "num_chunks", "shape")

    def __init__(self, axes: Sequence[ChunkAxis]) -> None:
        self.axes: tuple[ChunkAxis, ...] = tuple(axes)
        self.shape: tuple[int, ...] = tuple(axis.size for axis in self.axes)
        self.num_chunks: tuple[int, ...] = tuple(axis.count for axis in self.axes)
        sizes = tuple(axis.step for axis in self.axes if isinstance(axis, RegularAxis))
        self.chunk_shape: tuple[int, ...] | None = sizes if len(sizes) == len(self.axes) else None

    @classmethod
    def regular(cls, shape: Sequence[int], chunk_shape: Sequence[int]) -> ChunkGrid:
        """Make a grid of equal chunks."""
        if len(shape) != len(chunk_shape):
            raise InvalidInputError(
                f"shape {shortened(shape)} has {len(shape)} dimensions and chunk shape "
                f"{shortened(chunk_shape)} has {len(chunk_shape)}; they must have the same number"
            )
        if any(n < 0 for n in shape) or any(n < 1 for n in chunk_shape):
            raise InvalidInputError(
                f"shape {shortened(shape)} must not be negative and chunk shape "
                f"{shortened(chunk_shape)} must be at least 1 in every dimension"
            )
        return cls([RegularAxis(int(n), int(c)) for n, c in zip(shape, chunk_shape, strict=True)])

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return len(self.axes)

    def box_of(self, coords: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the first elements of one chunk and its ends (exclusive), clipped to the shape."""
        self._check(coords)
        bounds = [axis.bounds(int(i)) for axis, i in zip(self.axes, coords, strict=True)]
        return tuple(b[0] for b in bounds), tuple(b[1] for b in bounds)

    def full_chunk_shape(self, coords: Sequence[int]) -> tuple[int, ...]:
        """Return the stored shape of a chunk, which may exceed the array."""
        self._check(coords)
        if self.chunk_shape is not None:
            return self.chunk_shape
        return tuple(found.full_size(int(i)) for found, i in zip(self.axes, coords, strict=True))

    def chunks_of_box(
        self, lo: Sequence[int], hi: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return first and end (exclusive) of the chunks that overlap the elements ``[lo, hi)``.

        The box is clipped to the array; an empty box overlaps no chunk.
        """
        ranges = [
            axis.chunk_range(max(int(start), 0), min(int(stop), axis.size))
            for axis, start, stop in zip(self.axes, lo, hi, strict=True)
        ]
        return tuple(first for first, _ in ranges), tuple(end for _, end in ranges)

    def resized(self, shape: Sequence[int]) -> ChunkGrid:
        """Return the grid of the array with another shape; existing chunks keep their positions.

        A rectilinear axis that is too short is extended by one chunk, as in zarr-python.
        """
        if len(shape) != self.ndim or any(n < 0 for n in shape):
            raise InvalidInputError(
                f"shape {shortened(shape)} must have {self.ndim} dimensions, none negative"
            )
        return ChunkGrid([axis.resized(int(n)) for axis, n in zip(self.axes, shape, strict=True)])

    def to_json(self) -> dict[str, Any]:
        """Return the ``chunk_grid`` member of a ``zarr.json``."""
        sizes = [axis.to_json() for axis in self.axes]
        if self.chunk_shape is not None:
            return {"name": "regular", "configuration": {"chunk_shape": sizes}}
        inline = {"kind": "inline", "chunk_shapes": sizes}
        return {"name": "rectilinear", "configuration": inline}

    def _check(self, coords: Sequence[int]) -> None:
        for axis, i in enumerate(coords):
            if not 0 <= i < self.num_chunks[axis]:
                raise InvalidInputError(
                    f"chunk {i} does not exist: axis {axis} has {self.num_chunks[axis]} chunks"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkGrid) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)

    def __repr__(self) -> str:
        return f"ChunkGrid(shape={self.shape}, {self.to_json()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ChunkGrid, (self.axes,))


def parse_chunk_grid(
    value: object, shape: Sequence[int], *, unit: Sequence[int] | None = None, node_path: str = "/"
) -> ChunkGrid:
    """Read the ``chunk_grid`` member of a ``zarr.json``; raise UnsupportedError for unknown kinds.

    ``unit`` is the inner chunk shape of a sharded array. Older software wrote chunk size 0 for axes
    of length 0; it is read as the inner size, or as 1, since no such chunk was ever stored.
    """
    where = Member(node_path, "chunk_grid")
    named = parse_named_configuration(value, where)
    if named.name == "regular":
        key = "chunk_shape"
    elif named.name == "rectilinear":
        key = "chunk_shapes"
        if named.configuration.get("kind") != "inline":
            raise UnsupportedError(
                f"array {node_path!r} has a rectilinear chunk grid of kind "
                f"{shortened(named.configuration.get('kind'))}; only 'inline' is read",
                node_path=node_path,
            )
    else:
        raise UnsupportedError(
            f"array {node_path!r} has chunk grid {shortened(named.name)}; only 'regular' and "
            f"'rectilinear' are read",
            node_path=node_path,
            chunk_grid=named.name[:200],
        )
    sizes = named.configuration.get(key)
    where = where.at(f".configuration.{key}")
    if not isinstance(sizes, list) or len(sizes) != len(shape):
        raise where.error(
            f"expected one entry for each of the {len(shape)} dimensions, found {shortened(sizes)}"
        )
    axes: list[ChunkAxis] = []
    for axis, (size, extent) in enumerate(zip(sizes, shape, strict=True)):
        member = where.at(f"[{axis}]")
        if isinstance(size, list):
            axes.append(_parse_runs(size, extent, member))
            continue
        if named.name == "regular" and size == 0 and isinstance(size, int):
            size = 1 if unit is None or len(unit) != len(shape) else unit[axis]
        axes.append(RegularAxis(extent, _parse_size(size, member)))
    return ChunkGrid(axes)


def _parse_size(value: object, where: Member) -> int:
    # Older zarr-python wrote sizes such as true and 4.0, and reads them as 1 and 4.
    if value is True:
        return 1
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT64_MAX:
        return value
    raise where.error(
        f"a chunk size must be an integer from 1 to {INT64_MAX}, found {shortened(value)}"
    )


def _parse_runs(entries: list[Any], extent: int, where: Member) -> RunAxis:
    runs: list[tuple[int, int]] = []
    for i, entry in enumerate(entries):
        count = 1
        size = entry
        if isinstance(entry, list):
            if len(entry) != 2 or not is_integer(entry[1]) or not 1 <= entry[1] <= INT64_MAX:
                raise where.at(f"[{i}]").error(
                    f"a run of chunks must be [size, count], found {shortened(entry)}"
                )
            size, count = entry
        size = _parse_size(size, where.at(f"[{i}]"))
        if runs and runs[-1][0] == size:
            runs[-1] = (size, runs[-1][1] + count)
        else:
            runs.append((size, count))
    covered = sum(size * count for size, count in runs)
    if not runs or covered < extent or covered > INT64_MAX:
        raise where.error(
            f"the chunks cover {shortened(covered)} elements of an axis of {extent}; they must "
            f"cover it, and at most {INT64_MAX}"
        )
    return RunAxis(extent, runs)
