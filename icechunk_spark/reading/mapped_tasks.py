"""Runs the tasks of a read inside ``mapInArrow``, on executors.

Rules of this file
------------------
1. All tasks of a plan travel with the function, pickled and compressed in blocks: thirty thousand
   take less than a megabyte, and a task is found by unpacking one block.
2. The pickles travel inside one job and are never stored. They hold nothing of a repository but
   numbers and names.
3. The function holds the credentials of the store, and Spark writes a function of more than a
   megabyte to disk. So the function stays small: very many tasks are broadcast without it.
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
    """A function for ``mapInArrow`` from numbers of tasks to their rows.

    The class has no `repr` of its own, since the reader may hold credentials.

    Parameters
    ----------
    reader
        The planned read.
    name
        What ``explain`` calls the function.
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
        """How many bytes all packed tasks have."""
        return sum(map(len, self._blocks))

    def broadcast(self, send: Callable[[list[bytes]], Broadcast[list[bytes]]]) -> None:
        """Let the packed tasks travel by themselves, sent by ``SparkContext.broadcast``."""
        self._sent = send(self._blocks)
        self._blocks = []

    def count_in(self, accumulator: Accumulator[Any]) -> None:
        """Let tasks add to an accumulator what they have read."""
        self._counts = accumulator

    def __len__(self) -> int:
        """Return how many tasks there are."""
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
