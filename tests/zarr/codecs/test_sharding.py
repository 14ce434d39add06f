"""Shards made by hand are read whole and in ranges, and damaged shard indexes are refused."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np
import pytest
from helpers.arrays.codec_chains import BIG, LITTLE
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.zarr.codecs.build import sharding_json
from icechunk_format.zarr.codecs.bytes import crc32c
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.codecs.sharding import MISSING, Sharding
from icechunk_format.zarr.data_types import parse_data_type


def sharded(
    inner_shape: tuple[int, ...] = (2,), codecs: list[Any] | None = None, **more: Any
) -> ChunkCodecs:
    made = sharding_json(inner_shape, codecs or ["bytes"])
    chain = [{**made, "configuration": {**made["configuration"], **more}}]
    return ChunkCodecs(chain, parse_data_type("int8"), np.int8(9), ndim=len(inner_shape))


def sharding_of(codecs: ChunkCodecs) -> Sharding:
    assert codecs.sharding is not None
    return codecs.sharding


def index_bytes(*entries: tuple[int, int]) -> bytes:
    raw = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return raw + crc32c(raw).to_bytes(4, "little")


SHARD = b"\1\2" + b"\5\6" + index_bytes((2, 2), (MISSING, MISSING), (0, 2))


def test_a_shard_made_by_hand() -> None:
    codecs = sharded()
    assert codecs.decode(SHARD, (6,)).tolist() == [5, 6, 9, 9, 1, 2]
    at_start = sharded(index_location="start")
    index = index_bytes((52, 2), (MISSING, MISSING), (54, 2))
    assert at_start.decode(index + b"\5\6\1\2", (6,)).tolist() == [5, 6, 9, 9, 1, 2]


def test_reading_by_ranges() -> None:
    for codecs in (sharded(), pickle.loads(pickle.dumps(sharded()))):
        sharding = sharding_of(codecs)
        assert sharding.inner_grid((6,)) == (3,)
        assert sharding.index_nbytes((6,)) == 52
        assert sharding.index_location == "end"
        assert len(SHARD) == 4 + 52
        index = sharding.decode_index(SHARD[4:], (6,), shard_nbytes=len(SHARD), what="chunks/A")
        assert index.tolist() == [[2, 2], [MISSING, MISSING], [0, 2]]
        assert sharding.inner.decode(SHARD[2:4], (2,)).tolist() == [5, 6]
        assert sharding.inner.fill_value == 9
    start = sharding_of(sharded(index_location="start"))
    assert start.index_nbytes((6,)) == 52
    assert start.index_location == "start"


@pytest.mark.parametrize(
    "entries",
    [
        [(2, 2), (0, 2), (55, 2)],
        [(2, 2), (0, 2), (2**63, 2)],
        [(2, 2), (0, 2), (2, 2**63)],
        [(2, 2), (0, 2), (2**64 - 2, 4)],
        [(2, 2), (0, 2), (MISSING, 2)],
        [(2, 2), (0, 2), (2, MISSING)],
    ],
)
def test_ranges_outside_of_the_shard(entries: list[tuple[int, int]]) -> None:
    shard = b"\1\2\5\6" + index_bytes(*entries)
    with raises(FormatError, object_key="chunks/B", field="shard index", file_type="chunk"):
        sharded().decode(shard, (6,), what="chunks/B")
    sharding = sharding_of(sharded())
    with raises(FormatError, match="outside", field="shard index"):
        sharding.decode_index(shard[4:], (6,), shard_nbytes=len(shard))


def test_ranges_are_checked_even_where_the_size_is_not_known() -> None:
    sharding = sharding_of(sharded())
    good = sharding.decode_index(index_bytes((2, 2), (10**12, 2), (0, 2)), (6,))
    assert good[1].tolist() == [10**12, 2]
    with raises(FormatError, field="shard index"):
        sharding.decode_index(index_bytes((2, 2), (2**63, 2**63), (0, 2)), (6,))


@pytest.mark.parametrize(
    "shard",
    [
        b"",
        SHARD[:51],
        SHARD[1:51],
        SHARD[:-1],
        SHARD + b"\0",
        SHARD[:20] + b"\7" + SHARD[21:],
        b"\1\2\5\6" + index_bytes((0, 2), (0, 2)),
        b"\1\2\5\6" + index_bytes((0, 3), (0, 2), (0, 2)),
        b"\1\2\5\6" + index_bytes((0, 0), (0, 2), (0, 2)),
    ],
)
def test_damaged_shards(shard: bytes) -> None:
    with raises(FormatError, object_key="chunks/C"):
        sharded().decode(shard, (6,), what="chunks/C")


def test_shards_of_other_shapes() -> None:
    sharding = sharding_of(sharded())
    for shape in ((5,), (2, 2)):
        with raises(
            FormatError,
            match="whole inner chunks",
            object_key="<metadata>",
            field="codecs.sharding_indexed.chunk_shape",
        ):
            sharding.inner_grid(shape)
    with pytest.raises(FormatError, match="its index takes"):
        sharded().decode(bytes(51), (6,))
    with pytest.raises(InvalidInputError, match="whole inner chunks"):
        sharded().encode(np.zeros(5, "i1"))


def test_inner_chunks_of_fill_values_are_left_out() -> None:
    codecs = sharded()
    sharding = sharding_of(codecs)
    empty = codecs.encode(np.full(6, 9, "i1"))
    assert len(empty) == 52
    assert codecs.decode(empty, (6,)).tolist() == [9] * 6
    one = codecs.encode(np.array([9, 9, 9, 9, 9, 1], "i1"))
    index = sharding.decode_index(one[2:], (6,), shard_nbytes=len(one))
    assert index.tolist() == [[MISSING, MISSING], [MISSING, MISSING], [0, 2]]


def test_a_shard_without_dimensions() -> None:
    codecs = sharded(())
    for value in (9, 7):
        data = codecs.encode(np.array(value, "i1"))
        assert codecs.decode(data, ()).item() == value


def test_an_index_with_other_codecs() -> None:
    chain = [
        {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [2], "codecs": ["bytes"], "index_codecs": [BIG]},
        }
    ]
    codecs = ChunkCodecs(chain, parse_data_type("int8"), np.int8(0), ndim=1)
    data = codecs.encode(np.array([1, 2, 0, 0], "i1"))
    assert data == b"\1\2" + struct.pack(">QQQQ", 0, 2, MISSING, MISSING)
    assert codecs.decode(data, (4,)).tolist() == [1, 2, 0, 0]


def test_fill_values_go_through_the_codecs_before_the_shard() -> None:
    scale = {"name": "scale_offset", "configuration": {"offset": 10, "scale": 2}}
    chain = [scale, sharding_json([2], [LITTLE])]
    codecs = ChunkCodecs(chain, parse_data_type("int16"), np.int16(12), ndim=1)
    assert codecs.sharding is None
    array = np.array([12, 12, 12, 13], "i2")
    data = codecs.encode(array)
    assert len(data) == 4 + 36
    assert codecs.decode(data, (4,)).tolist() == array.tolist()


def test_a_compressed_shard() -> None:
    chain = [sharding_json([2], [LITTLE]), "zstd"]
    codecs = ChunkCodecs(chain, parse_data_type("int16"), np.int16(0), ndim=1)
    array = np.arange(8, dtype="i2")
    assert codecs.decode(codecs.encode(array), (8,)).tolist() == array.tolist()
    assert codecs.sharding is None
    words = ChunkCodecs([sharding_json([1], ["vlen-utf8"])], parse_data_type("string"), "", ndim=1)
    assert words.encoded_bound((4,)) is None
    assert words.decode(words.encode(np.array(["a", ""], object)), (2,)).tolist() == ["a", ""]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
    st.sampled_from(["start", "end"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_whole_and_ranged_reads_agree(
    sizes: list[tuple[int, int]], location: str, seed: int
) -> None:
    inner = tuple(n for n, _ in sizes)
    shape = tuple(n * count for n, count in sizes)
    codecs = sharded(inner, ["bytes", "zstd"], index_location=location)
    array = np.random.default_rng(seed).integers(8, 10, shape).astype("i1")
    data = codecs.encode(array)
    np.testing.assert_array_equal(codecs.decode(data, shape), array)
    bound = codecs.encoded_bound(shape)
    assert bound is not None
    assert len(data) <= bound
    sharding = sharding_of(codecs)
    nbytes = sharding.index_nbytes(shape)
    stored = data[:nbytes] if location == "start" else data[-nbytes:]
    index = sharding.decode_index(stored, shape, shard_nbytes=len(data))
    for coords in np.ndindex(*sharding.inner_grid(shape)):
        box = tuple(slice(i * n, i * n + n) for i, n in zip(coords, inner, strict=True))
        offset, length = (int(n) for n in index[coords])
        if offset == MISSING:
            assert (array[box] == 9).all()
        else:
            chunk = sharding.inner.decode(memoryview(data)[offset : offset + length], inner)
            np.testing.assert_array_equal(chunk, array[box])
