"""Makes the cells of a deleted or replaced region missing, chunk by chunk.

Algorithm
---------
1. Chunks that the region touches are joined to boxes of bounded size.
2. A task reads a box, sets the selected cells to the missing value, and writes the chunks, or
   deletes those with only the fill value.
3. With a condition on values, a task finds the cells by a scan of its box.
4. Chunks with rows of the same write are skipped.

Rules of this file
------------------
1. Memory of a task is the values of one box, and the references of the task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.grid.boxes import coords_of_boxes
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.grid.coordinates import CoordinateOrder, joined_coords
from icechunk_format.grid.cover import steps_along
from icechunk_format.groups import ArrayReader, DimSelection, Variable, runs_of
from icechunk_format.groups.changing import ArrayTarget, Destination, TaskFiles, TaskReceipt
from icechunk_format.repository.changes.touched_chunks import in_any
from icechunk_format.storage.batches import sized_batches
from icechunk_format.tables.cf.column_types import missing_value_advice
from icechunk_format.tables.cf.decode import attribute_decoder
from icechunk_format.tables.cf.encode import missing_value
from icechunk_format.tables.reading.run import run_scan
from icechunk_format.tables.reading.scan import ScanContext, ScanTask
from icechunk_format.tables.writing.part import joined_chunks
from icechunk_format.zarr.fill_values import is_all_fill

_BOX_BYTES: Final = 64 * 2**20
_TASK_BYTES: Final = 256 * 2**20
# Bounds the pickle of a task that has many tiny boxes.
_MOST_BOXES: Final = 4_096

Run = Callable[[Callable[[Any], "CellReceipt"], Sequence[Any]], Iterable["CellReceipt"]]

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First chunks, and the ones after the last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlankedArray:
    """An array in which the selected cells become missing."""

    target: ArrayTarget
    selections: tuple[DimSelection, ...]
    """Selected positions along each axis."""
    absent: Any
    """The stored missing value; None if the array has none."""
    written: tuple[CoordSet, ...] = ()
    """Chunks with rows of the same write."""

    @property
    def is_fill(self) -> bool:
        """True if missing chunks read as missing values."""
        metadata = self.target.metadata
        if self.absent is None:
            return False
        value: NDArray[Any] = np.empty(1, metadata.data_type.numpy)
        value[0] = self.absent
        return is_all_fill(value, metadata.fill_value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellDeletion:
    """The context of all tasks; picklable."""

    destination: Destination
    arrays: Mapping[str, BlankedArray]
    condition: ScanContext | None = None
    """A scan of the dimension columns of the rows that satisfy a condition on values; None to
    delete all selected cells."""
    dry_run: bool = False
    """Count the cells, but write nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReceipt:
    """The chunks that a task has written and deleted, and the cells that it counted."""

    task: TaskReceipt
    cleared: Mapping[str, NDArray[np.uint32]] = field(default_factory=dict)
    """By path: chunks to delete, ``uint32 (n, ndim)``."""
    cells: Mapping[str, int] = field(default_factory=dict)
    """By path: cells that became missing."""


def blanked(variable: Variable, selections: Mapping[str, DimSelection]) -> BlankedArray:
    """Return the deletion of selected cells of an array.

    Raises InvalidInputError if the array has no missing value.
    """
    metadata = variable.metadata
    decoder = attribute_decoder(
        variable.attributes, metadata.data_type, decode_cf=True, name=variable.name
    )
    absent = missing_value(variable.attributes, decoder, metadata.data_type)
    if absent is None:
        advice = missing_value_advice(variable.name, metadata.data_type, decoder.arrow_type)
        raise InvalidInputError(
            f"{variable.name} of {metadata.data_type.name} has no missing value, so its cells"
            " cannot be deleted; delete whole labels of a dimension, or store the array with a"
            f" missing value: {advice}",
            variable=variable.name,
            dtype=metadata.data_type.name,
        )
    return BlankedArray(
        target=ArrayTarget.of_existing(variable, metadata),
        selections=tuple(
            selections.get(dim, DimSelection.whole(size))
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        ),
        absent=absent,
    )


