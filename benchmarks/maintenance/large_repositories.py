"""Opens, commits to and rebases on repositories of 100,000 nodes, or 10,000 snapshots.

The repository of 10,000 snapshots has 1,000 branches. In a third one of 4,000 snapshots, only 2,000
tagged snapshots have not expired, and the number of their recorded former ancestors grows with the
square of the number of tags. In a fourth, with 10,000 snapshots, 1,000 branches and as many tags,
refs are listed and made, snapshots expire, and their files are collected; there a branch is merged
as well, which the reference cannot. Every round runs in a new process on a new copy, so nothing is
cached. This project's encoders write the long histories: only the first and the newest snapshot
have files that can be read, since the steps read no others.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, Timing, in_fresh_process, peak_memory_mb, row

from icechunk_format import Repository
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.maintenance import collect_garbage
from icechunk_format.repository.lifecycle.expire import expire
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from pyspark.sql import SparkSession

BENCHMARK = "large"
_ARRAYS_IN_A_GROUP = 1000
_PAYLOAD = b"chunk" * 200
_LATER_COMMITS = 5
_GOAL = "<= 2 x, ratio >= 0.5"
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
Took = tuple[float, float]
"""Seconds by the clock, and of processors."""


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    nodes = max(100, round(100_000 * options.scale))
    snapshots, branches = max(50, nodes // 10), max(5, nodes // 100)
    write_nodes(folder / "nodes", nodes)
    write_history(folder / "history", snapshots, branches)
    case = f"{nodes:,} nodes"
    rows = compared(
        folder / "nodes", case, steps_of_nodes, options, f"{_GOAL}, <= 200 MB beyond imports"
    )
    case = f"{snapshots:,} snapshots, {branches:,} branches"
    rows += compared(folder / "history", case, steps_of_history, options, _GOAL)
    tags = write_expired(folder / "expired", max(50, snapshots * 2 // 5))
    case = f"{tags:,} tags kept by an expiry"
    goal = f"{_GOAL}, <= 1.2 x in bytes of repo"
    rows += compared(folder / "expired", case, steps_of_history, options, goal)
    # The reference's expiry of 100,000 snapshots with 10,000 branches and tags does not end in five
    # minutes, and this library's takes three seconds.
    refs = min(branches, 1000)
    write_kept(folder / "kept", snapshots, refs)
    case = f"{snapshots:,} snapshots, {refs:,} branches and tags"
    return rows + compared(folder / "kept", case, steps_of_maintenance, options, _GOAL)


def compared(
    base: Path,
    case: str,
    steps: Callable[[str, str], tuple[float, dict[str, Took]]],
    options: Namespace,
    goal: str,
) -> list[Row]:
    """Run the same steps with both libraries in turn, each in a new process on a new copy.

    Memory excludes Python and its imports.
    """
    whos = ("this library", "reference")
    paths = {who: base.with_name(f"{base.name}-{who.split()[0]}") for who in whos}
    timings: dict[str, Timing] = {}
    peaks = dict.fromkeys(whos, 0.0)
    for turn in range(max(2, options.rounds)):
        for who in whos[:: 1 if turn % 2 else -1]:
            shutil.rmtree(paths[who], ignore_errors=True)
            shutil.copytree(base, paths[who])
            done = in_fresh_process(steps, who, str(paths[who]))
            imports_mb, found = done.value
            peaks[who] = max(peaks[who], done.peak_mb - imports_mb)
            for step, (wall, cpu) in found.items():
                name = f"{case}: {step}, {who}"
                timing = timings.setdefault(name, Timing(wall=[], cpu=[], value=None))
                timing.wall.append(wall)
                timing.cpu.append(cpu)
    rows = []
    for name in timings:
        step, _, who = name.rpartition(", ")
        is_ours = who == "this library" and f"{step}, reference" in timings
        rows.append(
            row(
                BENCHMARK,
                name,
                timings,
                versus=f"{step}, reference" if is_ours else "",
                goal=goal if is_ours else "",
                peak_mb=peaks[who],
                figures={"repo_bytes": (paths[who] / "repo").stat().st_size},
            )
        )
    return rows


# -- repositories ----------------------------------------------------------------------------------


def write_nodes(path: Path, count: int) -> None:
    """Write a repository of different arrays in groups of a thousand."""
    repository = Repository.create(str(path))
    session = repository.writable_session()
    group = build_group_metadata().to_bytes()
    session.create_group("/", group)
    for number in range(count):
        above = f"/g{number // _ARRAYS_IN_A_GROUP:03}"
        if number % _ARRAYS_IN_A_GROUP == 0:
            session.create_group(above, group)
        document = build_array_metadata(
            shape=(1000 + number, 180),
            data_type=data_type_from_numpy(np.dtype("f4")),
            chunk_shape=(1000, 90),
            dimension_names=["time", "x"],
            attributes={"long_name": f"variable {number}", "units": "K"},
        )
        session.create_array(
            f"{above}/v{number % _ARRAYS_IN_A_GROUP:03}",
            document.to_bytes(),
            shape=(1000 + number, 180),
            num_chunks=(-(-(1000 + number) // 1000), 2),
            dimension_names=["time", "x"],
        )
    session.commit("all nodes")


def write_history(path: Path, snapshots: int, branches: int) -> None:
    """Write a repository of one array, with this many snapshots before the newest."""
    write_nodes(path, 1)
    file = path / "repo"
    info = repo_info.decode(file.read_bytes())
    newest = info.snapshots[info.branches["main"]]
    assert newest.parent_id is not None
    first = info.snapshots[newest.parent_id]
    listed = {first.id: replace(first, flushed_at=0)}
    parent_id = first.id
    for number in range(1, snapshots):
        own = SnapshotId(number.to_bytes(4, "little") * 3)
        listed[own] = repo_info.SnapshotInfo(
            id=own,
            parent_id=parent_id,
            flushed_at=number,
            message=f"append day {number}",
            metadata_items=MetadataItems.of({"job": "daily", "rows": number}),
        )
        parent_id = own
    ids = list(listed)
    listed[newest.id] = replace(newest, parent_id=parent_id)
    names = {f"branch-{number}": ids[number % len(ids)] for number in range(branches - 1)}
    described = replace(info, snapshots=listed, branches={**names, **info.branches})
    file.write_bytes(repo_info.encode(described))


def write_expired(path: Path, snapshots: int) -> int:
    """Write a history with a tag on every second snapshot, and expire it; return their number."""
    write_history(path, snapshots, 1)
    file = path / "repo"
    info = repo_info.decode(file.read_bytes())
    tagged = [snapshot.id for snapshot in info.ancestry(info.branches["main"])][1::2]
    tags = {f"tag-{number}": snapshot_id for number, snapshot_id in enumerate(tagged)}
    done, _ = expire(replace(info, tags=tags), snapshots)
    file.write_bytes(repo_info.encode(done.info))
    return len(tags)


def write_kept(path: Path, snapshots: int, refs: int) -> None:
    """Write a history of branches and tags, with a small file in the place of old snapshots."""
    write_history(path, snapshots, refs)
    file = path / "repo"
    info = repo_info.decode(file.read_bytes())
    newest = info.branches["main"]
    root = min(info.snapshots.values(), key=lambda one: one.flushed_at).id
    ids = list(info.snapshots)
    tags = {f"tag-{number}": ids[-1 - number % len(ids)] for number in range(refs)}
    file.write_bytes(repo_info.encode(replace(info, tags=tags)))
    for snapshot_id in info.snapshots.keys() - {newest, root}:
        (path / "snapshots" / str(snapshot_id)).write_bytes(_PAYLOAD)


# -- timed steps -----------------------------------------------------------------------------------


class Ours:
    """A repository and two sessions of this library."""

    def __init__(self, path: str) -> None:
        self.repository = Repository.open(path)
        self.sessions = [self.repository.writable_session() for _ in range(2)]
        if self.sessions[0].node("/g000/v000") is None:
            raise AssertionError("the array is not there")

    def commit(self, number: int) -> None:
        self.sessions[number].set_chunk("/g000/v000", [0, number], _PAYLOAD)
        self.sessions[number].commit("a chunk")

    def commit_again(self) -> None:
        self.sessions[0] = self.repository.writable_session()
        self.commit(0)

    def list_ancestry(self) -> None:
        assert len([*self.repository.ancestry(branch="main")]) > 1

    def list_refs(self) -> None:
        assert self.repository.branches()
        assert self.repository.tags()

    def create_tag(self) -> None:
        self.repository.create_tag("made", self.repository.resolve(branch="main"))

    def commit_to_branch(self) -> None:
        self.repository.create_branch("made", self.repository.resolve(branch="main"))
        session = self.repository.writable_session("made")
        session.set_chunk("/g000/v000", [0, 1], _PAYLOAD[::-1])
        session.commit("a chunk of a branch")

    def merge(self) -> None:
        self.commit_again()
        assert self.repository.merge("made", into="main").commit is not None

    def expire(self, cutoff: datetime, *, with_refs: bool = False) -> None:
        done = self.repository.expire_snapshots(
            cutoff, delete_expired_branches=with_refs, delete_expired_tags=with_refs
        )
        assert done.released_snapshots

    def collect(self) -> None:
        assert collect_garbage(self.repository.location, datetime.now(UTC)).snapshots_deleted


class Theirs:
    """The same of the reference."""

    def __init__(self, path: str) -> None:
        import icechunk

        storage = icechunk.local_filesystem_storage(path)
        self.repository = icechunk.Repository.open(storage)
        self.sessions = [self.repository.writable_session("main") for _ in range(2)]
        if self._get("g000/v000/zarr.json") is None:
            raise AssertionError("the array is not there")

    def _get(self, key: str) -> Any:
        from zarr.core.buffer import default_buffer_prototype
        from zarr.core.sync import sync

        return sync(self.sessions[0].store.get(key, default_buffer_prototype()))

    def commit(self, number: int) -> None:
        import icechunk
        from zarr.core.buffer import cpu
        from zarr.core.sync import sync

        session = self.sessions[number]
        sync(session.store.set(f"g000/v000/c/0/{number}", cpu.Buffer.from_bytes(_PAYLOAD)))
        session.commit("a chunk", rebase_with=icechunk.ConflictDetector())

    def commit_again(self) -> None:
        self.sessions[0] = self.repository.writable_session("main")
        self.commit(0)

    def list_ancestry(self) -> None:
        assert len([*self.repository.ancestry(branch="main")]) > 1

    def list_refs(self) -> None:
        assert self.repository.list_branches()
        assert self.repository.list_tags()

    def create_tag(self) -> None:
        self.repository.create_tag("made", self.repository.lookup_branch("main"))

    def commit_to_branch(self) -> None:
        from zarr.core.buffer import cpu
        from zarr.core.sync import sync

        self.repository.create_branch("made", self.repository.lookup_branch("main"))
        session = self.repository.writable_session("made")
        sync(session.store.set("g000/v000/c/0/1", cpu.Buffer.from_bytes(_PAYLOAD[::-1])))
        session.commit("a chunk of a branch")

    def expire(self, cutoff: datetime, *, with_refs: bool = False) -> None:
        done = self.repository.expire_snapshots(
            cutoff, delete_expired_branches=with_refs, delete_expired_tags=with_refs
        )
        assert done

    def collect(self) -> None:
        assert self.repository.garbage_collect(datetime.now(UTC)).snapshots_deleted


class Timed:
    """An opened repository, and the seconds of each step with it."""

    def __init__(self, who: str, path: str) -> None:
        if who == "reference":
            # Imports take longer than what is measured.
            import icechunk  # noqa: F401
            import zarr  # noqa: F401
        self.imports_mb = peak_memory_mb()
        self.took: dict[str, Took] = {}
        started, cpu = time.perf_counter(), time.process_time()
        self.opened = Ours(path) if who == "this library" else Theirs(path)
        self.took["open"] = time.perf_counter() - started, time.process_time() - cpu

    def step(self, name: str, act: Callable[..., None], *arguments: Any, **named: Any) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        act(*arguments, **named)
        self.took[name] = time.perf_counter() - started, time.process_time() - cpu

    @property
    def result(self) -> tuple[float, dict[str, Took]]:
        return self.imports_mb, self.took


def steps_of_nodes(who: str, path: str) -> tuple[float, dict[str, Took]]:
    """Open, commit a chunk, and commit another one that began at the same snapshot."""
    timed = Timed(who, path)
    timed.step("commit", timed.opened.commit, 0)
    timed.step("rebase", timed.opened.commit, 1)
    return timed.result


def steps_of_history(who: str, path: str) -> tuple[float, dict[str, Took]]:
    """Open, list all snapshots of a branch, commit, and commit several times more."""
    timed = Timed(who, path)
    timed.step("ancestry", timed.opened.list_ancestry)
    timed.step("first commit", timed.opened.commit, 0)
    later = []
    for _ in range(_LATER_COMMITS):
        timed.step("next commits", timed.opened.commit_again)
        later.append(timed.took["next commits"])
    wall, cpu = zip(*later, strict=True)
    timed.took["next commits"] = median(wall), median(cpu)
    return timed.result


def steps_of_maintenance(who: str, path: str) -> tuple[float, dict[str, Took]]:
    """List and make refs, rebase, merge, expire, and collect the files of what expired.

    Half of the history expires first, then all of it with its branches and tags.
    """
    timed = Timed(who, path)
    opened = timed.opened
    snapshots = sum(1 for _ in (Path(path) / "snapshots").iterdir())
    timed.step("list refs", opened.list_refs)
    timed.step("create a tag", opened.create_tag)
    opened.commit(0)
    timed.step("rebase", opened.commit, 1)
    timed.step("create a branch and commit to it", opened.commit_to_branch)
    if isinstance(opened, Ours):
        timed.step("commit and merge", opened.merge)
    half = _FIRST + timedelta(microseconds=snapshots // 2)
    timed.step("expire half", opened.expire, half)
    day = _FIRST + timedelta(days=1)
    timed.step("expire with branches and tags", opened.expire, day, with_refs=True)
    timed.step("collect", opened.collect)
    return timed.result
