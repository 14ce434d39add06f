"""Wraps a storage so that it survives pickling and forks: each process opens its own clients.

With ``storage.client=auto``, a process forked after its parent had used obstore uses the other
client, because obstore does not work there (see ``obstore/store.py``).
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.storage.concurrency import PerProcess
from icechunk_format.storage.protocol import (
    NO_ATTRIBUTES,
    OVERWRITE,
    Condition,
    DeleteFailure,
    Fetched,
    Lost,
    ObjectInfo,
    ObjectVersion,
    ReadRequest,
    Storage,
    Written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class PerProcessStorage:
    """Passes every verb to a storage that this process makes at the first verb.

    Parameters
    ----------
    make
        Makes the storage; picklable.
    root_url
        The root, for people.
    is_read_only
        Whether every write is refused.
    """

    def __init__(self, make: Callable[[], Storage], *, root_url: str, is_read_only: bool) -> None:
        self._make = make
        self._root_url = root_url
        self._is_read_only = is_read_only
        self._storage = PerProcess(make)

    def __repr__(self) -> str:
        return f"PerProcessStorage({self._root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (self._make, self._root_url, self._is_read_only))

    @property
    def root_url(self) -> str:
        return self._root_url

    @property
    def is_read_only(self) -> bool:
        return self._is_read_only

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        return self._storage.get().get(key, start=start, end=end)

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        return self._storage.get().get_many(requests)

    def head(self, key: str) -> ObjectInfo | None:
        return self._storage.get().head(key)

    def put(
        self,
        key: str,
        data: bytes,
        *,
        condition: Condition = OVERWRITE,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> Written | Lost:
        return self._storage.get().put(key, data, condition=condition, attributes=attributes)

    def put_many(
        self,
        items: Iterable[tuple[str, bytes]],
        *,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> list[ObjectVersion]:
        return self._storage.get().put_many(items, attributes=attributes)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        return self._storage.get().delete_many(keys)

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> Written | Lost:
        return self._storage.get().copy(source, target, source_version=source_version)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._storage.get().list(prefix)


def _restore(make: Callable[[], Storage], root_url: str, is_read_only: bool) -> PerProcessStorage:
    return PerProcessStorage(make, root_url=root_url, is_read_only=is_read_only)
