"""Casts by value give the answers of the reference implementation, which are kept as a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import default_fill_value

NAN, INF = math.nan, math.inf
HALVES = [1.5, 2.5, -1.5, -2.5, 0.5, -0.5]


def cast(source: str, target: str, **configuration: Any) -> ChunkCodecs:
    of = parse_data_type(source)
    codec = {"name": "cast_value", "configuration": {"data_type": target, **configuration}}
    stored = {"name": "bytes", "configuration": {"endian": "little"}}
    return ChunkCodecs([codec, stored], of, default_fill_value(of), ndim=1)


@pytest.mark.parametrize(
    ("source", "target", "rounding", "out_of_range", "values", "expected"),
    [
        ("float64", "int8", "nearest-even", None, HALVES, [2, 2, -2, -2, 0, 0]),
        ("float64", "int8", "towards-zero", None, HALVES, [1, 2, -1, -2, 0, 0]),
        ("float64", "int8", "towards-positive", None, HALVES, [2, 3, -1, -2, 1, 0]),
        ("float64", "int8", "towards-negative", None, HALVES, [1, 2, -2, -3, 0, -1]),
        ("float64", "int8", "nearest-away", None, HALVES, [2, 3, -2, -3, 1, -1]),
        ("float64", "int8", "nearest-away", None, [0.49999999999999994], [0]),
        ("float64", "uint8", "nearest-even", "clamp", [300.0, -5.0, 7.0], [255, 0, 7]),
        ("float64", "uint8", "nearest-even", "wrap", [300.0, -5.0], [44, 251]),
        ("float64", "int64", "nearest-even", "wrap", [1e30], [5076964154930102272]),
        ("float64", "int64", "nearest-even", "clamp", [1e30, -1e30], [2**63 - 1, -(2**63)]),
        ("float64", "uint64", "nearest-even", "wrap", [2.0**64, 2.0**63], [0, 2**63]),
        ("int32", "uint8", "nearest-even", "wrap", [300, -1], [44, 255]),
        ("int32", "uint8", "nearest-even", "clamp", [300, -1], [255, 0]),
        ("int8", "uint64", "nearest-even", "wrap", [-1], [2**64 - 1]),
        ("int8", "uint64", "nearest-even", "clamp", [-1, 5], [0, 5]),
        ("uint64", "int8", "nearest-even", "clamp", [2**64 - 1, 5], [127, 5]),
        ("float64", "float32", "nearest-even", "clamp", [1e300, -1e300, 1.5], [INF, -INF, 1.5]),
        ("float64", "float32", "towards-positive", None, [1e-46], [2.0**-149]),
        ("float64", "float32", "nearest-even", None, [NAN, INF, -INF], [NAN, INF, -INF]),
        ("float32", "float16", "towards-zero", None, [65520.0, -65520.0], [65504, -65504]),
        ("float32", "float16", "towards-zero", "clamp", [65536.0, -65536.0], [INF, -INF]),
        ("float32", "float16", "towards-negative", "clamp", [65505.0, -65505.0], [65504, -INF]),
        ("int64", "float64", "nearest-even", None, [2**53 + 1, 2**63 - 1], [2.0**53, 2.0**63]),
        ("int64", "float64", "nearest-away", None, [2**53 + 1], [2.0**53 + 2]),
        ("int64", "float64", "nearest-away", None, [-(2**53) - 1], [-(2.0**53) - 2]),
        ("uint64", "float64", "nearest-away", None, [2**64 - 1024], [2.0**64]),
        ("uint64", "float64", "nearest-away", None, [2**64 - 1025], [2.0**64 - 2048]),
        ("float64", "float32", "nearest-away", None, [1 + 2.0**-24], [1 + 2.0**-23]),
        ("float64", "float32", "nearest-away", None, [-(2.0**-150), 0.1], [-(2.0**-149), 0.1]),
        ("int64", "float64", "towards-zero", None, [2**63 - 1], [9223372036854774784.0]),
        ("int64", "float64", "towards-zero", None, [-(2**53) - 1], [-(2.0**53)]),
        ("int64", "float64", "towards-positive", None, [2**53 + 1], [2.0**53 + 2]),
        ("uint64", "float32", "towards-negative", None, [2**64 - 1], [1.8446742974197924e19]),
        ("int32", "float16", "nearest-away", "clamp", [65520, 65519], [INF, 65504]),
        ("int8", "int16", "nearest-even", None, [-3], [-3]),
        ("float32", "int8", "nearest-even", None, [], []),
        ("float64", "float32", "towards-zero", None, [], []),
        ("int64", "int8", "nearest-even", None, [], []),
    ],
)  # fmt: skip
def test_answers_of_the_reference(
    source: str,
    target: str,
    rounding: str,
    out_of_range: str | None,
    values: list[Any],
    expected: list[Any],
) -> None:
    codecs = cast(source, target, rounding=rounding, out_of_range=out_of_range)
    data = codecs.encode(np.array(values, dtype=source))
    np.testing.assert_array_equal(np.frombuffer(data, target), np.array(expected, target))


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        ("float64", "uint8", [255.5]),
        ("float64", "uint8", [NAN]),
        ("float64", "uint8", [INF]),
        ("float64", "float32", [1e300]),
        ("int32", "uint8", [-1]),
        ("int32", "float16", [70000]),
        ("uint64", "int64", [2**63]),
    ],
)
def test_what_does_not_fit_is_refused(source: str, target: str, values: list[Any]) -> None:
    with raises(InvalidInputError, node_path="/", codec="cast_value"):
        cast(source, target).encode(np.array(values, dtype=source))
    with raises(FormatError, codec="cast_value"):
        cast(target, source).decode(np.array(values, dtype=source).tobytes(), (1,))


def test_infinity_is_never_clamped_to_an_integer() -> None:
    with raises(InvalidInputError, match="scalar_map", codec="cast_value"):
        cast("float64", "uint8", out_of_range="clamp").encode(np.array([INF]))


def test_scalar_maps_come_first() -> None:
    scalar_map = {"encode": [["NaN", 255], [7, 1]], "decode": [[255, "NaN"]]}
    codecs = cast("float32", "uint8", scalar_map=scalar_map)
    values = np.array([NAN, 3, 7], "f4")
    data = codecs.encode(values)
    assert list(data) == [255, 3, 1]
    np.testing.assert_array_equal(codecs.decode(data, (3,)), np.array([NAN, 3, 1], "f4"))
    # The last of two entries for one number counts.
    twice = cast("float32", "uint8", scalar_map={"encode": [[1, 5], [1, 6]]})
    assert list(twice.encode(np.array([1], "f4"))) == [6]


def test_a_packed_temperature() -> None:
    """Floats stored as scaled 16-bit integers, with NaN as the lowest of them."""
    chain = [
        {"name": "scale_offset", "configuration": {"offset": 273.0, "scale": 100.0}},
        {
            "name": "cast_value",
            "configuration": {
                "data_type": "int16",
                "scalar_map": {"encode": [["NaN", -32768]], "decode": [[-32768, "NaN"]]},
            },
        },
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    codecs = ChunkCodecs(chain, parse_data_type("float64"), np.float64(NAN), ndim=1)
    values = np.array([273.15, NAN, 250.0])
    data = codecs.encode(values)
    assert np.frombuffer(data, "<i2").tolist() == [15, -32768, -2300]
    np.testing.assert_allclose(codecs.decode(data, (3,)), values)


@pytest.mark.parametrize(
    "configuration",
    [
        {"rounding": "up"},
        {"rounding": ["nearest-even"]},
        {"out_of_range": "ignore"},
        {"out_of_range": ["clamp"]},
        {"scalar_map": 3},
        {"scalar_map": {"encode": 3}},
        {"scalar_map": {"encode": [3]}},
        {"scalar_map": {"encode": [["x", 1]]}},
        {"scalar_map": {"encode": [[1, 300]]}},
    ],
)
def test_parameters_that_cannot_be(configuration: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        cast("float32", "uint8", **configuration)


def test_floats_do_not_wrap() -> None:
    with raises(FormatError, match="wrap", object_key="/", field="codecs[0]"):
        cast("int32", "float32", out_of_range="wrap")
