"""Maintenance works on a real S3 server, whose times are whole seconds."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from helpers.files.maintenance_repositories import FOREIGN, PartCollector, build_untidy, keys_of

from icechunk_format.maintenance import collect_garbage, expire_snapshots
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.storage.location import Location


@pytest.fixture(params=["obstore", "fsspec"])
def location(request, s3_server, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    return Location(url, client=request.param, options=s3_server.storage_options)


def test_a_repository_is_tidied_and_shows_what_it_showed(location):
    built = build_untidy(location=location)
    shown, keys = built.contents(), keys_of(built.storage)
    soon = datetime.now(UTC) + timedelta(seconds=5)
    # What was written a moment ago is not older than a second ago.
    young = datetime.now(UTC) - timedelta(seconds=60)
    assert collect_garbage(location, young).bytes_deleted == 0
    assert expire_snapshots(location, soon).released_snapshots
    # In parts, as Spark's tasks do, where a listing begins and ends within the folder.
    collector = PartCollector(location, soon)
    result = collect_from(built.storage, collector, spec_version=2, older_than=soon)
    assert min(result.snapshots_deleted, result.manifests_deleted, result.chunks_deleted) > 0
    assert built.contents() == shown
    left = keys_of(built.storage)
    assert set(FOREIGN) <= left
    assert len(keys - left) == (
        result.snapshots_deleted
        + result.transaction_logs_deleted
        + result.manifests_deleted
        + result.chunks_deleted
    )
    assert collect_garbage(location, soon).bytes_deleted == 0
