"""Reads the labels of the dimensions that a task covers once, and slices them for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.dataset.reading.scan import ScanTask
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.table.table import Column, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.dataset.reading.arrays.opened import ScanArrays
    from icechunk_format.dataset.reading.layouts.block_reads import BlockReads
    from icechunk_format.dataset.reading.layouts.blocks import Block


class TaskLabels:
    """Labels of the dimensions that a task covers, for the given dimension columns."""

    def __init__(
        self,
        arrays: ScanArrays,
        table: Table,
        columns: Sequence[Column],
        reads: BlockReads,
        task: ScanTask,
    ) -> None:
        boxes = list(reads.boxes(task))
        self._labels: dict[int, tuple[str, DimSelection, pa.Array]] = {}
        for column in columns:
            dim = table.dims.index(column.source)
            held = [box[dim] for box in boxes]
            start, stop = min(s.start for s in held), max(s.stop for s in held)
            # The selected positions of the whole task; each block takes a slice.
            chosen = reads.selections[dim].within(start, stop)
            values = arrays.labels(column, table.sizes[dim], chosen)
            self._labels[dim] = (column.source, chosen, values)

    def of_block(self, block: Block) -> dict[int, tuple[str, pa.Array]]:
        """Return dimension name and values along a block, by the number of the dimension."""
        found = {}
        for dim, (name, chosen, values) in self._labels.items():
            [first] = chosen.rank(np.array([block[dim].start])).tolist()
            found[dim] = (name, values.slice(first, block[dim].count))
        return found
