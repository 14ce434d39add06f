"""Builds small repositories in memory, empty or object by object with our own encoders."""

from dataclasses import dataclass, field

import pytest
from helpers.builder import new_location, new_repository

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import (
    REPO,
    branch_ref_key,
    snapshot_key,
    tag_ref_key,
    tag_tombstone_key,
)
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import RepoInitializedUpdate, RepoStatus, Update
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.repository.files import metadata_cache
from icechunk_format.repository.state import publish, races
from icechunk_format.storage.location import Location, open_storage

# 2024-07-01T00:00:00Z in microseconds; snapshots follow a second after one another.
START = 1_719_792_000_000_000
SECOND = 1_000_000


def snapshot_id(number):
    return SnapshotId(bytes([number]) * 12)


@dataclass
class MemoryRepository:
    """A repository of one chain of snapshots 1..n (1 is the root), and where it is."""

    location: Location
    snapshots: dict[SnapshotId, SnapshotInfo] = field(default_factory=dict)

    @property
    def storage(self):
        return open_storage(self.location)

    def chain(self, length):
        for number in range(1, length + 1):
            self.snapshots[snapshot_id(number)] = SnapshotInfo(
                id=snapshot_id(number),
                parent_id=snapshot_id(number - 1) if number > 1 else None,
                flushed_at=START + number * SECOND,
                message=f"commit {number}",
                metadata_items=MetadataItems.of({"number": number}),
            )
        return self

    def write_snapshots(self, spec_version):
        for info in self.snapshots.values():
            data = snapshot.encode(
                Snapshot(
                    id=info.id,
                    parent_id=info.parent_id if spec_version == 1 else None,
                    spec_version=spec_version,
                    flushed_at=info.flushed_at,
                    message=info.message,
                    metadata_items=info.metadata_items,
                )
            )
            self.storage.put(snapshot_key(info.id), data)

    def write_v2(self, branches, tags=(), **fields):
        self.write_snapshots(2)
        fields.setdefault(
            "latest_updates", (Update(details=RepoInitializedUpdate(), updated_at=START),)
        )
        info = RepoInfo(
            branches={name: snapshot_id(n) for name, n in dict(branches).items()},
            tags={name: snapshot_id(n) for name, n in dict(tags).items()},
            snapshots=self.snapshots,
            status=RepoStatus(set_at=START),
            **fields,
        )
        self.storage.put(REPO, repo_info.encode(info))
        return self

    def write_v1(self, branches, tags=(), deleted_tags=()):
        self.write_snapshots(1)
        for name, number in dict(branches).items():
            content = v1_refs.encode_ref_json(snapshot_id(number))
            self.storage.put(branch_ref_key(name), content)
        for name, number in dict(tags).items():
            self.storage.put(tag_ref_key(name), v1_refs.encode_ref_json(snapshot_id(number)))
        for name in deleted_tags:
            self.storage.put(tag_tombstone_key(name), b"")
        return self


@pytest.fixture
def memory_repository():
    """Give an empty place in memory, to write a repository to."""
    metadata_cache().clear()
    return MemoryRepository(new_location())


@pytest.fixture(params=[1, 2])
def four_commits(request, memory_repository):
    """Four commits on main, a branch at the third, a tag at the second, a deleted tag."""
    memory_repository.chain(4)
    branches = {"main": 4, "development": 3}
    if request.param == 1:
        tags = {"v1.0": 2, "v1.1": 3, "gone": 1}
        return memory_repository.write_v1(branches, tags, deleted_tags=["gone"])
    return memory_repository.write_v2(branches, {"v1.0": 2, "v1.1": 3}, deleted_tags=("gone",))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repository(request):
    """Give an empty repository, once of each spec version, where a module makes no other."""
    return new_repository(request.param)


@pytest.fixture
def repository_v2():
    return new_repository()


@pytest.fixture
def no_pauses(monkeypatch):
    """Let what failed be tried again at once."""
    monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(races, "_LONGEST_PAUSE", 0.0)
