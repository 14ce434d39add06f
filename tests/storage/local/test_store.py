"""Local files work as objects, for readers, rival processes, links and permissions."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import stat
import threading
import time
from datetime import UTC, datetime

import pytest
from helpers.raised import raises
from helpers.storage.contract import increment

from icechunk_format.errors import InvalidInputError, NotFoundError, StorageError
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import (
    CreateOnly,
    ReadRequest,
    ReplaceIfUnchanged,
)


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(str(tmp_path / "root"))


def test_increments_of_rival_processes_add_up(storage):
    storage.put("counter", b"0")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=increment, args=(storage, "counter", 25)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert storage.get("counter").data == b"100"


def test_rival_creators_in_processes_have_one_winner(storage):
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        outcomes = pool.map(create, [(pickle.dumps(storage), b"%d" % i) for i in range(16)])
    assert outcomes.count(True) == 1
    assert storage.get("tag").data == b"%d" % outcomes.index(True)


def create(task):
    pickled, data = task
    return pickle.loads(pickled).put("tag", data, condition=CreateOnly()) is not None


def test_a_reader_never_meets_half_an_object(storage):
    states = [bytes([i]) * 200_000 for i in range(8)]
    storage.put("repo", states[0])
    stop = threading.Event()

    def write():
        while not stop.is_set():
            for state in states:
                storage.put("repo", state)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert storage.get("repo").data in states
    finally:
        stop.set()
        writer.join()


def test_a_writer_that_dies_holds_nobody_back(storage, tmp_path):
    version = storage.get("repo").version if storage.head("repo") else storage.put("repo", b"0")
    pid = os.fork()
    if pid == 0:
        with storage._locked():
            time.sleep(60)
        os._exit(0)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    written = storage.put("repo", b"1", condition=ReplaceIfUnchanged(version=version))
    assert written is not None


def test_what_staging_and_locking_leave_behind_is_not_listed(storage, tmp_path):
    version = storage.put("refs/repo", b"0")
    storage.put("refs/repo", b"1", condition=ReplaceIfUnchanged(version=version))
    root = tmp_path / "root"
    (root / "refs" / ".storage-staged-dead").write_bytes(b"half")
    (root / "refs" / "repo#1").write_bytes(b"half, by another implementation")
    assert [info.key for info in storage.list()] == ["refs/repo"]
    assert (root / ".storage-lock").exists()
    for key in (".storage-lock", "refs/.storage-staged-dead", ".storage-x/y"):
        with pytest.raises(InvalidInputError, match="reserved"):
            storage.get(key)


def test_a_failed_write_leaves_nothing(storage, tmp_path):
    storage.put("a/b", b"there")
    with raises(StorageError, key="a/b/c", reason="Not a directory") as caught:
        storage.put("a/b/c", b"below a file")
    assert not caught.value.outcome_unknown
    (tmp_path / "root" / "folder").mkdir()
    with raises(StorageError, key="folder", reason="Is a directory"):
        storage.put("folder", b"over a folder")
    left = sorted(path.name for path in (tmp_path / "root").rglob("*"))
    assert left == ["a", "b", "folder"]


def test_a_lost_race_leaves_nothing(storage, tmp_path):
    first = storage.put("repo", b"one")
    storage.put("repo", b"two")
    assert storage.put("repo", b"x", condition=CreateOnly()) is None
    assert storage.put("repo", b"x", condition=ReplaceIfUnchanged(version=first)) is None
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"repo", ".storage-lock"}


def test_a_rewrite_within_one_tick_of_the_clock_is_noticed(storage, tmp_path):
    version = storage.put("repo", b"one")
    path = tmp_path / "root" / "repo"
    status = path.stat()
    # The same file, size and times, as a coarse clock and a reused inode would make them.
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert storage.head("repo").version.etag == version.etag
    assert storage.put("repo", b"x", condition=ReplaceIfUnchanged(version=version)) is None
    assert path.read_bytes() == b"two"


def test_files_have_the_permissions_of_the_umask(storage, tmp_path):
    old = os.umask(0o027)
    try:
        storage.put("a/b", b"")
        storage.put("c", b"", condition=CreateOnly())
    finally:
        os.umask(old)
    for name in ("a/b", "c"):
        assert stat.S_IMODE((tmp_path / "root" / name).stat().st_mode) == 0o640


def test_links_that_lead_out_are_not_followed(storage, tmp_path):
    storage.put("chunks/inside", b"inside")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    chunks = tmp_path / "root" / "chunks"
    (chunks / "file").symlink_to(outside / "secret")
    (tmp_path / "root" / "folder").symlink_to(outside)
    (chunks / "within").symlink_to(chunks / "inside")
    assert storage.get("chunks/within").data == b"inside"
    for attempt in (
        lambda: storage.get("chunks/file"),
        lambda: storage.get_many([ReadRequest(key="folder/secret")]),
        lambda: storage.head("folder/secret"),
        lambda: storage.put("folder/new", b""),
        lambda: storage.delete_many(["folder/secret"]),
        lambda: list(storage.list("folder/")),
    ):
        with raises(StorageError, option="storage.follow_symlinks"):
            attempt()
    assert [info.key for info in storage.list()] == ["chunks/inside"]
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]

    options = {"follow-symlinks": "TRUE"}
    trusting = open_storage(Location(str(tmp_path / "root"), options=options))
    assert trusting.get("folder/secret").data == b"secret"
    assert "folder/secret" in {info.key for info in trusting.list()}


def test_deleting_a_link_deletes_the_link(storage, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"x")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(target)
    assert storage.delete_many(["link"]) == []
    assert target.exists()
    assert not (tmp_path / "root" / "link").is_symlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_explained(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(StorageError, match="check the permissions"):
        LocalStorage(str(folder / "root")).put("a", b"")


def replaced_by_another_user(storage, version):
    """Replace an object as a user without rights of root; return the error's text, if any."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=version))
        except StorageError as error:
            os.write(writer, error.message.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as text:
        return text.read()


@pytest.fixture
def shared(tmp_path):
    """Make a folder that everybody may write, below folders that everybody may enter."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-", "test_")):
            folder.chmod(0o755)
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o777)
    return root


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_whoever_may_write_the_folder_may_take_the_lock(shared, mask):
    storage = LocalStorage(str(shared))
    old = os.umask(mask)
    try:
        first = storage.put("repo", b"zero")
        version = storage.put("repo", b"one", condition=ReplaceIfUnchanged(version=first))
    finally:
        os.umask(old)
    (shared / "repo").chmod(0o644)
    assert stat.S_IMODE((shared / ".storage-lock").stat().st_mode) == 0o666
    assert replaced_by_another_user(storage, version) == ""
    assert storage.get("repo").data == b"two"


def test_locks_of_older_writers_are_taken_or_named(shared):
    storage = LocalStorage(str(shared))
    version = storage.put("repo", b"one")
    (shared / "repo").chmod(0o644)
    lock = shared / ".storage-lock"
    lock.touch()
    lock.chmod(0o000)
    text = replaced_by_another_user(storage, version)
    assert ".storage-lock" in text
    assert "give every writer of the repository access to it" in text
    lock.chmod(0o444)
    assert replaced_by_another_user(storage, version) == ""
    assert storage.get("repo").data == b"two"


def test_the_lock_is_not_opened_through_a_link(storage, tmp_path):
    version = storage.put("repo", b"one")
    lock = tmp_path / "root" / ".storage-lock"
    lock.symlink_to(tmp_path / "outside")
    with raises(
        StorageError,
        match="it is a symbolic link; delete it",
        key=".storage-lock",
        reason="Too many levels of symbolic links",
    ):
        storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=version))
    assert not (tmp_path / "outside").exists()
    assert storage.get("repo").data == b"one"
    lock.unlink()
    os.mkfifo(lock)
    with raises(StorageError, match="not a file", key=".storage-lock"):
        storage.put("repo", b"two", condition=ReplaceIfUnchanged(version=version))


def test_what_killed_writers_staged_is_deleted_once_it_is_old(storage, tmp_path):
    storage.put("chunks/a", b"kept")
    root = tmp_path / "root"
    dead = [
        root / "chunks" / ".storage-staged-dead",
        root / "repo#1",
        root / "chunks" / "1CECHNKREP0F1RSTCMT0#22",
    ]
    kept = [root / "notes#1", root / ".storage-lock", root / "chunks" / ".storage-staged-new"]
    for path in dead + kept:
        path.write_bytes(b"half")
    (root / "link").symlink_to(tmp_path)
    (tmp_path / ".storage-staged-outside").write_bytes(b"x")
    for path in [*dead, *kept[:-1], tmp_path / ".storage-staged-outside"]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    cutoff = datetime.fromtimestamp(1_100_000_000, UTC)
    assert storage.delete_staged(cutoff, dry_run=True) == ([4, 4, 4], [])
    assert all(path.exists() for path in dead)
    assert storage.delete_staged(cutoff) == ([4, 4, 4], [])
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in kept)
    assert (tmp_path / ".storage-staged-outside").exists()
    assert storage.delete_staged(cutoff) == ([], [])


def test_the_length_of_a_damaged_reference_takes_no_memory(storage):
    storage.put("chunk", b"0123")
    with raises(StorageError, found=4):
        storage.get_many([ReadRequest(key="chunk", start=0, end=7 * 2**30)])
    with pytest.raises(InvalidInputError):
        ReadRequest(key="chunk", start=0, end=2**62)


def test_whole_seconds_of_references_fit_files(storage, tmp_path):
    storage.put("virtual.nc", b"0123")
    path = tmp_path / "root" / "virtual.nc"
    os.utime(path, (1_700_000_000.9, 1_700_000_000.9))
    for seconds in (1_700_000_000, 1_700_000_001):
        request = ReadRequest(key="virtual.nc", if_unmodified_since=seconds)
        assert storage.get_many([request]) == [b"0123"]


def test_a_storage_works_in_a_forked_child(storage):
    storage.put_many((f"k{i}", b"%d" % i) for i in range(40))
    requests = [ReadRequest(key=f"k{i}") for i in range(40)]
    expected = storage.get_many(requests)  # which has started threads
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        assert pool.apply_async(storage.get_many, (requests,)).get(20) == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_named_pipe_is_no_object(tmp_path):
    """Opening it would wait for a writer; the alarm ends the test if it does."""
    os.mkfifo(tmp_path / "repo")
    storage = LocalStorage(str(tmp_path))
    signal.alarm(20)
    try:
        with pytest.raises(NotFoundError):
            storage.get("repo")
        with pytest.raises(NotFoundError):
            storage.get_many([ReadRequest(key="repo")])
        assert storage.head("repo") is None
    finally:
        signal.alarm(0)
