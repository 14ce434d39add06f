"""Collects the claims of snapshots about each manifest: arrays, chunks and sizes.

Many snapshots use the same manifest. It is read once and checked against all of them, so claims are
sent from tasks that read snapshots to tasks that read manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.maintenance.verifying.findings import Report, Spot


class SnapshotMark(NamedTuple):
    """The id (as a string) and the rank of a snapshot, for findings and claims."""

    snapshot_id: str
    rank: int

    def at(self, report: Report, object_key: str, **more: Any) -> Spot:
        """Return the ``Spot`` for findings about an object of the snapshot."""
        return report.at(object_key=object_key, **self._asdict(), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestUse:
    """The claim that an array of a snapshot has chunks in a manifest; equal in all snapshots.

    Parameters
    ----------
    mark
        The newest snapshot with this claim.
    extents
        Range of chunk coordinates that the snapshot records for the manifest, along each axis.
    num_chunks
        Number of chunks of the array's grid along each axis.
    document
        The array's ``zarr.json``; None if chunks are not decoded.
    """

    manifest_id: ManifestId
    mark: SnapshotMark = field(compare=False)
    node_id: NodeId
    node_path: str
    extents: tuple[tuple[int, int], ...]
    num_chunks: tuple[int, ...]
    document: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """The claim that a manifest file has a size (0 if unknown) and a number of references."""

    manifest_id: ManifestId
    mark: SnapshotMark = field(compare=False)
    size: int
    num_refs: int


Claim = ManifestUse | ManifestEntry


class ManifestClaims:
    """The distinct claims of snapshots about one manifest."""

    __slots__ = ("_claims", "manifest_id")

    def __init__(self, manifest_id: ManifestId) -> None:
        self.manifest_id = manifest_id
        self._claims: dict[Claim, Claim] = {}

    def add(self, claim: Claim) -> None:
        """Add a claim; of equal claims, that of the newest snapshot is kept."""
        known = self._claims.get(claim)
        if known is None or claim.mark.rank < known.mark.rank:
            self._claims[claim] = claim

    @property
    def is_empty(self) -> bool:
        """True if there are no claims."""
        return not self._claims

    @property
    def uses(self) -> list[ManifestUse]:
        """Arrays with chunks in the manifest, in the order of snapshots, newest first."""
        return sorted(
            (claim for claim in self._claims.values() if isinstance(claim, ManifestUse)),
            key=lambda use: (use.mark.rank, use.node_path, use.extents),
        )

    @property
    def entries(self) -> list[ManifestEntry]:
        """Sizes and counts, in the order of snapshots, newest first."""
        return sorted(
            (claim for claim in self._claims.values() if isinstance(claim, ManifestEntry)),
            key=lambda entry: entry.mark.rank,
        )

    @property
    def mark(self) -> SnapshotMark:
        """The newest snapshot that uses or lists the manifest."""
        return min((claim.mark for claim in self._claims.values()), key=lambda mark: mark.rank)

    @property
    def expected_size(self) -> int:
        """The expected size in bytes; 0 if unknown."""
        return max((entry.size for entry in self.entries), default=0)


def gather(found: Iterable[Claim]) -> dict[ManifestId, ManifestClaims]:
    """Group claims by manifest."""
    claims: dict[ManifestId, ManifestClaims] = {}
    for claim in found:
        claims.setdefault(claim.manifest_id, ManifestClaims(claim.manifest_id)).add(claim)
    return claims
