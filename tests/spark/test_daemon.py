"""The daemon imports the libraries of reading before it forks workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")


@pytest.fixture
def daemon():
    """Start the daemon as Spark does; it ends when its standard input is closed."""
    names = ("PYTHON_UNIX_DOMAIN_ENABLED", "SPARK_PREFER_IPV6")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    started = subprocess.Popen(
        [sys.executable, "-m", "icechunk_spark.daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    yield started
    started.stdin.close()
    started.wait(timeout=30)


def number_from(stream) -> int:
    return int.from_bytes(stream.read(4), "big")


def test_workers_start_with_arrow_and_numpy_loaded(daemon):
    port = number_from(daemon.stdout)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        worker = number_from(connection.makefile("rb"))
        loaded = Path(f"/proc/{worker}/maps").read_text()
    assert worker != daemon.pid
    for library in ("libarrow", "_multiarray_umath", "blosc", "_obstore"):
        assert library in loaded


def test_importing_the_module_starts_nothing():
    before = threading.active_count()
    import icechunk_spark.daemon

    assert threading.active_count() == before
    assert callable(icechunk_spark.daemon.manager)
