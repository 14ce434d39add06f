"""Elements of lists become columns, and nothing else of a condition changes."""

from __future__ import annotations

import pytest

from icechunk_format.tables.selection.elements import element_of, length_of, with_elements

LISTS = ("chunk", "start")


@pytest.mark.parametrize(
    ("sql", "expected", "names"),
    [
        ("(`chunk`[0] > 3L)", "(`chunk[0]` > 3L)", ["chunk[0]"]),
        ("(`Chunk`[1L] > `start`[10])", "(`chunk[1]` > `start[10]`)", ["chunk[1]", "start[10]"]),
        ("(element_at(`chunk`, 1) = 2L)", "(`chunk[0]` = 2L)", ["chunk[0]"]),
        ("element_at(`chunk`, 0) = 1", "element_at(`chunk`, 0) = 1", []),
        ("element_at(`chunk`, -1) = 1", "element_at(`chunk`, -1) = 1", []),
        ("(`array` = '`chunk`[0]')", "(`array` = '`chunk`[0]')", []),
        ("(`shape`[0] = 1L)", "(`shape`[0] = 1L)", []),
        ("(`a``chunk`[0] = 1L)", "(`a``chunk`[0] = 1L)", []),
        (
            "(`chunk` = ARRAY(1L, -2L))",
            "(`chunk[0]` = 1L AND `chunk[1]` = -2L AND `chunk[*]` = 2)",
            ["chunk[0]", "chunk[1]", "chunk[*]"],
        ),
        (
            "(`chunk` IN (ARRAY(1L), ARRAY(2L)))",
            "(`chunk[0]` = 1L AND `chunk[*]` = 1) OR (`chunk[0]` = 2L AND `chunk[*]` = 1)",
            ["chunk[0]", "chunk[*]"],
        ),
        ("(`chunk` <= ARRAY(1L))", "(`chunk` <= ARRAY(1L))", []),
        ("(NOT (`chunk` = ARRAY(1L)))", "(NOT (`chunk` = ARRAY(1L)))", []),
    ],
)
def test_elements_are_columns(sql: str, expected: str, names: list[str]) -> None:
    assert with_elements(sql, LISTS) == (expected, names)


def test_tables_without_lists() -> None:
    assert with_elements("`chunk`[0] = 1", ()) == ("`chunk`[0] = 1", [])
    assert (element_of("chunk", 2), length_of("chunk")) == ("chunk[2]", "chunk[*]")
