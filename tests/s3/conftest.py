"""Starts one S3 server for a run, and makes a bucket for each test that wants one."""

from __future__ import annotations

import pytest
from helpers.servers.s3 import running_s3_server


@pytest.fixture(scope="session")
def s3_server():
    with running_s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def shared_bucket(s3_server):
    return s3_server.new_bucket()
