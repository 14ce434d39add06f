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
4. `IcechunkTasks` contains all tasks of a plan, pickled and compressed in blocks: thirty thousand
   tasks take less than a megabyte, and a task decompresses one block. Pickled tasks are used within
   one job and never stored; they contain only numbers and names of a repository.
5. The function holds credentials, and Spark writes functions of more than a megabyte to disk. So
   the function must stay small: large numbers of tasks are broadcast separately.
6. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from icechunk_format.errors import InvalidInputError
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.metrics import counting
from icechunk_spark.jobs.packages import serialized
from icechunk_spark.jobs.session import TIME_ZONE
from icechunk_spark.reading.row_filters import FilteredRun
from icechunk_spark.schema import fit_batch

if TYPE_CHECKING:
    from pyspark import Accumulator, Broadcast

    from icechunk_format.tables.metadata_tables.read import InspectionPlan
    from icechunk_format.tables.reading import Residual, ScanPlan
    from icechunk_format.tables.reading.layouts.partials import PartialPlan
    from icechunk_format.workflows.changes import ChangePlan

Batches = Iterator[pa.RecordBatch]

# Tasks that are compressed together.
_BLOCK: Final = 64


class IcechunkReader(DataSourceReader):
    """Reads one planned scan of arrays or of a metadata table, with a partition for each task.

    `target` is the schema of all batches. `run` is a generator function from the context of the
    plan and a task to record batches; by default ``run_scan``, which only executors import.
    """

    def __init__(
        self,
        plan: ScanPlan | InspectionPlan | ChangePlan | PartialPlan,
        target: pa.Schema,
        run: Callable[..., Batches] | None = None,
    ) -> None:
        self._tasks: Sequence[Any] = plan.tasks
        self._context: Any = plan.context
        self._target = target
        self._run = run

    def __reduce__(self) -> tuple[Any, ...]:
        state = {"_context": self._context, "_target": self._target, "_run": self._run}
        return serialized(type(self), state)

    def partitions(self) -> list[InputPartition]:
        """Return one partition per task of the plan."""
        return [InputPartition(task) for task in self._tasks]

    def filtered(self, condition: Residual | None) -> IcechunkReader:
        """Read only the rows that meet a condition on these columns, and return the reader."""
        known = {name.casefold() for name in self._target.names}
        if condition is not None and known.issuperset(map(str.casefold, condition.columns)):
            self._run = FilteredRun(self._run, condition)
        return self

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
        from icechunk_format.tables.reading import run_scan

        return fit_batches((self._run or run_scan)(context, task), self._target)


def in_time_zone_of_task(context: Any) -> Any:
    """Return the context of a scan with the session's time zone in its condition, in a task.

    Raises
    ------
    InvalidInputError
        The session has no time zone setting, and the zone of this machine may differ from that of
        the driver.
    """
    residual = getattr(context, "residual", None)
    if residual is None or not residual.needs_zone:
        return context
    task = TaskContext.get()
    zone = None if task is None else task.getLocalProperty(TIME_ZONE)
    if zone is None:
        raise InvalidInputError(
            f"where {residual.sql}: depends on the session's time zone, which is not set: set "
            f"{TIME_ZONE}, as in SET TIME ZONE 'UTC', or write times with their zone, as in "
            "'2024-07-01 00:00:00Z'",
            sql=residual.sql,
        )
    return replace(context, residual=residual.in_zone(zone))


def fit_batches(batches: Batches, target: pa.Schema) -> Batches:
    """Yield the batches of a generator with exactly the schema `target`."""
    # Closed when this generator is closed, as after a LIMIT, so that read-ahead stops.
    with errors_on_one_line(), closing(cast("Generator[pa.RecordBatch, None, None]", batches)):
        for batch in batches:
            yield fit_batch(batch, target)


class IcechunkTasks:
    """A function for ``mapInArrow`` from task numbers to rows.

    ``explain`` shows `name`; logs and counts have `counted_as`, by default the same. The class
    defines no `repr`, since the reader may hold credentials.
    """

    def __init__(
        self, reader: IcechunkReader, name: str = "icechunk", counted_as: str | None = None
    ) -> None:
        self.__name__ = name
        self._counted_as = counted_as or name
        tasks = [partition.value for partition in reader.partitions()]
        self._reader = reader
        self._count = len(tasks)
        self._counts: Accumulator[Any] | None = None
        self._sent: Broadcast[list[bytes]] | None = None
        self._blocks = [
            zlib.compress(pickle.dumps(tasks[first : first + _BLOCK]))
            for first in range(0, len(tasks), _BLOCK)
        ]

    @property
    def serialized_bytes(self) -> int:
        """Number of bytes of all compressed tasks."""
        return sum(map(len, self._blocks))

    def broadcast(self, send: Callable[[list[bytes]], Broadcast[list[bytes]]]) -> None:
        """Send the compressed tasks separately, by ``SparkContext.broadcast``."""
        self._sent = send(self._blocks)
        self._blocks = []

    def count_in(self, accumulator: Accumulator[Any]) -> None:
        """Let tasks add their counts to an accumulator."""
        self._counts = accumulator

    def __reduce__(self) -> tuple[Any, ...]:
        return serialized(type(self), self.__dict__)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return self._count

    def __call__(self, batches: Batches) -> Batches:
        """Run the tasks whose numbers are in the first column, one after another."""
        yield from counting(self._counted_as, self._counts, self._rows(batches))

    def _rows(self, batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._reader.batches(self._task(number))

    def _task(self, number: int) -> InputPartition:
        block, position = divmod(number, _BLOCK)
        blocks = self._blocks if self._sent is None else self._sent.value
        tasks = pickle.loads(zlib.decompress(blocks[block]))
        return InputPartition(tasks[position])
