"""Cuts work into batches with a bounded number of items and of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

# Assumed size of an object of unknown size.
_UNKNOWN_SIZE: Final = 2**20


def batches(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """Yield items in lists of at most ``count``."""
    return sized_batches(((item, 0) for item in items), count, 0)


def sized_batches(
    items: Iterable[tuple[T, int | None]], count: int, nbytes: int
) -> Iterator[list[T]]:
    """Yield items in lists of at most ``count`` items and ``nbytes`` bytes.

    Each item is paired with its size in bytes, None if unknown. A larger item is in a list alone.
    """
    batch: list[T] = []
    held = 0
    for item, listed in items:
        size = _UNKNOWN_SIZE if listed is None else listed
        if batch and (held + size > nbytes or len(batch) == count):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size
    if batch:
        yield batch
