"""Counts what this process reads, writes, decodes and encodes.

A process of Spark runs one task at a time, so the difference between two looks at the counts is
what the task did in between, in all of its threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Counts of tasks; sums and differences are also counts.

    Parameters
    ----------
    tasks
        Tasks that were counted; an attempt that Spark repeats counts again.
    rows
        Rows that a read delivered.
    requests
        Requests to stores: reads, writes, listings and deletions, of metadata too. Repeats after a
        failure do not count.
    bytes_read, bytes_written
        Bytes of objects, and of ranges of objects.
    cache_hits
        Snapshots, manifests, indexes of shards and decoded chunks that a cache of the process had.
    chunks_decoded, chunks_encoded
        Chunks; of sharded arrays, inner chunks are decoded, and whole shards encoded.
    decode_seconds, encode_seconds
        Time in codecs, summed over tasks. Of tasks that wait for a core, more than they compute.
    """

    tasks: int = 0
    rows: int = 0
    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    cache_hits: int = 0
    chunks_decoded: int = 0
    chunks_encoded: int = 0
    decode_seconds: float = 0.0
    encode_seconds: float = 0.0

    def __add__(self, other: Measures) -> Measures:
        return Measures(**{n: getattr(self, n) + getattr(other, n) for n in _NAMES})

    def __sub__(self, other: Measures) -> Measures:
        return Measures(**{n: getattr(self, n) - getattr(other, n) for n in _NAMES})

    def __str__(self) -> str:
        """Return the counts on one line, without those of what did not happen."""
        from icechunk_format.display.plain_text import counted, size

        parts = [counted(self.requests, "request")]
        if self.rows:
            parts.insert(0, counted(self.rows, "row"))
        for verb, nbytes in (("read", self.bytes_read), ("written", self.bytes_written)):
            if nbytes:
                parts.append(f"{size(nbytes)} {verb}")
        for verb, chunks, seconds in (
            ("decoded", self.chunks_decoded, self.decode_seconds),
            ("encoded", self.chunks_encoded, self.encode_seconds),
        ):
            if chunks:
                parts.append(f"{counted(chunks, 'chunk')} {verb} in {seconds:.1f} s")
        if self.cache_hits:
            parts.append(counted(self.cache_hits, "cache hit"))
        return ", ".join(parts)


_NAMES = tuple(one.name for one in fields(Measures))
_lock = threading.Lock()
_counts: dict[str, Any] = dict.fromkeys(_NAMES, 0)


def count(requests: int = 0, *, read: int = 0, written: int = 0, hits: int = 0) -> None:
    """Count requests, the bytes that they have read or written, and requests that caches saved."""
    with _lock:
        _counts["requests"] += requests
        _counts["bytes_read"] += read
        _counts["bytes_written"] += written
        _counts["cache_hits"] += hits


def timed(kind: Literal["decode", "encode"], function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function that decodes or encodes one chunk; count the chunk and the time."""
    began = time.perf_counter()
    result = function(*arguments)
    seconds = time.perf_counter() - began
    with _lock:
        _counts[f"chunks_{kind}d"] += 1
        _counts[f"{kind}_seconds"] += seconds
    return result


def measured() -> Measures:
    """Return the counts of this process since it began."""
    with _lock:
        return Measures(**_counts)
