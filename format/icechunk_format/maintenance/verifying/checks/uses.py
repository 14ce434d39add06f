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


Said = ManifestUse | ManifestEntry


class ManifestClaims:
    """Distinct claims of snapshots about one manifest."""

    __slots__ = ("_said", "manifest_id")

    def __init__(self, manifest_id: ManifestId) -> None:
        self.manifest_id = manifest_id
        self._said: dict[tuple[object, ...], Said] = {}

    def add(self, said: Said) -> None:
        """Add one claim; of equal ones that of the newest snapshot counts."""
        known = self._said.get(said.identity)
        if known is None or said.mark.rank < known.mark.rank:
            self._said[said.identity] = said

    @property
    def is_empty(self) -> bool:
        """Whether there are no claims."""
        return not self._said

    @property
    def uses(self) -> list[ManifestUse]:
        """Arrays that take chunks from it, those of the newest snapshots first."""
        return sorted(
            (said for said in self._said.values() if isinstance(said, ManifestUse)),
            key=lambda use: (use.mark.rank, use.node_path, use.extents),
        )

    @property
    def entries(self) -> list[ManifestEntry]:
        """Sizes and counts, those of the newest snapshots first."""
        return sorted(
            (said for said in self._said.values() if isinstance(said, ManifestEntry)),
            key=lambda entry: entry.mark.rank,
        )

    @property
    def mark(self) -> VersionMark:
        """The newest snapshot that uses or lists the manifest."""
        return min((said.mark for said in self._said.values()), key=lambda mark: mark.rank)

    @property
    def expected_size(self) -> int:
        """Bytes to expect, 0 if unknown."""
        return max((entry.size for entry in self.entries), default=0)


def gather(said: Iterable[Said]) -> dict[ManifestId, ManifestClaims]:
    """Return the claims by manifest."""
    claims: dict[ManifestId, ManifestClaims] = {}
    for one in said:
        known = claims.get(one.manifest_id)
        if known is None:
            known = claims[one.manifest_id] = ManifestClaims(one.manifest_id)
        known.add(one)
    return claims
