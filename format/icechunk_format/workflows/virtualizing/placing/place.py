"""Writes manifests on executors: references of files, put where their chunks lie in the arrays.

A task makes the manifests of a box of chunks of one array, from references that the scan has
staged, and from those that the array had in another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.chunks.references import references
from icechunk_format.dataset.writing.part import ArrayTarget
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.repository.files.manifest_files import (
    ManifestFormat,
    ManifestReceipt,
    store_manifests,
)
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.session.reads import shifted
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest, Storage

if TYPE_CHECKING:
    from icechunk_format.repository.chunks.source import ChunkSource


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """References of some files that lie in one staged stream.

    Parameters
    ----------
    key, span
        The object, and the bytes of the stream in it.
    urls
        Of the files.
    rows
        int64, shape (n, 2): first row of each file, and how many.
    shifts
        int64, shape (n, ndim): what is added to chunk coordinates of each file.
    modified
        int64, shape (n,): seconds since 1970, 0 where not known.
    parts
        int64, shape (n,): into how many chunks, along the first axis of the file, each chunk of a
        file is cut.
    """

    key: str
    span: tuple[int, int]
    urls: list[str]
    rows: NDArray[np.int64]
    shifts: NDArray[np.int64]
    modified: NDArray[np.int64]
    parts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedBox:
    """Chunks that an array has: ``[lower, upper)`` of its grid, moved by ``shift``."""

    path: str
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    shift: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTask:
    """The manifests of one box of one array."""

    target: ArrayTarget
    staged: tuple[StagedRows, ...] = ()
    moved: tuple[MovedBox, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceContext:
    """What all tasks share.

    Parameters
    ----------
    now
        Seconds since 1970, from which on references to other objects than the files themselves
        (chunks of Zarr, files that Kerchunk names) notice changes.
    """

    location: Location
    source: ChunkSource
    manifest_format: ManifestFormat
    base: SnapshotId | None
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRefs:
    """What a task has stored: manifests of one array, and places that need a container."""

    path: str
    manifests: tuple[ManifestReceipt, ...]
    places: tuple[str, ...]


def place_references(context: PlaceContext, task: PlaceTask) -> PlacedRefs:
    """Store the manifests of one task.

    Raises
    ------
    InvalidInputError
        A file has a reference that cannot be stored, such as one outside of the containers.
    StorageError, FormatError
        The repository cannot be read or written.
    """
    storage = open_storage(context.location)
    found: list[ChunkRefs] = []
    places: set[str] = set()
    for staged in task.staged:
        refs, new_places = _of_stage(context, task.target, staged, storage)
        found.append(refs)
        places |= new_places
    found += [_of_base(context, task.target, box, storage) for box in task.moved]
    refs = ChunkRefs.concat(found)
    [receipts] = store_manifests(storage, context.manifest_format, [(task.target.node_id, [refs])])
    return PlacedRefs(
        path=task.target.path, manifests=tuple(receipts), places=tuple(sorted(places))
    )


def _of_stage(
    context: PlaceContext, target: ArrayTarget, staged: StagedRows, storage: Storage
) -> tuple[ChunkRefs, set[str]]:
    start, end = staged.span
    [data] = storage.get_many([ReadRequest(key=staged.key, start=start, end=end)])
    table = pa.ipc.open_stream(data).read_all().combine_chunks()
    first, counts = staged.rows[:, 0], staged.rows[:, 1]
    number = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = table.take(pa.array(first[number] + within))
    # A chunk that is cut becomes several rows, one after the other.
    parts = staged.parts[number]
    taken = np.repeat(np.arange(len(number)), parts)
    part = np.arange(len(taken)) - np.repeat(np.cumsum(parts) - parts, parts)
    rows, number, parts = rows.take(pa.array(taken)), number[taken], parts[taken]
    axes = [name for name in rows.column_names if name[0] == "c" and name[1:].isdigit()]
    ndim = staged.shifts.shape[1]
    coords = staged.shifts[number]
    for axis, name in enumerate(axes):
        # New dimensions come first, and files lie at one place of them.
        at = rows.column(name).to_numpy()
        coords[:, ndim - len(axes) + axis] += at * parts + part if axis == 0 else at
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
    return references(target, coords, described, context.source)


def _of_base(
    context: PlaceContext, target: ArrayTarget, box: MovedBox, storage: Storage
) -> ChunkRefs:
    assert context.base is not None
    snapshot = load_snapshot(storage, context.base)
    node = snapshot.node(box.path)
    assert node is not None, "an array that moves was there when the plan was made"
    variable = Variable(node)
    lookup = ChunkLookup(storage, node, variable.array, snapshot.manifest_files)
    parts = [refs.take(rows) for refs, rows in lookup.in_box(box.lower, box.upper)]
    grid = np.array([(0, n) for n in target.metadata.grid.num_chunks], np.int64).reshape(-1, 2)
    moved = [shifted(part, box.shift, grid) for part in parts]
    return ChunkRefs.concat(moved or [ChunkRefs.empty(len(box.lower))])
