"""Limits the rate of requests to a server that throttles, for all threads of a process together.

If each request waited by itself, the hundreds in flight would repeat at the rate that the server
has just refused. Here a refusal slows all of them down, and successes make them faster again.

Rules of this file
------------------
1. Before the first refusal, nothing waits.
2. A refusal cuts the rate once for all requests that were sent before the cut.
3. The rate grows only if requests waited for it. Otherwise it would grow beyond what is sent, and
   the next cut would have no effect; for the same reason, a cut begins at the rate of answers.
4. Methods take the time as an argument, so that tests need no clock.
"""

from __future__ import annotations

import math
import threading
from typing import Final

_CUT: Final = 0.7
_SLOWEST: Final = 10.0
# A second in which all requests waited doubles the rate.
_GROWTH_IN_A_SECOND: Final = 0.7
# Requests that were due within these seconds may be sent together, since sleeping is inexact.
_LEEWAY: Final = 0.02
# Answers are counted over the last one to two periods of these seconds.
_PERIOD: Final = 1.0


class Pace:
    """The rate at which this process sends requests to a server.

    Attributes
    ----------
    rate
        Requests in a second; infinity if the server has never throttled.
    answered_at
        Time of the last answer that was not a refusal to go on at this rate.
    turnstile
        Lock of the thread that waits for the next time at which a request may be sent.
    """

    def __init__(self) -> None:
        self.rate = math.inf
        self.answered_at = -math.inf
        self.turnstile = threading.Lock()
        self._lock = threading.Lock()
        self._due = self._cut_at = self._period_began = -math.inf
        self._answers = self._answers_before = 0

    @property
    def due(self) -> float:
        """Time from which the next request may be sent."""
        return self._due

    def sent(self, now: float) -> None:
        """Note a request of which the turn has come."""
        with self._lock:
            self._due = max(self._due, now - _LEEWAY) + 1 / self.rate

    def answered(self, now: float, *, waited: bool) -> None:
        """Note an answer; ``waited`` if the request had to wait for its turn."""
        with self._lock:
            self._begin_period(now)
            self._answers += 1
            self.answered_at = now
            if waited:
                self.rate += _GROWTH_IN_A_SECOND

    def throttled(self, sent: float, now: float) -> None:
        """Note that the server refused a request, sent at a time, since there are too many."""
        with self._lock:
            if sent <= self._cut_at:
                return
            self._begin_period(now)
            answers = self._answers_before + self._answers
            seconds = _PERIOD + (now - self._period_began if self._answers_before else 0.0)
            self.rate = max(_SLOWEST, _CUT * min(self.rate, answers / seconds))
            self._cut_at = now
            self._due = max(self._due, now + 1 / self.rate)

    def _begin_period(self, now: float) -> None:
        seconds = now - self._period_began
        if seconds >= _PERIOD:
            self._answers_before = self._answers if seconds < 2 * _PERIOD else 0
            self._answers, self._period_began = 0, now
