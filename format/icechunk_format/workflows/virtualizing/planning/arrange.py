"""Arranges files along the concatenated dimensions: sorts keys, and sums up lengths.

Each file has a key along each dimension: the time in its name, the first value of its coordinate,
or its number in the list.

Rules of this file
------------------
1. Times are microseconds in their calendar, so that files with different units can be compared.
2. Known files are arranged together with new files.
3. Of two overlapping files, the known or the first file is kept, and the other is refused.
4. A file has one key along a dimension; its groups may have different lengths and starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.tables.cf import parse_time_units
from icechunk_format.workflows.virtualizing.scanning.headers import is_time
from icechunk_format.zarr.zarr_json import ArrayMetadata

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.report import Row
    from icechunk_format.workflows.virtualizing.scanning.source_files import SourceFile


@dataclass(frozen=True, slots=True)
class Along:
    """A number for each concatenated dimension, with exceptions for groups of a file."""

    own: tuple[int, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, group: str) -> tuple[int, ...]:
        """Return the numbers of a group."""
        return self.groups.get(group, self.own)

    def at(self, path: str) -> tuple[int, ...]:
        """Return the numbers of an array's group."""
        return self.of(path.rpartition("/")[0]) if self.groups else self.own


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSpan:
    """The range of a file along the concatenated dimensions."""

    file: SourceFile
    first: tuple[Any, ...]
    """The first key along each dimension, by which files are sorted."""
    last: tuple[Any, ...]
    lengths: Along
    starts: Along = field(default_factory=Along)
    """The first element along each dimension; set by ``arrange``."""
    row: Row | None = None
    """The report row of a new file; None if the record of the repository has the file."""


