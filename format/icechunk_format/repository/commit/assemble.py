"""Makes the manifests of a commit: rebuilds changed ones and keeps the rest.

Rules of this file
------------------
1. Files of a session are reused: after a lost race the commit is planned again, and every unchanged
   group of references keeps its files. Changes of other writers to other arrays, or to other
   manifests of the same array, cost nothing.
2. Manifests are loaded in batches within a memory limit, since each load costs a round trip.
3. If extents of the base overlap, references that no reader finds are dropped.

Specification: "Chunk Manifest Files", ``ManifestFileInfoV2``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, NodeId, rows_of_ids
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.snapshot.file import Nodes, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.splitting import split_cells
from icechunk_format.errors import FormatError
from icechunk_format.grid.boxes import box_of_grid, inside_box, overlapping_pairs
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.commit.manifest_plan import (
    ArrayPlan,
    ManifestPlanner,
    RebuiltGroup,
    grouped_rows,
)
from icechunk_format.repository.files.chunk_lookup import refs_of_array, visible_rows
from icechunk_format.repository.files.manifest_files import (
    ManifestFormat,
    ManifestReceipt,
    store_manifests,
)
from icechunk_format.repository.files.metadata_files import load_manifests
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.protocol import Storage

# Limits of a batch to load: references, by the counts in snapshots, and files.
_REFS_AT_ONCE: Final = 2_000_000
_FILES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayManifests:
    """The manifests of one array after a commit; ``files`` are those absent from the base."""

    refs: ManifestRefs
    files: tuple[ManifestReceipt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The references of one group of an array, to be written to files."""

    node: NodeSnapshot
    base: ManifestRefs
    changes: ChunkChanges
    cells: NDArray[np.int64]
    group: RebuiltGroup
    key: bytes

    def manifest_ids(self) -> list[ManifestId]:
        """Return the manifests to read: those of the base, then those of receipts."""
        ids = [self.base.manifest_id(row) for row in self.group.base_rows.tolist()]
        return ids + [
            self.changes.receipts[row].manifest_id for row in self.group.receipt_rows.tolist()
        ]


