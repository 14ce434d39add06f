"""Repositories on full, read-only, foreign, networked and case-insensitive folders stay whole.

Each time a commit lands, or its error names the path and what to do, the branch is as it was, and
the same session goes on when the cause is gone. ``tests/storage/local`` has the calls one by one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import time
from functools import cache

import pytest
from helpers.sessions.model import array_document, group_document, stored_contents
from helpers.storage.file_systems import (
    NO_LINKS,
    NO_LOCKS,
    fail_always,
    fail_once,
    ignore_case,
    is_creation,
)

from icechunk_format.errors import (
    AlreadyExistsError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache

PAYLOAD = bytes(range(256)) * 4
VERSIONS = pytest.mark.parametrize("spec_version", [1, 2])


def begin(repository, *paths):
    session = repository.writable_session()
    session.create_group("/", group_document())
    for path in paths or ("/a",):
        document = array_document((8,), (1,))
        session.create_array(path, document, shape=(8,), num_chunks=(8,))
    return session


def change_and_commit(session, path="/a", payload=PAYLOAD):
    session.set_chunks(path, [[0], [1]], [payload, payload])
    return session.commit("change")


def check_landed(repository, done, path="a", payload=PAYLOAD):
    metadata_cache().clear()
    fresh = Repository.open(repository.location)
    assert fresh.resolve() == done.snapshot_id
    assert [info.message for info in fresh.ancestry()].count("change") == 1
    assert stored_contents(fresh, done.snapshot_id)[f"{path}/c/1"] == payload
    kinds = {one["severity"] for one in verify(fresh.location).to_pylist()}
    assert kinds <= {"info"}


def staged_below(folder):
    """Return the staged files that stay; a failed batch does not wait for its other threads."""
    for _ in range(100):
        if not _staged_now(folder):
            return []
        time.sleep(0.1)
    return _staged_now(folder)


def _staged_now(folder):
    return [name for _, _, names in os.walk(folder) for name in names if "staged" in name]


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", [2, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("call", ["open", "replace"])
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "mounted read-only"),
        (errno.EACCES, "check the permissions"),
        (errno.EPERM, "belongs to another user"),
        (errno.EDQUOT, "raise the quota"),
        (errno.ENOSPC, "free some space"),
        (errno.EIO, "check the disk"),
    ],
)
def test_a_refused_commit_changes_nothing(
    tmp_path, monkeypatch, number, advice, call, spec_version
):
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    base = repository.resolve()
    session = begin(repository)
    with monkeypatch.context() as patched:
        fail_always(patched, call, number, is_creation if call == "open" else lambda *_: True)
        with pytest.raises(StorageError) as caught:
            change_and_commit(session)
    line = str(caught.value).splitlines()[-1]
    assert advice in line
    assert str(tmp_path) in line
    assert not caught.value.outcome_unknown
    assert repository.resolve() == base
    assert staged_below(tmp_path) == []
    check_landed(repository, change_and_commit(session))


# -- networks ----------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("call", ["replace", "link"])
@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EIO, errno.EEXIST])
def test_a_commit_and_a_tag_whose_renames_report_failures_land_once(
    tmp_path, monkeypatch, number, call, spec_version
):
    """Each rename and each link fails after it has succeeded."""
    with monkeypatch.context() as patched:
        real, failed = getattr(os, call), []

        def succeed_and_fail(*arguments):
            real(*arguments)
            failed.append(arguments)
            raise OSError(number, os.strerror(number))

        patched.setattr(os, call, succeed_and_fail)
        repository = Repository.create(str(tmp_path), spec_version=spec_version)
        done = change_and_commit(begin(repository))
        repository.create_tag("v1", done.snapshot_id)
        repository.create_branch("dev", done.snapshot_id)
    assert failed
    check_landed(repository, done)
    assert Repository.open(repository.location).tags() == {"v1": done.snapshot_id}
    assert set(Repository.open(repository.location).branches()) == {"main", "dev"}


@VERSIONS
def test_a_lost_answer_to_the_rename_of_a_commit_is_found_out(tmp_path, monkeypatch, spec_version):
    """Another writer commits before this one learns that its rename succeeded."""
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    begin(repository).commit("base")
    session = repository.writable_session()
    ref = "ref.json" if spec_version == 1 else "repo"
    # Other implementations do not take the lock.
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: None)

    def commit_other(*_):
        other = Repository.open(str(tmp_path)).writable_session()
        other.set_chunks("/a", [[7]], [PAYLOAD])
        other.commit("other")

    failed = fail_once(
        monkeypatch,
        "replace",
        errno.ENOENT,
        after=True,
        meets=lambda source, target: os.path.basename(target) == ref,
        also=commit_other,
    )
    change_and_commit(session)
    assert len(failed) == 1
    metadata_cache().clear()
    messages = [info.message for info in Repository.open(str(tmp_path)).ancestry()]
    assert messages[:3] == ["other", "change", "base"]


@VERSIONS
@pytest.mark.parametrize("number", NO_LINKS)
def test_without_links_all_works(tmp_path, monkeypatch, number, spec_version):
    fail_always(monkeypatch, "link", number)
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    with pytest.raises(AlreadyExistsError):
        Repository.create(str(tmp_path))
    done = change_and_commit(begin(repository))
    repository.create_tag("v1", done.snapshot_id)
    check_landed(repository, done)


@VERSIONS
@pytest.mark.parametrize("number", NO_LOCKS)
def test_without_locks_nothing_is_committed(tmp_path, monkeypatch, number, spec_version):
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    base = repository.resolve()
    session = begin(repository)
    with monkeypatch.context() as patched:
        fail_always(patched, "flock", number, module=fcntl)
        with pytest.raises(UnsupportedError, match="Mount the file system with locks") as caught:
            change_and_commit(session)
    assert str(tmp_path) in str(caught.value)
    assert repository.resolve() == base
    check_landed(repository, change_and_commit(session))


def test_reads_of_files_that_are_replaced_on_the_server(tmp_path, monkeypatch):
    repository = Repository.create(str(tmp_path))
    done = change_and_commit(begin(repository))
    real, calls = os.read, []

    def stale_each_second_time(*arguments):
        calls.append(arguments)
        if len(calls) % 2:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*arguments)

    monkeypatch.setattr(os, "read", stale_each_second_time)
    check_landed(repository, done)
    assert len(calls) > 4


# -- names -------------------------------------------------------------------------------------


@VERSIONS
def test_names_that_differ_in_case_stay_apart(tmp_path, monkeypatch, spec_version):
    root = tmp_path / "Root"
    root.mkdir()
    ignore_case(monkeypatch, root)
    repository = Repository.create(str(root), spec_version=spec_version)
    session = begin(repository, "/a", "/A")
    session.set_chunks("/A", [[0]], [PAYLOAD[::-1]])
    done = change_and_commit(session)
    check_landed(repository, done)
    contents = stored_contents(repository, done.snapshot_id)
    assert contents["A/c/0"] == PAYLOAD[::-1]
    assert contents["a/c/0"] == PAYLOAD
    repository.create_tag("v1", done.snapshot_id)
    repository.create_branch("dev", done.snapshot_id)
    with pytest.raises(NotFoundError):
        repository.resolve(branch="MAIN")
    with pytest.raises(NotFoundError):
        repository.resolve(tag="V1")
    with pytest.raises(NotFoundError):
        repository.delete_branch("Dev")
    with pytest.raises(NotFoundError):
        repository.delete_tag("V1")
    if spec_version == 1:
        for create, name in ((repository.create_branch, "DEV"), (repository.create_tag, "V1")):
            with pytest.raises(AlreadyExistsError, match="upper and lower case") as caught:
                create(name, done.snapshot_id)
            assert str(root) in str(caught.value)
        repository.delete_tag("v1")
        with pytest.raises(AlreadyExistsError, match="upper and lower case"):
            repository.create_tag("V1", done.snapshot_id)
        assert set(repository.branches()) == {"main", "dev"}
    else:
        repository.create_branch("DEV", done.snapshot_id)
        repository.create_tag("V1", done.snapshot_id)
        assert set(repository.branches()) == {"main", "dev", "DEV"}
        assert set(repository.tags()) == {"v1", "V1"}
    check_landed(repository, done)


@VERSIONS
def test_names_longer_than_a_file_name_may_be(tmp_path, spec_version):
    repository = Repository.create(str(tmp_path), spec_version=spec_version)
    path = "/" + "n" * 300
    done = change_and_commit(begin(repository, path), path)
    check_landed(repository, done, path[1:])
    name = "b" * 300
    with pytest.raises(NotFoundError):
        repository.resolve(branch=name)
    with pytest.raises(NotFoundError):
        repository.resolve(tag=name)
    if spec_version == 1:
        with pytest.raises(StorageError, match="only shorter names") as caught:
            repository.create_branch(name, done.snapshot_id)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(StorageError, match="only shorter names"):
            repository.create_tag(name, done.snapshot_id)
    else:
        repository.create_branch(name, done.snapshot_id)
        assert repository.resolve(branch=name) == done.snapshot_id


def test_a_folder_of_a_path_that_is_too_long(tmp_path):
    folder = str(tmp_path) + "/deep" * 900
    with pytest.raises(NotFoundError):
        Repository.open(folder)
    with pytest.raises(StorageError, match="only shorter names") as caught:
        Repository.create(folder)
    assert str(tmp_path) in str(caught.value)
    assert os.listdir(tmp_path) == []


# -- real mounts and owners --------------------------------------------------------------------


@cache
def can_mount():
    """Return True if this user may mount in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    call = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(call, capture_output=True, check=False).returncode == 0


