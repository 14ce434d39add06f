"""Both clients keep the storage contract on a real S3 server."""

from __future__ import annotations

import random
import uuid

import pytest
from helpers.storage.contract import StorageContract

from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.remote import s3_store

pytestmark = pytest.mark.core


class TestObstore(StorageContract):
    @pytest.fixture
    def storage(self, s3_server, shared_bucket):
        url = f"s3://{shared_bucket}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, client="obstore", options=s3_server.storage_options))


class TestBotocore(StorageContract):
    @pytest.fixture
    def storage(self, s3_server, shared_bucket):
        url = f"s3://{shared_bucket}/{uuid.uuid4()}/root %20"
        return open_storage(Location(url, client="fsspec", options=s3_server.storage_options))

    def test_a_large_object_is_written_in_parts(self, storage, monkeypatch):
        monkeypatch.setattr(s3_store, "_MULTIPART_FROM", 2**20)
        monkeypatch.setattr(s3_store, "_PART_SIZE", 5 * 2**20)
        data = random.Random(1).randbytes(11 * 2**20)
        written = storage.put("large", data)
        fetched = storage.get("large")
        assert fetched.data == data
        assert fetched.version == written
