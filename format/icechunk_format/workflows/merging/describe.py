"""Adds labels to conflicts of merges, such as ``time 2024-07-01..2024-07-05``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.part import Destination
from icechunk_format.errors import IcechunkError
from icechunk_format.repository.changes.conflicts import Conflict
from icechunk_format.repository.merging.sides import Sides
from icechunk_format.spec.node_path import NodePath, parent
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.workflows.merging.labels import encoder_of


def destination_of(sides: Sides) -> Destination:
    """Return the target of a merge as the destination of a write."""
    return Destination(
        location=sides.location,
        base=sides.target.id,
        manifest_format=sides.format,
        chunk_source=sides.chunk_source,
    )


def arrays_in(snapshot: Snapshot, group: NodePath) -> dict[str, Variable]:
    """Return the arrays of a group by name."""
    found = [Variable(node) for node in snapshot.children(group) if node.array is not None]
    return {variable.name: variable for variable in found}


def described(sides: Sides, conflicts: Sequence[Conflict]) -> list[Conflict]:
    """Return conflicts with the labels of their chunks."""
    return [_described(sides, conflict) for conflict in conflicts]


def _described(sides: Sides, conflict: Conflict) -> Conflict:
    node = None if conflict.node_id is None else sides.target.nodes.with_id(conflict.node_id)
    coords, above = conflict.coords, None if node is None else parent(node.path)
    if node is None or node.array is None or above is None or coords is None or not len(coords):
        return conflict
    try:
        variable, named = Variable(node), arrays_in(sides.target, above)
        spans = []
        for dim, axis, at in zip(
            variable.dims, variable.metadata.grid.axes, coords.T.astype(np.int64), strict=True
        ):
            low, high = axis.start_of(np.array([at.min(), at.max() + 1])).tolist()
            shown = f"[{low}:{high}]"
            labels = named.get(dim)
            if labels is not None and labels.is_dimension_coordinate and low < high:
                shown = f" {_ends(sides, labels, low, high - 1)}"
            spans.append(f"{dim}{shown}")
    # A merge reports conflicts of damaged arrays, too, by the numbers of their chunks.
    except IcechunkError:
        return conflict
    return replace(conflict, labels=", ".join(spans))


def _ends(sides: Sides, variable: Variable, first: int, last: int) -> str:
    reader = destination_of(sides).reader(sides.target, variable.node)
    decoder = encoder_of(variable).decoder
    values = [
        decoder.decode(reader.read_box((at,), (at + 1,)))[0].as_py()
        for at in dict.fromkeys((first, last))
    ]
    return "..".join(
        value.isoformat() if hasattr(value, "isoformat") else str(value) for value in values
    )
