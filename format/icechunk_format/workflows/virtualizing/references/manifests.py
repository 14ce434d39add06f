"""Writes the manifests of a box of chunks of one array, on executors.

Reads references staged by the scan, and moved references of the base.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.grid.boxes import box_of_grid
from icechunk_format.groups import SnapshotArrays
from icechunk_format.groups.changing import (
    ArrayTarget,
    Destination,
    TaskFiles,
    TaskReceipt,
    references,
)
from icechunk_format.repository.session import shifted
from icechunk_format.workflows.virtualizing.scanning.scan import read_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """References of files in one staged stream; arrays have a row for each file."""

    key: str
    span: tuple[int, int]
    """The byte range of the stream in the staged object."""
    urls: list[str]
    rows: NDArray[np.int64]
    """First row and number of rows, ``int64 (n, 2)``."""
    shifts: NDArray[np.int64]
    """Offsets added to chunk indices of a file, ``int64 (n, ndim)``."""
    modified: NDArray[np.int64]
    """Last modification in seconds since 1970; 0 if unknown."""
    parts: NDArray[np.int64]
    """Number of chunks into which each chunk is split along the first axis of the file."""
    counts: NDArray[np.int64]
    """Number of split chunks along that axis; further parts of its last chunk have no elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBox:
    """Chunks ``[lower, upper)`` of an array in the base, which move by ``shift``."""

    path: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    shift: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencesTask:
    """A box of chunks of one array, with the sources of its references."""

    target: ArrayTarget
    staged: tuple[StagedRows, ...] = ()
    moved: tuple[MovedBox, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencesContext:
    """The arguments that all tasks share."""

    destination: Destination
    now: int
    """Last modification, in seconds since 1970, assumed for objects other than the files: chunks of
    Zarr, and files in Kerchunk references."""


def run_references(context: ReferencesContext, task: ReferencesTask) -> TaskReceipt:
    """Store the manifests of one task."""
    files, prefixes = TaskFiles(context.destination), set[str]()
    for staged in task.staged:
        refs, found = _of_stage(context, task.target, staged)
        files.add(task.target, [refs])
        prefixes |= found
    files.add(task.target, [_of_base(files.base, task.target, box) for box in task.moved])
    return files.receipt(prefixes=sorted(prefixes))


def _of_stage(
    context: ReferencesContext, target: ArrayTarget, staged: StagedRows
) -> tuple[ChunkRefs, set[str]]:
    table = read_stage(context.destination.open_storage(), staged.key, staged.span)
    first, counts = staged.rows[:, 0], staged.rows[:, 1]
    number = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = table.take(pa.array(first[number] + within))
    # A split chunk becomes several adjacent rows.
    parts = staged.parts[number]
    taken = np.repeat(np.arange(len(number)), parts)
    part = np.arange(len(taken)) - np.repeat(np.cumsum(parts) - parts, parts)
    if "c0" in rows.column_names:
        at = rows.column("c0").to_numpy()[taken] * parts[taken] + part
        is_inside = at < staged.counts[number[taken]]
        taken, part = taken[is_inside], part[is_inside]
    rows, number, parts = rows.take(pa.array(taken)), number[taken], parts[taken]
    axes = [name for name in rows.column_names if name[0] == "c" and name[1:].isdigit()]
    ndim = staged.shifts.shape[1]
    coords = staged.shifts[number]
    for axis, name in enumerate(axes):
        # New dimensions are first; a file has one index along each.
        index = rows.column(name).to_numpy()
        coords[:, ndim - len(axes) + axis] += index * parts + part if axis == 0 else index
    length = rows.column("length").to_numpy() // parts
    location = pa.DictionaryArray.from_arrays(
        pa.array(number, pa.int32()), pa.array(staged.urls, pa.string())
    ).cast(pa.string())
    modified = staged.modified[number]
    if "location" in rows.column_names:
        other = rows.column("location").combine_chunks()
        is_other = pc.is_valid(other).to_numpy(zero_copy_only=False)
        modified = np.where(is_other, context.now, modified)
        location = pc.coalesce(other, location)
    columns = {
        "location": location,
        "offset": pa.array(rows.column("offset").to_numpy() + part * length),
        "length": pa.array(length),
        "last_modified": pa.array(modified * 1_000_000).cast(pa.timestamp("us", "UTC")),
    }
    kind = pa.repeat("virtual", len(number))
    if "data" in rows.column_names:
        columns["data"] = rows.column("data")
        is_inline = pc.is_valid(rows.column("data").combine_chunks())
        kind = pc.if_else(is_inline, "inline", "virtual")
    described = pa.table({"kind": kind, **columns}).combine_chunks()
    return references(target, coords, described, context.destination.chunk_source)


def _of_base(base: SnapshotArrays, target: ArrayTarget, box: MovedBox) -> ChunkRefs:
    found = base.lookup(box.path).in_box(box.lower, box.upper)
    parts = [refs.take(rows) for refs, rows in found]
    grid = box_of_grid(target.metadata.grid.num_chunks)
    moved = [shifted(part, box.shift, grid) for part in parts]
    return ChunkRefs.concat(moved or [ChunkRefs.empty(len(box.lower))])
