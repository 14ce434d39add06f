"""Node paths are checked, nested and ordered as the format does it."""

from __future__ import annotations

import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.encoding.node_path import (
    ROOT,
    NodePath,
    ancestors,
    component_order,
    group_path,
    is_below,
    join,
    name,
    parent,
    parse_node_path,
    stored_node_path,
)
from icechunk_format.errors import InvalidInputError

segments = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda s: s not in (".", ".."))
paths = st.lists(segments, max_size=4).map(lambda parts: NodePath("/" + "/".join(parts)))


@given(paths, segments)
def test_a_child_knows_its_parent_and_name(path: NodePath, segment: str) -> None:
    child = join(path, segment)
    assert parse_node_path(child) == child
    assert parent(child) == path
    assert name(child) == segment
    assert is_below(child, path)
    assert is_below(child, ROOT)
    assert not is_below(path, child)
    assert not is_below(path, path)


@pytest.mark.parametrize("given", ["a/b", "/a/b", "a/b/", "//a/b//"])
def test_the_path_of_a_group_has_slashes_as_in_the_format(given: str) -> None:
    assert group_path(given) == "/a/b"


@pytest.mark.parametrize("given", [None, "", "/"])
def test_a_group_without_a_name_is_the_root(given: str | None) -> None:
    assert group_path(given) == ROOT


def test_the_root_has_neither_parent_nor_name() -> None:
    assert parse_node_path("/") == ROOT
    assert parent(ROOT) is None
    assert name(ROOT) == ""


def test_the_groups_above_a_node_begin_with_the_innermost() -> None:
    assert list(ancestors(NodePath("/a/b/c"))) == ["/a/b", "/a", "/"]
    assert list(ancestors(NodePath("/a"))) == ["/"]
    assert list(ancestors(ROOT)) == []


def test_a_common_prefix_is_not_nesting() -> None:
    assert not is_below(NodePath("/foo-x"), NodePath("/foo"))
    assert is_below(NodePath("/foo/x"), NodePath("/foo"))


@given(paths, paths)
def test_string_order_is_the_order_of_utf8_bytes(left: NodePath, right: NodePath) -> None:
    assert (left < right) == (left.encode() < right.encode())


def test_the_two_orders_differ() -> None:
    tree = [NodePath(p) for p in ("/", "/a", "/a-b", "/a/b", "/b")]
    assert sorted(tree) == ["/", "/a", "/a-b", "/a/b", "/b"]
    assert sorted(tree, key=component_order) == ["/", "/a", "/a/b", "/a-b", "/b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b",
        "ab",
        "ab/c",
        "/a/",
        "//",
        "/a//b",
        "/.",
        "/a/../b",
        "/..",
        "/a/./b",
        "/a\0b",
        "/\ud800",
    ],
)
def test_what_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a node path"):
        parse_node_path(text)


def test_paths_of_files_are_absolute_at_least() -> None:
    assert stored_node_path("/a//b/") == "/a//b/"
    for string in ("", "a", "a/b"):
        with raises(InvalidInputError, found=string):
            stored_node_path(string)


@pytest.mark.parametrize("child", ["", "..", "a/b", "/"])
def test_a_child_name_is_one_segment(child: str) -> None:
    with pytest.raises(InvalidInputError):
        join(ROOT, child)
