"""Configurations are read from both encodings, with the defaults of a plain repository."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    decode_flexbuffer_config,
    decode_yaml_config,
)
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression
from icechunk_format.encoding.splitting import split_cells
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import FormatError, UnsupportedError

YAML = """\
inline_chunk_threshold_bytes: 100
get_partial_values_concurrency: null
compression:
  algorithm: null
  level: 5
caching: ~
storage:
  concurrency:
    max_concurrent_requests_for_object: 5
  retries: {max_tries: 1, initial_backoff_ms: 0, max_backoff_ms: 0}
  unsafe_use_conditional_update: false
virtual_chunk_containers:
  gs://b/:
    name: null
    url_prefix: gs://b/
    store: !gcs
      a: b
  s3://bkt/pre/:
    name: c1
    url_prefix: s3://bkt/pre/
    store: !s3
      region: no
      endpoint_url: null
      anonymous: false
      network_stream_timeout_seconds: 60
  file:///data/:
    name: '5'
    url_prefix: file:///data/
    store: !local_file_system /data
  memory://x/:
    url_prefix: memory://x/
    store: in_memory
  ignored:
    url_prefix: s3://no-slash
    store: !in_memory
manifest:
  preload:
    max_total_refs: 3
    preload_if: !and
    - 'true'
    - !num_refs
      from: !Included 2
      to: !Excluded 10
  splitting:
    split_sizes:
    - - !or
        - !name_matches
          regex: ^t
        - !path_matches
          regex: /a/.*
      - - condition: !DimensionName time
          num_chunks: 5
        - condition: !Axis 1
          num_chunks: 7
    - - any_array
      - - condition: Any
          num_chunks: 9
  virtual_chunk_location_compression:
    min_num_chunks: 10
