"""Arranges files along the concatenated dimensions: keys, order, and the place of each file.

Each file has a key along each dimension: the time in its name, the first value of its coordinate,
or its number in the list. Keys are sorted, and the lengths of the files add up to their places.

Rules of this file
------------------
1. Times are microseconds of their calendar, so that files with different units compare.
2. Files that the repository has take part, so that new ones come where they belong.
3. A file that overlaps another, or comes twice, is refused; the one that was there first stays.
4. Keys and their order are a file's; lengths, and so places, are those of each group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.cf.times import parse_time_units
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.source_files import SourceFile


@dataclass(frozen=True, slots=True)
class Along:
    """A number for each concatenated dimension: of a file, and of its groups that differ."""

    own: tuple[int, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, group: str) -> tuple[int, ...]:
        """Return the numbers of a group."""
        return self.groups.get(group, self.own)

    def at(self, path: str) -> tuple[int, ...]:
        """Return the numbers of the group that an array is in."""
        return self.of(path.rpartition("/")[0]) if self.groups else self.own


@dataclass(slots=True, kw_only=True)
class Placed:
    """A file among the others.

    Parameters
    ----------
    first, last
        Along each dimension: its key, and the last one that it covers.
    lengths
        Elements along each dimension.
    starts
        Its first element along each dimension; ``arrange`` sets it.
    is_old
        Whether the repository has it.
    """

    file: SourceFile
    first: tuple[Any, ...]
    last: tuple[Any, ...]
    lengths: Along
    starts: Along = field(default_factory=Along)
    is_old: bool = False


@dataclass(slots=True, kw_only=True)
class Arranged:
    """All files in their places, in row-major order, and those that have none."""

    files: list[Placed]
    sizes: Along
    refused: list[tuple[Placed, str, SourceFile | None]]
    notes: list[tuple[Placed, str]] = field(default_factory=list)


def key_range(values: NDArray[Any], metadata: ArrayMetadata, name: str) -> tuple[Any, Any]:
    """Return the first and the last value of a coordinate as keys.

    Raises
    ------
    InvalidInputError
        Values are missing, or do not all rise or all fall.
    """
    comparable = comparable_values(values, metadata, name)
    before, after = comparable[:-1], comparable[1:]
    if not ((after > before).all() or (after < before).all()):
        raise InvalidInputError(f"the values of {name!r} neither all rise nor all fall")
    first, last = comparable[[0, -1]].tolist()
    return first, last


def comparable_values(values: NDArray[Any], metadata: ArrayMetadata, name: str) -> NDArray[Any]:
    """Return values that compare across files: times as microseconds, texts as they are."""
    flat = values.reshape(-1)
    units = metadata.attributes.get("units")
    if isinstance(units, str) and " since " in units and flat.dtype.kind in "iuf":
        scale = parse_time_units(units, metadata.attributes.get("calendar"), name=name)
        found, valid = scale.microseconds(flat, None, name=name)
        if valid is not None and not valid.all():
            raise InvalidInputError(f"the coordinate {name!r} has missing values")
        return found
    if flat.dtype.kind == "f" and np.isnan(flat).any():
        raise InvalidInputError(f"the coordinate {name!r} has missing values")
    if flat.dtype.kind in "SUOTV" or flat.dtype.hasobject:
        texts = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in flat]
        return np.array(texts, dtype=object)
    if flat.dtype.kind in "Mm":
        return flat.astype(np.int64)
    return flat.astype(flat.dtype.newbyteorder("="))


def arrange(files: Sequence[Placed], ndim: int) -> Arranged:
    """Give files their places.

    Parameters
    ----------
    files
        With keys and lengths; those of the repository first, then in the order of the list.
    ndim
        How many dimensions are concatenated.
    """
    refused: list[tuple[Placed, str, SourceFile | None]] = []
    notes: list[tuple[Placed, str]] = []
    cells: dict[tuple[Any, ...], Placed] = {}
    axes: list[dict[Any, Placed]] = [{} for _ in range(ndim)]
    groups = sorted({group for placed in files for group in placed.lengths.groups})

    def lengths(placed: Placed, axis: int) -> list[int]:
        found = placed.lengths
        return [found.own[axis], *(found.of(group)[axis] for group in groups)]

    for placed in files:
        other = cells.get(placed.first)
        problem = None if other is None else "has the same place as another file"
        for axis in range(ndim):
            mate = axes[axis].get(placed.first[axis])
            if (
                problem is None
                and mate is not None
                and (
                    lengths(mate, axis) != lengths(placed, axis)
                    or mate.last[axis] != placed.last[axis]
                )
            ):
                problem, other = "covers another stretch of the dimension from the same start", mate
        if problem is not None:
            refused.append((placed, problem, None if other is None else other.file))
            continue
        cells[placed.first] = placed
        for axis in range(ndim):
            axes[axis].setdefault(placed.first[axis], placed)
    starts: list[dict[Any, list[int]]] = []
    sizes: list[list[int]] = []
    dropped: list[set[Any]] = []
    for axis, members in enumerate(axes):
        kept, lost = _in_order(members, axis, refused, notes)
        at, found = [0] * (1 + len(groups)), {}
        for key in kept:
            found[key] = at
            at = [sum(pair) for pair in zip(at, lengths(members[key], axis), strict=True)]
        starts.append(found)
        sizes.append(at)
        dropped.append(lost)

    def along(numbers: Sequence[Sequence[int]]) -> Along:
        own, *others = zip(*numbers, strict=True) if ndim else [()] * (1 + len(groups))
        return Along(own, dict(zip(groups, others, strict=True)))

    stay: list[Placed] = []
    named = {id(item[0]) for item in refused}
    for placed in cells.values():
        if any(placed.first[axis] in dropped[axis] for axis in range(ndim)):
            if id(placed) not in named:
                refused.append((placed, "overlaps another file", None))
            continue
        placed.starts = along([starts[axis][placed.first[axis]] for axis in range(ndim)])
        stay.append(placed)
    stay.sort(key=lambda placed: placed.starts.own)
    return Arranged(files=stay, sizes=along(sizes), refused=refused, notes=notes)


def _in_order(
    members: dict[Any, Placed],
    axis: int,
    refused: list[tuple[Placed, str, SourceFile | None]],
    notes: list[tuple[Placed, str]],
) -> tuple[list[Any], set[Any]]:
    """Return keys in order, without those of new files that overlap others; and these."""
    falls = _falls(members, axis)
    kept: list[Any] = []
    lost: set[Any] = set()
    for key in sorted(members, reverse=falls):
        placed = members[key]
        while kept:
            before = members[kept[-1]]
            end = before.last[axis]
            is_over = end <= key if falls else end >= key
            if not is_over:
                break
            # What the repository has stays; of two new files, the earlier.
            if placed.is_old and not before.is_old:
                lost.add(kept.pop())
                refused.append((before, "overlaps another file", placed.file))
                continue
            lost.add(key)
            refused.append((placed, "overlaps another file", before.file))
            break
        if key not in lost:
            kept.append(key)
    _note_gaps([members[key] for key in kept], axis, notes)
    return kept, lost


def _falls(members: dict[Any, Placed], axis: int) -> bool:
    for placed in members.values():
        if placed.lengths.own[axis] > 1 and placed.first[axis] != placed.last[axis]:
            return bool(placed.last[axis] < placed.first[axis])
    old = [placed for placed in members.values() if placed.is_old and placed.starts.own]
    if len(old) > 1:
        old.sort(key=lambda placed: placed.starts.own[axis])
        return bool(old[-1].first[axis] < old[0].first[axis])
    return False


def _note_gaps(files: list[Placed], axis: int, notes: list[tuple[Placed, str]]) -> None:
    """Note where files lie farther apart than their steps, or than most files do."""
    numbers = [(f.first[axis], f.last[axis], f.lengths.own[axis]) for f in files]
    if not all(isinstance(n, int | float) for ends in numbers for n in ends):
        return
    gaps = [abs(after[0] - before[1]) for before, after in pairwise(numbers)]
    steps = [abs(b - a) / (n - 1) for a, b, n in numbers if n > 1]
    rounded = [float(f"{step:.9g}") for step in steps or gaps]
    usual, count = Counter(rounded).most_common(1)[0] if rounded else (0.0, 0)
    if not usual or count * 2 <= len(rounded):
        return
    for file, gap in zip(files[1:], gaps, strict=True):
        if gap > usual * 1.5:
            missing = max(1, round(gap / usual) - 1)
            notes.append((file, f"a gap lies before it: {missing} steps are missing"))
