"""Describes the order of a dimension's labels, so that a writer can restore it.

Rows of a table have no order: without this, a latitude that descends from 90 would be written
back ascending.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_MOST_LISTED: Final = 1_000


def direction(labels: NDArray[Any]) -> int:
    """Return 1 if labels ascend, -1 if they descend, 0 if neither."""
    if len(labels) < 2 or bool(np.all(labels[1:] > labels[:-1])):
        return 1
    return -1 if bool(np.all(labels[1:] < labels[:-1])) else 0


def described_order(labels: NDArray[Any]) -> str | list[Any] | None:
    """Return ``ascending``, ``descending``, or the stored labels themselves if they are few.

    None is any other order, or labels that JSON cannot hold.
    """
    if labels.dtype.names is not None or labels.dtype.kind in "cV":
        return None
    found = direction(labels)
    if found:
        return "ascending" if found > 0 else "descending"
    if len(labels) > _MOST_LISTED or labels.dtype.kind == "S":
        return None
    values = labels.view(np.int64) if labels.dtype.kind in "Mm" else labels
    listed: list[Any] = values.tolist()
    if not all(isinstance(value, str | int | float) and value == value for value in listed):
        return None
    return listed
