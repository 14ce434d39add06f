"""Scans a whole ERA5-like array through Spark.

``spark.read.format("icechunk").load(path)`` runs in a registered session, and in an unregistered
one, where the data source reads. Limits: prebuilt batches of the same columns, as many rows in as
many partitions, sent by ``mapInArrow`` and by a Python data source; the difference between the two
is Spark's own. Peer: the reference library and zarr-python inside ``mapInArrow``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import FreshRun, Row, in_fresh_process, interleaved, row
from peers.repositories import build_grid
from peers.rivals import (
    FIELDS,
    NullSource,
    null_frame,
    null_frame_in_map,
    reference_batches,
    reference_frame,
)
from pyspark.sql import functions as F

import icechunk_spark

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from peers.repositories import Grid
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "scan"
COLUMNS = [field.name for field in FIELDS]
FEW = ["latitude", "t2m"]
FEW_DDL = "latitude double, t2m float"

SOURCE_LIMIT = "null source"
MAP_LIMIT = "null batches in mapInArrow"
BY_SOURCE = "data source"
BY_VIEW = "view"
PEER = "reference in mapInArrow"
FEW_KIND = "noop of 2 columns"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    grid = build_grid(folder, options.scale)
    spark.dataSource.register(NullSource)
    unregistered = spark.newSession()
    loads = {name: load(spark, grid, name) for name in grid.layouts}
    sources = {name: load(unregistered, grid, name) for name in grid.layouts}
    tasks = task_count(grid)
    size: dict[str, Any] = {"rows": grid.cells, "partitions": tasks}
    peers = {
        name: reference_frame(spark, grid.path, name, boxes(grid, name, tasks))
        for name in grid.layouts
    }
    check_values([*loads.values(), *sources.values(), *peers.values()], grid)
    limit = null_frame(spark, **size, columns=COLUMNS)
    map_limit = null_frame_in_map(spark, **size, columns=COLUMNS)
    few: dict[str, DataFrame] = {
        SOURCE_LIMIT: null_frame(spark, **size, columns=FEW),
        MAP_LIMIT: null_frame_in_map(spark, **size, columns=FEW),
        "planes": load(spark, grid, "planes", FEW_DDL),
        f"planes, {BY_SOURCE}": load(unregistered, grid, "planes", FEW_DDL),
    }
    frames = {SOURCE_LIMIT: limit, MAP_LIMIT: map_limit}
    for name in grid.layouts:
        frames[name] = loads[name]
        frames[f"{name}, {BY_SOURCE}"] = sources[name]
        frames[f"{name}, {PEER}"] = peers[name]
    icechunk_spark.view(spark, "planes", grid.path, group="planes")
    frames[f"planes, {BY_VIEW}"] = spark.table("planes")
    scans: dict[str, Any] = {
        f"noop: {name}": lambda frame=frame: drain(frame) for name, frame in frames.items()
    }
    for name in (SOURCE_LIMIT, MAP_LIMIT, "planes", f"planes, {BY_SOURCE}", f"planes, {PEER}"):
        scans[f"avg: {name}"] = lambda frame=frames[name]: mean(frame)
    for name, frame in few.items():
        scans[f"{FEW_KIND}: {name}"] = lambda frame=frame: drain(frame)
    timings = interleaved(scans, rounds=options.rounds, warm_up=options.scale >= 0.1)
    alone: dict[str, FreshRun] = {}
    for name in grid.layouts if options.memory else ():
        alone[f"noop: {name}"] = in_fresh_process(
            run_all_tasks, grid.path, name, imports=("icechunk_format.tables.dataset",)
        )
        alone[f"noop: {name}, {PEER}"] = in_fresh_process(
            read_with_reference,
            grid.path,
            name,
            boxes(grid, name, tasks),
            imports=("icechunk", "zarr"),
        )
    rows = []
    for case, timing in timings.items():
        kind, _, contestant = case.partition(": ")
        is_limit = contestant in (SOURCE_LIMIT, MAP_LIMIT)
        limit_of_way = SOURCE_LIMIT if contestant.endswith(BY_SOURCE) else MAP_LIMIT
        figures: dict[str, Any] = {"Mrows_per_s": round(grid.cells / timing.wall_s / 1e6, 2)}
        if case in alone:
            rate = grid.cells / alone[case].cpu_s / 1e6
            figures["Mrows_per_cpu_s_without_spark"] = round(rate, 1)
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus="" if is_limit else f"{kind}: {limit_of_way}",
                peak_mb=alone[case].peak_mb if case in alone else None,
                goal="" if is_limit or contestant.endswith((PEER, BY_VIEW)) else "ratio >= 0.9",
                figures=figures,
            )
        )
    rows += [
        row(
            BENCHMARK,
            f"{kind}: {name}",
            timings,
            versus=f"{kind}: {name}, {PEER}",
            goal="ratio >= 1",
        )
        for kind, names in (("noop", grid.layouts), ("avg", ["planes"]))
        for name in names
    ]
    rows.append(
        row(
            BENCHMARK,
            f"noop: planes, {BY_VIEW}",
            timings,
            versus="noop: planes",
            goal="ratio >= 0.6",
        )
    )
    rows += [
        row(
            BENCHMARK,
            f"{FEW_KIND}: planes{way}",
            timings,
            versus=f"noop: planes{way}",
            goal="ratio >= 1.6",
        )
        for way in ("", f", {BY_SOURCE}")
    ]
    return rows


def load(spark: SparkSession, grid: Grid, group: str, ddl: str | None = None) -> DataFrame:
    reader = spark.read.format("icechunk").option("group", group)
    return (reader if ddl is None else reader.schema(ddl)).load(grid.path)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def mean(frame: DataFrame) -> float:
    return frame.agg(F.avg("t2m")).first()[0]


def check_values(frames: list[DataFrame], grid: Grid) -> None:
    """Check that all contestants read the same cells; this also warms up Spark."""
    want = ["count(1)", "avg(t2m)", "sum(latitude * longitude)", "max(unix_micros(time))"]
    casts = [w.replace("(time)", "(cast(time as timestamp))") for w in want]
    seen = [frame.selectExpr(*casts).first() for frame in frames]
    if seen[0][0] != grid.cells or not all(np.allclose(s, seen[0], rtol=1e-9) for s in seen):
        raise AssertionError(f"the contestants read different cells: {seen}")


def boxes(grid: Grid, group: str, tasks: int) -> list[tuple[slice, ...]]:
    """Divide the grid along chunks, for the reference reader."""
    chunks = grid.layouts[group][0]
    axis = 0 if chunks[0] < grid.shape[0] else 1
    size, step = grid.shape[axis], chunks[axis]
    edges = np.linspace(0, size // step, min(tasks, max(1, size // step)) + 1).round().astype(int)
    edges = [*(edges[:-1] * step).tolist(), size]
    whole = [slice(0, n) for n in grid.shape]
    return [
        (*whole[:axis], slice(first, last), *whole[axis + 1 :])
        for first, last in itertools.pairwise(edges)
    ]


def plan_of(path: str, group: str, **options: Any) -> Any:
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset

    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve(branch="main"), group)
    return dataset.plan(dataset.table(), **options)


def task_count(grid: Grid) -> int:
    return len(plan_of(grid.path, "planes").tasks)


def run_all_tasks(path: str, group: str) -> int:
    """Run the tasks of a scan one after another, and count their rows."""
    from icechunk_format.tables.reading import run_scan

    plan = plan_of(path, group)
    return sum(b.num_rows for task in plan.tasks for b in run_scan(plan.context, task))


def read_with_reference(path: str, group: str, parts: list[tuple[slice, ...]]) -> int:
    """Do the same with the reference library."""
    bounds = [[(part.start, part.stop) for part in box] for box in parts]
    return sum(b.num_rows for box in bounds for b in reference_batches(path, group, box))
