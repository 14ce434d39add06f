"""Names of data types become the right NumPy types, and impossible ones become typed errors."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type


def named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


@pytest.mark.parametrize(
    ("value", "numpy", "kind"),
    [
        ("bool", "?", "bool"),
        ("int8", "i1", "int"),
        ("uint64", "u8", "uint"),
        ("float16", "f2", "float"),
        ("complex128", "c16", "complex"),
        ("complex_float32", "c8", "complex"),
        ({"name": "int32"}, "i4", "int"),
        (named("int32"), "i4", "int"),
        (named("numpy.datetime64", unit="s", scale_factor=10), "M8[10s]", "datetime"),
        (named("numpy.datetime64", unit="μs", scale_factor=1), "M8[us]", "datetime"),
        (named("numpy.timedelta64", unit="generic", scale_factor=3), "m8", "timedelta"),
        (named("fixed_length_utf32", length_bytes=8), "U2", "string"),
        (named("null_terminated_bytes", length_bytes=5), "S5", "bytes"),
        (named("raw_bytes", length_bytes=5), "V5", "bytes"),
        ("r16", "V2", "bytes"),
        ("string", "O", "string"),
        ("bytes", "O", "bytes"),
        ("variable_length_bytes", "O", "bytes"),
    ],
)
def test_known_types(value: Any, numpy: str, kind: str) -> None:
    data_type = parse_data_type(value)
    assert data_type.numpy == np.dtype(numpy)
    assert data_type.numpy.isnative
    assert data_type.kind == kind
    assert parse_data_type(data_type.to_json()) == data_type
    assert pickle.loads(pickle.dumps(data_type)) == data_type


def test_structs_keep_the_order_of_their_fields() -> None:
    inner = named("struct", fields=[{"name": "z", "data_type": "float16"}])
    data_type = parse_data_type(
        named(
            "struct", fields=[{"name": "b", "data_type": "int8"}, {"name": "a", "data_type": inner}]
        )
    )
    assert data_type.numpy == np.dtype([("b", "i1"), ("a", [("z", "f2")])])
    assert data_type.itemsize == 3
    assert data_type.has_byte_order
    assert parse_data_type(data_type.to_json()) == data_type
    legacy = parse_data_type(named("structured", fields=[["b", "int8"]]))
    assert legacy.name == "struct"
    assert not legacy.has_byte_order


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        {},
        {"name": 7},
        {"name": "int8", "configuration": 3},
        named("numpy.datetime64", unit="fortnight", scale_factor=1),
        named("numpy.datetime64", unit="s", scale_factor=0),
        named("numpy.datetime64", unit="s", scale_factor=2**31),
        named("numpy.datetime64", unit="s", scale_factor=1.5),
        named("numpy.datetime64", unit=["s"], scale_factor=1),
        named("fixed_length_utf32", length_bytes=7),
        named("fixed_length_utf32", length_bytes=0),
        named("raw_bytes"),
        named("raw_bytes", length_bytes=True),
        named("raw_bytes", length_bytes=10**30),
        "r7",
        "r8000000000",
        named("struct"),
        named("struct", fields=[]),
        named("struct", fields=[3]),
        named("struct", fields=[["a", "int8"], ["a", "int8"]]),
        named("struct", fields=[{"name": "", "data_type": "int8"}]),
        named(
            "struct",
            fields=[[str(i), named("raw_bytes", length_bytes=2**27)] for i in range(3)],
        ),
    ],
)
def test_impossible_types_are_format_errors(value: Any) -> None:
    with pytest.raises(FormatError) as caught:
        parse_data_type(value, node_path="/a/b")
    assert caught.value.facts["object_key"] == "/a/b"
    assert caught.value.facts["field"].startswith("data_type")
    assert len(str(caught.value)) < 600


def test_structs_that_never_end_are_refused() -> None:
    value: Any = "int8"
    for _ in range(200):
        value = named("struct", fields=[{"name": "a", "data_type": value}])
    with pytest.raises(FormatError, match="deep"):
        parse_data_type(value)


@pytest.mark.parametrize(
    "value",
    [
        "bfloat16",
        "int4",
        "float8_e4m3",
        "r",
        "r0",
        "x" * 10**6,
        named("struct", fields=[["a", "string"]]),
    ],
)
def test_legal_but_unknown_types_are_unsupported(value: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_data_type(value, node_path="/a")
    assert caught.value.facts["node_path"] == "/a"
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("?", "bool"),
        (">f8", "float64"),
        ("<c8", "complex64"),
        ("<M8[s]", "numpy.datetime64"),
        ("m8[10us]", "numpy.timedelta64"),
        ("U3", "fixed_length_utf32"),
        ("S3", "null_terminated_bytes"),
        ("V3", "raw_bytes"),
        ("string", "string"),
        ("bytes", "variable_length_bytes"),
        (np.dtypes.StringDType(), "string"),
        (np.dtype([("a", ">i2")]), "struct"),
    ],
)
def test_types_for_new_arrays(dtype: Any, name: str) -> None:
    data_type = data_type_from_numpy(dtype)
    assert data_type.name == name
    assert parse_data_type(data_type.to_json()) == data_type


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object),
        np.dtype("U0"),
        np.dtype("g"),
        np.dtype(("i4", (2,))),
        np.dtype([("a", "i4", (2,))]),
        np.dtype([(("title", "a"), "i4")]),
    ],
)
def test_types_that_no_array_can_have(dtype: np.dtype[Any]) -> None:
    with pytest.raises(InvalidInputError):
        data_type_from_numpy(dtype)


def test_widths() -> None:
    assert parse_data_type("string").is_variable_length
    assert parse_data_type("string").itemsize == 0
    assert parse_data_type("int16").itemsize == 2
    assert parse_data_type("int16").has_byte_order
    assert not parse_data_type("int8").has_byte_order
    assert not parse_data_type("r64").has_byte_order
