"""Scans an array on a distant S3 store, with round trips of 0, 20 and 100 ms.

The server is a real one on this machine. A proxy delays each byte and limits no bandwidth; the case
without delay goes through the proxy, too.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from helpers.servers.s3 import running_s3_server
from measurement import Row, interleaved, row
from peers.repositories import build_grid, upload
from peers.slow_network import delayed
from reading.full_scan import drain

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "distant"
DELAYS_MS = (0, 20, 100)


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    grid = build_grid(folder, options.scale)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_s3_server())
        near = server.storage_options
        bucket = server.new_bucket()
        url = f"s3://{bucket}/grid"
        upload(Path(grid.path), server.raw_store(bucket), "grid")
        address = urlsplit(server.endpoint_url)
        cases: dict[str, Any] = {}
        for delay in DELAYS_MS:
            port = stack.enter_context(
                delayed(str(address.hostname), int(address.port or 80), delay / 1000)
            )
            far = {**near, "endpoint_url": f"http://127.0.0.1:{port}"}
            for group in ("planes", "tiles"):
                cases[f"{group}, {delay} ms"] = partial(scan, spark, url, group, far)
        # The first scan starts Spark's workers, with any delay.
        cases["planes, 0 ms"]()
        timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    rows = []
    for case, timing in timings.items():
        group, _, wire = case.partition(", ")
        first = wire == "0 ms"
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus="" if first else f"{group}, 0 ms",
                goal="" if first else "ratio >= 0.8",
                figures={"Mrows_per_s": round(grid.cells / timing.wall_s / 1e6, 2)},
            )
        )
    return rows


def load(spark: SparkSession, url: str, group: str, options: dict[str, str]) -> DataFrame:
    reader = spark.read.format("icechunk").option("group", group)
    for name, value in options.items():
        reader = reader.option(f"storage.{name}", value)
    return reader.load(url)


def scan(spark: SparkSession, url: str, group: str, options: dict[str, str]) -> None:
    """Load the table and read all rows, like a job without cached data of the repository."""
    drain(load(spark, url, group, options))
