"""Reads the same data in Spark in other ways: as fast as Spark allows, and as users do today.

Executors import this module by name; ``run.py`` puts its folder on their path.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import DoubleType, FloatType, StructField, StructType, TimestampNTZType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from peers.repositories import S3Place
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 65_536
FIELDS = [
    StructField("time", TimestampNTZType()),
    StructField("latitude", DoubleType()),
    StructField("longitude", DoubleType()),
    StructField("t2m", FloatType()),
]
_ARROW = pa.schema(
    [
        ("time", pa.timestamp("us")),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("t2m", pa.float32()),
    ]
)
_START = np.datetime64("2024-07-01", "us")


class NullSource(DataSource):
    """Sends one prebuilt batch repeatedly, to measure Spark's row transport alone.

    Options ``rows``, ``partitions`` and ``columns`` (JSON).
    """

    @classmethod
    def name(cls) -> str:
        return "null_source"

    def schema(self) -> StructType:
        return StructType([f for f in FIELDS if f.name in json.loads(self.options["columns"])])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NullReader(
            int(self.options["rows"]), int(self.options["partitions"]), schema.fieldNames()
        )


class _NullReader(DataSourceReader):
    def __init__(self, rows: int, partitions: int, columns: list[str]) -> None:
        self._rows, self._partitions, self._columns = rows, partitions, columns

    def partitions(self) -> list[InputPartition]:
        edges = np.linspace(0, self._rows, self._partitions + 1).astype(int)
        return [InputPartition(int(n)) for n in np.diff(edges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from null_batches(partition.value, self._columns, BATCH_ROWS)


def null_batches(rows: int, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of one batch up to a number of rows."""
    number = np.arange(batch_rows)
    whole = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(batch_rows, _START)),
            pa.array(90 - (number // 1440) * 0.25),
            pa.array((number % 1440) * 0.25),
            pa.array((number % 977).astype("f4")),
        ],
        schema=_ARROW,
    ).select(columns)
    for first in range(0, rows, batch_rows):
        yield whole.slice(0, min(rows - first, batch_rows))


def null_frame(
    spark: SparkSession, *, rows: int, partitions: int, columns: Sequence[str]
) -> DataFrame:
    """Return a DataFrame of the null source."""
    options = {"rows": rows, "partitions": partitions, "columns": json.dumps(list(columns))}
    return spark.read.format("null_source").options(**options).load()


def null_frame_in_map(
    spark: SparkSession, *, rows: int, partitions: int, columns: Sequence[str]
) -> DataFrame:
    """Return the rows of the null source, sent by `mapInArrow`."""
    sizes = np.diff(np.linspace(0, rows, partitions + 1).astype(int)).tolist()

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from null_batches(sizes[number], columns, BATCH_ROWS)

    tasks = spark.range(0, partitions, 1, numPartitions=partitions)
    return tasks.mapInArrow(send, StructType([f for f in FIELDS if f.name in columns]))


def reference_frame(
    spark: SparkSession, path: str, group: str, boxes: list[tuple[slice, ...]]
) -> DataFrame:
    """Return a DataFrame of a grid, read with the reference library inside `mapInArrow`."""
    tasks = spark.range(0, len(boxes), 1, numPartitions=len(boxes))
    return tasks.mapInArrow(_reference_cells(path, group, boxes), StructType(FIELDS))


def _reference_cells(
    path: str, group: str, boxes: list[tuple[slice, ...]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Slices do not pickle before Python 3.12.
    bounds = [[(part.start, part.stop) for part in box] for box in boxes]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reference_batches(path, group, bounds[number])

    return read


def reference_batches(
    path: str, group: str, bounds: Sequence[tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """Read a box with zarr-python and the reference as NumPy arrays, like a careful user."""
    from peers.repositories import open_reference_group

    opened = open_reference_group(path, group)
    box = tuple(slice(start, stop) for start, stop in bounds)
    time, latitude, longitude = (
        opened[name][part]
        for name, part in zip(("time", "latitude", "longitude"), box, strict=True)
    )
    values = opened["t2m"][box]
    width = len(longitude)
    rows = max(1, BATCH_ROWS // width)
    lat_column = pa.array(np.repeat(latitude, width))
    lon_column = pa.array(np.tile(longitude, min(rows, len(latitude))))
    for step, hour in enumerate(time):
        plane = pa.array(values[step].reshape(-1))
        instant = _START + np.timedelta64(int(hour), "h")
        for first in range(0, len(latitude), rows):
            count = min(rows, len(latitude) - first) * width
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(count, instant)),
                    lat_column.slice(first * width, count),
                    lon_column.slice(0, count),
                    plane.slice(first * width, count),
                ],
                schema=_ARROW,
            )


def reference_rows_frame(
    spark: SparkSession, place: Path | S3Place, count: int, partitions: int
) -> DataFrame:
    """Return the cells of an array of tiny chunks, read by the reference in `mapInArrow`."""
    edges = np.linspace(0, count, partitions + 1).astype(int).tolist()
    schema = StructType([FIELDS[1], FIELDS[2], FIELDS[3]])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from peers.repositories import open_reference_group

        for batch in batches:
            for number in batch.column(0).to_pylist():
                first, last = edges[number], edges[number + 1]
                values = open_reference_group(place)["v"][first:last]
                width = values.shape[1]
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.repeat(np.arange(first, last, dtype="f8"), width)),
                        pa.array(np.tile(np.arange(width, dtype="f8"), last - first)),
                        pa.array(values.reshape(-1)),
                    ],
                    schema=pa.schema([_ARROW.field(i) for i in (1, 2, 3)]),
                )

    tasks = spark.range(0, partitions, 1, numPartitions=partitions)
    return tasks.mapInArrow(read, schema)
