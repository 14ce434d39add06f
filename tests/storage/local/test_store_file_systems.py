"""Writes on network mounts, full and read-only disks land whole, or fail with a useful error."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest
from helpers.raised import raises
from helpers.storage.file_systems import (
    NO_LINKS,
    NO_LOCKS,
    fail_always,
    fail_once,
    ignore_case,
)

from icechunk_format.errors import (
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.storage.protocol import CreateOnly, ReadRequest, ReplaceIfUnchanged

# Failures that a client of NFS reports for a request that succeeded and that it has repeated.
AFTER_SUCCESS = [errno.ENOENT, errno.ESTALE, errno.EIO, errno.ETIMEDOUT]


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "root"))


def staged_left(storage):
    return [name for _, _, names in os.walk(storage.root_url) for name in names if "staged" in name]


# -- renames and links that report a failure after success ---------------------------------------


@pytest.mark.parametrize("number", AFTER_SUCCESS)
def test_a_rename_that_succeeded_is_a_success(storage, monkeypatch, number):
    first = storage.put("repo", b"one")
    failed = fail_once(monkeypatch, "replace", number, after=True)
    second = storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=first))
    assert len(failed) == 1
    assert second == storage.get("repo").version
    failed = fail_once(monkeypatch, "replace", number, after=True)
    assert storage.put("repo", b"three") == storage.get("repo").version
    assert len(failed) == 1


@pytest.mark.parametrize("number", [errno.EEXIST, *AFTER_SUCCESS, errno.EPERM])
def test_a_link_that_succeeded_is_a_success(storage, monkeypatch, number):
    failed = fail_once(monkeypatch, "link", number, after=True)
    written = storage.put("tag", b"ours", condition=CreateOnly())
    assert len(failed) == 1
    assert written == storage.get("tag").version
    assert storage.put("tag", b"later", condition=CreateOnly()) is None
    assert staged_left(storage) == []


@pytest.mark.parametrize("number", AFTER_SUCCESS)
def test_a_rename_that_did_not_happen_is_an_error(storage, monkeypatch, number):
    first = storage.put("repo", b"one")
    fail_once(monkeypatch, "replace", number)
    with raises(StorageError, key="repo", reason=os.strerror(number)) as caught:
        storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=first))
    assert not caught.value.outcome_unknown
    assert storage.root_url in str(caught.value)
    assert storage.get("repo").data == b"one"
    assert staged_left(storage) == []


def test_a_rename_that_another_writer_has_followed_is_unknown(storage, monkeypatch):
    first = storage.put("repo", b"one")

    def overwrite(source, target):
        other = os.path.join(os.path.dirname(target), "other")
        with open(other, "wb") as file:
            file.write(b"three")
        real_rename(other, target)

    real_rename = os.rename
    fail_once(monkeypatch, "replace", errno.ENOENT, after=True, also=overwrite)
    with raises(StorageError, match="may have landed", key="repo") as caught:
        storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=first))
    assert caught.value.outcome_unknown
    assert storage.get("repo").data == b"three"


def test_overwrites_are_never_unknown(storage, monkeypatch):
    def lose(source, target):
        os.unlink(target)

    fail_once(monkeypatch, "replace", errno.EIO, after=True, also=lose)
    with raises(StorageError, key="chunk") as caught:
        storage.put("chunk", b"x")
    assert not caught.value.outcome_unknown


# -- links and locks that do not exist -----------------------------------------------------------


@pytest.mark.parametrize("number", NO_LINKS)
def test_a_file_system_without_links_uses_the_lock(storage, monkeypatch, number):
    fail_always(monkeypatch, "link", number)
    assert storage.put("tag", b"ours", condition=CreateOnly()) is not None
    assert storage.put("tag", b"later", condition=CreateOnly()) is None
    assert storage.get("tag").data == b"ours"


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_file_system_without_locks_is_named(storage, monkeypatch, number):
    first = storage.put("repo", b"one")
    fail_always(monkeypatch, "flock", number, module=fcntl)
    lock = os.path.join(storage.root_url, ".storage-lock")
    with raises(UnsupportedError, match="Mount the file system with locks") as caught:
        storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=first))
    assert lock in str(caught.value)
    assert storage.get("repo").data == b"one"
    # Nothing that needs no lock is refused.
    assert storage.put("chunk", b"x") is not None
    assert storage.put("tag", b"x", condition=CreateOnly()) is not None
    fail_always(monkeypatch, "link", errno.ENOTSUP)
    with raises(UnsupportedError, match="Mount the file system with locks"):
        storage.put("other", b"x", condition=CreateOnly())
    assert storage.head("other") is None
    assert staged_left(storage) == []


# -- stale handles and deleted files -------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "lseek", "read"])
def test_a_file_that_was_replaced_on_the_server_is_read_again(storage, monkeypatch, call):
    storage.put("repo", b"one")
    failed = fail_once(monkeypatch, call, errno.ESTALE)
    assert storage.get("repo").data == b"one"
    assert len(failed) == 1
    failed = fail_once(monkeypatch, call, errno.ESTALE)
    assert storage.get_many([ReadRequest(key="repo", start=1)] * 2) == [b"ne"] * 2
    assert len(failed) == 1


def test_a_mount_that_stays_stale_is_named(storage, monkeypatch):
    storage.put("repo", b"one")
    fail_always(monkeypatch, "read", errno.ESTALE)
    with raises(StorageError, match="check the mount", key="repo"):
        storage.get("repo")


def test_deleted_files_that_are_open_on_nfs_are_not_objects(storage):
    storage.put("chunks/a", b"x")
    folder = os.path.join(storage.root_url, "chunks")
    for name in (".nfs000000000140001200000001", ".nfs0000abcd"):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(b"deleted")
    storage.put("chunks/.nfsnotes", b"an object")
    assert sorted(info.key for info in storage.list()) == ["chunks/.nfsnotes", "chunks/a"]


# -- names ---------------------------------------------------------------------------------------


def test_names_that_are_too_long_do_not_exist(storage):
    storage.put("short", b"x")
    long = "n" * 300
    with raises(NotFoundError, key=long, kind="object"):
        storage.get(long)
    with pytest.raises(NotFoundError):
        storage.get_many([ReadRequest(key=f"chunks/{long}")])
    assert storage.head(long) is None
    with raises(StorageError, match="only shorter names", key=long) as caught:
        storage.put(long, b"x")
    assert storage.root_url in str(caught.value)


def test_case_is_noticed(tmp_path, monkeypatch):
    root = tmp_path / "Root"
    root.mkdir()
    assert LocalStorage(str(root)).ignores_case is False
    ignore_case(monkeypatch, root)
    assert LocalStorage(str(root)).ignores_case is True
