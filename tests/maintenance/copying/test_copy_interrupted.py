"""An interrupted copy shows nothing, can be continued, and is protected from collections."""

import itertools
import time
from datetime import UTC, datetime

import icechunk
import pytest
from helpers.builder import new_location
from helpers.files.copied_repositories import assert_same, commit, repository_of
from helpers.sessions.model import stored_contents

from icechunk_format.errors import StorageError
from icechunk_format.maintenance import collect_garbage, copy, verify
from icechunk_format.maintenance.copying import objects as copy_objects
from icechunk_format.maintenance.copying import publish as copy_publish
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.storage.memory import MemoryStorage


class Failing:
    """Lets so many writes to memory through, half of one more, and none afterwards."""

    def __init__(self, monkeypatch, writes):
        self.left = writes
        put_many, put = MemoryStorage.put_many, MemoryStorage.put

        def limited_many(storage, items, **options):
            items = list(items)
            if not self.count():
                put_many(storage, items[: len(items) // 2], **options)
                raise StorageError("no space left")
            return put_many(storage, items, **options)

        def limited(storage, *given, **options):
            if not self.count():
                raise StorageError("no space left")
            return put(storage, *given, **options)

        monkeypatch.setattr(MemoryStorage, "put_many", limited_many)
        monkeypatch.setattr(MemoryStorage, "put", limited)

    def count(self):
        self.left -= 1
        return self.left >= 0


def test_every_failed_write_can_be_followed_by_another_try(monkeypatch):
    source = repository_of(3)
    for writes in itertools.count():
        target = new_location()
        with monkeypatch.context() as patched:
            Failing(patched, writes)
            try:
                copy(source.location, target)
            except StorageError:
                assert not Repository.exists(target)
            else:
                break
        copy(source.location, target)
        assert_same(source, Repository.open(target))
    assert writes > 4


class Collecting:
    """Chunks of a target, before the listing of which or after which its garbage is collected."""

    def __init__(self, monkeypatch, collect, *, after):
        stored_already = copy_objects._stored_already

        def listed(*given):
            if not after:
                collect()
            found = stored_already(*given)
            self.found = int(found.sum())
            if after:
                collect()
            return found

        monkeypatch.setattr(copy_objects, "_stored_already", listed)


def ours(target, cutoff):
    collect_garbage(target, cutoff)


def theirs(target, cutoff):
    storage = icechunk.local_filesystem_storage(str(target))
    icechunk.Repository.open(storage).garbage_collect(cutoff)


def interrupted_copy(tmp_path, monkeypatch):
    """Copy new versions into a repository, and stop when chunks and manifests are stored."""
    source, target = repository_of(2), Location(str(tmp_path / "target"))
    copy(source.location, target)
    for number in range(2, 6):
        commit(source, number)
    with monkeypatch.context() as patched:
        patched.setattr(copy_publish, "_copy_files", interrupt)
        with pytest.raises(StorageError):
            copy(source.location, target)
    time.sleep(0.01)
    return source, target, datetime.now(UTC)


def interrupt(*given, **options):
    raise StorageError("interrupted")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("collect", [ours, theirs])
def test_a_copy_is_continued_beside_a_collection(collect, after, tmp_path, monkeypatch):
    source, target, cutoff = interrupted_copy(tmp_path, monkeypatch)
    time.sleep(0.01)
    listing = Collecting(monkeypatch, lambda: collect(target, cutoff), after=after)
    done = copy(source.location, target)
    assert listing.found == done.skipped_chunks == 6
    assert done.chunks == 0
    repository = Repository.open(target)
    assert_same(source, repository)
    assert repository.branches().keys() == {"main"}


@pytest.mark.parametrize("collect", [ours, theirs])
def test_a_copy_is_continued_after_a_collection(collect, tmp_path, monkeypatch):
    source, target, cutoff = interrupted_copy(tmp_path, monkeypatch)
    assert Repository.open(target).branches().keys() == {"main", "copying/main"}
    collect(target, cutoff)
    assert copy(source.location, target).chunks == 0
    assert_same(source, Repository.open(target))


def test_a_copy_that_was_given_up_becomes_garbage(tmp_path, monkeypatch):
    _, target, cutoff = interrupted_copy(tmp_path, monkeypatch)
    repository = Repository.open(target)
    assert set(verify(target).column("severity").to_pylist()) == {"info"}
    repository.delete_branch("copying/main")
    assert collect_garbage(target, cutoff).chunks_deleted == 4
    stored_contents(repository, repository.resolve())
