"""Does an analyst's everyday work through Spark and with dask: 0.5 GB of daily maps at scale 1.

A climatology by month, anomalies from it, days beyond a percentile, a coarser copy, and patches for
training. Peers run dask's threads, with flox for grouped means, with as many threads as Spark has.
Spark's fixed cost is an empty job of each kind.
"""

from __future__ import annotations

import math
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, row, row_beyond
from peers.repositories import DIMS, new_repository, reference_store, temperatures
from workflows.rechunking import nothing

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "analyst"
THREADS = 2
# A month of maps is read at once, by both.
DAYS = 30
COARSE = 4
PATCH = {"time": 8, "latitude": 60, "longitude": 60}
TILE = (20, 30)
BEYOND, WHOLE = 1.0, 0.8


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is 1,461 days of 240 x 360 cells, below 0.02 they are coarser."""
    path = build_days(folder / "days", days_shape(options.scale))
    series, normals = folder / "series", folder / "normals"
    rechunked(spark, path, series)
    climatology(spark, path, normals)
    ours: dict[str, Callable[[], Any]] = {
        "climatology": partial(climatology, spark, path, folder / "climatology"),
        "anomalies": partial(anomalies, spark, path, folder / "anomalies", normals),
        "exceedance": partial(exceedance, spark, str(series), folder / "exceedance"),
        "coarsen": partial(coarsen, spark, path, folder / "coarsen"),
        "patches": partial(patches, spark, path),
    }
    peers: dict[str, Callable[[], Any]] = {
        "climatology": partial(climatology_with_dask, path, folder / "dask-climatology"),
        "anomalies": partial(anomalies_with_dask, path, folder / "dask-anomalies", normals),
        "exceedance": partial(exceedance_with_dask, str(series), folder / "dask-exceedance"),
        "coarsen": partial(coarsen_with_dask, path, folder / "dask-coarsen"),
        "patches": partial(patches_with_dask, path),
    }
    cases: dict[str, Callable[[], Any]] = {"nothing": partial(nothing, spark)}
    for name, own in ours.items():
        cases |= {name: own, f"{name}, dask": peers[name]}
    timings = interleaved(cases, rounds=options.rounds, warm_up=True)
    rows = []
    for name in ours:
        check(name, timings[name].value, timings[f"{name}, dask"].value)
        goal = f"ratio >= {BEYOND} beyond Spark's fixed cost, >= {WHOLE} with it"
        made = row_beyond(
            BENCHMARK, name, timings, f"{name}, dask", "nothing", goal=goal,
            figures={"decoded_bytes": 4 * math.prod(days_shape(options.scale))},
        )  # fmt: skip
        rows += [made, row(BENCHMARK, f"{name}, dask", timings)]
    return rows


def check(name: str, found: Any, expected: Any) -> None:
    """Compare the results of both: the arrays of two repositories, or two numbers."""
    if isinstance(found, float):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        return
    one, other = opened(found).load(), opened(expected).load()
    for variable in other.data_vars:
        own = one[variable].transpose(*other[variable].dims)
        np.testing.assert_allclose(own, other[variable], rtol=1e-5, atol=1e-3, err_msg=name)


def days_shape(scale: float) -> tuple[int, int, int]:
    """Return the shape of 1,461 maps, 0.5 GB, at scale 1."""
    return (max(62, round(1461 * scale)), *((240, 360) if scale >= 0.02 else (60, 60)))


def build_days(path: Path, shape: tuple[int, int, int]) -> str:
    """Write an array ``t2m`` with labels, one day a chunk, a few days at a time."""
    import zarr

    session = new_repository(path).writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    labels = {
        "time": (np.arange(shape[0]), {"units": "days since 2020-01-01"}),
        "latitude": (np.linspace(89.5, -89.5, shape[1]), {"units": "degrees_north"}),
        "longitude": (np.arange(shape[2]) * 360 / shape[2], {"units": "degrees_east"}),
    }
    for dim, (values, attributes) in labels.items():
        group.create_array(dim, data=values, dimension_names=[dim], attributes=attributes)
    array = group.create_array(
        "t2m", shape=shape, dtype="f4", chunks=(1, *shape[1:]), dimension_names=DIMS,
        fill_value=0.0, attributes={"units": "K"},
    )  # fmt: skip
    maps = temperatures((min(120, shape[0]), *shape[1:]))
    for start in range(0, shape[0], len(maps)):
        stop = min(start + len(maps), shape[0])
        array[start:stop] = maps[: stop - start] + np.float32(start % 7)
    session.commit("days")
    return str(path)


# -- through Spark ---------------------------------------------------------------------------


def rechunked(spark: SparkSession, path: str, folder: Path) -> None:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    sizes = dict(zip(DIMS, (-1, *TILE), strict=True))
    icechunk_spark.rechunk(spark, path, chunks=sizes, to=str(folder))


def climatology(spark: SparkSession, path: str, folder: Path) -> str:
    """Store the mean of each month."""
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    icechunk_spark.reduce(
        spark, path, {"t2m": "mean"}, over="time", by="time.month", to=str(folder)
    )
    return str(folder)


def by_month(ds: Any) -> Any:
    return ds[["t2m"]].groupby("time.month").mean()


def anomalies(spark: SparkSession, path: str, folder: Path, normals: Path) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    icechunk_spark.map_blocks(
        spark, path, from_normals, to=str(folder), blocks={"time": DAYS}, others={"n": str(normals)}
    )
    return str(folder)


def from_normals(ds: Any, normals: Any) -> Any:
    return (ds.groupby("time.month") - normals).drop_vars("month")


def exceedance(spark: SparkSession, path: str, folder: Path) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    blocks = {"time": -1, "latitude": 2 * TILE[0], "longitude": 2 * TILE[1]}
    icechunk_spark.map_blocks(spark, path, hot_days, to=str(folder), blocks=blocks)
    return str(folder)


def hot_days(ds: Any) -> Any:
    limit = ds["t2m"].quantile(0.9, "time").drop_vars("quantile")
    return (ds["t2m"] > limit).sum("time").to_dataset(name="hot_days")


def coarsen(spark: SparkSession, path: str, folder: Path) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    icechunk_spark.map_blocks(spark, path, coarser, to=str(folder), blocks={"time": DAYS})
    return str(folder)


def coarser(ds: Any) -> Any:
    return ds.coarsen(latitude=COARSE, longitude=COARSE).mean()


def patches(spark: SparkSession, path: str) -> float:
    """Loop over patches as training does, each in one row; return the sum of their means."""
    import icechunk_spark

    rows = icechunk_spark.read_blocks(
        spark, path, patch, "shape array<int>, data binary", blocks=PATCH
    )
    return sum_of_means(
        np.frombuffer(found.data, "f4").reshape(found.shape)
        for found in rows.toLocalIterator(prefetchPartitions=True)
    )


def patch(ds: Any) -> Any:
    import pyarrow as pa

    values = ds["t2m"].values
    return pa.table({"shape": [list(values.shape)], "data": [values.tobytes()]})


def sum_of_means(found: Any) -> float:
    return float(sum(float(values.mean(dtype="f8")) for values in found))


# -- with dask -------------------------------------------------------------------------------


def opened(path: Path | str, **chunks: Any) -> Any:
    import xarray as xr

    return xr.open_zarr(reference_store(path), consolidated=False, **(chunks or {"chunks": None}))


def stored(dataset: Any, folder: Path) -> str:
    """Store a lazy dataset in one commit."""
    import dask

    shutil.rmtree(folder, ignore_errors=True)
    session = new_repository(folder).writable_session("main")
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        dataset.drop_encoding().to_zarr(session.store, zarr_format=3, consolidated=False, mode="a")
    session.commit("a result")
    return str(folder)


def climatology_with_dask(path: str, folder: Path) -> str:
    return stored(by_month(opened(path, chunks={"time": DAYS})), folder)


def anomalies_with_dask(path: str, folder: Path, normals: Path) -> str:
    found = from_normals(opened(path, chunks={"time": DAYS}), opened(normals).load())
    return stored(found.chunk({"time": DAYS}), folder)


def exceedance_with_dask(path: str, folder: Path) -> str:
    sizes = dict(zip(DIMS, (-1, *(2 * size for size in TILE)), strict=True))
    return stored(hot_days(opened(path, chunks=sizes)), folder)


def coarsen_with_dask(path: str, folder: Path) -> str:
    return stored(coarser(opened(path, chunks={"time": DAYS})), folder)


def patches_with_dask(path: str) -> float:
    """Loop over the same patches, computing those of the same days at once."""
    import dask

    array = opened(path, chunks={"time": PATCH["time"]})["t2m"].chunk(PATCH).data
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        return sum_of_means(
            values
            for days in range(array.numblocks[0])
            for values in dask.compute(*array.blocks[days].to_delayed().ravel())
        )
