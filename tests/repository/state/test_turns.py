"""Writers on one machine attempt their commits in turn, and never wait for one that is stuck."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.builder import add_array, new_place

from icechunk_format.repository.repository import Repository
from icechunk_format.repository.state import races, turns

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    turns._given_up.clear()
    yield tmp_path
    turns._given_up.clear()


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_S", 60.0)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_S", 0.05)


@contextlib.contextmanager
def held_by_another(scope):
    """Hold a turn in another process."""
    program = (
        "import sys; from icechunk_format.repository.state.turns import turn\n"
        "with turn(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, scope]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def is_free(scope):
    """Return True if another thread gets the turn without waiting."""
    with ThreadPoolExecutor(1) as threads:

        def look():
            with turns.turn(scope):
                return bool(turns._paths_of_thread())

        return threads.submit(look).result()


def test_turns_are_given_in_the_order_of_arrival(patient, monkeypatch):
    order, waits = [], threading.Semaphore(0)
    start = turns._Waiter._start

    def started(waiter):
        done = start(waiter)
        waits.release()
        return done

    monkeypatch.setattr(turns._Waiter, "_start", started)

    def work(number):
        with turns.turn("r"):
            order.append(number)

    with ThreadPoolExecutor(5) as threads, turns.turn("r"):
        # Each waits in the system before the next one comes.
        for number in range(5):
            threads.submit(work, number)
            waits.acquire()
            _until_blocked(number + 1)
    assert order == [0, 1, 2, 3, 4]


def _until_blocked(count):
    """Wait until so many threads of this process wait for the lock in the system."""
    if not os.path.exists("/proc/locks"):
        return
    while True:
        with open("/proc/locks") as locks:
            blocked = [line for line in locks if "-> FLOCK" in line and f" {os.getpid()} " in line]
        if len(blocked) >= count:
            return


def test_a_turn_of_another_process_is_waited_for(patient):
    with held_by_another("r") as process:
        threading.Timer(0.1, process.stdin.close).start()
        with turns.turn("r"):
            assert turns._paths_of_thread()
    assert is_free("r")


def test_a_turn_that_does_not_end_is_given_up_and_not_waited_for_again(impatient, monkeypatch):
    files = open_files()
    with held_by_another("r") as process:
        # Others take turns beside it.
        with turns.turn("r"):
            assert turns._paths_of_thread()
        monkeypatch.setattr(turns._Waiter, "_start", lambda _: pytest.fail("waited again"))
        with turns.turn("r"):
            assert turns._paths_of_thread()
        process.kill()
        process.wait()
        for thread in threading.enumerate():
            if thread.name == "icechunk-turn":
                thread.join(30)
    assert open_files() <= files
    assert is_free("r")


def test_after_the_last_queue_a_writer_goes_on_without_a_turn(impatient, monkeypatch):
    monkeypatch.setattr(turns, "_QUEUES", 1)
    with held_by_another("r"), turns.turn("r"):
        assert not turns._paths_of_thread()


def test_turns_that_go_on_are_waited_for_longer_than_one_turn(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_S", 0.5)
    began = iter(range(100))
    monkeypatch.setattr(turns._Waiter, "_began", lambda _: next(began))
    with held_by_another("r") as process:
        threading.Timer(1.2, process.stdin.close).start()
        with turns.turn("r"):
            assert turns._paths_of_thread()


def test_a_call_within_a_turn_does_not_wait_for_its_own_thread(monkeypatch):
    monkeypatch.setattr(turns._Waiter, "_start", lambda _: pytest.fail("waited"))
    with turns.turn("r"):
        with turns.turn("r"):
            pass
        assert turns._paths_of_thread()
    assert not turns._paths_of_thread()


def test_a_process_that_was_forked_in_a_turn_does_not_keep_it():
    reading, writing = os.pipe()
    with turns.turn("r"):
        pid = os.fork()
        if pid == 0:  # has the file open as well, and lives on
            os.read(reading, 1)
            os._exit(0)
    try:
        assert is_free("r")
    finally:
        os.write(writing, b"\n")
        os.waitpid(pid, 0)
        os.close(writing)
        os.close(reading)


@pytest.mark.parametrize("trouble", ["others may write", "a link", "a file", "no permission"])
def test_without_a_folder_of_its_own_a_writer_goes_on(own_folder, monkeypatch, trouble):
    folder = own_folder / f"icechunk-spark-{os.geteuid()}"
    if trouble == "others may write":
        folder.mkdir()
        folder.chmod(0o777)
    elif trouble == "a link":
        (own_folder / "elsewhere").mkdir()
        folder.symlink_to(own_folder / "elsewhere")
    elif trouble == "a file":
        folder.write_text("")
    else:
        monkeypatch.setattr(os, "mkdir", lambda *_: (_ for _ in ()).throw(PermissionError()))
    turns._folder.cache_clear()
    with turns.turn("r"):
        assert not turns._paths_of_thread()
    assert not list(own_folder.rglob("turn-*"))
    turns._folder.cache_clear()


@pytest.mark.parametrize("spec_version", [1, 2])
def test_writers_of_one_machine_lose_no_race(patient, monkeypatch, spec_version):
    lost = []
    monkeypatch.setattr(races, "pause_after_lost_race", lambda *_: lost.append(1))
    repository = Repository.create(new_place(), spec_version=spec_version)
    session = repository.writable_session()
    add_array(session, "/a", (40,))
    session.commit("base")

    def write(number):
        for turn in range(5):
            session = repository.writable_session()
            session.set_chunk("/a", [number], bytes([number, turn]))
            session.commit(f"{number} {turn}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert lost == []
    assert len([*repository.ancestry()]) == 22
