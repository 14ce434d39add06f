"""Gathers what versions say about each manifest: the arrays, chunks and sizes they expect.

Many versions use the same manifest. It is read once and checked against all of them, so their
expectations are sent from tasks that read snapshots to tasks that read manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from icechunk_format.maintenance.verifying.findings import Report, Spot
from icechunk_format.spec.ids import ManifestId, NodeId


class VersionMark(NamedTuple):
    """The version that said it: its snapshot id as text, and its rank."""

    snapshot_id: str
    rank: int

    def at(self, report: Report, object_key: str, **more: Any) -> Spot:
        """Return what adds findings about an object of the version."""
        return report.at(object_key=object_key, **self._asdict(), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestUse:
    """An array of a version takes chunks from a manifest.

    Parameters
    ----------
    mark
        The newest version that says so.
    extents
        Start and end of the chunk coordinates that the version expects there, per axis.
    num_chunks
        Chunks of the array's grid per axis.
    document
        The array's ``zarr.json``, where chunks are to be decoded.
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
        """Key that is equal for versions that say the same."""
        return (self.node_id, self.node_path, self.extents, self.num_chunks, self.document)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """A version lists a manifest file with a size and a number of references.

    Parameters
    ----------
    manifest_id, mark
        The manifest, and the newest version that says so.
    size
        Bytes of the object; 0 if not known.
    num_refs
        References in it, over all its arrays.
    """

    manifest_id: ManifestId
    mark: VersionMark
    size: int
    num_refs: int

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that is equal for versions that say the same."""
        return (self.size, self.num_refs)


Said = ManifestUse | ManifestEntry


class ManifestClaims:
    """Distinct statements of versions about one manifest."""

    __slots__ = ("_said", "manifest_id")

    def __init__(self, manifest_id: ManifestId) -> None:
        self.manifest_id = manifest_id
        self._said: dict[tuple[object, ...], Said] = {}

    def add(self, said: Said) -> None:
        """Take in one thing; of equal ones the newest version counts."""
        known = self._said.get(said.identity)
        if known is None or said.mark.rank < known.mark.rank:
            self._said[said.identity] = said

    @property
    def is_empty(self) -> bool:
        """Whether no version says anything."""
        return not self._said

    @property
    def uses(self) -> list[ManifestUse]:
        """Arrays that take chunks from it, those of the newest versions first."""
        return sorted(
            (said for said in self._said.values() if isinstance(said, ManifestUse)),
            key=lambda use: (use.mark.rank, use.node_path, use.extents),
        )

    @property
    def entries(self) -> list[ManifestEntry]:
        """Sizes and counts, those of the newest versions first."""
        return sorted(
            (said for said in self._said.values() if isinstance(said, ManifestEntry)),
            key=lambda entry: entry.mark.rank,
        )

    @property
    def mark(self) -> VersionMark:
        """The newest version that knows the manifest."""
        return min((said.mark for said in self._said.values()), key=lambda mark: mark.rank)

    @property
    def expected_size(self) -> int:
        """Bytes to expect, 0 if nobody knows."""
        return max((entry.size for entry in self.entries), default=0)


def gather(said: Iterable[Said]) -> dict[ManifestId, ManifestClaims]:
    """Return what versions say, by manifest."""
    claims: dict[ManifestId, ManifestClaims] = {}
    for one in said:
        known = claims.get(one.manifest_id)
        if known is None:
            known = claims[one.manifest_id] = ManifestClaims(one.manifest_id)
        known.add(one)
    return claims
