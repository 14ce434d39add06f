"""Ten thousand tiny chunks, in manifests and as objects on S3: what each costs beyond its bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore
import obstore.store
from full_scan import drain, plan_of
from measurement import Row, interleaved, memory_of, row
from repositories import S3Place, build_tiny_chunks, open_reference_group, upload
from rivals import reference_rows_frame
from s3_server import running_s3_server

from icechunk_format import Location

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "tiny-chunks"
GOAL = "ratio >= 5"


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    local = build_tiny_chunks(folder, options.scale)
    with running_s3_server() as server:
        bucket = server.new_bucket()
        upload(Path(local.path), server.raw_store(bucket), "tiny")
        on_s3 = S3Place.on(server, bucket, "tiny")
        # Chunks in manifests cost the same anywhere.
        places: dict[str, Path | S3Place] = {"inline": Path(local.path), "native on S3": on_s3}
        groups = {"inline": "inline", "native on S3": "native"}
        cases: dict[str, Any] = {}
        for kind, place in places.items():
            group, width = groups[kind], local.widths[groups[kind]]
            cases[f"{kind}, tasks in this process"] = partial(run_tasks, place, group)
            cases[f"{kind}, zarr-python"] = partial(read_with_zarr, place, group)
            if isinstance(place, S3Place):
                # Whatever reads chunks asks for each, and the server shares our processors.
                cases[f"{kind}, zarr-python, concurrency 128"] = partial(
                    read_with_zarr, place, group, 128
                )
                cases[f"{kind}, plain requests by 16 threads"] = partial(get_all, place)
            if not np.isclose(
                cases[f"{kind}, tasks in this process"](), cases[f"{kind}, zarr-python"]()
            ):
                raise AssertionError(f"the contestants read different values of {kind} chunks")
            ours = load(spark, place, group)
            partitions = len(plan_of(location(place), group).tasks)
            theirs = reference_rows_frame(spark, place, group, local.chunks, partitions)
            if not ours.count() == theirs.count() == local.chunks * width:
                raise AssertionError(f"the contestants read different rows of {kind} chunks")
            cases[f"{kind}, Spark"] = partial(drain, ours)
            cases[f"{kind}, Spark, reference in mapInArrow"] = partial(drain, theirs)
        timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
        memory = {
            f"{kind}, {name}": memory_of(options.memory, function, place, groups[kind])
            for kind, place in places.items()
            for name, function in (
                ("tasks in this process", run_tasks),
                ("zarr-python", read_with_zarr),
            )
        }
    rivals = {
        ", tasks in this process": (", zarr-python", GOAL),
        ", zarr-python, concurrency 128": (", zarr-python", ""),
        ", plain requests by 16 threads": (", tasks in this process", ""),
        ", Spark": (", Spark, reference in mapInArrow", "ratio >= 1"),
    }
    rows = []
    for case, timing in timings.items():
        kind, comma, which = case.partition(",")
        rival, goal = rivals.get(comma + which, ("", ""))
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus=kind + rival if rival else "",
                goal=goal,
                peak_mb=memory.get(case),
                figures={"us_per_chunk": round(timing.wall_s / local.chunks * 1e6, 1)},
            )
        )
    return rows


def load(spark: SparkSession, place: Path | S3Place, group: str) -> DataFrame:
    reader = spark.read.format("icechunk").option("group", group)
    if isinstance(place, Path):
        return reader.load(str(place))
    for name, value in place.options.items():
        reader = reader.option(f"storage.{name}", value)
    return reader.load(place.url)


def location(place: Path | S3Place) -> Location:
    if isinstance(place, Path):
        return Location(str(place))
    return Location(place.url, options=place.options)


def get_all(place: S3Place) -> int:
    """Fetch every chunk object and do nothing with it: what the store and its client allow."""
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


def run_tasks(place: Path | S3Place, group: str) -> float:
    """Open the repository afresh, run every task and add up the values."""
    from icechunk_format.dataset.scan import run_task
    from icechunk_format.repository.objects import metadata_cache

    metadata_cache().clear()
    plan = plan_of(location(place), group)
    return sum(
        float(batch.column("v").to_numpy().sum(dtype="f8"))
        for task in plan.tasks
        for batch in run_task(plan.context, task)
    )


def read_with_zarr(place: Path | S3Place, group: str, concurrency: int | None = None) -> float:
    """Open the repository afresh and add up the whole array."""
    import zarr

    with zarr.config.set({"async.concurrency": concurrency} if concurrency else {}):
        return float(open_reference_group(place, group)["v"][:].sum(dtype="f8"))
