"""The text of a changed configuration is known to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from icechunk_format.encoding.config.config import decode_yaml_config
from icechunk_format.encoding.config.yaml_text import encode_yaml_config

OLD = b"""\
# First.
future:
  b: 1 # one
  c: 2
gone: {x: 1}
kept:   [1,   2]   # as it is
"""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, OLD),
        (
            {"future": {"b": 1, "c": 3}},
            OLD.replace(b"b: 1 # one", b"b: 1").replace(b"c: 2", b"c: 3"),
        ),
        (
            {"future": {"c": 2, "d": [1, "x"]}},
            OLD.replace(b"  b: 1 # one\n  c: 2\n", b"  c: 2\n  d:\n  - 1\n  - x\n"),
        ),
        ({"gone": None}, OLD.replace(b"gone: {x: 1}\n", b"")),
        ({"new": {"a": None, "b": True}}, OLD + b"new:\n  a: null\n  b: true\n"),
    ],
)
def test_only_what_changed_is_written_again(changes: dict[str, Any], text: bytes) -> None:
    tree = {**decode_yaml_config(OLD).raw, **changes}
    tree = {name: value for name, value in tree.items() if value is not None}
    assert encode_yaml_config(OLD, tree) == text


def test_enum_values_have_tags() -> None:
    rule = [
        {"and": [{"name_matches": {"regex": "^t"}}, "any_array"]},
        [
            {"condition": {"DimensionName": "time"}, "num_chunks": 5},
            {"condition": {"Axis": 0}, "num_chunks": 7, "future": {"a": 1, "b": 2}},
            {"condition": "Any", "num_chunks": 9},
        ],
    ]
    tree = {
        "virtual_chunk_containers": {
            "s3://b/": {"name": None, "url_prefix": "s3://b/", "store": {"s3": {"region": "r"}}},
            "memory://x/": {"url_prefix": "memory://x/", "store": "in_memory"},
        },
        "manifest": {"splitting": {"split_sizes": [rule]}},
    }
    assert (
        encode_yaml_config(b"", tree).decode()
        == """\
virtual_chunk_containers:
  s3://b/:
    name: null
    url_prefix: s3://b/
    store: !s3
      region: r
  memory://x/:
    url_prefix: memory://x/
    store: in_memory
manifest:
  splitting:
    split_sizes:
    - - !and
        - !name_matches
          regex: ^t
        - any_array
      - - condition: !DimensionName 'time'
          num_chunks: 5
        - condition: !Axis 0
          num_chunks: 7
          future:
            a: 1
            b: 2
        - condition: Any
          num_chunks: 9
"""
    )


@pytest.mark.parametrize(
    ("store", "text"),
    [
        ({"http": None}, b"!http null"),
        ({"http": "null"}, b"!http 'null'"),
        ({"local_file_system": "3"}, b"!local_file_system '3'"),
        ({"local_file_system": "/data"}, b"!local_file_system '/data'"),
    ],
)
def test_the_content_of_a_tag_keeps_its_type(store: Any, text: bytes) -> None:
    container = {"url_prefix": "x://y/", "store": store}
    tree = {"virtual_chunk_containers": {"x://y/": container}}
    data = encode_yaml_config(b"", tree)
    assert data.endswith(b"store: " + text + b"\n")
    assert decode_yaml_config(data).raw == tree


def test_a_word_of_a_tag_is_quoted_when_it_is_written_again() -> None:
    old = b"future:\n  a: !x word\n  b: !y 5\n  c: 1\n"
    tree = {"future": {"a": {"x": "word"}, "b": {"y": 5}, "c": 2}}
    text = b"future:\n  a: !x 'word'\n  b: !y 5\n  c: 2\n"
    assert encode_yaml_config(old, tree) == text
