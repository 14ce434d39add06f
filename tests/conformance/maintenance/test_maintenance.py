"""Our expiration and collection leave what the reference's leave, object for object.

Both libraries keep house on copies of the same repository: in every state worth reading, after
random histories with random cutoffs, and in turns on one repository. Files that are left, what
`repo` says, and what both libraries answer must agree; differences across pruned history must
stay whole; and each library goes on working on what the other one tidied.
"""

import os
import random
import shutil
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from helpers.builder import reference_repository
from helpers.reference.repositories import CASES, build

from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.maintenance import collect_garbage
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache

icechunk.set_logs_filter("off")

COUNTS = (
    "bytes_deleted",
    "snapshots_deleted",
    "transaction_logs_deleted",
    "manifests_deleted",
    "chunks_deleted",
)


def open_reference(directory):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(directory)))


def copy_of(directory, name):
    target = Path(directory).parent / name
    shutil.rmtree(target, ignore_errors=True)
    # Ages of files are what a collection judges by.
    subprocess.run(["cp", "-a", str(directory), str(target)], check=True)
    return target


def files_of(directory):
    """Return all objects but `repo` and its copies, whose names are random."""
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file()
        and path.relative_to(directory).parts[0] not in ("repo", "overwritten")
        and not path.name.startswith(".")
    }


def state_of(directory):
    """Return what `repo` says, but for times and names of copies."""
    file = directory / "repo"
    if not file.exists():
        return None
    info = repo_info.decode(file.read_bytes())
    return {
        "branches": info.branches,
        "tags": info.tags,
        "deleted_tags": info.deleted_tags,
        "snapshots": info.snapshots,
        "status": info.status,
        "metadata": info.metadata,
        "config": info.config,
        "flags": (info.enabled_feature_flags, info.disabled_feature_flags),
        "log": [update.kind for update in info.latest_updates],
    }


def parents_of(directory):
    """Return the parents of snapshots that refs reach, also in version 1."""
    metadata_cache().clear()
    repository = Repository.open(str(directory))
    return {str(info.id): str(info.parent_id) for info in repository.snapshots()}


def assert_same(ours, theirs):
    assert files_of(ours) == files_of(theirs)
    assert state_of(ours) == state_of(theirs)
    assert parents_of(ours) == parents_of(theirs)
    mine, other = Repository.open(str(ours)), open_reference(theirs)
    assert set(mine.branches()) == set(other.list_branches())
    assert set(mine.tags()) == set(other.list_tags())


def expire_both(ours, theirs, cutoff, *, branches=False, tags=False):
    before = parents_of(ours)
    mine = Repository.open(str(ours)).expire_snapshots(
        cutoff, delete_expired_branches=branches, delete_expired_tags=tags
    )
    other = open_reference(theirs).expire_snapshots(
        cutoff, delete_expired_branches=branches, delete_expired_tags=tags
    )
    if (ours / "repo").exists():
        assert set(mine.released_snapshots) == set(other)
    else:
        # The reference also names what it keeps, and not all of a branch that it deletes.
        after = parents_of(ours)
        assert set(mine.released_snapshots) == before.keys() - after.keys()
        assert set(other) - set(mine.released_snapshots) <= after.keys()
    assert_same(ours, theirs)


def collect_both(ours, theirs, cutoff):
    planned = collect_garbage(str(ours), cutoff, dry_run=True)
    mine = collect_garbage(str(ours), cutoff)
    other = open_reference(theirs).garbage_collect(cutoff)
    for name in COUNTS:
        # Expiring in version 1 writes snapshots anew, and compressors differ by a few bytes.
        if name != "bytes_deleted" or (ours / "repo").exists():
            assert getattr(mine, name) == getattr(other, name), name
        assert getattr(planned, name) == getattr(mine, name), name
    assert_same(ours, theirs)


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


LIVELY = [
    (name, version)
    for name, version in CASES
    if name
    in (
        "empty_repository",
        "linear_history",
        "branches_and_tags",
        "split_manifests",
        "moved_nodes",
        "amended_commit",
        "detached_snapshot",
        "expired_history",
        "long_operations_log",
        "migrated_from_v1",
    )
]


