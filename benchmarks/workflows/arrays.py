"""Arrays to arrays: maps become series, and a function runs over blocks, beside dask.

An identity runs beside a loop by hand, and a copy follows a source of which one map changed.

The plan of a very large array is measured by itself: 866 GB, from maps of a day to series.
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
from measurement import Row, interleaved, row
from peers.repositories import DIMS, new_repository, reference_store, temperatures

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "arrays"
DASK = "dask threads"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is an array of 0.5 GB in 480 maps."""
    shape = (max(12, round(480 * options.scale)), 361, 720)
    if options.scale < 0.02:
        shape = (shape[0], 37, 72)
    series = (shape[0], math.ceil(shape[1] / 19), math.ceil(shape[2] / 20))
    days = math.ceil(shape[0] / 100)
    path, growing = build(folder / "maps", shape), build(folder / "growing", shape)
    cases: dict[str, Any] = {
        "rechunk": partial(rechunk, spark, path, folder / "ours", series),
        "rechunk, dask threads": partial(rechunk_with_dask, path, folder / "dask", series),
        "map_blocks": partial(anomalies, spark, path, folder / "ours-mapped"),
        "map_blocks, dask threads": partial(anomalies_with_dask, path, folder / "dask-mapped"),
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
    for case in ("rechunk", "rechunk, dask threads"):
        np.testing.assert_array_equal(read(timings[case].value), expected)
    ours, theirs = (read(timings[f"map_blocks{end}"].value) for end in ("", ", dask threads"))
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    figures = {"decoded_bytes": 4 * math.prod(shape), "fixed_s": timings["nothing"].wall_s}
    goal = "beyond Spark's fixed cost <= 1.2 x (>= 0.83)"
    return [
        *(
            row(BENCHMARK, case, timings, versus=f"{case}, {DASK}", goal=goal, figures=figures)
            for case in ("rechunk", "map_blocks")
        ),
        *(row(BENCHMARK, f"{case}, dask threads", timings) for case in ("rechunk", "map_blocks")),
        row(
            BENCHMARK, "identity", timings, versus="identity, by hand",
            goal="beyond Spark's fixed cost >= 0.9", figures=figures,
        ),
        row(BENCHMARK, "identity, by hand", timings),
        row(
            BENCHMARK, "follow", timings, versus="identity",
            goal="1 of 100 blocks: <= 0.05 of all + Spark's fixed cost",
            figures={**figures, "share": timings["follow"].wall_s / timings["identity"].wall_s},
        ),
        plan_of_866_gb(),
    ]  # fmt: skip


def build(path: Path, shape: tuple[int, int, int]) -> str:
    import zarr

    session = new_repository(path).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array(
        "t2m", data=temperatures(shape), chunks=(1, *shape[1:]), dimension_names=DIMS,
        fill_value=0.0,
    )  # fmt: skip
    session.commit("maps")
    return str(path)


def read(path: str) -> np.ndarray:
    import zarr

    group = zarr.open_group(reference_store(path), mode="r")
    return np.asarray(next(iter(dict(group.arrays()).values()))[:])


def rechunk(spark: SparkSession, path: str, folder: Path, series: tuple[int, ...]) -> str:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    sizes = dict(zip(DIMS, series, strict=True))
    icechunk_spark.rechunk(spark, path, chunks=sizes, to=str(folder))
    return str(folder)


def rechunk_with_dask(path: str, folder: Path, series: tuple[int, ...]) -> str:
    import dask
    import dask.array
    import zarr

    shutil.rmtree(folder, ignore_errors=True)
    array = dask.array.from_zarr(zarr.open_group(reference_store(path), mode="r")["t2m"])
    session = new_repository(folder).writable_session("main")
    target = zarr.open_group(session.store, mode="a").create_array(
        "t2m", shape=array.shape, dtype=array.dtype, chunks=series, dimension_names=DIMS
    )
    # Tasks of several chunks, which is faster.
    tasks = (series[0], 5 * series[1], 5 * series[2])
    with dask.config.set(scheduler="threads", num_workers=2):
        array.rechunk(tasks).store(target, lock=False)
    session.commit("series")
    return str(folder)


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


def reopened(folder: Path | str) -> Any:
    import icechunk

    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))


def follow(spark: SparkSession, path: str, folder: Path, days: int) -> str:
    """Change a map of the source, and let a copy follow."""
    import zarr

    import icechunk_spark

    session = reopened(path).writable_session("main")
    zarr.open_group(session.store)["t2m"][3] = np.float32(time.time() % 1000)
    session.commit("one map")
    icechunk_spark.map_blocks(
        spark, path, lambda ds: ds, to=str(folder), blocks={"time": days}, follow=True
    )
    return str(folder)


def nothing(spark: SparkSession) -> None:
    """Run the two jobs of a shuffle that moves nothing."""
    spark.range(16).repartition(16).mapInArrow(lambda batches: batches, "id long").collect()


def plan_of_866_gb() -> Row:
    """Plan the largest rechunking that users told of, by arithmetic alone."""
    from icechunk_format.workflows.rechunking.groups import Groups, join, windows

    shape, old, new = (394_488, 778, 706), (24, 778, 706), (43_800, 5, 5)
    began = time.perf_counter()
    source, target = (
        [np.append(np.arange(0, n, c), n) for n, c in zip(shape, sizes, strict=True)]
        for sizes in (old, new)
    )
    common = windows(source, target)
    parts: Groups = join(source, target, common, (512 << 20) // 4)
    groups: Groups = join(target, source, common, (512 << 20) // 4)
    seconds = time.perf_counter() - began
    pieces = sum(1 for _ in groups.meeting(parts.box(0))) * len(parts)
    return Row(
        benchmark=BENCHMARK,
        case="plan of 866 GB",
        wall_s=seconds,
        goal="<= 5 s, pieces of 256 KB to 16 MB",
        figures={
            "tasks": len(parts) + len(groups),
            "pieces": pieces,
            "bytes_per_piece": 4 * math.prod(shape) // pieces,
        },
    )
