"""Makes the rows of the metadata tables ``manifests`` and ``chunks``; cuts their work into tasks.

A snapshot may have a hundred thousand manifests with a billion references. The driver cuts the
snapshot's list of manifests, which records the number of references in each. Only tasks open
manifests.

Rules of this file
------------------
1. A task holds only ranges ``(node, start, stop)``: the number of an array among the nodes of the
   snapshot, and a range of its list of manifests.
2. The cost of a manifest that several arrays share is divided among them.
3. References stay columnar from the manifest to the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, encode_many, id_keys, rows_of_ids
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import ManifestFiles, Snapshot
from icechunk_format.groups import Variable
from icechunk_format.options.metadata_tables import CHUNKS, MANIFESTS, arrow_kinds
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.storage.protocol import Storage
from icechunk_format.tables.metadata_tables.history import LARGEST
from icechunk_format.tables.reading.layouts.batches import BATCH_ROWS
from icechunk_format.tables.reading.layouts.chunk_refs import RefColumns, coordinate_lists

Part = tuple[int, int, int]
"""A node number, and the range ``[start, stop)`` of the array's manifests."""
Task = tuple[Part, ...]
"""Ranges of manifests; empty if a single task reads everything."""

# References that a task holds at a time: about 30 MB.
_REFS_AT_ONCE: Final = 500_000
# Cost of opening a manifest, as a number of references read in the same time.
_MANIFEST_COST: Final = 500
# References assumed in a manifest that the snapshot does not list.
_UNKNOWN_REFS: Final = 100_000
_ID: Final = ManifestId.SIZE


def manifest_costs(
    snapshot: Snapshot, arrays: Sequence[int], opening: int = _MANIFEST_COST
) -> list[NDArray[np.float64]]:
    """Return the cost of each manifest of some arrays (numbers of nodes), in references.

    ``opening`` is the cost of opening a manifest, added to its references.
    """
    lists = [Variable(snapshot.nodes[number]).array.manifests.ids for number in arrays]
    counts = [len(ids) for ids in lists]
    if not sum(counts):
        return [np.zeros(0) for _ in counts]
    ids = np.concatenate(lists)
    files = snapshot.manifest_files
    rows = rows_of_ids(files.ids, ids)
    refs = np.full(len(ids), _UNKNOWN_REFS, dtype=np.float64)
    refs[rows >= 0] = files.num_chunk_refs[rows[rows >= 0]]
    _, which, uses = np.unique(id_keys(ids), return_inverse=True, return_counts=True)
    costs = (refs + opening) / uses[which.reshape(-1)]
    return np.split(costs, np.cumsum(counts)[:-1])


