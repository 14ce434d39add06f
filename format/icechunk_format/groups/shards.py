"""Fetches inner chunks of shards: by byte range, or as whole shards.

A shard is one stored chunk with an index of its inner chunks. A read of few inner chunks fetches
the index (once per process) and then their ranges. A read of most of a shard, or of a small shard,
fetches all of it. All shards of a block are fetched in two batches of requests.

Specification: Zarr v3, ``sharding_indexed``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, ChunkRefs
from icechunk_format.errors import FormatError
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.chunks.source import TO_END
from icechunk_format.repository.files import Loaded, metadata_cache
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.sharding import Sharding

# Up to this size, one request for the whole shard beats a round trip for the index first.
_SMALL_SHARD_BYTES = 256 * 1024
# A read of at least this share of a shard's inner chunks fetches the whole shard.
_MOST_OF_A_SHARD = 0.5

_NOT_STORED = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardReads:
    """Fetches inner chunks of one sharded array.

    ``grid`` is the grid of the shards; ``path`` names the array in messages.
    """

    sharding: Sharding
    grid: ChunkGrid
    lookup: ChunkLookup
    chunk_source: ChunkSource
    path: str

    def shard_of(self, coords: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the coordinates of each inner chunk's shard, and its coordinates in the shard."""
        shards, local = np.empty_like(coords), np.empty_like(coords)
        for number, (axis, step) in enumerate(
            zip(self.grid.axes, self.sharding.inner_shape, strict=True)
        ):
            shards[:, number] = axis.chunk_of(coords[:, number] * step)
            local[:, number] = coords[:, number] - axis.start_of(shards[:, number]) // step
        return shards, local

    def fetch(self, coords: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[bytes]]:
        """Fetch inner chunks; return the positions of existing ones, ascending, and their bytes.

        ``coords`` is ``int64 (m, ndim)``, in the grid of all inner chunks of the array.
        """
        request = _ShardRequest(self, coords)
        payloads: dict[int, bytes] = {}
        whole, refs = request.whole, request.refs
        if whole.any():
            chosen = np.flatnonzero(whole)
            shards = self.chunk_source.fetch(refs, request.rows[chosen])
            for number, shard in zip(chosen.tolist(), shards, strict=True):
                shape = request.shapes[number]
                index = self.sharding.decode_index(
                    self._index_bytes(shard, shape), shape, shard_nbytes=len(shard), what=self.path
                )
                members = request.members(number)
                found = index[tuple(request.local[members].T)].reshape(-1, 2)
                for member, (offset, length) in zip(members.tolist(), found.tolist(), strict=True):
                    if offset != int(_NOT_STORED) or length != int(_NOT_STORED):
                        payloads[member] = shard[offset : offset + length]
        ranged = np.flatnonzero(~whole)
        if len(ranged):
            stored, rows, ranges = self._stored_ranges(request, ranged)
            parts = self.chunk_source.fetch(refs, rows, ranges)
            payloads.update(zip(stored.tolist(), parts, strict=True))
        positions = np.array(sorted(payloads), dtype=np.int64)
        return positions, [payloads[position] for position in positions.tolist()]

    def stored_bytes(self, coords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that ``fetch`` holds of each inner chunk: those of its shard, shared.

        Nothing is fetched. The bytes of a shard are divided among its requested chunks.
        """
        request = _ShardRequest(self, coords)
        sizes = np.zeros(len(coords), dtype=np.int64)
        for number, row in enumerate(request.rows.tolist()):
            members = request.members(number)
            sizes[members] = -(-int(request.refs.length[row]) // len(members))
        return sizes

    def planned_reads(
        self, coords: NDArray[np.int64], known: set[Hashable]
    ) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        """Return the positions of existing inner chunks, and the reads of ``fetch``.

        Reads are pairs of requests and bytes. Shards in ``known`` do not count their index; other
        shards do, and are added to ``known``. Only indexes are fetched.
        """
        request = _ShardRequest(self, coords)
        reads = [self.chunk_source.planned_reads(request.refs, request.rows[request.whole])]
        ranged = np.flatnonzero(~request.whole)
        stored, _, _ = self._stored_ranges(request, np.flatnonzero(request.whole))
        if len(ranged):
            reads.append(self._planned_index_reads(request, ranged, known))
            parts, rows, ranges = self._stored_ranges(request, ranged)
            reads.append(self.chunk_source.planned_reads(request.refs, rows, ranges))
            stored = np.sort(np.concatenate([stored, parts]))
        return stored, reads

    def planned_index_reads(
        self, coords: NDArray[np.int64], known: set[Hashable]
    ) -> tuple[int, int]:
        """Return the number of requests and bytes with which ``stored`` reads indexes."""
        request = _ShardRequest(self, coords)
        return self._planned_index_reads(request, np.arange(len(request.rows)), known)

    def stored(self, coords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of existing inner chunks; only indexes are fetched."""
        request = _ShardRequest(self, coords)
        positions, _, _ = self._stored_ranges(request, np.arange(len(request.rows)))
        return positions

    def _stored_ranges(
        self, request: _ShardRequest, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return positions, rows and byte ranges of the existing inner chunks of some shards."""
        entries = np.full((len(request.local), 2), _NOT_STORED, dtype=np.uint64)
        rows = np.empty(len(request.local), dtype=np.int64)
        for number, index in zip(numbers.tolist(), self._indexes(request, numbers), strict=True):
            members = request.members(number)
            rows[members] = request.rows[number]
            entries[members] = index[tuple(request.local[members].T)].reshape(-1, 2)
        stored = np.flatnonzero((entries != _NOT_STORED).any(axis=1))
        starts = entries[stored, 0].astype(np.int64)
        ranges = np.stack([starts, starts + entries[stored, 1].astype(np.int64)], axis=-1)
        return stored, rows[stored], ranges

    def _index_ranges(
        self, request: _ShardRequest, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the byte ranges of the indexes of some shards."""
        ranges = np.empty((len(numbers), 2), dtype=np.int64)
        for row, number in enumerate(numbers.tolist()):
            size = self.sharding.index_nbytes(request.shapes[number])
            at_end = self.sharding.index_location == "end"
            ranges[row] = (-size, TO_END) if at_end else (0, size)
        return ranges

    def _planned_index_reads(
        self, request: _ShardRequest, numbers: NDArray[np.int64], known: set[Hashable]
    ) -> tuple[int, int]:
        keys = [(self.path, _identity(request.refs, int(row))) for row in request.rows[numbers]]
        new = numbers[[key not in known for key in keys]]
        known.update(keys)
        ranges = self._index_ranges(request, new)
        return self.chunk_source.planned_reads(request.refs, request.rows[new], ranges)

    def _indexes(
        self, request: _ShardRequest, numbers: NDArray[np.int64]
    ) -> list[NDArray[np.uint64]]:
        """Return the indexes of some shards of a request; fetch those that are not cached."""
        refs = request.refs

        def load(positions: list[int]) -> list[Loaded[NDArray[np.uint64]]]:
            chosen = numbers[positions]
            ranges = self._index_ranges(request, chosen)
            parts = self.chunk_source.fetch(refs, request.rows[chosen], ranges)
            loaded = []
            for number, part in zip(chosen.tolist(), parts, strict=True):
                row = int(request.rows[number])
                inline = int(refs.kind[row]) == KIND_INLINE
                size = len(refs.inline(row)) if inline else int(refs.length[row])
                index = self.sharding.decode_index(
                    part, request.shapes[number], shard_nbytes=size, what=self.path
                )
                loaded.append(Loaded(index, index.nbytes + 500))
            return loaded

        scope = ("shard index", self.chunk_source.cache_scope, self.path)
        rows = request.rows[numbers].tolist()
        return metadata_cache().get_many([(scope, _identity(refs, row)) for row in rows], load)

    def _index_bytes(self, shard: bytes, shape: tuple[int, ...]) -> bytes:
        size = self.sharding.index_nbytes(shape)
        if size > len(shard):
            raise FormatError(
                f"the shard has {len(shard)} bytes, its index alone needs {size}",
                object_key=self.path,
                file_type="shard",
                field="index",
            )
        return shard[-size:] if self.sharding.index_location == "end" else shard[:size]


class _ShardRequest:
    """Requested inner chunks, grouped by existing shard."""

    def __init__(self, reads: ShardReads, coords: NDArray[np.int64]) -> None:
        shards, self.local = reads.shard_of(coords)
        if coords.shape[1]:
            unique, inverse = np.unique(shards, axis=0, return_inverse=True)
            inverse = inverse.reshape(-1)
        else:
            unique, inverse = shards[:1], np.zeros(len(shards), dtype=np.int64)
        found = reads.lookup.find(unique.astype(np.uint32))
        self.refs = found.refs
        self.rows: NDArray[np.int64] = found.rows
        number_of = np.full(len(unique), -1, dtype=np.int64)
        number_of[found.positions] = np.arange(len(found.positions))
        owners = number_of[inverse]
        self._order = np.argsort(owners, kind="stable")
        self._ends = np.searchsorted(owners[self._order], np.arange(len(found.positions) + 1))
        self.shapes = [reads.grid.full_chunk_shape(c) for c in unique[found.positions].tolist()]
        needed = np.diff(self._ends)
        totals = np.array(
            [math.prod(reads.sharding.inner_grid(shape)) for shape in self.shapes], dtype=np.int64
        )
        small = self.refs.length[self.rows] <= _SMALL_SHARD_BYTES
        self.whole: NDArray[np.bool_] = (needed >= totals * _MOST_OF_A_SHARD) | small

    def members(self, number: int) -> NDArray[np.int64]:
        """Return the requested inner chunks of a shard."""
        return self._order[self._ends[number] : self._ends[number + 1]]


def _identity(refs: ChunkRefs, row: int) -> Hashable:
    """Return the key of a shard, unique within its array."""
    start, length = int(refs.offset[row]), int(refs.length[row])
    kind = int(refs.kind[row])
    stored: Hashable
    if kind == KIND_NATIVE:
        stored = refs.chunk_id[row].tobytes()
    elif kind == KIND_INLINE:
        stored = refs.inline(row)
    else:
        stored = (refs.location(row), refs.etag(row), int(refs.last_modified[row]))
    return kind, stored, start, length
