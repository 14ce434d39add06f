"""The number of examples of property tests: few by day, ``EXAMPLES`` times as many at night."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("EXAMPLES", "1"))


def by_day(count: int) -> int:
    """Return the number of examples of a run, given that of a run by day."""
    return count * TIMES
