"""Writes DataFrames to repositories, compared with a sink that drops the rows and with Parquet.

Limit: the same rows, shuffled by block in the same way, are passed to a Python sink that drops
them. For aligned rows (``distribution=none``) the limit is the same sink without the shuffle.
Peer for small computed chunks (``layout=chunks``): zarr-python and the reference, which compute and
write the same chunks.

Two memory peaks that must not grow are also measured: that of the driver with the number of chunks
and references (10^4 and 10^6 at scale 1, 10^5 and 10^7 at scale 10), and that of a write task with
its rows.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from measurement import FreshRun, Row, in_fresh_process, interleaved, row
from pyspark.sql import functions as F

import icechunk_spark

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "write"
DIMS = ("time", "latitude", "longitude")
LATITUDES, LONGITUDES = 181, 360
HOURS_PER_BLOCK = 6
CHUNKS = {"time": HOURS_PER_BLOCK, "latitude": LATITUDES, "longitude": LONGITUDES}
TASKS = 4
WIDTH = 256
ROWS_AT_ONCE = 10_000
_OF_A_TASK = (
    "icechunk_format.tables.writing.commit",
    "icechunk_format.tables.writing.cells.task",
)


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    # Without a distribution, all rows of a block must be in one task.
    hours = max(1, round(4 * options.scale)) * TASKS * HOURS_PER_BLOCK
    return [
        *write_cells(spark, folder, hours, options),
        *write_many_chunks(spark, folder, max(100, round(10_000 * options.scale)), options),
        *(
            write_many_references(folder, max(1000, round(1_000_000 * options.scale)))
            if options.memory
            else ()
        ),
        *write_in_one_task(max(1, round(8 * options.scale))),
    ]


# --- cells ------------------------------------------------------------------------------------


def write_cells(spark: SparkSession, folder: Path, hours: int, options: Namespace) -> list[Row]:
    frame = weather(spark, hours)
    cells = hours * LATITUDES * LONGITUDES
    new = (str(folder / f"weather-{number}") for number in itertools.count())
    given: dict[str, Any] = {"dims": DIMS, "chunks": CHUNKS}
    shuffled = "sink that drops rows, same shuffle"
    aligned = "sink that drops rows, no shuffle"
    cases: dict[str, Callable[[], Any]] = {
        shuffled: lambda: drop(by_block(frame, hours)),
        aligned: lambda: drop(frame),
        "planned": lambda: written(frame, next(new), given),
        "distribution=none": lambda: written(frame, next(new), given | {"distribution": "none"}),
        "Parquet": lambda: frame.write.mode("overwrite").parquet(str(folder / "parquet")),
    }
    place = next(new)
    icechunk_spark.write(frame, place, **given)
    check_values(spark.read.format("icechunk").load(place), frame)
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    limits = {"planned": shuffled, "distribution=none": aligned}
    rows = [
        row(
            BENCHMARK,
            case,
            timings,
            versus=limits.get(case, ""),
            goal="ratio >= 0.8" if case in limits else "",
            figures={"Mcells_per_s": round(cells / timing.wall_s / 1e6, 2)},
        )
        for case, timing in timings.items()
    ]
    return [*rows, row(BENCHMARK, "planned", timings, versus="Parquet")]


def weather(spark: SparkSession, hours: int) -> DataFrame:
    """Return hourly temperatures on a grid of one degree, with whole blocks in one partition."""
    cells = LATITUDES * LONGITUDES
    return spark.range(hours * cells, numPartitions=TASKS).selectExpr(
        f"timestamp_ntz '2024-07-01' + make_dt_interval(0, cast(id div {cells} as int)) AS time",
        f"90D - (id div {LONGITUDES} % {LATITUDES}) AS latitude",
        f"cast(id % {LONGITUDES} AS double) AS longitude",
        "cast(288 + 25 * cos(id) AS float) AS t2m",
    )


def by_block(frame: DataFrame, hours: int) -> DataFrame:
    """Bring the rows of a block together, by a number that is computed from the time alone."""
    hour = F.expr("unix_micros(cast(time AS timestamp)) div 3600000000")
    tasks = hours // HOURS_PER_BLOCK
    block = (F.floor(hour / HOURS_PER_BLOCK) % tasks).cast("int")
    by_id = getattr(frame, "repartitionById", None)
    return frame.repartition(tasks, block) if by_id is None else by_id(tasks, block)


def drop(frame: DataFrame) -> None:
    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield from ()

    frame.mapInArrow(nothing, "nothing int").collect()


def written(frame: DataFrame, path: str, options: dict[str, Any]) -> int:
    # What an earlier round has written would fill the disk.
    made = icechunk_spark.write(frame, path, **options)
    shutil.rmtree(path)
    return made.rows


def check_values(ours: DataFrame, frame: DataFrame) -> None:
    want = ["count(1)", "avg(t2m)", "sum(latitude * longitude * t2m)"]
    seen, expected = ours.selectExpr(*want).first(), frame.selectExpr(*want).first()
    assert seen is not None
    assert expected is not None
    if seen[0] != expected[0] or not np.allclose(seen, expected, rtol=1e-9):
        raise AssertionError(f"other cells were written: {seen} instead of {expected}")


# --- many chunks and references, with a driver that does nothing else ---------------------------


def write_many_chunks(
    spark: SparkSession, folder: Path, chunks: int, options: Namespace
) -> list[Row]:
    ours = f"layout=chunks, {chunks:,} chunks of {4 * WIDTH} bytes"
    theirs = "the same by zarr-python and the reference, 2 threads"
    new = (str(folder / f"chunks-{number}") for number in itertools.count())
    cases: dict[str, Callable[[], Any]] = {
        ours: lambda: removed(next(new), lambda path: write_chunks(spark, path, chunks)),
        theirs: lambda: removed(next(new), lambda path: write_chunks_with_zarr(path, chunks)),
    }
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    per_chunk = {case: t.wall_s / chunks * 1e6 for case, t in timings.items()}
    figures = {case: {"us_per_chunk": round(us, 2)} for case, us in per_chunk.items()}
    rows = [
        row(BENCHMARK, ours, timings, theirs, goal="ratio >= 1", figures=figures[ours]),
        row(BENCHMARK, theirs, timings, figures=figures[theirs]),
    ]
    if options.memory:
        done = in_fresh_process(chunks_with_spark, str(folder / "many-chunks"), chunks)
        rows.append(_driver_row(f"driver of layout=chunks, {chunks:,} chunks", done, chunks))
    return rows


def removed(path: str, write: Callable[[str], Any]) -> None:
    # What an earlier round has written would fill the disk.
    write(path)
    shutil.rmtree(path)


def write_many_references(folder: Path, references: int) -> list[Row]:
    done = in_fresh_process(references_with_spark, str(folder / "references"), references)
    return [
        _driver_row(f"driver of layout=refs, {references:,} virtual references", done, references)
    ]


def _driver_row(case: str, done: FreshRun, count: int) -> Row:
    seconds, manifests = done.value
    return Row(
        benchmark=BENCHMARK,
        case=case,
        wall_s=seconds,
        peak_mb=done.peak_mb,
        figures={"us_per_chunk": round(seconds / count * 1e6, 2), "manifests": manifests},
    )


def chunks_with_spark(path: str, chunks: int) -> tuple[float, int]:
    """Write small chunks from a new session; the memory of this process is the driver's."""
    with _new_session() as spark:
        started = time.perf_counter()
        manifests = write_chunks(spark, path, chunks)
        return time.perf_counter() - started, manifests


