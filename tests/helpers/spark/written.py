"""DataFrames of small grids, and a look at what was written with the reference library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FIRST_DAY = np.datetime64("2024-07-01T00:00:00", "us")
LATITUDES = np.array([60.0, 55.0, 50.0, 45.0])
LONGITUDES = np.array([0.0, 2.5, 5.0])

DIMS = ["time", "latitude", "longitude"]
GRID_TYPES = "time timestamp_ntz, latitude double, longitude double, t2m float"


def hours(first: int, count: int) -> np.ndarray:
    """Return `count` hourly instants from `first` hours after the first day's begin."""
    return FIRST_DAY + np.arange(first, first + count) * np.timedelta64(1, "h")


def temperatures(times: np.ndarray) -> np.ndarray:
    """Return values (time, latitude, longitude) that differ in every cell."""
    hour = (times - FIRST_DAY) / np.timedelta64(1, "h")
    grid = hour[:, None, None] * 100 + np.arange(4)[:, None] * 10 + np.arange(3)
    return grid.astype("float32")


def grid_frame(
    spark: SparkSession, times: np.ndarray, values: np.ndarray | None = None
) -> DataFrame:
    """Return one row per cell of (time, latitude, longitude), shuffled, with column ``t2m``."""
    values = temperatures(times) if values is None else values
    rows = [
        (time.item(), float(latitude), float(longitude), float(values[i, j, k]))
        for i, time in enumerate(times)
        for j, latitude in enumerate(LATITUDES)
        for k, longitude in enumerate(LONGITUDES)
    ]
    order = np.random.default_rng(7).permutation(len(rows))
    return spark.createDataFrame([rows[i] for i in order], GRID_TYPES)


def write_grid(path: Path | str, times: np.ndarray, **options: Any) -> None:
    """Write what ``grid_frame`` holds without Spark, for writes of Spark to start from."""
    import pyarrow as pa

    from icechunk_format.options.write import WriteOptions
    from icechunk_format.tables.writing.in_process import write_table

    time, latitude, longitude = np.meshgrid(times, LATITUDES, LONGITUDES, indexing="ij")
    columns = {
        "time": time,
        "latitude": latitude,
        "longitude": longitude,
        "t2m": temperatures(times),
    }
    table = pa.table({name: column.ravel() for name, column in columns.items()})
    dims = ("time", "latitude", "longitude")
    write_table(str(path), table, WriteOptions(dims=dims, **options))


def written_grid(folder: Path, count: int, **options: Any) -> str:
    """Write `count` hours of temperatures to a new repository; return its path."""
    path = str(folder / "weather")
    write_grid(path, hours(0, count), **options)
    return path


def reference_repository(path: Path | str) -> Any:
    """Open a repository with the reference library."""
    import icechunk

    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def reference_group(path: Path | str, *, branch: str = "main", group: str | None = None) -> Any:
    """Open a group at the head of a branch with zarr, through the reference library."""
    import zarr

    store = reference_repository(path).readonly_session(branch=branch).store
    return zarr.open_group(store, mode="r", path=group)


def reference_dataset(path: Path | str, *, branch: str = "main", **options: Any) -> Any:
    """Open a branch as xarray shows it to users."""
    import xarray

    store = reference_repository(path).readonly_session(branch=branch).store
    return xarray.open_zarr(store, consolidated=False, chunks=None, **options)


def messages(path: Path | str, *, branch: str = "main") -> list[str]:
    """Return the messages of a branch's commits, newest first."""
    return [found.message for found in reference_repository(path).ancestry(branch=branch)]


def cells(frame: DataFrame, dims: Sequence[str], variable: str) -> Mapping[tuple[Any, ...], Any]:
    """Return a frame's values of one variable by coordinates."""
    return {
        tuple(row[name] for name in dims): row[variable]
        for row in frame.select(*dims, variable).collect()
    }