@pytest.mark.parametrize(("name", "version"), LIVELY)
def test_every_state_is_tidied_alike(name, version, tmp_path):
    built = build(name, version, tmp_path / "built")
    ours, theirs = copy_of(built.path, "ours"), copy_of(built.path, "theirs")
    collect_both(ours, theirs, soon())
    expire_both(ours, theirs, soon())
    collect_both(ours, theirs, soon())
    expire_both(ours, theirs, soon(), branches=True, tags=True)
    collect_both(ours, theirs, soon())
    # The reference goes on where we tidied, and we where it did.
    session = open_reference(ours).writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["after"] = "maintenance"
    commit = session.commit("theirs on ours")
    metadata_cache().clear()
    assert str(Repository.open(str(ours)).resolve(branch="main")) == commit
    repository = Repository.open(str(theirs))
    session = repository.writable_session()
    document = b'{"zarr_format":3,"node_type":"group"}'
    has_root = bool(repository.snapshot(repository.resolve(branch="main")).nodes)
    session.create_group("/new" if has_root else "/", document)
    mine = str(session.commit("ours on theirs").snapshot_id)
    assert next(iter(open_reference(theirs).ancestry(branch="main"))).id == mine


class RandomHistory:
    """Commits, amendments, flushes, branches, tags and resets at random, by the reference."""

    def __init__(self, directory, seed, spec_version):
        self.random = random.Random(seed)
        self.spec_version = spec_version
        self.repository = icechunk.Repository.create(
            icechunk.local_filesystem_storage(str(directory)), spec_version=spec_version
        )
        self.snapshots = [self.repository.lookup_branch("main")]
        self.instants = []
        self.names = iter(range(1000))
        session = self.repository.writable_session("main")
        root = zarr.create_group(session.store)
        root.create_array("values", shape=(20, 300), chunks=(1, 300), dtype="u1")
        self.snapshots.append(session.commit("arrays"))

    def run(self, steps):
        choices = {self.commit: 8, self.branch: 2, self.tag: 2, self.reset: 2, self.delete: 2}
        if self.spec_version == 2:
            choices |= {self.amend: 2, self.flush: 1}
        for _ in range(steps):
            time.sleep(0.003)
            self.instants.append(datetime.now(UTC))
            time.sleep(0.003)
            self.random.choices(list(choices), list(choices.values()))[0]()

    def _session(self):
        branch = self.random.choice(sorted(self.repository.list_branches()))
        session = self.repository.writable_session(branch)
        try:
            values = zarr.open_array(session.store, path="values", mode="r+")
        except FileNotFoundError:  # the branch is on the empty root
            root = zarr.open_group(session.store, mode="a")
            values = root.create_array("values", shape=(20, 300), chunks=(1, 300), dtype="u1")
        values[self.random.randrange(20)] = self.random.randrange(1, 255)
        return session

    def commit(self):
        self.snapshots.append(self._session().commit("commit"))

    def amend(self):
        session = self._session()
        info = next(iter(self.repository.ancestry(snapshot_id=session.snapshot_id)))
        if info.parent_id is not None:
            self.snapshots.append(session.amend("amended"))

    def flush(self):
        self.snapshots.append(self._session().flush("flushed"))

    def branch(self):
        self.repository.create_branch(f"b{next(self.names)}", self.random.choice(self.snapshots))

    def tag(self):
        self.repository.create_tag(f"t{next(self.names)}", self.random.choice(self.snapshots))

    def reset(self):
        branch = self.random.choice(sorted(self.repository.list_branches()))
        self.repository.reset_branch(branch, self.random.choice(self.snapshots))

    def delete(self):
        branches = sorted(self.repository.list_branches() - {"main"})
        tags = sorted(self.repository.list_tags())
        if branches and self.random.random() < 0.6:
            self.repository.delete_branch(self.random.choice(branches))
        elif tags:
            self.repository.delete_tag(self.random.choice(tags))


