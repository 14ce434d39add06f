"""Measures the costs of planning queries, of enormous tables, and of a distant repository.

The optimizer's rule is called in each query. Plans without our reads are compared with those of a
session without the rule, plans of a read with those of the same session without pushdown. Enormous
tables have a snapshot, and no manifest, so a query that opened one would fail.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from helpers.servers.s3 import running_s3_server
from measurement import Row, in_fresh_process, interleaved, row
from peers.repositories import S3Place, upload
from peers.slow_network import delayed_apart
from reading.planning import CHUNK, CHUNKS_PER_MANIFEST, write_snapshot

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from reading.queries import Query

BENCHMARK = "queries"
DELAY_S = 0.05
PLANS = 100
PLANS_OF_A_READ = 20
FAR = ("average of a box of 1 %", "average of one hour")


def costs(
    spark: SparkSession,
    folder: Path,
    path: str,
    queries: Mapping[str, Query],
    options: Namespace,
) -> list[Row]:
    warm_up = options.scale >= 0.1
    return [
        *planning(spark, path, options.rounds, warm_up=warm_up),
        *count_of_many(spark, folder / "many", options),
        chunks_of_many(folder / "enormous", options),
        *far_away(spark, path, queries, options.rounds, warm_up=warm_up),
    ]


# -- planning --------------------------------------------------------------------------------------


def planning(spark: SparkSession, path: str, rounds: int, *, warm_up: bool) -> list[Row]:
    """Plan many different queries with and without the rule; nothing runs."""
    plain = spark.newSession()
    spark.read.format("icechunk").load(path).createOrReplaceTempView("maps")
    numbers = itertools.count()
    with_rule, without_rule = f"{PLANS} plans without our reads", f"{PLANS} plans, no rule"
    of_read = f"{PLANS_OF_A_READ} plans of a read"
    not_pushed = f"{of_read}, not pushed"
    cases: dict[str, Any] = {
        with_rule: partial(plan_ranges, spark, numbers),
        without_rule: partial(plan_ranges, plain, numbers),
        of_read: partial(plan_reads, spark, numbers, "true"),
        not_pushed: partial(plan_reads, spark, numbers, "false"),
    }
    timings = interleaved(cases, rounds=max(rounds, 3), warm_up=warm_up)

    def more(case: str, other: str, plans: int, most_ms: int) -> Row:
        """Return the row of the median time that a case takes beyond another."""
        beyond = sorted(a - b for a, b in zip(timings[case].wall, timings[other].wall, strict=True))
        seconds = max(0.0, beyond[len(beyond) // 2])
        return Row(
            benchmark=BENCHMARK,
            case=f"{case}, beyond planning",
            wall_s=seconds,
            goal=f"<= {plans * most_ms / 1000:g} s",
            figures={"ms_of_a_plan": round(seconds * 1000 / plans, 2)},
        )

    return [
        more(with_rule, without_rule, PLANS, 1),
        more(of_read, not_pushed, PLANS_OF_A_READ, 60),
        *(row(BENCHMARK, case, timings) for case in cases),
    ]


def plan(frame: DataFrame) -> None:
    frame._jdf.queryExecution().executedPlan()  # type: ignore[operator]


def plan_ranges(spark: SparkSession, numbers: itertools.count[int]) -> None:
    for number in itertools.islice(numbers, PLANS):
        plan(spark.sql(f"SELECT id % 7, count(*) FROM range(100) WHERE id > {number} GROUP BY 1"))


def plan_reads(spark: SparkSession, numbers: itertools.count[int], pushdown: str) -> None:
    """Plan queries with different conditions, in turn rows and aggregates."""
    spark.conf.set("icechunk.pushdown", pushdown)
    try:
        for number in itertools.islice(numbers, PLANS_OF_A_READ):
            found = "latitude, avg(t2m)" if number % 2 else "latitude, t2m"
            condition = f"WHERE longitude >= {number % 1000 / 10}"
            tail = "GROUP BY latitude" if number % 2 else ""
            plan(spark.sql(f"SELECT {found} FROM maps {condition} {tail}"))
    finally:
        spark.conf.unset("icechunk.pushdown")


# -- enormous tables -------------------------------------------------------------------------------


def count_of_many(spark: SparkSession, path: Path, options: Namespace) -> list[Row]:
    """Count the cells of a table of a billion, and those of a tenth of it, from the load."""
    chunks = max(10, round(1_000 * options.scale))
    write_snapshot(str(path), 1, chunks)
    cells = chunks * CHUNK[1] * CHUNK[2]

    def count(condition: str) -> int:
        frame = spark.read.format("icechunk").load(str(path))
        return frame.where(condition).count()

    whole, part = f"count(*) of {cells:,} cells", f"count(*) of a tenth of {cells:,} cells"
    cases = {
        whole: partial(count, "true"),
        part: partial(count, f"time < {chunks // 10}"),
    }
    if [ask() for ask in cases.values()] != [cells, cells // chunks * (chunks // 10)]:
        raise AssertionError("other numbers of cells")
    timings = interleaved(cases, rounds=options.rounds, warm_up=False)
    return [row(BENCHMARK, case, timings, goal="<= 1 s") for case in cases]


def chunks_of_many(path: Path, options: Namespace) -> Row:
    """Plan a query of one hour of a billion chunks, in a driver that did nothing else."""
    manifests = max(2, round(10_000 * options.scale))
    chunks = manifests * CHUNKS_PER_MANIFEST
    write_snapshot(str(path), manifests, CHUNKS_PER_MANIFEST)
    found = in_fresh_process(ask_many_chunks, str(path), chunks, options.rounds)
    seconds = sorted(found.value["seconds"])
    return Row(
        benchmark=BENCHMARK,
        case=f"df.where of one of {chunks:,} chunks, from the load to its plan",
        wall_s=seconds[len(seconds) // 2],
        peak_mb=found.peak_mb,
        goal="<= 3 s, <= 300 MB",
        figures={
            "first_s": round(found.value["seconds"][0], 3),
            "mb_without_the_query": round(found.value["before_mb"]),
        },
    )


def ask_many_chunks(path: str, chunks: int, rounds: int) -> dict[str, Any]:
    """Load, restrict to one chunk and plan, in a Spark of its own; then count its cells."""
    from measurement import peak_memory_mb
    from run import running_spark

    with running_spark(Path(path).parent) as spark:
        small = Path(path).with_name("small")
        write_snapshot(str(small), 1, 10)
        # Heavy imports of the driver, and the rule, before the measurement.
        spark.read.format("icechunk").load(str(small)).where("time = 5").count()
        before = peak_memory_mb()
        seconds = []
        for number in range(rounds):
            started = time.perf_counter()
            frame = spark.read.format("icechunk").load(path)
            chosen = frame.where(f"time = {chunks // 2 + number}")
            plan(chosen.select("t2m"))
            seconds.append(time.perf_counter() - started)
            if chosen.count() != CHUNK[1] * CHUNK[2]:
                raise AssertionError("other cells")
        return {"seconds": seconds, "before_mb": before}


# -- a distant repository --------------------------------------------------------------------------


def far_away(
    spark: SparkSession,
    path: str,
    queries: Mapping[str, Query],
    rounds: int,
    *,
    warm_up: bool,
) -> list[Row]:
    """Ask for a box and an hour of a repository on S3, behind round trips of 50 ms."""
    from reading.queries import ask_datafusion, ask_spark, xarray_context

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_s3_server())
        near = S3Place.on(server, server.new_bucket(), "maps")
        upload(Path(path), server.raw_store(near.bucket), near.prefix)
        address = urlsplit(server.endpoint_url)
        port = stack.enter_context(
            delayed_apart(str(address.hostname), int(address.port or 80), DELAY_S)
        )
        endpoint = f"http://127.0.0.1:{port}"
        far = replace(near, endpoint_url=endpoint)
        reader = spark.read.format("icechunk")
        for name, value in {**near.options, "endpoint_url": endpoint}.items():
            reader = reader.option(f"storage.{name}", value)
        reader.load(far.url).createOrReplaceTempView("far")
        context = xarray_context(far)
        cases: dict[str, Any] = {}
        for name in FAR:
            cases[f"{name} at 50 ms, Spark"] = partial(ask_spark, spark, queries[name], "far")
            cases[f"{name} at 50 ms, xarray-sql"] = partial(ask_datafusion, context, queries[name])
        timings = interleaved(cases, rounds=rounds, warm_up=warm_up)
    rows = []
    for name in FAR:
        own, peer = f"{name} at 50 ms, Spark", f"{name} at 50 ms, xarray-sql"
        goal = queries[name].goal
        rows += [
            row(BENCHMARK, own, timings, versus=peer, goal=goal),
            row(BENCHMARK, peer, timings),
        ]
    return rows
