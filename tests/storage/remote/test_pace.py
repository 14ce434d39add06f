"""Requests to a server that throttles slow down together, and become faster again.

Time is simulated, so the limits of S3 are tried as they are, and each machine has the same result.
``PACED_REQUESTS`` is the number of requests at these limits.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import threading
from collections import deque
from dataclasses import dataclass, field

import pytest

from icechunk_format.storage.remote import request_policy
from icechunk_format.storage.remote.pace import Pace
from icechunk_format.storage.remote.request_policy import (
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    Server,
)

LATENCY = 0.02
REQUESTS = int(os.environ.get("PACED_REQUESTS", "20000"))


@dataclass
class Throttle:
    """A limit of requests in a second, with a reserve for bursts."""

    rate: float
    left: float
    at: float = 0.0

    def __post_init__(self):
        self.most = self.left

    def allows(self, now, weight):
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= weight
        return True


@dataclass
class Task:
    """A process with requests to send, some of them at once."""

    left: int
    pace: Pace = field(default_factory=Pace)
    queue: deque = field(default_factory=deque)
    is_gate_busy: bool = False


class Simulation:
    """Tasks that send requests as ``Server.attempt`` does, in simulated time."""

    def __init__(self, *, requests, in_flight, throttle, tasks=1, weight=1):
        self.throttle, self.chance, self.weight = throttle, random.Random(7), weight
        self.sent = self.failed = self.most_retries = 0
        self.now = 0.0
        self._events, self._order = [], itertools.count()
        for _ in range(tasks):
            task = Task(requests // tasks)
            for _ in range(in_flight):
                self._after(0.0, self._next, task)
        while self._events:
            self.now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)

    def _after(self, seconds, act, *arguments):
        heapq.heappush(self._events, (self.now + seconds, next(self._order), act, arguments))

    def _next(self, task):
        if task.left:
            task.left -= 1
            self._turn(task, 0)

    def _turn(self, task, retry):
        if task.pace.rate == float("inf"):
            self._send(task, retry, waited=False)
            return
        task.queue.append(retry)
        if not task.is_gate_busy:
            task.is_gate_busy = True
            self._gate(task, waited=False)

    def _gate(self, task, waited):
        if not task.queue:
            task.is_gate_busy = False
        elif task.pace.due > self.now:
            self._after(task.pace.due - self.now, self._gate, task, True)
        else:
            task.pace.sent(self.now, self.weight)
            self._send(task, task.queue.popleft(), waited=waited)
            self._after(0.0, self._gate, task, False)

    def _send(self, task, retry, *, waited):
        self.sent += 1
        allowed = self.throttle.allows(self.now, self.weight)
        seconds = LATENCY * self.chance.uniform(0.8, 1.2)
        self._after(seconds, self._answer, task, retry, waited, self.now, allowed)

    def _answer(self, task, retry, waited, sent, allowed):
        if allowed:
            task.pace.answered(self.now, waited=waited, weight=self.weight)
            self._next(task)
            return
        task.pace.throttled(sent, self.now)
        self.most_retries = max(self.most_retries, retry + 1)
        if retry == Backoff().max_retries:
            self.failed += 1
            self._next(task)
        else:
            self._after(Backoff().delay(retry), self._turn, task, retry + 1)


@pytest.mark.parametrize(
    ("requests", "in_flight", "rate", "tasks"),
    [
        (REQUESTS, 256, 3500, 1),
        (REQUESTS, 256, 5500, 1),
        (10_000, 32, 3500, 20),
        (1_000, 32, 100, 1),
        (10_000, 256, 1000, 20),
        (200, 32, 40, 1),
    ],
    ids=["writes", "reads", "twenty tasks", "a slow server", "crowded", "few requests"],
)
def test_requests_stay_within_twice_the_fewest(requests, in_flight, rate, tasks):
    random.seed(3)
    done = Simulation(
        requests=requests, in_flight=in_flight, tasks=tasks, throttle=Throttle(rate, rate / 10)
    )
    print(f"{done.sent / requests:.3f} times the fewest requests, {done.most_retries} retries")
    assert done.failed == 0
    assert requests < done.sent <= 2 * requests
    # A crowd refuses most of what it sends before the first answer.
    assert done.sent <= 1.2 * requests + in_flight * tasks
    assert done.most_retries <= 5
    # The server is kept busy: in simulated time, which no machine changes.
    assert done.now <= 2 * max(requests / rate, requests / (tasks * in_flight) * LATENCY)


@pytest.mark.parametrize(("rate", "tasks"), [(3500, 1), (3500, 4), (500, 1)])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_deletions_of_a_thousand_objects_count_each_of_them(rate, tasks, in_flight):
    random.seed(3)
    done = Simulation(
        requests=100, weight=1000, in_flight=in_flight, tasks=tasks, throttle=Throttle(rate, rate)
    )
    assert done.failed == 0
    assert done.sent <= 2 * 100 + in_flight * tasks
    assert done.now <= 2 * 100_000 / rate


def test_a_refusal_cuts_the_rate_once_for_all_that_were_under_way():
    pace = Pace()
    for number in range(200):
        pace.answered(number / 100, waited=False)
    for _ in range(50):
        pace.throttled(1.99, 2.0)
    first = pace.rate
    assert 50 < first < 100
    pace.throttled(2.01, 2.02)
    assert pace.rate == pytest.approx(0.7 * first)


def test_the_rate_grows_only_if_requests_wait_for_it():
    pace = Pace()
    pace.throttled(0.0, 0.0)
    slow = pace.rate
    pace.answered(1.0, waited=False)
    assert pace.rate == slow
    for _ in range(int(slow)):
        pace.answered(2.0, waited=True)
    assert 1.5 * slow < pace.rate < 2 * slow


# With threads


class Clock:
    """Time that passes only by sleeping, for several threads."""

    def __init__(self):
        self.now, self.lock = 0.0, threading.Lock()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        with self.lock:
            self.now += seconds


class Refusal(Exception):
    pass


def server(**changes):
    def classify(error, secrets):
        return Failure(kind=FailureKind.THROTTLED, reason="as scripted", status=503)

    facts = {"root_url": "s3://b/x", "kind": "s3", "backoff": Backoff(), **changes}
    return Server(classify=classify, **facts)


def test_one_refusal_lets_the_other_requests_wait(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(request_policy, "time", clock)
    sender, refused, sent_at = server(), [True], []

    def send():
        sent_at.append(clock.now)
        if refused:
            refused.clear()
            raise Refusal

    for _ in range(5):
        sender.attempt(send)
    # Four requests that were never refused waited for their turns, too.
    gaps = [after - before for before, after in itertools.pairwise(sent_at)]
    assert len(sent_at) == 6
    assert all(gap > 0.05 for gap in gaps)
    assert server().pace is not sender.pace


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    sender = server()
    sender.pace.throttled(0.0, 1.0)
    with sender.pace.turnstile:
        child = os.fork()
        if child == 0:
            os._exit(0 if sender.pace.turnstile.acquire(timeout=1) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_request_is_repeated_for_as_long_as_others_are_answered(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(request_policy, "time", clock)
    backoff = Backoff(max_retries=1000, max_delay=5.0, give_up_after=60.0)
    sender = server(backoff=backoff)

    def send():
        if clock.now < 300:
            sender.pace.answered(clock.now - 1, waited=False)
            raise Refusal
        return "done"

    assert sender.attempt(send) == "done"
    silent, began = server(backoff=backoff), clock.now

    def refuse():
        raise Refusal

    with pytest.raises(RequestFailedError):
        silent.attempt(refuse)
    assert clock.now - began <= 60.0
