"""Counts what this process reads, writes, decodes and encodes.

A Python worker of Spark runs one task at a time, so the difference between two readings of the
counts is the work of the task in between, over all its threads.
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
    """Counts of the work of tasks; they can be added and subtracted.

    Attributes
    ----------
    tasks
        Number of tasks; an attempt that Spark repeats counts again.
    rows
        Rows that a read delivered.
    requests
        Requests to storages, including those for metadata: reads, writes, listings and deletions.
        Retries do not count.
    bytes_read, bytes_written
        Bytes of objects, and of ranges of objects.
    cache_hits
        Snapshots, manifests, shard indexes and decoded chunks found in caches of the process.
    chunks_decoded, chunks_encoded
        Number of chunks. For sharded arrays: decoded inner chunks, and encoded shards.
    decode_seconds, encode_seconds
        Wall time in codecs, summed over tasks; it includes waiting for a core.
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
        """Return the counts on one line, without zeros."""
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
    """Count requests, bytes read and written, and cache hits."""
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
    """Return the counts of this process since its start."""
    with _lock:
        return Measures(**_counts)
