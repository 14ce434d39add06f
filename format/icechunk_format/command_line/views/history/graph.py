"""Draws the graph of a history: the lane of each snapshot, and where lanes meet.

A snapshot has one parent, so a history is a forest. Newest snapshots come first. A lane begins at
each snapshot without children. Lanes with the same parent end in the leftmost of them, on a line of
their own above that parent.

    ●     main            lane 0 begins
    │ ●   audit           lane 1 begins
    │ ●
    ├─┘                   both wait for the snapshot below
    ●     v1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_format.command_line.views.screen import Glyphs
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.repo_info.file import SnapshotInfo


@dataclass(frozen=True, slots=True)
class GraphRow:
    """The parts of the graph left of one snapshot."""

    above: str | None
    """The line on which lanes end, before the snapshot; None where none does."""
    node: str
    """The lanes on the line of the snapshot."""
    below: str
    """The lanes on further lines of the same snapshot, and between it and the next one."""


def graph_rows(ordered: Sequence[SnapshotInfo], glyphs: Glyphs) -> list[GraphRow]:
    """Return the graph beside snapshots in the order of ``newest_first``."""
    lanes: list[SnapshotId | None] = []
    rows: list[GraphRow] = []
    for info in ordered:
        mine = [number for number, waits in enumerate(lanes) if waits == info.id]
        above = _joined(lanes, mine, glyphs) if len(mine) > 1 else None
        for number in mine[1:]:
            lanes[number] = None
        if mine:
            lane = mine[0]
        elif None in lanes:
            lane = lanes.index(None)
        else:
            lane = len(lanes)
            lanes.append(None)
        lanes[lane] = info.id
        node = _drawn(lanes, glyphs, lane)
        lanes[lane] = info.parent_id
        while lanes and lanes[-1] is None:
            lanes.pop()
        rows.append(GraphRow(above=above, node=node, below=_drawn(lanes, glyphs)))
    return rows


def _drawn(lanes: Sequence[SnapshotId | None], glyphs: Glyphs, node: int = -1) -> str:
    marks = (
        glyphs.node if number == node else " " if waits is None else glyphs.lane
        for number, waits in enumerate(lanes)
    )
    return " ".join(marks).rstrip()


def _joined(lanes: Sequence[SnapshotId | None], mine: Sequence[int], glyphs: Glyphs) -> str:
    first, last = mine[0], mine[-1]
    drawn = ""
    for number, waits in enumerate(lanes):
        inside = first < number < last
        if number == first:
            drawn += glyphs.fork
        elif number == last:
            drawn += glyphs.corner
        elif number in mine:
            drawn += glyphs.join
        elif waits is not None:
            drawn += glyphs.crossing if inside else glyphs.lane
        else:
            drawn += glyphs.across if inside else " "
        drawn += glyphs.across if first <= number < last else " "
    return drawn.rstrip()
