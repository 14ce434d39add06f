"""Reads blocks of one array: finds the chunks, fetches them in batches, decodes and assembles.

``fetch`` waits for the network and ``decode`` uses the processor. They are separate calls, so that
a scan can fetch ahead of decoding.

Long because the cache of decoded chunks is part of requesting, fetching, decoding and counting.

Rules of this file
------------------
1. A block is a product of selections, one for each axis. Only chunks (under sharding, inner chunks)
   that hold a selected element are fetched. If most of a shard is needed, one request for the whole
   shard is cheaper.
2. A missing chunk, or a missing inner chunk of a shard, holds the fill value.
3. Arrays of a table may be chunked differently: a block cut at the chunks of one array uses part of
   a chunk of another, and the next block uses the rest. Fetching runs ahead of decoding, so the
   block that fetches such a chunk announces it; later blocks take the decoded chunk.
4. Shard indexes are kept in the metadata cache of the process under the identity of the stored
   chunk, whose bytes never change.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.groups.chunk_edges import AxisPick, any_partial, pick, product_coords
from icechunk_format.groups.positions import DimSelection
from icechunk_format.groups.shards import ShardReads
from icechunk_format.groups.variable import Variable
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.measures import count, timed
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.zarr_json import ArrayMetadata

# Bytes of an entry without its chunk; missing chunks also have entries.
_ENTRY_COST = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockRequest:
    """Lists the chunks that a block needs.

    Parameters
    ----------
    coords
        ``int64 (m, ndim)``: all chunks of the block, in C order.
    partial
        ``bool (m,)``: chunks of which the block uses only a part.
    wanted
        Positions in ``coords`` of the chunks to fetch.
    awaited
        Positions in ``coords`` of chunks that an earlier block has requested.
    """

    picks: list[AxisPick]
    coords: NDArray[np.int64]
    partial: NDArray[np.bool_]
    wanted: NDArray[np.int64]
    awaited: NDArray[np.int64]


FetchedBlock = tuple[NDArray[np.int64], list[bytes]]
"""The stored bytes of a block: positions among the chunks of its request, and their bytes."""


@dataclass(slots=True, kw_only=True, eq=False)
class DecodedBlock:
    """A block of values, C-contiguous, of the array's dtype.

    ``present`` is ``bool (m,)``: the chunks of the block that exist, in C order.
    """

    values: NDArray[Any]
    picks: list[AxisPick]
    present: NDArray[np.bool_]


class DecodedChunks:
    """A least-recently-used cache of decoded chunks; None stands for a missing chunk.

    A chunk larger than the budget of ``max_bytes`` is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._lock = threading.Lock()
        self._announced: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, NDArray[Any] | None] = OrderedDict()

    def announce(self, key: Hashable) -> bool:
        """Announce a chunk to fetch; return True if it was neither announced nor kept before."""
        with self._lock:
            if key in self._kept or key in self._announced:
                return False
            self._announced.add(key)
            return True

    def keep(self, key: Hashable, chunk: NDArray[Any] | None) -> None:
        """Keep a decoded chunk, or None for a missing chunk."""
        cost = self._cost(chunk)
        with self._lock:
            self._announced.discard(key)
            if key in self._kept or cost > self._max_bytes:
                return
            self._kept[key] = chunk
            self._used += cost
            while self._used > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._used -= self._cost(dropped)

    def find(self, key: Hashable) -> tuple[bool, NDArray[Any] | None]:
        """Return whether a chunk is in the cache, and the chunk; None if it is missing."""
        with self._lock:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key]

    @staticmethod
    def _cost(chunk: NDArray[Any] | None) -> int:
        if chunk is None:
            return _ENTRY_COST
        per_item = 64 if chunk.dtype.hasobject else chunk.dtype.itemsize
        return chunk.size * per_item + _ENTRY_COST


