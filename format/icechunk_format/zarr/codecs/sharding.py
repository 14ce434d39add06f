"""Encodes and decodes shards: chunks of many inner chunks, with an index of their ranges.

Rules of this file
------------------
1. An inner chunk is missing exactly when its offset and its length are both 2**64 - 1.
2. Every offset and length is compared with the size of the shard before use.
3. To read a few inner chunks, the index and their ranges are fetched, not the whole shard.

Spec: Zarr v3 codec ``sharding_indexed``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.zarr.codecs.steps import Array, Buffer, Shape, compressed_bound
from icechunk_format.zarr.fill_values import fill_array, is_all_fill
from icechunk_format.zarr.named_configuration import shortened

MISSING: Final = 2**64 - 1
"""The value of offset and length for a missing inner chunk."""


@dataclass(kw_only=True, eq=False)
class Sharding:
    """The ``sharding_indexed`` codec of an array.

    Attributes
    ----------
    inner, index_codecs
        The ``ChunkCodecs`` of the inner chunks and of the index.
    index_location
        ``"start"`` or ``"end"`` of the shard.
    """

    name = "sharding_indexed"
    is_fixed_size = False

    inner_shape: Shape
    inner: Any
    index_codecs: Any
    index_location: Literal["start", "end"]

    def inner_grid(self, shard_shape: Shape) -> Shape:
        """Return the inner chunks per axis; FormatError if the shape is not a multiple of them."""
        if len(shard_shape) != len(self.inner_shape) or any(
            n % c for n, c in zip(shard_shape, self.inner_shape, strict=True)
        ):
            raise FormatError(
                f"shards of shape {shortened(shard_shape)} are not made of whole inner chunks of "
                f"shape {shortened(self.inner_shape)}",
                object_key="<metadata>",
                file_type="zarr.json",
                field="codecs.sharding_indexed.chunk_shape",
            )
        return tuple(n // c for n, c in zip(shard_shape, self.inner_shape, strict=True))

    def index_nbytes(self, shard_shape: Shape) -> int:
        """Return the size of the index of a shard in bytes."""
        nbytes: int = self.index_codecs.encoded_bound((*self.inner_grid(shard_shape), 2))
        return nbytes

    def decode_index(
        self,
        data: Buffer,
        shard_shape: Shape,
        *,
        shard_nbytes: int | None = None,
        what: str = "<bytes>",
    ) -> NDArray[np.uint64]:
        """Return offsets and lengths, uint64 ``(*inner_grid, 2)``; ``MISSING`` twice if absent.

        No range may exceed ``shard_nbytes``, the size of the shard, if it is given. ``what`` names
        the object in messages. Raises FormatError if the bytes are not an index of this shard.
        """
        grid = self.inner_grid(shard_shape)
        index: NDArray[np.uint64] = self.index_codecs.decode(data, (*grid, 2), what=what)
        offsets, lengths = index[..., 0], index[..., 1]
        missing = np.uint64(MISSING)
        present = (offsets != missing) | (lengths != missing)
        # Offsets are clamped to the end, so the difference cannot wrap.
        end = np.uint64(2**63 if shard_nbytes is None else shard_nbytes)
        bad = present & (
            (offsets > end) | (lengths > end) | (lengths > end - np.minimum(offsets, end))
        )
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            size = "" if shard_nbytes is None else f" of {shard_nbytes} bytes"
            raise FormatError(
                f"inner chunk {at} is at offset {int(offsets[at])} with {int(lengths[at])} bytes, "
                f"outside of the shard{size}",
                object_key=what,
                file_type="chunk",
                field="shard index",
            )
        return index

    def decode(self, data: Buffer, shape: Shape) -> Array:
        """Decode a whole shard; missing inner chunks become fill values."""
        view = memoryview(data)
        nbytes = self.index_nbytes(shape)
        if len(data) < nbytes:
            raise FormatError(
                f"the shard has {len(data)} bytes, and its index takes {nbytes}", file_type="chunk"
            )
        start = 0 if self.index_location == "start" else len(data) - nbytes
        index = self.decode_index(view[start : start + nbytes], shape, shard_nbytes=len(data))
        grid = index.shape[:-1]
        flat = index.reshape(-1, 2)
        present = np.flatnonzero(flat[:, 0] != np.uint64(MISSING))
        inner = self.inner
        if present.size == flat.shape[0]:
            out = np.empty(shape, dtype=inner.data_type.numpy)
        else:
            out = fill_array(inner.data_type, inner.fill_value, shape)
        inner_shape = self.inner_shape
        starts = (
            np.stack(np.unravel_index(present, grid), axis=-1) if grid else present[:, None][:, :0]
        )
        ranges = flat[present].tolist()
        for coords, (offset, length) in zip(starts.tolist(), ranges, strict=True):
            decoded = inner.decode(view[offset : offset + length], inner_shape)
            box = tuple(slice(i * n, i * n + n) for i, n in zip(coords, inner_shape, strict=True))
            out[box] = decoded
        return out

    def encode(self, array: Array) -> Buffer:
        """Encode a whole shard; inner chunks of fill values are omitted."""
        shape = array.shape
        try:
            grid = self.inner_grid(shape)
        except FormatError as error:
            raise InvalidInputError(error.facts["problem"]) from error
        inner = self.inner
        index = np.full((*grid, 2), MISSING, dtype=np.uint64)
        at = self.index_nbytes(shape) if self.index_location == "start" else 0
        parts: list[bytes] = []
        for coords in np.ndindex(*grid):
            box = tuple(
                slice(i * n, i * n + n) for i, n in zip(coords, self.inner_shape, strict=True)
            )
            chunk = np.asarray(array[box])
            if is_all_fill(chunk, inner.fill_value):
                continue
            encoded = inner.encode(chunk)
            index[coords] = (at, len(encoded))
            at += len(encoded)
            parts.append(encoded)
        encoded_index = self.index_codecs.encode(index)
        parts.insert(0 if self.index_location == "start" else len(parts), encoded_index)
        return b"".join(parts)

    def encoded_bound(self, shape: Shape) -> int | None:
        """Return the largest size in bytes of a shard of this shape; ``None`` if unbounded."""
        inner = self.inner.encoded_bound(self.inner_shape)
        if inner is None:
            return None
        return compressed_bound(
            math.prod(self.inner_grid(shape)) * inner + self.index_nbytes(shape)
        )
