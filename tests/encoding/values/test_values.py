"""JSON values survive both encodings, match known bytes, and damage raises FormatError."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import flatbuffers.flexbuffers as library
import msgpack
import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.values import flexbuffers, metadata_items
from icechunk_format.encoding.values.flexbuffers import (
    MAX_DEPTH,
    decode_flexbuffer,
    encode_flexbuffer,
)
from icechunk_format.encoding.values.metadata_items import (
    RESERVED_METADATA,
    decode_msgpack,
    encode_msgpack,
)
from icechunk_format.errors import FormatError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(width=32, allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=30,
)


@settings(deadline=None)
@given(json_values)
def test_flexbuffers_give_back_what_was_put_in(value: Any) -> None:
    assert decode_flexbuffer(encode_flexbuffer(value)) == value


@settings(deadline=None)
@given(json_values)
def test_msgpack_gives_back_what_was_put_in(value: Any) -> None:
    assert decode_msgpack(encode_msgpack(value)) == value


library_values = st.recursive(
    scalars,
    # The library reads keys as ASCII, although the format allows UTF-8.
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(
            st.text(st.characters(min_codepoint=1, max_codepoint=127)), inner, max_size=6
        )
    ),
    max_leaves=30,
)


@settings(deadline=None)
@given(library_values)
def test_the_flatbuffers_library_reads_our_flexbuffers(value: Any) -> None:
    assert library.Loads(bytearray(encode_flexbuffer(value))) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "01 08 01"),
        (-1, "ff 04 01"),
        (300, "2c 01 09 02"),
        (None, "00 00 01"),
        (True, "01 68 01"),
        (1.5, "00 00 c0 3f 0e 04"),
        (0.1, "9a 99 99 99 99 99 b9 3f 0f 08"),
        ({"is_root": True}, "69 73 5f 72 6f 6f 74 00 01 09 01 01 01 01 68 02 24 01"),
    ],
)
def test_known_values_have_known_bytes(value: Any, expected: str) -> None:
    assert encode_flexbuffer(value).hex(" ") == expected


def test_equal_maps_give_equal_bytes_whatever_their_order() -> None:
    assert encode_flexbuffer({"b": 1, "a": 2}) == encode_flexbuffer({"a": 2, "b": 1})


@pytest.mark.parametrize("big", [255, 256, 65_535, 65_536, 70_000])
def test_widths_grow_with_what_they_hold(big: int) -> None:
    value = {"text": "x" * big, "list": list(range(300)), "after": [1, "y" * big, -1]}
    assert decode_flexbuffer(encode_flexbuffer(value)) == value


def test_offsets_around_the_limit_of_a_width_are_kept() -> None:
    # The offset of the root to a text is that of its length and its NUL.
    for length in (*range(245, 260), *range(65_525, 65_540)):
        for value in ("x" * length, ["x" * length], {"k": "x" * length, "l": True}):
            assert decode_flexbuffer(encode_flexbuffer(value)) == value


def test_the_root_is_aligned_to_its_width() -> None:
    for length in range(250, 260):
        data = encode_flexbuffer("x" * length)
        width = data[-1]
        assert width == (1 if length < 255 else 2)
        assert (len(data) - 2 - width) % width == 0
        # The library looks for the text at the offset.
        assert library.Loads(bytearray(data)) == "x" * length


def test_types_that_only_other_writers_use_are_read() -> None:
    builder = library.Builder()
    with builder.Vector():
        builder.TypedVectorFromElements([1, -2, 300])
        builder.TypedVectorFromElements([1.5, 2.5, 0.1])
        builder.FixedTypedVectorFromElements([1, 2])
        builder.FixedTypedVectorFromElements([1.5, 2.5, 3.5])
        builder.FixedTypedVectorFromElements([1, 2, 3, 4], element_type=library.Type.UINT)
        with builder.TypedVector():
            builder.Key("one")
            builder.Key("two")
        with builder.TypedVector():
            builder.Bool(True)
            builder.Bool(False)
        builder.IndirectInt(-5)
        builder.IndirectUInt(5)
        builder.IndirectFloat(2.25)
        builder.Blob(b"\x00\x01")
        builder.Null()
        builder.Key("key")
    assert decode_flexbuffer(bytes(builder.Finish())) == [
        [1, -2, 300],
        [1.5, 2.5, 0.1],
        [1, 2],
        [1.5, 2.5, 3.5],
        [1, 2, 3, 4],
        ["one", "two"],
        [True, False],
        -5,
        5,
        2.25,
        b"\x00\x01",
        None,
        "key",
    ]


@given(json_values.filter(lambda v: isinstance(v, dict | list)), st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_flexbuffers_only_give_format_errors(value: Any, data: st.DataObject) -> None:
    raw = bytearray(encode_flexbuffer(value))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[data.draw(st.integers(0, 2)) :])
    with contextlib.suppress(FormatError):
        decode_flexbuffer(cut)


@given(st.binary(max_size=80))
@settings(deadline=None, max_examples=500)
def test_arbitrary_bytes_only_give_format_errors(raw: bytes) -> None:
    for decode in (decode_flexbuffer, decode_msgpack):
        with contextlib.suppress(FormatError):
            decode(raw)


def test_children_shared_to_describe_a_huge_tree_are_refused() -> None:
    # Each vector holds the previous one 200 times: 200**8 values in about 4 kB.
    raw = bytearray(b"\x01\x00")
    target = 1
    for level in range(8):
        count = 200
        raw += struct.pack("<H", count) if level else b"\xc8\x00"
        start = len(raw)
        for i in range(count):
            position = start + 2 * i
            raw += struct.pack("<H", position - target)
        raw += bytes([10 << 2 | 1 if level else 0]) * count
        target = start
        raw += b"\0" * (len(raw) % 2)
    raw += struct.pack("<H", len(raw) - target) + bytes([10 << 2 | 1, 2])
    with raises(FormatError, field="value", allowed=1_000_000):
        decode_flexbuffer(bytes(raw))


def test_texts_shared_to_multiply_memory_are_refused() -> None:
    # One text of 100 kB a thousand times, as values and as keys.
    text = b"x" * 100_000
    for kind, head in ((5, struct.pack("<I", len(text))), (4, b"")):
        raw = bytearray(head + text + b"\0" * (4 - len(text) % 4))
        raw += struct.pack("<I", 1000)
        start = len(raw)
        for i in range(1000):
            raw += struct.pack("<I", start + 4 * i - len(head))
        raw += bytes([kind << 2 | 2]) * 1000
        raw += struct.pack("<I", len(raw) - start) + bytes([10 << 2 | 2, 4])
        with raises(FormatError, field="value", allowed=2**26):
            decode_flexbuffer(bytes(raw))


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "at least 3 bytes"),
        (b"\0\0\3", "root width 3"),
        (b"\0\x0c\1", "number of width 1"),
        (b"\0\xfc\1", "not a FlexBuffers type"),
        (b"abc\3\x10\1", "has no end"),
        (b"\1\xff\0\2\x14\1", "not UTF-8"),
        (b"\x09\x14\1", "before the start"),
        (b"\x7f\0\1\x14\1", "exceed the buffer"),
    ],
)
def test_each_kind_of_damage_is_named(raw: bytes, problem: str) -> None:
    with raises(FormatError, match=problem, field="value"):
        decode_flexbuffer(raw)


def test_blobs_are_read() -> None:
    assert decode_flexbuffer(b"\2\0\xff\2\x64\1") == b"\0\xff"
    # Up to the end of the buffer, and no further.
    assert decode_flexbuffer(b"\3\0\x64\1") == b"\0\x64\1"
    with raises(FormatError, match="4 elements at byte 1 exceed"):
        decode_flexbuffer(b"\4\0\x64\1")


def test_map_keys_have_a_width_that_exists() -> None:
    raw = bytearray(encode_flexbuffer({"k": 7}))
    assert raw == b"k\0\1\3\1\1\1\7\x08\2\x24\1"
    raw[5] = 3
    with raises(FormatError, match="number of width 3"):
        decode_flexbuffer(bytes(raw))


def test_a_vector_that_contains_itself_is_refused() -> None:
    with raises(FormatError, field="value", allowed=64):
        decode_flexbuffer(bytes([1, 0, 10 << 2, 2, 10 << 2, 1]))


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        2**64,
        -(2**63) - 1,
        {1: 2},
        {"a\0b": 1},
        object(),
        {"s": {1, 2}},
        "\ud800",
        b"binary",
        [b""],
        bytearray(b"x"),
        np.int64(1),
    ],
)
@pytest.mark.parametrize("encode", [encode_flexbuffer, encode_msgpack])
def test_what_is_not_json_cannot_be_written(encode: Callable[[Any], bytes], value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode(value)


def test_nesting_beyond_the_limit_is_refused_both_ways() -> None:
    value: Any = 1
    for _ in range(70):
        value = [value]
    with raises(InvalidInputError, allowed=64):
        encode_flexbuffer(value)
    with raises(InvalidInputError, allowed=64):
        encode_msgpack(value)
    with raises(FormatError, match="deeper", field="value"):
        decode_msgpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        msgpack.packb(b"binary"),
        msgpack.packb({1: 2}),
        msgpack.packb({(1, 2): 3}),
        msgpack.packb(msgpack.Timestamp(5)),
        msgpack.packb(msgpack.ExtType(4, b"x")),
        b"\xa2\xff\xff",
    ],
)
def test_msgpack_that_is_not_json_is_a_format_error(raw: bytes) -> None:
    with raises(FormatError, object_key="snapshots/X"):
        decode_msgpack(raw, object_key="snapshots/X", field="metadata.k")


def test_nesting_has_a_limit_in_both_encodings() -> None:
    def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = wrap(value)
        return value

    for wrap in (lambda inner: [inner], lambda inner: {"k": inner}):
        deepest = nested(MAX_DEPTH, wrap)
        assert decode_msgpack(encode_msgpack(deepest)) == deepest
        assert decode_flexbuffer(encode_flexbuffer(deepest)) == deepest
        too_deep = msgpack.packb(nested(MAX_DEPTH + 1, wrap))
        with raises(
            FormatError, match=f"deeper than {MAX_DEPTH}", file_type="object", field="value"
        ):
            decode_msgpack(too_deep)
        with raises(InvalidInputError):
            encode_msgpack(nested(MAX_DEPTH + 1, wrap))


def test_bytes_are_no_texts_in_messagepack() -> None:
    for data in (msgpack.packb(b"raw", use_bin_type=True), b"\xc4\x00", b"\xd4\x01a"):
        with raises(FormatError, field="f", object_key="k", file_type="t"):
            decode_msgpack(data, object_key="k", field="f", file_type="t")
    assert encode_msgpack("x" * 40) == b"\xd9\x28" + b"x" * 40


def test_values_and_texts_are_counted_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"key": ["text", 1, True], "k": "t"}
    data = encode_flexbuffer(value)
    # A map counts itself, its keys and its values.
    for name, needed in (("MAX_VALUES", 8), ("MAX_STRING_BYTES", 9)):
        with monkeypatch.context() as patch:
            patch.setattr(flexbuffers, name, needed)
            assert decode_flexbuffer(data) == value
            patch.setattr(flexbuffers, name, needed - 1)
            with raises(FormatError, field="value", allowed=needed - 1):
                decode_flexbuffer(data)


def test_lists_and_maps_of_messagepack_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_items, "MAX_VALUES", 3)
    for value in ([1, 2, 3], {"a": 1, "b": 2, "c": 3}, "abc"):
        assert decode_msgpack(msgpack.packb(value)) == value
    for longer in ([1, 2, 3, 4], {"a": 1, "b": 2, "c": 3, "d": 4}, "abcd"):
        with raises(FormatError, field="value"):
            decode_msgpack(msgpack.packb(longer))


@pytest.mark.parametrize(
    ("key", "problem"), [(1, "a map key is a int"), (b"", "a map key is a bytes")]
)
def test_a_map_key_of_another_type_is_named(key: Any, problem: str) -> None:
    with raises(FormatError, match=problem):
        decode_msgpack(msgpack.packb({key: 2}))


def test_the_reserved_name() -> None:
    assert RESERVED_METADATA == "__icechunk"
    assert decode_msgpack(encode_msgpack({RESERVED_METADATA: 1})) == {"__icechunk": 1}
