"""Displays snapshots: a single one, the graph of a repository, and changes between two.

A snapshot has one parent, so histories form a forest. The newest snapshots are first. A lane of the
graph begins at each snapshot without children. Lanes with the same parent join the leftmost of
them, above the parent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from icechunk_format.display.markup import (
    attributes,
    cut,
    escaped,
    facts,
    folded,
    more,
    more_lines,
    page,
    quiet,
    soft,
    title,
)
from icechunk_format.display.plain_text import (
    counted,
    first_line,
    one_line,
    safe,
    safe_lines,
    shown_time,
    to_timestamp,
)
from icechunk_format.errors import IcechunkError

_MOST_SNAPSHOTS: Final = 20
_MOST_NAMES: Final = 20
_ROW: Final = 24
_LANE: Final = 14
_HUES: Final = ("#4688d8", "#46a05a", "#d8843c", "#a468c8", "#c8506e", "#2fa3a3")
_HAS_NO_REPO_FILE: Final = 1
_MOST_LINES: Final = 50
_LISTS: Final = (
    ("+", "new group", "new_groups"),
    ("+", "new array", "new_arrays"),
    ("-", "deleted group", "deleted_groups"),
    ("-", "deleted array", "deleted_arrays"),
    ("~", "metadata of a group", "updated_groups"),
    ("~", "metadata of an array", "updated_arrays"),
)


def when(snapshot: Any) -> str:
    """Return the time of a snapshot in UTC."""
    return shown_time(to_timestamp(snapshot.flushed_at))


def subject(snapshot: Any, most: int = 100) -> str:
    """Return the escaped first line of a snapshot's message, shortened."""
    return cut(first_line(snapshot.message[: 4 * most]), most)


# -- one snapshot ---------------------------------------------------------------------------


def info_text(info: Any) -> str:
    """Return a snapshot of the history as text."""
    parent = "" if info.parent_id is None else f", after {info.parent_id}"
    return f"<Snapshot {info.id}, {when(info)}{parent}: {subject(info, 72)}>"


def info_html(info: Any) -> str:
    """Return a snapshot of the history as HTML."""
    return page(info_text(info), title("Snapshot", f"<code>{info.id}</code>"), _about(info))


def entry_text(entry: Any) -> str:
    """Return a snapshot with its branches and tags as text."""
    names = [*entry.branches, *(f"tag {name}" for name in entry.tags)]
    shown = ", ".join(safe(cut(name, 60)) for name in names[:_MOST_NAMES])
    return f"{info_text(entry.snapshot)[:-1]}{f' ({shown})' if shown else ''}>"


def entry_html(entry: Any) -> str:
    """Return a snapshot with its branches and tags as HTML."""
    info = entry.snapshot
    head = title("Snapshot", f"<code>{info.id}</code>") + f" {_labels(entry)}"
    return page(entry_text(entry), head, _about(info))


def _about(info: Any) -> str:
    message = "<br>".join(escaped(line) for line in safe_lines(info.message[:2000])[:10])
    parent = "" if info.parent_id is None else f"<code>{info.parent_id}</code>"
    pruned = len(info.pruned_ancestor_tx_logs)
    rows = [
        ("Message", message),
        ("Committed", when(info)),
        ("Parent", parent),
        ("Expired", counted(pruned, "ancestor") if pruned else ""),
    ]
    try:
        metadata = info.metadata
    except IcechunkError as error:
        metadata = {"metadata cannot be read": error.message}
    return facts(rows) + attributes(metadata)


# -- a repository ---------------------------------------------------------------------------


def repository_html(repository: Any) -> str:
    """Return a repository with its newest snapshots as HTML.

    Reads the ``repo`` object if it changed since it was last read. Performs no I/O in spec version
    1, where each snapshot is a separate file.
    """
    version = f"spec version {repository.spec_version}"
    head = title("Repository", escaped(repository.location, 300), version)
    text = repr(repository)
    if repository.spec_version == _HAS_NO_REPO_FILE:
        hint = "Each snapshot is a separate file, and no file was read: call graph() for all."
        return page(text, head, quiet(hint))
    try:
        entries = repository.graph()
    except IcechunkError as error:
        problem = escaped(one_line(error.message[:2000]), 600)
        return page(text, head, f"<div class='wrong'>{problem}</div>")
    parts = [
        _names(kind, [name for entry in entries for name in getattr(entry, kind)])
        for kind in ("branches", "tags")
    ]
    return page(text, head, *parts, _graph(entries))


