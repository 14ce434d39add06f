"""Many processes that read and write one repository on S3 lose nothing, and none of them starves.

The processes of `tests/torture/test_load.py`, which has the command for a longer run.
"""

from __future__ import annotations

import os
import uuid

import pytest
from helpers.sessions.load import (
    BY_DAY_PROCESSES,
    BY_NIGHT_PROCESSES,
    BY_NIGHT_SECONDS,
    check_load,
)

from icechunk_format.storage.location import Location


@pytest.fixture
def location(s3_server, shared_bucket):
    return Location(f"s3://{shared_bucket}/{uuid.uuid4()}", options=s3_server.storage_options)


@pytest.mark.nightly
def test_processes_share_a_repository(location):
    check_load(location, 2, BY_DAY_PROCESSES, turns=2)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_a_night_of_processes(location):
    processes = int(os.environ.get("LOAD_PROCESSES", BY_NIGHT_PROCESSES))
    seconds = float(os.environ.get("LOAD_SECONDS", BY_NIGHT_SECONDS))
    check_load(location, 2, processes, seconds=seconds)