class ArrayReader:
    """Reads one array of one snapshot.

    ``kept`` holds decoded chunks that neighbouring blocks share; None keeps none.
    """

    def __init__(
        self,
        *,
        lookup: ChunkLookup,
        variable: Variable,
        chunk_source: ChunkSource,
        kept: DecodedChunks | None = None,
    ) -> None:
        self.path = variable.path
        self.metadata: ArrayMetadata = variable.metadata
        self.shape = self.metadata.shape
        self.lookup = lookup
        self.chunk_source = chunk_source
        self._kept = kept
        grid = self.metadata.grid
        self._grid = grid
        # None if chunks differ in size. Looked up once: an array may have thousands of chunks.
        self._chunk_shape = grid.chunk_shape
        self._codecs: ChunkCodecs = variable.codecs
        self.axes: tuple[ChunkAxis, ...] = self._codecs.chunk_axes(grid)
        self.shards: ShardReads | None = None
        sharding = self._codecs.sharding
        if sharding is not None:
            self.shards = ShardReads(
                sharding=sharding,
                grid=grid,
                lookup=self.lookup,
                chunk_source=chunk_source,
                path=self.path,
            )
            self._codecs, self._chunk_shape = sharding.inner, sharding.inner_shape

    @property
    def item_bytes(self) -> int:
        """Bytes of one decoded element; an estimate for strings."""
        return self.metadata.data_type.item_bytes

    def read(self, selections: Sequence[DimSelection]) -> NDArray[Any]:
        """Read the product of one selection for each axis.

        Raises FormatError, which names the chunk, if its bytes are damaged.
        """
        request = self.request(selections)
        return self.decode(request, self.fetch(request)).values

    def read_box(
        self, lower: Sequence[int], upper: Sequence[int], fetch_bytes: int | None = None
    ) -> NDArray[Any]:
        """Read the elements ``[lower, upper)``, with at most `fetch_bytes` of encoded chunks."""
        selections = [
            DimSelection.span(size, low, high)
            for size, low, high in zip(self.shape, lower, upper, strict=True)
        ]
        if fetch_bytes is None:
            return self.read(selections)
        return self.read_selected(selections, fetch_bytes)

    def read_selected(self, selections: Sequence[DimSelection], fetch_bytes: int) -> NDArray[Any]:
        """Read the product of one selection for each axis, as ``read_box`` does."""
        picks = self.picks(selections)
        coords = product_coords(picks)
        if self._chunk_shape is not None and not self.metadata.data_type.numpy.hasobject:
            # Encoded chunks are not much larger than decoded ones, whose size needs no manifest.
            decoded = len(coords) * math.prod(self._chunk_shape) * self.item_bytes
            if decoded <= fetch_bytes:
                return self.read(selections)
        sizes = self._stored_bytes(coords)
        if sizes.sum() <= fetch_bytes or not picks:  # one chunk cannot be read in parts
            return self.read(selections)
        values = self.metadata.fill_array([p.length for p in picks])
        counts = [len(p.chunks) for p in picks]
        for batch in sized_batches(enumerate(sizes.tolist()), len(sizes), fetch_bytes):
            at = np.array(batch, dtype=np.int64)
            positions, payloads = self.payloads(coords[at])
            order = zip(*(n.tolist() for n in np.unravel_index(at[positions], counts)), strict=True)
            for number, index in enumerate(order):
                chunk = self.decode_chunk(coords[at[positions[number]]], payloads[number])
                _copy(values, chunk, picks, index)
        return values

    def _stored_bytes(self, coords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the encoded bytes of (inner) chunks; 0 if missing."""
        if self.shards is not None:
            return self.shards.stored_bytes(coords)
        found, sizes = self.lookup.find(coords.astype(np.uint32)), np.zeros(len(coords), np.int64)
        sizes[found.positions] = found.refs.length[found.rows].astype(np.int64)
        return sizes

    def read_all(self) -> NDArray[Any]:
        """Read all elements."""
        return self.read_box([0] * len(self.shape), self.shape)

    def request(self, selections: Sequence[DimSelection]) -> BlockRequest:
        """Return the chunks that hold the product of one selection for each axis.

        Must be called in the order in which blocks are decoded: the first of two blocks that share
        a chunk fetches it.
        """
        picks = self.picks(selections)
        coords = product_coords(picks)
        partial = any_partial(picks)
        awaited = np.empty(0, dtype=np.int64)
        wanted = np.arange(len(coords), dtype=np.int64)
        if self._kept is not None and partial.any():
            is_awaited = np.zeros(len(coords), dtype=bool)
            for position in np.flatnonzero(partial).tolist():
                is_awaited[position] = not self._kept.announce(self._key(coords[position]))
            awaited, wanted = np.flatnonzero(is_awaited), np.flatnonzero(~is_awaited)
        return BlockRequest(
            picks=picks, coords=coords, partial=partial, wanted=wanted, awaited=awaited
        )

    def picks(self, selections: Sequence[DimSelection]) -> list[AxisPick]:
        """Return the picks of one selection for each axis."""
        return [pick(axis, chosen) for axis, chosen in zip(self.axes, selections, strict=True)]

    def fetch(self, request: BlockRequest) -> FetchedBlock:
        """Fetch the stored bytes of the chunks of a block."""
        if not len(request.wanted):
            return request.wanted, []
        positions, payloads = self.payloads(request.coords[request.wanted])
        return request.wanted[positions], payloads

    def present(
        self, selections: Sequence[DimSelection]
    ) -> tuple[list[AxisPick], NDArray[np.bool_]]:
        """Return the picks of each axis, and a mask of the chunks of a block that exist.

        Nothing is fetched; chunks are in C order.
        """
        picks = self.picks(selections)
        coords = product_coords(picks)
        present = np.zeros(len(coords), dtype=bool)
        present[self.stored(coords)] = True
        return picks, present

    def stored(self, coords: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the (inner) chunks that exist; no data are fetched."""
        if self.shards is not None:
            return self.shards.stored(coords)
        return self.lookup.find(coords.astype(np.uint32)).positions

    def decode(self, request: BlockRequest, fetched: FetchedBlock) -> DecodedBlock:
        """Decode the chunks of a block and copy their values into it."""
        positions, payloads = fetched
        shape = tuple(p.length for p in request.picks)
        counts = [len(p.chunks) for p in request.picks]
        present = np.zeros(len(request.coords), dtype=bool)
        present[positions] = True
        dtype = self.metadata.data_type.numpy
        if len(request.coords) == 1 and len(positions) == 1 and not request.partial[0]:
            # Common with large chunks: the block is one whole chunk.
            whole = self.decode_chunk(request.coords[0], payloads[0])
            # With the ellipsis, NumPy makes no string of its own of a scalar.
            cell: Any = (*(slice(0, n) for n in shape), ...)
            values = np.ascontiguousarray(whole[cell]).reshape(shape)
            return DecodedBlock(values=values, picks=request.picks, present=present)
        complete = len(positions) == len(request.coords)
        values = np.empty(shape, dtype=dtype) if complete else self.metadata.fill_array(shape)
        order = np.unravel_index(positions, counts) if counts else ()
        indexes = zip(*(axis.tolist() for axis in order), strict=True) if counts else iter([()])
        for position, index, payload in zip(positions.tolist(), indexes, payloads, strict=False):
            chunk = self.decode_chunk(request.coords[position], payload)
            if request.partial[position] and self._kept is not None:
                self._kept.keep(self._key(request.coords[position]), chunk)
            _copy(values, chunk, request.picks, index)
        if self._kept is not None and not complete:
            self._copy_kept(values, request, present, counts)
        return DecodedBlock(values=values, picks=request.picks, present=present)

    def assume_decoded(
        self, request: BlockRequest, positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Simulate ``decode`` for cost counts: keep the chunks of a block without their values.

        Returns the positions of chunks that an earlier block fetched and that were evicted since.
        """
        if self._kept is None:
            return request.awaited
        here = np.zeros(len(request.coords), dtype=bool)
        here[positions] = True
        keys = [self._key(coords) for coords in request.coords]
        for position in request.wanted[request.partial[request.wanted]].tolist():
            chunk = None
            if here[position]:
                shape = self._full_shape(request.coords[position])
                chunk = np.broadcast_to(np.empty((), self.metadata.data_type.numpy), shape)
            self._kept.keep(keys[position], chunk)
        awaited = request.awaited.tolist()
        lost = [position for position in awaited if not self._kept.find(keys[position])[0]]
        return np.array(lost, dtype=np.int64)

    def _full_shape(self, coords: NDArray[np.int64]) -> tuple[int, ...]:
        return self._chunk_shape or self._grid.full_chunk_shape(coords.tolist())

    def _copy_kept(
        self,
        values: NDArray[Any],
        request: BlockRequest,
        present: NDArray[np.bool_],
        counts: list[int],
    ) -> None:
        """Copy from chunks that earlier blocks fetched, and mark those that do not exist."""
        assert self._kept is not None
        awaited = set(request.awaited.tolist())
        lost = []
        for position in np.flatnonzero(request.partial & ~present).tolist():
            key = self._key(request.coords[position])
            if position not in awaited:
                self._kept.keep(key, None)
                continue
            is_here, chunk = self._kept.find(key)
            if not is_here:
                lost.append(position)
            elif chunk is not None:
                present[position] = True
                index = tuple(int(i) for i in np.unravel_index(position, counts))
                _copy(values, chunk, request.picks, index)
        count(hits=len(awaited) - len(lost))
        if not lost:
            return
        # Chunks that were evicted or are not decoded yet: fetch them now.
        found, payloads = self.payloads(request.coords[lost])
        for number, payload in zip(found.tolist(), payloads, strict=True):
            position = lost[number]
            present[position] = True
            index = tuple(int(i) for i in np.unravel_index(position, counts))
            chunk = self.decode_chunk(request.coords[position], payload)
            _copy(values, chunk, request.picks, index)

    def payloads(self, coords: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[bytes]]:
        """Fetch (inner) chunks; return the positions of existing ones, ascending, and their bytes.

        ``coords`` is ``int64 (m, ndim)`` without repeated rows.
        """
        if self.shards is not None:
            return self.shards.fetch(coords)
        found = self.lookup.find(coords.astype(np.uint32))
        return found.positions, self.chunk_source.fetch(found.refs, found.rows)

    def decode_chunk(self, coords: NDArray[np.int64], payload: bytes) -> NDArray[Any]:
        """Decode one (inner) chunk to its full shape.

        Raises FormatError, with the array and the coordinates, if its bytes are damaged.
        """
        try:
            return timed("decode", self._codecs.decode, payload, self._full_shape(coords))
        except FormatError as error:
            raise FormatError(
                str(error.facts["problem"]),
                object_key=f"{self.path} at {coords.tolist()}",
                file_type="chunk",
                field=error.facts.get("field"),
            ) from error

    def _key(self, coords: NDArray[np.int64]) -> tuple[str, bytes]:
        return self.path, coords.tobytes()


def _copy(
    values: NDArray[Any], chunk: NDArray[Any], picks: list[AxisPick], index: tuple[int, ...]
) -> None:
    sources = [p.sources[number] for p, number in zip(picks, index, strict=True)]
    targets = tuple([p.targets[number] for p, number in zip(picks, index, strict=True)])
    if all(type(source) is slice for source in sources):
        values[targets] = chunk[tuple(sources)]
        return
    lists = [
        np.arange(source.start, source.stop) if isinstance(source, slice) else source
        for source in sources
    ]
    values[targets] = chunk[np.ix_(*lists)]
