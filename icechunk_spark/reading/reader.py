"""Reads the tasks of a plan on executors, as Arrow batches of the schema that Spark expects.

Rules of this file
------------------
1. Every task gets a copy of the pickled reader, so the reader holds only what tasks share; the data
   of one task are in its partition.
2. An empty plan has no partitions. Spark replaces it by one partition without a task (``None``
   before 4.2, ``InputPartition(None)`` since), which must return no rows.
3. `IcechunkReader` has no `pushFilters`: Spark (up to 4.3) keeps one read plan per ``load()``,
   which the filters of the last query overwrite, so a DataFrame that is used twice returns wrong
   rows.
4. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.time_zone import in_time_zone_of_task
from icechunk_spark.reading.metrics import counting
from icechunk_spark.schema import fit_batch

if TYPE_CHECKING:
    from pyspark import Accumulator

    from icechunk_format.dataset.metadata_tables.read import InspectionPlan
    from icechunk_format.dataset.reading.scan import ScanPlan
    from icechunk_format.workflows.changes import ChangePlan

Batches = Iterator[pa.RecordBatch]


class IcechunkReader(DataSourceReader):
    """Reads one planned scan of arrays or of a metadata table, with a partition for each task.

    `target` is the schema of all batches. `run` is a generator function from the context of the
    plan and a task to record batches; by default ``run_scan``, which only executors import.
    """

    def __init__(
        self,
        plan: ScanPlan | InspectionPlan | ChangePlan,
        target: pa.Schema,
        run: Callable[..., Batches] | None = None,
    ) -> None:
        self._tasks: Sequence[Any] = plan.tasks
        self._context: Any = plan.context
        self._target = target
        self._run = run

    def __getstate__(self) -> dict[str, Any]:
        return {"_context": self._context, "_target": self._target, "_run": self._run}

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task of the plan."""
        return [InputPartition(task) for task in self._tasks]

    # Spark accepts record batches as well as tuples; pyspark's annotation is narrower.
    def read(
        self,
        partition: InputPartition | None,
        counts: Accumulator[Any] | None = None,
        key: str | None = None,
    ) -> Iterator[Any]:
        """Yield the record batches of one task; log its counts, and add them under a key."""
        name = f"icechunk {getattr(self._context, 'location', '')}".rstrip()
        return counting(name, counts, self.batches(partition), key)

    def batches(self, partition: InputPartition | None) -> Batches:
        """Yield the record batches of one task."""
        task = None if partition is None else partition.value
        with errors_on_one_line():
            context = in_time_zone_of_task(self._context)
        from icechunk_format.dataset.reading.run import run_scan

        return fit_batches((self._run or run_scan)(context, task), self._target)


def fit_batches(batches: Batches, target: pa.Schema) -> Batches:
    """Yield the batches of a generator with exactly the schema `target`."""
    # Closed when this generator is closed, as after a LIMIT, so that read-ahead stops.
    with errors_on_one_line(), closing(cast("Generator[pa.RecordBatch, None, None]", batches)):
        for batch in batches:
            yield fit_batch(batch, target)
