"""Limits the rate of requests to a server that throttles, for all threads of a process together.

If each request waited by itself, the hundreds in flight would repeat at the rate that the server
has just refused. Here a refusal slows all of them down, and successes make them faster again.

Rules of this file
------------------
1. Before the first refusal, nothing waits.
2. A refusal cuts the rate once for all requests that were sent before the cut.
3. The rate grows only if requests waited for it. Otherwise it would grow beyond what is sent, and
   the next cut would have no effect; for the same reason, a cut begins at the rate of answers.
4. A deletion of many objects counts as many requests, as on S3.
5. Methods take the time as an argument, so that tests need no clock.
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
# Longest wait for the request before: if a rate for single objects is too slow for deletions.
_LONGEST_WAIT: Final = 2.0
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
        self._sent_at = self._cut_at = self._period_began = -math.inf
        self._debt = 0.0  # requests that are sent ahead of the rate, at `_sent_at`
        self._answers = self._answers_before = 0

    @property
    def due(self) -> float:
        """Time from which the next request may be sent, at the current rate."""
        return self._sent_at + min(self._debt / self.rate, _LONGEST_WAIT)

    def sent(self, now: float, weight: int = 1) -> None:
        """Note a request of which the turn has come; ``weight`` is the number of its objects."""
        with self._lock:
            paid = self.rate * (now - self._sent_at) if math.isfinite(self._sent_at) else math.inf
            self._debt = max(self._debt - paid, -_LEEWAY * self.rate) + weight
            self._sent_at = now

    def answered(self, now: float, *, waited: bool, weight: int = 1) -> None:
        """Note an answer; ``waited`` if the request had to wait for its turn."""
        with self._lock:
            self._begin_period(now)
            self._answers += weight
            self.answered_at = now
            if waited:
                self.rate += _GROWTH_IN_A_SECOND * min(weight, self.rate)

    def throttled(self, sent: float, now: float) -> None:
        """Note that the server refused a request, sent at a time, since there are too many."""
        with self._lock:
            if sent <= self._cut_at:
                return
            self._begin_period(now)
            answers = self._answers_before + self._answers
            seconds = _PERIOD + (now - self._period_began if self._answers_before else 0.0)
            self.rate = max(_SLOWEST, _CUT * min(self.rate, answers / seconds))
            # The refused requests cost nothing, but the next one waits.
            self._cut_at = self._sent_at = now
            self._debt = 1.0

    def _begin_period(self, now: float) -> None:
        seconds = now - self._period_began
        if seconds >= _PERIOD:
            self._answers_before = self._answers if seconds < 2 * _PERIOD else 0
            self._answers, self._period_began = 0, now
