"""Checks the access to chunks before a job, and describes the arrays that a job would write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.groups import DimSelection, SnapshotSource
from icechunk_format.storage.location import Location
from icechunk_format.tables.reading import CostCounter
from icechunk_format.zarr.zarr_json import ArrayMetadata

# Chunks of each box that are checked for unauthorized ones.
_LOOKED_AT: Final = 1_000

#: The path of an array, and the first elements and ends of a box of it.
ArrayBox = tuple[str, Sequence[int], Sequence[int]]


@shown_by("planned.group")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedGroup:
    """A group as a job would write it, without values.

    Attributes
    ----------
    arrays
        Documents of the arrays by name.
    """

    location: Location
    path: str
    arrays: Mapping[str, ArrayMetadata]
    attributes: Mapping[str, Any]


def check_access(source: SnapshotSource, boxes: Iterable[ArrayBox], *, fetch: bool) -> None:
    """Look up the first chunks of boxes of arrays, so that missing authorization is found early.

    Parameters
    ----------
    fetch
        If True, a byte of one chunk of each box is read, which also checks the storage. Otherwise
        nothing is read from a repository whose virtual chunks are all authorized.
    """
    if not fetch and not source.chunk_source.has_unauthorized_containers:
        return
    arrays = source.open()
    for path, lower, upper in boxes:
        reader = arrays.reader(path)
        shape = arrays.variable(path).shape
        request = reader.request(
            [DimSelection.span(*ends) for ends in zip(shape, lower, upper, strict=True)]
        )
        coords = request.coords[:_LOOKED_AT]
        CostCounter().chunks(reader, coords)
        if not fetch or reader.shards is not None:
            continue
        found = reader.lookup.find(coords.astype(np.uint32))
        rows = found.rows[:1]
        ranges = np.minimum(found.refs.length[rows].astype(np.int64), 1)
        starts = np.zeros_like(ranges)
        reader.chunk_source.fetch(found.refs, rows, np.stack([starts, ranges], axis=1))
