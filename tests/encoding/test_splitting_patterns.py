"""Patterns are refused, match nothing, or match what Python finds."""

from __future__ import annotations

import re

import pytest
from helpers.files.splitting_patterns import BROKEN, REFUSED, UNDERSTOOD
from helpers.raised import raises

from icechunk_format.encoding.splitting_patterns import check_pattern, contains
from icechunk_format.errors import UnsupportedError

NAMES = ("temp", "a", "a-b", "aab", "x1", "A_Z", "a b", "k.K", "")


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_libraries_read_differently_is_refused(pattern: str) -> None:
    for act in (check_pattern, lambda one: contains(one, "temp")):
        with raises(UnsupportedError, match="may read differently", found=pattern):
            act(pattern)


@pytest.mark.parametrize("pattern", BROKEN)
def test_what_rust_rejects_matches_nothing(pattern: str) -> None:
    assert contains(pattern, "temp") is False
    with raises(UnsupportedError, match="is not a regular expression of Rust", found=pattern):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", UNDERSTOOD)
def test_other_patterns_match_what_python_finds(pattern: str) -> None:
    check_pattern(pattern)
    for name in NAMES:
        assert contains(pattern, name) is (re.search(pattern, name) is not None)


def test_names_on_which_libraries_differ_are_refused() -> None:
    assert contains("é", "é")
    assert contains("[a-z]", "été")
    for pattern, name in (
        (r"\w", "é"),
        ("(?i)k", "é"),
        (r"a\b", "é"),
        ("l$", "tail\n"),
        ("a", "a\x1c"),
    ):
        with raises(UnsupportedError, found=pattern, match="classes such as"):
            contains(pattern, name)


def test_limits_of_classes_and_repetitions() -> None:
    for pattern in (r"\w" * 200, r"\w{99}\W{99}\d{2}", "a*b*c*d*e", r"\w{9,99}\w{9,99}\w\w"):
        check_pattern(pattern)
    for pattern, problem in (
        (r"\w" * 201, "more than 200 classes"),
        (r"\w{99}\W{99}\d{3}", "more than 200 classes"),
        ("a*b*c*d*e*", "more than 4 repetitions"),
        ("abc]de", "']de' at character 4"),
        ("abc]defghijklm", "']defghij' at character 4"),
    ):
        with raises(UnsupportedError, match=re.escape(problem), found=pattern):
            check_pattern(pattern)
