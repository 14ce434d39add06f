"""``ChunkSource``: fetches native, inline and virtual chunks, many in one call.

Rules of this file
------------------
1. One call fetches many chunks, with one batch of requests for each storage.
2. Ranges are within the payload of a chunk. A response of another length raises an error.
3. A ``ChunkSource`` holds no connection, is picklable, and shows no credential.

Specification: "Chunk references", "Virtual chunks".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.encoding.object_keys import CHUNKS
from icechunk_format.errors import (
    ChunkModifiedError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from icechunk_format.repository.chunks.virtual import (
    VirtualResolver,
    check_virtual_options,
    is_authorized,
    parse_authorized,
)
from icechunk_format.repository.chunks.virtual_url import shown
from icechunk_format.repository.files.optional_objects import missing_key
from icechunk_format.storage.location import Location, environment_mark, open_storage, planned_reads
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.storage.protocol import MAX_READ_LENGTH, ReadRequest

if TYPE_CHECKING:
    from icechunk_format.encoding.config.config import VirtualChunkContainer

TO_END = int(np.iinfo(np.int64).max)
"""Stands for the end of the payload in a range."""

_LARGEST_OFFSET = 2**63 - 1 - MAX_READ_LENGTH


def checked_source(
    location: Location, access: VirtualAccess, containers: Iterable[VirtualChunkContainer] = ()
) -> ChunkSource:
    """Check the options and return a source; see ``Repository.chunk_source``."""
    parse_authorized(access.authorized)
    check_virtual_options(access.options, access.authorized)
    return ChunkSource(location=location, containers=tuple(containers), access=access)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSource:
    """Fetches the chunks of a repository; picklable, opened in the process that uses it."""

    location: Location
    containers: tuple[VirtualChunkContainer, ...] = ()
    access: VirtualAccess = NO_ACCESS

    @property
    def cache_scope(self) -> Hashable:
        """Key for caches of the process; sources that may return different bytes differ in it."""
        return self.location, self.access, repr(self.containers), environment_mark()

    @property
    def has_unauthorized_containers(self) -> bool:
        """True if virtual chunks of any container would be refused."""
        return not all(
            is_authorized(container.url_prefix, self.access.authorized)
            for container in self.containers
        )

    def resolver(self) -> VirtualResolver:
        """Return a new resolver of virtual locations."""
        return VirtualResolver(self.containers, self.access.authorized, self.access.options)

    def fetch(
        self, refs: ChunkRefs, rows: NDArray[np.int64], ranges: NDArray[np.int64] | None = None
    ) -> list[bytes]:
        """Return the payloads of some chunk references, or a range of each.

        Parameters
        ----------
        refs
            Chunk references of one array.
        rows
            int64, shape (k,): the rows to fetch. A row may be repeated for several ranges.
        ranges
            int64, shape (k, 2): start and end (exclusive) in bytes within each payload. A
            negative start counts from the end, and ``TO_END`` is the end: ``(-n, TO_END)`` are
            the last n bytes. None fetches whole payloads.

        Raises
        ------
        FormatError
            A reference or range is outside of its object or payload.
        NotFoundError
            The object of a chunk is missing.
        UnauthorizedVirtualChunkError
            A virtual chunk is outside of every authorized prefix. Nothing is fetched.
        ChunkModifiedError
            The object of a virtual chunk changed after the reference was made.
        """
        rows = np.asarray(rows, dtype=np.int64)
        starts, ends = _payload_ranges(refs, rows, ranges)
        result: list[bytes] = [b""] * len(rows)
        # Everything is checked and authorized before the first byte is requested.
        batches = self._requests(refs, rows, starts, ends)
        for position in np.flatnonzero(refs.kind[rows] == KIND_INLINE).tolist():
            payload = refs.inline(int(rows[position]))
            result[position] = payload[int(starts[position]) : int(ends[position])]
        for location, batch in batches.items():
            contents = _read(location, [request for _, request in batch])
            for (position, _), data in zip(batch, contents, strict=True):
                result[position] = data
        return result

    def planned_reads(
        self, refs: ChunkRefs, rows: NDArray[np.int64], ranges: NDArray[np.int64] | None = None
    ) -> tuple[int, int]:
        """Return the number and total bytes of the requests that ``fetch`` would send.

        Arguments and errors are those of ``fetch``.
        """
        rows = np.asarray(rows, dtype=np.int64)
        batches = self._requests(refs, rows, *_payload_ranges(refs, rows, ranges))
        reads = [
            read
            for location, batch in batches.items()
            for read in planned_reads(location, [request for _, request in batch])
        ]
        return len(reads), sum((read.end or 0) - (read.start or 0) for read in reads)

    def _requests(
        self,
        refs: ChunkRefs,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> dict[Location, list[tuple[int, ReadRequest]]]:
        """Return the requests of each storage, each with the position of its row."""
        batches: dict[Location, list[tuple[int, ReadRequest]]] = {}
        kinds = refs.kind[rows]
        for kind, objects in ((KIND_NATIVE, self._native), (KIND_VIRTUAL, self._virtual)):
            positions = np.flatnonzero(kinds == kind)
            if not len(positions):
                continue
            chosen = rows[positions]
            offsets = refs.offset[chosen].astype(np.int64)
            for position, (location, fields), start, end in zip(
                positions.tolist(),
                objects(refs, chosen),
                (offsets + starts[positions]).tolist(),
                (offsets + ends[positions]).tolist(),
                strict=True,
            ):
                request = ReadRequest(**fields, start=start, end=end)
                batches.setdefault(location, []).append((position, request))
        return batches

    def _native(
        self, refs: ChunkRefs, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Location, dict[str, Any]]]:
        """Yield the storage and the fields of the request of each chunk in the repository."""
        for string in encode_many(refs.chunk_id[rows]):
            yield self.location, {"key": f"{CHUNKS}{string}"}

    def _virtual(
        self, refs: ChunkRefs, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Location, dict[str, Any]]]:
        """Yield the storage and the fields of the request of each virtual chunk."""
        resolver = self.resolver()
        conditions = refs.etags(rows), refs.last_modified[rows].tolist()
        for location, etag, modified in zip(refs.locations(rows), *conditions, strict=True):
            found = resolver.resolve(location)
            yield (
                found.location,
                {
                    "key": found.object_key,
                    "if_match": etag or None,
                    "if_unmodified_since": modified or None,
                },
            )


def _payload_ranges(
    refs: ChunkRefs, rows: NDArray[np.int64], ranges: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end of each read within its payload, checked against its length."""
    lengths = _payload_lengths(refs, rows)
    if ranges is None:
        return np.zeros(len(rows), dtype=np.int64), lengths
    ranges = np.asarray(ranges, dtype=np.int64)
    if ranges.shape != (len(rows), 2):
        raise InvalidInputError(
            f"ranges have the shape {ranges.shape}; ({len(rows)}, 2) is needed, "
            "a start and an end for each row",
            found=ranges.shape,
        )
    starts = np.where(ranges[:, 0] < 0, lengths + ranges[:, 0], ranges[:, 0])
    ends = np.where(ranges[:, 1] == TO_END, lengths, ranges[:, 1])
    wrong = np.flatnonzero((starts < 0) | (ends < starts) | (ends > lengths))
    if len(wrong):
        first = int(wrong[0])
        raise FormatError(
            f"bytes {ranges[first, 0]} to {ranges[first, 1]} are needed, but the chunk at "
            f"{refs.coords[rows[first]].tolist()} has only {lengths[first]}",
            file_type="chunk",
            field="range",
        )
    return starts, ends


