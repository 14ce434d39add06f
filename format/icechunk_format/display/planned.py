"""Displays a group that a job would write."""

from __future__ import annotations

from typing import Any

from icechunk_format.display.arrays import (
    MOST_ARRAYS,
    ArrayFacts,
    array_lines,
    arrays_html,
    facts_of_document,
)
from icechunk_format.display.markup import (
    attribute_lines,
    attributes,
    cut,
    escaped,
    more_lines,
    page,
    title,
)
from icechunk_format.display.plain_text import safe


def group_text(group: Any) -> str:
    """Return a planned group as text, without I/O."""
    facts, left_out = _arrays(group)
    lines = [
        f"<PlannedGroup {safe(cut(group.path, 100))} of {safe(cut(str(group.location), 200))}>"
    ]
    lines += array_lines([("    ", one) for one in facts])
    lines += more_lines(left_out, "array", "    ")
    return "\n".join([*lines, *attribute_lines(group.attributes)])


def group_html(group: Any) -> str:
    """Return a planned group as HTML, without I/O."""
    facts, left_out = _arrays(group)
    head = title("Planned group", escaped(group.path, 300), f"of {escaped(group.location, 300)}")
    return page(group_text(group), head, arrays_html(facts, left_out), attributes(group.attributes))


def _arrays(group: Any) -> tuple[list[ArrayFacts], int]:
    chosen = list(group.arrays.items())[:MOST_ARRAYS]
    facts = [facts_of_document(document, name) for name, document in chosen]
    return facts, len(group.arrays) - len(chosen)
