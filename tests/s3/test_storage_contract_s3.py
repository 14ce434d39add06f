"""Both clients keep the storage contract on a real S3 server."""

from __future__ import annotations

import uuid

import pytest
from helpers.storage.contract import StorageContract

from icechunk_format.storage.location import Location, open_storage


class TestObstore(StorageContract):
    @pytest.fixture
    def storage(self, s3_server, shared_bucket):
        url = f"s3://{shared_bucket}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, client="obstore", options=s3_server.storage_options))


class TestS3fs(StorageContract):
    @pytest.fixture
    def storage(self, s3_server, shared_bucket):
        url = f"s3://{shared_bucket}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, client="fsspec", options=s3_server.storage_options))
