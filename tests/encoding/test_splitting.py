"""Rules that split manifests are read, stored as they were read, and choose sizes of axes."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.raised import raises

from icechunk_format.encoding.splitting import (
    MAX_SPLIT,
    NO_SPLITTING,
    ArrayCondition,
    DimensionRule,
    SplittingRule,
    parse_rules,
    rules_tree,
    split_cells,
)
from icechunk_format.errors import FormatError, UnsupportedError

TREE: list[Any] = [
    [
        {"or": [{"path_matches": {"regex": "^/a/"}}, {"name_matches": {"regex": "^t$"}}]},
        [
            {"condition": {"Axis": 0}, "num_chunks": 2},
            {"condition": {"DimensionName": "^x$"}, "num_chunks": 3},
            {"condition": "Any", "num_chunks": MAX_SPLIT},
        ],
    ],
    [{"and": ["any_array", {"name_matches": {"regex": "u"}}]}, []],
    ["any_array", [{"condition": "Any", "num_chunks": 1}]],
]


def test_rules_are_stored_as_they_were_read() -> None:
    rules = parse_rules(TREE, "config.yaml")
    assert rules_tree(rules) == {"split_sizes": TREE}
    assert rules[0].dimensions == (
        DimensionRule(by="axis", value=0, num_chunks=2),
        DimensionRule(by="dimension_name", value="^x$", num_chunks=3),
        DimensionRule(by="any", num_chunks=2**32 - 1),
    )
    assert rules[2].condition == ArrayCondition(kind="any_array")
    assert parse_rules([], "config.yaml") == ()


@pytest.mark.parametrize(
    ("path", "names", "expected"),
    [
        ("/a/u", ("x", "x", None), (2, 3, 9)),
        ("/b/t", None, (2, 9, 9)),
        ("/b/tt", ("x", "y", "z"), (1, 1, 1)),
        ("/b/u", ("x", "y", "z"), (1, 1, 1)),
    ],
)
def test_the_first_rule_that_holds_decides_an_axis(
    path: str, names: tuple[str | None, ...] | None, expected: tuple[int, ...]
) -> None:
    assert split_cells(parse_rules(TREE, "k"), path, names, (9, 9, 9)) == expected


def test_without_rules_an_array_has_one_manifest() -> None:
    assert split_cells(NO_SPLITTING, "/a", None, (7, 0)) == (7, 1)
    assert split_cells((), "/a", None, (7, 0)) == (7, 1)


def test_an_unknown_condition_stops_writing_alone() -> None:
    rules = parse_rules([["newer_kind", [{"condition": "Any", "num_chunks": 1}]]], "k")
    with raises(UnsupportedError, found="newer_kind"):
        split_cells(rules, "/a", None, (3,))
    assert SplittingRule(condition=rules[0].condition, dimensions=rules[0].dimensions) == rules[0]


def rule(condition: Any = "any_array", dimension: Any = "Any", count: Any = 1) -> list[Any]:
    return [[condition, [{"condition": dimension, "num_chunks": count}]]]


@pytest.mark.parametrize(
    "tree",
    [
        {},
        "any_array",
        [["any_array"]],
        [["any_array", [], []]],
        [["any_array", {}]],
        [["any_array", [{"num_chunks": 1}]]],
        [["any_array", ["Any"]]],
        rule(count=0),
        rule(count=MAX_SPLIT + 1),
        rule(count=True),
        rule(count="2"),
        rule(count=None),
        rule(dimension="all"),
        rule(dimension={"Axis": "0"}),
        rule(dimension={"DimensionName": 0}),
        rule(dimension={"Axis": 0, "Any": 1}),
        rule(condition={"or": "any_array"}),
        rule(condition={"name_matches": "t"}),
        rule(condition={"name_matches": {"regex": 1}}),
        rule(condition=["any_array"]),
    ],
)
def test_what_is_no_rule_is_damage(tree: Any) -> None:
    with raises(FormatError, object_key="k", field="manifest.splitting.split_sizes"):
        parse_rules(tree, "k")


def test_conditions_are_nested_to_a_limit() -> None:
    condition: Any = "any_array"
    for _ in range(32):
        condition = {"and": [condition]}
    assert rules_tree(parse_rules(rule(condition), "k"))["split_sizes"][0][0] == condition
    with raises(FormatError, match="deeper than 32", object_key="k"):
        parse_rules(rule({"or": [condition]}), "k")


def test_a_rule_for_any_axis_has_no_name() -> None:
    rule = DimensionRule(by="any", value="never", num_chunks=2)
    assert rule.holds(0, "time")
    assert rule.holds(3, None)
    named = DimensionRule(by="dimension_name", value="^time$", num_chunks=2)
    assert [named.holds(0, name) for name in ("time", "x", None)] == [True, False, False]
    numbered = DimensionRule(by="axis", value=1, num_chunks=2)
    assert [numbered.holds(axis, "time") for axis in (0, 1)] == [False, True]
