"""Prints the log with its graph, snapshots, changes and operations.

●     main            lane 0 begins
│ ●   audit           lane 1 begins
│ ●
├─┘                   both have the snapshot below as parent
●     v1
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.command_line.views.reading import COUNTED
from icechunk_format.command_line.views.screen import columns_of, styled
from icechunk_format.display.history import rows_of
from icechunk_format.display.plain_text import (
    age,
    counted,
    first_line,
    safe,
    safe_lines,
    shown_time,
    shown_value,
    size,
    to_timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from rich.text import Text

    from icechunk_format.command_line.views.screen import Screen
    from icechunk_format.encoding.repo_info.file import SnapshotInfo

Document = dict[str, Any]

_MOST_LINES: Final = 40
# Ranges of versions of an application that a line shows.
_MOST_RANGES: Final = 5
_MARKS: Final = {
    "added": ("+", "green"),
    "removed": ("-", "red"),
    "updated": ("~", "yellow"),
    "chunks": ("~", "yellow"),
    "moved": (">", "cyan"),
    "unknown": ("?", "red"),
}


def show_log(screen: Screen, entries: Sequence[Document], *, with_changes: bool) -> None:
    """Print the log with its graph."""
    now = datetime.now(UTC)
    rows = graph_rows((entry["snapshot_id"], entry["parent_id"]) for entry in entries)
    width = max((len(row.node) for row in rows), default=0) + 2
    for number, (row, entry) in enumerate(zip(rows, entries, strict=True)):
        if row.above is not None:
            screen.line(styled((screen.drawn(row.above), "dim")))
        elif number > 0:
            screen.line(styled((screen.drawn(rows[number - 1].below), "dim")))
        lanes = (screen.drawn(row.node.ljust(width)), "dim")
        screen.line(styled(lanes, (entry["snapshot_id"], "yellow"), *_labels(entry)))
        timestamp = datetime.fromisoformat(entry["committed_at"])
        when = f"{shown_time(timestamp)} ({age(timestamp, now)})"
        dot = screen.drawn(" · ")
        facts = [when]
        if with_changes:
            facts.append(changes_text(entry["changes"]))
        if entry["pruned_ancestors"]:
            facts.append(f"after {counted(entry['pruned_ancestors'], 'expired snapshot')}")
        lines = [styled(line) for line in safe_lines(entry["message"])]
        lines.append(styled((dot.join(facts), "dim")))
        lines += [
            styled((f"{safe(key)}: {shown_value(value)}", "dim"))
            for key, value in entry["metadata"].items()
        ]
        for line in lines:
            whole = styled((screen.drawn(row.below.ljust(width)), "dim")).append_text(line)
            whole.rstrip()
            screen.line(whole)


def _labels(entry: Document) -> list[tuple[str, str]]:
    labels = [(safe(name), "bold green") for name in entry["branches"]]
    labels += [(f"tag {safe(name)}", "bold cyan") for name in entry["tags"]]
    parts: list[tuple[str, str]] = []
    for label in labels:
        parts += [(", " if parts else "  ", ""), label]
    return parts


def changes_text(counts: dict[str, int] | None) -> str:
    """Return the changes of a snapshot in words."""
    if counts is None:
        return "no transaction log"
    words = [counted(counts[name], noun) for name, noun in COUNTED.items() if counts[name]]
    if counts["chunks"]:
        arrays = counted(counts["arrays_with_chunks"], "array")
        words.append(f"{counted(counts['chunks'], 'chunk')} in {arrays}")
    return ", ".join(words) if words else "nothing changed"


def show_snapshot(screen: Screen, found: Document) -> None:
    """Print a snapshot."""
    committed = datetime.fromisoformat(found["committed_at"])
    screen.line(styled("snapshot  ", (found["snapshot_id"], "yellow"), *_labels(found)))
    facts = [
        ("parent", found["parent_id"] or "none"),
        ("committed", f"{shown_time(committed)} ({age(committed, datetime.now(UTC))})"),
        (
            "nodes",
            f"{counted(found['group_count'], 'group')}, {counted(found['array_count'], 'array')}",
        ),
        (
            "manifests",
            f"{counted(found['manifest_count'], 'file')}, {size(found['manifest_bytes'])},"
            f" {counted(found['chunk_references'], 'chunk reference')}",
        ),
    ]
    if "stored_bytes" in found:
        text = f"{counted(found['stored_chunks'], 'chunk')}, {size(found['stored_bytes'])}"
        if found["virtual_chunks"]:
            text += (
                f"; {found['virtual_chunks']:,} of them virtual,"
                f" {size(found['virtual_bytes'])} elsewhere"
            )
        facts.append(("stored", text))
    if found["pruned_ancestors"]:
        facts.append(("expired", counted(found["pruned_ancestors"], "ancestor")))
    for name, text in facts:
        screen.line(f"{name:<10}{text}")
    for line in ("", *(f"    {line}" for line in safe_lines(found["message"]))):
        screen.line(line)
    if found["metadata"]:
        screen.line("\nmetadata")
        for key, value in found["metadata"].items():
            screen.line(f"    {safe(key)}: {shown_value(value)}")
    if found["parent_id"] is not None:
        screen.line("\nchanges")
        show_changes(screen, found["changes"])


def show_changes(screen: Screen, changes: Sequence[Document] | None) -> None:
    """Print changes, one node per line."""
    if changes is None:
        screen.line("    unknown: the parent or a transaction log is missing")
        return
    if not changes:
        screen.line("    nothing")
        return
    by_path: dict[Any, list[Document]] = {}
    for change in changes:
        by_path.setdefault((change["path"], change["snapshot_id"]), []).append(change)
    rows = [_changed_node(screen, some) for some in by_path.values()]
    for line in columns_of(rows):
        screen.line(styled("    ").append_text(line))


def _changed_node(screen: Screen, some: Sequence[Document]) -> list[Text]:
    kinds = [change["change"] for change in some]
    mark, style = _MARKS[next((k for k in ("added", "removed", "moved") if k in kinds), kinds[0])]
    words = []
    for change in some:
        kind, node_type = change["change"], change["node_type"] or "node"
        words.append(
            {
                "added": f"new {node_type}",
                "removed": f"{node_type} removed",
                "updated": _updated(screen, change),
                "moved": f"moved from {safe(change['moved_from'])}",
                "chunks": f"{counted(change['chunk_count'] or 0, 'chunk')}",
                "unknown": f"snapshot {change['snapshot_id']} has no transaction log",
            }[kind]
        )
    order = sorted(range(len(some)), key=lambda number: kinds[number] == "chunks")
    text = ", ".join(words[number] for number in order)
    path = some[0]["path"]
    return [styled((mark, style), " ", "" if path is None else safe(path)), styled((text, "dim"))]


def _updated(screen: Screen, change: Document) -> str:
    resized = change.get("resized") or ()
    words = [
        f"{safe(one['dimension'])} {one['from']:,} {screen.drawn('→')} {one['to']:,}"
        for one in resized
    ]
    if not words or not change.get("only_resized"):
        words.append("metadata changed")
    return ", ".join(words)


def show_operations(screen: Screen, operations: Iterable[Document]) -> None:
    """Print the operations log, one entry per line."""
    rows = []
    for entry in operations:
        at = entry["at"]
        timestamp = None if at is None else datetime.fromisoformat(at)
        subject = entry["branch"] or entry["tag"]
        words = [] if subject is None else [safe(subject)]
        if entry["snapshot_id"]:
            words.append(entry["snapshot_id"])
        if entry["previous_snapshot_id"]:
            words.append(f"was {entry['previous_snapshot_id']}")
        known = {"branch", "name", "new_snap_id", "previous_snap_id"}
        words += [
            f"{safe(key)}={shown_value(value)}"
            for key, value in entry["details"].items()
            if key not in known and value is not None
        ]
        rows.append(
            [
                styled((shown_time(timestamp), "dim")),
                styled((safe(entry["kind"]).replace("_", " "), "yellow")),
                styled(" ".join(words)),
            ]
        )
    screen.table(rows)


def show_applications(screen: Screen, applications: Iterable[Document]) -> None:
    """Print applications with their versions, one per line."""
    rows = []
    for one in applications:
        ranges = [
            str(first) if first == last else f"{first} to {last}" for first, last in one["versions"]
        ]
        if len(ranges) > _MOST_RANGES:
            ranges = ["…", *ranges[-_MOST_RANGES:]]
        rows.append(
            [
                styled((safe(one["app_id"]), "bold green")),
                styled(screen.drawn(", ".join(ranges))),
                styled((one["snapshot_id"], "yellow")),
                styled((shown_time(datetime.fromisoformat(one["committed_at"])), "dim")),
            ]
        )
    screen.table(rows)


def shown_snapshots(screen: Screen, infos: Sequence[SnapshotInfo]) -> list[Text]:
    """Return a line for each snapshot, up to 40."""
    rows = [
        [
            styled((str(info.id), "yellow")),
            styled((shown_time(to_timestamp(info.flushed_at)), "dim")),
            styled(first_line(info.message)),
        ]
        for info in infos[:_MOST_LINES]
    ]
    lines = [styled("    ").append_text(line) for line in columns_of(rows)]
    if len(infos) > _MOST_LINES:
        lines.append(styled(f"    {screen.drawn('…')} and {len(infos) - _MOST_LINES:,} more"))
    return lines


# -- graph ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GraphRow:
    """The parts of the graph to the left of one snapshot."""

    above: str | None
    """The line above the snapshot on which lanes join; None without such lanes."""
    node: str
    """The lanes on the line of the snapshot."""
    below: str
    """The lanes on the following lines, up to the next snapshot."""


def graph_rows(snapshots: Iterable[tuple[Hashable, Hashable | None]]) -> list[GraphRow]:
    """Return the graph of pairs of snapshot and parent, in the order of ``newest_first``."""
    return [
        GraphRow(
            above=_joined(row.above, row.joined) if len(row.joined) > 1 else None,
            node=_drawn(row.beside, row.lane),
            below=_drawn(row.below),
        )
        for row in rows_of(snapshots)
    ]


def _drawn(lanes: Sequence[bool], node: int = -1) -> str:
    marks = (
        "●" if number == node else "│" if is_used else " " for number, is_used in enumerate(lanes)
    )
    return " ".join(marks).rstrip()


def _joined(lanes: Sequence[bool], joined: Sequence[int]) -> str:
    first, last = joined[0], joined[-1]
    drawn = ""
    for number, is_used in enumerate(lanes):
        inside = first < number < last
        if number == first:
            drawn += "├"
        elif number == last:
            drawn += "┘"
        elif number in joined:
            drawn += "┴"
        elif is_used:
            drawn += "┼" if inside else "│"
        else:
            drawn += "─" if inside else " "
        drawn += "─" if first <= number < last else " "
    return drawn.rstrip()
