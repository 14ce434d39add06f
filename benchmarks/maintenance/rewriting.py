"""Rewrites manifests after a thousand appends, and copies a repository.

There is a manifest for each append, as with rules that split manifests by appended steps. New rules
require one manifest. One more append and a read of all cells are timed with a thousand manifests
and after the rewrite. The reference does the same on copies of the same folder. The copy of a
repository is compared with a copy of its folder, which verifies nothing.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import zarr
from measurement import Row

from icechunk_format.maintenance import copy, rewrite_manifests
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "rewrite"
_WIDTH = 32
_CHUNK = 1 << 20
_ONE_EACH = [["any_array", [{"condition": {"Axis": 0}, "num_chunks": 1}]]]


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    steps = max(50, round(1_000 * options.scale))
    many = folder / "many"
    build_appended(many, steps)
    timings = Timings(folder, options.rounds)
    ours, theirs = "rewrite", "reference, rewrite_manifests"
    timings.of(many, {ours: rewrite_once, theirs: reference_rewrite})
    few = folder / "few"
    shutil.copytree(many, few)
    done = rewrite_once(few)
    steps_of = {"commit": append_once, "reference, commit": reference_append}
    reads = {"read all": read_all, "reference, read all": reference_read}
    for place, when in ((many, "before"), (few, "after")):
        timings.of(place, {f"{name}, {when}": does for name, does in (steps_of | reads).items()})
    figures: dict[str, float | int | str] = {
        "appends": steps,
        "refs": steps * _WIDTH,
        "manifests_before": done.manifests_before,
        "manifests_after": done.manifests_after,
    }
    rows = [timings.row(ours, versus=theirs, figures=figures), timings.row(theirs)]
    for name in (*steps_of, *reads):
        rows.append(timings.row(f"{name}, after", versus=f"{name}, before"))
        rows.append(timings.row(f"{name}, before"))
    return rows + copies(folder, options)


class Timings:
    """The seconds of functions that change a repository; each call gets its own copy, untimed."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._folder = folder / "copy"
        self._rounds = rounds
        self._wall: dict[str, list[float]] = {}

    def of(self, source: Path, cases: dict[str, Callable[[Path], Any]]) -> None:
        for _ in range(self._rounds):
            for name, does in cases.items():
                shutil.copytree(source, self._folder)
                metadata_cache().clear()
                started = time.perf_counter()
                does(self._folder)
                self._wall.setdefault(name, []).append(time.perf_counter() - started)
                shutil.rmtree(self._folder)

    def row(self, case: str, versus: str = "", **fields: Any) -> Row:
        own = self._wall[case]
        made = Row(benchmark=BENCHMARK, case=case, wall_s=statistics.median(own), **fields)
        if versus:
            pairs = zip(self._wall[versus], own, strict=True)
            made.versus = versus
            made.ratio = statistics.median(other / mine for other, mine in pairs)
        return made


# -- appends ---------------------------------------------------------------------------------


def build_appended(path: Path, steps: int) -> None:
    """Write the state after many appends: a manifest for each row of chunks."""
    repository = Repository.create(str(path))
    repository.update_config({"manifest": {"splitting": {"split_sizes": _ONE_EACH}}})
    session = repository.writable_session()
    session.create_group("/", json.dumps({"zarr_format": 3, "node_type": "group"}).encode())
    session.create_array(
        "/a", _document(steps + 10), shape=(steps + 10, _WIDTH), num_chunks=(steps + 10, _WIDTH)
    )
    session.commit("create")
    session = repository.writable_session()
    at = np.stack(np.divmod(np.arange(steps * _WIDTH), _WIDTH), axis=1)
    session.set_chunks("/a", at, [bytes([int(step) % 251 + 1]) for step in at[:, 0]])
    session.commit("what so many appends leave behind")
    repository.update_config({"manifest": {"splitting": None}})


def append(repository: Repository, step: int) -> None:
    session = repository.writable_session()
    at = np.stack([np.full(_WIDTH, step), np.arange(_WIDTH)], axis=1)
    session.set_chunks("/a", at, [bytes([step % 251 + 1])] * _WIDTH)
    session.commit(f"step {step}")


def append_once(path: Path) -> None:
    repository = Repository.open(str(path))
    append(repository, repository.snapshot(repository.resolve()).node("/a").array.shape[0] - 1)


def reference_append(path: Path) -> None:
    session = _reference(path).writable_session("main")
    zarr.open_array(session.store, path="a", mode="a")[-1] = 1
    session.commit("one more")


def rewrite_once(path: Path) -> Any:
    return rewrite_manifests(str(path))


def reference_rewrite(path: Path) -> None:
    _reference(path).rewrite_manifests("rewrite", branch="main")


def read_all(path: Path) -> int:
    repository = Repository.open(str(path))
    dataset = open_dataset(repository, repository.resolve(), "/")
    table = dataset.table("summary", block={"dim_0": 10_000, "dim_1": 10_000})
    plan = dataset.plan(table, columns=["a_sum"])
    return sum(batch.num_rows for task in plan.tasks for batch in run_scan(plan.context, task))


def reference_read(path: Path) -> int:
    session = _reference(path).readonly_session("main")
    return int(zarr.open_array(session.store, path="a", mode="r")[:].sum())


def _reference(path: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def _document(rows: int) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, _WIDTH],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


# -- copies ----------------------------------------------------------------------------------


def copies(folder: Path, options: Namespace) -> list[Row]:
    count = max(8, round(256 * options.scale))
    source = folder / "source"
    repository = Repository.create(str(source))
    session = repository.writable_session()
    session.create_group("/", json.dumps({"zarr_format": 3, "node_type": "group"}).encode())
    session.create_array("/a", _document(count), shape=(count, _WIDTH), num_chunks=(count, _WIDTH))
    payload = np.random.default_rng(1).integers(0, 256, _CHUNK, dtype=np.uint8).tobytes()
    session.set_chunks("/a", [[n, 0] for n in range(count)], [payload] * count)
    session.commit("chunks of 1 MiB")
    cases: dict[str, Callable[[Path], Any]] = {
        "copy": partial(_copied, source),
        "copy again": partial(_copied, source),
        "copy the folder": partial(shutil.copytree, source),
    }
    wall: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name in ("copy the folder", "copy"):
            target = folder / "target"
            started = time.perf_counter()
            cases[name](target)
            wall[name].append(time.perf_counter() - started)
            if name == "copy":
                (target / "repo").unlink()  # as if it had been interrupted at the very end
                started = time.perf_counter()
                cases[name](target)
                wall["copy again"].append(time.perf_counter() - started)
            shutil.rmtree(target)
    rows = []
    for name, seconds in wall.items():
        median = statistics.median(seconds)
        made = Row(
            benchmark=BENCHMARK,
            case=name,
            wall_s=median,
            figures={"MB_per_s": round(count * _CHUNK / 1e6 / median)},
        )
        if name == "copy":
            pairs = zip(wall["copy the folder"], seconds, strict=True)
            made.versus = "copy the folder"
            made.ratio = statistics.median(other / mine for other, mine in pairs)
        rows.append(made)
    return rows


def _copied(source: Path, target: Path) -> None:
    copy(str(source), str(target))