def write_chunks(spark: SparkSession, path: str, chunks: int) -> int:
    """Compute and write chunks, and return the number of their manifests."""

    def payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch.column(0).to_numpy()
            chunk = pa.array(np.stack([ids, 0 * ids], axis=1).ravel())
            offsets = np.arange(len(ids) + 1, dtype="i4")
            data = (offsets * 4 * WIDTH, values_of(ids))
            yield pa.RecordBatch.from_pydict(
                {
                    "array": pa.array(["v"]).take(pa.array(0 * ids)),
                    "chunk": pa.ListArray.from_arrays(pa.array(2 * offsets), chunk),
                    "data": pa.BinaryArray.from_buffers(
                        pa.binary(), len(ids), [None, *map(pa.py_buffer, data)]
                    ),
                }
            )

    rows = spark.range(chunks, numPartitions=TASKS).mapInArrow(
        payloads, "array string, chunk array<bigint>, data binary"
    )
    array = {"shape": [chunks, WIDTH], "chunks": [1, WIDTH], "dtype": "float32"}
    encoding = json.dumps({"v": array | {"compressors": []}})
    made = icechunk_spark.write(rows, path, layout="chunks", encoding=encoding)
    if made.chunks != chunks:
        raise AssertionError(f"{made.chunks} chunks were written instead of {chunks}")
    return made.manifests