@pytest.mark.parametrize(
    ("version", "seed"), [*((2, seed) for seed in range(6)), *((1, seed) for seed in range(3))]
)
def test_random_histories_are_tidied_alike(seed, version, tmp_path):
    history = RandomHistory(tmp_path / "built", seed, version)
    history.run(14)
    ours, theirs = copy_of(tmp_path / "built", "ours"), copy_of(tmp_path / "built", "theirs")
    choice = history.random
    for _ in range(3):
        cutoff = choice.choice([*history.instants, soon()])
        if choice.random() < 0.5:
            expire_both(
                ours,
                theirs,
                cutoff,
                branches=choice.random() < 0.5,
                tags=choice.random() < 0.5,
            )
        else:
            collect_both(ours, theirs, cutoff)
    collect_both(ours, theirs, soon())


def test_differences_across_pruned_history_stay_whole(tmp_path):
    built = build("linear_history", 2, tmp_path / "built")
    first, last = built.snapshots["initial"], built.snapshots["deleted"]
    repository = Repository.open(built.url)
    before = repr(repository.diff(first, last))
    theirs_before = built.open().diff(from_snapshot_id=first, to_snapshot_id=last)
    repository.expire_snapshots(soon())
    collect_garbage(built.url, soon())
    metadata_cache().clear()
    assert [str(info.id) for info in repository.ancestry(branch="main")] == [last, first]
    assert repr(Repository.open(built.url).diff(first, last)) == before
    theirs = built.open().diff(from_snapshot_id=first, to_snapshot_id=last)
    assert repr(theirs) == repr(theirs_before)


def test_whole_seconds_and_foreign_names_are_judged_alike(tmp_path):
    built = build("amended_commit", 2, tmp_path / "built")
    second = int(time.time()) - 100
    for path in built.path.rglob("*"):
        if path.is_file():
            os.utime(path, (second, second))
    for name in ("chunks/readme.txt", "chunks/zzzzzzzzzzzzzzzzzzz0", "manifests/notes"):
        (built.path / name).write_bytes(b"foreign")
        os.utime(built.path / name, (second, second))
    ours, theirs = copy_of(built.path, "ours"), copy_of(built.path, "theirs")
    start = datetime.fromtimestamp(second, UTC)
    for cutoff in (start, start + timedelta(seconds=1), start + timedelta(seconds=2)):
        collect_both(ours, theirs, cutoff)
    assert (ours / "chunks/readme.txt").exists()


def test_the_reference_collects_what_we_expired_and_the_other_way_round(tmp_path):
    built = build("expired_history", 2, tmp_path / "built")
    ours, theirs = copy_of(built.path, "ours"), copy_of(built.path, "theirs")
    Repository.open(str(ours)).expire_snapshots(soon(), delete_expired_tags=True)
    open_reference(theirs).expire_snapshots(soon(), delete_expired_tags=True)
    open_reference(ours).garbage_collect(soon())
    collect_garbage(str(theirs), soon())
    assert_same(ours, theirs)
    for directory in (ours, theirs):
        store = open_reference(directory).readonly_session("main").store
        assert np.all(zarr.open_array(store, path="t2m", mode="r")[0] == 5)


def test_the_reference_reads_a_write_during_which_its_base_expired(tmp_path):
    """The reference itself fails here where a pruned log creates the array."""
    theirs = reference_repository(tmp_path)
    session = theirs.writable_session("main")
    array = zarr.create_group(session.store).create_array("a", shape=(9,), chunks=(1,), dtype="i4")
    array[:] = 1
    session.commit("array")
    long = Repository.open(str(tmp_path)).writable_session()
    for number in range(2):
        session = theirs.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[number] = 7
        session.commit(f"{number}")
    theirs.expire_snapshots(soon())
    long.delete_chunks("/a", [[5]])
    long.commit("long")
    found = open_reference(tmp_path).readonly_session("main").store
    assert zarr.open_array(found, path="a", mode="r")[:].tolist() == [7, 7, 1, 1, 1, 0, 1, 1, 1]
