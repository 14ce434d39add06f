"""Metadata documents, data types and fill values are written and read as zarr-python does it."""

from __future__ import annotations

import itertools
import json
import warnings
from typing import Any

import numpy as np
import pytest
import zarr
from helpers.grids.zarr_arrays import NUMBERS, STRUCT, stored
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from zarr.core.dtype import get_data_type_from_json
from zarr.storage import MemoryStore

from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.zarr.fill_values import decode_fill_value, encode_fill_value
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata
from icechunk_format.zarr.zarr_json import parse_array_metadata, parse_group_metadata

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
    # zarr-python compares random bits, signalling NaNs among them, with fill values.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


def documents() -> list[dict[str, Any]]:
    f8 = {"dtype": "f8", "shape": (4, 6), "chunks": (2, 3)}
    return [
        f8,
        f8 | {"fill_value": np.nan, "dimension_names": ("y", None)},
        f8 | {"fill_value": -np.inf, "attributes": {"units": "K", "é": [1, None, {"a": 2.5}]}},
        f8 | {"shards": (4, 6)},
        {"dtype": "i2", "shape": (), "chunks": (), "fill_value": -3},
        {"dtype": "bool", "shape": (3,), "chunks": (2,), "fill_value": True},
        {"dtype": "complex64", "shape": (3,), "chunks": (2,), "fill_value": 1 + 2j},
        {"dtype": "<M8[ns]", "shape": (3,), "chunks": (2,)},
        {"dtype": "<m8[7D]", "shape": (3,), "chunks": (2,), "fill_value": np.timedelta64(3, "7D")},
        {"dtype": "<U3", "shape": (3,), "chunks": (2,), "fill_value": "né"},
        {"dtype": "S3", "shape": (3,), "chunks": (2,), "fill_value": b"ab"},
        {"dtype": "V3", "shape": (3,), "chunks": (2,), "fill_value": np.void(b"abc")},
        {"dtype": "string", "shape": (3,), "chunks": (2,), "fill_value": "?"},
        {"dtype": "variable_length_bytes", "shape": (3,), "chunks": (2,), "fill_value": b"\0"},
        {"dtype": np.dtype(STRUCT), "shape": (3,), "chunks": (2,)},
    ]


@pytest.mark.parametrize("arguments", documents(), ids=lambda a: str(a["dtype"]))
def test_new_arrays_are_described_as_zarr_describes_them(arguments: dict[str, Any]) -> None:
    store = MemoryStore()
    zarr.create_array(store, name="x", **arguments)
    theirs = stored(store)["x/zarr.json"]
    parsed = parse_array_metadata(theirs, node_path="/x")
    built = build_array_metadata(
        shape=arguments["shape"],
        data_type=parsed.data_type,
        chunk_shape=arguments["chunks"],
        shard_shape=arguments.get("shards"),
        fill_value=parsed.fill_value,
        dimension_names=arguments.get("dimension_names"),
        attributes=arguments.get("attributes"),
        node_path="/x",
    )
    assert built.to_bytes() == theirs
    dtype = arguments["dtype"]
    assert data_type_from_numpy(dtype) == parsed.data_type


def test_new_groups_are_described_as_zarr_describes_them() -> None:
    store = MemoryStore()
    zarr.create_group(store, attributes={"a": float("nan"), "b": "ü"})
    theirs = stored(store)["zarr.json"]
    given_attributes = {"a": float("nan"), "b": "ü"}
    assert build_group_metadata(attributes=given_attributes).to_bytes() == theirs
    assert parse_group_metadata(theirs, node_path="/").attributes["b"] == "ü"


