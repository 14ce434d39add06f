"""Programs that are clients of Spark Connect: each starts its own server, one after another."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def answer_over_connect(program: str, *arguments: str) -> Any:
    """Run a program that calls ``remote("local[2]")``; return the JSON of its last line.

    The server that this starts listens on one port of the machine, whoever starts it, so the
    programs of all test processes take turns.
    """
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # A classic session of this process would draw the client to its own gateway.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE"):
        environment.pop(name, None)
    lock = Path(tempfile.gettempdir()) / f"icechunk-spark-connect-{os.getuid()}.lock"
    with lock.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1].removeprefix("ANSWER "))