def _payload_lengths(refs: ChunkRefs, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths, offsets = refs.length[rows], refs.offset[rows]
    wrong = np.flatnonzero((lengths > MAX_READ_LENGTH) | (offsets > _LARGEST_OFFSET))
    if len(wrong):
        first = int(wrong[0])
        raise FormatError(
            f"the reference of the chunk at {refs.coords[rows[first]].tolist()} has offset "
            f"{offsets[first]} and length {lengths[first]}; chunks have at most "
            f"{MAX_READ_LENGTH} bytes",
            file_type="manifest",
            field="length",
            offset=int(offsets[first]),
            length=int(lengths[first]),
        )
    return lengths.astype(np.int64)


def _read(location: Location, requests: list[ReadRequest]) -> list[bytes]:
    storage = open_storage(location)
    try:
        contents = storage.get_many(requests)
    except NotFoundError as error:
        raise NotFoundError(
            f"the chunk object {missing_key(error)!r} is not in {storage.root_url}: it was "
            "deleted after its reference was written, by garbage collection or by hand",
            **error.facts,
        ) from error
    except ChunkModifiedError as error:
        raise ChunkModifiedError(
            f"{error.message} (below {storage.root_url})", **error.facts
        ) from error
    except StorageError as error:
        if "expected" not in error.facts:
            raise
        raise FormatError(
            f"it is shorter than its reference records: {error.facts['expected']} bytes were "
            f"expected, {error.facts['found']} came from {shown(storage.root_url)}",
            object_key=str(error.facts.get("key")),
            file_type="chunk",
            field="length",
        ) from error
    for request, data in zip(requests, contents, strict=True):
        expected = (request.end or 0) - (request.start or 0)
        if len(data) != expected:
            raise FormatError(
                f"{expected} bytes were expected and {len(data)} came from {storage.root_url}",
                object_key=request.key,
                file_type="chunk",
                field="length",
            )
    return contents
