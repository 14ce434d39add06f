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

from helpers.spark.session import environment_of_a_program


def answer_over_connect(program: str, *arguments: str) -> Any:
    """Run a program that calls ``remote("local[2]")``; return the JSON of its last line.

    The server that this starts listens on one port of the machine, whoever starts it, so the
    programs of all test processes take turns.
    """
    lock = Path(tempfile.gettempdir()) / f"icechunk-spark-connect-{os.getuid()}.lock"
    with lock.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env=environment_of_a_program(),
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1].removeprefix("ANSWER "))
