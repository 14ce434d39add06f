"""Measures copies as Delta tables: the cost of a copy and a refresh, and the time of queries.

The same DataFrame query runs on the copy and on ``icechunk_spark.read``, and its result is compared
with xarray. Points and boxes are also selected from the repository with ``sel``, which fetches only
the necessary chunks. The grid has 100 days of four variables, with a chunk for each day.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, row
from peers.repositories import DIMS, reference_store, temperatures
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "mirror"
DAYS = 100
VARIABLES = ("t2m", "u10", "v10", "sp")
QUESTIONS = ("average", "by latitude", "point", "box of 1 %", "join", "two of four columns")
LATER = "ratio >= 5"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    import icechunk_spark

    side = max(20, round(500 * options.scale**0.5))
    path, target = str(folder / "grid"), str(folder / "copy")
    build(path, side)
    copied = icechunk_spark.mirror(spark, path, target)
    names = spark.createDataFrame(
        [(float(n), f"band {n // 10}") for n in range(side)], "longitude double, band string"
    )
    asked = partial(answers, side=side, names=names)
    frames = {
        "copy": lambda: icechunk_spark.mirrored(spark, target),
        "repository": lambda: icechunk_spark.read(spark, path),
    }
    cases: dict[str, Callable[[], Any]] = {}
    for question in QUESTIONS:
        for name, frame in frames.items():
            cases[f"{question}, {name}"] = partial(ask, asked, frame, question)
        cases[f"{question}, xarray"] = partial(with_xarray, path, question, side)
    for question in ("point", "box of 1 %"):
        cases[f"{question}, repository with sel"] = partial(
            with_sel, asked, spark, path, question, side
        )
    # The time of Spark for the same number of rows that it has written, and that it generates.
    plain = str(folder / "plain")
    frames["copy"]().write.parquet(plain)
    made_up = spark.range(copied.rows).selectExpr(
        f"double(int(id / {side}) % {side}) AS latitude", "float(id % 64) AS t2m"
    )
    bounds = {"plain Parquet": lambda: spark.read.parquet(plain), "rows made up": lambda: made_up}
    for name, frame in bounds.items():
        cases[f"by latitude, {name}"] = partial(ask, asked, frame, "by latitude")
    numbers = iter(range(1_000))

    def first_query() -> Any:
        fresh = f"{target}-{next(numbers)}"
        icechunk_spark.mirror(spark, path, fresh)
        return asked(icechunk_spark.mirrored(spark, fresh), "average")

    cases["first query, copy and average"] = first_query
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    for question in QUESTIONS:
        found = [timings[f"{question}, {name}"].value for name in ("copy", "repository", "xarray")]
        if not all(np.allclose(found[0], other, rtol=1e-4) for other in found[1:]):
            raise AssertionError(f"the contestants answer differently: {question}: {found}")
    rows = [
        row(
            BENCHMARK,
            "first query, copy and average",
            timings,
            versus="average, repository",
            goal="ratio >= 1.0",
            figures={
                "Mcells": round(copied.rows / 1e6, 1),
                "copy_MB": round(copied.bytes / 1e6, 1),
                "files": copied.files_added,
            },
        )
    ]
    for question in QUESTIONS:
        case = f"{question}, copy"
        rows.append(row(BENCHMARK, case, timings, versus=f"{question}, repository", goal=LATER))
        rows.append(row(BENCHMARK, f"{question}, repository", timings))
        rows.append(row(BENCHMARK, f"{question}, xarray", timings, versus=case))
        if f"{question}, repository with sel" in timings:
            rows.append(row(BENCHMARK, f"{question}, repository with sel", timings, versus=case))
    rows.extend(
        row(BENCHMARK, f"by latitude, {name}", timings, versus="by latitude, repository")
        for name in bounds
    )
    rows.append(refresh(spark, path, target, side))
    rows.append(
        many_files(spark, folder / "many", max(50, round(10_000 * min(2.5 * options.scale, 1))))
    )
    return rows


def build(path: str, side: int) -> None:
    """Write the grid with the reference library."""
    import icechunk
    import zarr

    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    labels = {"time": np.arange(DAYS), "latitude": np.arange(side), "longitude": np.arange(side)}
    for dim, values in labels.items():
        units = {"units": "days since 2024-01-01"} if dim == "time" else {}
        kind = "int64" if dim == "time" else "float64"
        root.create_array(
            dim, data=values.astype(kind), chunks=(1_000,), dimension_names=[dim], attributes=units
        )
    values = temperatures((DAYS, side, side))
    for number, name in enumerate(VARIABLES):
        root.create_array(
            name,
            data=values + np.float32(number),
            chunks=(1, side, side),
            dimension_names=DIMS,
            fill_value=0.0,
        )
    session.commit("a hundred days")


def answers(frame: DataFrame, question: str, *, side: int, names: DataFrame) -> list[float]:
    """Return the result of a query, as numbers."""
    match question:
        case "average":
            found = frame.agg(F.avg("t2m"))
        case "by latitude":
            found = frame.groupBy("latitude").agg(F.avg("t2m").alias("mean")).orderBy("latitude")
            found = found.select("mean")
        case "point":
            where = (F.col("latitude") == side // 2) & (F.col("longitude") == side // 3)
            found = frame.where(where).orderBy("time").select(F.col("t2m").cast("double"))
        case "box of 1 %":
            edge = side // 10
            where = F.col("latitude").between(edge, 2 * edge - 1)
            where &= F.col("longitude").between(edge, 2 * edge - 1)
            found = frame.where(where).agg(F.avg("t2m"), F.count("*").cast("double"))
        case "join":
            found = frame.join(F.broadcast(names), "longitude").groupBy("band")
            found = found.agg(F.avg("t2m").alias("mean")).orderBy("mean").select("mean")
        case _:
            found = frame.agg(F.avg(F.col("u10") - F.col("sp")), F.max("u10").cast("double"))
    return [value for line in found.collect() for value in line]


def ask(asked: Any, frame: Callable[[], DataFrame], question: str) -> list[float]:
    answer: list[float] = asked(frame(), question)
    return answer


def with_sel(asked: Any, spark: SparkSession, path: str, question: str, side: int) -> list[float]:
    """Query the repository with a selection, which fetches fewer chunks than a filter."""
    import icechunk_spark

    edge = side // 10
    chosen: dict[str, Any] = {"latitude": side // 2, "longitude": side // 3}
    if question != "point":
        chosen = dict.fromkeys(("latitude", "longitude"), slice(edge, 2 * edge - 1))
    answer: list[float] = asked(
        icechunk_spark.read(spark, path, variables=["t2m"], sel=chosen), question
    )
    return answer


def with_xarray(path: str, question: str, side: int) -> list[float]:
    import xarray as xr

    opened = xr.open_zarr(reference_store(path), consolidated=False, zarr_format=3, chunks=None)
    t2m = opened["t2m"]
    match question:
        case "average":
            return [float(t2m.mean(dtype="f8"))]
        case "by latitude":
            return t2m.mean(("time", "longitude"), dtype="f8").values.tolist()
        case "point":
            return t2m.sel(latitude=side // 2, longitude=side // 3).values.tolist()
        case "box of 1 %":
            edge = slice(side // 10, 2 * (side // 10) - 1)
            box = t2m.sel(latitude=edge, longitude=edge)
            return [float(box.mean(dtype="f8")), float(box.size)]
        case "join":
            bands = t2m.mean(("time", "latitude"), dtype="f8").groupby(t2m.longitude // 10)
            return sorted(bands.mean().values.tolist())
        case _:
            difference = (opened["u10"] - opened["sp"]).mean(dtype="f8")
            return [float(difference), float(opened["u10"].max())]


def refresh(spark: SparkSession, path: str, target: str, side: int) -> Row:
    """Append a day to the hundred, and refresh the copy."""
    import icechunk
    import zarr

    import icechunk_spark

    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    values = temperatures((1, side, side))
    for name in VARIABLES:
        root[name].append(values)
    root["time"].append(np.array([DAYS]))
    session.commit("a day more")
    began = time.perf_counter()
    done = icechunk_spark.mirror(spark, path, target)
    seconds = time.perf_counter() - began
    if (done.rows, done.files_removed) != (side * side, 0):
        raise AssertionError(f"an append of a day wrote {done}")
    began = time.perf_counter()
    icechunk_spark.mirror(spark, path, f"{target}-all")
    full = time.perf_counter() - began
    return Row(
        benchmark=BENCHMARK,
        case="refresh after 1 of 100 days",
        wall_s=seconds,
        versus="a copy of all",
        ratio=full / seconds,
        goal="time follows what changed",
        figures={"rows": done.rows, "all_s": round(full, 2)},
    )


def many_files(spark: SparkSession, folder: Path, count: int) -> Row:
    """Refresh a copy of very many small files after a change of one chunk."""
    import icechunk
    import zarr

    import icechunk_spark
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.workflows.mirroring import (
        DeltaTarget,
        MirrorRequest,
        Selection,
        bring_up_to_date,
        find_files,
    )
    from icechunk_format.workflows.running import in_process

    path = str(folder / "grid")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    made = root.create_array(
        "v", shape=(count, 4), chunks=(1, 4), dtype="f4", dimension_names=["row", "column"]
    )
    made[:2] = 1
    session.commit("rows")
    target = DeltaTarget.of(str(folder / "copy"))
    request = MirrorRequest(
        read=ReadRequest(path=path),
        target=target,
        selection=Selection.of({"rowsPerPartition": 4}),
    )
    first = bring_up_to_date(request, in_process)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a")["v"][0] = 2
    session.commit("a chunk")
    began = time.perf_counter()
    done = bring_up_to_date(request, in_process)
    seconds = time.perf_counter() - began
    if (done.files_added, done.files_removed) != (1, 1):
        raise AssertionError(f"a change of one chunk wrote {done}")
    began = time.perf_counter()
    found = find_files(target)
    listed = time.perf_counter() - began
    began = time.perf_counter()
    frame = icechunk_spark.mirrored(spark, target.url)
    planned = time.perf_counter() - began
    began = time.perf_counter()
    if frame.count() != 4 * count:
        raise AssertionError(f"a copy of {count} rows of four has other rows")
    counted = time.perf_counter() - began
    return Row(
        benchmark=BENCHMARK,
        case=f"refresh of one of {first.files_added:,} files",
        wall_s=seconds,
        figures={
            "files": len(found.paths),
            "find_files_s": round(listed, 2),
            "mirrored_s": round(planned, 2),
            "count_s": round(counted, 2),
        },
    )
