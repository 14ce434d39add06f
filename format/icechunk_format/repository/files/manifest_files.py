"""Writes chunk references into manifest files, on executors or for a commit on the driver.

An executor writes the references of its chunks to a file and returns a ``ManifestReceipt`` to the
driver, which uses the file unchanged. So the driver's work does not grow with the number of chunks.

Rules of this file
------------------
1. A file contains at most ``max_refs`` references of one array, and stays far below the 2 GiB that
   readers accept. More references are split along the leading axis that varies, so that the boxes
   around the parts do not overlap.
2. Files are stored in batches of bounded size; no file is stored without references.
3. Sizes are those of the stored objects, and extents are tight.

Specification: "Chunk Manifest Files", ``ManifestFileInfo``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.config.config import RepositoryConfig
from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest import encode as manifest_encode
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.files.chunk_files import put_in_batches
from icechunk_format.storage.protocol import Storage

MAX_REFS_PER_MANIFEST: Final = 1_000_000
# Readers refuse 2 GiB before compression; sizes of rows are estimates.
_MAX_BYTES_PER_MANIFEST: Final = 2**30
_BYTES_PER_REF: Final = 80
_BYTES_PER_BATCH: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestReceipt:
    """A stored manifest file that no commit refers to yet, as a small picklable value.

    Parameters
    ----------
    extents
        Start and end (exclusive) per axis of ``coords``, tight.
    coords
        The chunks in it that are used: all of them, unless a session drops or hides some.
    """

    manifest_id: ManifestId
    size_bytes: int
    num_chunk_refs: int
    extents: tuple[tuple[int, int], ...]
    coords: CoordSet

    @property
    def is_whole(self) -> bool:
        """True if every reference in the file is used."""
        return self.coords.count == self.num_chunk_refs

    @classmethod
    def of(
        cls, manifest_id: ManifestId, size_bytes: int, coords: NDArray[np.uint32]
    ) -> ManifestReceipt:
        """Return the receipt of a file with references to chunks at distinct coordinates."""
        used = CoordSet.of(coords)
        return cls(
            manifest_id=manifest_id,
            size_bytes=size_bytes,
            num_chunk_refs=len(coords),
            extents=tuple((low, high) for low, high in used.bounds().tolist()),
            coords=used,
        )

    def only(self, coords: NDArray[np.uint32]) -> ManifestReceipt:
        """Return a receipt of the same file in which only these chunks are used."""
        left = ManifestReceipt.of(self.manifest_id, self.size_bytes, coords)
        return replace(left, num_chunk_refs=self.num_chunk_refs)

    def pick(self, refs: ChunkRefs) -> ChunkRefs:
        """Select the references of the file that are used."""
        return refs if self.is_whole else refs.take(self.coords.contains(refs.coords))


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFormat:
    """Settings for writing manifest files, as a small value for executors."""

    spec_version: int
    config: RepositoryConfig = field(default_factory=RepositoryConfig)
    max_refs: int = MAX_REFS_PER_MANIFEST

    def encode(self, manifest_id: ManifestId, node_id: NodeId, refs: ChunkRefs) -> bytes:
        """Return the file of one manifest."""
        return manifest_encode.encode(
            Manifest(id=manifest_id, arrays=(ArrayManifest(node_id=node_id, refs=refs),)),
            spec_version=self.spec_version,
            location_compression=self.config.location_compression,
            level=self.config.compression_level,
        )


def store_manifests(
    storage: Storage, format: ManifestFormat, parts: Iterable[tuple[NodeId, Iterable[ChunkRefs]]]
) -> list[list[ManifestReceipt]]:
    """Store references as manifest files.

    Parameters
    ----------
    parts
        Node id of an array, and parts of its references; each part becomes one or more files.
        Parts are consumed one by one, so they need not be in memory together.

    Returns
    -------
    list of list of ManifestReceipt
        The files of each part; none for a part without references.
    """
    receipts: list[list[ManifestReceipt]] = []

    def objects() -> Iterator[tuple[str, bytes]]:
        for node_id, of_node in parts:
            mine: list[ManifestReceipt] = []
            receipts.append(mine)
            for refs in chain.from_iterable(limited(part, format.max_refs) for part in of_node):
                manifest_id = ManifestId(secrets.token_bytes(ManifestId.SIZE))
                data = format.encode(manifest_id, node_id, refs)
                mine.append(ManifestReceipt.of(manifest_id, len(data), refs.coords))
                yield manifest_key(manifest_id), data

    put_in_batches(storage, objects(), _BYTES_PER_BATCH)
    return receipts


def limited(refs: ChunkRefs, max_refs: int) -> Iterator[ChunkRefs]:
    """Yield references in parts small enough for one file each, whose boxes do not overlap."""
    if not len(refs):
        return
    weights = np.full(len(refs), max(1 / max_refs, _BYTES_PER_REF / _MAX_BYTES_PER_MANIFEST))
    if refs.strings is not None:
        own = refs.strings.lengths + float(_BYTES_PER_REF)
        weights = np.maximum(weights, own / _MAX_BYTES_PER_MANIFEST)
    if weights.sum() <= 1:
        yield refs
        return
    for start, stop in _cuts(refs.coords, np.concatenate([[0.0], np.cumsum(weights)]), 0):
        yield refs.take(np.arange(start, stop))


def _cuts(
    coords: NDArray[np.uint32], total: NDArray[np.float64], axis: int, start: int = 0
) -> Iterator[tuple[int, int]]:
    """Cut sorted rows between values of an axis; too many rows of one value along the next axis.

    ``total`` is the cumulative weight before each row and after the last; a part weighs at most 1.
    """
    n = len(coords)
    if total[n] - total[0] <= 1 or axis == coords.shape[1]:
        yield start, start + n
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(coords[:, axis])) + 1, [n]])
    at = 0
    while at < len(edges) - 1:
        begin = int(edges[at])
        # The last edge up to which the rows fit; 1e-9 tolerates rounding of the sums.
        fits = int(np.searchsorted(total[edges], total[begin] + 1 + 1e-9, side="right")) - 1
        stop = max(fits, at + 1)
        end = int(edges[stop])
        yield from (
            [(start + begin, start + end)]
            if fits > at
            else _cuts(coords[begin:end], total[begin : end + 1], axis + 1, start + begin)
        )
        at = stop
