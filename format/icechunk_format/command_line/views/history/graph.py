"""Draws the graph of a history in characters.

●     main            lane 0 begins
│ ●   audit           lane 1 begins
│ ●
├─┘                   both wait for the snapshot below
●     v1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_format.display.lanes import placed

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def graph_rows(ordered: Sequence[SnapshotInfo]) -> list[GraphRow]:
    """Return the graph beside snapshots in the order of ``newest_first``."""
    return [
        GraphRow(
            above=_joined(row.above, row.joined) if len(row.joined) > 1 else None,
            node=_drawn(row.beside, row.lane),
            below=_drawn(row.below),
        )
        for row in placed((info.id, info.parent_id) for info in ordered)
    ]


def _drawn(lanes: Sequence[bool], node: int = -1) -> str:
    marks = (
        "●" if number == node else "│" if is_used else " " for number, is_used in enumerate(lanes)
    )
    return " ".join(marks).rstrip()


def _joined(lanes: Sequence[bool], mine: Sequence[int]) -> str:
    first, last = mine[0], mine[-1]
    drawn = ""
    for number, is_used in enumerate(lanes):
        inside = first < number < last
        if number == first:
            drawn += "├"
        elif number == last:
            drawn += "┘"
        elif number in mine:
            drawn += "┴"
        elif is_used:
            drawn += "┼" if inside else "│"
        else:
            drawn += "─" if inside else " "
        drawn += "─" if first <= number < last else " "
    return drawn.rstrip()
