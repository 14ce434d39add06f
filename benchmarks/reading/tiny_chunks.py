"""Reads tens of thousands of tiny chunks, in manifests and as objects on S3.

Each kind has two sizes, the second ten times the first. The large size is timed once: its hundred
thousand requests take minutes, so on S3 only the two compared contestants read it. The small size
with a delay of 50 ms is timed once for the same reason.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import obstore
import obstore.store
from helpers.servers.s3 import running_s3_server
from measurement import Row, in_fresh_process, interleaved, row
from peers.repositories import S3Place, build_tiny_chunks, location_of, open_reference_group
from peers.rivals import reference_rows_frame
from peers.slow_network import delayed_apart
from reading.full_scan import drain, plan_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "tiny-chunks"
GOAL = "ratio >= 5"
# Numbers in a chunk: 64 bytes go into a manifest, 1 KiB does not.
WIDTHS = {"inline": 16, "native on S3": 256, "native at 50 ms": 256}
DELAY_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """An array of tiny chunks, and the name of its rows in the report."""

    kind: str
    place: Path | S3Place
    count: int

    @property
    def name(self) -> str:
        return f"{self.count:,} {self.kind}"

    @property
    def rows(self) -> int:
        return self.count * WIDTHS[self.kind]


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    few = max(50, round(10_000 * options.scale))
    with running_s3_server() as server:
        rows = []
        for count in (few, 10 * few):
            # Chunks in manifests cost the same anywhere.
            places = {
                "inline": folder / f"tiny-{count}",
                "native on S3": S3Place.on(server, server.new_bucket(), "tiny"),
            }
            arrays = [Chunks(kind=k, place=p, count=count) for k, p in places.items()]
            for array in arrays:
                build_tiny_chunks(array.place, count, WIDTHS[array.kind])
            rows += compare(spark, arrays, options, is_large=count > few)
            if count == few:
                rows += compare_afar(spark, arrays[-1], options)
        return rows


def compare_afar(spark: SparkSession, near: Chunks, options: Namespace) -> list[Row]:
    assert isinstance(near.place, S3Place)
    address = urlsplit(near.place.endpoint_url)
    with delayed_apart(str(address.hostname), int(address.port or 80), DELAY_S) as port:
        endpoint = f"http://127.0.0.1:{port}"
        settings = {**near.place.options, "endpoint_url": endpoint}
        place = replace(near.place, endpoint_url=endpoint, options=settings)
        array = Chunks(kind="native at 50 ms", place=place, count=near.count)
        return compare(spark, [array], options, is_large=True)


def compare(
    spark: SparkSession, arrays: list[Chunks], options: Namespace, *, is_large: bool
) -> list[Row]:
    cases: dict[str, Callable[[], Any]] = {}
    for array in arrays:
        cases |= cases_of(spark, array, is_large=is_large)
    rounds = 1 if is_large else options.rounds
    warm_up = options.scale >= 0.1 and not is_large
    timings = interleaved(cases, rounds=rounds, warm_up=warm_up)
    rivals = {
        "tasks in this process": ("zarr-python", GOAL),
        "zarr-python, concurrency 128": ("zarr-python", ""),
        "plain requests by 16 threads": ("tasks in this process", ""),
        "Spark": ("Spark, reference in mapInArrow", "ratio >= 1"),
    }
    rows = []
    for array in arrays:
        ours, theirs = (
            timings[f"{array.name}, {how}"].value
            for how in ("tasks in this process", "zarr-python")
        )
        if not np.isclose(ours, theirs):
            raise AssertionError(f"the contestants read different values of {array.name} chunks")
        for case, timing in timings.items():
            name, _, how = case.partition(", ")
            if name != array.name:
                continue
            rival, goal = rivals.get(how, ("", ""))
            versus = f"{name}, {rival}" if f"{name}, {rival}" in timings else ""
            rows.append(
                row(
                    BENCHMARK,
                    case,
                    timings,
                    versus=versus,
                    goal=goal if versus else "",
                    peak_mb=peak_of(array, how) if options.memory and not is_large else None,
                    figures={"us_per_chunk": round(timing.wall_s / array.count * 1e6, 1)},
                )
            )
    return rows


def cases_of(spark: SparkSession, array: Chunks, *, is_large: bool) -> dict[str, Callable[[], Any]]:
    """Return the readers of an array, by name."""
    readers: dict[str, Callable[[], Any]] = {
        "tasks in this process": partial(run_tasks, array.place),
        "zarr-python": partial(read_with_zarr, array.place),
    }
    if isinstance(array.place, S3Place):
        if is_large:
            return {f"{array.name}, {how}": read for how, read in readers.items()}
        # Every reader sends a request for each chunk, and the server shares its processors.
        readers["zarr-python, concurrency 128"] = partial(read_with_zarr, array.place, 128)
        readers["plain requests by 16 threads"] = partial(get_all, array.place)
    frames = {"Spark": load(spark, array.place)}
    if not is_large:
        partitions = len(plan_of(location_of(array.place), "/").tasks)
        frames["Spark, reference in mapInArrow"] = reference_rows_frame(
            spark, array.place, array.count, partitions
        )
    if not all(frame.count() == array.rows for frame in frames.values()):
        raise AssertionError(f"a contestant read other rows of {array.name} chunks")
    readers |= {how: partial(drain, frame) for how, frame in frames.items()}
    return {f"{array.name}, {how}": read for how, read in readers.items()}


def peak_of(array: Chunks, how: str) -> float | None:
    """Return the memory peak of a reader of an array without Spark."""
    alone = {"tasks in this process": run_tasks, "zarr-python": read_with_zarr}.get(how)
    return None if alone is None else in_fresh_process(alone, array.place).peak_mb


def load(spark: SparkSession, place: Path | S3Place) -> DataFrame:
    reader = spark.read.format("icechunk")
    if isinstance(place, Path):
        return reader.load(str(place))
    for name, value in place.options.items():
        reader = reader.option(f"storage.{name}", value)
    return reader.load(place.url)


def get_all(place: S3Place) -> int:
    """Fetch every chunk object and drop it: the limit of the store and its client."""
    store = obstore.store.S3Store(
        place.bucket,
        prefix=place.prefix,
        endpoint=place.endpoint_url,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        region="us-east-1",
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )
    keys = [meta["path"] for page in obstore.list(store, "chunks") for meta in page]
    with ThreadPoolExecutor(16) as threads:
        return sum(threads.map(lambda key: len(obstore.get(store, key).bytes()), keys))


def run_tasks(place: Path | S3Place) -> float:
    """Open the repository afresh, run every task and add up the values."""
    from icechunk_format.repository.files import metadata_cache
    from icechunk_format.tables.reading import run_scan

    metadata_cache().clear()
    plan = plan_of(location_of(place), "/")
    return sum(
        float(batch.column("v").to_numpy().sum(dtype="f8"))
        for task in plan.tasks
        for batch in run_scan(plan.context, task)
    )


def read_with_zarr(place: Path | S3Place, concurrency: int | None = None) -> float:
    """Open the repository afresh and add up the whole array."""
    import zarr

    with zarr.config.set({"async.concurrency": concurrency} if concurrency else {}):
        return float(open_reference_group(place)["v"][:].sum(dtype="f8"))
