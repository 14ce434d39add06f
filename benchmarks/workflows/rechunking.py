"""Rechunks maps to series: ``rechunk`` compared with dask, cubed, and the rows of a DataFrame.

Above 2 GB, dask's threads, which hold the whole array, and the rows are left out. The plan of a
very large array, 866 GB from daily maps to series, is measured separately.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import (
    Row,
    in_fresh_process,
    interleaved,
    reset_peaks,
    row,
    row_beyond,
    worker_peak_mb,
)
from peers.repositories import DIMS, build_maps, maps_shape, new_repository, reference_store

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

BENCHMARK = "rechunk"
TILE = (19, 36)
MOST_IN_MEMORY = 2e9
# The peers' tasks of several chunks are faster.
CHUNKS_OF_A_TASK = 5
MEMORY = 512 << 20
DASK, P2P, CUBED, ROWS = "dask threads", "dask p2p", "cubed", "as rows"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is an array of 0.5 GB in 480 maps, scale 16 one of 8 GB."""
    from distributed import Client, LocalCluster

    shape = maps_shape(options.scale)
    decoded, series = 4 * math.prod(shape), (shape[0], *TILE)
    path = build_maps(folder / "maps", shape)
    is_small = decoded <= MOST_IN_MEMORY
    ours = partial(rechunk, spark, path, folder / "ours", series)
    cases: dict[str, Any] = {
        "rechunk": ours,
        DASK: partial(by_dask_threads, path, folder / "dask", series),
        CUBED: partial(by_cubed, path, folder / "cubed", series),
        "nothing": partial(nothing, spark),
    }
    if not is_small:
        del cases[DASK]
    timings = interleaved(cases, rounds=options.rounds, warm_up=is_small)
    # By itself, since workers of dask that wait keep processors busy.
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0,
            local_directory=str(folder / "p2p-files"),
        ) as cluster,
        Client(cluster),
    ):  # fmt: skip
        p2p = {P2P: partial(by_dask_p2p, path, folder / "p2p", series)}
        timings |= interleaved(p2p, rounds=options.rounds, warm_up=is_small)
    if is_small:
        timings |= interleaved(
            {ROWS: partial(by_rows, spark, path, folder / "rows", series)}, rounds=1, warm_up=False
        )
    reset_peaks()
    result = ours()
    peak, imports = worker_peak_mb(), in_fresh_process(import_all).peak_mb
    totals = result.commit.totals
    strip = slice(None) if is_small else slice(0, TILE[0])
    expected = read(path, strip)
    for place in ("ours", "dask", "p2p", "rows"):
        if (folder / place).exists():
            np.testing.assert_array_equal(read(str(folder / place), strip), expected)
    chunks = math.prod(-(-n // size) for n, size in zip(shape, series, strict=True))
    figures = {
        "decoded_bytes": decoded,
        "shuffled_bytes": result.shuffled_bytes,
        "worker_peak_mb": round(peak),
        "imports_mb": round(imports),
        "chunks_decoded": totals.chunks_decoded,
        "chunks_of_source": shape[0],
        "chunks_encoded": totals.chunks_encoded,
        "chunks_of_target": chunks,
    }
    nearest = DASK if is_small else P2P
    rows = [
        row_beyond(
            BENCHMARK, "rechunk", timings, nearest, "nothing", figures=figures,
            goal="ratio >= 0.83 beyond Spark's fixed cost",
        ),
        *(
            replace(
                row(BENCHMARK, "rechunk", timings, versus=case, goal="ratio >= 1"),
                case=f"rechunk beside {case}",
            )
            for case in (P2P, CUBED)
        ),
        *(row(BENCHMARK, case, timings) for case in timings if case != "rechunk"),
        Row(
            benchmark=BENCHMARK, case="memory of a worker", wall_s=timings["rechunk"].wall_s,
            peak_mb=peak,
            goal=f"<= {3 * MEMORY // 10**6 + round(imports)} MB: 3 x memory and imports",
        ),
        plan_of_866_gb(),
    ]  # fmt: skip
    if is_small:
        ratio = timings[ROWS].wall_s / timings["rechunk"].wall_s
        rows.append(
            Row(
                benchmark=BENCHMARK, case="rechunk beside rows", wall_s=timings["rechunk"].wall_s,
                versus=ROWS, ratio=ratio, goal="ratio >= 10",
            )
        )  # fmt: skip
    return rows


def read(path: str, rows: slice) -> np.ndarray:
    import zarr

    return np.asarray(zarr.open_group(reference_store(path), mode="r")["t2m"][:, rows])


def rechunk(spark: SparkSession, path: str, folder: Path, series: tuple[int, ...]) -> Any:
    import icechunk_spark

    shutil.rmtree(folder, ignore_errors=True)
    sizes = dict(zip(DIMS, series, strict=True))
    return icechunk_spark.rechunk(spark, path, chunks=sizes, to=str(folder), memory=MEMORY)


def by_rows(spark: SparkSession, path: str, folder: Path, series: tuple[int, ...]) -> None:
    import icechunk_spark

    sizes = ",".join(f"{dim}={size}" for dim, size in zip(DIMS, series, strict=True))
    rows = spark.read.format("icechunk").load(path)
    icechunk_spark.write(rows, str(folder), dims=",".join(DIMS), chunks=sizes)


def by_dask_threads(path: str, folder: Path, series: tuple[int, ...]) -> None:
    import dask

    # With a client, dask would choose p2p, which threads cannot run.
    method = {"array.rechunk.method": "tasks", "scheduler": "threads", "num_workers": 2}
    with dask.config.set(method):
        source, session, target = dask_arrays(path, folder, series)
        source.store(target, lock=False)
    session.commit("series")


def by_dask_p2p(path: str, folder: Path, series: tuple[int, ...]) -> None:
    """Rechunk with the workers of the current client."""
    import dask
    import zarr
    from icechunk.dask import store_dask

    # Only a session without changes can be forked.
    with dask.config.set({"array.rechunk.method": "p2p"}):
        source, session, _ = dask_arrays(path, folder, series)
        session.commit("array")
        session = reopened(folder).writable_session("main")
        target = zarr.open_group(session.fork().store, mode="a")["t2m"]
        session.merge(store_dask(sources=[source], targets=[target]))
    session.commit("series")


def dask_arrays(path: str, folder: Path, series: tuple[int, ...]) -> tuple[Any, Any, Any]:
    import dask.array
    import zarr

    shutil.rmtree(folder, ignore_errors=True)
    array = dask.array.from_zarr(zarr.open_group(reference_store(path), mode="r")["t2m"])
    session = new_repository(folder).writable_session("main")
    target = zarr.open_group(session.store, mode="a").create_array(
        "t2m", shape=array.shape, dtype=array.dtype, chunks=series, dimension_names=DIMS
    )
    tasks = (series[0], *(CHUNKS_OF_A_TASK * size for size in series[1:]))
    return array.rechunk(tasks), session, target


def reopened(folder: Path | str) -> Any:
    import icechunk

    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))


