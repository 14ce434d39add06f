"""Finds the positions that ``sel`` can select in a dimension without labels, which may be long.

The labels of such a dimension are its positions, so a selector needs only those at and beside its
numbers, and both ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.options.keywords import items_of, single


def is_range(selector: Any) -> bool:
    """Return True if a valid selector of numbers is a range."""
    return isinstance(selector, slice) or (
        isinstance(selector, str) and (".." in selector or ":" in selector)
    )


def positions_near(selector: Any, size: int) -> NDArray[np.int64]:
    """Return the positions at and beside the numbers of a selector, and both ends, ascending."""
    found = {0, size - 1}
    for number in _numbers(selector):
        at = math.floor(min(max(number, 0), size - 1))
        found.update((at - 1, at, at + 1, at + 2))
    return np.array(sorted(at for at in found if 0 <= at < size), np.int64)


def _numbers(selector: Any) -> Iterator[Any]:
    if isinstance(selector, str):
        parts: list[Any] = re.split(r"\.\.|[:,]", selector)
    elif isinstance(selector, slice):
        parts = [selector.start, selector.stop]
    else:
        parts = items_of(selector) or [selector]
    for part in map(single, parts):
        for read in (int, float):
            try:
                number = read(part)
            except (TypeError, ValueError, OverflowError):
                continue
            if number == number:
                yield number
            break
