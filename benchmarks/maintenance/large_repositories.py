"""Opens, commits to and rebases on repositories of 100,000 nodes, or 10,000 snapshots.

The repository of 10,000 snapshots has 1,000 branches. In a third one of 4,000 snapshots, only 2,000
tagged snapshots have not expired, and the number of their recorded former ancestors grows with the
square of the number of tags. Every round runs in a new process on its own copy, so nothing is
cached. This project's encoders write the long histories: only the first and the newest snapshot
have files, since commits read no others.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, Timing, in_fresh_process, peak_memory_mb, row

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.repository import Repository
from icechunk_format.repository.lifecycle.expire import expire
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "large"
_ARRAYS_IN_A_GROUP = 1000
_PAYLOAD = b"chunk" * 200
_LATER_COMMITS = 5
_GOAL = "<= 2 x, ratio >= 0.5"


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
    return rows + compared(folder / "expired", case, steps_of_history, options, goal)


def compared(
    base: Path,
    case: str,
    steps: Callable[[str, str], dict[str, float]],
    options: Namespace,
    goal: str,
) -> list[Row]:
    """Run the same steps with both libraries in turn, each in a new process.

    Memory excludes Python and its imports.
    """
    whos = ("this library", "reference")
    paths = {}
    for who in whos:
        paths[who] = base.with_name(f"{base.name}-{who.split()[0]}")
        shutil.copytree(base, paths[who])
    seconds: dict[str, list[float]] = {}
    peaks = dict.fromkeys(whos, 0.0)
    for turn in range(max(2, options.rounds)):
        for who in whos[:: 1 if turn % 2 else -1]:
            done = in_fresh_process(steps, who, str(paths[who]))
            peaks[who] = max(peaks[who], done.peak_mb - done.value.pop("imports_mb"))
            for step, took in done.value.items():
                seconds.setdefault(f"{case}: {step}, {who}", []).append(took)
    timings = {name: Timing(wall=wall, cpu=[], value=None) for name, wall in seconds.items()}
    rows = []
    for name in timings:
        step, _, who = name.rpartition(", ")
        is_ours = who == "this library"
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


def _opened(who: str, path: str) -> tuple[Ours | Theirs, dict[str, float]]:
    """Return the repository, the seconds that this took, and the memory before it."""
    if who == "reference":
        # Imports take longer than what is measured.
        import icechunk  # noqa: F401
        import zarr  # noqa: F401
    imports_mb = peak_memory_mb()
    started = time.perf_counter()
    opened = Ours(path) if who == "this library" else Theirs(path)
    return opened, {"imports_mb": imports_mb, "open": time.perf_counter() - started}


def _timed(act: Callable[..., None], *arguments: Any) -> float:
    started = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - started


def steps_of_nodes(who: str, path: str) -> dict[str, float]:
    """Open, commit a chunk, and commit another one that began at the same snapshot."""
    opened, found = _opened(who, path)
    return {**found, "commit": _timed(opened.commit, 0), "rebase": _timed(opened.commit, 1)}


def steps_of_history(who: str, path: str) -> dict[str, float]:
    """Open, list all snapshots of a branch, commit, and commit several times more."""
    opened, found = _opened(who, path)
    return {
        **found,
        "ancestry": _timed(opened.list_ancestry),
        "first commit": _timed(opened.commit, 0),
        "next commits": median(_timed(opened.commit_again) for _ in range(_LATER_COMMITS)),
    }
