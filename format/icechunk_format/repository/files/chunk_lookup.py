"""Finds the chunk references of an array, by coordinate or in a box.

Rules of this file
------------------
1. Only the first ``ManifestRef`` whose extents contain a chunk is used: a chunk that is absent from
   that manifest is missing, even if a later manifest lists it. The format forbids overlapping
   extents; this rule gives the same result as other readers for damaged repositories.
2. Only manifests that may contain a wanted chunk are read, all of them together.
3. References are columns: a chunk is a row number, not a Python object.

Specification: "Snapshot file", ``ManifestRef``; "Chunk manifest files".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.errors import FormatError
from icechunk_format.grid.boxes import bounds_of, box_around, inside_box, meeting
from icechunk_format.grid.cover import clip
from icechunk_format.repository.files.metadata_files import load_manifests
from icechunk_format.storage.protocol import Storage


def visible_rows(
    refs: ChunkRefs, extents: NDArray[Any], box: NDArray[Any], earlier: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the rows of one manifest's references that readers find in a box, ascending.

    A chunk is found inside the extents of its manifest, unless it is also inside those of an
    earlier manifest of the array.

    Parameters
    ----------
    refs
        The references of the array in the manifest.
    extents, box
        Shape (ndim, 2).
    earlier
        Extents of the preceding manifests in the array's list, shape (n, ndim, 2).
    """
    low, high = np.maximum(extents[:, 0], box[:, 0]), np.minimum(extents[:, 1], box[:, 1])
    rows = refs.select_box(low.tolist(), high.tolist())
    for other in clip(earlier, np.stack([low, high], axis=1))[0]:
        rows = rows[~inside_box(refs.coords[rows], other)]
    return rows


def refs_of_array(manifest: Manifest, node_id: NodeId, path: str, ndim: int) -> ChunkRefs | None:
    """Return the references of one array in a manifest, or None if it has none."""
    entry = manifest.array(node_id)
    if entry is None or entry.refs.ndim == ndim:
        return None if entry is None else entry.refs
    raise FormatError(
        f"its references of array {path!r} have {entry.refs.ndim} dimensions, but the array has "
        f"{ndim}",
        object_key=manifest_key(manifest.id),
        file_type="manifest",
        field="arrays.refs.index",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundChunks:
    """The wanted chunks that exist.

    Parameters
    ----------
    refs
        References, one for each found chunk.
    rows
        ``int64 (k,)``: the row in ``refs`` of each found chunk.
    positions
        ``int64 (k,)``: the row in the wanted coordinates of each found chunk, ascending.
    """

    refs: ChunkRefs
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]


class ChunkLookup:
    """Finds the chunks of one array that exist, and their references."""

    def __init__(self, storage: Storage, node: NodeSnapshot) -> None:
        assert node.array is not None, "chunks are looked up of arrays"
        self._storage = storage
        self._node = node
        self._manifests = node.array.manifests
        self._extents = self._manifests.extents.astype(np.int64)

    def find(self, coords: NDArray[np.uint32]) -> FoundChunks:
        """Find chunks by their coordinates.

        ``coords`` are ``uint32 (m, ndim)``, rows distinct.
        """
        owners = self._owners(coords)
        wanted = np.unique(owners)
        wanted = wanted[wanted >= 0]
        tables = self._tables(wanted)
        found: list[tuple[ChunkRefs, NDArray[np.int64], NDArray[np.int64]]] = []
        for manifest, refs in zip(wanted.tolist(), tables, strict=True):
            if refs is None:
                continue
            positions = np.flatnonzero(owners == manifest)
            rows = refs.find(coords[positions])
            hit = rows >= 0
            if hit.any():
                found.append((refs, rows[hit], positions[hit]))
        return _joined(found, coords)

    def in_box(
        self, lower: Sequence[int], upper: Sequence[int]
    ) -> list[tuple[ChunkRefs, NDArray[np.int64]]]:
        """Return the references with coordinates in ``[lower, upper)``, manifest by manifest.

        Returns pairs of references and ascending row numbers, without empty ones.
        """
        box = np.stack([np.asarray(lower, np.int64), np.asarray(upper, np.int64)], axis=-1)
        _, wanted = clip(self._extents, box)
        none = self._extents[:0]
        return [(refs, rows) for _, refs, rows in self._visible(wanted, none, box)]

    def of_manifests(
        self, start: int, stop: int
    ) -> list[tuple[ManifestId, ChunkRefs, NDArray[np.int64]]]:
        """Return the references in some manifests of the array that readers find.

        ``start`` and ``stop`` are indices in the array's list of manifests. For each manifest with
        references, its id, the references and ascending row numbers are returned.
        """
        extents = self._extents[start:stop]
        if not len(extents):
            return []
        # Only manifests that overlap the box around the wanted ones can hide their references.
        around = box_around(extents)
        before = clip(self._extents[:start], around)[0]
        wanted = np.arange(start, stop, dtype=np.int64)
        return [
            (self._manifests.manifest_id(number), refs, rows)
            for number, refs, rows in self._visible(wanted, before, around)
        ]

    def _visible(
        self, wanted: NDArray[np.int64], before: NDArray[np.int64], box: NDArray[np.int64]
    ) -> Iterator[tuple[int, ChunkRefs, NDArray[np.int64]]]:
        """Yield the visible references of manifests in a box; the extents ``before`` hide them."""
        for at, refs in enumerate(self._tables(wanted)):
            if refs is not None:
                earlier = np.concatenate([before, self._extents[wanted[:at]]])
                rows = visible_rows(refs, self._extents[wanted[at]], box, earlier)
                if len(rows):
                    yield int(wanted[at]), refs, rows

    def _owners(self, coords: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the index of the first manifest whose extents contain each chunk, or -1."""
        points = coords.astype(np.int64)
        if not len(points) or not len(self._extents):
            return np.full(len(points), -1, dtype=np.int64)
        if points.shape[1] == 0:
            return np.zeros(len(points), dtype=np.int64)
        owners = np.full(len(points), -1, dtype=np.int64)
        for candidate in np.flatnonzero(meeting(self._extents, bounds_of(coords))).tolist():
            unowned = np.flatnonzero(owners < 0)
            if not len(unowned):
                break
            inside = inside_box(points[unowned], self._extents[candidate])
            owners[unowned[inside]] = candidate
        return owners

    def _tables(self, wanted: NDArray[np.int64]) -> list[ChunkRefs | None]:
        """Load manifests; return this array's references in each, None if it has none."""
        ids = ManifestId.many(self._manifests.ids[wanted].tobytes())
        manifests = load_manifests(self._storage, ids)
        ndim = self._extents.shape[1]
        return [refs_of_array(m, self._node.id, self._node.path, ndim) for m in manifests]


def _joined(
    found: list[tuple[ChunkRefs, NDArray[np.int64], NDArray[np.int64]]], coords: NDArray[np.uint32]
) -> FoundChunks:
    if len(found) == 1:
        refs, rows, positions = found[0]
        return FoundChunks(refs=refs, rows=rows, positions=positions)
    tables = (table.take(np.sort(rows)) for table, rows, _ in found)
    refs = ChunkRefs.concat([ChunkRefs.empty(coords.shape[1]), *tables])
    none = np.empty(0, dtype=np.int64)
    positions = np.sort(np.concatenate([none, *(part for _, _, part in found)]))
    # Joining sorts the references, so their rows are looked up again.
    return FoundChunks(refs=refs, rows=refs.find(coords[positions]), positions=positions)
