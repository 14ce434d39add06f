"""Runs natural queries of a table in SQL, beside xarray and xarray-sql on the same repository.

The table has 25 million cells of four variables at scale 1, in maps of one hour each. Contestants
keep it open, as in a session of questions; each query is planned, read and returned. xarray runs in
this process, as do the tasks of one query; xarray-sql (DataFusion) uses all cores, as does Spark.
Ratios include the fixed cost of a Spark job, which an empty one with the same plan measures.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import Row, interleaved, row
from peers.repositories import DIMS, new_repository, reference_store, temperatures
from pyspark.sql import functions as F
from reading.full_scan import drain
from reading.query_costs import costs

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from pathlib import Path

    from peers.repositories import S3Place
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "queries"
VARIABLES = ("t2m", "d2m", "skt", "sst")
# Warmer than the measured fields, so that some cells are above 320 K.
WARMER_K = np.float32(28)
BOX = "latitude BETWEEN {} AND {} AND longitude BETWEEN {} AND {}"


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query in SQL, the same in xarray, and whether Spark shuffles rows of groups."""

    sql: str
    in_xarray: Callable[[Any], Any]
    goal: str = "ratio >= 1"
    is_grouped: bool = False


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    path = str(folder / "maps")
    shape = build_table(folder / "maps", options.scale)
    warm_up = options.scale >= 0.1
    return [
        *beside_peers(spark, path, shape, options.rounds, warm_up=warm_up),
        *against_options(spark, path, shape, options.rounds, warm_up=warm_up),
        *costs(spark, folder, path, queries_of(shape), options),
    ]


def build_table(path: Path, scale: float) -> tuple[int, int, int]:
    """Write four variables, a chunk for each hour; return the shape of each."""
    import zarr

    steps = max(2, round(24 * scale))
    shape = (steps, *((721, 1440) if scale >= 1 / 12 else (145, 288)))
    values = temperatures(shape) + WARMER_K
    session = new_repository(path).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    for dim, labels in zip(DIMS, coordinates(shape), strict=True):
        units = {"units": "hours since 2024-07-01"} if dim == "time" else {}
        root.create_array(dim, data=labels, dimension_names=[dim], attributes=units)
    for number, name in enumerate(VARIABLES):
        root.create_array(
            name,
            data=np.roll(values, number * 7, axis=2),
            chunks=(1, *shape[1:]),
            dimension_names=DIMS,
            fill_value=0.0,
        )
    session.commit("four variables")
    return shape


