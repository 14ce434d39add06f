"""Requests in flight follow the latency and the size of answers."""

from __future__ import annotations

import math
import signal
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from icechunk_format.storage import concurrency
from icechunk_format.storage.concurrency import DaemonThreads, PacedThreads, wait_for


class Server:
    """Answers after a while, and counts how many wait for it at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting = 0
        self.most = self.asked = 0

    def answer(self, number: int) -> int:
        with self._lock:
            self.asked += 1
            self._waiting += 1
            self.most = max(self.most, self._waiting)
        time.sleep(self._seconds)
        with self._lock:
            self._waiting -= 1
        if number < 0:
            raise ValueError(f"no {number}")
        return -number


def most_in_flight(threads: PacedThreads, seconds: float, mean_bytes: float, count: int) -> int:
    server = Server(seconds)
    found = threads.map(server.answer, range(count), mean_bytes=mean_bytes)
    assert found == [-number for number in range(count)]
    assert server.asked == count
    return server.most


def test_small_answers_from_afar_are_asked_for_by_many() -> None:
    threads = PacedThreads(8, 100)
    assert 50 < most_in_flight(threads, 0.05, 1_000, 800) <= 100


@pytest.mark.parametrize(("seconds", "mean_bytes"), [(0.05, 4 * 2**20), (0.05, math.inf)])
def test_large_answers_are_asked_for_by_few(seconds: float, mean_bytes: float) -> None:
    assert most_in_flight(PacedThreads(8, 100), seconds, mean_bytes, 60) <= 8


def test_near_answers_are_asked_for_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, answers from near take their time as well.
    monkeypatch.setattr(concurrency, "time", SimpleNamespace(monotonic=lambda: 0.003))
    assert most_in_flight(PacedThreads(8, 100), 0.0, 1_000, 60) <= 8


def test_bytes_in_flight_have_a_bound() -> None:
    assert most_in_flight(PacedThreads(2, 200), 0.05, 2**20, 100) <= 16


def test_a_number_that_was_asked_for_is_kept() -> None:
    assert most_in_flight(PacedThreads(5, 5), 0.02, 10, 60) == 5


def test_a_single_request_needs_no_thread() -> None:
    asked_by = []
    PacedThreads(8, 100).map(
        lambda _: asked_by.append(threading.current_thread()), [1], mean_bytes=1
    )
    assert asked_by == [threading.current_thread()]
    assert PacedThreads(8, 100).map(len, [], mean_bytes=1) == []


def test_an_error_stops_what_has_not_begun() -> None:
    server, threads = Server(0.01), PacedThreads(4, 4)
    with pytest.raises(ValueError, match="no -1"):
        threads.map(server.answer, [1, 2, -1, *range(3, 1_000)], mean_bytes=1)
    time.sleep(0.05)
    assert server.asked < 20
    # The next batch starts afresh.
    assert threads.map(server.answer, [1, 2], mean_bytes=1) == [-1, -2]


def test_threads_end_with_the_object_that_started_them() -> None:
    threads = DaemonThreads(3, name="of-this-test")
    assert [threads.future(abs, -n).result(20) for n in range(9)] == list(range(9))
    [*started] = [one for one in threading.enumerate() if one.name.startswith("of-this-test")]
    assert 1 <= len(started) <= 3
    del threads
    for one in started:
        one.join(20)
        assert not one.is_alive()


def test_calls_are_made_where_the_system_allows_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert PacedThreads(4, 8).map(abs, [-1, -2, -3], mean_bytes=1) == [1, 2, 3]


@pytest.mark.parametrize("what", ["requests", "future"])
def test_an_interrupt_that_another_thread_gets_ends_a_wait(what):
    answers = threading.Event()
    future: Future[None] = Future()

    def interrupt(number: int) -> None:
        if number == 0:
            # The main thread waits already, and no signal wakes it.
            time.sleep(0.05)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        answers.wait(60)
        future.cancel()

    def send_requests() -> None:
        PacedThreads(4).map(interrupt, range(4))

    def wait_for_one() -> None:
        threading.Thread(target=interrupt, args=(0,), daemon=True).start()
        wait_for(future)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            send_requests() if what == "requests" else wait_for_one()
        assert not answers.is_set()
    finally:
        answers.set()
        signal.signal(signal.SIGINT, before)
