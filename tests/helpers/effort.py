"""Counts the lines of Python that a call executes: its effort, whatever else the machine does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def counted_lines(act: Callable[[], T]) -> tuple[T, int]:
    """Return the result of a call, and the number of lines that it executes in this thread.

    A loop over elements counts each of them; operations of NumPy and Arrow count as one line.
    """
    count = 0

    def traced(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        result = act()
    finally:
        sys.settrace(before)
    return result, count
