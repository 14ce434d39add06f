"""Compares typical analyses of an array in Spark with xarray and the reference on the same cores.

A Spark job has a fixed cost. A job with the same number of empty tasks measures it in the same run,
and the comparison excludes it. The tasks also run sequentially in this process, without Spark.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, memory_of, row, row_beyond
from peers.repositories import build_grid, reference_store
from peers.rivals import NullSource, null_frame
from pyspark.sql import functions as F
from reading.full_scan import plan_of

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from peers.repositories import Grid
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "analyses"
GROUP = "planes"
QUESTIONS = ("cells above the 99.9th percentile", "mean of all cells", "series of 6-hour means")
GOALS = {
    "cells above the 99.9th percentile": "<= 1.5 x, ratio >= 0.67",
    "mean of all cells": "<= 1.2 x, ratio >= 0.83",
    "series of 6-hour means": "<= 1.2 x, ratio >= 0.83",
}


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    grid = build_grid(folder, options.scale)
    spark.dataSource.register(NullSource)
    bound = percentile(grid)
    ours = {
        QUESTIONS[0]: partial(extremes, spark, grid, bound),
        QUESTIONS[1]: partial(mean, spark, grid),
        QUESTIONS[2]: partial(series, spark, grid),
    }
    theirs = {
        QUESTIONS[0]: partial(extremes_with_xarray, grid.path, bound),
        QUESTIONS[1]: partial(mean_with_xarray, grid.path),
        QUESTIONS[2]: partial(series_with_xarray, grid.path),
    }
    for question in QUESTIONS:
        if not np.allclose(ours[question](), theirs[question](), rtol=1e-5):
            raise AssertionError(f"the contestants answer differently: {question}")
    tasks = len(plan_of(grid.path, GROUP).tasks)
    cases: dict[str, Any] = {}
    for question in QUESTIONS:
        cases[f"{question}, empty tasks"] = partial(ask_nothing, spark, question, tasks)
        cases[f"{question}, Spark"] = ours[question]
        cases[f"{question}, tasks in this process"] = partial(run_tasks, grid.path, question, bound)
        cases[f"{question}, xarray"] = theirs[question]
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    rows: list[Row] = []
    for question in QUESTIONS:
        rows.append(
            row_beyond(
                BENCHMARK,
                f"{question}, Spark",
                timings,
                f"{question}, xarray",
                f"{question}, empty tasks",
                goal=GOALS[question],
                figures={"tasks": tasks},
            )
        )
        alone = f"{question}, tasks in this process"
        rows.append(
            row(
                BENCHMARK,
                alone,
                timings,
                versus=f"{question}, xarray",
                goal=GOALS[question],
                peak_mb=memory_of(options.memory, run_tasks, grid.path, question, bound),
            )
        )
        peak = memory_of(options.memory, _ask_xarray, question, grid.path, bound)
        rows.append(row(BENCHMARK, f"{question}, xarray", timings, peak_mb=peak))
        rows.append(row(BENCHMARK, f"{question}, empty tasks", timings))
    return rows


def _load(spark: SparkSession, grid: Grid, **options: str) -> DataFrame:
    return spark.read.format("icechunk").options(group=GROUP, **options).load(grid.path)


def percentile(grid: Grid) -> float:
    """Return a bound that one cell of a thousand exceeds and no stored value equals."""
    values = _open(grid.path)["t2m"].values
    return float(np.quantile(values, 0.999)) + 1 / 128


def extremes(spark: SparkSession, grid: Grid, bound: float) -> list[float]:
    rows = _load(spark, grid, where=f"t2m > {bound!r}").toArrow()
    return [len(rows), *(rows.column(n).to_numpy().sum(dtype="f8") for n in ("latitude", "t2m"))]


def mean(spark: SparkSession, grid: Grid) -> list[float]:
    frame = _load(spark, grid, layout="summary")
    answer = frame.agg(F.sum("t2m_sum") / F.sum("t2m_count")).toArrow()
    return [answer.column(0)[0].as_py()]


def series(spark: SparkSession, grid: Grid) -> list[float]:
    frame = _load(spark, grid, layout="summary", block="time=6")
    by_time = frame.groupBy("time_first").agg((F.sum("t2m_sum") / F.sum("t2m_count")).alias("mean"))
    return by_time.orderBy("time_first").toArrow().column("mean").to_pylist()


def run_tasks(path: str, question: str, bound: float) -> int:
    """Open, plan and run every task of a query, and count the rows that Spark would receive."""
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset
    from icechunk_format.tables.reading import run_scan

    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve(branch="main"), GROUP)
    if question == QUESTIONS[0]:
        plan = dataset.plan(dataset.table(), where=f"t2m > {bound!r}")
    else:
        block = "time=6" if question == QUESTIONS[2] else None
        plan = dataset.plan(dataset.table("summary", block=block))
    return sum(b.num_rows for task in plan.tasks for b in run_scan(plan.context, task))


def ask_nothing(spark: SparkSession, question: str, tasks: int) -> Any:
    """Run a query from the load to the result on a source without rows."""
    frame = null_frame(spark, rows=0, partitions=tasks, columns=["time", "latitude", "t2m"])
    ratio = F.sum("t2m") / F.sum("latitude")
    if question == QUESTIONS[0]:
        return frame.toArrow()
    if question == QUESTIONS[1]:
        return frame.agg(ratio).toArrow()
    return frame.groupBy("time").agg(ratio.alias("mean")).orderBy("time").toArrow()


def _open(path: str) -> Any:
    import xarray as xr

    return xr.open_zarr(
        reference_store(path), group=GROUP, consolidated=False, zarr_format=3, chunks=None
    )


def extremes_with_xarray(path: str, bound: float) -> list[float]:
    import pandas as pd

    opened = _open(path)
    found = opened["t2m"].values
    where = np.nonzero(found > bound)
    frame = pd.DataFrame(
        {
            "time": opened["time"].values[where[0]],
            "latitude": opened["latitude"].values[where[1]],
            "longitude": opened["longitude"].values[where[2]],
            "t2m": found[where],
        }
    )
    return [len(frame), frame["latitude"].sum(), frame["t2m"].to_numpy().sum(dtype="f8")]


def mean_with_xarray(path: str) -> list[float]:
    return [float(_open(path)["t2m"].mean())]


def series_with_xarray(path: str) -> list[float]:
    steps = _open(path)["t2m"].resample(time="6h").mean(("time", "latitude", "longitude"))
    return steps.values.tolist()


def _ask_xarray(question: str, path: str, bound: float) -> Any:
    if question == QUESTIONS[0]:
        return extremes_with_xarray(path, bound)
    return (mean_with_xarray if question == QUESTIONS[1] else series_with_xarray)(path)
