"""Finds the cells that differ between two snapshots, from transaction logs.

Rules of this file
------------------
1. No manifest is read. Chunks in the logs count as changed; where an array grew, its new chunks
   are outside of all older files and cost them nothing.
2. Labels of dimensions are compared by value, since an append writes the chunk of all labels anew.
3. Where the rows of every file are in doubt, the answer is a reason to copy all anew.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icechunk_format.dataset.reading.scan import ScanPlan
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.table.table import Column, Table
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.errors import NotFoundError
from icechunk_format.grid.cover import Boxes
from icechunk_format.repository.history.diff import add_up
from icechunk_format.repository.history.history import versions_after
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.repo_info.file import SnapshotInfo

if TYPE_CHECKING:
    from icechunk_format.dataset.dataset import Dataset
    from icechunk_format.repository.reader import RepositoryReader

_END: Final = np.iinfo(np.int64).max
# Parts of an array's metadata that change no stored cell.
_HARMLESS: Final = ("shape", "attributes", "consolidated_metadata")
# Labels that are compared at once.
_LABELS_AT_ONCE: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A snapshot as a table, with what of it is copied."""

    dataset: Dataset
    table: Table
    plan: ScanPlan

    @property
    def selections(self) -> tuple[DimSelection, ...]:
        """What is copied along each dimension."""
        chosen = self.plan.context.selections
        return tuple(
            chosen.get(dim) or DimSelection.whole(size)
            for dim, size in zip(self.table.dims, self.table.sizes, strict=True)
        )

    def columns(self) -> dict[str, Column]:
        """Return the columns that rows or the condition on values need, by their source."""
        needed = {column.source: column for column in self.table.columns}
        residual = self.plan.context.residual
        for column in self.table.value_columns:
            if residual is not None and column.source in residual.columns:
                needed.setdefault(column.source, column)
        return needed

    def variable(self, path: str) -> Variable:
        """Return an array of the table by its path."""
        return next(v for v in self.dataset.variables.values() if v.path == path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChanges:
    """Boxes of the table in which cells may differ, or why all of them may.

    Attributes
    ----------
    boxes
        Arrays of boxes ``int64 (n, ndim, 2)``, which may overlap and reach beyond the table.
    everywhere
        Why all files are written anew; None where ``boxes`` tell what changed.
    """

    boxes: tuple[Boxes, ...] = ()
    everywhere: str | None = None


def versions_between(
    repository: RepositoryReader, older: SnapshotId, newer: SnapshotId
) -> list[SnapshotInfo] | None:
    """Return the versions after ``older`` up to ``newer``, oldest first; None if no ancestor."""
    found = versions_after(older, repository.ancestry(snapshot=newer))
    return None if found is None else found[::-1]


def cell_changes(
    repository: RepositoryReader, between: Sequence[SnapshotInfo], old: Source, new: Source
) -> CellChanges:
    """Return which cells of a table differ after the snapshots ``between`` (oldest first)."""
    reason = _other_columns(old, new)
    if reason is not None:
        return CellChanges(everywhere=reason)
    logs, sizes = [], dict(zip(new.table.dims, new.table.sizes, strict=True))
    ours = {str(new.variable(path).node.id): path for path in _paths(new)}
    for info in between:
        for log_id in (*info.pruned_ancestor_tx_logs, info.id):
            try:
                log = repository.transaction_log(log_id)
            except NotFoundError:
                return CellChanges(everywhere=f"the log of snapshot {log_id} is gone")
            logs.append(log)
            if any(str(node_id) in ours for node_id in log.updated_arrays):
                if log_id != info.id:
                    return CellChanges(
                        everywhere=f"an array was changed in snapshot {log_id}, which expired"
                    )
                _shrink(sizes, repository, info.id, ours)
    changes = add_up(logs, older=old.dataset.snapshot, newer=new.dataset.snapshot)
    boxes: list[Boxes] = []
    for path, chunks in changes.updated_chunks.items():
        if str(path) in ours.values():
            variable = new.variable(str(path))
            if variable.is_dimension_coordinate:
                boxes += _changed_labels(old, new, variable)
            else:
                boxes.append(_chunk_boxes(variable, chunks.astype(np.int64), new.table))
    for number, dim in enumerate(new.table.dims):
        # An array that was smaller in between lost its cells, whatever its logs say of chunks.
        lost = np.array([[sizes[dim], _END]], dtype=np.int64)
        boxes.append(_spread(lost, (number,), len(new.table.dims)))
        before, after = old.selections[number], new.selections[number]
        if before != after:
            differ = np.setxor1d(before.positions(), after.positions(), assume_unique=True)
            boxes.append(_spread(_runs(differ), (number,), len(new.table.dims)))
    return CellChanges(boxes=tuple(boxes))


def _paths(source: Source) -> list[str]:
    needed = [column.path for column in source.columns().values() if column.path is not None]
    return list(dict.fromkeys([*needed, *source.table.arrays]))


def _other_columns(old: Source, new: Source) -> str | None:
    """Return what makes all rows differ: other columns, types, arrays or encodings."""
    if old.table.dims != new.table.dims:
        was, now = (", ".join(source.table.dims) for source in (old, new))
        return f"the dimensions were ({was}) and are ({now})"
    before, after = ([c.name for c in source.table.columns] for source in (old, new))
    if before != after:
        return f"the columns were {', '.join(before)} and are {', '.join(after)}"
    known, needed = old.columns(), new.columns()
    if known.keys() != needed.keys() or _condition(old) != _condition(new):
        return "the condition on values means something else"
    for name, column in needed.items():
        if not _decodes_alike(known[name], column):
            return f"the values of {name} are decoded in another way"
        if column.path is None:
            continue
        variable, former = new.variable(column.path), old.variable(str(known[name].path))
        if variable.node.id != former.node.id:
            return f"{column.path} is another array than before"
        if _stored(variable) != _stored(former):
            return f"{column.path} has other chunks, codecs or another fill value"
    return None


def _condition(source: Source) -> str | None:
    residual = source.plan.context.residual
    return None if residual is None else residual.sql


def _stored(variable: Variable) -> dict[str, Any]:
    return {k: v for k, v in variable.metadata.raw.items() if k not in _HARMLESS}


def _decodes_alike(one: Column, other: Column) -> bool:
    if (one.arrow_type, one.path is None, one.dims) != (
        other.arrow_type,
        other.path is None,
        other.dims,
    ):
        return False
    first, second = one.decoder, other.decoder
    if first is None or second is None:
        return first is second
    # What describes an array for people may change; pickles compare NaN with NaN.
    return all(
        pickle.dumps(getattr(first, item.name)) == pickle.dumps(getattr(second, item.name))
        for item in fields(first)
        if item.name not in ("attributes", "encoding")
    )


def _shrink(
    sizes: dict[str, int],
    repository: RepositoryReader,
    snapshot_id: SnapshotId,
    ours: dict[str, str],
) -> None:
    """Lower the sizes of dimensions to those in a snapshot between."""
    for node in repository.snapshot(snapshot_id).nodes:
        if str(node.id) in ours and node.array is not None:
            names = node.array.dimension_names or (None,) * len(node.array.shape)
            for axis, (name, size) in enumerate(zip(names, node.array.shape, strict=True)):
                dim = name or f"dim_{axis}"
                if dim in sizes:
                    sizes[dim] = min(sizes[dim], size)


def _changed_labels(old: Source, new: Source, variable: Variable) -> Iterator[Boxes]:
    """Yield the boxes of the positions whose labels differ, of those that both versions have."""
    dim = variable.name
    number = new.table.dims.index(dim)
    both = min(old.table.sizes[number], new.table.sizes[number])
    for start in range(0, both, _LABELS_AT_ONCE):
        stop = min(start + _LABELS_AT_ONCE, both)
        before, after = (s.dataset.read(dim, [start], [stop]) for s in (old, new))
        same = before == after
        if before.dtype.kind == "f":
            same |= np.isnan(before) & np.isnan(after)
        differ = np.flatnonzero(~np.asarray(same)) + start
        yield _spread(_runs(differ), (number,), len(new.table.dims))


def _chunk_boxes(variable: Variable, chunks: Any, table: Table) -> Boxes:
    """Return the boxes of cells in chunks of an array; chunks beyond its end are left out."""
    axes = variable.metadata.grid.axes
    counts = np.array([axis.count for axis in axes], dtype=np.int64)
    chunks = chunks[(chunks < counts).all(axis=1)]
    bounds = np.empty((len(chunks), len(axes), 2), dtype=np.int64)
    for number, axis in enumerate(axes):
        bounds[:, number, 0] = axis.start_of(chunks[:, number])
        bounds[:, number, 1] = axis.start_of(chunks[:, number] + 1)
    places = tuple(table.dims.index(dim) for dim in variable.dims)
    boxes = _spread(bounds, places, len(table.dims))
    return np.unique(boxes, axis=0) if len(boxes) else boxes


def _spread(bounds: Any, places: tuple[int, ...], ndim: int) -> Boxes:
    """Return boxes that are bounded along some dimensions, and whole along all others."""
    boxes = np.empty((len(bounds), ndim, 2), dtype=np.int64)
    boxes[:, :, 0], boxes[:, :, 1] = 0, _END
    if places:
        boxes[:, list(places)] = bounds.reshape(len(bounds), len(places), 2)
    return boxes


def _runs(positions: Any) -> Boxes:
    """Return the ranges of neighbouring positions, ``(n, 2)``."""
    if not len(positions):
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    firsts = positions[np.concatenate([[0], breaks])]
    lasts = positions[np.concatenate([breaks - 1, [len(positions) - 1]])]
    return np.stack([firsts, lasts + 1], axis=1)
