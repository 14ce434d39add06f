"""The checksum in NumPy gives the published values, whatever the length of the message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.arrays.codecs import crc32c as module
from icechunk_format.arrays.codecs.crc32c import crc32c, crc32c_numpy


def bit_by_bit(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0x00000000),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values(data: bytes, checksum: int) -> None:
    assert crc32c_numpy(data) == checksum
    assert crc32c(memoryview(data)) == checksum


@given(st.binary(max_size=1500))
@settings(max_examples=60, deadline=None)
def test_equals_the_definition(data: bytes) -> None:
    assert crc32c_numpy(data) == bit_by_bit(data)


@pytest.mark.parametrize("size", [255, 256, 257, 511, 512, 768, 65536, 66000, 256 * 257])
def test_rows_and_blocks_are_joined(size: int) -> None:
    data = bytes((i * 7 + i // 251) % 256 for i in range(size))
    assert crc32c_numpy(data) == bit_by_bit(data)


def test_without_the_optional_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_accelerated", None)
    assert crc32c(b"123456789") == 0xE3069283
