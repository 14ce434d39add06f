"""Runs the three steps of zonal statistics inside ``mapInArrow``, on executors.

Rules of this file
------------------
1. A step is pickled with the plan, which may hold credentials; it has no `repr` of its own.
2. Batches are fitted to the schema that Spark was told, as in reads.
3. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from icechunk_format.dataset.zones.covering import Covering
from icechunk_spark.schema import fit_batch
from icechunk_spark.session.errors import errors_on_one_line

if TYPE_CHECKING:
    from icechunk_format.dataset.zones.combining import Combining
    from icechunk_format.dataset.zones.plan import ZonalContext
    from icechunk_format.dataset.zones.summing import Summing


class CoverStep:
    """From zones to rows of cover; the geometry is the last column.

    Parameters
    ----------
    context
        The plan.
    names
        The names of the keys.
    target
        The schema of the rows.
    """

    def __init__(self, context: ZonalContext, names: Sequence[str], target: pa.Schema) -> None:
        self._context = context
        self._names = tuple(names)
        self._target = target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of cover."""
        task = TaskContext.get()
        partition = 0 if task is None else task.partitionId()
        covering = Covering(self._context, self._names, partition)
        with errors_on_one_line():
            for batch in batches:
                for rows in covering.rows(batch):
                    yield fit_batch(rows, self._target)


class ArrayStep:
    """From rows of cover to rows of parts, or from these to rows of the result.

    Parameters
    ----------
    context
        The plan.
    run
        The class that does the step.
    target
        The schema of the rows.
    """

    def __init__(
        self, context: ZonalContext, run: type[Summing | Combining], target: pa.Schema
    ) -> None:
        self._context = context
        self._run = run
        self._target = target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the step."""
        some = (batch for batch in batches if batch.num_rows)
        with errors_on_one_line():
            for rows in self._run(self._context).rows(some):
                yield fit_batch(rows, self._target)
