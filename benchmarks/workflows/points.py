"""Samples an hourly grid at millions of points, compared with a join, xarray and a plain shuffle.

Points are around fifty cities and at any hour, so some chunks contain very many points and others
none. The ideal is the stored bytes of the chunks that contain points, each fetched once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import RequestLog, Row, beyond, interleaved, row
from peers.repositories import DIMS, new_repository, reference_store, temperatures

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "points"
ON = {"time": "at", "latitude": "lat", "longitude": "lon"}
_FIRST = np.datetime64("2024-07-01", "us")


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is an array of 250 million cells and ten million points."""
    path, shape, chunks = build(folder / "grid", options.scale)
    points = make_points(folder / "points", max(1000, round(1e7 * options.scale)), shape[0])
    cases: dict[str, Any] = {
        "sample nearest": partial(sample, spark, path, points, "nearest"),
        "sample linear": partial(sample, spark, path, points, "linear"),
        "shuffle alone": partial(shuffle, spark, points, chunks),
        "xarray sel": partial(select_with_xarray, path, points),
        "join of cells": partial(join, spark, path, points),
    }
    check(spark, path, points)
    timings = interleaved(cases, rounds=options.rounds, warm_up=False)
    fixed, xarray = timings["shuffle alone"], timings["xarray sel"]
    figures: dict[str, Any] = {
        "cells": int(np.prod(shape)),
        "points": len_of(points),
        "xarray_by_time_beyond_shuffle": round(
            beyond(timings["sample nearest"], fixed, xarray) or 0.0, 2
        ),
        **fetched(path, points),
    }
    return [
        row(
            BENCHMARK,
            "sample nearest",
            timings,
            versus="join of cells",
            goal="ratio >= 10; beyond the shuffle <= 1.5 x xarray (>= 0.67); bytes = ideal",
            figures=figures,
        ),
        row(BENCHMARK, "sample linear", timings, versus="sample nearest"),
        row(BENCHMARK, "shuffle alone", timings),
        row(BENCHMARK, "xarray sel", timings),
        row(BENCHMARK, "join of cells", timings),
    ]


def build(path: Path, scale: float) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Write hourly temperatures in tiles; coarse ones at a small scale."""
    import zarr

    fine = scale >= 0.02
    shape = (max(4, round(240 * scale)), 721 if fine else 73, 1440 if fine else 144)
    chunks = (min(24, shape[0]), 90 if fine else 9, 90 if fine else 9)
    session = new_repository(path).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    labels = {
        "time": (np.arange(shape[0]), {"units": "hours since 2024-07-01"}),
        "latitude": (np.linspace(90, -90, shape[1]), {"units": "degrees_north"}),
        "longitude": (
            np.linspace(0, 360, shape[2], endpoint=False),
            {"units": "degrees_east"},
        ),
    }
    for dim, (values, attributes) in labels.items():
        root.create_array(dim, data=values, dimension_names=[dim], attributes=attributes)
    array = root.create_array(
        "t2m", shape=shape, dtype="f4", chunks=chunks, dimension_names=DIMS, fill_value=0.0
    )
    day = temperatures((chunks[0], *shape[1:]))
    for begin in range(0, shape[0], chunks[0]):
        array[begin : begin + chunks[0]] = day[: shape[0] - begin] + np.float32(begin / 64)
    session.commit("hourly temperatures")
    return str(path), shape, chunks


def make_points(folder: Path, count: int, hours: int) -> str:
    """Write points around fifty cities as four Parquet files, and return their folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(13)
    cities = np.stack([random.uniform(-50, 65, 50), random.uniform(-180, 180, 50)], axis=1)
    folder.mkdir()
    for part in range(4):
        rows = count // 4
        city = cities[np.minimum(random.geometric(0.08, rows) - 1, 49)]
        microseconds = random.integers(0, max(1, (hours - 1) * 3_600_000_000), rows)
        pq.write_table(
            pa.table(
                {
                    "id": np.arange(part * rows, (part + 1) * rows),
                    "at": pa.array(_FIRST + microseconds.astype("m8[us]")),
                    "lat": np.clip(city[:, 0] + random.normal(0, 2, rows), -90, 90),
                    "lon": city[:, 1] + random.normal(0, 2, rows),
                }
            ),
            folder / f"{part}.parquet",
        )
    return str(folder)


def len_of(points: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_table(points, columns=["id"]).num_rows)


def sample(spark: SparkSession, path: str, points: str, method: Any) -> None:
    sampled(spark, path, points, method).write.format("noop").mode("overwrite").save()


