"""Changes are checked one by one, and only what differs is a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.raised import raises

from icechunk_format.encoding.config.changes import changed_tree, changes_in
from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    parse_config,
)
from icechunk_format.encoding.splitting import ArrayCondition, DimensionRule, SplittingRule
from icechunk_format.errors import InvalidInputError

RULE = SplittingRule(
    condition=ArrayCondition(kind="any_array"), dimensions=(DimensionRule(by="any", num_chunks=2),)
)
RULE_TREE = ["any_array", [{"condition": "Any", "num_chunks": 2}]]
S3 = {
    "region": None,
    "endpoint_url": None,
    "anonymous": False,
    "allow_http": False,
    "force_path_style": False,
    "network_stream_timeout_seconds": 60,
    "requester_pays": False,
    "checksum_algorithm": None,
}


def with_container(prefix: Any, item: Any, tree: Any = None) -> Any:
    changed = changed_tree(tree or {}, {"virtual_chunk_containers": {prefix: item}})
    return changed["virtual_chunk_containers"].get(prefix)


def test_only_what_differs_is_a_change() -> None:
    assert changes_in(RepositoryConfig()) == {}
    one = VirtualChunkContainer(url_prefix="gs://a/", store_kind="gcs")
    two = VirtualChunkContainer(url_prefix="gs://b/", store_kind="gcs")
    raw = changed_tree({}, {"virtual_chunk_containers": [one, two]})
    config = parse_config(raw)
    assert changes_in(config) == {}
    assert changes_in(replace(config, compression_level=9)) == {"compression": {"level": 9}}
    assert changes_in(replace(config, inline_chunk_threshold_bytes=9)) == {
        "inline_chunk_threshold_bytes": 9
    }
    assert changes_in(replace(config, num_updates_per_repo_info_file=9)) == {
        "num_updates_per_repo_info_file": 9
    }
    locations = replace(config.location_compression, min_num_chunks=9)
    assert changes_in(replace(config, location_compression=locations)) == {
        "manifest": {"virtual_chunk_location_compression": {"min_num_chunks": 9}}
    }
    assert changes_in(replace(config, splitting=(RULE,))) == {"manifest": {"splitting": (RULE,)}}
    named = replace(two, name="n")
    third = replace(two, url_prefix="gs://c/")
    assert changes_in(replace(config, virtual_chunk_containers=(named, third))) == {
        "virtual_chunk_containers": {"gs://a/": None, "gs://b/": named, "gs://c/": third}
    }
    with raises(InvalidInputError, setting="previous_file"):
        changes_in(replace(config, previous_file="x"))


@pytest.mark.parametrize("given", [{"split_sizes": [RULE_TREE]}, [RULE_TREE], [RULE], (RULE,)])
def test_rules_are_given_as_values_or_as_their_tree(given: Any) -> None:
    changed = changed_tree({}, {"manifest": {"splitting": given}})
    assert changed == {"manifest": {"splitting": {"split_sizes": [RULE_TREE]}}}


def test_an_axis_is_a_number_of_64_bits() -> None:
    def rules(axis: int) -> dict[str, Any]:
        rule = ["any_array", [{"condition": {"Axis": axis}, "num_chunks": 2}]]
        return {"manifest": {"splitting": [rule]}}

    for axis in (0, 2**64 - 1):
        changed = changed_tree({}, rules(axis))
        (found,) = parse_config(changed).splitting
        assert found.dimensions[0].value == axis
    for axis in (-1, 2**64):
        with raises(InvalidInputError, setting="manifest.splitting", found=axis):
            changed_tree({}, rules(axis))


@pytest.mark.parametrize("prefix", ["bucket/", "s3://bucket", "", 3, None])
def test_a_prefix_is_a_url_of_a_folder(prefix: Any) -> None:
    with raises(InvalidInputError, setting=f"virtual_chunk_containers.{prefix}"):
        with_container(prefix, {"store": {"s3": {}}})


@pytest.mark.parametrize(
    ("store", "stored"),
    [
        ("in_memory", "in_memory"),
        ({"in_memory": None}, "in_memory"),
        ({"local_file_system": "/data"}, {"local_file_system": "/data"}),
        ({"gcs": {"bucket": "b", "region": "r"}}, {"gcs": {"bucket": "b", "region": "r"}}),
        ({"http": {}}, {"http": {}}),
        ({"s3": {}}, {"s3": S3}),
        ({"tigris": {"region": "r"}}, {"tigris": {**S3, "region": "r"}}),
        ({"s3": {"anonymous": True}}, {"s3": {**S3, "anonymous": True}}),
    ],
)
def test_stores_are_stored_with_all_their_options(store: Any, stored: Any) -> None:
    found = with_container("x://b/", {"store": store})
    assert found == {"name": None, "url_prefix": "x://b/", "store": stored}


@pytest.mark.parametrize(
    "item",
    [
        {"store": {"in_memory": {"a": "b"}}},
        {"store": {"local_file_system": {"path": "/data", "more": 1}}},
        {"store": {"gcs": {"region": 1}}},
        {"store": {"s3": {"anonymous": None}}},
        {"store": {"s3": {"network_stream_timeout_seconds": 2**32}}},
        {"store": {"s3": {}}, "name": ""},
        {"store": {"s3": {}}, "name": "a/b"},
        {"store": {"s3": {}}, "url_prefix": "s3://other/"},
        VirtualChunkContainer(url_prefix="s3://other/", store_kind="s3"),
    ],
)
def test_containers_that_are_refused(item: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"virtual_chunk_containers.s3://b/"):
        with_container("s3://b/", item)


@pytest.mark.parametrize(
    "name",
    [
        "client_secret", "api_Key", "TOKEN", "password", "credentials", "sas", "Authorization",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["gcs", "azure", "http"])
def test_credentials_are_not_stored(kind: str, name: str) -> None:
    with raises(InvalidInputError, match="looks like a credential"):
        with_container("x://b/", {"store": {kind: {name: "x"}}})


def test_stored_containers_that_are_damaged_are_an_error() -> None:
    damaged = {"virtual_chunk_containers": {"x://a/": 3}}
    with raises(InvalidInputError, field="virtual_chunk_containers.x://a/"):
        with_container("x://b/", {"store": {"s3": {}}}, damaged)
