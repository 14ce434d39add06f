"""Every spelling of a fill value is read with its bits, and arrays of it are made at once."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import (
    decode_fill_value,
    default_fill_value,
    differs,
    encode_fill_value,
    fill_array,
    is_all_fill,
)

RAW3 = {"name": "raw_bytes", "configuration": {"length_bytes": 3}}
S3 = {"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}}
U2 = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}
TIME = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
PAIR = {
    "name": "struct",
    "configuration": {
        "fields": [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "float32"}]
    },
}


@pytest.mark.parametrize(
    ("data_type", "value", "raw"),
    [
        ("bool", True, b"\1"),
        ("bool", 0, b"\0"),
        ("int8", -1, b"\xff"),
        ("uint16", 258, b"\2\1"),
        ("int32", 3.0, b"\3\0\0\0"),
        ("int32", "12", b"\x0c\0\0\0"),
        ("float32", 1, struct.pack("<f", 1)),
        ("float32", "0.5", struct.pack("<f", 0.5)),
        ("float32", 1e300, struct.pack("<f", math.inf)),
        ("float32", "NaN", b"\0\0\xc0\x7f"),
        ("float32", "0x7fc00001", b"\1\0\xc0\x7f"),
        ("float32", "0x3ff8000000000000", struct.pack("<f", 1.5)),
        ("float16", "0x3c00", b"\0\x3c"),
        ("float64", "-Infinity", struct.pack("<d", -math.inf)),
        ("float64", -0.0, struct.pack("<d", -0.0)),
        ("complex64", [1, "0x7fc00001"], struct.pack("<f", 1) + b"\1\0\xc0\x7f"),
        (TIME, 5, struct.pack("<q", 5)),
        (TIME, "NaT", struct.pack("<q", -(2**63))),
        (U2, "é", "é\0".encode("utf-32-le")),
        (U2, "toolong", "to".encode("utf-32-le")),
        (S3, "YWI=", b"ab\0"),
        (RAW3, "AQID", b"\1\2\3"),
        (RAW3, [1, 2, 255], b"\1\2\xff"),
        (PAIR, {"a": 3, "b": 1.0}, struct.pack("<hf", 3, 1)),
        (PAIR, {"b": 1.0}, struct.pack("<hf", 0, 1)),
        (PAIR, "AwAAAIA/", struct.pack("<hf", 3, 1)),
    ],
)
def test_spellings(data_type: Any, value: Any, raw: bytes) -> None:
    of = parse_data_type(data_type)
    decoded = decode_fill_value(value, of)
    assert np.asarray(decoded).astype(of.numpy.newbyteorder("<")).tobytes() == raw
    again = decode_fill_value(encode_fill_value(decoded, of), of)
    assert np.asarray(again).tobytes() == np.asarray(decoded).tobytes()


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [("string", "né", "né"), ("string", 3, "3"), ("bytes", "AQ==", b"\1"), ("bytes", [7], b"\7")],
)
def test_spellings_of_variable_length(data_type: str, value: Any, expected: Any) -> None:
    of = parse_data_type(data_type)
    assert decode_fill_value(value, of) == expected
    assert decode_fill_value(encode_fill_value(expected, of), of) == expected


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("bool", None),
        ("bool", "true"),
        ("bool", 2),
        ("int8", 128),
        ("int8", True),
        ("int8", 1.5),
        ("int8", "x"),
        ("int8", "1" * 40),
        ("int8", math.nan),
        ("uint8", -1),
        ("float32", None),
        ("float32", True),
        ("float32", "0x12"),
        ("float32", "0xzzzzzzzz"),
        ("float32", "nonsense"),
        ("float32", "1" * 500),
        ("float32", 10**400),
        ("float32", [1]),
        ("complex64", 1),
        ("complex64", [1, 2, 3]),
        ("complex64", [1, None]),
        (TIME, "2000-01-01"),
        (TIME, 2**63),
        (TIME, True),
        (U2, 3),
        ("string", None),
        ("string", True),
        (S3, "not base64!"),
        (S3, "AQIDBA=="),
        (S3, 7),
        (RAW3, "AQI="),
        (RAW3, [1, 2, 256]),
        (RAW3, [True, 1, 1]),
        (PAIR, 3),
        (PAIR, "AA=="),
        (PAIR, {"a": "x"}),
    ],
)
def test_what_is_not_a_value_is_a_format_error(data_type: Any, value: Any) -> None:
    with raises(FormatError, object_key="/t", field="fill_value"):
        decode_fill_value(value, parse_data_type(data_type), node_path="/t")


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("int8", 300),
        ("string", b"x"),
        ("bytes", "x"),
        (TIME, object()),
        ("int8", "q"),
        ("int8", np.int64(300)),
        ("int8", np.float64(1.5)),
        ("float16", 1e10),
        ("float32", np.float64(1e300)),
    ],
)
def test_values_that_cannot_be_stored(data_type: Any, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="fill value"):
        encode_fill_value(value, parse_data_type(data_type))


def test_integers_for_times_count_units() -> None:
    assert encode_fill_value(7, parse_data_type(TIME)) == 7
    assert encode_fill_value(np.datetime64("1970-01-01T00:01"), parse_data_type(TIME)) == 60


@pytest.mark.parametrize(
    ("data_type", "expected"), [("string", ""), ("bytes", b""), ("int8", 0), ("bool", False)]
)
def test_defaults(data_type: str, expected: Any) -> None:
    assert default_fill_value(parse_data_type(data_type)) == expected


def test_arrays_of_fill_values_are_new_and_writable() -> None:
    for name, value in (("float64", np.float64(2.5)), ("int8", np.int8(0)), ("string", "né")):
        of = parse_data_type(name)
        array = fill_array(of, value, (2, 3))
        assert array.shape == (2, 3)
        assert array.dtype == of.numpy
        assert (array == value).all()
        array[0, 0] = array[1, 1]
    of = parse_data_type(PAIR)
    value = decode_fill_value({"a": 3, "b": 1.0}, of)
    assert fill_array(of, value, (2,)).tolist() == [(3, 1.0), (3, 1.0)]
    assert fill_array(parse_data_type("int8"), np.int8(3), ()).item() == 3


@pytest.mark.parametrize("shape", [(2**40,), (10**6, 10**6, 10**6), (2**62, 2**62)])
def test_absurd_chunks_are_refused_before_memory_is_taken(shape: tuple[int, ...]) -> None:
    with raises(UnsupportedError, limit=17179869184):
        fill_array(parse_data_type("float64"), np.float64(1), shape)


def test_fill_is_decided_by_bits() -> None:
    assert is_all_fill(np.array([0.0, 0.0]), np.float64(0))
    assert not is_all_fill(np.array([0.0, -0.0]), np.float64(0))
    assert is_all_fill(np.array([np.nan, np.nan]), np.float64(np.nan))
    assert is_all_fill(np.zeros((0, 3)), np.float64(1))
    assert is_all_fill(np.array(["a", "a"], object), "a")
    assert not is_all_fill(np.array(["a", "b"], object), "a")
    assert is_all_fill(np.array([1 + 2j] * 3), np.complex128(1 + 2j))
    assert not is_all_fill(np.array([1 + 2j, 1]), np.complex128(1 + 2j))
    assert is_all_fill(np.array([b"ab", b"ab"]), np.bytes_(b"ab"))
    assert is_all_fill(np.arange(6).reshape(2, 3)[:, 1:1], np.int64(1))
    assert not is_all_fill(np.arange(6).reshape(2, 3)[:, ::2], np.int64(1))


def strings(*texts):
    # Equal strings that are different objects.
    return np.array(["".join(list(text)) for text in texts], object)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan]), [True, False, False]),
        (np.array([[1, 2]], "i2"), np.array([[1, 3]], "i2"), [[False, True]]),
        (strings("grün", "ab"), strings("grün", "ac"), [False, True]),
        (np.array(["ab", "c"]), np.array(["ab", "d"]), [False, True]),
        (np.zeros(2, "V0"), np.zeros(2, "V0"), [False, False]),
    ],
)
def test_elements_that_differ(one, other, expected):
    assert differs(one, other).tolist() == expected


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_every_single_float_keeps_its_bits(bits: int) -> None:
    of = parse_data_type("float32")
    value = np.array([bits], np.uint32).view(np.float32)[0]
    assert decode_fill_value(encode_fill_value(value, of), of).tobytes() == value.tobytes()
