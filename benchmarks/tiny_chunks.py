"""Ten thousand tiny chunks, inline and native: what a chunk costs beyond its bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from full_scan import drain, plan_of
from measurement import Row, interleaved, memory_of, row
from repositories import build_tiny_chunks, open_reference_group
from rivals import reference_rows_frame

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "tiny-chunks"
GOAL = "ratio >= 5"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    tiny = build_tiny_chunks(folder, options.scale)
    cases: dict[str, Any] = {}
    for kind in tiny.widths:
        cases[f"{kind}, tasks in this process"] = partial(run_tasks, tiny.path, kind)
        cases[f"{kind}, zarr-python"] = partial(read_with_zarr, tiny.path, kind)
        cases[f"{kind}, zarr-python, concurrency 128"] = partial(
            read_with_zarr, tiny.path, kind, 128
        )
    for kind, width in tiny.widths.items():
        if not np.isclose(
            cases[f"{kind}, tasks in this process"](), cases[f"{kind}, zarr-python"]()
        ):
            raise AssertionError(f"the contestants read different values of {kind} chunks")
        partitions = len(plan_of(tiny.path, kind).tasks)
        ours = spark.read.format("icechunk").option("group", kind).load(tiny.path)
        theirs = reference_rows_frame(spark, tiny.path, kind, tiny.chunks, partitions)
        if not ours.count() == theirs.count() == tiny.chunks * width:
            raise AssertionError(f"the contestants read different rows of {kind} chunks")
        cases[f"{kind}, Spark"] = partial(drain, ours)
        cases[f"{kind}, Spark, reference in mapInArrow"] = partial(drain, theirs)
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    memory = {
        f"{kind}, {name}": memory_of(options.memory, function, tiny.path, kind)
        for kind in tiny.widths
        for name, function in (
            ("tasks in this process", run_tasks),
            ("zarr-python", read_with_zarr),
        )
    }
    rivals = {
        ", tasks in this process": (", zarr-python", GOAL),
        ", zarr-python, concurrency 128": (", zarr-python", ""),
        ", Spark": (", Spark, reference in mapInArrow", "ratio >= 1"),
    }
    rows = []
    for case, timing in timings.items():
        kind, comma, which = case.partition(",")
        rival, goal = rivals.get(comma + which, ("", ""))
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus=kind + rival if rival else "",
                goal=goal,
                peak_mb=memory.get(case),
                figures={"us_per_chunk": round(timing.wall_s / tiny.chunks * 1e6, 1)},
            )
        )
    return rows


def run_tasks(path: str, group: str) -> float:
    """Open the repository afresh, run every task and add up the values."""
    from icechunk_format.dataset.scan import run_task
    from icechunk_format.repository.objects import metadata_cache

    metadata_cache().clear()
    plan = plan_of(path, group)
    return sum(
        float(batch.column("v").to_numpy().sum(dtype="f8"))
        for task in plan.tasks
        for batch in run_task(plan.context, task)
    )


def read_with_zarr(path: str, group: str, concurrency: int | None = None) -> float:
    """Open the repository afresh and add up the whole array."""
    import zarr

    with zarr.config.set({"async.concurrency": concurrency} if concurrency else {}):
        return float(open_reference_group(path, group)["v"][:].sum(dtype="f8"))
