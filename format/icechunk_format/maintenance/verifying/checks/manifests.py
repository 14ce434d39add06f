"""Checks manifests: sizes, order, and the references that snapshots expect.

A manifest is read once and checked against the claims of all snapshots that use it
(``ManifestClaims``). References are columns; only reported rows become objects.

Specification: "Chunk Manifest Files", "ManifestRef", "ManifestFileInfo".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest import decode as manifest_file
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.encoding.snapshot.stored_order import stored_manifest
from icechunk_format.maintenance.verifying.checks.readable import decoded
from icechunk_format.maintenance.verifying.checks.uses import (
    ManifestClaims,
    ManifestUse,
    SnapshotMark,
)
from icechunk_format.maintenance.verifying.findings import Finding, Report, Spot

_LARGEST = np.uint64(2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsedRefs:
    """The references of one array in one manifest, and the snapshots that use them.

    ``uses`` is in the order of snapshots, newest first, and empty if no array uses the references;
    ``mark`` is the newest snapshot that uses them or lists the manifest.
    """

    refs: ChunkRefs
    object_key: str
    uses: tuple[ManifestUse, ...]
    mark: SnapshotMark

    @property
    def node_path(self) -> str | None:
        """The path of the array in the newest snapshot that uses it."""
        return self.uses[0].node_path if self.uses else None

    def at(self, report: Report) -> Spot:
        """Return the ``Spot`` for findings about these references."""
        return self.mark.at(report, self.object_key, node_path=self.node_path)

    def chunk(self, row: int) -> tuple[int, ...]:
        """Return the chunk coordinates of a row."""
        return tuple(self.refs.coords[row].tolist())


def check_manifest(claims: ManifestClaims, data: bytes | None, report: Report) -> list[UsedRefs]:
    """Check a manifest file; return its references by array, for checks of chunks.

    ``data`` is None if the file is missing.

    Memory: the decompressed file and its columns, about 100 bytes for each reference.
    """
    object_key = manifest_key(claims.manifest_id)
    uses = claims.uses
    here = claims.mark.at(report, object_key, node_path=uses[0].node_path if uses else None)
    payload = b""

    def decode(data: bytes, *, object_key: str) -> Manifest:
        nonlocal payload
        payload = unwrap(data, file_type=FileType.MANIFEST, object_key=object_key).payload
        return manifest_file.decode_payload(payload, object_key=object_key)

    size, listed = len(data or b""), claims.expected_size
    note = "" if listed in (0, size) else f" (listed with {listed} bytes, it has {size})"
    manifest = decoded("manifest", data, decode, claims.manifest_id, here, note)
    if manifest is None:
        return []
    _check_entries(claims, manifest, size, report)
    _check_order(payload, here)
    if not manifest.num_chunk_refs:
        here.add("manifest-empty", "it holds no reference")
    return list(_check_arrays(claims, manifest, object_key, report))


def _check_entries(claims: ManifestClaims, manifest: Manifest, nbytes: int, report: Report) -> None:
    for entry in claims.entries:
        here = entry.mark.at(report, manifest_key(claims.manifest_id))
        if entry.size not in (0, nbytes):
            here.add(
                "manifest-size-mismatch",
                f"it has {nbytes} bytes, and the snapshot lists {entry.size}",
            )
        if entry.num_refs != manifest.num_chunk_refs:
            here.add(
                "manifest-count-mismatch",
                f"it holds {manifest.num_chunk_refs} references, and the snapshot lists "
                f"{entry.num_refs}",
            )


def _check_order(payload: bytes, here: Spot) -> None:
    stored = stored_manifest(payload, object_key=here.where["object_key"])
    unsorted = sum(not array.is_sorted for array in stored.arrays)
    if unsorted or not stored.is_sorted:
        what = f"the references of {unsorted} arrays" if unsorted else "its arrays"
        problem = f"{what} are out of order, so that other clients may not find them"
        here.add("manifest-unsorted", problem)
    for array in stored.arrays:
        for kind, coords, problem in (
            ("ref-duplicate", array.repeated, "the chunk has more than one reference"),
            (
                "ref-ambiguous",
                array.ambiguous,
                "the reference has more than one of chunk id, location and inline bytes",
            ),
        ):
            _report_chunks(here, kind, coords, problem)


def _report_chunks(here: Spot, kind: str, coords: NDArray[Any], problem: str) -> None:
    def make(position: int) -> Finding:
        chunk = tuple(coords[position].tolist())
        return Finding(kind=kind, problem=problem, chunk=chunk, **here.where)

    here.report.add_many(kind, len(coords), make)


def _check_arrays(
    claims: ManifestClaims, manifest: Manifest, object_key: str, report: Report
) -> Iterator[UsedRefs]:
    uses_of: dict[NodeId, list[ManifestUse]] = {}
    for use in claims.uses:
        uses_of.setdefault(use.node_id, []).append(use)
    for node_id, uses in uses_of.items():
        if manifest.array(node_id) is None:
            uses[0].mark.at(report, object_key, node_path=uses[0].node_path).add(
                "manifest-lacks-array",
                f"the manifest has no chunks of array {uses[0].node_path}, although the snapshot "
                "lists it for the array",
            )
    for entry in manifest.arrays:
        uses = uses_of.get(entry.node_id, [])
        used = UsedRefs(
            refs=entry.refs,
            object_key=object_key,
            uses=tuple(uses),
            mark=uses[0].mark if uses else claims.mark,
        )
        _count_refs(entry.refs, report)
        _check_payloads(used, report)
        _check_coords(used, report)
        yield used


def needed_bytes(refs: ChunkRefs, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the sizes that objects of references must have at least, ``int64``, clamped."""
    ends = np.minimum(refs.offset[rows], 2**62) + np.minimum(refs.length[rows], 2**62)
    return np.asarray(np.minimum(ends, 2**63 - 1), dtype=np.int64)


