"""Finds the cells that may differ between the tables of two snapshots.

Used by change feeds and by mirrored tables. Reads transaction logs and labels of dimensions, but no
manifest.

Rules of this file
------------------
1. Whole chunks count as changed. Labels are compared by value, since an append rewrites the chunk
   of all labels.
2. Variables are identified by node id: all cells of a new array at the same path differ, unless
   rechunking alone has replaced it.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import DimSelection, Variable
from icechunk_format.tables import Dataset, Selection, Table
from icechunk_format.tables.reading import Column
from icechunk_format.workflows.changes.axis_changes import AxisChanges, by_label, by_position, slabs
from icechunk_format.workflows.changes.changed_boxes import (
    changed_boxes,
    in_table,
    why_another_array,
)
from icechunk_format.workflows.changes.rechunked import rechunked_arrays
from icechunk_format.workflows.changes.steps import TouchedNodes, touched_nodes

if TYPE_CHECKING:
    from icechunk_format.repository import RepositoryReader


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTable:
    """The table of a snapshot, with a selection of its rows."""

    dataset: Dataset
    table: Table
    chosen: Selection

    def variables(self) -> dict[str, Variable]:
        """Return the variables of the group by path."""
        return {variable.path: variable for variable in self.dataset.variables.values()}

    def columns(self) -> dict[str, Column]:
        """Return the columns that rows or the condition on values need, by source."""
        return {column.source: column for column in self.table.needed(self.chosen.residual)}

    def selections(self) -> list[DimSelection]:
        """Return the selected positions along each dimension of the table."""
        return self.table.selections(self.chosen.dims)


def axis_changes(
    older: SnapshotTable, newer: SnapshotTable, touched: TouchedNodes
) -> list[AxisChanges]:
    """Compare the selected positions along each dimension, by label if the dimension has labels.

    Raises
    ------
    InvalidInputError
        The type of the labels changed.
    """
    found = []
    was, now = older.columns(), newer.columns()
    for dim, before, after in zip(
        newer.table.dims, older.selections(), newer.selections(), strict=True
    ):
        if was[dim].arrow_type != now[dim].arrow_type:
            raise InvalidInputError(
                f"the labels of dimension {dim!r} were {was[dim].arrow_type} and are "
                f"{now[dim].arrow_type} now, so rows cannot be compared: start from the newer "
                "snapshot",
                dim=dim,
            )
        if _has_same_labels(dim, older, newer, touched):
            found.append(by_position(before, after))
        else:
            labels = [side.dataset.labels(side.table, dim) for side in (older, newer)]
            found.append(by_label(before, after, *labels))
    return found


def _has_same_labels(
    dim: str, older: SnapshotTable, newer: SnapshotTable, touched: TouchedNodes
) -> bool:
    """Return True if a dimension has no labels, or the logs show that they did not change."""
    was, now = older.columns()[dim], newer.columns()[dim]
    if was.path is None or now.path is None:
        return was.path is now.path
    before, after = older.variables()[was.path], newer.variables()[now.path]
    return (
        _decodes_alike(was, now)
        and before.node.id == after.node.id
        and after.node.id not in touched
        and before.shape == after.shape
    )


def changed_cells(
    side: SnapshotTable,
    other: SnapshotTable,
    touched: TouchedNodes,
    same: Collection[str] = (),
) -> Boxes:
    """Return the boxes of a table in which values may differ from the other snapshot.

    `axis_changes` finds positions that only one side selects, or selects with another label. Boxes
    may overlap. `same` are paths of arrays with the same values in both snapshots.
    """
    table, variables = side.table, side.variables()
    sizes, others = np.array(table.sizes, dtype=np.int64), other.variables()
    found = [slabs([], table.sizes)]
    for column in side.columns().values():
        if column.path is not None and column.role != "dimension":
            variable = variables[column.path]
            is_other = why_values_differ(column, side, other, same) is not None
            if column.path in same and not is_other:
                continue
            boxes = changed_boxes(variable, None if is_other else others.get(column.path), touched)
            found.append(in_table(boxes, variable.dims, table.dims, sizes))
    return np.concatenate(found)


def why_values_differ(
    column: Column, side: SnapshotTable, other: SnapshotTable, same: Collection[str] = ()
) -> str | None:
    """Return a reason why all values of a column may differ; None if the logs show the changes."""
    former = other.columns().get(column.source)
    if former is None:
        return f"{column.name} is a new column"
    if not _decodes_alike(former, column):
        return f"the values of {column.name} are decoded in another way"
    # Labels of dimensions are compared one by one, also those of an array that was replaced.
    if column.path is None or column.role == "dimension" or column.path in same:
        return None
    return why_another_array(side.variables()[column.path], other.variables().get(column.path))


def _decodes_alike(one: Column, other: Column) -> bool:
    """Return True if two columns decode stored values in the same way."""
    first, second = one.decoder, other.decoder
    if first is None or second is None or one.dims != other.dims:
        return first is second
    if one.arrow_type != other.arrow_type:
        return False
    # Remaining attributes do not affect values. Compared as pickles, since NaN differs from itself.
    return all(
        pickle.dumps(getattr(first, item.name)) == pickle.dumps(getattr(second, item.name))
        for item in fields(first)
        if item.name not in ("attributes", "encoding")
    )


def cell_changes(
    repository: RepositoryReader,
    logs: Sequence[SnapshotId],
    older: SnapshotTable,
    newer: SnapshotTable,
    *,
    only_stored: bool = False,
) -> Boxes | str:
    """Return boxes of the cells that differ between two snapshots, or a reason why all may differ.

    Boxes may overlap, and extend beyond the table. With `only_stored`, cells differ as well if only
    one snapshot stores their chunk.
    """
    variables = newer.variables()
    copied = [column.path for column in newer.columns().values() if column.path is not None]
    try:
        same = frozenset() if only_stored else same_values(repository, logs, older, newer)
        reason = _why_all_differ(older, newer, same)
        if reason is not None:
            return reason
        touched = touched_nodes(repository, logs, {variables[path].node.id for path in copied})
    except NotFoundError as error:
        return error.message
    for path in copied:
        if variables[path].shape and touched.smallest.get(variables[path].node.id) == ():
            return f"{path} was changed in a snapshot that expired"
    axes = axis_changes(older, newer, touched)
    boxes = (
        slabs([axis.fresh for axis in axes], newer.table.sizes),
        slabs([axis.moved for axis in axes], older.table.sizes),
        changed_cells(newer, older, touched, same),
    )
    return np.concatenate(boxes)


def same_values(
    repository: RepositoryReader,
    logs: Sequence[SnapshotId],
    older: SnapshotTable,
    newer: SnapshotTable,
) -> frozenset[str]:
    """Return the paths of arrays of the newer table that rechunking alone has replaced."""
    paths = {column.path for column in newer.columns().values() if column.role != "dimension"}
    was, now = (
        {path: variable for path, variable in side.variables().items() if path in paths}
        for side in (older, newer)
    )
    return rechunked_arrays(repository, logs, was, now)


def _why_all_differ(
    older: SnapshotTable, newer: SnapshotTable, same: Collection[str]
) -> str | None:
    if older.table.dims != newer.table.dims:
        was, now = (", ".join(side.table.dims) for side in (older, newer))
        return f"the dimensions were ({was}) and are ({now})"
    if older.table.names != newer.table.names:
        was, now = (", ".join(side.table.names) for side in (older, newer))
        return f"the columns were {was} and are {now}"
    if older.columns().keys() != newer.columns().keys() or _condition(older) != _condition(newer):
        return "the condition on values has another meaning"
    reasons = (why_values_differ(column, newer, older, same) for column in newer.columns().values())
    return next((reason for reason in reasons if reason is not None), None)


def _condition(side: SnapshotTable) -> str | None:
    residual = side.chosen.residual
    return None if residual is None else residual.sql
