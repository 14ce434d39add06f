"""Runs threads in turns, in an order that a seed decides.

Only one of them runs at any time, and it hands on only where it says so: at its requests to the
store. So all interleavings of requests can happen, and a seed brings one of them back.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence


@dataclass
class Turns:
    """Runs functions in threads, one at a time.

    Parameters
    ----------
    chance
        Decides who is next.
    current
        Number of whoever's turn it is; -1 before the first.
    """

    chance: random.Random
    current: int = -1
    _waiting: list[threading.Semaphore] = field(default_factory=list)
    _alive: list[int] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)
    _errors: list[BaseException] = field(default_factory=list)

    def hand_on(self) -> None:
        """Let somebody else run, perhaps; called by whoever's turn it is."""
        if len(self._alive) < 2:
            return
        me = self.current
        following = self.chance.choice(self._alive)
        if following == me:
            return
        self.current = following
        self._waiting[following].release()
        self._waiting[me].acquire()

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run all of them to their ends; raise the first error that one raised."""
        self._waiting = [threading.Semaphore(0) for _ in functions]
        self._alive = list(range(len(functions)))
        self._done.clear()
        threads = [
            threading.Thread(target=self._play, args=(number, function), daemon=True)
            for number, function in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        self.current = self._alive[0]
        self._waiting[self.current].release()
        self._done.wait()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _play(self, number: int, function: Callable[[], None]) -> None:
        self._waiting[number].acquire()
        try:
            function()
        except BaseException as error:
            self._errors.append(error)
        self._alive.remove(number)
        if not self._alive:
            self._done.set()
            return
        self.current = self.chance.choice(self._alive)
        self._waiting[self.current].release()