def cut_manifests(
    arrays: Sequence[int], costs: Sequence[NDArray[np.float64]], target: int
) -> list[Task]:
    """Cut the manifests of arrays into tasks that cost less than ``target`` plus one manifest."""
    each = np.concatenate([np.zeros(0), *costs])
    if not len(each):
        return []
    owner = np.repeat(np.arange(len(arrays)), [len(c) for c in costs])
    task = ((np.cumsum(each) - each) // target).astype(np.int64)
    is_first = np.ones(len(each), dtype=bool)
    is_first[1:] = (owner[1:] != owner[:-1]) | (task[1:] != task[:-1])
    starts = np.flatnonzero(is_first)
    stops = np.append(starts[1:], len(each))
    before = np.concatenate([[0], np.cumsum([len(c) for c in costs])])[owner[starts]]
    tasks: dict[int, list[Part]] = {}
    for number, array, start, stop in zip(
        task[starts].tolist(),
        owner[starts].tolist(),
        (starts - before).tolist(),
        (stops - before).tolist(),
        strict=True,
    ):
        tasks.setdefault(number, []).append((arrays[array], start, stop))
    return [tuple(parts) for parts in tasks.values()]


def found_refs(
    storage: Storage, snapshot: Snapshot, part: Part
) -> Iterator[tuple[ManifestId, ChunkRefs, NDArray[np.int64]]]:
    """Yield the references of a part, manifest by manifest, opening few manifests at a time."""
    number, start, stop = part
    lookup = ChunkLookup(storage, snapshot.nodes[number])
    [costs] = manifest_costs(snapshot, [number])
    for [(_, first, last)] in cut_manifests([0], [costs[start:stop]], _REFS_AT_ONCE):
        yield from lookup.of_manifests(start + first, start + last)


def chunk_batches(
    storage: Storage, snapshot: Snapshot, parts: Sequence[Part], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``chunks`` for the parts of a task, with the named columns."""
    whole = CHUNKS.arrow_schema
    schema = pa.schema([whole.field(name) for name in columns])
    for part in parts:
        path = str(snapshot.nodes[part[0]].path)
        for manifest_id, refs, rows in found_refs(storage, snapshot, part):
            for first in range(0, len(rows), BATCH_ROWS):
                shown = rows[first : first + BATCH_ROWS]
                made = RefColumns(path, refs, shown)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(str(manifest_id), pa.string()), len(shown))
                        if name == "manifest_id"
                        else made.column("array" if name == "path" else name)
                        for name in columns
                    ],
                    schema=schema,
                )


def manifest_batches(
    snapshot: Snapshot, arrays: Sequence[int], *, unused: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``manifests``, by id, with their uses by the given arrays.

    With ``unused``, listed manifests that none of these arrays uses are included.
    """
    variables = [Variable(snapshot.nodes[number]) for number in arrays]
    lists = [variable.array.manifests for variable in variables]
    files = snapshot.manifest_files
    used = id_keys(np.concatenate([np.zeros((0, _ID), np.uint8), *(refs.ids for refs in lists)]))
    listed = id_keys(files.ids)
    shown = np.unique(np.concatenate([used, listed])) if unused else np.unique(used)
    if not len(shown):
        return
    order = np.argsort(used, kind="stable")
    owner = np.repeat(np.arange(len(lists)), [len(refs) for refs in lists])[order]
    use_of = np.searchsorted(shown, used[order])
    paths = pa.array([variable.path for variable in variables], type=pa.string())
    extents = pa.StructArray.from_arrays(
        [paths.take(pa.array(owner)), *(_bounds(lists, side).take(order) for side in (0, 1))],
        fields=list(arrow_kinds()["extents"].value_type),
    )
    is_new = np.ones(len(owner), dtype=bool)
    is_new[1:] = (owner[1:] != owner[:-1]) | (use_of[1:] != use_of[:-1])
    ids = shown.view(np.uint8).reshape(-1, _ID)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(encode_many(ids), type=pa.string()),
            _recorded(files, files.size_bytes, ids, zero_is_unknown=True),
            _recorded(files, files.num_chunk_refs, ids, zero_is_unknown=False),
            _lists(paths.take(pa.array(owner[is_new])), use_of[is_new], len(shown)),
            _lists(extents, use_of, len(shown)),
        ],
        schema=MANIFESTS.arrow_schema,
    )
    for first in range(0, len(shown), BATCH_ROWS):
        yield batch.slice(first, BATCH_ROWS)


def _bounds(lists: Sequence[Any], side: int) -> pa.Array:
    """Return the lower or upper bounds of all extents as a column of lists."""
    columns = [coordinate_lists(refs.extents[:, :, side]) for refs in lists]
    return pa.chunked_array(columns, type=pa.list_(pa.int64())).combine_chunks()


def _lists(values: pa.Array, row_of: NDArray[np.int64], rows: int) -> pa.Array:
    """Return values, in the order of their rows, as one list for each row."""
    offsets = np.searchsorted(row_of, np.arange(rows + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _recorded(
    files: ManifestFiles, column: NDArray[Any], wanted: NDArray[np.uint8], *, zero_is_unknown: bool
) -> pa.Array:
    """Return a recorded number of each manifest; NULL if the snapshot does not record it."""
    rows = rows_of_ids(files.ids, wanted)
    is_listed = rows >= 0
    values = np.zeros(len(wanted), dtype=np.uint64)
    values[is_listed] = column[rows[is_listed]]
    is_known = is_listed & (values <= LARGEST)
    if zero_is_unknown:
        is_known &= values > 0
    return pa.array(np.where(is_known, values, 0).astype(np.int64), mask=~is_known)
