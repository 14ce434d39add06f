"""Every storage that needs no server keeps the same contract."""

from __future__ import annotations

import uuid

import pytest
from helpers.storage.contract import StorageContract

from icechunk_format.storage.location import Location, open_storage


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self):
        return open_storage(Location(f"memory://{uuid.uuid4()}/root"))


class TestLocal(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(Location(str(tmp_path / "not yet made" / "root %20")))


class TestObstoreMemory(StorageContract):
    @pytest.fixture
    def storage(self):
        return open_storage(Location(f"memory://{uuid.uuid4()}/root", client="obstore"))


class TestFsspecMemory(StorageContract):
    @pytest.fixture
    def storage(self):
        return open_storage(Location(f"memory://{uuid.uuid4()}/root", client="fsspec"))


class TestFsspecFiles(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        options = {"single_writer": "true"}
        return open_storage(Location(str(tmp_path / "root"), client="fsspec", options=options))