def cell_tasks(array: BlankedArray) -> list[tuple[str, tuple[Box, ...]]]:
    """Cut the chunks of a region into tasks, each the path of the array and boxes of chunks."""
    grid = array.target.metadata.grid
    if any(not chosen.count for chosen in array.selections):
        return []
    item = array.target.metadata.data_type.item_bytes
    chunk = item * math.prod(axis.largest for axis in grid.axes)
    runs = [_runs(axis, s) for axis, s in zip(grid.axes, array.selections, strict=True)]
    sized = (
        (box, chunk * math.prod(b - a for a, b in zip(*box, strict=True)))
        for box in _boxes(runs, max(1, _BOX_BYTES // chunk))
    )
    tasks = sized_batches(sized, _MOST_BOXES, _TASK_BYTES)
    return [(array.target.path, tuple(boxes)) for boxes in tasks]


def _runs(axis: ChunkAxis, chosen: DimSelection) -> list[tuple[int, int]]:
    """Return the ranges of chunks with selected positions along an axis."""
    if chosen.indices is None:
        return [axis.chunk_range(chosen.start, chosen.stop)]
    runs = runs_of(np.unique(axis.chunk_of(chosen.indices)))
    return [(first, last) for first, last in runs.tolist()]


def _boxes(runs: Sequence[list[tuple[int, int]]], most: int) -> Iterator[Box]:
    """Yield the products of runs, cut to at most ``most`` chunks."""
    for ranges in itertools.product(*runs):
        counts = [high - low for low, high in ranges]
        steps = steps_along(counts, math.prod(counts), most)
        cuts = [
            [(at, min(at + step, high)) for at in range(low, high, step)]
            for (low, high), step in zip(ranges, steps, strict=True)
        ]
        for box in itertools.product(*cuts):
            yield tuple(low for low, _ in box), tuple(high for _, high in box)


def blank_cells(work: CellDeletion, task: tuple[str, tuple[Box, ...]]) -> CellReceipt:
    """Make the selected cells in the boxes of a task missing."""
    path, boxes = task
    array = work.arrays[path]
    reader = work.destination.open_base().reader(path)
    files = TaskFiles(work.destination)
    axes = array.target.metadata.grid.axes
    ndim, cells = len(axes), 0
    cleared = [np.empty((0, ndim), np.uint32)]
    for low, high, coords in _left_over(array, boxes):
        lower = [axis.bounds(at)[0] for axis, at in zip(axes, low, strict=True)]
        upper = [axis.bounds(at - 1)[1] for axis, at in zip(axes, high, strict=True)]
        chosen = [s.within(a, b) for s, a, b in zip(array.selections, lower, upper, strict=True)]
        shape = [b - a for a, b in zip(lower, upper, strict=True)]
        if work.condition is None:
            mask = None
            count = math.prod(s.count for s in chosen)
        else:
            mask = _mask(work.condition, array.target.dims, lower, upper)
            count = int(np.count_nonzero(mask))
        cells += count
        if count and array.absent is None:
            raise _no_row(array, chosen)
        if work.dry_run or not count:
            continue
        if array.is_fill and not len(reader.lookup.find(coords).positions):
            continue
        # Elements added by the same write are missing, too.
        values = np.empty(shape, array.target.metadata.data_type.numpy)
        values[...] = array.absent
        if mask is not None or count < math.prod(shape):
            end = [min(b, size) for b, size in zip(upper, reader.shape, strict=True)]
            old = reader.read_box(lower, end)
            values[tuple(map(slice, old.shape))] = old
            if mask is not None:
                values[mask] = array.absent
            else:
                at = [s.positions() - a for s, a in zip(chosen, lower, strict=True)]
                values[np.ix_(*at)] = array.absent
        written = files.write(array.target, lower, values)
        cleared.append(emptied(reader, coords, written))
    return CellReceipt(
        task=files.receipt(),
        cleared={path: np.concatenate(cleared)},
        cells={path: cells},
    )


def emptied(
    reader: ArrayReader, coords: NDArray[np.uint32], written: Sequence[ChunkRefs]
) -> NDArray[np.uint32]:
    """Return the stored chunks among some that were not written again, since they are empty."""
    stored = coords[reader.lookup.find(coords).positions]
    kept = joined_coords([refs.coords for refs in written], coords.shape[1])
    return stored[CoordinateOrder(kept).find(stored) < 0]


def _left_over(
    array: BlankedArray, boxes: Sequence[Box]
) -> Iterator[tuple[Sequence[int], Sequence[int], NDArray[np.uint32]]]:
    """Yield boxes, each with the coordinates of its chunks without rows."""
    for low, high in boxes:
        coords = coords_of_boxes(np.stack([low, high], axis=1).astype(np.int64)[None])
        is_written = in_any(array.written, coords)
        if not is_written.any():
            yield low, high, coords
            continue
        for at in coords[~is_written]:
            yield at.tolist(), (at + 1).tolist(), at[None]


def _no_row(array: BlankedArray, chosen: Sequence[DimSelection]) -> InvalidInputError:
    target = array.target
    at = ", ".join(f"{d}[{s.start}]" for d, s in zip(target.dims, chosen, strict=True))
    return InvalidInputError(
        f"no row for the cell ({at}) of {target.name} in the region that is replaced, and its array"
        f" of {target.metadata.data_type.name} has no missing value; add the rows, or store the"
        " array with a missing value",
        variable=target.name,
        cell=at,
    )


def _mask(
    condition: ScanContext, dims: Sequence[str], lower: Sequence[int], upper: Sequence[int]
) -> NDArray[np.bool_]:
    """Return a mask of the cells of a box that satisfy a condition, in the array's order."""
    table = condition.table
    bounds = {dim: (a, b) for dim, a, b in zip(dims, lower, upper, strict=True)}
    part = (0, *itertools.chain.from_iterable(bounds[dim] for dim in table.dims))
    arrays = condition.open_arrays()
    labels: list[pa.Array] = []
    for column in table.columns:
        size = table.sizes[table.dims.index(column.source)]
        labels.append(column.labels(arrays, size, DimSelection.span(size, *bounds[column.source])))
    mask = np.zeros([bounds[dim][1] - bounds[dim][0] for dim in table.dims], np.bool_)
    for batch in run_scan(condition, ScanTask(parts=(part,), rows=mask.size)):
        at = tuple(
            pc.index_in(column, value_set=known).to_numpy(zero_copy_only=False)
            for column, known in zip(batch.columns, labels, strict=True)
        )
        mask[at] = True
    return mask.transpose([table.dims.index(dim) for dim in dims])


def clear_region(
    arrays: Iterable[ArrayTarget],
    destination: Destination,
    receipts: Sequence[TaskReceipt],
    run: Run,
) -> tuple[list[TaskReceipt], dict[str, NDArray[np.uint32]]]:
    """Make the cells of a replaced region missing in chunks without rows.

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
    work = CellDeletion(destination=destination, arrays=blanked)
    done = list(run(partial(blank_cells, work), tasks))
    cleared = joined_chunks(receipt.cleared for receipt in done)
    return [receipt.task for receipt in done], cleared
