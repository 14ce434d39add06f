"""Keeps decoded chunks for later blocks of a task, within a budget of bytes.

Arrays of a table may be chunked differently: a block cut at the chunks of one array uses part of a
chunk of another, and the next block uses the rest. Fetching runs ahead of decoding, so the block
that fetches such a chunk announces it; later blocks take the decoded chunk instead of fetching it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from numpy.typing import NDArray

# Bytes of an entry without its chunk; missing chunks also have entries.
_ENTRY_COST = 200


class DecodedChunks:
    """A least-recently-used cache of decoded chunks; None stands for a missing chunk.

    A chunk larger than the budget of ``max_bytes`` is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._lock = threading.Lock()
        self._announced: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, NDArray[Any] | None] = OrderedDict()

    def announce(self, key: Hashable) -> bool:
        """Announce a chunk to fetch; return True if it was neither announced nor kept before."""
        with self._lock:
            if key in self._kept or key in self._announced:
                return False
            self._announced.add(key)
            return True

    def keep(self, key: Hashable, chunk: NDArray[Any] | None) -> None:
        """Keep a decoded chunk, or None for a missing chunk."""
        cost = self._cost(chunk)
        with self._lock:
            self._announced.discard(key)
            if key in self._kept or cost > self._max_bytes:
                return
            self._kept[key] = chunk
            self._used += cost
            while self._used > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._used -= self._cost(dropped)

    def find(self, key: Hashable) -> tuple[bool, NDArray[Any] | None]:
        """Return whether a chunk is in the cache, and the chunk; None if it is missing."""
        with self._lock:
            if key not in self._kept:
                return False, None
            self._kept.move_to_end(key)
            return True, self._kept[key]

    @staticmethod
    def _cost(chunk: NDArray[Any] | None) -> int:
        if chunk is None:
            return _ENTRY_COST
        per_item = 64 if chunk.dtype.hasobject else chunk.dtype.itemsize
        return chunk.size * per_item + _ENTRY_COST
