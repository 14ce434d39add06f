"""Checks manifests: sizes, order, and whether they hold the references that versions expect.

A manifest is read once, whatever the number of versions that use it, and checked against all that
they say about it (``ManifestClaims``). References are columns; only reported rows become objects.

Specification: "Chunk Manifest Files", "ManifestRef", "ManifestFileInfo".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.maintenance.verifying.findings import Finding
from icechunk_format.spec.envelope import FileType, unwrap
from icechunk_format.spec.manifest import decode as manifest_file
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.spec.object_keys import manifest_key
from icechunk_format.spec.snapshot.stored_order import stored_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icechunk_format.maintenance.verifying.checks.uses import (
        ManifestClaims,
        ManifestUse,
        VersionMark,
    )
    from icechunk_format.maintenance.verifying.findings import Report
    from icechunk_format.spec.ids import NodeId
    from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
    from icechunk_format.spec.manifest.decode import Manifest

_LARGEST = np.uint64(2**63 - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsedRefs:
    """The references of one array in one manifest, and the versions that use them.

    Parameters
    ----------
    uses
        Uses by arrays of versions, newest first; none for references that nobody looks for.
    mark
        The newest version that uses them or at least lists the manifest.
    """

    refs: ChunkRefs
    object_key: str
    uses: tuple[ManifestUse, ...]
    mark: VersionMark

    @property
    def node_path(self) -> str | None:
        """Path of the array in the newest version that uses it."""
        return self.uses[0].node_path if self.uses else None

    def where(self) -> dict[str, Any]:
        """Return the fields of a finding about these references."""
        return {
            "object_key": self.object_key,
            "snapshot_id": self.mark.snapshot_id,
            "node_path": self.node_path,
            "rank": self.mark.rank,
        }

    def chunk(self, row: int) -> tuple[int, ...]:
        """Return the coordinates of a row."""
        return tuple(self.refs.coords[row].tolist())


def check_manifest(claims: ManifestClaims, data: bytes | None, report: Report) -> list[UsedRefs]:
    """Check a manifest file and its references; chunks behind them are for others to check.

    Memory: the decompressed file and its columns, about 100 bytes for each reference.

    Parameters
    ----------
    claims
        What versions say about it.
    data
        The bytes of the file; None if it is missing.
    report
        Takes the findings.

    Returns
    -------
    list of UsedRefs
        References by array, for the checks of chunks.
    """
    object_key = manifest_key(claims.manifest_id)
    uses = claims.uses
    where = {
        "object_key": object_key,
        "snapshot_id": claims.mark.snapshot_id,
        "node_path": uses[0].node_path if uses else None,
        "rank": claims.mark.rank,
    }
    report.count("manifests")
    if data is None:
        report.count("unread")
        report.add("manifest-missing", "the manifest file is not there", **where)
        return []
    try:
        envelope = unwrap(data, file_type=FileType.MANIFEST, object_key=object_key)
        manifest = manifest_file.decode_payload(envelope.payload, object_key=object_key)
    except (FormatError, UnsupportedError) as error:
        report.count("unread")
        size = (
            ""
            if claims.expected_size in (0, len(data))
            else (f" (listed with {claims.expected_size} bytes, it has {len(data)})")
        )
        report.add("manifest-damaged", error.message.splitlines()[0] + size, **where)
        return []
    if manifest.id != claims.manifest_id:
        report.count("unread")
        report.add("manifest-id-mismatch", f"the file says that it is {manifest.id}", **where)
        return []
    _check_entries(claims, manifest, len(data), report)
    _check_order(manifest, envelope.payload, where, report)
    if not manifest.num_chunk_refs:
        report.add("manifest-empty", "it holds no reference", **where)
    return list(_check_arrays(claims, manifest, object_key, report))


def _check_entries(claims: ManifestClaims, manifest: Manifest, nbytes: int, report: Report) -> None:
    for entry in claims.entries:
        where = {
            "object_key": manifest_key(claims.manifest_id),
            "snapshot_id": entry.mark.snapshot_id,
            "rank": entry.mark.rank,
        }
        if entry.size not in (0, nbytes):
            report.add(
                "manifest-size-mismatch",
                f"it has {nbytes} bytes, and the snapshot lists {entry.size}",
                **where,
            )
        if entry.num_refs != manifest.num_chunk_refs:
            report.add(
                "manifest-count-mismatch",
                f"it holds {manifest.num_chunk_refs} references, and the snapshot lists "
                f"{entry.num_refs}",
                **where,
            )


def _check_order(manifest: Manifest, payload: bytes, where: dict[str, Any], report: Report) -> None:
    stored = stored_manifest(payload, object_key=where["object_key"])
    unsorted = sum(not array.is_sorted for array in stored.arrays)
    if unsorted or not stored.is_sorted:
        what = f"the references of {unsorted} arrays" if unsorted else "its arrays"
        report.add(
            "manifest-unsorted",
            f"{what} are out of order, so that other clients may not find them",
            **where,
        )
    for array in stored.arrays:
        for kind, coords, problem in (
            ("ref-duplicate", array.repeated, "the chunk has more than one reference"),
            (
                "ref-ambiguous",
                array.ambiguous,
                "the reference has more than one of chunk id, location and inline bytes",
            ),
        ):
            _report_rows(report, kind, coords, np.arange(len(coords)), problem, where)


def _report_rows(
    report: Report,
    kind: str,
    coords: NDArray[Any],
    rows: NDArray[Any],
    problem: str,
    where: dict[str, Any],
) -> None:
    def make(position: int) -> Finding:
        chunk = tuple(coords[rows[position]].tolist())
        return Finding(kind=kind, problem=problem, chunk=chunk, **where)

    if len(rows):
        report.add_many(kind, len(rows), make)


def _check_arrays(
    claims: ManifestClaims, manifest: Manifest, object_key: str, report: Report
) -> Iterator[UsedRefs]:
    uses_of: dict[NodeId, list[ManifestUse]] = {}
    for use in claims.uses:
        uses_of.setdefault(use.node_id, []).append(use)
    for node_id, uses in uses_of.items():
        if manifest.array(node_id) is None:
            report.add(
                "manifest-lacks-array",
                f"the manifest holds nothing of array {uses[0].node_path}, which should have "
                "chunks in it",
                object_key=object_key,
                snapshot_id=uses[0].mark.snapshot_id,
                node_path=uses[0].node_path,
                rank=uses[0].mark.rank,
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
        _check_places(used, report)
        yield used


def _count_refs(refs: ChunkRefs, report: Report) -> None:
    for kind, name in (
        (KIND_NATIVE, "native"),
        (KIND_INLINE, "inline"),
        (KIND_VIRTUAL, "virtual"),
    ):
        rows = refs.kind == kind
        # Lengths are not checked yet, and a sum of damaged ones may not fit 64 bits.
        nbytes = float(refs.length[rows].sum(dtype=np.float64))
        report.count(f"{name} references", int(rows.sum()), int(min(nbytes, 2.0**62)))


def _check_payloads(used: UsedRefs, report: Report) -> None:
    refs = used.refs
    empty = np.flatnonzero(refs.length == 0)
    _report_rows(
        report, "ref-empty", refs.coords, empty, "the chunk has no bytes at all", used.where()
    )
    beyond = np.flatnonzero((refs.offset > _LARGEST) | (refs.length > _LARGEST - refs.offset))
    _report_rows(
        report,
        "ref-range",
        refs.coords,
        beyond,
        "its offset and length lie beyond what any object can have",
        used.where(),
    )


def _check_places(used: UsedRefs, report: Report) -> None:
    """Compare where references are with where versions look for them."""
    refs = used.refs
    if not len(refs):
        return
    coords = refs.coords
    low = coords.min(axis=0).astype(np.int64)
    high = coords.max(axis=0).astype(np.int64) + 1
    for use in used.uses:
        where = {
            "object_key": used.object_key,
            "snapshot_id": use.mark.snapshot_id,
            "node_path": use.node_path,
            "rank": use.mark.rank,
        }
        if refs.ndim != len(use.extents):
            report.add(
                "ref-dimensions",
                f"references have {refs.ndim} coordinates, and the array has {len(use.extents)} "
                "dimensions",
                **where,
            )
            continue
        extents = np.array(use.extents, dtype=np.int64).reshape(-1, 2)
        limits = np.maximum(np.array(use.num_chunks, dtype=np.int64), 1)
        if (low < extents[:, 0]).any() or (high > extents[:, 1]).any():
            outside = ((coords < extents[:, 0]) | (coords >= extents[:, 1])).any(axis=1)
            report.add(
                "ref-outside-extents",
                f"{int(outside.sum())} references lie outside of the extents "
                f"{extents.tolist()} that the snapshot gives to the manifest",
                chunk=used.chunk(int(np.flatnonzero(outside)[0])),
                **where,
            )
        elif (low != extents[:, 0]).any() or (high != extents[:, 1]).any():
            report.add(
                "extents-not-tight",
                f"the snapshot gives the manifest the extents {extents.tolist()}, and its "
                f"references fill {np.stack([low, high], axis=1).tolist()}",
                **where,
            )
        if (high > limits).any():
            outside = (coords >= limits).any(axis=1)
            report.add(
                "ref-outside-grid",
                f"{int(outside.sum())} references lie outside of the array's grid of "
                f"{list(use.num_chunks)} chunks",
                chunk=used.chunk(int(np.flatnonzero(outside)[0])),
                **where,
            )
