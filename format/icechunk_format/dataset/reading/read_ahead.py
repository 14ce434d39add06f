"""Fetch ahead of decoding, decode ahead of the consumer, within a budget of bytes.

A task reads block after block. While the consumer turns one block into rows, the next is decoded
by one thread, and the ones after it are fetched by a few.

Rules of this file
------------------
1. Blocks come out in order.
2. The estimated bytes of all blocks that were started and not yet given back stay within the
   budget. A block that alone exceeds it is read while no other is.
3. The consumer's thread starts the work, so nothing waits on a queue: whoever stops asking also
   stops the reading. Closing the generator cancels what has not begun.
4. What a fetch or a decode raises reaches the consumer in the place of its block.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

B = TypeVar("B")
F = TypeVar("F")
D = TypeVar("D")

# Requests of one block already run side by side; this many blocks at a time hide the latency of
# finding chunks and of small blocks.
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
        What to read; may be long, is taken as needed.
    fetch
        Gets the stored bytes of a block; called from several threads.
    decode
        Turns them into values; called from one thread, block after block.
    cost
        Estimated bytes of a block, fetched and decoded.
    max_bytes
        The budget.
    """
    source = iter(blocks)
    first = list(islice(source, 2))
    if len(first) < 2:
        # Nothing to run ahead of; threads would only cost.
        for block in first:
            yield decode(block, fetch(block))
        return
    remaining = chain(first, source)
    fetchers = ThreadPoolExecutor(_FETCHING_THREADS, thread_name_prefix="icechunk-fetch")
    decoder = ThreadPoolExecutor(1, thread_name_prefix="icechunk-decode")
    started: deque[tuple[Future[D], int]] = deque()
    in_flight = 0
    waiting: B | None = None
    exhausted = False

    def decode_next(block: B, fetched: list[Future[F]]) -> D:
        # Taken out of the list, so that the bytes go as soon as the values are there.
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
                fetched = [fetchers.submit(fetch, waiting)]
                started.append((decoder.submit(decode_next, waiting, fetched), needed))
                in_flight += needed
                waiting = None
            if not started:
                return
            future, needed = started[0]
            yield future.result()
            del future
            # The consumer has asked for the next block: this one's memory is free again.
            started.popleft()
            in_flight -= needed
    finally:
        for pool in (fetchers, decoder):
            pool.shutdown(wait=False, cancel_futures=True)
