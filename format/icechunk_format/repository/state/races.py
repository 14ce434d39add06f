"""Repeats a change from its beginning while other writers commit first, with one limit.

``publish`` repeats the conditional write of one object. Here an attempt reads the state again, and
plans or rebases on it; each lost race means that a commit of another writer succeeded. An unknown
outcome is never repeated: its error passes through.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from icechunk_format.errors import IcechunkError
from icechunk_format.repository.state.publish import race_lost

ResultT = TypeVar("ResultT")

MOST_LOST_RACES: Final = 1_000
"""Lost races before a change gives up."""
_ATTEMPTS_IN_A_PAUSE: Final = 4
_LONGEST_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceLost:
    """The end of an attempt that changed nothing, since other writers committed first."""

    why: str = "other writers committed first"
    error: IcechunkError | None = None
    """The error that ended the attempt; it is raised if an inner loop gave up."""
    rests: bool = True
    """False if the attempt ended before it raced, so that the next one needs no pause."""


def until_won(
    attempt: Callable[[int], ResultT | RaceLost],
    url: object,
    what: str | None = None,
    *,
    most: int | None = None,
    outcome: str = "nothing was committed. Let fewer writers commit at once, or try again",
    **facts: str,
) -> ResultT:
    """Return the result of the first attempt that loses no race, or raise ConflictError.

    Parameters
    ----------
    attempt
        Called with the number of lost races, after a pause if there are any.
    url, what
        The location, and the part that other writers changed; by default a branch, of ``facts``.
    """
    what = what or f"branch {facts['branch']!r}"
    attempts = (MOST_LOST_RACES if most is None else most) + 1
    error: IcechunkError | None = None
    for lost in range(attempts):
        began = time.monotonic()
        result = attempt(lost)
        if not isinstance(result, RaceLost):
            return result
        error = result.error
        if error is not None and "attempts" in error.facts:
            raise error
        _log.info(
            "attempt %d to change %s of %s lost a race: %s; trying again",
            *(lost + 1, what, url, result.why),
        )
        if result.rests and lost + 1 < attempts:
            pause_after_lost_race(lost + 1, time.monotonic() - began)
    raise race_lost(str(url), what, outcome, times=attempts, **facts) from error


def pause_after_lost_race(attempt: int, took_s: float) -> None:
    """Wait a random time, so that writers do not collide repeatedly after an attempt of ``took_s``.

    One of the racing writers wins each time, so pauses only save work of the others, and growing
    pauses would leave the storage idle. If the longest pause is four attempts, about a third of
    the writers is active.
    """
    # A single slow attempt is not significant, so the first pauses are limited.
    longest = min(_ATTEMPTS_IN_A_PAUSE * took_s, _LONGEST_FIRST_PAUSE * attempt, _LONGEST_PAUSE)
    time.sleep(random.uniform(0, longest))
