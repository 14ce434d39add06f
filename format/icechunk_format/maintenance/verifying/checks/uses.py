"""Gathers the claims of snapshots about each manifest: arrays, chunks and sizes.

Many snapshots use the same manifest. It is read once and checked against all of them, so claims
are sent from tasks that read snapshots to tasks that read manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from icechunk_format.maintenance.verifying.findings import Report, Spot
from icechunk_format.spec.ids import ManifestId, NodeId


class VersionMark(NamedTuple):
    """A snapshot that findings and claims refer to: its id as a string, and its rank."""

    snapshot_id: str
    rank: int

    def at(self, report: Report, object_key: str, **more: Any) -> Spot:
        """Return a ``Spot`` for findings about an object of the snapshot."""
        return report.at(object_key=object_key, **self._asdict(), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestUse:
    """An array of a snapshot takes chunks from a manifest.

    Parameters
    ----------
    mark
        The newest snapshot with this claim.
    extents
        Start and end of the chunk coordinates that the snapshot expects there, per axis.
    num_chunks
        Chunks of the array's grid per axis.
    document
        The array's ``zarr.json``, if chunks are to be decoded.
    """

    manifest_id: ManifestId
    mark: VersionMark
    node_id: NodeId
    node_path: str
    extents: tuple[tuple[int, int], ...]
    num_chunks: tuple[int, ...]
    document: bytes | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that is equal for snapshots with the same claim."""
        return (self.node_id, self.node_path, self.extents, self.num_chunks, self.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """A snapshot lists a manifest file with a size, 0 if unknown, and a number of references."""

    manifest_id: ManifestId
    mark: VersionMark
    size: int
    num_refs: int

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that is equal for snapshots with the same claim."""
        return (self.size, self.num_refs)


Claim = ManifestUse | ManifestEntry


class ManifestClaims:
    """Distinct claims of snapshots about one manifest."""

    __slots__ = ("_claims", "manifest_id")

    def __init__(self, manifest_id: ManifestId) -> None:
        self.manifest_id = manifest_id
        self._claims: dict[tuple[object, ...], Claim] = {}

    def add(self, claim: Claim) -> None:
        """Add one claim; of equal ones that of the newest snapshot counts."""
        known = self._claims.get(claim.identity)
        if known is None or claim.mark.rank < known.mark.rank:
            self._claims[claim.identity] = claim

    @property
    def is_empty(self) -> bool:
        """True if no claims exist."""
        return not self._claims

    @property
    def uses(self) -> list[ManifestUse]:
        """Arrays that take chunks from it, those of the newest snapshots first."""
        return sorted(
            (claim for claim in self._claims.values() if isinstance(claim, ManifestUse)),
            key=lambda use: (use.mark.rank, use.node_path, use.extents),
        )

    @property
    def entries(self) -> list[ManifestEntry]:
        """Sizes and counts, those of the newest snapshots first."""
        return sorted(
            (claim for claim in self._claims.values() if isinstance(claim, ManifestEntry)),
            key=lambda entry: entry.mark.rank,
        )

    @property
    def mark(self) -> VersionMark:
        """The newest snapshot that uses or lists the manifest."""
        return min((claim.mark for claim in self._claims.values()), key=lambda mark: mark.rank)

    @property
    def expected_size(self) -> int:
        """Bytes to expect, 0 if unknown."""
        return max((entry.size for entry in self.entries), default=0)


def gather(found: Iterable[Claim]) -> dict[ManifestId, ManifestClaims]:
    """Return the claims by manifest."""
    claims: dict[ManifestId, ManifestClaims] = {}
    for claim in found:
        known = claims.get(claim.manifest_id)
        if known is None:
            known = claims[claim.manifest_id] = ManifestClaims(claim.manifest_id)
        known.add(claim)
    return claims
