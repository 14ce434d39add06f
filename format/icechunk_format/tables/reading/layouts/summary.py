"""Yields the layout ``summary``: one row of statistics for each block of the table.

The speed of the layout ``cells`` is limited by moving rows to Spark. Averages and quick-look maps
need only a few numbers of each block, which executors compute where they read the data.

Rules of this file
------------------
1. Blocks are the chunks of the leading variable, or ``block`` elements along each dimension,
   counted from the first element of the array. A selection removes cells from blocks; a block
   without selected cells has no row.
2. ``<d>_first`` and ``<d>_last`` are the first and last selected label of the block along a
   dimension. Cells dropped by a condition on values are not counted, but do not change these
   labels.
3. Only the statistics of selected columns are computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.tables.reading.layouts.block_reads import TaskLabels
from icechunk_format.tables.reading.layouts.segments import Measure, Reduction, Segments
from icechunk_format.tables.reading.layouts.statistics import Statistic
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.table.columns import sums_to_integer
from icechunk_format.tables.table.table import Column

_COMPUTED_AS: Final[dict[str, Statistic]] = {
    "min": "low",
    "max": "high",
    "sum": "total",
    "mean": "moments",
    "m2": "moments",
}


def summary_batches(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``summary``; raises the errors of ``run_scan``."""
    return _SummaryRun(context, task).batches()


class _SummaryRun:
    def __init__(self, context: ScanContext, task: ScanTask) -> None:
        self._context = context
        needed = context.table.needed(context.residual)
        shown = context.table.columns
        self._summarized = {
            column.source: column
            for column in needed
            if column.role != "dimension" and any(column.source == one.source for one in shown)
        }
        measures = [
            Measure(
                source=source,
                wanted=frozenset(
                    _COMPUTED_AS[str(one.statistic)]
                    for one in shown
                    if one.source == source and one.statistic in _COMPUTED_AS
                ),
                exact_sum=sums_to_integer(column.arrow_type),
            )
            for source, column in self._summarized.items()
        ]
        self._number = {source: number for number, source in enumerate(self._summarized)}
        self._reduction = Reduction(context, task, measures, needed)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for segments in self._reduction.segments():
            yield self._rows(segments)

    def _rows(self, segments: Segments) -> pa.RecordBatch:
        ends = {
            name: _ends(segments, dim, self._reduction.labels)
            for dim, name in self._reduction.labels.names.items()
        }
        columns = [self._column(column, segments, ends) for column in self._context.table.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._context.arrow_schema)
        cells = segments.cells.reshape(-1)
        return batch if cells.all() else batch.filter(pa.array(cells > 0))

    def _column(
        self, column: Column, segments: Segments, ends: dict[str, tuple[pa.Array, pa.Array]]
    ) -> pa.Array:
        statistic = column.statistic
        if statistic == "first":
            return ends[column.source][0]
        if statistic == "last":
            return ends[column.source][1]
        found = segments.statistics[self._number[column.source]]
        some: NDArray[np.bool_] = (found.count > 0).reshape(-1)
        if statistic == "count":
            return pa.array(found.count.reshape(-1))
        if statistic == "nulls":
            return pa.array(found.nulls.reshape(-1))
        fields = {"min": "low", "max": "high", "sum": "total"}
        values = getattr(found, fields.get(str(statistic), str(statistic))).reshape(-1)
        if statistic in ("min", "max"):
            decoder = self._summarized[column.source].decoder
            assert decoder is not None
            return decoder.to_arrow(np.ascontiguousarray(values), some)
        return pa.array(values, type=column.arrow_type, mask=~some)


def _ends(segments: Segments, dim: int, labels: TaskLabels) -> tuple[pa.Array, pa.Array]:
    """Return the first and the last label of each segment along a dimension."""
    spread = segments.spread(dim)
    firsts = segments.starts[dim]
    lasts = firsts + segments.lengths[dim] - 1
    first, last = (labels.take(segments.whole, dim, ends) for ends in (firsts, lasts))
    return first.take(pa.array(spread)), last.take(pa.array(spread))
