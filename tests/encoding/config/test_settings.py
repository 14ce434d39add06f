"""Settings have the defaults of the reference, and the limits of the numbers that store them."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.raised import raises

from icechunk_format.encoding.config.changes import changed_tree
from icechunk_format.encoding.config.config import RepositoryConfig, parse_config
from icechunk_format.errors import InvalidInputError

# Path -> (default, least, most), None for no default.
NUMBERS = {
    "inline_chunk_threshold_bytes": (512, 0, 65_535),
    "get_partial_values_concurrency": (10, 1, 65_535),
    "compression.level": (3, 0, 22),
    "max_concurrent_requests": (256, 1, 65_535),
    "max_concurrent_decodes": (None, 1, 65_535),
    "caching.num_snapshot_nodes": (500_000, 0, 2**64 - 1),
    "caching.num_chunk_refs": (15_000_000, 0, 2**64 - 1),
    "caching.num_transaction_changes": (0, 0, 2**64 - 1),
    "caching.num_bytes_attributes": (0, 0, 2**64 - 1),
    "caching.num_bytes_chunks": (0, 0, 2**64 - 1),
    "storage.concurrency.max_concurrent_requests_for_object": (18, 1, 65_535),
    "storage.concurrency.ideal_concurrent_request_size": (12_582_912, 1, 2**64 - 1),
    "storage.retries.max_tries": (10, 1, 65_535),
    "storage.retries.initial_backoff_ms": (100, 0, 2**32 - 1),
    "storage.retries.max_backoff_ms": (180_000, 0, 2**32 - 1),
    "storage.timeouts.connect_timeout_ms": (None, 0, 2**32 - 1),
    "storage.timeouts.read_timeout_ms": (None, 0, 2**32 - 1),
    "storage.timeouts.operation_timeout_ms": (None, 0, 2**32 - 1),
    "storage.timeouts.operation_attempt_timeout_ms": (None, 0, 2**32 - 1),
    "storage.minimum_size_for_multipart_upload": (104_857_600, 0, 2**64 - 1),
    "manifest.preload.max_total_refs": (10_000, 0, 2**32 - 1),
    "manifest.preload.max_arrays_to_scan": (50, 0, 2**32 - 1),
    "manifest.virtual_chunk_location_compression.min_num_chunks": (1000, 0, 65_535),
    "manifest.virtual_chunk_location_compression.dictionary_max_training_samples": (100, 0, 65_535),
    "manifest.virtual_chunk_location_compression.dictionary_max_size_bytes": (2048, 0, 2**20),
    "manifest.virtual_chunk_location_compression.compression_level": (3, 1, 22),
    "manifest.max_concurrent_manifest_fetches_during_commit": (1, 1, 65_535),
    "repo_update_retries.default.max_tries": (100, 1, 65_535),
    "repo_update_retries.default.initial_backoff_ms": (50, 0, 2**32 - 1),
    "repo_update_retries.default.max_backoff_ms": (30_000, 0, 2**32 - 1),
    "num_updates_per_repo_info_file": (1000, 1, 65_535),
}
OTHERS = {
    "compression.algorithm": "zstd",
    "storage.unsafe_use_conditional_update": True,
    "storage.unsafe_use_conditional_create": True,
    "storage.unsafe_use_metadata": True,
}


def tree_of(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        below = (
            flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
        found |= below
    return found


def test_every_default() -> None:
    numbers = {path: default for path, (default, _, _) in NUMBERS.items() if default is not None}
    effective = RepositoryConfig().effective()
    assert flat(effective) == numbers | OTHERS
    assert effective["virtual_chunk_containers"] == {}
    assert effective["storage"]["timeouts"] == {}


@pytest.mark.parametrize("path", NUMBERS)
def test_numbers_have_limits(path: str) -> None:
    _, least, most = NUMBERS[path]
    for value in (least, most):
        assert changed_tree({}, tree_of(path, value)) == tree_of(path, value)
    for value in (least - 1, most + 1):
        with raises(InvalidInputError, setting=path, found=value, allowed=(least, most)):
            changed_tree({}, tree_of(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("compression.algorithm", "lz4"),
        ("compression.algorithm", 3),
        ("storage.storage_class", 3),
        ("storage.unsafe_use_metadata", 1),
        ("max_concurrent_requests", 1.0),
        ("max_concurrent_requests", True),
    ],
)
def test_other_values_are_refused_with_what_was_found(path: str, value: Any) -> None:
    with raises(InvalidInputError, setting=path, found=value):
        changed_tree({}, tree_of(path, value))


@pytest.mark.parametrize(
    "name", ["storage_class", "metadata_storage_class", "chunks_storage_class"]
)
def test_words(name: str) -> None:
    tree = {"storage": {name: "STANDARD_IA"}}
    assert changed_tree({}, tree) == tree
    assert parse_config(tree).effective()["storage"][name] == "STANDARD_IA"
