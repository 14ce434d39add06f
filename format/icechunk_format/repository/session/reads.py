"""Reads the chunk references of an array in a session: stored ones, overlaid by pending changes.

Only manifests whose extents overlap the box are read. ``chunk_changes`` describes the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import beyond, box_of_grid, boxes_meet, inside_box
from icechunk_format.grid.coordinates import joined_coords
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.files.bounded_reads import ListedManifests, references_in
from icechunk_format.repository.files.metadata_files import load_manifests
from icechunk_format.storage.protocol import Storage


def current_refs(
    storage: Storage,
    node: NodeSnapshot,
    changes: ChunkChanges | None,
    listed: ManifestFiles,
    lo: Sequence[int],
    hi: Sequence[int],
) -> ChunkRefs:
    """Return the references of an array in the box [lo, hi), with pending changes.

    ``node`` is the array with the manifests of the base.
    """
    array = node.array
    assert array is not None
    ndim = len(array.shape)
    if not len(lo) == len(hi) == ndim:
        raise InvalidInputError(
            f"a box of {len(lo)} and {len(hi)} dimensions was given for array {node.path!r} of "
            f"{ndim}",
            name=node.path,
        )
    box = np.array(list(zip(lo, hi, strict=True)), dtype=np.int64).reshape(-1, 2)
    refs = ChunkRefs.empty(ndim)
    if changes is None or not changes.replaces_all:
        manifests = ListedManifests.of(array.manifests, listed)
        refs = references_in(storage, node.id, node.path, manifests, box)
    if changes is None:
        return refs
    if changes.clip is not None:
        refs = refs.take(inside_box(refs.coords, box_of_grid(changes.clip)))
    near = [r for r in changes.receipts if boxes_meet(r.coords.bounds(), box)]
    loaded = load_manifests(storage, [receipt.manifest_id for receipt in near])
    for receipt, manifest in zip(near, loaded, strict=True):
        entry = manifest.array(node.id)
        if entry is not None:
            part = entry.refs.take(entry.refs.select_box(lo, hi))
            refs = ChunkRefs.overlay(refs, receipt.pick(part))
    pending, deleted = changes.pending()
    return ChunkRefs.overlay(refs, pending.take(pending.select_box(lo, hi)), deleted)


def dropped_coords(
    storage: Storage,
    node: NodeSnapshot,
    changes: ChunkChanges | None,
    listed: ManifestFiles,
    num_chunks: Sequence[int],
) -> NDArray[np.uint32]:
    """Return the chunks of the base that a resize dropped and a larger grid would include again."""
    clip = None if changes is None else changes.clip
    boxes = [] if clip is None or len(clip) != len(num_chunks) else beyond(clip, num_chunks)
    found = [current_refs(storage, node, None, listed, lo, hi).coords for _, lo, hi in boxes]
    return joined_coords(found, len(num_chunks))


def shifted(refs: ChunkRefs, offset: Sequence[int], grid: NDArray[np.int64]) -> ChunkRefs:
    """Shift references, and drop those that leave the chunk grid."""
    coords = refs.coords.astype(np.int64) + np.array(offset, dtype=np.int64)
    stays = inside_box(coords, grid)
    return refs.take(stays).moved(coords[stays])
