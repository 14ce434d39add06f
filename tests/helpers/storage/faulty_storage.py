"""Storages that fail on purpose, in the ways in which stores fail.

``FaultyStorage`` fails at chosen requests, ``UnreliableStorage`` at random ones. Both wrap any
storage. Requests are counted in the order in which they reach the store; those of a batch count
one by one. What a client would repeat by itself has been repeated in vain here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from icechunk_format.errors import NotFoundError, StorageError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


class Fault(Enum):
    """How a request fails."""

    REFUSED = "the store says that it did nothing: it is throttled or out of order"
    REQUEST_LOST = "the request never arrived, and nobody can tell"
    RESPONSE_LOST = "the request was carried out, and the answer never came"
    REPEATED = "the answer was lost, and the client's repetition lost against its first try"


@dataclass
class FaultyStorage:
    """``inner`` with one fault, or several in a row.

    Parameters
    ----------
    inner
        Does the work.
    fault
        How requests fail.
    at
        Numbers of the requests that fail, from 0; None for none.
    """

    inner: object
    fault: Fault = Fault.REFUSED
    at: frozenset[int] | set[int] = frozenset()
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def root_url(self):
        return self.inner.root_url

    @property
    def cache_scope(self):
        return self.inner.cache_scope

    @property
    def is_read_only(self):
        return self.inner.is_read_only

    @property
    def lost_race_is_certain(self):
        return self.inner.lost_race_is_certain and self.fault is not Fault.REPEATED

    def _request(self, verb, key, act, *, condition=None):
        number = len(self.requests)
        self.requests.append((verb, key))
        if number not in self.at:
            return act()
        conditional = condition is not None
        error = StorageError(
            f"{self.fault.value}: {verb} {key!r}",
            outcome_unknown=conditional and self.fault is not Fault.REFUSED,
        )
        if self.fault in (Fault.RESPONSE_LOST, Fault.REPEATED):
            try:
                answer = act()
            except NotFoundError:
                # The answer that got lost would have said so.
                raise error from None
            if self.fault is Fault.REPEATED:
                return None if conditional else answer
        raise error

    def get(self, key, *, start=None, end=None):
        return self._request("get", key, lambda: self.inner.get(key, start=start, end=end))

    def get_many(self, requests):
        return [
            self._request("get", r.key, lambda r=r: self.inner.get_many([r])[0]) for r in requests
        ]

    def head(self, key):
        return self._request("head", key, lambda: self.inner.head(key))

    def put(self, key, data, *, condition=None):
        return self._request(
            "put", key, lambda: self.inner.put(key, data, condition=condition), condition=condition
        )

    def put_many(self, items):
        return [
            self._request("put", key, lambda k=key, d=data: self.inner.put_many([(k, d)])[0])
            for key, data in items
        ]

    def delete_many(self, keys):
        return [
            failure
            for key in keys
            for failure in self._request("delete", key, lambda k=key: self.inner.delete_many([k]))
        ]

    def copy(self, source, target, *, source_version=None):
        return self._request(
            "copy", target, lambda: self.inner.copy(source, target, source_version=source_version)
        )

    def list(self, prefix=""):
        return self._request("list", prefix, lambda: self.inner.list(prefix))


class Trouble(Enum):
    """What may happen to a request of an unreliable store."""

    SLOW = "it takes long"
    SLOW_DOWN = "HTTP 503 SlowDown"
    RESET_BEFORE = "the connection was reset before the store had the request"
    RESET_AFTER = "the connection was reset, and the store had done it"
    TRUNCATED = "the body ended too early"
    LATE = "no answer came in time; the store does it later"
    REPEATED = "the client repeated it and lost against its own first try"
    STALE = "the answer is that of a moment ago"


READS = (Trouble.SLOW, Trouble.SLOW_DOWN, Trouble.RESET_BEFORE, Trouble.TRUNCATED)
WRITES = (
    Trouble.SLOW,
    Trouble.SLOW_DOWN,
    Trouble.RESET_BEFORE,
    Trouble.RESET_AFTER,
    Trouble.LATE,
    Trouble.REPEATED,
)


@dataclass
class UnreliableStorage:
    """``inner`` with faults at random requests.

    Parameters
    ----------
    inner
        Does the work.
    chance
        Decides which requests fail and how; the same seed gives the same faults.
    rate
        Part of the requests that meet trouble.
    turn
        Called for each request, and more often for slow ones: the place to let others go first.
    stale_keys
        Objects that change; reads of them may show an older state.
    """

    inner: object
    chance: random.Random
    rate: float = 0.0
    turn: Callable[[], None] = lambda: None
    stale_keys: Callable[[str], bool] = lambda key: key == "repo"
    counts: dict[Trouble, int] = field(default_factory=dict)
    trace: list[tuple[str, str, str]] = field(default_factory=list)
    _late: list[tuple[int, Callable[[], object]]] = field(default_factory=list)
    _before: dict[str, list[tuple[object, object]]] = field(default_factory=dict)

    @property
    def root_url(self):
        return self.inner.root_url

    @property
    def cache_scope(self):
        return self.inner.cache_scope

    @property
    def is_read_only(self):
        return self.inner.is_read_only

    @property
    def lost_race_is_certain(self):
        return False

    def settle(self):
        """Let everything happen that was still on its way."""
        while self._late:
            self._late.pop(0)[1]()

    def forget(self):
        """Show no state that was before now."""
        self._before.clear()

    def _request(self, verb, key, act, troubles, *, condition=None):
        self.turn()
        while self._late and self._late[0][0] <= len(self.trace):
            self._late.pop(0)[1]()
        trouble = None
        if self.chance.random() < self.rate:
            trouble = self.chance.choice(troubles)
            self.counts[trouble] = self.counts.get(trouble, 0) + 1
        self.trace.append((verb, key, trouble.name if trouble else ""))
        if trouble is None or trouble is Trouble.STALE:
            return act()
        if trouble is Trouble.SLOW:
            for _ in range(self.chance.randrange(2, 30)):
                self.turn()
            return act()
        conditional = condition is not None
        if trouble is Trouble.REPEATED:
            answer = act()
            return None if conditional else answer
        if trouble is Trouble.RESET_AFTER:
            act()
        elif trouble is Trouble.LATE:
            self._late.append((len(self.trace) + self.chance.randrange(1, 60), act))
            self._late.sort(key=lambda item: item[0])
        lost = trouble not in (Trouble.SLOW_DOWN, Trouble.TRUNCATED)
        raise StorageError(
            f"cannot {verb} object {key!r} below {self.root_url}: {trouble.value}",
            outcome_unknown=conditional and lost,
        )

    def _changing(self, key, act):
        """Do a write, and remember what was there for stale reads."""

        def remembered():
            if self.stale_keys(key):
                info = self.inner.head(key)
                if info is not None:
                    states = self._before.setdefault(key, [])
                    states.append((self.inner.get(key), info))
                    del states[:-3]
            return act()

        return remembered

    def _stale(self, key, which, fresh):
        states = self._before.get(key)
        if not states or self.chance.random() >= self.rate:
            return fresh
        self.counts[Trouble.STALE] = self.counts.get(Trouble.STALE, 0) + 1
        return self.chance.choice(states)[which]

    def get(self, key, *, start=None, end=None):
        fresh = self._request("get", key, lambda: self.inner.get(key, start=start, end=end), READS)
        return self._stale(key, 0, fresh) if start is None and end is None else fresh

    def get_many(self, requests):
        return [
            self._request("get", r.key, lambda r=r: self.inner.get_many([r])[0], READS)
            for r in requests
        ]

    def head(self, key):
        return self._stale(key, 1, self._request("head", key, lambda: self.inner.head(key), READS))

    def put(self, key, data, *, condition=None):
        act = self._changing(key, lambda: self.inner.put(key, data, condition=condition))
        return self._request("put", key, act, WRITES, condition=condition)

    def put_many(self, items):
        return [
            self._request(
                "put", key, lambda k=key, d=data: self.inner.put_many([(k, d)])[0], WRITES
            )
            for key, data in items
        ]

    def delete_many(self, keys):
        return [
            failure
            for key in keys
            for failure in self._request(
                "delete", key, lambda k=key: self.inner.delete_many([k]), WRITES[:-1]
            )
        ]

    def copy(self, source, target, *, source_version=None):
        return self._request(
            "copy",
            target,
            lambda: self.inner.copy(source, target, source_version=source_version),
            WRITES[:-1],
        )

    def list(self, prefix=""):
        return self._request("list", prefix, lambda: self.inner.list(prefix), READS)
