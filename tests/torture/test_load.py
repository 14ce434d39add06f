"""Many processes that read and write one repository lose nothing, and none of them starves.

By night, two hundred for ten minutes::

    LOAD_PROCESSES=200 LOAD_SECONDS=600 pytest -s tests/torture/test_load.py
    LOAD_PROCESSES=200 LOAD_SECONDS=600 pytest -s tests/s3/test_load_s3.py
"""

from __future__ import annotations

import os

import pytest
from helpers.sessions.load import (
    BY_DAY_PROCESSES,
    BY_DAY_TURNS,
    BY_NIGHT_PROCESSES,
    BY_NIGHT_SECONDS,
    check_load,
)


@pytest.mark.parametrize("spec_version", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_processes_share_a_repository(tmp_path, spec_version):
    check_load(str(tmp_path / "r"), spec_version, BY_DAY_PROCESSES, turns=BY_DAY_TURNS)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_a_night_of_processes(tmp_path):
    processes = int(os.environ.get("LOAD_PROCESSES", BY_NIGHT_PROCESSES))
    seconds = float(os.environ.get("LOAD_SECONDS", BY_NIGHT_SECONDS))
    check_load(str(tmp_path / "r"), 2, processes, seconds=seconds)
