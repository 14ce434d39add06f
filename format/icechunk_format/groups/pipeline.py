"""Reads blocks ahead of the consumer, within a budget of bytes.

While the consumer turns one block into rows, one thread decodes the next block, and a few threads
fetch the following blocks.

Rules of this file
------------------
1. Blocks are yielded in order.
2. The estimated bytes of all blocks that are started and not consumed stay within the budget. A
   block larger than the budget is read alone.
3. The consumer's thread starts blocks, so reading stops when it takes no further block. Closing the
   generator cancels fetches that have not begun.
4. An error of a fetch or a decode is raised where its block would have been yielded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import chain, islice
from typing import TypeVar

from icechunk_format.storage.concurrency import DaemonThreads, wait_for

B = TypeVar("B")
F = TypeVar("F")
D = TypeVar("D")

# The requests of one block run concurrently. Fetching several blocks hides the latency of chunk
# look-ups and of small blocks.
_FETCHING_THREADS = 4
_MOST_BLOCKS_AHEAD = 32


def read_ahead(
    blocks: Iterable[B],
    *,
    fetch: Callable[[B], F],
    decode: Callable[[B, F], D],
    cost: Callable[[B], int],
    max_bytes: int,
) -> Generator[D, None, None]:
    """Yield the decoded blocks in order.

    Parameters
    ----------
    blocks
        Consumed lazily.
    fetch
        Called from several threads.
    decode
        Called from one thread, block after block.
    cost
        Estimates the bytes of a block, fetched and decoded.
    """
    source = iter(blocks)
    first = list(islice(source, 2))
    if len(first) < 2:
        # A single block is not read ahead.
        for block in first:
            yield decode(block, fetch(block))
        return
    remaining = chain(first, source)
    fetchers = DaemonThreads(_FETCHING_THREADS, name="icechunk-fetch")
    decoder = DaemonThreads(1, name="icechunk-decode")
    started: deque[tuple[Future[D], list[Future[F]], int]] = deque()
    in_flight = 0
    waiting: B | None = None
    exhausted = False

    def decode_next(block: B, fetched: list[Future[F]]) -> D:
        # Popped, so that the stored bytes are freed as soon as they are decoded.
        return decode(block, fetched.pop().result())

    try:
        while True:
            while not exhausted and len(started) < _MOST_BLOCKS_AHEAD:
                if waiting is None:
                    waiting = next(remaining, None)
                    if waiting is None:
                        exhausted = True
                        break
                needed = cost(waiting)
                if started and in_flight + needed > max_bytes:
                    break
                fetched = [fetchers.future(fetch, waiting)]
                started.append((decoder.future(decode_next, waiting, fetched), fetched, needed))
                in_flight += needed
                waiting = None
            if not started:
                return
            future, _, needed = started[0]
            wait_for(future)
            yield future.result()
            del future
            # The consumer has requested the next block, so it has released this one.
            started.popleft()
            in_flight -= needed
    finally:
        for future, fetched, _ in started:
            future.cancel()
            for one in fetched:
                one.cancel()
        for pool in (fetchers, decoder):
            pool.close()
