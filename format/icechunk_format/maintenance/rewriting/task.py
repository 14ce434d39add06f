"""Rewrites manifests box by box, in this process or on executors.

Rules of this file
------------------
1. A task is small and picklable: ids, extents and boxes, without references and credentials. Its
   receipt lists the stored files.
2. References are copied unchanged: native, inline, and virtual with checksums. No chunk is read.
3. Memory: the references of one box, about the maximum of one file, and a part of the decoded
   source manifests; see ``bounded_reads``.

Specification: "Chunk Manifest Files".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.commit.manifest_plan import grouped_rows
from icechunk_format.repository.files.bounded_reads import ListedManifests, references_in
from icechunk_format.repository.files.manifest_files import (
    ManifestFormat,
    ManifestReceipt,
    store_manifests,
)
from icechunk_format.spec.ids import NodeId
from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewriteBox:
    """A box of chunks of one array whose references are rewritten together.

    Parameters
    ----------
    cells
        Chunks per manifest along each axis.
    box
        Range of chunk coordinates, ``int64 (ndim, 2)``.
    references
        Estimated number of references in the box.
    """

    node_id: NodeId
    path: str
    cells: tuple[int, ...]
    box: NDArray[np.int64]
    manifests: ListedManifests
    references: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteContext:
    """The context of all tasks: location and format of the files."""

    location: Location
    format: ManifestFormat


RewriteTask = tuple[RewriteBox, ...]
"""The boxes of a task."""

RewriteReceipt = list[tuple[NodeId, tuple[ManifestReceipt, ...]]]
"""For each box of a task: its array and the stored files."""


def run_rewrite(context: RewriteContext, task: RewriteTask) -> RewriteReceipt:
    """Store the new manifests of a task; return their receipts without chunk coordinates.

    Files stored before an error are garbage.
    """
    storage = open_storage(context.location)
    parts = ((box.node_id, _parts(storage, box)) for box in task)
    stored = store_manifests(storage, context.format, parts)
    return [
        (box.node_id, tuple(map(_light, receipts)))
        for box, receipts in zip(task, stored, strict=True)
    ]


def _light(receipt: ManifestReceipt) -> ManifestReceipt:
    """Return a receipt without its chunk coordinates, which may be millions."""
    no_boxes = np.empty((0, len(receipt.extents), 2), dtype=np.uint32)
    return replace(receipt, coords=CoordSet.of_boxes(no_boxes))


def _parts(storage: Storage, box: RewriteBox) -> list[ChunkRefs]:
    """Return the references of a box, grouped by cells."""
    refs = references_in(storage, box.node_id, box.path, box.manifests, box.box)
    if not len(refs):
        return []
    groups = grouped_rows(refs.coords.astype(np.int64) // np.array(box.cells, dtype=np.int64))
    return [refs] if len(groups) == 1 else [refs.take(rows) for rows in groups]
