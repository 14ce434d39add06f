"""Shows what changed between two versions, one node on a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from icechunk_format.display.markup import cut, escaped, facts, more, page, quiet, title
from icechunk_format.display.plain_text import counted, safe

_MOST_LINES: Final = 50
_LISTS: Final = (
    ("+", "new group", "new_groups"),
    ("+", "new array", "new_arrays"),
    ("-", "deleted group", "deleted_groups"),
    ("-", "deleted array", "deleted_arrays"),
    ("~", "metadata of a group", "updated_groups"),
    ("~", "metadata of an array", "updated_arrays"),
)


def changes_text(changes: Any) -> str:
    """Return changes as text."""
    rows = list(_rows(changes))
    lines = [
        f"  {mark} {safe(cut(path, 100))}  {safe(what)}" for mark, path, what in rows[:_MOST_LINES]
    ]
    rest = more(len(rows) - _MOST_LINES, "change")
    return "\n".join([f"<{_summary(changes, rows)}>", *lines, *([f"  {rest}"] if rest else [])])


def changes_html(changes: Any) -> str:
    """Return changes as HTML."""
    rows = list(_rows(changes))
    shown = [
        (f"<code>{mark}</code> {escaped(path, 100)}", escaped(what))
        for mark, path, what in rows[:_MOST_LINES]
    ]
    rest = quiet(more(len(rows) - _MOST_LINES, "change"))
    head = title("Changes", _summary(changes, rows).partition(": ")[2])
    return page(changes_text(changes), head, facts(shown), rest)


def _summary(changes: Any, rows: list[Any]) -> str:
    chunks = sum(len(coords) for coords in changes.updated_chunks.values())
    words = [counted(len(rows), "change"), counted(chunks, "chunk")]
    if changes.missing_logs:
        words.append(f"{counted(len(changes.missing_logs), 'record')} missing")
    return f"Changes: {', '.join(words)}"


def _rows(changes: Any) -> Iterator[tuple[str, str, str]]:
    for mark, what, name in _LISTS:
        yield from ((mark, path, what) for path in getattr(changes, name))
    for move in changes.moved_nodes:
        yield ">", move.to_path, f"moved from {safe(cut(move.from_path, 100))}"
    for path, coords in changes.updated_chunks.items():
        yield "~", path, counted(len(coords), "chunk")
    for snapshot_id in changes.missing_logs:
        yield "?", "", f"the record of snapshot {snapshot_id} is gone"
