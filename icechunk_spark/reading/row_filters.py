"""Drops rows in tasks that do not meet the conditions of a query.

Rows of chunks, references, blocks, metadata tables and changes are made before a condition on their
columns can be evaluated; this saves sending them to Spark. Executors import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from icechunk_format.tables.reading import Residual

Run = Callable[..., Iterator[pa.RecordBatch]]


class FilteredRun:
    """A generator function of a reader that yields only the rows that meet a condition.

    ``run`` is the function that makes the rows; None is that of a scan.
    """

    def __init__(self, run: Run | None, condition: Residual) -> None:
        self._run = run
        self._condition = condition

    def __call__(self, context: Any, task: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task that meet the condition."""
        made = cast(
            "Generator[pa.RecordBatch, None, None]", (self._run or scan_run())(context, task)
        )
        with closing(made):
            for batch in made:
                # A user's schema may spell names in another case.
                numbers = {name.casefold(): i for i, name in enumerate(batch.schema.names)}
                columns = {
                    name: batch.column(numbers[name.casefold()]) for name in self._condition.columns
                }
                kept = self._condition.evaluate(columns, batch.num_rows)
                if kept.true_count == batch.num_rows:
                    yield batch
                elif kept.true_count:
                    yield batch.filter(kept)


def scan_run() -> Run:
    """Return the function that runs a task of a scan."""
    from icechunk_format.tables.reading import run_scan

    return run_scan
