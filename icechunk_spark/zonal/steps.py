"""Runs the three steps of zonal statistics inside ``mapInArrow``, on executors.

Rules of this file
------------------
1. A step is pickled with the plan, which may hold credentials; its `repr` does not show them.
2. Batches are cast to the schema that Spark expects, as in reads.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from icechunk_format.workflows.zonal import Covering
from icechunk_spark.reading.reader import fit_batches
from icechunk_spark.schema import arrow_target

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal import Combining, Summing, ZonalContext


Batches = Iterator[pa.RecordBatch]


def step(make: Callable[[Batches], Batches], schema: StructType) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow`` whose batches have the schema that Spark expects."""
    target = arrow_target(schema)
    return lambda batches: fit_batches(make(batches), target)


def covered(context: ZonalContext, names: Sequence[str], batches: Batches) -> Batches:
    """Yield rows of cover for zones with the keys `names` and the geometry as the last column."""
    task = TaskContext.get()
    covering = Covering(context, names, 0 if task is None else task.partitionId())
    for batch in batches:
        yield from covering.rows(batch)


def summed(context: ZonalContext, run: type[Summing | Combining], batches: Batches) -> Batches:
    """Yield partial sums for rows of cover, or rows of the result for partial sums."""
    yield from run(context).rows(batch for batch in batches if batch.num_rows)
