"""Plans the requests for a batch of byte ranges: joins near ranges and cuts large ones.

A request costs a round trip, so ranges of one object with small gaps are cheaper together. A
connection has limited speed, so a large range is faster in parts.

Algorithm
---------
1. Requests without a definite range (whole object, open end, suffix) are sent unchanged.
2. The others are grouped by object and conditions and sorted by start; a range joins the previous
   read if the gap and the joined size are within the limits.
3. A read above the size limit is cut into equal parts.
4. :meth:`ReadPlan.assemble` cuts the responses into the requested ranges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icechunk_format.errors import ChunkModifiedError, StorageError
from icechunk_format.storage.protocol import ReadRequest, check_key

DEFAULT_MAX_GAP: Final = 64 * 2**10
"""Largest gap in bytes between two ranges that are read as one: about the bytes that a connection
transfers during one round trip to an object store."""

MAX_JOINED: Final = 16 * 2**20
"""Largest read in bytes; also the size above which a range is cut into parts."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Reads to send, and for each request the pieces of the responses that it consists of.

    A piece is ``(index of the read, first byte within it, end or None for all)``.
    """

    reads: list[ReadRequest]
    pieces: list[list[tuple[int, int, int | None]]]

    @property
    def mean_bytes(self) -> float:
        """Mean size of a read in bytes; infinity if any has no definite range."""
        sizes = [
            math.inf if read.end is None else read.end - (read.start or 0) for read in self.reads
        ]
        return sum(sizes) / max(1, len(sizes))

    def assemble(self, responses: Sequence[bytes]) -> list[bytes]:
        """Return the bytes of each request, given the responses to ``reads``."""
        result: list[bytes] = []
        for pieces in self.pieces:
            if len(pieces) == 1:
                index, first, last = pieces[0]
                response = responses[index]
                whole = last is None or (first == 0 and last == len(response))
                result.append(response if whole else response[first:last])
            else:
                parts = (responses[index][first:last] for index, first, last in pieces)
                result.append(b"".join(parts))
        return result


def plan_reads(
    requests: Sequence[ReadRequest],
    *,
    max_gap: int = DEFAULT_MAX_GAP,
    max_read: int | None = MAX_JOINED,
) -> ReadPlan:
    """Return the reads that fulfil ``requests``.

    ``max_read`` is the size in bytes up to which reads are joined and above which they are cut;
    ``None`` neither limits nor cuts them.
    """
    reads: list[ReadRequest] = []
    pieces: list[list[tuple[int, int, int | None]]] = [[] for _ in requests]
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    for index, request in enumerate(requests):
        check_key(request.key)
        if request.suffix == 0 or (request.end is not None and request.end == (request.start or 0)):
            continue
        if request.end is None:
            pieces[index].append((len(reads), 0, None))
            reads.append(request)
        else:
            group = (request.key, request.if_match, request.if_unmodified_since)
            groups.setdefault(group, []).append(index)
    limit = max_read if max_read is not None else 2**63
    for (key, if_match, if_unmodified_since), members in groups.items():
        if len(members) == 1:
            only = requests[members[0]]
            if (only.end or 0) - (only.start or 0) <= limit:
                # By far the most common case is one small range of an object.
                pieces[members[0]].append((len(reads), 0, None))
                reads.append(only)
                continue
        for first, last, joined in _join(requests, members, max_gap, limit):
            base = len(reads)
            step = last - first if max_read is None else _part_size(last - first, limit)
            reads.extend(
                ReadRequest(
                    key=key,
                    start=start,
                    end=min(start + step, last),
                    if_match=if_match,
                    if_unmodified_since=if_unmodified_since,
                )
                for start in range(first, last, step)
            )
            for index in joined:
                request = requests[index]
                begin, end = (request.start or 0) - first, (request.end or 0) - first
                for part in range(begin // step, (end - 1) // step + 1):
                    offset = part * step
                    pieces[index].append(
                        (base + part, max(begin - offset, 0), min(end - offset, step))
                    )
    return ReadPlan(reads, pieces)


def plan_local_reads(requests: Sequence[ReadRequest]) -> ReadPlan:
    """Return the reads of local files, where a read is a system call without a round trip.

    Only adjacent ranges are joined, and no range is cut.
    """
    return plan_reads(requests, max_gap=0, max_read=None)


def _join(
    requests: Sequence[ReadRequest], members: list[int], max_gap: int, limit: int
) -> list[tuple[int, int, list[int]]]:
    """Return ``(start, end, members)`` of each joined read of one object."""
    members.sort(key=lambda index: requests[index].start or 0)
    result: list[tuple[int, int, list[int]]] = []
    first, last = -1, -1
    joined: list[int] = []
    for index in members:
        start, end = requests[index].start or 0, requests[index].end or 0
        if joined and start - last <= max_gap and max(end, last) - first <= limit:
            last = max(last, end)
            joined.append(index)
            continue
        if joined:
            result.append((first, last, joined))
        first, last, joined = start, end, [index]
    result.append((first, last, joined))
    return result


def _part_size(length: int, limit: int) -> int:
    parts = -(-length // limit)
    return -(-length // parts)


def check_length(read: ReadRequest, found: int, root_url: str) -> None:
    """Check that a response is not shorter than the range.

    Raises StorageError (facts ``expected`` and ``found``) if it is.
    """
    if read.suffix is not None:
        expected = read.suffix
    elif read.end is not None:
        expected = read.end - (read.start or 0)
    else:
        return
    if found != expected:
        where = (
            f"last {expected} bytes" if read.suffix is not None else f"{read.start or 0}-{read.end}"
        )
        raise StorageError(
            f"object {read.key!r} below {root_url} has {found} of {expected} requested bytes "
            f"({where}): it is shorter than its reference specifies",
            key=read.key,
            expected=expected,
            found=found,
        )


def unquoted(etag: str) -> str:
    """Return an entity tag without the quotes of HTTP; weak tags keep their ``W/``."""
    return etag if etag.startswith("W/") else etag.strip('"')


def quoted(etag: str) -> str:
    """Return an entity tag with the quotes of HTTP; existing quotes are kept."""
    return etag if etag.startswith(('"', "W/", "*")) else f'"{etag}"'


def check_unchanged(read: ReadRequest, *, etag: str | None, modified_at: float) -> None:
    """Compare an object with the conditions of a read, for servers that ignore them.

    ``modified_at`` (seconds since 1970) is truncated to whole seconds, as in references.

    Raises ChunkModifiedError if a condition is not met.
    """
    if read.if_match is not None and (etag is None or unquoted(read.if_match) != unquoted(etag)):
        raise modified_error(read)
    if read.if_unmodified_since is not None and int(modified_at) > read.if_unmodified_since:
        raise modified_error(read)


def modified_error(read: ReadRequest) -> ChunkModifiedError:
    """Return the error for an object that changed after its reference was made."""
    from icechunk_format.display.plain_text import shown_time, to_timestamp

    seconds = read.if_unmodified_since or 0
    wanted = (
        f"etag {read.if_match!r}"
        if read.if_match is not None
        else f"last change at or before {shown_time(to_timestamp(seconds * 1_000_000))}"
    )
    return ChunkModifiedError(
        f"object {read.key!r} was changed after its reference was made (which needs {wanted}); "
        "write the references again",
        key=read.key,
        if_match=read.if_match,
        if_unmodified_since=read.if_unmodified_since,
    )
