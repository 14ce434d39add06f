"""Measures the cost of counting and logging, and of a write that computes its rows once.

Limits: the same scan by tasks that neither count nor log; and the same write with rows that are
computed twice, once for their coordinates and once to write them.
"""

from __future__ import annotations

import io
import itertools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from measurement import Row, interleaved, row
from peers.repositories import build_grid
from writing.cells import CHUNKS, DIMS, HOURS_PER_BLOCK, TASKS, weather, written

import icechunk_spark
from icechunk_format.groups import array_reader
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.repository.files import metadata_files
from icechunk_format.storage.local import store
from icechunk_spark.queries.frames import frame_of
from icechunk_spark.reading.plan import plan_table
from icechunk_spark.reading.reader import IcechunkTasks

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "observe"
# Passes over the values of a batch; as expensive as a small model.
PASSES = 200


class SilentTasks(IcechunkTasks):
    """The tasks of a read, which count and log nothing."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers are in the first column, with functions that do not count."""
        counted = {module: vars(module).copy() for module in (array_reader, metadata_files, store)}
        try:
            for module in counted:
                vars(module).update(
                    {name: new for name, new in _SILENT.items() if name in vars(module)}
                )
            yield from self._rows(batches)
        finally:
            for module, names in counted.items():
                vars(module).update(names)


def _nothing(*_: int, **__: int) -> None:
    pass


def _called(_: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


_SILENT = {"count": _nothing, "timed": _called}


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    return [*scan(spark, folder, options), *write(spark, folder, options)]


def scan(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    grid = build_grid(folder, options.scale)
    given = {"group": "planes"}
    counted = icechunk_spark.read(spark, grid.path, **given)
    silent = read_silently(spark, grid.path, given)
    plain = "scan: tasks that count nothing"
    cases: dict[str, Callable[[], Any]] = {
        plain: lambda: drop_rows(silent),
        "scan: counted": lambda: drop_rows(counted),
        "scan: counted, with its log": lambda: logged(spark, lambda: drop_rows(counted)),
    }
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    found = icechunk_spark.last_read_metrics(counted)
    if found is None or found.rows != grid.cells:
        raise AssertionError(f"{found} was counted instead of {grid.cells} rows")
    return [
        row(BENCHMARK, plain, timings),
        *(
            row(BENCHMARK, case, timings, versus=plain, goal="ratio >= 0.98")
            for case in list(cases)[1:]
        ),
    ]


def logged(spark: SparkSession, run: Callable[[], None]) -> None:
    """Log at INFO in this process and, with Spark 4.1 or newer, in the workers."""
    handler = logging.StreamHandler(io.StringIO())
    loggers = [logging.getLogger(name) for name in ("icechunk_spark", "icechunk_format")]
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        run()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)


def read_silently(spark: SparkSession, path: str, given: dict[str, Any]) -> DataFrame:
    tasks, schema, size = plan_table(parse_arguments(path, given, "read"), None, "UTC")
    tasks.__class__ = SilentTasks
    return frame_of(spark, tasks, schema, size)


def drop_rows(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def write(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    hours = max(1, round(2 * options.scale)) * TASKS * HOURS_PER_BLOCK
    frame = expensive(weather(spark, hours))
    new = (str(folder / f"once-{number}") for number in itertools.count())
    given: dict[str, Any] = {"dims": DIMS, "chunks": CHUNKS}
    twice = "write: expensive rows, computed twice"
    once = "write: expensive rows, computed once"
    cases: dict[str, Callable[[], Any]] = {
        twice: lambda: written(frame, next(new), given | {"compute_once": False}),
        once: lambda: written(frame, next(new), given),
    }
    timings = interleaved(cases, rounds=options.rounds, warm_up=options.scale >= 0.1)
    return [
        row(BENCHMARK, twice, timings),
        row(BENCHMARK, once, timings, versus=twice, goal="ratio >= 1.3"),
    ]


def expensive(frame: DataFrame) -> DataFrame:
    def computed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("t2m").to_numpy().astype("f8")
            for _ in range(PASSES):
                values = np.sqrt(np.sin(values) ** 2 + 1)
            column = batch.schema.get_field_index("t2m")
            yield batch.set_column(column, "t2m", pa.array(values.astype("f4")))

    return frame.mapInArrow(computed, frame.schema)