def coordinates(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    steps, rows, columns = shape
    return (
        np.arange(steps, dtype="int64"),
        np.linspace(90, -90, rows),
        np.linspace(0, 360, columns, endpoint=False),
    )


def queries_of(shape: tuple[int, int, int]) -> dict[str, Query]:
    """Return the queries, by what they ask."""
    north, south, west, east = edges_of(shape)
    box = box_of(shape)
    hour = "2024-07-01 01:00:00"
    return {
        "average by latitude": Query(
            sql="SELECT latitude, avg(t2m) AS mean FROM {} GROUP BY latitude",
            in_xarray=lambda t2m: t2m.mean(("time", "longitude")).values,
            is_grouped=True,
        ),
        "average": Query(
            sql="SELECT avg(t2m) AS mean FROM {}", in_xarray=lambda t2m: t2m.mean().values
        ),
        "average of a box of 1 %": Query(
            sql=f"SELECT avg(t2m) AS mean FROM {{}} WHERE {box}",
            in_xarray=lambda t2m: (
                t2m.sel(latitude=slice(north, south), longitude=slice(west, east)).mean().values
            ),
        ),
        "average of one hour": Query(
            sql=f"SELECT avg(t2m) AS mean FROM {{}} WHERE time = TIMESTAMP_NTZ '{hour}'",
            in_xarray=lambda t2m: t2m.sel(time=hour).mean().values,
            goal="<= 1 s",
        ),
        "cells above 320 K by hour": Query(
            sql="SELECT time, count(*) AS cells FROM {} WHERE t2m > 320 GROUP BY time",
            in_xarray=lambda t2m: (t2m > 320).sum(("latitude", "longitude")).values,
            is_grouped=True,
        ),
        "count(*)": Query(
            sql="SELECT count(*) AS cells FROM {}",
            in_xarray=lambda t2m: np.array(t2m.size),
            goal="<= 1 s",
        ),
    }


def edges_of(shape: tuple[int, int, int], turn: int = 0) -> tuple[float, float, float, float]:
    """Return the labels of a box of a tenth of each side of a map; turns move it to the east."""
    _, latitude, longitude = coordinates(shape)
    rows, columns = shape[1] // 10, shape[2] // 10
    top, left = shape[1] // 4, shape[2] // 3 + turn % (shape[2] // 2)
    north, south = latitude[top], latitude[top + rows - 1]
    west, east = longitude[left], longitude[left + columns - 1]
    return float(north), float(south), float(west), float(east)


def box_of(shape: tuple[int, int, int], turn: int = 0) -> str:
    north, south, west, east = edges_of(shape, turn)
    return BOX.format(south, north, west, east)


# -- beside peers ----------------------------------------------------------------------------------


def beside_peers(
    spark: SparkSession, path: str, shape: tuple[int, int, int], rounds: int, *, warm_up: bool
) -> list[Row]:
    queries = queries_of(shape)
    spark.read.format("icechunk").load(path).createOrReplaceTempView("maps")
    context = xarray_context(path)
    cases: dict[str, Any] = {}
    for name, query in queries.items():
        cases[f"{name}, Spark"] = partial(ask_spark, spark, query, "maps")
        cases[f"{name}, xarray-sql"] = partial(ask_datafusion, context, query)
        cases[f"{name}, xarray"] = partial(ask_xarray, path, query)
        check(cases, name)
    for kind in ("one row", "groups"):
        cases[f"empty job, {kind}"] = partial(ask_nothing, spark, kind)
    by_latitude, *_ = queries
    ours, rows_way = f"{by_latitude}, Spark", f"{by_latitude}, rows in Spark"
    alone = f"{by_latitude}, tasks in this process"
    cases[rows_way] = partial(ask_without_pushdown, spark, queries[by_latitude], "maps")
    cases[alone] = partial(run_tasks, path)
    timings = interleaved(cases, rounds=rounds, warm_up=warm_up)
    rows: list[Row] = []
    for name, query in queries.items():
        own = f"{name}, Spark"
        empty = timings[f"empty job, {'groups' if query.is_grouped else 'one row'}"].wall_s
        theirs = timings[f"{name}, xarray-sql"].wall_s
        figures: dict[str, float | int | str] = {
            "xarray_s": round(timings[f"{name}, xarray"].wall_s, 3),
            "empty_job_s": round(empty, 3),
            "ratio_beyond_empty_job": round(
                theirs / max(timings[own].wall_s - empty, empty / 100), 2
            ),
        }
        goal, peer = query.goal, f"{name}, xarray-sql"
        rows.append(row(BENCHMARK, own, timings, versus=peer, goal=goal, figures=figures))
        rows += [row(BENCHMARK, case, timings) for case in (peer, f"{name}, xarray")]
    rows.append(row(BENCHMARK, ours, timings, versus=rows_way, goal="ratio >= 5"))
    rows.append(row(BENCHMARK, rows_way, timings))
    peer = f"{by_latitude}, xarray"
    rows.append(row(BENCHMARK, alone, timings, versus=peer, goal="ratio >= 0.8"))
    rows += [row(BENCHMARK, case, timings) for case in cases if case.startswith("empty")]
    return rows


def ask_spark(spark: SparkSession, query: Query, table: str) -> np.ndarray:
    return values_of(spark.sql(query.sql.format(table)).toArrow(), query)


def ask_without_pushdown(spark: SparkSession, query: Query, table: str) -> np.ndarray:
    """Send all rows to Spark, which filters and aggregates them."""
    spark.conf.set("icechunk.pushdown", "false")
    try:
        return ask_spark(spark, query, table)
    finally:
        spark.conf.unset("icechunk.pushdown")


def ask_nothing(spark: SparkSession, kind: str) -> Any:
    """Run an aggregate of the same stages on two partitions without rows."""
    frame = spark.range(0, 0, 1, 2)
    grouped = frame.groupBy("id") if kind == "groups" else frame.groupBy()
    return grouped.agg(F.avg("id").alias("mean")).toArrow()


def xarray_context(place: Path | S3Place | str) -> Any:
    """Return DataFusion with the table `maps`, one partition for each chunk."""
    import xarray_sql

    context = xarray_sql.Context()
    context.from_dataset("maps", open_with_xarray(place), chunks={"time": 1})
    return context


def open_with_xarray(place: Path | S3Place | str) -> Any:
    import xarray as xr

    return xr.open_zarr(
        reference_store(place), consolidated=False, zarr_format=3, chunks=None
    )  # fmt: skip


def ask_datafusion(context: Any, query: Query) -> np.ndarray:
    sql = query.sql.format("maps").replace("TIMESTAMP_NTZ", "TIMESTAMP")
    return values_of(context.sql(sql).to_arrow_table(), query)


def ask_xarray(path: str, query: Query) -> np.ndarray:
    return np.atleast_1d(query.in_xarray(open_with_xarray(path)["t2m"]))


def values_of(found: Any, query: Query) -> np.ndarray:
    """Return the last column of an Arrow table, in the order of xarray."""
    if query.is_grouped:
        # Latitudes descend in the arrays.
        is_latitude = found.column_names[0] == "latitude"
        found = found.sort_by(
            [(found.column_names[0], "descending" if is_latitude else "ascending")]
        )
    values: np.ndarray = found.column(found.num_columns - 1).to_numpy()
    return values


def check(cases: dict[str, Any], name: str) -> None:
    found = [cases[f"{name}, {who}"]() for who in ("Spark", "xarray-sql", "xarray")]
    if not all(np.allclose(one, found[-1], rtol=1e-5) for one in found):
        raise AssertionError(f"the contestants answer differently: {name}: {found}")


def run_tasks(path: str) -> int:
    """Open, plan and run the tasks of the average by latitude, and count their rows."""
    from icechunk_format.options.parse import parse_read_options
    from icechunk_format.tables import requested_dataset, requested_table, selecting
    from icechunk_format.tables.aggregates import MeasureRequest, plan_partials
    from icechunk_format.tables.reading.layouts.partials import run_partials
    from icechunk_format.tables.reading.layouts.segments import Measure

    request = parse_read_options({"path": path})
    dataset = requested_dataset(request, None)
    table = requested_table(request, dataset)
    plan = plan_partials(
        request,
        dataset,
        table,
        dims=["latitude"],
        measures=[MeasureRequest("t2m", Measure(wanted=frozenset({"total"})))],
        selection=dataset.choose(table, **selecting(request, "UTC")),
        time_zone="UTC",
        cores=1,
    )
    return sum(b.num_rows for task in plan.tasks for b in run_partials(plan.context, task))


# -- against options -------------------------------------------------------------------------------


def against_options(
    spark: SparkSession, path: str, shape: tuple[int, int, int], rounds: int, *, warm_up: bool
) -> list[Row]:
    """Compare `where` and `select` of a DataFrame with options; each round has another box."""
    frame = load(spark, path)
    turns = {name: itertools.count() for name in ("where", "loaded", "option")}
    by_where, by_option = "rows of a box of 1 %, df.where", "rows of a box of 1 %, option where"
    from_load = f"{by_where} from the load"
    one, four = "rows of one of four variables", "rows of four variables"
    none = "rows of a condition that no cell meets"

    def box(name: str) -> str:
        return box_of(shape, next(turns[name]))

    cases: dict[str, Any] = {
        by_where: lambda: frame.where(box("where")).toArrow(),
        from_load: lambda: load(spark, path).where(box("loaded")).toArrow(),
        by_option: lambda: load(spark, path, where=box("option")).toArrow(),
        one: lambda: drain(load(spark, path).select(VARIABLES[0])),
        four: lambda: drain(load(spark, path).select(*VARIABLES)),
        none: lambda: load(spark, path).where("time = TIMESTAMP_NTZ '2030-01-01'").toArrow(),
    }
    found = [cases[name]() for name in (by_where, from_load, by_option)]
    sums = {np.sum(rows.column("t2m").to_numpy(), dtype="f8").round(3) for rows in found}
    if len(sums) != 1 or not (cells := found[0].num_rows):
        raise AssertionError("conditions and the option select different cells")
    if cases[none]().num_rows:
        raise AssertionError("a cell meets the condition")
    timings = interleaved(cases, rounds=rounds, warm_up=warm_up)
    figures = {"cells": cells}
    return [
        row(BENCHMARK, by_where, timings, versus=by_option, goal="ratio >= 0.9", figures=figures),
        row(BENCHMARK, from_load, timings, versus=by_option),
        row(BENCHMARK, by_option, timings),
        row(BENCHMARK, one, timings, versus=four, goal="ratio >= 1.8"),
        row(BENCHMARK, four, timings),
        row(BENCHMARK, none, timings, goal="<= 0.3 s"),
    ]


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("icechunk").options(**options).load(path)
