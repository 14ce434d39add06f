"""Computes starts and item numbers of runs of different lengths that lie one behind the other.

Bounds are not checked here, but where numbers are read from a file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from icechunk_format.spec.tables.bulk_reader import Ranges, Tables, VectorReader


def ragged_rows(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of ``counts`` items from each start on, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if ends.size else 0
    rows = np.arange(total, dtype=np.int64)
    rows += np.repeat(starts - (ends - counts), counts)
    return rows


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each run begins, given the number of items of each."""
    return np.cumsum(counts) - counts


def cells_of(spans: Ranges, step: int) -> NDArray[np.int64]:
    """Return the positions of the items of all vectors, one after the other."""
    within = ragged_rows(np.zeros_like(spans.lengths), spans.lengths)
    return np.repeat(spans.starts, spans.lengths) + step * within


def tables_of(reader: VectorReader, spans: Ranges, field: str) -> Tables:
    """Return the tables of all vectors, one after the other."""
    cells = cells_of(spans, 4)
    return reader.tables(cells + reader.offsets(cells, field), field)
