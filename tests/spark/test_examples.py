"""The scripts in ``examples/`` run as they stand, and show what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.spark.session import environment_of_a_program

pytestmark = pytest.mark.needs_reference

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWN = {
    "append_a_day": ["2024-07-02: 252,288 cells", "has committed version", "2024-07-03 00:00:00"],
    "fix_a_region": ["rewrote 600 cells in 2 of the 32 chunks", "North Sea"],
    "write_audit_publish": ["0 outside of 180 to 340 K -> published", "-> not published"],
    "two_writers": ["went on top of the other's commit", "refused."],
    "stream_of_files": ["means committed: 6 files", "1,200 readings in 6 commits"],
    "virtual_from_netcdf": ["27 chunks of 5 files", "that are in the files: True"],
}


@pytest.mark.parametrize("name", SHOWN)
def test_example(name, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path],
        capture_output=True,
        text=True,
        env=environment_of_a_program(),
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for text in SHOWN[name]:
        assert text in done.stdout, done.stdout
