"""Places the versions of a history in lanes beside one another, so that a graph can be drawn.

A snapshot has one parent, so a history is a forest. Newest snapshots come first. A lane begins at
each snapshot without children. Lanes with the same parent end in the leftmost of them, above that
parent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """One version and the lanes around it.

    Parameters
    ----------
    lane
        The lane of the version.
    joined
        The lanes that wait for the version, ``lane`` first; more than one where lanes end here.
    above, beside, below
        For each lane whether it is in use: above the line of the version, on that line, and on
        lines below it.
    """

    lane: int
    joined: tuple[int, ...]
    above: tuple[bool, ...]
    beside: tuple[bool, ...]
    below: tuple[bool, ...]


def placed(versions: Iterable[tuple[Hashable, Hashable | None]]) -> Iterator[Placed]:
    """Yield the places of versions, each with its parent, in the order of ``newest_first``."""
    lanes: list[Hashable | None] = []
    for version, parent in versions:
        above = _used(lanes)
        joined = tuple(number for number, waits in enumerate(lanes) if waits == version)
        for number in joined[1:]:
            lanes[number] = None
        if joined:
            lane = joined[0]
        elif None in lanes:
            lane = lanes.index(None)
        else:
            lane = len(lanes)
            lanes.append(None)
        lanes[lane] = version
        beside = _used(lanes)
        lanes[lane] = parent
        while lanes and lanes[-1] is None:
            lanes.pop()
        yield Placed(lane=lane, joined=joined, above=above, beside=beside, below=_used(lanes))


def _used(lanes: list[Hashable | None]) -> tuple[bool, ...]:
    return tuple(waits is not None for waits in lanes)
