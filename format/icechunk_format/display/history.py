"""Shows versions: one on a line, and those of a repository as a graph with branches and tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icechunk_format.display.lanes import Placed, placed
from icechunk_format.display.markup import (
    attributes,
    cut,
    escaped,
    facts,
    folded,
    more,
    page,
    quiet,
    soft,
    title,
)
from icechunk_format.display.plain_text import (
    counted,
    one_line,
    safe,
    safe_lines,
    shown_time,
    to_instant,
)
from icechunk_format.errors import IcechunkError

_MOST_VERSIONS: Final = 20
_MOST_NAMES: Final = 20
_ROW: Final = 24
_LANE: Final = 14
_HUES: Final = ("#4688d8", "#46a05a", "#d8843c", "#a468c8", "#c8506e", "#2fa3a3")
_HAS_NO_REPO_FILE: Final = 1


def when(version: Any) -> str:
    """Return the time of a version in UTC."""
    return shown_time(to_instant(version.flushed_at))


def first_line(version: Any, most: int = 100) -> str:
    """Return the first line of the message of a version, safe to show."""
    lines = safe_lines(version.message[: 4 * most])
    return cut(lines[0], most) if lines else ""


# -- one version ----------------------------------------------------------------------------


def version_text(info: Any) -> str:
    """Return an entry of the history as text."""
    parent = "" if info.parent_id is None else f", after {info.parent_id}"
    return f"<Version {info.id}, {when(info)}{parent}: {first_line(info, 72)}>"


def version_html(info: Any) -> str:
    """Return an entry of the history as HTML."""
    return page(version_text(info), title("Version", f"<code>{info.id}</code>"), _about(info))


def entry_text(entry: Any) -> str:
    """Return a version with its branches and tags as text."""
    names = [*entry.branches, *(f"tag {name}" for name in entry.tags)]
    shown = ", ".join(safe(cut(name, 60)) for name in names[:_MOST_NAMES])
    return f"{version_text(entry.snapshot)[:-1]}{f' ({shown})' if shown else ''}>"


def entry_html(entry: Any) -> str:
    """Return a version with its branches and tags as HTML."""
    info = entry.snapshot
    head = title("Version", f"<code>{info.id}</code>") + f" {_labels(entry)}"
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
    """Return a repository with its newest versions as HTML.

    Asks the store once whether the ``repo`` object has changed since it was read last, and reads
    it if so. In spec version 1, where each version is a file of its own, nothing is read.
    """
    version = f"spec version {repository.spec_version}"
    head = title("Repository", escaped(repository.location, 300), version)
    text = repr(repository)
    if repository.spec_version == _HAS_NO_REPO_FILE:
        hint = "Each version is a file of its own, and none was read: call graph() for all."
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
    shown = entries[:_MOST_VERSIONS]
    rows = list(placed((entry.snapshot.id, entry.snapshot.parent_id) for entry in shown))
    lanes = max(max(len(row.beside), len(row.above)) for row in rows) if rows else 0
    width, height = lanes * _LANE + 8, len(rows) * _ROW
    drawn = "".join(_row(number, row) for number, row in enumerate(rows))
    for lane, goes_on in enumerate(rows[-1].below if rows else ()):
        if goes_on:
            drawn = _edge(lane, height - _ROW / 2, lane, height) + drawn
    lines = "".join(f"<li>{_line(entry)}</li>" for entry in shown)
    picture = f"<svg width='{width}' height='{height}' viewBox='0 0 {width} {height}'>{drawn}</svg>"
    rest = quiet(more(len(entries) - len(shown), "version"))
    summary = f"Versions {soft(f'({len(entries):,})')}"
    return folded(
        summary, f"<div class='graph'>{picture}<ol>{lines}</ol></div>{rest}", is_open=True
    )


def _line(entry: Any) -> str:
    info = entry.snapshot
    end = soft(f"{when(info)} <code>{info.id}</code>")
    return f"{_labels(entry)}{escaped(first_line(info))} {end}"


def _row(number: int, row: Placed) -> str:
    """Draw the lanes of one row, from the middle of the row before it to the middle of its own."""
    middle = number * _ROW + _ROW / 2
    drawn = []
    for lane, is_used in enumerate(row.above):
        # Lanes that wait for this version end in it; all others go on.
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
