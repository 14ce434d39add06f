"""Reads 1 % of the cells, and compares the bytes with the ideal and the time with xarray.

The bytes needed are the stored bytes of the (inner) chunks that meet the box, each fetched once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import RequestLog, Row, interleaved, memory_of, row
from peers.repositories import build_grid, reference_store
from reading.full_scan import plan_of

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    import pyarrow as pa
    from peers.repositories import Grid
    from pyspark.sql import SparkSession

BENCHMARK = "selective"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    grid = build_grid(folder, options.scale)
    box = one_percent(grid)
    cells = math.prod(stop - start for start, stop in box)
    sel = labels(grid, box)
    cases: dict[str, Any] = {}
    for group in grid.layouts:
        cases[f"{group}, tasks in this process"] = partial(select, grid.path, group, sel)
        cases[f"{group}, xarray"] = partial(select_with_xarray, grid.path, group, box)
        cases[f"{group}, Spark"] = partial(select_in_spark, spark, grid.path, group, sel)
        check(cases, group, cells)
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    rows = []
    for group, (chunks, _) in grid.layouts.items():
        ideal_chunks = chunks_that_meet(box, chunks)
        # Inner chunks hold the same bytes as chunks of their shape.
        alike = "tiles" if group == "shards" else group
        ideal_bytes = sum(stored_bytes(grid.path, alike, sel).values())
        of_variable = stored_bytes(grid.path, group)
        with RequestLog() as log:
            select(grid.path, group, sel)
        fetched = [size for key, size in log.reads if key in of_variable]
        figures = {
            "cells": cells,
            "chunks_of_array": math.prod(
                -(-n // c) for n, c in zip(grid.shape, chunks, strict=True)
            ),
            "chunks_ideal": ideal_chunks,
            "chunk_requests": len(fetched),
            "bytes_ideal": ideal_bytes,
            "bytes_fetched": sum(fetched),
            "bytes_by_ideal": round(sum(fetched) / ideal_bytes, 3),
        }
        ours = memory_of(options.memory, select, grid.path, group, sel)
        theirs = memory_of(options.memory, select_with_xarray, grid.path, group, box)
        rows += [
            row(
                BENCHMARK,
                f"{group}, tasks in this process",
                timings,
                versus=f"{group}, xarray",
                goal="<= 1.2 x, ratio >= 0.83, bytes = ideal",
                peak_mb=ours,
                figures=figures,
            ),
            row(BENCHMARK, f"{group}, xarray", timings, peak_mb=theirs),
            row(BENCHMARK, f"{group}, Spark", timings, versus=f"{group}, xarray"),
        ]
    return rows


def one_percent(grid: Grid) -> list[tuple[int, int]]:
    """Return a box of a tenth of the latitudes and longitudes, across edges of chunks."""
    steps, rows, columns = grid.shape
    return [
        (0, steps),
        (rows // 4, rows // 4 + rows // 10),
        (columns // 3, columns // 3 + columns // 10),
    ]


def labels(grid: Grid, box: list[tuple[int, int]]) -> str:
    latitude = np.linspace(90, -90, grid.shape[1])
    longitude = np.linspace(0, 360, grid.shape[2], endpoint=False)
    (_, _), (top, bottom), (west, east) = box
    return (
        f"latitude={float(latitude[top])!r}:{float(latitude[bottom - 1])!r}; "
        f"longitude={float(longitude[west])!r}:{float(longitude[east - 1])!r}"
    )


def chunks_that_meet(box: list[tuple[int, int]], chunks: tuple[int, ...]) -> int:
    return math.prod(
        -(-stop // step) - start // step for (start, stop), step in zip(box, chunks, strict=True)
    )


def select(path: str, group: str, sel: str) -> pa.Table:
    """Open, plan and read the box into one Arrow table."""
    import pyarrow as pa

    from icechunk_format.repository.files import metadata_cache
    from icechunk_format.tables.reading import run_scan

    metadata_cache().clear()
    plan = plan_of(path, group, sel=sel)
    batches = [batch for task in plan.tasks for batch in run_scan(plan.context, task)]
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


def select_with_xarray(path: str, group: str, box: list[tuple[int, int]]) -> Any:
    """Open with the reference and xarray; select by the same labels into a pandas frame."""
    import xarray as xr

    opened = xr.open_zarr(
        reference_store(path), group=group, consolidated=False, zarr_format=3, chunks=None
    )
    _, (top, bottom), (west, east) = box
    latitude, longitude = opened["latitude"].values, opened["longitude"].values
    chosen = opened.sel(
        latitude=slice(latitude[top], latitude[bottom - 1]),
        longitude=slice(longitude[west], longitude[east - 1]),
    )
    return chosen.to_dataframe().reset_index()


def select_in_spark(spark: SparkSession, path: str, group: str, sel: str) -> Any:
    """Load with the same selection and bring the rows to the driver as Arrow."""
    frame = spark.read.format("icechunk").option("group", group).option("sel", sel).load(path)
    return frame.toArrow()


def check(cases: dict[str, Any], group: str, cells: int) -> None:
    ours = cases[f"{group}, tasks in this process"]()
    theirs = cases[f"{group}, xarray"]()
    in_spark = cases[f"{group}, Spark"]()
    sums = [
        ours.column("t2m").to_numpy().sum(dtype="f8"),
        theirs["t2m"].to_numpy().sum(dtype="f8"),
        in_spark.column("t2m").to_numpy().sum(dtype="f8"),
    ]
    if not len(ours) == len(theirs) == len(in_spark) == cells or not np.allclose(sums, sums[0]):
        raise AssertionError(f"the contestants read different cells of {group}: {sums}")


def stored_bytes(path: str, group: str, sel: str | None = None) -> dict[str, int]:
    """Return the objects of the variable's chunks that meet a selection, and their bytes."""
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset
    from icechunk_format.tables.reading import run_scan

    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve(branch="main"), group)
    plan = dataset.plan(dataset.table("refs", variables=["t2m"]), sel=sel)
    return {
        f"chunks/{ref['chunk_id']}": ref["length"]
        for task in plan.tasks
        for batch in run_scan(plan.context, task)
        for ref in batch.to_pylist()
    }
