"""Appends one day to an array of 1, 100 and 10,000 days; the cost should not depend on the array.

Appends run in this process without Spark; a Spark job adds the time of its tasks. Peer: xarray's
``to_zarr(append_dim="time")`` and a commit of the reference.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from measurement import Row, interleaved, row

from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "append"
DIMS = ("time", "latitude", "longitude")
ROWS, COLUMNS = 40, 60
_FIRST = np.datetime64("1990-01-01", "us")


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    histories = [1, max(2, round(100 * options.scale)), max(3, round(10_000 * options.scale))]
    cases: dict[str, Any] = {}
    for days in histories:
        base = folder / f"{days}"
        write_table(str(base), cells(0, days), WriteOptions(dims=DIMS, chunks={"time": 1}))
        for who, append in (("this library", append_day), ("reference and xarray", with_xarray)):
            own = folder / f"{days}-{who.split()[0]}"
            shutil.copytree(base, own)
            cases[f"to {days:,} days, {who}"] = partial(append, own, _days_counted(days))
    timings = interleaved(cases, rounds=max(5, options.rounds))
    rows = []
    for case in timings:
        days, _, who = case.partition(", ") if case.count(",") == 1 else case.rpartition(", ")
        first = f"to {histories[0]:,} days, {who}"
        ours = who == "this library"
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus="" if case == first else first,
                goal="ratio >= 0.77" if ours and case != first else "",
            )
        )
        if ours:
            peer = f"{days}, reference and xarray"
            rows.append(row(BENCHMARK, case, timings, versus=peer))
    return rows


def _days_counted(days: int) -> list[int]:
    """Return a counter of days: each round appends the day after the last one."""
    return [days]


def cells(first: int, count: int) -> pa.Table:
    """Return the rows of `count` days from a day on."""
    times = _FIRST + np.arange(first, first + count) * np.timedelta64(1, "D")
    latitude = np.linspace(90, -90, ROWS)
    longitude = np.linspace(0, 360, COLUMNS, endpoint=False)
    random = np.random.default_rng(first)
    return pa.table(
        {
            "time": np.repeat(times, ROWS * COLUMNS),
            "latitude": np.tile(np.repeat(latitude, COLUMNS), count),
            "longitude": np.tile(longitude, ROWS * count),
            "t2m": random.normal(280, 10, count * ROWS * COLUMNS).astype("f4"),
        }
    )


def append_day(path: Path, days: list[int]) -> None:
    write_table(str(path), cells(days[0], 1), WriteOptions(mode="append"))
    days[0] += 1


def with_xarray(path: Path, days: list[int]) -> None:
    import icechunk
    import xarray as xr

    day = cells(days[0], 1)
    dataset = xr.Dataset(
        {"t2m": (DIMS, day.column("t2m").to_numpy().reshape(1, ROWS, COLUMNS))},
        coords={
            "time": day.column("time").to_numpy()[:1],
            "latitude": np.linspace(90, -90, ROWS),
            "longitude": np.linspace(0, 360, COLUMNS, endpoint=False),
        },
    )
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))
    session = repository.writable_session("main")
    dataset.to_zarr(session.store, append_dim="time", zarr_format=3, consolidated=False)
    session.commit("a day")
    days[0] += 1