def _count_refs(refs: ChunkRefs, report: Report) -> None:
    for kind, name in ((KIND_NATIVE, "native"), (KIND_INLINE, "inline"), (KIND_VIRTUAL, "virtual")):
        rows = refs.kind == kind
        # Lengths are not checked yet: the sum of damaged lengths may exceed 64 bits.
        nbytes = float(refs.length[rows].sum(dtype=np.float64))
        report.count(f"{name} references", int(rows.sum()), int(min(nbytes, 2.0**62)))


def _check_payloads(used: UsedRefs, report: Report) -> None:
    refs = used.refs
    is_beyond = (refs.offset > _LARGEST) | (refs.length > _LARGEST - refs.offset)
    for kind, is_bad, problem in (
        ("ref-empty", refs.length == 0, "the chunk has 0 bytes"),
        ("ref-range", is_beyond, "its offset and length are beyond what any object can have"),
    ):
        _report_chunks(used.at(report), kind, refs.coords[is_bad], problem)


def _check_coords(used: UsedRefs, report: Report) -> None:
    """Compare the coordinates of references with the extents recorded in snapshots."""
    refs = used.refs
    if not len(refs):
        return
    coords = refs.coords
    low = coords.min(axis=0).astype(np.int64)
    high = coords.max(axis=0).astype(np.int64) + 1
    for use in used.uses:
        here = use.mark.at(report, used.object_key, node_path=use.node_path)
        if refs.ndim != len(use.extents):
            here.add(
                "ref-dimensions",
                f"references have {refs.ndim} coordinates, but the array has {len(use.extents)} "
                "dimensions",
            )
            continue
        extents = np.array(use.extents, dtype=np.int64).reshape(-1, 2)
        limits = np.maximum(np.array(use.num_chunks, dtype=np.int64), 1)
        if (low < extents[:, 0]).any() or (high > extents[:, 1]).any():
            outside = ((coords < extents[:, 0]) | (coords >= extents[:, 1])).any(axis=1)
            here.add(
                "ref-outside-extents",
                f"{int(outside.sum())} references are outside of the extents "
                f"{extents.tolist()} that the snapshot gives to the manifest",
                chunk=used.chunk(int(np.argmax(outside))),
            )
        elif (low != extents[:, 0]).any() or (high != extents[:, 1]).any():
            here.add(
                "extents-not-tight",
                f"the snapshot gives the manifest the extents {extents.tolist()}, and its "
                f"references fill {np.stack([low, high], axis=1).tolist()}",
            )
        if (high > limits).any():
            outside = (coords >= limits).any(axis=1)
            here.add(
                "ref-outside-grid",
                f"{int(outside.sum())} references are outside of the array's grid of "
                f"{list(use.num_chunks)} chunks",
                chunk=used.chunk(int(np.argmax(outside))),
            )
