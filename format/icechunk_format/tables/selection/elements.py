"""Names elements of list columns, so that a condition on an element is one on a column.

``chunk[0] = 3`` and ``chunk = ARRAY(3L, 0L)`` become conditions on the columns ``chunk[0]``,
``chunk[1]`` and ``chunk[*]``, the number of elements. A row has no such column if its list is
shorter; the caller must not evaluate the condition there.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_NUMBER: Final = r"(\d+)L?"
_SKIPPED: Final = r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`"
_FORMS: Final = (
    (rf"`({{names}})`\[{_NUMBER}\]", 0),
    (rf"(?i:element_at)\(`({{names}})`, {_NUMBER}\)", 1),
)
_LIST: Final = r"(?i:array)\(((?:-?\d+L?(?:, )?)+)\)"
_LISTS: Final = rf"\(?`({{names}})` (?:(?:=|<=>) {_LIST}|(?i:in) \({_LIST}(?:, {_LIST})*\))\)?"


def length_of(name: str) -> str:
    """Return the name of the column with the number of elements of a list."""
    return f"{name}[*]"


def element_of(name: str, index: int) -> str:
    """Return the name of the column with one element of a list, from 0."""
    return f"{name}[{index}]"


def with_elements(sql: str, lists: Collection[str]) -> tuple[str, list[str]]:
    """Return a conjunct with columns in place of elements of lists, and the names of these columns.

    ``lists`` are the list columns, of which a conjunct may name any spelling in case.
    """
    if not lists:
        return sql, []
    known = {name.casefold(): name for name in lists}
    names = "|".join(f"(?i:{re.escape(name)})" for name in lists)
    found: dict[str, None] = {}

    def column(name: str) -> str:
        found[name] = None
        return f"`{name}`"

    whole = re.fullmatch(_LISTS.replace("{names}", names), sql)
    if whole is not None:
        name = known[whole[1].casefold()]
        choices = []
        for listed in re.findall(_LIST, sql):
            items = listed.split(", ")
            terms = [f"{column(element_of(name, i))} = {item}" for i, item in enumerate(items)]
            choices.append(" AND ".join([*terms, f"{column(length_of(name))} = {len(items)}"]))
        return " OR ".join(f"({choice})" for choice in choices), list(found)
    patterns = [pattern.replace("{names}", names) for pattern, _ in _FORMS]

    def replaced(match: re.Match[str]) -> str:
        for form, (_, first) in enumerate(_FORMS):
            name, index = match[1 + 2 * form], match[2 + 2 * form]
            if name is not None and int(index) >= first:
                return column(element_of(known[name.casefold()], int(index) - first))
        return match[0]

    return re.sub("|".join([*patterns, _SKIPPED]), replaced, sql), list(found)
