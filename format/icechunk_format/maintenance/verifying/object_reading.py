"""Reads whole objects in batches, with None for missing ones.

A batch read of a storage fails as a whole if one object is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from icechunk_format.errors import NotFoundError
from icechunk_format.storage.protocol import ReadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from icechunk_format.storage.protocol import Storage

T = TypeVar("T")


def read_present(storage: Storage, object_keys: Sequence[str]) -> list[bytes | None]:
    """Return the bytes of each object, None where there is none.

    Raises
    ------
    StorageError
        The store failed.
    NotFoundError
        The whole bucket is missing.
    """
    try:
        return [*storage.get_many([ReadRequest(key=key) for key in object_keys])]
    except NotFoundError as error:
        if error.facts.get("kind") != "object":
            raise
    return [_read_one(storage, key) for key in object_keys]


def _read_one(storage: Storage, object_key: str) -> bytes | None:
    try:
        return storage.get(object_key).data
    except NotFoundError as error:
        if error.facts.get("kind") != "object":
            raise
        return None


def batches(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """Yield items in lists of at most ``count``."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == count:
            yield batch
            batch = []
    if batch:
        yield batch
