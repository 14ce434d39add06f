"""Repositories that grow, readers and writers of streams without a JVM."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from helpers.builder import new_place
from helpers.grids.written_cells import APPEND, grid
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.changes.source import IcechunkStreamReader

if TYPE_CHECKING:
    from collections.abc import Sequence

# Spark 4.0 and 4.1 ask for the latest offset without a start, know no limits, and plan the last
# batch once more after a restart.
SPARK_TELLS_START = find_spec("pyspark.sql.streaming.datasource") is not None
ROWS = StructType(
    [
        StructField("time", LongType()),
        StructField("x", DoubleType()),
        StructField("t", DoubleType()),
    ]
)
CHANGES = StructType([*ROWS.fields, StructField("_change", StringType())])


def append(place: str, times: Sequence[int], **options: Any) -> str:
    """Append rows (time, x, t) in one commit; return its snapshot."""
    chosen = replace(APPEND, chunks={"time": 1}, **options)
    return str(write_table(place, grid(times, [0, 1]), chosen).snapshot_id)


def grown(times: int, *, place: str | None = None) -> str:
    """Return the place of a repository with one commit for each of some times."""
    place = place or new_place()
    for time in range(times):
        append(place, [time])
    return place


class Query:
    """Asks a reader as this Spark does, with offsets that travel as JSON, and restarts."""

    def __init__(self, place: str, *, schema: StructType = ROWS, **options: str) -> None:
        self.options = {"path": place, **options}
        self.schema = schema
        self.committed: Any = None
        self.restart()

    def restart(self) -> None:
        """Begin anew from what a checkpoint holds."""
        self.reader = IcechunkStreamReader(self.options, self.schema)
        self.executor = pickle.loads(pickle.dumps(IcechunkStreamReader(self.options, self.schema)))
        if self.committed is not None and not SPARK_TELLS_START:
            start = json.loads(self.committed)
            assert self.reader.partitions(start, start) == []

    def plan(self) -> Any:
        """Return the end of the next batch, which may be where it starts."""
        if self.committed is None:
            self.committed = json.dumps(self.reader.initialOffset())
        if not SPARK_TELLS_START:
            return json.dumps(self.reader.latestOffset())
        limit = self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(json.loads(self.committed), limit))

    def read(self, end: str) -> list[dict[str, Any]]:
        """Return the rows of the batch up to an offset."""
        parts = self.reader.partitions(json.loads(self.committed), json.loads(end))
        parts = pickle.loads(pickle.dumps(parts))
        return [r for p in parts for b in self.executor.read(p) for r in b.to_pylist()]

    def batch(self) -> list[dict[str, Any]] | None:
        """Run one batch; None where nothing is new."""
        end = self.plan()
        if end == self.committed:
            return None
        rows = self.read(end)
        self.committed = end
        return rows

    def times(self) -> list[int] | None:
        """Run one batch; return its distinct times."""
        rows = self.batch()
        return None if rows is None else sorted({row["time"] for row in rows})


def repository_at(place: str) -> Repository:
    """Open a repository."""
    return Repository.open(place)


def commits_of_streams(place: str) -> list[tuple[str, int]]:
    """Return query and number of the batches that were committed, oldest first."""
    found = [info.metadata for info in Repository.open(place).ancestry()]
    return [(m["txnAppId"], m["txnVersion"]) for m in found[::-1] if "txnAppId" in m]
