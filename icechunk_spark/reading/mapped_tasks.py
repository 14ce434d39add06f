"""Runs the tasks of a read inside ``mapInArrow``, on executors.

Rules of this file
------------------
1. The function contains all tasks of a plan, pickled and compressed in blocks: thirty thousand
   tasks take less than a megabyte, and a task decompresses one block.
2. Pickled tasks are used within one job and never stored. They contain only numbers and names of a
   repository.
3. The function holds credentials, and Spark writes functions of more than a megabyte to disk. So
   the function must stay small: large numbers of tasks are broadcast separately.
4. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import Broadcast
from pyspark.sql.datasource import InputPartition

from icechunk_spark.reading.metrics import counting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from icechunk_spark.reading.reader import IcechunkReader

_BLOCK: Final = 64


class IcechunkTasks:
    """A function for ``mapInArrow`` from task numbers to rows.

    ``explain`` shows `name`. The class defines no `repr`, since the reader may hold credentials.
    """

    def __init__(self, reader: IcechunkReader, name: str = "icechunk") -> None:
        self.__name__ = name
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
    def packed_bytes(self) -> int:
        """Number of bytes of all compressed tasks."""
        return sum(map(len, self._blocks))

    def broadcast(self, send: Callable[[list[bytes]], Broadcast[list[bytes]]]) -> None:
        """Send the compressed tasks separately, by ``SparkContext.broadcast``."""
        self._sent = send(self._blocks)
        self._blocks = []

    def count_in(self, accumulator: Accumulator[Any]) -> None:
        """Let tasks add their counts to an accumulator."""
        self._counts = accumulator

    def __len__(self) -> int:
        """Return the number of tasks."""
        return self._count

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers are in the first column, one after another."""
        yield from counting(self.__name__, self._counts, self._rows(batches))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._reader.batches(self._task(number))

    def _task(self, number: int) -> InputPartition:
        block, position = divmod(number, _BLOCK)
        blocks = self._blocks if self._sent is None else self._sent.value
        tasks = pickle.loads(zlib.decompress(blocks[block]))
        return InputPartition(tasks[position])
