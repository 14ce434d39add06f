"""Makes the DataFrame of planned tasks: a table of task numbers, and `mapInArrow`.

Rules of this file
------------------
1. Spark must not underestimate the size of a large table, or it broadcasts the table in every join.
   It estimates the size from the table of numbers. So each number has an empty value of a wide type
   beside it, and for larger tables a filter drops additional numbers.
2. The metadata of the numbers hold the id of the read, by which the rule of `installing` finds it.
   No column that a user can see has these metadata.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F

from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.metrics import accumulator_of
from icechunk_spark.jobs.session import is_connect

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from icechunk_format.errors import IcechunkError
    from icechunk_spark.reading.reader import IcechunkTasks

#: Key of the metadata that hold the id of a read; with FRESH, of one to plan at each query.
READ_KEY: Final = "icechunk.read"
FRESH_KEY: Final = "icechunk.read.fresh"

# An empty value that Spark estimates at 1008 bytes. A row of a number and this value counts as 512
# bytes, since Spark scales the 8 bytes of a row of `range` by (8 + 1008 + 8) / (8 + 8).
_WIDE: Final = f"struct<{','.join(f'b{i}:binary' for i in range(10))},n:bigint>"
_BYTES_OF_A_NUMBER: Final = 512
# Four times the largest table that Spark can broadcast; a larger estimate has no effect.
_MOST_BYTES: Final = 32 << 30
# Tables of numbers that each session keeps: queries of one read often have as many tasks.
_MOST_KNOWN: Final = 32
_known: WeakKeyDictionary[SparkSession, OrderedDict[tuple[int, int], Any]] = WeakKeyDictionary()
"""Tables of numbers by tasks and bits, as objects of the JVM, which keep no session alive."""
_lock: Final = threading.Lock()
# Half of the size above which Spark writes a function and the values that it captures to disk.
_MOST_SERIALIZED_BYTES: Final = 1 << 19


def frame_of(
    spark: SparkSession,
    tasks: IcechunkTasks,
    schema: StructType,
    size_bytes: int,
    id: str | None = None,
) -> DataFrame:
    """Return the rows of all tasks; `id` is that of a read that queries may plan again."""
    # A Connect client has no SparkContext for broadcasts and accumulators, and Spark does not write
    # its functions to disk.
    counts = accumulator_of(spark)
    if counts is not None:
        tasks.count_in(counts)
        if tasks.serialized_bytes > _MOST_SERIALIZED_BYTES:
            tasks.broadcast(spark.sparkContext.broadcast)
    marks = {} if id is None else {READ_KEY: id}
    return _numbers(spark, len(tasks), size_bytes, marks).mapInArrow(tasks, schema)


class Failing:
    """A function for ``mapInArrow`` that raises an error in its task."""

    def __init__(self, error: IcechunkError, name: str) -> None:
        self.__name__ = name
        self._error = error

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        with errors_on_one_line():
            raise self._error


def placeholder(
    spark: SparkSession,
    function: Failing,
    schema: StructType,
    size_bytes: int,
    id: str | None = None,
) -> DataFrame:
    """Return a DataFrame of one task that fails; with an id, one that each query plans."""
    marks = {} if id is None else {READ_KEY: id, FRESH_KEY: "true"}
    return _numbers(spark, 1, size_bytes, marks).mapInArrow(function, schema)


def _numbers(spark: SparkSession, tasks: int, size_bytes: int, marks: dict[str, str]) -> DataFrame:
    """Return the task numbers, one for each partition, as a table of `size_bytes` by estimate."""
    if not tasks:
        numbers = spark.range(0, 0, 1, 1)
        return numbers.select(F.col("id").alias("task", metadata=marks)) if marks else numbers
    wanted = min(size_bytes, _MOST_BYTES) // _BYTES_OF_A_NUMBER
    # A power of two for each task, since divisions would be slow.
    bits = max(0, (wanted // tasks).bit_length())
    if marks or is_connect(spark):
        return _made_numbers(spark, tasks, bits, marks)
    # Packages of Spark Connect alone lack it.
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    with _lock:
        known = _known.setdefault(spark, OrderedDict())
        found = known.get((tasks, bits))
    if found is None:
        made: Any = _made_numbers(spark, tasks, bits, marks)
        found = made._jdf
    with _lock:
        known[tasks, bits] = found
        known.move_to_end((tasks, bits))
        while len(known) > _MOST_KNOWN:
            known.popitem(last=False)
    return ClassicFrame(found, spark)


def _made_numbers(spark: SparkSession, tasks: int, bits: int, marks: dict[str, str]) -> DataFrame:
    """Return the task numbers, each with as many rows as fit into a number of bits."""
    numbers = spark.range(0, tasks << bits, 1, tasks)
    if bits:
        numbers = numbers.where(f"(id & {(1 << bits) - 1}L) = 0")
    task, size = f"shiftright(id, {bits}) AS task", f"cast(null AS {_WIDE}) AS size"
    if not marks:
        return numbers.selectExpr(task, size)
    return numbers.select(F.expr(task).alias("task", metadata=marks), F.expr(size))
