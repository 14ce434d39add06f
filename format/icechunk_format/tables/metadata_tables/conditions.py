"""Selects rows of metadata tables by conditions that an engine evaluates again.

Conditions on the path of an array, on a manifest and on elements of ``chunk`` choose the arrays and
manifests that tasks open. Other conditions become a condition on rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding import node_path
from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import IcechunkError
from icechunk_format.groups import Variable
from icechunk_format.options.metadata_tables import MetadataTable
from icechunk_format.tables.metadata_tables.manifests import Part, Task
from icechunk_format.tables.selection.pruning import Pruned, condition_on_rows, held, plan_conjunct
from icechunk_format.tables.selection.select import Selection
from icechunk_format.tables.selection.where.condition import Residual

# Columns of the tables that are read in parts, whose values the snapshot records.
_RECORDED: Final[Mapping[str, tuple[str, ...]]] = {
    "variables": ("path", "group", "name"),
    "chunks": ("path", "manifest_id"),
}
_MOST_POSITIONS: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class InspectionConditions:
    """Conditions on single columns that the snapshot records, and on elements of ``chunk``."""

    by_column: Mapping[str, tuple[Residual, ...]] = field(default_factory=dict)

    def arrays(self, snapshot: Snapshot, numbers: Sequence[int]) -> list[int]:
        """Return the nodes among some arrays whose rows may meet the conditions."""
        paths = [snapshot.nodes[number].path for number in numbers]
        kept = np.ones(len(numbers), dtype=bool)
        for name in ("path", "group", "name"):
            if name not in self.by_column:
                continue
            values = [
                str(path)
                if name == "path"
                else str(node_path.parent(path) or node_path.ROOT)
                if name == "group"
                else node_path.name(path)
                for path in paths
            ]
            kept &= self._held(name, pa.array(values, pa.string()))
        return [number for number, keep in zip(numbers, kept.tolist(), strict=True) if keep]

    def manifests(self, snapshot: Snapshot, number: int) -> NDArray[np.bool_]:
        """Return a mask of the manifests of an array that may list chunks to show."""
        refs = Variable(snapshot.nodes[number]).array.manifests
        kept = np.ones(len(refs), dtype=bool)
        if not len(refs):
            return kept
        if "manifest_id" in self.by_column:
            kept &= self._held("manifest_id", pa.array(encode_many(refs.ids), pa.string()))
        for axis in range(refs.extents.shape[1]):
            name = f"chunk[{axis}]"
            bounds = refs.extents[:, axis].astype(np.int64)
            count = int(np.max(bounds))
            if name not in self.by_column or count > _MOST_POSITIONS:
                continue
            held = self._held(name, pa.array(np.arange(count), pa.int64()))
            before = np.concatenate([[0], np.cumsum(held)])
            kept &= before[bounds[:, 1]] > before[bounds[:, 0]]
        return kept

    def parts(self, snapshot: Snapshot, tasks: Sequence[Task]) -> list[Task]:
        """Return tasks without the manifests that need not be opened."""
        if not any(name == "manifest_id" or "[" in name for name in self.by_column):
            return list(tasks)
        masks: dict[int, NDArray[np.bool_]] = {}
        found = []
        for task in tasks:
            parts: list[Part] = []
            for number, start, stop in task:
                if number not in masks:
                    masks[number] = self.manifests(snapshot, number)
                edges = np.flatnonzero(np.diff(masks[number][start:stop], prepend=0, append=0))
                parts += [
                    (number, start + first, start + last)
                    for first, last in edges.reshape(-1, 2).tolist()
                ]
            if parts:
                found.append(tuple(parts))
        return found

    def _held(self, name: str, values: pa.Array) -> NDArray[np.bool_]:
        return held(self.by_column[name], name, values)[0]


def prune_inspection(
    conjuncts: Sequence[str], table: MetadataTable, columns: Sequence[str], time_zone: str
) -> tuple[InspectionConditions, Pruned]:
    """Compile conditions in SQL on a metadata table.

    Return the conditions for ``plan_inspection``, and the condition on rows of some ``columns`` of
    the table, with all conjuncts that either uses.
    """
    types = {column.name: column.arrow_type for column in table.columns}
    recorded = _RECORDED.get(table.name, ())
    lists = ("chunk",) if table.name == "chunks" else ()
    chosen: dict[str, tuple[Residual, ...]] = {}
    used = []
    for sql in conjuncts:
        try:
            planned = plan_conjunct(sql, types, recorded, time_zone, lists)
        except IcechunkError:
            continue
        for name, condition in planned.dimension_conditions.items():
            chosen[name] = (*chosen.get(name, ()), condition)
            used.append(sql)
    shown = {name: kind for name, kind in types.items() if name in columns}
    of_rows = condition_on_rows(conjuncts, shown, time_zone)
    return InspectionConditions(chosen), Pruned(
        selection=Selection(dims={}),
        used=tuple(sql for sql in conjuncts if sql in used or sql in of_rows.used),
        left=tuple((sql, reason) for sql, reason in of_rows.left if sql not in used),
        is_exact=not conjuncts,
        is_total=of_rows.is_total,
        rows=of_rows.rows,
    )