def sampled(spark: SparkSession, path: str, points: str, method: Any) -> DataFrame:
    import icechunk_spark

    return icechunk_spark.sample(spark.read.parquet(points), path, on=ON, method=method)


def shuffle(spark: SparkSession, points: str, chunks: tuple[int, ...]) -> None:
    """Shuffle the same rows by about the same chunks, without further work."""
    frame = spark.read.parquet(points)
    tiles = frame.selectExpr(
        "*",
        f"unix_micros(cast(at AS timestamp)) div {3_600_000_000 * chunks[0]} * 1000000"
        f" + cast(floor((90 - lat) / {chunks[1] / 4}) AS bigint) * 1000"
        f" + cast(floor(pmod(lon, 360) / {chunks[2] / 4}) AS bigint) AS tile",
    )
    tiles.hint("rebalance", "tile").write.format("noop").mode("overwrite").save()


def select_with_xarray(path: str, points: str) -> Any:
    """Read the points and select all of them at once, chunks decoded by zarr's threads."""
    import pyarrow.parquet as pq
    import xarray as xr

    table = pq.read_table(points)
    opened = xr.open_zarr(reference_store(path), consolidated=False, zarr_format=3, chunks=None)
    at = {dim: xr.DataArray(table[name].to_numpy(), dims="i") for dim, name in ON.items()}
    at["longitude"] = at["longitude"] % 360
    return opened["t2m"].sel(at, method="nearest").values


def join(spark: SparkSession, path: str, points: str) -> None:
    joined(spark, path, points).write.format("noop").mode("overwrite").save()


def joined(spark: SparkSession, path: str, points: str) -> DataFrame:
    """Join the cells with the points on rounded coordinates, as users do without `sample`."""
    import icechunk_spark

    frame, cells = spark.read.parquet(points), icechunk_spark.read(spark, path)
    columns = len(np.unique(open_labels(path, "longitude")))
    rows = "cast(round({} * {}) AS int) AS y"
    places = "cast(pmod(round({} * {}), {}) AS int) AS x"
    left = frame.selectExpr(
        "*",
        "date_trunc('hour', at + interval 30 minutes) AS hour",
        rows.format("lat", columns / 360),
        places.format("lon", columns / 360, columns),
    )
    right = cells.selectExpr(
        "cast(time AS timestamp) AS hour",
        rows.format("latitude", columns / 360),
        places.format("longitude", columns / 360, columns),
        "t2m",
    )
    return left.join(right, ["hour", "y", "x"], "left")


def open_labels(path: str, dim: str) -> Any:
    import zarr

    return zarr.open_group(reference_store(path), mode="r")[dim][:]


def check(spark: SparkSession, path: str, points: str) -> None:
    """Check that all contestants find the same values."""
    ours = sampled(spark, path, points, "nearest").selectExpr("count(t2m)", "sum(t2m)").first()
    theirs = select_with_xarray(path, points)
    if ours[0] != len(theirs) or not np.isclose(ours[1], theirs.sum(dtype="f8")):
        raise AssertionError(f"sampled {ours}, xarray {len(theirs)}, {theirs.sum(dtype='f8')}")


def fetched(path: str, points: str) -> dict[str, Any]:
    """Sample in this process and compare the bytes of chunks with the ideal."""
    import pyarrow.parquet as pq

    from icechunk_format.options.read import ReadRequest
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset
    from icechunk_format.tables.reading import run_scan
    from icechunk_format.workflows.sampling import Sampler, SampleRequest, plan_sample

    table = pq.read_table(points).slice(0, 1_000_000)
    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve(branch="main"))
    columns = {dim: table[name].combine_chunks() for dim, name in ON.items()}
    request = SampleRequest(
        points={dim: (ON[dim], c.type) for dim, c in columns.items()}, read=ReadRequest(path=path)
    )
    sampler = Sampler(plan_sample(dataset, request))
    places = sampler.find(list(columns.values()))
    wanted = len(np.unique(sampler.chunk_of(places)))
    with RequestLog() as log:
        sampler.sample(places)
    refs = dataset.plan(dataset.table("refs", variables=["t2m"]))
    sizes = {
        f"chunks/{ref['chunk_id']}": ref["length"]
        for task in refs.tasks
        for batch in run_scan(refs.context, task)
        for ref in batch.to_pylist()
    }
    read = [(key, size) for key, size in log.reads if key in sizes]
    ideal = sum(sizes[key] for key in {key for key, _ in read})
    return {
        "chunks_of_array": len(sizes),
        "chunks_with_points": wanted,
        "chunk_requests": len(read),
        "bytes_by_ideal": round(sum(size for _, size in read) / ideal, 3),
    }
