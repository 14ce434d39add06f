"""Applies functions to blocks: anomalies compared with dask, an identity with a hand-written loop.

Another case updates a result that follows a source, after one map of the source has changed.
"""

from __future__ import annotations

import math
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, row, row_beyond
from peers.repositories import DIMS, build_maps, maps_shape, new_repository, reference_store
from workflows.rechunking import nothing, reopened

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "map_blocks"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is an array of 0.5 GB in 480 maps."""
    shape = maps_shape(options.scale)
    days = math.ceil(shape[0] / 100)
    path, growing = build_maps(folder / "maps", shape), build_maps(folder / "growing", shape)
    cases: dict[str, Any] = {
        "anomalies": partial(anomalies, spark, path, folder / "ours-mapped"),
        "anomalies, dask threads": partial(anomalies_with_dask, path, folder / "dask-mapped"),
        "identity": partial(identity, spark, path, folder / "same", days),
        "identity, by hand": partial(identity_by_hand, path, folder / "by-hand", days),
        "follow": partial(follow, spark, growing, folder / "followed", days),
        "nothing": partial(nothing, spark),
    }
    follow(spark, growing, folder / "followed", days)
    timings = interleaved(cases, rounds=options.rounds, warm_up=True)
    expected = read(path)
    for case in ("identity", "identity, by hand"):
        np.testing.assert_array_equal(read(timings[case].value), expected)
    np.testing.assert_array_equal(read(timings["follow"].value), read(growing))
    ours, theirs = (read(timings[f"anomalies{end}"].value) for end in ("", ", dask threads"))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    figures = {"decoded_bytes": 4 * math.prod(shape)}
    rows = []
    for case, peer, least in (
        ("anomalies", "anomalies, dask threads", "ratio >= 0.83"),
        ("identity", "identity, by hand", "ratio >= 0.9"),
    ):
        goal = f"{least} beyond Spark's fixed cost"
        made = row_beyond(
            BENCHMARK, case, timings, peer, "nothing", goal=goal, figures=dict(figures)
        )
        rows += [made, row(BENCHMARK, peer, timings)]
    every = timings["identity"].wall_s
    allowed = 0.05 * every + timings["nothing"].wall_s
    return [
        *rows,
        row(
            BENCHMARK,
            "follow",
            timings,
            versus="identity",
            goal=f"<= {allowed:.2f} s: 5 % of the identity and Spark's fixed cost",
            figures={**figures, "share": timings["follow"].wall_s / every},
        ),
    ]


def read(path: str) -> np.ndarray:
    import zarr

    return np.asarray(zarr.open_group(reference_store(path), mode="r")["t2m"][:])


def anomalies(spark: SparkSession, path: str, folder: Path) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)

    def anomaly(ds: Any) -> Any:
        return ds - ds.mean(["latitude", "longitude"])

    icechunk_spark.map_blocks(spark, path, anomaly, to=str(folder), blocks={"time": 1})
    return str(folder)


def anomalies_with_dask(path: str, folder: Path) -> str:
    import dask
    import xarray as xr

    shutil.rmtree(folder, ignore_errors=True)
    dataset = xr.open_zarr(reference_store(path), consolidated=False, chunks={"time": 1})
    session = new_repository(folder).writable_session("main")
    with dask.config.set(scheduler="threads", num_workers=2):
        anomaly = dataset - dataset.mean(["latitude", "longitude"])
        anomaly.to_zarr(session.store, zarr_format=3, consolidated=False, mode="a")
    session.commit("anomalies")
    return str(folder)


def identity(spark: SparkSession, path: str, folder: Path, days: int) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    icechunk_spark.map_blocks(spark, path, lambda ds: ds, to=str(folder), blocks={"time": days})
    return str(folder)


def identity_by_hand(path: str, folder: Path, days: int) -> str:
    """Copy block by block with zarr and the reference, in two processes."""
    import zarr

    shutil.rmtree(folder, ignore_errors=True)
    source = zarr.open_group(reference_store(path), mode="r")["t2m"]
    session = new_repository(folder).writable_session("main")
    zarr.open_group(session.store, mode="a").create_array(
        "t2m", shape=source.shape, dtype=source.dtype, chunks=(days, *source.shape[1:]),
        dimension_names=DIMS, fill_value=0.0,
    )  # fmt: skip
    # Only a session without changes can be forked.
    session.commit("array")
    session = reopened(folder).writable_session("main")
    parts = [range(first * days, source.shape[0], 2 * days) for first in range(2)]
    fork = session.fork()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        jobs = [processes.submit(copy_blocks, path, fork, part, days) for part in parts]
        session.merge(*(job.result() for job in jobs))
    session.commit("copy")
    return str(folder)


def copy_blocks(path: str, fork: Any, starts: range, days: int) -> Any:
    import zarr

    source = zarr.open_group(reference_store(path), mode="r")["t2m"]
    target = zarr.open_group(fork.store, mode="a")["t2m"]
    for start in starts:
        target[start : start + days] = source[start : start + days]
    return fork


def follow(spark: SparkSession, path: str, folder: Path, days: int) -> str:
    """Change a map of the source, and update the copy."""
    import zarr

    import icechunk_spark

    session = reopened(path).writable_session("main")
    zarr.open_group(session.store)["t2m"][3] = np.float32(time.time() % 1000)
    session.commit("one map")
    icechunk_spark.map_blocks(
        spark, path, lambda ds: ds, to=str(folder), blocks={"time": days}, follow=True
    )
    return str(folder)
