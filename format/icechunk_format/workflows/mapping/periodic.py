"""Finds periodic dimensions, such as longitudes of a whole circle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from icechunk_format.dataset import Dataset
from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.horizontal.circles import circle_of, period_of


class Turn(NamedTuple):
    """One turn around a periodic dimension.

    Parameters
    ----------
    elements
        The length of the dimension, or one less if the last label repeats the first.
    period
        Period of the labels; None if unknown.
    """

    elements: int
    period: float | None


def find_turns(
    dataset: Dataset, sizes: Mapping[str, int], overlap: Mapping[str, int], periodic: Sequence[str]
) -> dict[str, Turn]:
    """Return the turn of each periodic dimension.

    Raises
    ------
    InvalidInputError
        A dimension does not exist or has no overlap, its longitudes do not go around the whole
        circle, or the overlap is more than one turn.
    """
    found = {}
    for dim in periodic:
        if dim not in sizes or not overlap.get(dim):
            raise InvalidInputError(
                f"periodic names {dim!r}, but overlap names"
                f" {', '.join(overlap) or 'no dimension'}; periodic dimensions need an overlap",
                option="periodic",
                dimension=dim,
            )
        turn = Turn(sizes[dim], None)
        labels = dataset.variables.get(dim)
        period = None if labels is None else period_of(labels)
        if period is not None:
            circle = circle_of(dataset.read(dim), period)
            if circle is None or not circle.is_closed:
                raise InvalidInputError(
                    f"periodic names {dim!r}, but its labels do not cover a whole circle of"
                    f" {period:g} degrees, so its ends are not adjacent; leave it out",
                    option="periodic",
                    dimension=dim,
                )
            turn = Turn(sizes[dim] - circle.is_repeated, period)
        if overlap[dim] > turn.elements:
            raise InvalidInputError(
                f"overlap: {dim} is {overlap[dim]}, but one turn has {turn.elements} elements;"
                " use at most that number",
                option="overlap",
                dimension=dim,
            )
        found[dim] = turn
    return found