def values_of(ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the values of chunks, a row for each."""
    values: NDArray[np.float32] = np.add.outer(ids.astype("<f4"), np.arange(WIDTH, dtype="<f4"))
    return values


def write_chunks_with_zarr(path: str, chunks: int) -> None:
    import icechunk
    import zarr

    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    # zarr-python writes chunk by chunk; more concurrent chunks reduce its waiting time.
    with zarr.config.set({"async.concurrency": 128, "threading.max_workers": 2}):
        array = zarr.open_group(session.store, mode="a").create_array(
            "v", shape=(chunks, WIDTH), chunks=(1, WIDTH), dtype="f4", compressors=None
        )
        for start in range(0, chunks, ROWS_AT_ONCE):
            stop = min(chunks, start + ROWS_AT_ONCE)
            array[start:stop] = values_of(np.arange(start, stop))
    session.commit("small chunks")


def references_with_spark(path: str, references: int) -> tuple[float, int]:
    """Write virtual references from a new session: a thousand to each of many files."""
    with _new_session() as spark:
        rows = spark.range(references, numPartitions=16).selectExpr(
            "'v' AS array",
            "array(id div 1000, id % 1000) AS chunk",
            "'virtual' AS kind",
            "concat('s3://archive/era5/t2m/', lpad(cast(id div 1000 AS string), 7, '0'), '.nc')"
            " AS location",
            "id % 1000 * 100000 AS offset",
            "cast(100000 AS bigint) AS length",
        )
        array = {"shape": [-(-references // 1000), 1000], "chunks": [1, 1], "dtype": "float32"}
        encoding = json.dumps({"v": array | {"compressors": []}})
        started = time.perf_counter()
        made = icechunk_spark.write(rows, path, layout="refs", encoding=encoding)
        return time.perf_counter() - started, made.manifests


def _new_session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", tempfile.mkdtemp(prefix="icechunk-bench-"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


# --- a task -----------------------------------------------------------------------------------


def write_in_one_task(units: int) -> list[Row]:
    """Measure the memory of one task with few and with many rows: that of a block for both."""
    rows = []
    for count in (units, 4 * units):
        with tempfile.TemporaryDirectory(prefix="icechunk-bench-") as folder:
            path = os.path.join(folder, "task")
            done = in_fresh_process(one_task, path, count, imports=_OF_A_TASK)
        rows.append(
            Row(
                benchmark=BENCHMARK,
                case=f"one task without Spark, {done.value:,} rows",
                wall_s=done.wall_s,
                cpu_s=done.cpu_s,
                peak_mb=done.peak_mb,
                goal="memory does not grow with rows",
                figures={"Mcells_per_cpu_s": round(done.value / done.cpu_s / 1e6, 1)},
            )
        )
    return rows


def one_task(path: str, blocks: int) -> int:
    """Write a number of blocks in one task, from batches of the size of Spark's."""
    from icechunk_format.options.write import WriteOptions
    from icechunk_format.tables.writing.cells.task import write_batches
    from icechunk_format.tables.writing.commit import finish_write
    from icechunk_format.tables.writing.plan import plan_write
    from icechunk_format.tables.writing.prepare import prepare_write

    hours = blocks * HOURS_PER_BLOCK
    start = np.datetime64("2024-07-01", "us")
    coordinates = {
        "time": pa.array(start + np.arange(hours) * np.timedelta64(1, "h")),
        "latitude": pa.array(90.0 - np.arange(LATITUDES)),
        "longitude": pa.array(np.arange(LONGITUDES, dtype="f8")),
    }
    schema = pa.schema(
        [*((name, labels.type) for name, labels in coordinates.items()), ("t2m", pa.float32())]
    )
    cells = hours * LATITUDES * LONGITUDES
    prepared = prepare_write(path, schema, WriteOptions(dims=DIMS, chunks=CHUNKS))
    plan = plan_write(prepared, coordinates, cells)
    [part] = plan.parts
    per_label = [plan.dimension_tables[dim].column("cell_0").to_numpy() for dim in DIMS]
    plane = np.add.outer(per_label[1], per_label[2]).ravel()

    def batches() -> Iterator[pa.RecordBatch]:
        for hour in per_label[0]:
            numbers = np.sort(hour + plane)
            for at in range(0, len(numbers), 10_000):
                own = numbers[at : at + 10_000]
                columns = [pa.array(own), pa.array(np.cos(own).astype("f4"))]
                yield pa.RecordBatch.from_arrays(columns, schema=part.input_schema)

    return finish_write(plan, [write_batches(part, batches())]).rows
