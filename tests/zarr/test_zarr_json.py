"""``zarr.json`` documents are read field by field, and broken ones raise typed errors."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata
from icechunk_format.zarr.zarr_json import (
    MAX_DOCUMENT_NBYTES,
    ArrayMetadata,
    parse_array_metadata,
    parse_group_metadata,
)

DOCUMENT: dict[str, Any] = {
    "shape": [10, 4],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": "NaN",
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [3, 2],
                "codecs": [
                    {"name": "transpose", "configuration": {"order": [1, 0]}},
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
                ],
                "index_codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "crc32c"},
                ],
                "index_location": "end",
            },
        }
    ],
    "attributes": {"units": "K"},
    "dimension_names": ["y", ""],
    "zarr_format": 3,
    "node_type": "array",
    "storage_transformers": [],
}


def parse(document: Any) -> ArrayMetadata:
    return parse_array_metadata(json.dumps(document).encode(), node_path="/g/a")


def changed(**members: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **members}


def test_a_document() -> None:
    metadata = parse(DOCUMENT)
    assert metadata.node_path == "/g/a"
    assert metadata.shape == (10, 4)
    assert metadata.ndim == 2
    assert metadata.data_type == parse_data_type("float32")
    assert np.isnan(metadata.fill_value)
    assert metadata.grid.num_chunks == (2, 1)
    assert metadata.dimension_names == ("y", None)
    assert metadata.attributes == {"units": "K"}
    assert metadata.raw == DOCUMENT
    sharding = metadata.chunk_codecs().sharding
    assert sharding is not None
    assert sharding.inner_shape == (3, 2)
    assert np.isnan(metadata.fill_array((2, 2))).all()
    restored = pickle.loads(pickle.dumps(metadata))
    assert restored.raw == metadata.raw
    assert restored.grid == metadata.grid


def test_changes_leave_the_rest_of_the_document() -> None:
    metadata = parse(changed(extra={"must_understand": False, "a": 1}))
    longer = metadata.with_shape((20, 4)).with_attributes({"a": 2})
    assert longer.shape == (20, 4)
    assert longer.grid.num_chunks == (4, 1)
    document = json.loads(longer.to_bytes())
    assert document["extra"] == {"must_understand": False, "a": 1}
    assert document["shape"] == [20, 4]
    assert document["attributes"] == {"a": 2}
    assert parse_array_metadata(longer.to_bytes(), node_path="/g/a").grid == longer.grid
    with pytest.raises(InvalidInputError):
        metadata.with_shape((3,))


def test_members_that_may_be_missing() -> None:
    document = copy.deepcopy(DOCUMENT)
    for member in ("attributes", "dimension_names", "storage_transformers", "chunk_key_encoding"):
        del document[member]
    metadata = parse(document)
    assert metadata.attributes == {}
    assert metadata.dimension_names is None
    assert metadata.grid.num_chunks == (2, 1)


@pytest.mark.parametrize(
    ("member", "value", "field"),
    [
        ("shape", None, "shape"),
        ("shape", 3, "shape"),
        ("shape", "10", "shape"),
        ("shape", [10, -4], "shape[1]"),
        ("shape", [10, 4.0], "shape[1]"),
        ("shape", [10, True], "shape[1]"),
        ("shape", [float("nan"), 4], "shape[0]"),
        ("shape", [2**63, 4], "shape[0]"),
        ("shape", [10**4000, 4], "shape[0]"),
        ("shape", [[10], 4], "shape[0]"),
        ("shape", [1] * 65, "shape"),
        ("shape", [1] * 100_000, "shape"),
        ("shape", [10], "dimension_names"),
        ("chunk_grid", None, "chunk_grid"),
        ("chunk_grid", {}, "chunk_grid"),
        ("chunk_key_encoding", 3, "chunk_key_encoding"),
        ("data_type", None, "data_type"),
        ("fill_value", None, "fill_value"),
        ("fill_value", "x", "fill_value"),
        ("codecs", None, "codecs"),
        ("codecs", [], "codecs"),
        ("codecs", {"name": "bytes"}, "codecs"),
        ("attributes", [], "attributes"),
        ("attributes", "x", "attributes"),
        ("dimension_names", ["y"], "dimension_names"),
        ("dimension_names", ["y", 3], "dimension_names"),
        ("dimension_names", "yx", "dimension_names"),
        ("storage_transformers", 3, "storage_transformers"),
        ("node_type", "group", "node_type"),
        ("node_type", ["array"], "node_type"),
    ],
)
def test_broken_members_are_named(member: str, value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(changed(**{member: value}))
    assert caught.value.facts["object_key"] == "/g/a"
    assert caught.value.facts["field"] == field
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("member", ["shape", "data_type", "chunk_grid", "fill_value", "codecs"])
def test_missing_members_are_named(member: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    del document[member]
    with raises(FormatError, object_key="/g/a", field=member):
        parse(document)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"3",
        b"{",
        b'{"zarr_format": 3',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"shape": ' + b"9" * 10_000 + b"}",
        b" " * (MAX_DOCUMENT_NBYTES + 1),
    ],
    ids=range(11),
)
def test_what_is_not_a_document(data: bytes) -> None:
    with pytest.raises((FormatError, UnsupportedError)):
        parse_array_metadata(data, node_path="/a")
    with pytest.raises((FormatError, UnsupportedError)):
        parse_group_metadata(data, node_path="/a")


@pytest.mark.parametrize("version", [2, 4, "3", None, True, 3.5])
def test_other_versions_of_the_format(version: Any) -> None:
    with raises(UnsupportedError, match="zarr_format", node_path="/g/a"):
        parse(changed(zarr_format=version))


@pytest.mark.parametrize(
    "members",
    [
        {"storage_transformers": [{"name": "cache"}]},
        {"chunk_key_encoding": "v2"},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
        {"novelty": {"must_understand": True}},
        {"novelty": 3},
        {"novelty": {}},
    ],
)
def test_arrays_that_must_not_be_used_are_refused_when_used(members: dict[str, Any]) -> None:
    metadata = parse(changed(**members))
    assert metadata.shape == (10, 4)
    assert metadata.attributes == {"units": "K"}
    for use in (
        lambda: metadata.grid,
        lambda: metadata.data_type,
        lambda: metadata.fill_value,
        lambda: metadata.chunk_codecs(),
        lambda: metadata.fill_array((1, 1)),
    ):
        with raises(UnsupportedError, node_path="/g/a"):
            use()


def test_what_is_not_known_is_refused_when_used_and_only_that() -> None:
    unknown_type = parse(changed(data_type="bfloat16", fill_value="0x7fc0"))
    assert unknown_type.grid.num_chunks == (2, 1)
    with raises(UnsupportedError, node_path="/g/a", data_type="bfloat16"):
        _ = unknown_type.data_type
    with raises(UnsupportedError, node_path="/g/a", data_type="bfloat16"):
        _ = unknown_type.fill_value
    with raises(UnsupportedError, node_path="/g/a", data_type="bfloat16"):
        unknown_type.chunk_codecs()
    unknown_grid = parse(changed(chunk_grid={"name": "hexagonal"}))
    assert unknown_grid.data_type.name == "float32"
    with raises(UnsupportedError, node_path="/g/a", chunk_grid="hexagonal"):
        _ = unknown_grid.grid
    unknown_codec = parse(changed(codecs=[{"name": "mystery"}]))
    assert unknown_codec.grid.num_chunks == (2, 1)
    with raises(UnsupportedError, node_path="/g/a", codec="mystery"):
        unknown_codec.chunk_codecs()
    assert pickle.loads(pickle.dumps(unknown_grid)).shape == (10, 4)


def test_shards_that_inner_chunks_do_not_fill() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [7, 4]}}
    with raises(
        FormatError,
        match="whole inner chunks",
        object_key="/g/a",
        field="codecs[0].configuration.chunk_shape",
    ):
        parse(changed(chunk_grid=grid)).chunk_codecs()
    configuration = {"kind": "inline", "chunk_shapes": [[3, 7], 4]}
    grid = {"name": "rectilinear", "configuration": configuration}
    with raises(FormatError, object_key="/g/a", field="codecs[0].configuration.chunk_shape"):
        parse(changed(chunk_grid=grid)).chunk_codecs()
    configuration["chunk_shapes"] = [[3, 9], 4]
    assert parse(changed(chunk_grid=grid)).chunk_codecs().sharding is not None


def test_a_shard_of_size_0_is_as_large_as_its_inner_chunk() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}
    metadata = parse(changed(shape=[0, 4], chunk_grid=grid))
    assert metadata.grid.chunk_shape == (3, 4)
    odd = changed(shape=[0, 4], chunk_grid=grid)
    odd["codecs"][0]["configuration"] = 3
    with pytest.raises(FormatError):
        parse(odd).chunk_codecs()
    odd["codecs"][0]["configuration"] = {"chunk_shape": ["x"]}
    assert parse(odd).grid.chunk_shape == (1, 4)


def test_groups() -> None:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {"a": [1]}}
    group = parse_group_metadata(json.dumps(document).encode(), node_path="/g")
    assert group.attributes == {"a": [1]}
    other = group.with_attributes({"b": 2})
    assert parse_group_metadata(other.to_bytes(), node_path="/g").attributes == {"b": 2}
    built = build_group_metadata(attributes={"a": [1]}, node_path="/g")
    assert built.attributes == group.attributes
    ignored = document | {"x": {"must_understand": False}, "consolidated_metadata": None}
    parse_group_metadata(json.dumps(ignored).encode(), node_path="/g")
    with raises(UnsupportedError, node_path="/g", member="x"):
        parse_group_metadata(json.dumps(document | {"x": 1}).encode(), node_path="/g")
    with raises(FormatError, object_key="/g", field="node_type"):
        parse_group_metadata(json.dumps(DOCUMENT).encode(), node_path="/g")


def test_new_arrays() -> None:
    metadata = build_array_metadata(
        shape=(10, 4),
        data_type=parse_data_type("float32"),
        chunk_shape=(3, 2),
        shard_shape=(6, 4),
        fill_value=np.nan,
        dimension_names=("y", None),
        attributes={"units": "K"},
        node_path="/g/a",
    )
    chunk = np.arange(24, dtype="f4").reshape(6, 4)
    codecs = metadata.chunk_codecs()
    assert codecs.sharding is not None
    np.testing.assert_array_equal(codecs.decode(codecs.encode(chunk), (6, 4)), chunk)
    assert parse_array_metadata(metadata.to_bytes(), node_path="/g/a").raw == metadata.raw


@pytest.mark.parametrize(
    "arguments",
    [
        {"chunk_shape": (3,)},
        {"chunk_shape": (0, 1)},
        {"shape": (-1, 4)},
        {"shard_shape": (7, 4)},
        {"fill_value": "x"},
        {"dimension_names": ("y",)},
        {"codecs": ["zstd"]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "middle"}}]},
    ],
)
def test_new_arrays_that_cannot_be(arguments: dict[str, Any]) -> None:
    given_arguments: dict[str, Any] = {
        "shape": (10, 4),
        "data_type": parse_data_type("float32"),
        "chunk_shape": (3, 2),
    }
    with pytest.raises(InvalidInputError):
        build_array_metadata(**(given_arguments | arguments))


def test_new_arrays_with_codecs_that_are_not_there() -> None:
    with pytest.raises(UnsupportedError):
        build_array_metadata(
            shape=(1,), data_type=parse_data_type("int8"), chunk_shape=(1,), codecs=["mystery"]
        )


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.sampled_from([0, 1, -1, 2**31, 2**63, 10**100, 3.0, 0.5]),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(["bytes", "zstd", "blosc", "C", "string", "struct", "default", "little"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "configuration", "order", "a"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_mutated_documents_give_arrays_or_typed_errors(data: st.DataObject) -> None:
    document = copy.deepcopy(DOCUMENT)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([p for p in places(document) if p]))
        target = document
        for key in path[:-1]:
            target = target[key]
        if data.draw(st.booleans()):
            target[path[-1]] = data.draw(JSON_VALUES)
        else:
            del target[path[-1]]
    # Any other error fails the test.
    with contextlib.suppress(FormatError, UnsupportedError):
        metadata = parse(document)
        codecs = metadata.chunk_codecs()
        if all(metadata.grid.num_chunks) and metadata.ndim == 2:
            shape = metadata.grid.full_chunk_shape((0, 0))
            codecs.decode(b"\0" * 100, shape)
