"""Finds groups in which the sides of a merge have different labels at one position.

Cells belong to labels. Chunks of one side may be laid over those of the other only where a position
has the same label on both sides, and where arrays that one side created have the merged length.
Other groups are merged by their labels, or are a conflict.

Unnamed dimensions and those whose arrays had different lengths before have no labels in common, so
each array is merged by its positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.groups import Variable, arrays_in
from icechunk_format.repository.changes import metadata_of, same_meaning
from icechunk_format.repository.files import manifest_keys
from icechunk_format.workflows.merging.sides import Sides

_Arrays = Mapping[str, Variable]


def misplaced(sides: Sides, group: NodePath) -> str | None:
    """Return the reason why positions of a group cannot be merged as they are; None if they can."""
    base, source, target = (arrays_in(s, group) for s in (sides.base, sides.source, sides.target))
    arrays = (*source.values(), *target.values())
    for dim in sorted({dim for array in arrays for dim in _sizes_of(array)}):
        if touched_by_both(dim, (base, source, target)):
            problem = _labels_differ(sides, dim, (base, source, target))
            problem = problem or _lengths_differ(dim, (base, source, target))
            if problem is not None:
                return problem
    return None


def touched_by_both(dim: str, named: Sequence[_Arrays]) -> bool:
    """Return True if both sides created or changed an array with a dimension."""
    return all(_touches(dim, named[0], side) for side in named[1:])


def _sizes_of(array: Variable) -> dict[str, int]:
    """Return the sizes of the named dimensions of an array."""
    names = array.array.dimension_names or ()
    return {name: size for name, size in zip(names, array.shape, strict=False) if name}


def _touches(dim: str, base: _Arrays, side: _Arrays) -> bool:
    """Return True if a side created or changed an array with a dimension."""
    return any(
        name not in base or not _is_same(base[name], array)
        for name, array in side.items()
        if dim in _sizes_of(array)
    )


def _is_same(before: Variable, after: Variable) -> bool:
    """Return True if metadata and manifests of two arrays are the same."""
    one, other = before.node, after.node
    if one.id != other.id or metadata_of(one) != metadata_of(other):
        return False
    keys = [set(manifest_keys(each.array.manifests).tolist()) for each in (before, after)]
    return keys[0] == keys[1]


def _labels_differ(sides: Sides, dim: str, named: Sequence[_Arrays]) -> str | None:
    """Return the problem if a position has another label, or none any more, on one side."""
    found = [each.get(dim) for each in named]
    arrays = [v if v is not None and v.is_dimension_coordinate else None for v in found]
    base, *others = arrays
    pairs = zip(others, named[1:], strict=True)
    if base is not None and any(v is None and _lengths(dim, side) for v, side in pairs):
        # A side without labels keeps the positions of the common snapshot, if nothing else moved.
        if any(v is not None and not _is_same(base, v) for v in others):
            return f"one side has no array of the labels of {dim!r}, which the other has changed"
        if any(_lengths(dim, side) not in ({base.shape[0]}, set()) for side in named):
            return f"one side has no array of the labels of {dim!r}, and another length"
        return None
    snapshots = (sides.base, sides.source, sides.target)
    listed = [(v, s) for v, s in zip(arrays, snapshots, strict=True) if v is not None]
    if not listed or all(_is_same(listed[0][0], v) for v, _ in listed[1:]):
        return None
    if not all(same_meaning(listed[0][0].node, v.node) for v, _ in listed[1:]):
        return f"one side has changed the meaning of the labels of {dim!r}"
    try:
        labels = [sides.destination.reader(s, v).read_all() for v, s in listed]
    except (FormatError, UnsupportedError) as error:
        return f"the labels of {dim!r} cannot be read: {error}"
    if all(_is_start(one, other) for one, other in combinations(labels, 2)):
        return None
    return f"the sides have different labels of {dim!r} at the same position"


def _is_start(one: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    """Return True if the shorter of two arrays of labels is the start of the longer one."""
    count = min(len(one), len(other))
    return bool(np.array_equal(one[:count], other[:count]))


def _lengths(dim: str, arrays: _Arrays) -> set[int]:
    return {sizes[dim] for array in arrays.values() if dim in (sizes := _sizes_of(array))}


def _lengths_differ(dim: str, named: Sequence[_Arrays]) -> str | None:
    """Return the problem if an array that one side created has another length than the result."""
    lengths = [_lengths(dim, arrays) for arrays in named]
    if any(len(found) > 1 for found in lengths):
        return None
    was, ours, theirs = (next(iter(found), 0) for found in lengths)
    if ours == theirs:
        return None
    if was not in (ours, theirs):
        return f"both sides have changed the length of {dim!r}"
    # The side that kept the length: its new arrays are too short or too long.
    keeps = named[1] if ours == was else named[2]
    for name, array in keeps.items():
        before = named[0].get(name)
        if dim in _sizes_of(array) and (before is None or before.node.id != array.node.id):
            return (
                f"{array.path} is new on one side, and the other has changed the length of {dim!r}"
            )
    return None
