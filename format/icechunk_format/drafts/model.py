"""What both drafts say, in one set of terms: versions, nodes, and chunk references as columns.

Rules of this file
------------------
1. Ids of a draft stay texts, because the drafts do not agree on what an id is.
2. A node carries the ``zarr.json`` that it has in released versions, whatever the draft stores.
3. Chunk references are columns; see ``DraftChunks``.

Specification: the two drafts; what they leave open is decided in the modules of each draft.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.errors import FormatError, NotFoundError
from icechunk_format.grid.coordinates import sorting_rows
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.storage.protocol import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from icechunk_format.arrays.zarr_json import ArrayMetadata
    from icechunk_format.spec.node_path import NodePath
    from icechunk_format.storage.location import Location
    from icechunk_format.storage.protocol import Storage

KINDS: Final = {KIND_NATIVE: "native", KIND_INLINE: "inline", KIND_VIRTUAL: "virtual"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSnapshot:
    """One version.

    Parameters
    ----------
    id, parent_id
        As the draft has them; ``parent_id`` is None for the first version.
    written_at
        Microseconds since 1970-01-01T00:00:00Z.
    message
        Commit message; empty where the draft has none.
    properties
        Metadata of the version.
    """

    id: str
    parent_id: str | None
    written_at: int
    message: str
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftNode:
    """A group or an array of one version.

    Parameters
    ----------
    id
        Number of the node in the draft.
    path
        Where it is.
    user_data
        Its ``zarr.json`` as released versions have it.
    array
        The same, read; None for a group.
    manifests
        Keys of the objects with its chunk references, the ones that win first.
    """

    id: int
    path: NodePath
    user_data: bytes
    array: ArrayMetadata | None = None
    manifests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftChunks:
    """Chunk references of one array, a row each, sorted by coordinate.

    Parameters
    ----------
    coords
        uint32, shape (n, ndim): places in the chunk grid.
    kind
        uint8, shape (n,): ``KIND_NATIVE``, ``KIND_INLINE`` or ``KIND_VIRTUAL``.
    payload
        binary, n rows: the object key of a native chunk, the bytes of an inline one, the URL of a
        virtual one.
    offset, length
        uint64, shape (n,): the bytes of the object that are the chunk; of an inline one all.
    """

    coords: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    payload: pa.LargeBinaryArray
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def empty(cls, ndim: int) -> DraftChunks:
        """Return no references."""
        return cls(
            coords=np.empty((0, ndim), dtype=np.uint32),
            kind=np.empty(0, dtype=np.uint8),
            payload=pa.array([], type=pa.large_binary()),
            offset=np.empty(0, dtype=np.uint64),
            length=np.empty(0, dtype=np.uint64),
        )

    def take(self, rows: NDArray[np.intp]) -> DraftChunks:
        """Return some of the rows."""
        return DraftChunks(
            coords=self.coords[rows],
            kind=self.kind[rows],
            payload=self.payload.take(pa.array(rows)),
            offset=self.offset[rows],
            length=self.length[rows],
        )

    @classmethod
    def joined(cls, parts: Sequence[DraftChunks], ndim: int) -> DraftChunks:
        """Return the rows of all parts in order; of rows of one place the first one."""
        parts = [cls.empty(ndim), *parts]
        coords = np.concatenate([part.coords for part in parts])
        whole = cls(
            coords=coords,
            kind=np.concatenate([part.kind for part in parts]),
            payload=pa.concat_arrays([part.payload for part in parts]),
            offset=np.concatenate([part.offset for part in parts]),
            length=np.concatenate([part.length for part in parts]),
        )
        return whole.take(sorting_rows(coords))

    def differs_from(self, other: DraftChunks) -> NDArray[np.uint32]:
        """Return the places at which the two are not the same, sorted: uint32, shape (n, ndim)."""
        both = np.concatenate([self.coords, other.coords])
        rows = _row_numbers(both)
        mine, theirs = rows[: len(self)], rows[len(self) :]
        _, at, at_other = np.intersect1d(mine, theirs, return_indices=True)
        same = (
            (self.kind[at] == other.kind[at_other])
            & (self.offset[at] == other.offset[at_other])
            & (self.length[at] == other.length[at_other])
        )
        payloads = self.payload.take(pa.array(at)), other.payload.take(pa.array(at_other))
        same &= pc.equal(*payloads).to_numpy(zero_copy_only=False).astype(np.bool_)
        kept = np.concatenate([at[same], len(self) + at_other[same]])
        changed = np.setdiff1d(np.arange(len(both)), kept)
        found = both[changed]
        changed_coords: NDArray[np.uint32] = found[sorting_rows(found)]
        return changed_coords


def _row_numbers(coords: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return a number for each row, the same one for the same row."""
    if coords.shape[1] == 0:
        return np.zeros(len(coords), dtype=np.intp)
    _, numbers = np.unique(coords, axis=0, return_inverse=True)
    return np.asarray(numbers).reshape(-1)


