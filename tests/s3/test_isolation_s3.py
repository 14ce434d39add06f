"""Readers beside hundreds of commits on S3 see one whole version at every read."""

import uuid

from helpers.sessions.snapshot_watchers import check

from icechunk_format.storage.location import Location


def test_readers_see_whole_versions(s3_server, shared_bucket):
    url = f"s3://{shared_bucket}/{uuid.uuid4()}"
    check(Location(url, options=s3_server.storage_options), 300)
