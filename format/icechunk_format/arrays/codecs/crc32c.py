"""CRC-32C (Castagnoli), the checksum behind shard indices and the ``crc32c`` codec.

numcodecs computes it only where another package is installed, and every sharded array needs it, so
it is also computed here, in NumPy.

A CRC is linear: with a register that starts at zero, the CRC of a message is the XOR of what each
byte alone, followed by zeros, would give. So the message is cut into rows of 256 bytes, each byte
is looked up in a table for its position, the rows are XORed together, and rows are then joined in
pairs, the first of each pair moved forward by the length of the second. Zeros in front of a message
change nothing, which is how it is padded; a register that starts at ones is the same as inverting
the first four bytes.

Spec: Zarr v3 codec ``crc32c``; RFC 3720, appendix B.4.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numcodecs import checksum32

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78

_ROW = 256

# Rows looked up at once: their table indices should stay in the processor's cache.
_BLOCK = 256

_accelerated: Callable[[Any], int] | None = getattr(checksum32, "crc32c_checksum", None)


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of the bytes, an integer below 2**32."""
    if _accelerated is not None:
        # The extension takes arrays, and views of bytes only as arrays.
        return int(_accelerated(np.frombuffer(data, dtype=np.uint8)))
    return crc32c_numpy(data)


def crc32c_numpy(data: bytes | memoryview) -> int:
    """Return the CRC-32C of the bytes, by NumPy alone."""
    size = len(data)
    if size < 4:
        state = 0xFFFFFFFF
        for byte in data:
            state = int(_byte_table()[(state ^ byte) & 0xFF]) ^ (state >> 8)
        return state ^ 0xFFFFFFFF
    rows = -(-size // _ROW)
    padded = np.zeros(rows * _ROW, dtype=np.uint8)
    start = padded.size - size
    padded[start:] = np.frombuffer(data, dtype=np.uint8)
    padded[start : start + 4] ^= 0xFF
    body = padded.reshape(rows, _ROW)
    table, origins = _position_table()
    states = np.empty(rows, dtype=np.uint32)
    for first in range(0, rows, _BLOCK):
        block = slice(first, first + _BLOCK)
        np.bitwise_xor.reduce(table.take(body[block] + origins), axis=1, out=states[block])
    nbytes = _ROW
    while states.size > 1:
        if states.size % 2:
            states = np.concatenate([np.zeros(1, dtype=np.uint32), states])
        states = _apply(_shift_tables(nbytes), states[0::2]) ^ states[1::2]
        nbytes *= 2
    return int(states[0]) ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _byte_table() -> NDArray[np.uint32]:
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


@lru_cache(maxsize=1)
def _position_table() -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """Return what each byte value gives at each position of a row, and where positions start."""
    byte = _byte_table()
    table = np.empty((_ROW, 256), dtype=np.uint32)
    table[-1] = byte
    for position in range(_ROW - 2, -1, -1):
        after = table[position + 1]
        table[position] = byte[after & 0xFF] ^ (after >> 8)
    return table.reshape(-1), np.arange(_ROW, dtype=np.intp) * 256


@lru_cache(maxsize=64)
def _shift_tables(nbytes: int) -> NDArray[np.uint32]:
    """Return tables ``(4, 256)``: what each byte of a state becomes after ``nbytes`` zero bytes.

    ``nbytes`` is a power of two.
    """
    if nbytes == 1:
        tables = np.empty((4, 256), dtype=np.uint32)
        tables[0] = _byte_table()
        for position in range(1, 4):
            tables[position] = np.arange(256, dtype=np.uint32) << (8 * position - 8)
        return tables
    half = _shift_tables(nbytes // 2)
    return _apply(half, half)


def _apply(tables: NDArray[np.uint32], state: NDArray[np.uint32]) -> NDArray[np.uint32]:
    result: NDArray[np.uint32] = (
        tables[0][state & 0xFF]
        ^ tables[1][(state >> 8) & 0xFF]
        ^ tables[2][(state >> 16) & 0xFF]
        ^ tables[3][state >> 24]
    )
    return result
