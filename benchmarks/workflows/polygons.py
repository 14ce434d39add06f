"""Averages an hourly grid in polygons, compared with ``summary``, exactextract and a join.

Polygons are cells around random points. Their borders are distorted on three scales, neighbours
share borders, and all polygons together cover the world. The ideal is the stored bytes of the
chunks under a polygon, each fetched once. The layout ``summary`` reads and sums the same array
without polygons.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import RequestLog, Row, interleaved, row
from peers.repositories import reference_store
from workflows.points import build

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "polygons"
# A join of all hours would take longer than all other cases together.
JOIN = "join of a tenth of the hours"
ALL = ["count", "mean", "min", "max", "std"]


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    """Measure; scale 1 is an array of 250 million cells and 3,000 polygons."""
    path, shape, _ = build(folder / "grid", options.scale)
    zones = make_zones(folder / "zones.parquet", 3000 if options.scale >= 0.02 else 50)
    check(spark, path, zones)
    cases: dict[str, Any] = {
        "zonal mean": partial(zonal, spark, path, zones, ["mean"]),
        "zonal, five statistics": partial(zonal, spark, path, zones, ALL),
        "summary": partial(summary, spark, path),
        "exactextract alone": partial(exactextract_alone, path, zones),
        JOIN: partial(join, spark, path, zones),
    }
    timings = interleaved(cases, rounds=options.rounds, warm_up=False)
    figures: dict[str, Any] = {
        "cells": int(np.prod(shape)),
        "polygons": len(read_zones(zones)),
        "rows": len(read_zones(zones)) * shape[0],
        **fetched(path, zones),
    }
    return [
        row(
            BENCHMARK,
            "zonal mean",
            timings,
            versus="summary",
            goal="ratio >= 0.5; bytes = ideal",
            figures=figures,
        ),
        row(BENCHMARK, "zonal, five statistics", timings, versus="summary"),
        row(BENCHMARK, "summary", timings),
        row(BENCHMARK, "exactextract alone", timings, versus="zonal mean"),
        row(BENCHMARK, JOIN, timings, versus="zonal mean"),
    ]


def make_zones(file: Path, count: int) -> str:
    """Write polygons that cover the world, in four row groups, and return their file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import shapely

    random = np.random.default_rng(29)
    world = shapely.box(-180, -85, 180, 85)
    points = shapely.multipoints(random.uniform((-180, -85), (180, 85), (count, 2)))
    cells = shapely.get_parts(shapely.voronoi_polygons(points, extend_to=world))
    fine = shapely.segmentize(shapely.intersection(cells, world), 0.1)
    waves = [(random.uniform(0, 2 * np.pi, 2), 4.0**n) for n in range(3) for _ in range(3)]

    def bend(points: np.ndarray) -> np.ndarray:
        moved = points.copy()
        for (angle, phase), pitch in waves:
            along = points @ [np.cos(angle), np.sin(angle)]
            shift = 0.2 / pitch * np.sin(pitch * along + phase)
            moved += shift[:, None] * [-np.sin(angle), np.cos(angle)]
        return moved

    bent = shapely.transform(fine, bend)
    bent = bent[shapely.is_valid(bent)]
    table = pa.table({"zone": np.arange(len(bent)), "geometry": shapely.to_wkb(bent).tolist()})
    pq.write_table(table, file, row_group_size=count // 4 + 1)
    return str(file)


def read_zones(zones: str) -> list[bytes]:
    import pyarrow.parquet as pq

    found: list[bytes] = pq.read_table(zones).column("geometry").to_pylist()
    return found


def zonal(spark: SparkSession, path: str, zones: str, statistics: list[str]) -> None:
    zonal_frame(spark, path, zones, statistics).write.format("noop").mode("overwrite").save()


def zonal_frame(spark: SparkSession, path: str, zones: str, statistics: list[str]) -> DataFrame:
    import icechunk_spark

    frame = spark.read.parquet(zones)
    return icechunk_spark.zonal(frame, path, variables=["t2m"], statistics=statistics)


def summary(spark: SparkSession, path: str) -> None:
    import icechunk_spark

    frame = icechunk_spark.read(spark, path, layout="summary")
    frame.write.format("noop").mode("overwrite").save()


def exactextract_alone(path: str, zones: str) -> Any:
    """Compute the cover once by exactextract, and multiply it with each step, in one process."""
    import xarray as xr
    from scipy.sparse import csr_array

    from icechunk_format.workflows.zonal.axes import cell_axis
    from icechunk_format.workflows.zonal.exact import coverage_fractions

    opened = xr.open_zarr(reference_store(path), consolidated=False, zarr_format=3, chunks=None)
    lat, lon = opened["latitude"].values, opened["longitude"].values
    step = lon[1] - lon[0]
    # Whole cells from the pole on, and the world twice: zones begin at -180, the grid at 0.
    y, x = cell_axis("y", lat), cell_axis("x", lon)
    import shapely

    def place(points: np.ndarray) -> np.ndarray:
        return np.stack(
            [x.position(points[:, 0]) + 180 / step, y.size - y.position(points[:, 1])], axis=1
        )

    width = x.size
    moved = shapely.to_wkb(shapely.transform(shapely.from_wkb(read_zones(zones)), place))
    extent = (-float(width // 2), 0.0, float(width + width // 2), float(y.size))
    numbers, cells, fractions = coverage_fractions(moved, extent)
    rows, columns = np.divmod(cells, 2 * width)
    columns = (columns - width // 2 - width // 2) % width
    shape = (len(moved), y.size * width)
    matrix = csr_array((fractions, (numbers, rows * width + columns)), shape=shape)
    weights = matrix.sum(axis=1)
    hours = opened["t2m"]
    return np.stack(
        [
            matrix @ one.reshape(-1).astype("f8") / weights
            for first in range(0, len(hours), 24)
            for one in hours[first : first + 24].values
        ]
    )


def join(spark: SparkSession, path: str, zones: str) -> None:
    """Join cells with the zone at their label, as users do without `zonal`, and average."""
    joined(spark, path, zones).write.format("noop").mode("overwrite").save()


def joined(spark: SparkSession, path: str, zones: str) -> DataFrame:
    import shapely
    import xarray as xr

    import icechunk_spark

    opened = xr.open_zarr(reference_store(path), consolidated=False, zarr_format=3, chunks=None)
    lat, lon = opened["latitude"].values, opened["longitude"].values
    xs, ys = np.meshgrid((lon + 180) % 360 - 180, lat)
    tree = shapely.STRtree(shapely.from_wkb(read_zones(zones)))
    cell, zone = tree.query(shapely.points(xs.reshape(-1), ys.reshape(-1)), predicate="within")
    import pandas as pd

    y, x = np.divmod(cell, len(lon))
    # Labels to a hundredth of a degree, as a join on floating-point numbers needs.
    labels = pd.DataFrame(
        {
            "y": np.round(lat[y] * 100).astype("i4"),
            "x": np.round(lon[x] * 100).astype("i4"),
            "zone": zone,
        }
    )
    hours = slice(0, max(1, opened.sizes["time"] // 10))
    cells = icechunk_spark.read(spark, path, isel={"time": hours}).selectExpr(
        "time",
        "cast(round(latitude * 100) AS int) AS y",
        "cast(round(longitude * 100) AS int) AS x",
        "t2m",
    )
    pairs = cells.join(spark.createDataFrame(labels).hint("broadcast"), ["y", "x"])
    return pairs.groupBy("zone", "time").avg("t2m")


def check(spark: SparkSession, path: str, zones: str) -> None:
    """Check that exactextract finds the same means."""
    theirs = exactextract_alone(path, zones)
    ours = (
        zonal_frame(spark, path, zones, ["mean"])
        .toArrow()
        .sort_by([("time", "ascending"), ("zone", "ascending")])
    )
    found = ours.column("t2m_mean").to_numpy().reshape(theirs.shape)
    if not np.allclose(found, theirs, rtol=1e-6):
        raise AssertionError(f"means differ by {np.abs(found - theirs).max()}")


def fetched(path: str, zones: str) -> dict[str, Any]:
    """Run the steps in this process for a tenth of the polygons, and count bytes of chunks."""
    import pyarrow as pa

    from icechunk_format.options.read import ReadRequest
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset
    from icechunk_format.tables.reading import run_scan
    from icechunk_format.workflows.zonal import Covering, Summing, ZonalRequest, plan_zonal

    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve(branch="main"))
    read = ReadRequest(path=path, variables=("t2m",))
    context = plan_zonal(dataset, ZonalRequest(statistics=("mean",), cores=2), read)
    some = pa.record_batch({"geometry": pa.array(read_zones(zones)[::10], pa.binary())})
    rows = pa.Table.from_batches(Covering(context, [], 0).rows(some)).sort_by("task")
    columns = {task // context.split_count for task in rows.column("task").to_pylist()}
    with RequestLog() as log:
        for _ in Summing(context).rows(rows.to_batches()):
            pass
    refs = dataset.plan(dataset.table("refs", variables=["t2m"]))
    width = context.columns[1].count
    sizes, under = {}, set()
    for task in refs.tasks:
        for batch in run_scan(refs.context, task):
            for ref in batch.to_pylist():
                key = f"chunks/{ref['chunk_id']}"
                sizes[key] = ref["length"]
                if ref["chunk"][1] * width + ref["chunk"][2] in columns:
                    under.add(key)
    read = [(key, size) for key, size in log.reads if key in sizes]
    return {
        "chunks_of_array": len(sizes),
        "chunks_under_a_tenth": len(under),
        "chunk_requests": len(read),
        "bytes_by_ideal": round(
            sum(size for _, size in read) / max(1, sum(sizes[key] for key in under)), 3
        ),
    }