class DraftRepository(ABC):
    """A repository of a draft, for reading.

    Parameters
    ----------
    location
        Where it is.
    storage
        The objects there.
    """

    kind: str

    def __init__(self, location: Location, storage: Storage) -> None:
        self.location = location
        self.storage = storage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.location)!r})"

    @abstractmethod
    def branches(self) -> dict[str, str]:
        """Return every branch and the id of its newest version, sorted by name."""

    @abstractmethod
    def tags(self) -> dict[str, str]:
        """Return every tag and the id of its version, sorted by name."""

    @abstractmethod
    def properties(self) -> dict[str, Any]:
        """Return what the draft says about itself and its branches that no version holds."""

    @abstractmethod
    def snapshot(self, snapshot_id: str) -> DraftSnapshot:
        """Return one version.

        Raises
        ------
        NotFoundError
            There is no such version.
        FormatError
            Its record is damaged.
        """

    @abstractmethod
    def nodes(self, snapshot_id: str) -> list[DraftNode]:
        """Return the nodes of a version, sorted by path.

        Raises
        ------
        NotFoundError, FormatError
            As for ``snapshot``.
        UnsupportedError
            A node uses what the draft does not describe.
        """

    @abstractmethod
    def read_manifest(self, object_key: str, node: DraftNode) -> DraftChunks:
        """Return the references of one array in one manifest; see ``chunk_refs``."""

    def ancestry(self, snapshot_id: str) -> Iterator[DraftSnapshot]:
        """Yield a version and its ancestors, newest first.

        Raises
        ------
        NotFoundError, FormatError
            As for ``snapshot``; or the history runs in a circle.
        """
        seen: set[str] = set()
        following: str | None = snapshot_id
        while following is not None:
            if following in seen:
                raise FormatError(
                    f"version {following} is its own ancestor; a history ends somewhere",
                    object_key=following,
                    file_type="draft snapshot",
                    field="parent",
                )
            seen.add(following)
            found = self.snapshot(following)
            yield found
            following = found.parent_id

    def snapshots(self) -> list[DraftSnapshot]:
        """Return every version that a branch or tag reaches, parents before their children."""
        found: dict[str, DraftSnapshot] = {}
        for tip in (*self.branches().values(), *self.tags().values()):
            line = []
            for snapshot in self.ancestry(tip):
                if snapshot.id in found:
                    break
                line.append(snapshot)
            found |= {snapshot.id: snapshot for snapshot in reversed(line)}
        return list(found.values())

    def chunk_refs(self, node: DraftNode) -> DraftChunks:
        """Return all chunk references of an array.

        What lies outside of the chunk grid, since the array became smaller, is left out, as in
        released versions.

        Memory: all references of the array at once, and one manifest as it is stored.

        Raises
        ------
        NotFoundError
            A manifest is missing.
        FormatError
            A manifest is damaged.
        """
        if node.array is None:
            return DraftChunks.empty(0)
        ndim = node.array.ndim
        limits = np.array(node.array.grid.num_chunks, dtype=np.int64).reshape(ndim)
        parts = []
        for object_key in node.manifests:
            part = self.read_manifest(object_key, node)
            inside = (part.coords < limits).all(axis=1)
            parts.append(part if inside.all() else part.take(np.flatnonzero(inside)))
        return DraftChunks.joined(parts, ndim)

    def read_chunks(self, chunks: DraftChunks, rows: Sequence[int]) -> list[bytes]:
        """Return the encoded bytes of native and inline chunks, in order.

        Raises
        ------
        NotFoundError, StorageError
            An object is missing, or shorter than its reference says.
        """
        found: dict[int, bytes] = {}
        requests = []
        for row in rows:
            payload = chunks.payload[row].as_py()
            if chunks.kind[row] == KIND_INLINE:
                found[row] = payload
            elif chunks.kind[row] == KIND_NATIVE:
                start = int(chunks.offset[row])
                end = start + int(chunks.length[row])
                requests.append((row, ReadRequest(key=payload.decode(), start=start, end=end)))
            else:
                raise NotFoundError(
                    f"chunk {tuple(chunks.coords[row].tolist())} is virtual: its bytes are no part "
                    f"of the repository, but at {payload.decode()!r}",
                    kind="chunk",
                )
        contents = self.storage.get_many([request for _, request in requests])
        found |= {row: data for (row, _), data in zip(requests, contents, strict=True)}
        return [found[row] for row in rows]
