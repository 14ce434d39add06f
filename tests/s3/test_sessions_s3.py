"""Conditional writes of a real S3 server decide races of commits, for both clients."""

import uuid

import pytest
from helpers.sessions.contract import (
    assert_processes_lose_nothing,
    assert_snapshots_hold_random_changes,
)

from icechunk_format.storage.location import Location


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, s3_server, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    return Location(url, client=request.param, options=s3_server.storage_options)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_versions_hold_what_the_sessions_changed(location, spec_version):
    assert_snapshots_hold_random_changes(location, spec_version, seed=1, commits=4)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_processes_that_commit_to_one_bucket_lose_nothing(location, spec_version):
    assert_processes_lose_nothing(
        location, spec_version, start_method="spawn", writers=3, commits=3
    )
