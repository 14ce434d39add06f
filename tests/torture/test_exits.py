"""A process that has used clients exits at once, in silence, whatever its threads are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.servers.http import misbehaving_server

_BEGIN = """
import atexit, os, sys, threading
from icechunk_format.groups.pipeline import read_ahead
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest

options = {"anon": "true", "endpoint_url": sys.argv[1]}
storage = open_storage(Location("s3://bucket/r", client=sys.argv[2], options=options))
requests = [ReadRequest(key=f"k{number}") for number in range(20)]

def read():
    assert storage.get_many(requests) == [b"x"] * 20

read()
"""
_AT_EXIT = """
atexit.register(read)
"""
_DAEMON = """
def forever(begun):
    while True:
        read()
        begun.set()

begun = threading.Event()
threading.Thread(target=forever, args=(begun,), daemon=True).start()
begun.wait()
"""
_FORKED = """
child = os.fork()
read()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
# A process started in the background ignores the signal.
_INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
sys.stdin.readline()
try:
    if sys.argv[3] == "requests":
        read()
    else:
        fetch = lambda request: storage.get_many([request])
        blocks = read_ahead(
            requests, fetch=fetch, decode=print, cost=lambda _: 1, max_bytes=10
        )
        next(blocks)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def server():
    with misbehaving_server() as server:
        server.clock = time.time
        server.objects.update({f"/bucket/r/k{number}": b"x" for number in range(20)})
        yield server


def started(server, script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _BEGIN + script, server.url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize(
    ("client", "script"),
    [
        pytest.param("auto", _AT_EXIT + _DAEMON, id="obstore"),
        pytest.param("fsspec", _AT_EXIT + _DAEMON, id="botocore"),
        pytest.param("auto", _FORKED + _AT_EXIT, id="fork"),
    ],
)
def test_a_process_reads_until_its_end(server, client, script):
    process = started(server, script, client)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("what", ["requests", "blocks"])
def test_an_interrupted_process_does_not_wait_for_a_server(server, what):
    process = started(server, _INTERRUPTED, "auto", what)
    assert process.stdout.readline() == "ready\n"
    answers, asked = threading.Event(), threading.Event()

    def stall(method, path):
        asked.set()
        answers.wait(300)
        return False

    server.deny = stall
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        # The server has still not responded.
        assert (process.returncode, out, err) == (0, "interrupted\n", "")
    finally:
        process.kill()
        answers.set()
