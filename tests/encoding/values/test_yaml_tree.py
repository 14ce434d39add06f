"""The YAML of a configuration has the types of its words, and tags become maps with one key."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.raised import raises

from icechunk_format.encoding.values.yaml_tree import MAX_YAML_SIZE, decode_yaml
from icechunk_format.errors import FormatError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("NULL", None),
        ("a:", {"a": None}),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2024-07-01", "2024-07-01"),
        ("12", 12),
        ("-012", -12),
        ("+3", 3),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1.e-2", -0.01),
        ("'12'", "12"),
        ("word", "word"),
        ("1: a", {"1": "a"}),
        ("a: {b: [1, {c: 2}]}", {"a": {"b": [1, {"c": 2}]}}),
    ],
)
def test_words_have_types(text: str, value: Any) -> None:
    found = decode_yaml(text.encode(), object_key="k")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("!S3", "S3"),
        ("!S3 ''", {"S3": ""}),
        ("!S3 5", {"S3": 5}),
        ("!S3 '5'", {"S3": "5"}),
        ("!S3 ~", {"S3": None}),
        ("!S3 word", {"S3": "word"}),
        ("!S3 {a: {b: 1}}", {"S3": {"a": {"b": 1}}}),
        ("!S3 [1, [2], !Gcs {a: !Any }]", {"S3": [1, [2], {"Gcs": {"a": "Any"}}]}),
        ("- !S3\n- b", ["S3", "b"]),
    ],
)
def test_tags_are_names_of_values(text: str, value: Any) -> None:
    assert decode_yaml(text.encode(), object_key="k") == value


def test_a_file_may_have_the_largest_size() -> None:
    assert MAX_YAML_SIZE == 262_144
    data = b"a: 1\n".ljust(MAX_YAML_SIZE, b"#")
    assert decode_yaml(data, object_key="k") == {"a": 1}
    with raises(FormatError, object_key="k", file_type="configuration"):
        decode_yaml(data + b"#", object_key="k")


def test_aliases_are_refused() -> None:
    with raises(FormatError, object_key="k", match="aliases"):
        decode_yaml(b"a: &x [1]\nb: *x\n", object_key="k")
    assert decode_yaml(b"a: &x [1]\n", object_key="k") == {"a": [1]}


@pytest.mark.parametrize("text", ["a: [1", "? [1, 2]\n: 3", "--- 1\n--- 2", "!!int x", "\0"])
def test_what_is_no_yaml_of_a_configuration_is_refused(text: str) -> None:
    with raises(FormatError, object_key="k", file_type="configuration", match="not YAML"):
        decode_yaml(text.encode(), object_key="k")
