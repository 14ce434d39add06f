"""The references of an array as a session sees them: stored ones, with pending changes on top.

Only manifests whose extents meet the box are read. The layers are those of ``chunk_changes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.boxes import boxes_meet, inside_box
from icechunk_format.repository.objects import load_manifests
from icechunk_format.spec.chunk_refs import ChunkRefs
from icechunk_format.spec.coordinate_order import CoordinateOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_format.repository.chunk_changes import ChunkChanges
    from icechunk_format.spec.ids import ManifestId
    from icechunk_format.spec.manifest_lists import ManifestFiles
    from icechunk_format.spec.snapshot import NodeSnapshot
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

    Parameters
    ----------
    node
        The array, with the manifests of the base.
    changes
        What was done to its chunks; None for nothing.
    listed
        The manifest files of the base.

    Raises
    ------
    InvalidInputError
        The box has another number of dimensions.
    NotFoundError, FormatError, StorageError
        A manifest cannot be read.
    """
    ndim = 0 if node.array is None else len(node.array.shape)
    if not len(lo) == len(hi) == ndim:
        raise InvalidInputError(
            f"a box of {len(lo)} and {len(hi)} dimensions was given for array {node.path!r} of "
            f"{ndim}",
            name=node.path,
        )
    refs = ChunkRefs.empty(ndim)
    if node.array is not None and not (changes is not None and changes.replaces_all):
        manifests = node.array.manifests
        ids = [manifests.manifest_id(row) for row in manifests.intersecting(lo, hi).tolist()]
        sizes = [entry[0] if (entry := listed.find(i)) else None for i in ids]
        # The first manifest that holds a coordinate counts, so it is laid on last.
        for part in reversed(_load(storage, node, ids, sizes, lo, hi)):
            refs = ChunkRefs.overlay(refs, part)
    if changes is None:
        return refs
    if changes.clip is not None:
        grid = np.array([(0, limit) for limit in changes.clip], dtype=np.int64).reshape(-1, 2)
        refs = refs.take(inside_box(refs.coords, grid))
    box = np.array(list(zip(lo, hi, strict=True)), dtype=np.int64).reshape(-1, 2)
    near = [r for r in changes.receipts if boxes_meet(r.coords.bounds(), box)]
    given_up = CoordinateOrder(changes.yielded)
    for part in _load(
        storage, node, [r.manifest_id for r in near], [r.size_bytes for r in near], lo, hi
    ):
        refs = ChunkRefs.overlay(refs, part.take(given_up.find(part.coords) < 0))
    pending, deleted = changes.pending()
    return ChunkRefs.overlay(refs, pending.take(pending.select_box(lo, hi)), deleted)


def _load(
    storage: Storage,
    node: NodeSnapshot,
    ids: list[ManifestId],
    sizes: list[int | None] | list[int],
    lo: Sequence[int],
    hi: Sequence[int],
) -> list[ChunkRefs]:
    found = []
    for manifest in load_manifests(storage, ids, list(sizes)):
        entry = manifest.array(node.id)
        if entry is not None:
            found.append(entry.refs.take(entry.refs.select_box(lo, hi)))
    return found
