"""Reads real output of climate and ocean models: calendars of 360 days, masked oceans.

xarray stores the files of ``iris-sample-data`` with the reference library. The files are small, so
opening is included: this library reads an Arrow table from a path, xarray and the reference a data
frame. ``--scale`` below 0.1 uses only the first file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, memory_of, row
from peers.repositories import reference_store
from reading.full_scan import drain, plan_of

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

BENCHMARK = "real-data"
FILES = ("A1B_north_america", "E1_north_america", "ostia_monthly", "orca2_votemper")


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    from helpers.arrays.real_data import SAMPLES, open_file
    from helpers.builder import reference_repository

    rows = []
    for name in FILES[: None if options.scale >= 0.1 else 1]:
        sample = SAMPLES[name]
        path = str(folder / name)
        session = reference_repository(folder / name).writable_session("main")
        dataset = open_file(sample.file)
        dataset.to_zarr(
            session.store, mode="w", consolidated=False, encoding=sample.encoding or None
        )
        session.commit(f"what {sample.file} holds")
        (variable,) = sample.variables
        rows += compare(spark, name, path, variable, dataset[variable].size, options)
    return rows


def compare(
    spark: SparkSession, name: str, path: str, variable: str, cells: int, options: Namespace
) -> list[Row]:
    ours, theirs, spread = (
        f"{name}, {who}" for who in ("tasks in this process", "xarray", "Spark")
    )
    frame = spark.read.format("icechunk").load(path)
    cases: dict[str, Any] = {
        ours: partial(read_here, path),
        theirs: partial(read_with_xarray, path, variable),
        spread: partial(drain, frame),
    }
    here, there = cases[ours](), cases[theirs]()
    sums = [
        np.nansum(column.to_numpy(), dtype="f8")
        for column in (here.column(variable), there[variable])
    ]
    if not len(here) == len(there) == frame.count() == cells or not np.isclose(*sums):
        raise AssertionError(f"the contestants read different cells of {name}: {sums}")
    timings = interleaved(cases, rounds=options.rounds)
    figures = {"cells": cells}
    return [
        row(
            BENCHMARK,
            ours,
            timings,
            versus=theirs,
            goal="<= 1.2 x, ratio >= 0.83",
            peak_mb=memory_of(options.memory, read_here, path),
            figures=figures,
        ),
        row(
            BENCHMARK,
            theirs,
            timings,
            peak_mb=memory_of(options.memory, read_with_xarray, path, variable),
            figures=figures,
        ),
        row(BENCHMARK, spread, timings, versus=theirs, figures=figures),
    ]


def read_here(path: str) -> pa.Table:
    """Open, plan and read every cell into one Arrow table."""
    import pyarrow as pa

    from icechunk_format.repository.files import metadata_cache
    from icechunk_format.tables.reading import run_scan

    metadata_cache().clear()
    plan = plan_of(path, "/")
    batches = [batch for task in plan.tasks for batch in run_scan(plan.context, task)]
    return pa.Table.from_batches(batches, schema=plan.arrow_schema)


def read_with_xarray(path: str, variable: str) -> Any:
    """Open with the reference and xarray; every cell into one pandas frame."""
    import xarray as xr

    opened = xr.open_zarr(reference_store(path), consolidated=False, chunks=None)
    # Scalar coordinates would become columns, which this library adds only on request.
    return opened[[variable]].reset_coords(drop=True).to_dataframe().reset_index()