SCRIPT = """
import subprocess, sys
from helpers.sessions.model import array_document, group_document, stored_contents
from icechunk_format.errors import StorageError
from icechunk_format.repository import Repository

folder = sys.argv[1]
repository = Repository.create(folder + "/repo")
session = repository.writable_session()
session.create_group("/", group_document())
session.create_array("/a", array_document((64,), (1,)), shape=(64,), num_chunks=(64,))
base = session.commit("base").snapshot_id

def mount(options):
    subprocess.run(["mount", "-o", "remount," + options, folder], check=True)

def fill(session, payload):
    session.set_chunks("/a", [[i] for i in range(64)], [payload] * 64)
"""


def run_mounted(folder, code):
    """Run code with a file system of its own, of one MiB, at a folder."""
    mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    call = ["unshare", "-Urm", "sh", "-c", mount, "sh", str(folder), sys.executable]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*call, SCRIPT + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not can_mount(), reason="this user may not mount file systems")
def test_a_disk_that_is_full_and_then_read_only(tmp_path):
    code = """
    session = repository.writable_session()
    try:
        fill(session, bytes(40_000))
    except StorageError as error:
        assert "No space left on device" in str(error) and "free some space" in str(error), error
        assert folder in str(error) and not error.outcome_unknown
    else:
        raise SystemExit("it fits")
    assert repository.resolve() == base
    mount("size=8m")
    fill(session, bytes(40_000))
    done = session.commit("fits")
    assert stored_contents(repository, done.snapshot_id)["a/c/63"] == bytes(40_000)

    session = repository.writable_session()
    fill(session, bytes(1_000))
    mount("ro")
    try:
        session.commit("refused")
    except StorageError as error:
        assert "mounted read-only" in str(error), error
        assert folder in str(error) and not error.outcome_unknown
    else:
        raise SystemExit("written")
    assert Repository.open(folder + "/repo").resolve() == done.snapshot_id
    mount("rw")
    done = session.commit("written")
    assert stored_contents(repository, done.snapshot_id)["a/c/63"] == bytes(1_000)
    """
    run_mounted(tmp_path, code)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o1777])
def test_a_repository_of_another_user(tmp_path, mode):
    """Folders that only their owner may write or enter, and a folder with a sticky bit."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-", "test_")):
            folder.chmod(0o755)
    root = tmp_path / "repo"
    repository = Repository.create(str(root))
    change_and_commit(begin(repository))
    base = repository.resolve()
    for path, folders, files in os.walk(root):
        os.chmod(path, mode)
        for name in files:
            os.chmod(os.path.join(path, name), 0o644 if mode == 0o755 else 0o600)
        assert folders is not None
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing was refused"
        try:
            os.setgid(65534)
            os.setuid(65534)
            metadata_cache().clear()
            session = Repository.open(str(root)).writable_session()
            change_and_commit(session)
        except StorageError as error:
            text = str(error)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as answer:
        line = answer.read()
    assert "check the " in line
    assert "permissions of the folder" in line
    assert str(root) in line
    assert repository.resolve() == base
