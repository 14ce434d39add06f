"""Makes the cells of a replaced region missing in chunks without rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.dataset.writing.part import (
    ArrayTarget,
    Destination,
    TaskReceipt,
    joined_chunks,
)
from icechunk_format.dataset.writing.regions.blank import (
    BlankedArray,
    CellDeletion,
    CellReceipt,
    blank_cells,
    cell_tasks,
)

Run = Callable[[Callable[[Any], CellReceipt], Sequence[Any]], Iterable[CellReceipt]]


def clear_region(
    arrays: Iterable[ArrayTarget],
    destination: Destination,
    receipts: Sequence[TaskReceipt],
    run: Run,
) -> tuple[list[TaskReceipt], dict[str, NDArray[np.int64]]]:
    """Make the cells of the region missing in chunks without rows.

    Returns the receipts of the tasks, and chunks to delete by path of the array.
    """
    blanked: dict[str, BlankedArray] = {}
    for array in arrays:
        if array.region is None or array.encoder is None:
            continue
        found = (receipt.manifests.get(array.path, ()) for receipt in receipts)
        blanked[array.path] = BlankedArray(
            target=array,
            selections=array.region,
            absent=array.encoder.absent,
            written=tuple(manifest.coords for manifests in found for manifest in manifests),
        )
    tasks = [task for array in blanked.values() for task in cell_tasks(array)]
    if not tasks:
        return [], {}
    work = CellDeletion(destination=destination, arrays=blanked)
    done = list(run(partial(blank_cells, work), tasks))
    cleared = joined_chunks(receipt.cleared for receipt in done)
    return [receipt.task for receipt in done], cleared
