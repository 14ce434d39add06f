"""Finds elements of blocks whose labels match other elements of a source than in the last run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables import Dataset
from icechunk_format.workflows.mapping.others.opening import OpenedOther, aligned, chosen_ranges


def moved_elements(
    other: OpenedOther, first: Dataset, old: Dataset, selected: Mapping[str, tuple[int, int]]
) -> dict[str, NDArray[np.bool_]]:
    """Return a mask of the selected elements, by dimension, at another position than before.

    Labels that are appended to a source may be nearer than those of the last run, and labels that
    are inserted move others. Both runs are compared at the present labels of the blocks; if those
    changed, the blocks did.
    """
    try:
        chosen = chosen_ranges(other.request, old)
    except InvalidInputError:
        chosen = {}  # nothing is known of the last run
    found = {}
    for dim in other.own.labelled:
        own = chosen.get(dim)
        were = own and aligned(other.request, first, old, dim, selected[dim], own)
        now = np.asarray(other.own.positions[dim])
        found[dim] = were[1] != now if were else np.ones(len(now), np.bool_)
    return found
