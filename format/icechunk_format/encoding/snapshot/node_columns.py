"""Nodes of a snapshot as NumPy columns with one item per node, dimension or manifest.

Paths, metadata documents and names are ranges of the bytes of their file.

Rules of this file
------------------
1. Columns are immutable; ``take`` returns new ones that share the bytes.
2. Ranges are not checked here: `decode_nodes` checks those of files.

Specification: tables ``NodeSnapshot`` and ``ArrayNodeData`` of ``snapshot.fbs``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import ne
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.tables.byte_ranges import copy_ranges, ragged_rows, starts_of

_MAX_BUFFERS: Final = 8
_STARTS: Final = ("path_starts", "user_data_starts", "name_starts")


class BytePool:
    """Several uint8 buffers, addressed as one; a range is inside one of them."""

    __slots__ = ("_buffers", "_starts", "size")

    def __init__(self, buffers: Sequence[NDArray[np.uint8]]) -> None:
        self._buffers = tuple(buffers)
        self._starts: list[int] = []
        self.size = 0
        for buffer in buffers:
            self._starts.append(self.size)
            self.size += buffer.size

    def get(self, start: int, length: int) -> bytes:
        """Return the bytes of a range."""
        if not length:
            return b""
        number = bisect_right(self._starts, start) - 1
        at = start - self._starts[number]
        return self._buffers[number][at : at + length].tobytes()

    def get_many(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[bytes]:
        """Return the bytes of ranges."""
        if len(self._buffers) != 1:
            return list(map(self.get, starts.tolist(), lengths.tolist()))
        data = memoryview(self._buffers[0])
        ends = (starts + lengths).tolist()
        return [bytes(data[a:b]) for a, b in zip(starts.tolist(), ends, strict=True)]

    def copy(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        target: NDArray[np.uint8],
        positions: NDArray[np.int64],
    ) -> None:
        """Copy ranges to positions in another buffer."""
        for first, buffer in zip(self._starts, self._buffers, strict=True):
            inside = np.flatnonzero((starts >= first) & (starts < first + buffer.size))
            rows = slice(None) if len(inside) == len(starts) else inside
            copy_ranges(buffer, starts[rows] - first, target, positions[rows], lengths[rows])

    def joined(self, other: BytePool) -> BytePool:
        """Return a pool of both; positions in ``other`` are shifted by the size of this pool."""
        buffers = [*self._buffers, *other._buffers]
        if len(buffers) > _MAX_BUFFERS:
            # Only the first may be large, so it is not copied.
            buffers = [buffers[0], np.concatenate(buffers[1:])]
        return BytePool(buffers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeColumns:
    """Nodes as columns.

    Columns have one item per node, except: ``array_lengths``, ``num_chunks`` and names have one per
    dimension of each array, ``ref_ids`` one row per manifest, and ``extents`` one row, uint32
    (first, end), per manifest and dimension. Starts and lengths refer to ``pool``; a name of length
    0 is absent.
    """

    pool: BytePool
    ids: NDArray[np.uint8]
    path_starts: NDArray[np.int64]
    path_lengths: NDArray[np.int64]
    user_data_starts: NDArray[np.int64]
    user_data_lengths: NDArray[np.int64]
    is_array: NDArray[np.bool_]
    has_names: NDArray[np.bool_]
    ndims: NDArray[np.int64]
    ref_counts: NDArray[np.int64]
    array_lengths: NDArray[np.uint64]
    num_chunks: NDArray[np.uint32]
    name_starts: NDArray[np.int64]
    name_lengths: NDArray[np.int64]
    ref_ids: NDArray[np.uint8]
    extents: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def extent_counts(self) -> NDArray[np.int64]:
        """Rows of ``extents`` of each node."""
        return self.ndims * self.ref_counts

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.pool.size + sum(column.nbytes for column in self._arrays().values())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "pool"}

    def path(self, row: int) -> bytes:
        """Return the bytes of a path."""
        return self.pool.get(int(self.path_starts[row]), int(self.path_lengths[row]))

    def paths(self) -> list[bytes]:
        """Return the bytes of all paths."""
        return self.pool.get_many(self.path_starts, self.path_lengths)

    def take(self, rows: NDArray[np.intp], more: NodeColumns | None = None) -> NodeColumns:
        """Return the nodes at ``rows``, which number those of ``more`` after the own ones."""
        columns = self._arrays()
        others: dict[str, NDArray[Any]] = {}
        pool = self.pool
        if more is not None:
            others = more._arrays()
            for name in _STARTS:
                others[name] = others[name] + pool.size
            pool = pool.joined(more.pool)

        def whole(name: str) -> NDArray[Any]:
            return np.concatenate([columns[name], others[name]]) if others else columns[name]

        ndims, ref_counts = whole("ndims"), whole("ref_counts")
        rows_of: dict[str, NDArray[Any]] = {}
        for counts, names in (
            (ndims, ("array_lengths", "num_chunks", "name_starts", "name_lengths")),
            (ref_counts, ("ref_ids",)),
            (ndims * ref_counts, ("extents",)),
        ):
            items = ragged_rows(starts_of(counts)[rows], counts[rows])
            rows_of.update(dict.fromkeys(names, items))
        # Columns are joined one by one, so that only one exists twice in memory.
        taken = {name: whole(name)[rows_of.get(name, rows)] for name in columns}
        return NodeColumns(pool=pool, **taken)

    def equals(self, other: NodeColumns) -> NDArray[np.bool_]:
        """Return a mask of the nodes that equal the node at the same row of ``other``."""
        same: NDArray[np.bool_] = np.ones(len(self), dtype=np.bool_)
        for name in ("ids", "is_array", "has_names", "ndims", "ref_counts"):
            equal = getattr(self, name) == getattr(other, name)
            same &= equal.all(axis=tuple(range(1, equal.ndim)))
        if not same.all():
            # The remaining columns may have different numbers of rows; compare equal nodes only.
            rows = np.flatnonzero(same)
            same[rows] = self.take(rows).equals(other.take(rows))
            return same
        nodes = np.arange(len(self))
        for counts, names in (
            (self.ndims, ("array_lengths", "num_chunks")),
            (self.ref_counts, ("ref_ids",)),
            (self.extent_counts, ("extents",)),
        ):
            for name in names:
                differs = getattr(self, name) != getattr(other, name)
                differs = differs.any(axis=tuple(range(1, differs.ndim)))
                same[np.repeat(nodes, counts)[differs]] = False
        once = np.ones_like(self.ndims)
        for name, counts in (("path", once), ("user_data", once), ("name", self.ndims)):
            left, right = (
                side.pool.get_many(
                    getattr(side, f"{name}_starts"), getattr(side, f"{name}_lengths")
                )
                for side in (self, other)
            )
            differs = np.fromiter(map(ne, left, right), dtype=np.bool_, count=len(left))
            same[np.repeat(nodes, counts)[differs]] = False
        return same

    def compacted(self) -> NodeColumns:
        """Drop unused bytes of the pool if they are more than three quarters of it."""
        spans = {name: getattr(self, f"{name}_lengths") for name in ("path", "user_data", "name")}
        used = sum(int(lengths.sum()) for lengths in spans.values())
        if self.pool.size <= 4 * used:
            return self
        arrays = self._arrays()
        buffer = np.empty(used, dtype=np.uint8)
        first = 0
        for name, lengths in spans.items():
            positions = first + starts_of(lengths)
            self.pool.copy(arrays[f"{name}_starts"], lengths, buffer, positions)
            arrays[f"{name}_starts"] = positions
            first += int(lengths.sum())
        return NodeColumns(pool=BytePool([buffer]), **arrays)