class ManifestAssembler:
    """Makes the manifests of the commits of one session."""

    def __init__(self, storage: Storage, format: ManifestFormat) -> None:
        self._storage = storage
        self._format = format
        self._written: dict[bytes, tuple[ManifestReceipt, ...]] = {}
        self.files_written = 0
        self.bytes_written = 0

    def assemble(
        self,
        arrays: Sequence[tuple[NodeSnapshot, ChunkChanges]],
        listed: ManifestFiles,
        *,
        joins_small: bool = True,
    ) -> dict[NodeId, ArrayManifests]:
        """Write the manifests of arrays whose chunks changed.

        Parameters
        ----------
        arrays
            Arrays after the commit, with the manifests of the base, and their changes.
        joins_small
            True to join small manifests of the base; False after a lost race, to reuse the files.
        """
        planned: list[tuple[NodeSnapshot, ManifestRefs, ChunkChanges, ArrayPlan, list[_Work]]] = []
        for node, changes in arrays:
            array = node.array
            if array is None:
                continue
            base = array.manifests
            rules = self._format.config.splitting
            cells = split_cells(rules, node.path, array.dimension_names, array.num_chunks)
            counts = listed.counts_of(base.ids)
            planner = ManifestPlanner(
                base, changes, cells=cells, counts=counts, joins_small=joins_small
            )
            plan = planner.plan()
            works = [self._work(node, base, changes, cells, group) for group in plan.groups]
            planned.append((node, base, changes, plan, works))
        self._write([work for *_, works in planned for work in works], listed)
        found: dict[NodeId, ArrayManifests] = {}
        for node, base, changes, plan, works in planned:
            files = [changes.receipts[row] for row in plan.taken_rows.tolist()]
            files += [receipt for work in works for receipt in self._written[work.key]]
            found[node.id] = ArrayManifests(
                refs=with_files(base, plan.kept_rows, files), files=tuple(files)
            )
        return found

    def _work(
        self,
        node: NodeSnapshot,
        base: ManifestRefs,
        changes: ChunkChanges,
        cells: tuple[int, ...],
        group: RebuiltGroup,
    ) -> _Work:
        # The digest covers everything that determines the files of the group.
        digest = hashlib.blake2b(digest_size=20)
        for part in (
            node.id.raw,
            changes.revision.to_bytes(8, "little"),
            np.array(cells, dtype=np.int64).tobytes(),
            base.ids[group.base_rows].tobytes(),
            group.receipt_rows.tobytes(),
            group.pending_rows.tobytes(),
        ):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return _Work(
            node=node,
            base=base,
            changes=changes,
            cells=np.array(cells, dtype=np.int64),
            group=group,
            key=digest.digest(),
        )

    def _write(self, works: list[_Work], listed: ManifestFiles) -> None:
        todo = [work for work in works if work.key not in self._written]
        sized = ((work, _cost(work, listed)) for work in todo)
        for batch in sized_batches(sized, _FILES_AT_ONCE, _REFS_AT_ONCE):
            ids = list(dict.fromkeys(i for work in batch for i in work.manifest_ids()))
            loaded = dict(zip(ids, load_manifests(self._storage, ids), strict=True))
            parts = [(work.node.id, self._rebuild(work, loaded)) for work in batch]
            stored = store_manifests(self._storage, self._format, parts)
            for work, receipts in zip(batch, stored, strict=True):
                self._written[work.key] = tuple(receipts)
                self.files_written += len(receipts)
                self.bytes_written += sum(receipt.size_bytes for receipt in receipts)

    def _rebuild(self, work: _Work, loaded: dict[ManifestId, Manifest]) -> Iterator[ChunkRefs]:
        """Yield the references of a group, one part for each cell of the splitting."""
        changes, group = work.changes, work.group
        pending, deleted = changes.pending()
        of_base = work.manifest_ids()[: len(group.base_rows)]
        refs = self._base_refs(work, [loaded[i] for i in of_base])
        receipts = [changes.receipts[row] for row in group.receipt_rows.tolist()]
        if receipts:
            fresh = [r.pick(_refs_of(loaded[r.manifest_id], work)) for r in receipts]
            refs = ChunkRefs.overlay(refs, ChunkRefs.concat(fresh))
        refs = ChunkRefs.overlay(refs, pending.take(group.pending_rows), deleted)
        parts = grouped_rows(refs.coords.astype(np.int64) // work.cells)
        yield from [refs] if len(parts) == 1 else [refs.take(rows) for rows in parts]

    def _base_refs(self, work: _Work, manifests: list[Manifest]) -> ChunkRefs:
        parts = [_refs_of(manifest, work) for manifest in manifests]
        extents = work.base.extents[work.group.base_rows]
        if any(True for _ in overlapping_pairs(extents)):
            parts = [
                part.take(visible_rows(part, extents[row], extents[row], extents[:row]))
                for row, part in enumerate(parts)
            ]
        clip = work.changes.clip
        if clip is not None:
            parts = [part.take(inside_box(part.coords, box_of_grid(clip))) for part in parts]
        return ChunkRefs.concat(parts) if parts else ChunkRefs.empty(work.base.ndim)


def _refs_of(manifest: Manifest, work: _Work) -> ChunkRefs:
    refs = refs_of_array(manifest, work.node.id, work.node.path, work.base.ndim)
    return ChunkRefs.empty(work.base.ndim) if refs is None else refs


def _cost(work: _Work, listed: ManifestFiles) -> int:
    """Return the cost of a group in references to read; each file adds some, to limit files."""
    receipts = [work.changes.receipts[row] for row in work.group.receipt_rows.tolist()]
    rows = work.group.base_rows
    refs = listed.counts_of(work.base.ids[rows]).sum()
    refs += sum(receipt.num_chunk_refs for receipt in receipts)
    return int(refs + (len(rows) + len(receipts)) * (_REFS_AT_ONCE // _FILES_AT_ONCE))


def with_files(
    base: ManifestRefs, kept_rows: NDArray[np.int64], files: Sequence[ManifestReceipt]
) -> ManifestRefs:
    """Return the kept manifests of the base, then the new ones."""
    if not files and len(kept_rows) == len(base):
        return base
    extents = np.array([f.extents for f in files], dtype=np.uint32)
    return ManifestRefs(
        ids=np.concatenate([base.ids[kept_rows], ManifestId.rows(f.manifest_id for f in files)]),
        extents=np.concatenate(
            [base.extents[kept_rows], extents.reshape(len(files), base.ndim, 2)]
        ),
    )


def files_of_receipts(receipts: Collection[ManifestReceipt]) -> ManifestFiles:
    """Return the list of stored manifest files."""
    return ManifestFiles.of(
        ManifestId.rows(r.manifest_id for r in receipts),
        np.array([r.size_bytes for r in receipts], np.uint64),
        np.array([r.num_chunk_refs for r in receipts], np.uint32),
    )


def manifest_files_of(
    nodes: Nodes, base: Snapshot, written: Iterable[ManifestReceipt] = ()
) -> ManifestFiles:
    """Return all manifest files that arrays refer to.

    ``written`` are files that the base does not list.
    """
    listed = base.manifest_files
    new = files_of_receipts({receipt.manifest_id: receipt for receipt in written}.values())
    known = ManifestFiles.of(
        np.concatenate([listed.ids, new.ids]),
        np.concatenate([listed.size_bytes, new.size_bytes]),
        np.concatenate([listed.num_chunk_refs, new.num_chunk_refs]),
    )
    ids = nodes.manifest_ids
    rows = rows_of_ids(known.ids, ids)
    if (rows < 0).any():
        missing = ManifestId(ids[int(np.argmax(rows < 0))].tobytes())
        raise FormatError(
            f"an array refers to manifest {missing}, which the list of manifest files lacks",
            object_key=snapshot_key(base.id),
            file_type="snapshot",
            field="manifest_files",
        )
    is_used = np.zeros(len(known.ids), dtype=bool)
    is_used[rows] = True
    return ManifestFiles(
        ids=known.ids[is_used],
        size_bytes=known.size_bytes[is_used],
        num_chunk_refs=known.num_chunk_refs[is_used],
    )