num_updates_per_repo_info_file: null
a_key_of_the_future: {x: [1, 2.5, -3, 'text', yes, 1:30, 2001-01-01]}
"""

TREE: dict[str, Any] = {
    "inline_chunk_threshold_bytes": 100,
    "get_partial_values_concurrency": None,
    "compression": {"algorithm": None, "level": 5},
    "caching": None,
    "storage": {
        "concurrency": {"max_concurrent_requests_for_object": 5},
        "retries": {"max_tries": 1, "initial_backoff_ms": 0, "max_backoff_ms": 0},
        "unsafe_use_conditional_update": False,
    },
    "virtual_chunk_containers": {
        "gs://b/": {"name": None, "url_prefix": "gs://b/", "store": {"gcs": {"a": "b"}}},
        "s3://bkt/pre/": {
            "name": "c1",
            "url_prefix": "s3://bkt/pre/",
            "store": {
                "s3": {
                    "region": "no",
                    "endpoint_url": None,
                    "anonymous": False,
                    "network_stream_timeout_seconds": 60,
                }
            },
        },
        "file:///data/": {
            "name": "5",
            "url_prefix": "file:///data/",
            "store": {"local_file_system": "/data"},
        },
        "memory://x/": {"url_prefix": "memory://x/", "store": "in_memory"},
        "ignored": {"url_prefix": "s3://no-slash", "store": "in_memory"},
    },
    "manifest": {
        "preload": {
            "max_total_refs": 3,
            "preload_if": {
                "and": ["true", {"num_refs": {"from": {"Included": 2}, "to": {"Excluded": 10}}}]
            },
        },
        "splitting": {
            "split_sizes": [
                [
                    {
                        "or": [
                            {"name_matches": {"regex": "^t"}},
                            {"path_matches": {"regex": "/a/.*"}},
                        ]
                    },
                    [
                        {"condition": {"DimensionName": "time"}, "num_chunks": 5},
                        {"condition": {"Axis": 1}, "num_chunks": 7},
                    ],
                ],
                ["any_array", [{"condition": "Any", "num_chunks": 9}]],
            ]
        },
        "virtual_chunk_location_compression": {"min_num_chunks": 10},
    },
    "num_updates_per_repo_info_file": None,
    "a_key_of_the_future": {"x": [1, 2.5, -3, "text", "yes", "1:30", "2001-01-01"]},
}

BOTH = [
    pytest.param(decode_yaml_config(YAML.encode()), id="yaml"),
    pytest.param(decode_flexbuffer_config(encode_flexbuffer(TREE)), id="flexbuffer"),
]


@pytest.mark.parametrize("config", BOTH)
def test_both_encodings_give_the_same_settings(config: RepositoryConfig) -> None:
    assert config.raw == TREE
    assert config.inline_chunk_threshold_bytes == 100
    assert config.compression_level == 5
    assert config.num_updates_per_repo_info_file == 1000
    assert config.location_compression == LocationCompression(min_num_chunks=10)
    assert config.virtual_chunk_containers == (
        VirtualChunkContainer(
            name="5",
            url_prefix="file:///data/",
            store_kind="local_file_system",
            store_options={"path": "/data"},
        ),
        VirtualChunkContainer(url_prefix="gs://b/", store_kind="gcs", store_options={"a": "b"}),
        VirtualChunkContainer(url_prefix="memory://x/", store_kind="in_memory"),
        VirtualChunkContainer(
            name="c1",
            url_prefix="s3://bkt/pre/",
            store_kind="s3",
            store_options={
                "region": "no",
                "endpoint_url": None,
                "anonymous": False,
                "network_stream_timeout_seconds": 60,
            },
        ),
    )


def test_a_store_may_have_no_options() -> None:
    tree = {"virtual_chunk_containers": {"x/": {"store": {"in_memory": None}}}}
    (container,) = decode_flexbuffer_config(encode_flexbuffer(tree)).virtual_chunk_containers
    assert container == VirtualChunkContainer(url_prefix="x/", store_kind="in_memory")


@pytest.mark.parametrize("empty", [None, {}])
def test_no_configuration_is_the_default(empty: Any) -> None:
    config = decode_flexbuffer_config(encode_flexbuffer(empty))
    assert config == RepositoryConfig()
    assert decode_yaml_config(b"") == RepositoryConfig()
    full = config.effective()
    assert full["compression"] == {"algorithm": "zstd", "level": 3}
    assert full["caching"]["num_chunk_refs"] == 15_000_000
    assert full["storage"]["retries"]["max_tries"] == 10
    assert full["manifest"]["preload"]["max_total_refs"] == 10_000
    assert split_cells(config.splitting, "/a", None, (10, 0)) == (10, 1)


def test_effective_settings_fill_in_what_is_missing() -> None:
    full = decode_flexbuffer_config(encode_flexbuffer(TREE)).effective()
    assert full["storage"]["concurrency"] == {
        "max_concurrent_requests_for_object": 5,
        "ideal_concurrent_request_size": 12 * 1024 * 1024,
    }
    assert full["caching"]["num_snapshot_nodes"] == 500_000
    assert full["a_key_of_the_future"] == TREE["a_key_of_the_future"]


@pytest.mark.parametrize("config", BOTH)
@pytest.mark.parametrize(
    ("path", "names", "chunks", "expected"),
    [
        ("/temp", ("time", "x"), (100, 100), (5, 7)),
        ("/temp", ("x", "y", "time"), (100, 100, 100), (9, 7, 5)),
        ("/a/salt", ("x", "y"), (100, 100), (9, 7)),
        ("/salt", ("time", "y"), (100, 100), (9, 9)),
        ("/b/temp", None, (3, 0), (3, 1)),
        ("/temp", (), (), ()),
    ],
)
def test_rules_split_each_axis_by_the_first_that_matches(
    config: RepositoryConfig,
    path: str,
    names: tuple[str, ...] | None,
    chunks: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert split_cells(config.splitting, path, names, chunks) == expected


def with_rules(*rules: Any) -> RepositoryConfig:
    tree = {"manifest": {"splitting": {"split_sizes": list(rules)}}}
    return decode_flexbuffer_config(encode_flexbuffer(tree))


ANY = [{"condition": "Any", "num_chunks": 2}]


def test_conditions_combine() -> None:
    both = {"and": [{"name_matches": {"regex": "x"}}, {"path_matches": {"regex": "^/g/"}}]}
    config = with_rules([both, ANY])
    assert split_cells(config.splitting, "/g/x", None, (10,)) == (2,)
    assert split_cells(config.splitting, "/x", None, (10,)) == (10,)
    assert split_cells(config.splitting, "/g/y", None, (10,)) == (10,)


def test_conditions_nested_without_end_are_refused() -> None:
    condition = "!or [" * 40 + "any_array" + "]" * 40
    text = f"manifest: {{splitting: {{split_sizes: [[{condition}, []]]}}}}"
    with raises(
        FormatError,
        match="nested deeper than 32",
        object_key="config.yaml",
        field="manifest.splitting.split_sizes",
    ):
        decode_yaml_config(text.encode())


def test_a_pattern_that_libraries_may_read_differently_matters_where_it_decides() -> None:
    rules = [{"name_matches": {"regex": "(?x)x"}}, ANY]
    assert split_cells(with_rules(["any_array", ANY], rules).splitting, "/x", None, (10,)) == (2,)
    with raises(UnsupportedError, found="(?x)x"):
        split_cells(with_rules(rules).splitting, "/x", None, (10,))


def test_a_broken_pattern_matches_nothing() -> None:
    rules = [{"name_matches": {"regex": "("}}, ANY]
    assert split_cells(with_rules(rules).splitting, "/(", None, (10,)) == (10,)


def test_an_unknown_condition_only_matters_where_it_decides() -> None:
    config = with_rules(["any_array", ANY], [{"shape_is": 3}, ANY])
    assert split_cells(config.splitting, "/x", None, (10,)) == (2,)
    with raises(UnsupportedError, found="shape_is"):
        split_cells(with_rules([{"shape_is": 3}, ANY]).splitting, "/x", None, (10,))


@pytest.mark.parametrize(
    "rule",
    [
        "any_array",
        ["any_array"],
        ["any_array", [{"condition": "Any", "num_chunks": 0}]],
        ["any_array", [{"condition": "Any", "num_chunks": True}]],
        ["any_array", [{"condition": {"Axis": "one"}, "num_chunks": 1}]],
        ["any_array", [{"num_chunks": 1}]],
        [{"name_matches": "x"}, ANY],
        [{"name_matches": {}, "or": []}, ANY],
        [5, ANY],
    ],
)
def test_rules_of_another_shape_are_refused(rule: Any) -> None:
    with raises(FormatError, object_key="repo", field="manifest.splitting.split_sizes"):
        with_rules(rule)


@pytest.mark.parametrize(
    ("tree", "setting"),
    [
        ({"inline_chunk_threshold_bytes": "many"}, "inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": 70_000}, "inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": True}, "inline_chunk_threshold_bytes"),
        ({"num_updates_per_repo_info_file": -1}, "num_updates_per_repo_info_file"),
        ({"compression": {"level": -1}}, "compression.level"),
        ({"compression": 3}, "compression"),
        ({"caching": {"num_chunk_refs": -1}}, "caching.num_chunk_refs"),
        ({"previous_file": 3}, "previous_file"),
        ({"virtual_chunk_containers": {"x/": 3}}, "virtual_chunk_containers.x/"),
        ({"virtual_chunk_containers": {"x/": {"store": 3}}}, "virtual_chunk_containers.x/"),
        ({"virtual_chunk_containers": {"x/": {"url_prefix": 3}}}, "virtual_chunk_containers.x/"),
        ({"virtual_chunk_containers": {"x/": {"store": {"s3": 3}}}}, "virtual_chunk_containers.x/"),
        (["a list"], None),
    ],
)
def test_settings_of_another_type_are_refused_by_name(tree: Any, setting: str | None) -> None:
    with raises(FormatError, field=setting):
        decode_flexbuffer_config(encode_flexbuffer(tree))


def test_damage_is_that_of_the_object() -> None:
    for data in (b"", b"\0\0\3"):
        with raises(FormatError, object_key="repo", field="config", file_type="configuration"):
            decode_flexbuffer_config(data)


def test_a_threshold_has_16_bits() -> None:
    tree = {"inline_chunk_threshold_bytes": 65_535}
    config = decode_flexbuffer_config(encode_flexbuffer(tree))
    assert config.inline_chunk_threshold_bytes == 65_535
    with raises(FormatError, field="inline_chunk_threshold_bytes"):
        decode_flexbuffer_config(encode_flexbuffer({"inline_chunk_threshold_bytes": 65_536}))


def test_numbers_that_zstd_has_no_use_for_are_read_as_the_nearest() -> None:
    locations = {"compression_level": -5, "dictionary_max_size_bytes": 2**32 - 1}
    tree = {
        "compression": {"level": 255},
        "num_updates_per_repo_info_file": 0,
        "manifest": {"virtual_chunk_location_compression": locations},
    }
    config = decode_flexbuffer_config(encode_flexbuffer(tree))
    assert config.compression_level == 22
    assert config.num_updates_per_repo_info_file == 1
    assert config.location_compression.compression_level == 1
    assert config.location_compression.dictionary_max_size_bytes == 2**20
    assert config.raw == tree


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "a: &x [1]\nb: *x",
        "a: [1",
        "? [1, 2]\n: 3",
        "\x00",
        "--- 1\n--- 2",
        "[" * 900,
        "a: " + "9" * 5000,
        "just words",
    ],
)
def test_yaml_that_is_not_plain_data_is_refused(text: str) -> None:
    with raises(FormatError, object_key="config.yaml", field=None):
        decode_yaml_config(text.encode())


def test_yaml_of_absurd_size_is_refused_unread() -> None:
    with pytest.raises(FormatError, match="bytes of YAML"):
        decode_yaml_config(b"#" * (2 * 1024 * 1024))


@settings(deadline=None)
@given(st.data())
def test_damaged_yaml_only_gives_format_errors(data: st.DataObject) -> None:
    raw = bytearray(YAML.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        decode_yaml_config(bytes(raw))