Refused = tuple[FileSpan, str, FileSpan | None]
"""A refused file, the problem, and the other file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """All files in row-major order of their starts, and the refused files."""

    files: list[FileSpan]
    sizes: Along
    refused: list[Refused]
    notes: list[tuple[FileSpan, str]]


def key_range(values: NDArray[Any], metadata: ArrayMetadata, name: str) -> tuple[Any, Any]:
    """Return the first and the last value of a coordinate as keys."""
    comparable = comparable_values(values, metadata, name)
    before, after = comparable[:-1], comparable[1:]
    if not ((after > before).all() or (after < before).all()):
        raise InvalidInputError(f"the values of {name!r} neither all rise nor all fall")
    first, last = comparable[[0, -1]].tolist()
    return first, last


def comparable_values(values: NDArray[Any], metadata: ArrayMetadata, name: str) -> NDArray[Any]:
    """Return values comparable across files: times as microseconds, strings as ``str``."""
    flat = values.reshape(-1)
    if is_time(metadata) and flat.dtype.kind in "iuf":
        attributes = metadata.attributes
        scale = parse_time_units(str(attributes["units"]), attributes.get("calendar"), name=name)
        found, valid = scale.microseconds(flat, None, name=name)
        if valid is not None and not valid.all():
            raise InvalidInputError(f"the coordinate {name!r} has missing values")
        return found
    if flat.dtype.kind == "f" and np.isnan(flat).any():
        raise InvalidInputError(f"the coordinate {name!r} has missing values")
    if flat.dtype.kind in "SUOTV" or flat.dtype.hasobject:
        strings = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in flat]
        return np.array(strings, dtype=object)
    if flat.dtype.kind in "Mm":
        return flat.astype(np.int64)
    return flat.astype(flat.dtype.newbyteorder("="))


def arrange(files: Sequence[FileSpan], ndim: int) -> Arranged:
    """Find the starts of files; known files take precedence, then earlier files in the list.

    Raises
    ------
    FormatError
        Files of the repository overlap.
    """
    refused: list[Refused] = []
    notes: list[tuple[FileSpan, str]] = []
    cells: dict[tuple[Any, ...], FileSpan] = {}
    axes: list[dict[Any, FileSpan]] = [{} for _ in range(ndim)]
    groups = sorted({group for span in files for group in span.lengths.groups})

    def lengths(span: FileSpan, axis: int) -> list[int]:
        found = span.lengths
        return [found.own[axis], *(found.of(group)[axis] for group in groups)]

    for span in files:
        other = cells.get(span.first)
        problem = None if other is None else "has the same keys as another file"
        for axis in range(ndim):
            mate = axes[axis].get(span.first[axis])
            if (
                problem is None
                and mate is not None
                and (
                    lengths(mate, axis) != lengths(span, axis) or mate.last[axis] != span.last[axis]
                )
            ):
                problem, other = "covers another range of the dimension from the same start", mate
        if problem is not None:
            _refuse(refused, span, problem, other)
            continue
        cells[span.first] = span
        for axis in range(ndim):
            axes[axis].setdefault(span.first[axis], span)
    starts: list[dict[Any, list[int]]] = []
    sizes: list[list[int]] = []
    dropped: list[set[Any]] = []
    for axis, members in enumerate(axes):
        kept, lost = _in_order(members, axis, refused, notes)
        at, by_key = [0] * (1 + len(groups)), {}
        for key in kept:
            by_key[key] = at
            at = [sum(pair) for pair in zip(at, lengths(members[key], axis), strict=True)]
        starts.append(by_key)
        sizes.append(at)
        dropped.append(lost)

    def along(numbers: Sequence[Sequence[int]]) -> Along:
        own, *others = zip(*numbers, strict=True) if ndim else [()] * (1 + len(groups))
        return Along(own, dict(zip(groups, others, strict=True)))

    stay: list[FileSpan] = []
    for span in cells.values():
        if any(span.first[axis] in dropped[axis] for axis in range(ndim)):
            _refuse(refused, span, "overlaps another file")
            continue
        found = [starts[axis][span.first[axis]] for axis in range(ndim)]
        stay.append(replace(span, starts=along(found)))
    stay.sort(key=lambda span: span.starts.own)
    return Arranged(files=stay, sizes=along(sizes), refused=refused, notes=notes)


def _in_order(
    members: dict[Any, FileSpan],
    axis: int,
    refused: list[Refused],
    notes: list[tuple[FileSpan, str]],
) -> tuple[list[Any], set[Any]]:
    """Return the accepted keys in order, and the refused keys."""
    falls = _falls(members, axis)
    kept: list[Any] = []
    lost: set[Any] = set()
    for key in sorted(members, reverse=falls):
        span = members[key]
        while kept:
            before = members[kept[-1]]
            end = before.last[axis]
            is_over = end <= key if falls else end >= key
            if not is_over:
                break
            # Keep the known file, or the earlier of two new files.
            if span.row is None and before.row is not None:
                lost.add(kept.pop())
                _refuse(refused, before, "overlaps another file", span)
                continue
            lost.add(key)
            _refuse(refused, span, "overlaps another file", before)
            break
        if key not in lost:
            kept.append(key)
    _note_gaps([members[key] for key in kept], axis, notes)
    return kept, lost


def _refuse(
    refused: list[Refused], span: FileSpan, problem: str, other: FileSpan | None = None
) -> None:
    """Record the problem of a file."""
    if span.row is None:
        url = span.file.url
        raise FormatError(
            f"the record of files is damaged: {url} {problem}"
            f"{'' if other is None else f' ({other.file.url})'}; write to another group",
            object_key=url,
            file_type="record of files",
        )
    refused.append((span, problem, other))


def _falls(members: dict[Any, FileSpan], axis: int) -> bool:
    for span in members.values():
        if span.lengths.own[axis] > 1 and span.first[axis] != span.last[axis]:
            return bool(span.last[axis] < span.first[axis])
    old = [span for span in members.values() if span.row is None and span.starts.own]
    if len(old) > 1:
        old.sort(key=lambda span: span.starts.own[axis])
        return bool(old[-1].first[axis] < old[0].first[axis])
    return False


def _note_gaps(files: list[FileSpan], axis: int, notes: list[tuple[FileSpan, str]]) -> None:
    """Add notes on gaps between files that are wider than the steps in files or most gaps."""
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
            notes.append((file, f"gap of {missing} steps before it"))
