"""A process that writes to S3 is killed at any request; see ``tests/torture/test_crashes.py``."""

from __future__ import annotations

import pytest
from torture.crashes import crashes_of
from torture.processes import elsewhere
from torture.test_crashes import CHUNKS, MOST, by_night, shown


@pytest.fixture(scope="module")
def forking():
    with elsewhere() as call:
        yield call


@pytest.fixture
def bucket(s3_server, shared_bucket):
    return {"url": f"s3://{shared_bucket}", **s3_server.storage_options}


def test_a_killed_append_leaves_all_or_nothing(tmp_path, forking, bucket):
    row = forking(crashes_of, tmp_path / "worlds", "write append", 2, 1, bucket)
    assert not row.wrong, "\n".join(row.wrong)
    assert row.crashes > 1


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("name", "spec_version"), by_night())
def test_by_night_each_request_of_each_call(tmp_path, forking, bucket, name, spec_version):
    row = forking(crashes_of, tmp_path / "worlds", name, spec_version, MOST, bucket, CHUNKS)
    print(shown(row))
    assert not row.wrong, "\n".join(row.wrong)
