"""Implements the compressors, each with a limit on the decompressed size.

Rules of this file
------------------
1. A size in a stream is compared with the limit of ``decode`` *before* memory is allocated; streams
   without a size are decoded up to the limit and little further. The chain checks the result.
2. Threads can share the compressors, whose only state is their configuration.

Spec: RFC 8878 (Zstandard), RFC 1950 and 1952 (zlib, gzip), the headers of Blosc 1 and of numcodecs'
LZ4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zstandard
from numcodecs import blosc as numcodecs_blosc
from numcodecs import zstd as numcodecs_zstd

from icechunk_format.errors import UnsupportedError
from icechunk_format.zarr.codecs.steps import (
    Buffer,
    as_buffer,
    check_size,
    compressed_bound,
)

# blosc has one locked thread pool per process; callers decode chunks in parallel instead.
numcodecs_blosc.use_threads = False

# Bits of the third byte of a blosc header.
_BLOSC_SNAPPY = 2
_BLOSC_IS_COPY = 2
_FIRST_BYTES = 512


class _Compressor:
    is_fixed_size = False
    name: str

    def encoded_bound(self, nbytes: int) -> int:
        return compressed_bound(nbytes)


class Zstd(_Compressor):
    """Zstandard frames."""

    def __init__(self, name: str, level: int, checksum: bool) -> None:
        self.name = name
        self._level = level
        self._checksum = checksum

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        size = zstandard.frame_content_size(data)
        if size >= 0:
            check_size(size, limit, exact)
            if size == 0:
                # numcodecs raises an error for an empty frame.
                return b""
            result: bytes = numcodecs_zstd.decompress(data)
            return result
        if exact:
            out = np.empty(limit, dtype=np.uint8)
            numcodecs_zstd.decompress(data, out)
            return memoryview(out)
        _check_zstd_blocks(data, limit)
        result = numcodecs_zstd.decompress(data)
        return result

    def encode(self, data: Buffer) -> Buffer:
        result: bytes = numcodecs_zstd.compress(data, self._level, self._checksum)
        return result


class Blosc(_Compressor):
    """Blosc 1 containers."""

    def __init__(
        self, name: str, cname: str, clevel: int, shuffle: int, blocksize: int, typesize: int | None
    ) -> None:
        self.name = name
        self._arguments = (cname.encode("ascii"), clevel, shuffle, blocksize)
        self._typesize = typesize

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        if len(data) < 16:
            raise ValueError(f"a blosc header has 16 bytes, found {len(data)}")
        size = int.from_bytes(data[4:8], "little")
        # The library does not check this length and would read beyond the end of shorter data.
        stored = int.from_bytes(data[12:16], "little")
        if stored != len(data):
            raise ValueError(f"the header records {stored} stored bytes, found {len(data)}")
        check_size(size, limit, exact)
        if size == 0:
            return b""
        flags = data[2]
        if flags >> 5 == _BLOSC_SNAPPY and not flags & _BLOSC_IS_COPY:
            raise UnsupportedError(
                "a chunk is compressed with snappy inside blosc, which numcodecs does not include; "
                "rewrite the array with another cname"
            )
        result: bytes = numcodecs_blosc.decompress(data)
        return result

    def encode(self, data: Buffer) -> Buffer:
        if self._typesize is None:
            result: bytes = numcodecs_blosc.compress(data, *self._arguments)
        else:
            result = numcodecs_blosc.compress(data, *self._arguments, typesize=self._typesize)
        return result


@dataclass(eq=False)
class Streamed(_Compressor):
    """DEFLATE, bzip2 and LZMA streams; the standard library's decompressors stop at a limit."""

    name: str
    make_decompressor: Callable[[], Any]
    compress: Callable[[Buffer], bytes]
    follows: Literal["streams", "members", "nothing"] = "streams"
    """Content after a stream: further ones, those and zero bytes (gzip), or ignored bytes."""

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        parts: list[bytes] = []
        view, at, left = memoryview(data), 0, limit
        # The bytes after a stream are copied, so streams after the first one are given few bytes.
        step = len(view)
        while at < len(view) or not at:
            stream = self.make_decompressor()
            while not stream.eof:
                piece = view[at : at + step]
                if not piece:
                    raise ValueError("the stream ends early")
                part = stream.decompress(piece, left + 1)
                left -= len(part)
                if left < 0:
                    raise ValueError(f"it decodes to more than {limit} bytes")
                parts.append(part)
                at, step = at + len(piece), 2 * step
            at, step = at - len(stream.unused_data), _FIRST_BYTES
            if self.follows == "nothing" or (self.follows == "members" and _is_padding(view[at:])):
                break
        parts = [part for part in parts if part]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encode(self, data: Buffer) -> Buffer:
        return self.compress(data)


def _is_padding(rest: memoryview) -> bool:
    """Return True if the bytes after a gzip member are zeros."""
    return len(rest) > 0 and rest[0] == 0 and not bytes(rest).strip(b"\0")


class Lz4(_Compressor):
    """LZ4 blocks, preceded by the decoded length in four bytes."""

    def __init__(self, name: str, codec: Any) -> None:
        self.name = name
        self._codec = codec

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        if len(data) < 4:
            raise ValueError(f"the length takes 4 bytes, found {len(data)}")
        size = int.from_bytes(data[:4], "little")
        check_size(size, limit, exact)
        return b"" if size == 0 else as_buffer(self._codec.decode(data))

    def encode(self, data: Buffer) -> Buffer:
        return as_buffer(self._codec.encode(data))


def _check_zstd_blocks(data: Buffer, limit: int) -> None:
    """Raise ValueError for frames of unknown size whose blocks could exceed ``limit`` bytes.

    The header of a block records its kind (raw, one byte repeated, or compressed), and no block
    holds more than 128 KiB (RFC 8878, 3.1.1.2), so the headers bound the decoded size.
    """
    view = memoryview(data)
    at = 0
    total = 0
    while at < len(view):
        has_checksum = zstandard.get_frame_parameters(view[at:]).has_checksum
        at += zstandard.frame_header_size(view[at:])
        last = False
        while not last:
            header = view[at : at + 3]
            if len(header) < 3:
                raise ValueError("the Zstandard frame ends early")
            bits = int.from_bytes(header, "little")
            last, kind, size = bool(bits & 1), (bits >> 1) & 3, bits >> 3
            at += 3 + (1 if kind == 1 else size)
            total += 131072 if kind == 2 else size
            # Only the last block may be partly filled, so allow for one.
            if total > limit + 131072:
                raise ValueError(f"the frame may hold more than {limit} bytes")
        at += 4 if has_checksum else 0