def test_consolidated_groups_are_read() -> None:
    store = MemoryStore()
    group = zarr.create_group(store)
    group.create_array("x", shape=(2,), dtype="i4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(store)
    document = stored(store)["zarr.json"]
    assert b"consolidated_metadata" in document
    assert parse_group_metadata(document, node_path="/").attributes == {}


TYPE_JSON: list[Any] = [
    *NUMBERS,
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}},
    {"name": "numpy.datetime64", "configuration": {"unit": "μs", "scale_factor": 1}},
    {"name": "numpy.timedelta64", "configuration": {"unit": "generic", "scale_factor": 1}},
    {"name": "fixed_length_utf32", "configuration": {"length_bytes": 12}},
    {"name": "null_terminated_bytes", "configuration": {"length_bytes": 5}},
    {"name": "raw_bytes", "configuration": {"length_bytes": 5}},
    "string",
    "variable_length_bytes",
    "bytes",
    {
        "name": "struct",
        "configuration": {
            "fields": [
                {"name": "a", "data_type": "int32"},
                {
                    "name": "b",
                    "data_type": {
                        "name": "struct",
                        "configuration": {"fields": [{"name": "c", "data_type": "float16"}]},
                    },
                },
            ]
        },
    },
    {"name": "structured", "configuration": {"fields": [["a", "int32"], ["b", "float64"]]}},
]


@pytest.mark.parametrize("value", TYPE_JSON, ids=str)
def test_data_types_are_those_of_zarr(value: Any) -> None:
    theirs = get_data_type_from_json(value, zarr_format=3)
    ours = parse_data_type(value)
    native = theirs.to_native_dtype()
    if native.kind not in "OT":
        assert ours.numpy == native
    assert get_data_type_from_json(ours.to_json(), zarr_format=3) == theirs


FILL_JSON: list[tuple[str, Any]] = [
    *itertools.product(
        ("float16", "float32", "float64"),
        (0, 1, -2.5, "NaN", "Infinity", "-Infinity", "1.5", 65504),
    ),
    ("float16", "0x7e00"),
    ("float16", "0x3c00"),
    ("float32", "0x7fc00000"),
    ("float32", "0x3f800000"),
    ("float32", 9.969209968386869e36),
    ("float64", "0x7ff8000000000000"),
    ("float64", "0x3f800000"),
    ("int8", -128),
    ("int64", 2**63 - 1),
    ("uint64", 2**64 - 1),
    ("int32", 4.0),
    ("int32", "-7"),
    ("bool", True),
    ("bool", False),
    ("complex64", [1, "NaN"]),
    ("complex128", ["-Infinity", "0x3ff0000000000000"]),
    ("string", "x"),
    ("string", 3),
    ("variable_length_bytes", "AQI="),
]


@pytest.mark.parametrize(("name", "value"), FILL_JSON)
def test_fill_values_are_those_of_zarr(name: str, value: Any) -> None:
    theirs_type = get_data_type_from_json(name, zarr_format=3)
    theirs = theirs_type.from_json_scalar(value, zarr_format=3)
    data_type = parse_data_type(name)
    ours = decode_fill_value(value, data_type)
    np.testing.assert_equal(ours, theirs)
    encoded = encode_fill_value(ours, data_type)
    encoded_again = json.loads(json.dumps(encoded))
    np.testing.assert_equal(theirs_type.from_json_scalar(encoded_again, zarr_format=3), theirs)
    if not (isinstance(encoded, str) and encoded.startswith("0x")):
        expected = theirs_type.to_json_scalar(theirs, zarr_format=3)
        assert encoded_again == json.loads(json.dumps(expected))


@given(data=st.data(), name=st.sampled_from(NUMBERS))
@settings(max_examples=150, deadline=None)
def test_every_fill_value_survives_zarr(data: st.DataObject, name: str) -> None:
    data_type = parse_data_type(name)
    value = data.draw(hnp.from_dtype(data_type.numpy))
    encoded = json.loads(json.dumps(encode_fill_value(value, data_type)))
    assert decode_fill_value(encoded, data_type).tobytes() == value.tobytes()
    theirs = get_data_type_from_json(name, zarr_format=3).from_json_scalar(encoded, zarr_format=3)
    np.testing.assert_equal(np.asarray(theirs), np.asarray(value))
