"""Checks that the arrays of a group agree on the length of each named dimension.

xarray cannot open a group whose arrays disagree, and rows cannot be appended to it. Each of two
commits may be right alone: one adds a variable, the other one appends to a dimension. So every
rebase and every merge is checked, and commits of arrays and renames as well.

Rules of this file
------------------
1. Pure.
2. Zarr allows arrays of different lengths, such as the levels of a pyramid. A dimension on which a
   group disagreed before counts as intended.
3. Only groups in which a session creates, resizes or moves arrays are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from icechunk_format.encoding.node_path import NodePath, parent
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.conflicts import Conflict, ConflictKind


class Disagreement(NamedTuple):
    """Two arrays of a group with different lengths of a dimension."""

    dim: str
    path: str
    length: int
    other: str
    other_length: int

    def __str__(self) -> str:
        return f"{self.dim} is {self.length} in {self.path} and {self.other_length} in {self.other}"


class _Array(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dimension_names(self) -> Sequence[str | None] | None: ...


class _Nodes(Protocol):
    def children(self, path: NodePath) -> Sequence[NodeSnapshot]: ...


def new_disagreements(
    now: Mapping[str, _Array], before: Iterable[Mapping[str, _Array]]
) -> list[Disagreement]:
    """Return the disagreements of arrays, by path, on which none of ``before`` disagreed."""
    found = _by_dim(now)
    for arrays in before:
        for dim in _by_dim(arrays) if found else ():
            found.pop(dim, None)
    return list(found.values())


def other_lengths(problem: str) -> InvalidInputError:
    """Return the error for arrays of one group that a commit would leave with other lengths."""
    return InvalidInputError(
        f"arrays of one group would have different lengths: {problem}; nothing was committed. "
        "Write all of them with one length, choose another group, or delete the other arrays first",
        found=problem,
    )


def arrays_of(nodes: _Nodes, group: NodePath) -> dict[str, _Array]:
    """Return the arrays of a group by path."""
    return {node.path: node.array for node in nodes.children(group) if node.array is not None}


def _by_dim(arrays: Mapping[str, _Array]) -> dict[str, Disagreement]:
    """Return the first disagreement on each dimension."""
    first: dict[str, tuple[str, int]] = {}
    found: dict[str, Disagreement] = {}
    for path, array in arrays.items():
        for dim, length in zip(array.dimension_names or (), array.shape, strict=False):
            if dim is None:
                continue
            other, known = first.setdefault(dim, (path, length))
            if known != length:
                found.setdefault(dim, Disagreement(dim, path, length, other, known))
    return found


def changed_groups(changes: ChangeSet, base: Snapshot) -> set[NodePath]:
    """Return the groups in which a session creates, resizes or moves arrays."""
    paths = [node.path for node in changes.created.values() if node.array is not None]
    paths += [move.to_path for move in changes.moved.values() if move.is_array]
    for node_id, node in changes.updated.items():
        stored = base.nodes.with_id(node_id)
        was = None if stored is None else stored.array
        if node.array is not None and (was is None or was.shape != node.array.shape):
            paths.append(node.path)
    return {above for path in paths if (above := parent(path)) is not None}


def length_conflicts(
    now: _Nodes, sides: Sequence[_Nodes], groups: Iterable[NodePath]
) -> list[Conflict]:
    """Return conflicts of arrays with different lengths in groups in which no side had them."""
    return [
        Conflict(kind=ConflictKind.LENGTHS_DIFFER, path=NodePath(found.path), labels=str(found))
        for group in sorted(groups)
        for found in new_disagreements(
            arrays_of(now, group), [arrays_of(side, group) for side in sides]
        )
    ]
