"""A repository is the same in each zone, locale and umask, and whatever the clock shows."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time

import pytest
from helpers.builder import add_array

from icechunk_format.errors import InvalidInputError
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.storage.protocol import ReplaceIfUnchanged

# A day's work with names, texts and times; prints what a reader sees, as ASCII.
_WORK = """
import json, os, sys
from datetime import UTC, datetime, timedelta
from helpers.builder import add_array
from icechunk_format.errors import InvalidInputError
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository

path = os.path.join(sys.argv[1], "données-気温")
if sys.getfilesystemencoding() == "ascii":
    for place in (path, f"file://{path}"):
        try:
            Repository.create(place)
        except InvalidInputError as error:
            assert "PYTHONUTF8=1" in str(error), error
        else:
            raise AssertionError("a name that this process cannot encode")
    path = os.path.join(sys.argv[1], "data")
repository = Repository.create(path)
session = repository.writable_session()
add_array(session, "/température-気温", (4,))
session.set_chunk("/température-気温", [1], b"x")
done = session.commit("première écriture ❄", metadata={"où": "Zürich"})
repository.create_branch("añadir", done.snapshot_id)
repository.create_tag("été-2024-10-27T02:30", done.snapshot_id)
reader = Repository.open(path)
made = datetime.fromtimestamp(reader.snapshot_info(done.snapshot_id).flushed_at / 1e6, UTC)
hours = [reader.resolve(as_of=made + timedelta(hours=n)) for n in (0, 1, 24)]
seen = {
    "messages": [info.message for info in reader.ancestry()],
    "nodes": [node.path for node in reader.snapshot(done.snapshot_id).nodes],
    "branches": sorted(reader.branches()), "tags": sorted(reader.tags()),
    "as_of": [found == done.snapshot_id for found in hours],
    "expired": str(reader.expire_snapshots("30d")),
    "findings": [row["severity"] for row in verify(path).to_pylist()],
    "is_recent": abs((datetime.now(UTC) - made).total_seconds()) < 600,
}
print(json.dumps(seen, sort_keys=True))
"""

ENVIRONMENTS = [
    {"TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    # Clocks go back and forward within these rules at every moment of the year.
    {"TZ": "AAA12BBB-12,J1/0,J365/23", "LC_ALL": "POSIX", "PYTHONUTF8": "1"},
]


def test_zones_and_locales_change_nothing(tmp_path):
    seen, script = [], tmp_path / "work.py"
    script.write_text(_WORK, encoding="utf-8")
    for number, environment in enumerate(ENVIRONMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, str(script), str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            capture_output=True,
            check=False,
        )
        assert done.stderr.decode() == ""
        seen.append(json.loads(done.stdout))
        # Another process, in this one's locale, finds the same names.
        [made] = folder.iterdir()
        names = {node.path for node in _newest(made).nodes}
        assert names == {"/", "/température-気温"}
    assert seen[0]["as_of"] == [True, True, True]
    assert seen[0]["is_recent"]
    assert seen[1:] == seen[:1] * (len(seen) - 1)


def _newest(path):
    repository = Repository.open(path)
    return repository.snapshot(repository.resolve())


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_folder_may_have_a_name_that_is_not_unicode(tmp_path):
    path = os.fsdecode(os.fsencode(str(tmp_path)) + b"/temp\xe9rature")
    repository = Repository.create(path)
    session = repository.writable_session()
    add_array(session, "/a", (4,))
    session.set_chunk("/a", [1], b"x")
    session.commit("first")
    assert next(info.message for info in Repository.open(path).ancestry()) == "first"
    assert {row["severity"] for row in verify(path).to_pylist()} <= {"info"}
    assert os.listdir(os.fsencode(str(tmp_path))) == [b"temp\xe9rature"]


def test_clocks_may_go_back_and_forward_between_commits(tmp_path, monkeypatch):
    path = str(tmp_path / "r")
    repository = Repository.create(path)
    session = repository.writable_session()
    add_array(session, "/a", (40,))
    session.commit("0")
    now = time.time_ns
    for number, minutes in enumerate([-4, 4, -4, 0, 4, -4], start=1):
        monkeypatch.setattr(time, "time_ns", lambda by=minutes: now() + by * 60 * 10**9)
        session = Repository.open(path).writable_session()
        session.set_chunk("/a", [number], b"x")
        session.commit(str(number))
    history = [*Repository.open(path).ancestry()]
    assert [info.message for info in history[:-1]] == [str(number) for number in range(6, -1, -1)]
    times = [info.flushed_at for info in history]
    assert times == sorted(set(times), reverse=True)
    for minutes in (-15, 15):
        monkeypatch.setattr(time, "time_ns", lambda by=minutes: now() + by * 60 * 10**9)
        session = Repository.open(path).writable_session()
        session.set_chunk("/a", [0], b"x")
        with pytest.raises(InvalidInputError, match="clock of this machine"):
            session.commit("too far off")
    monkeypatch.setattr(time, "time_ns", now)
    assert Repository.open(path).resolve() == history[0].id


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
@pytest.mark.parametrize("umask", [0o077, 0o000, 0o002])
def test_a_writer_with_another_umask_locks_no_reader_out(tmp_path, umask):
    """Readers of older snapshots keep `repo`, which each commit replaces."""
    storage = LocalStorage(str(tmp_path / "r"))
    before = os.umask(0o027)
    try:
        version = storage.put("repo", b"0")
        os.chmod(tmp_path / "r" / "repo", 0o664)
        os.umask(umask)
        assert storage.put("repo", b"1", condition=ReplaceIfUnchanged(version=version)) is not None
        storage.put("chunks/a", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r" / "repo").stat().st_mode) == 0o664
    assert stat.S_IMODE((tmp_path / "r" / "chunks" / "a").stat().st_mode) == 0o666 & ~umask