def by_cubed(path: str, folder: Path, series: tuple[int, ...]) -> None:
    """Rechunk with threads, into a plain Zarr store: cubed commits nothing."""
    import cubed

    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as files:
        spec = cubed.Spec(
            work_dir=files, allowed_mem=2 * MEMORY, reserved_mem=200_000_000,
            executor_name="threads", executor_options={"max_workers": 2},
        )  # fmt: skip
        array = cubed.from_zarr(reference_store(path), path="t2m", spec=spec)
        cubed.to_zarr(array.rechunk(series), str(folder), path="t2m")


def nothing(spark: SparkSession) -> None:
    """Run the two jobs of a shuffle without data."""
    spark.range(16).repartition(16).mapInArrow(lambda batches: batches, "id long").collect()


def import_all() -> None:
    """Import the modules that a worker of a rechunking imports."""
    import obstore.store  # noqa: F401
    import pandas as pd  # noqa: F401
    import pyspark.worker  # noqa: F401

    from icechunk_format.workflows.rechunking import run  # noqa: F401
    from icechunk_spark.reading import reader  # noqa: F401


def plan_of_866_gb() -> Row:
    planned = in_fresh_process(plan, imports=("icechunk_format.workflows.rechunking.plan",))
    return Row(
        benchmark=BENCHMARK,
        case="plan of 866 GB",
        wall_s=planned.value["seconds"],
        peak_mb=planned.peak_mb,
        goal="<= 5 s, <= 300 MB, pieces of 256 KB to 16 MB",
        figures=planned.value,
    )


def plan() -> dict[str, float | int]:
    """Plan the rechunking of an array of 866 GB from maps of a day to series."""
    from icechunk_format.encoding.ids import NodeId
    from icechunk_format.groups.changing import ArrayTarget
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset
    from icechunk_format.workflows.rechunking.plan import plan_array
    from icechunk_format.zarr.data_types import data_type_from_numpy
    from icechunk_format.zarr.new_nodes import build_array_metadata

    shape, old, new = (394_488, 778, 706), (24, 778, 706), (43_800, 5, 5)
    source, target = (
        build_array_metadata(
            shape=shape, data_type=data_type_from_numpy(np.dtype("f4")), chunk_shape=chunks,
            dimension_names=DIMS, node_path="/t2m",
        )
        for chunks in (old, new)
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        session = Repository.create(folder).writable_session()
        session.create_group("/", b'{"zarr_format":3,"node_type":"group"}')
        session.create_array(
            "/t2m", source.to_bytes(), shape=shape, num_chunks=source.grid.num_chunks,
            dimension_names=DIMS,
        )  # fmt: skip
        session.commit("an array without chunks")
        repository = Repository.open(folder)
        variable = open_dataset(repository, repository.resolve()).variables["t2m"]
    made = ArrayTarget(
        name="t2m", path="/t2m", node_id=NodeId(bytes(NodeId.SIZE)), dims=tuple(DIMS),
        metadata=target,
    )  # fmt: skip
    began = time.perf_counter()
    planned = plan_array(variable, made, memory=MEMORY, cores=200)
    return {
        "seconds": time.perf_counter() - began,
        "tasks": planned.tasks,
        "pieces": planned.pieces,
        "bytes_per_piece": planned.decoded_bytes // max(1, planned.pieces),
        "buffer_bytes": planned.buffer_bytes,
    }