def _names(kind: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    one = "tag" if kind == "tags" else "branch"
    shown = "".join(_label(name, kind) for name in sorted(names)[:_MOST_NAMES])
    rest = more(len(names) - _MOST_NAMES, one, kind)
    return f"<div>{kind.capitalize()} {soft(f'({len(names):,})')} {shown} {rest}</div>"


def _label(name: str, kind: str) -> str:
    style = "label tag" if kind == "tags" else "label"
    return f"<span class='{style}'>{escaped(name, 40)}</span>"


def _labels(entry: Any) -> str:
    labels = [_label(name, kind) for kind in ("branches", "tags") for name in getattr(entry, kind)]
    rest = more(len(labels) - _MOST_NAMES, "name")
    return "".join(labels[:_MOST_NAMES]) + rest


def _graph(entries: Sequence[Any]) -> str:
    shown = entries[:_MOST_SNAPSHOTS]
    rows = list(rows_of((entry.snapshot.id, entry.snapshot.parent_id) for entry in shown))
    lanes = max(max(len(row.beside), len(row.above)) for row in rows) if rows else 0
    width, height = lanes * _LANE + 8, len(rows) * _ROW
    drawn = "".join(_row(number, row) for number, row in enumerate(rows))
    for lane, continues in enumerate(rows[-1].below if rows else ()):
        if continues:
            drawn = _edge(lane, height - _ROW / 2, lane, height) + drawn
    lines = "".join(f"<li>{_line(entry)}</li>" for entry in shown)
    picture = f"<svg width='{width}' height='{height}' viewBox='0 0 {width} {height}'>{drawn}</svg>"
    rest = quiet(more(len(entries) - len(shown), "snapshot"))
    summary = f"Snapshots {soft(f'({len(entries):,})')}"
    return folded(
        summary, f"<div class='graph'>{picture}<ol>{lines}</ol></div>{rest}", is_open=True
    )


def _line(entry: Any) -> str:
    info = entry.snapshot
    end = soft(f"{when(info)} <code>{info.id}</code>")
    return f"{_labels(entry)}{escaped(subject(info))} {end}"


def _row(number: int, row: Row) -> str:
    """Draw the lanes of a row, from the middle of the previous row to its own middle."""
    middle = number * _ROW + _ROW / 2
    drawn = []
    for lane, is_used in enumerate(row.above):
        # Lanes with this snapshot as parent end in it; other lanes continue.
        if is_used and number > 0:
            goal = row.lane if lane in row.joined else lane
            drawn.append(_edge(lane, middle - _ROW, goal, middle))
    drawn.append(f"<circle cx='{_x(row.lane)}' cy='{middle:.0f}' r='4.5' fill='{_hue(row.lane)}'/>")
    return "".join(drawn)


def _edge(lane: int, top: float, goal: int, bottom: float) -> str:
    x, end = _x(lane), _x(goal)
    half = (top + bottom) / 2
    bend = f"C{x} {half:.0f} {end} {half:.0f} {end} {bottom:.0f}" if x != end else f"V{bottom:.0f}"
    return f"<path d='M{x} {top:.0f}{bend}' fill='none' stroke='{_hue(lane)}' stroke-width='2'/>"


def _x(lane: int) -> int:
    return lane * _LANE + 8


def _hue(lane: int) -> str:
    return _HUES[lane % len(_HUES)]


# -- lanes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One snapshot and the lanes around it.

    Parameters
    ----------
    joined
        The lanes that lead to the snapshot, ``lane`` first.
    above, beside, below
        Which lanes are in use: above the line of the snapshot, on this line, and below it.
    """

    lane: int
    joined: tuple[int, ...]
    above: tuple[bool, ...]
    beside: tuple[bool, ...]
    below: tuple[bool, ...]


def rows_of(snapshots: Iterable[tuple[Hashable, Hashable | None]]) -> Iterator[Row]:
    """Yield the rows of pairs of snapshot and parent, in the order of ``newest_first``."""
    lanes: list[Hashable | None] = []
    for snapshot, parent in snapshots:
        above = _in_use(lanes)
        joined = tuple(number for number, waits in enumerate(lanes) if waits == snapshot)
        for number in joined[1:]:
            lanes[number] = None
        if joined:
            lane = joined[0]
        elif None in lanes:
            lane = lanes.index(None)
        else:
            lane = len(lanes)
            lanes.append(None)
        lanes[lane] = snapshot
        beside = _in_use(lanes)
        lanes[lane] = parent
        while lanes and lanes[-1] is None:
            lanes.pop()
        yield Row(lane=lane, joined=joined, above=above, beside=beside, below=_in_use(lanes))


def _in_use(lanes: list[Hashable | None]) -> tuple[bool, ...]:
    return tuple(waits is not None for waits in lanes)


# -- changes --------------------------------------------------------------------------------


def changes_text(changes: Any) -> str:
    """Return changes as text."""
    rows = list(_rows(changes))
    lines = [
        f"  {mark} {safe(cut(path, 100))}  {safe(what)}" for mark, path, what in rows[:_MOST_LINES]
    ]
    lines += more_lines(len(rows) - _MOST_LINES, "change")
    return "\n".join([f"<{_summary(changes, rows)}>", *lines])


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
        words.append(f"{counted(len(changes.missing_logs), 'log')} missing")
    return f"Changes: {', '.join(words)}"


def _rows(changes: Any) -> Iterator[tuple[str, str, str]]:
    for mark, what, name in _LISTS:
        yield from ((mark, path, what) for path in getattr(changes, name))
    for move in changes.moved_nodes:
        yield ">", move.to_path, f"moved from {safe(cut(move.from_path, 100))}"
    for path, coords in changes.updated_chunks.items():
        yield "~", path, counted(len(coords), "chunk")
    for snapshot_id in changes.missing_logs:
        yield "?", "", f"the transaction log of snapshot {snapshot_id} is missing"
