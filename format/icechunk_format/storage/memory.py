"""Stores objects in this process's memory, for tests and small experiments.

All ``memory://`` URLs of a process share one space of objects, so storages of one URL, or of a URL
below it, share objects. A forked child starts with a copy of its parent's objects.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from icechunk_format.storage.measures import count
from icechunk_format.storage.protocol import (
    Condition,
    CreateOnly,
    DeleteFailure,
    Fetched,
    ObjectInfo,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
    Storage,
    check_key,
    missing_object,
    split_prefix,
)
from icechunk_format.storage.ranges import check_length, check_unchanged, plan_reads


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: ObjectVersion
    last_modified: datetime


@dataclass(slots=True)
class MemorySpace:
    """Objects by the first name of their path and by full path, shared by several storages."""

    # A listing below a name does not read the paths below other names.
    objects: dict[str, dict[str, _Object]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def below(self, path: str) -> dict[str, _Object]:
        """Return the objects whose paths begin with the first name of a path."""
        return self.objects.get(path.partition("/")[0], {})


_PROCESS_SPACE = MemorySpace()


class MemoryStorage(Storage):
    """Objects below ``memory://<root>`` of this process."""

    def __init__(self, root: str = "", *, space: MemorySpace | None = None) -> None:
        self._root = root
        self._base = f"{root}/" if root else ""
        self._space = _PROCESS_SPACE if space is None else space

    def __reduce__(self) -> tuple[type[MemoryStorage], tuple[str]]:
        if self._space is not _PROCESS_SPACE:
            raise TypeError("a MemoryStorage with a private space cannot leave its process")
        return (MemoryStorage, (self._root,))

    @property
    def root_url(self) -> str:
        return f"memory://{self._root}"

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        return self._read(ReadRequest(key=key, start=start, end=end))

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        # Reads are planned as on remote storage, so that tests cover joined and cut ranges.
        plan = plan_reads(requests)
        return plan.assemble([self._read(read).data for read in plan.reads])

    def _read(self, read: ReadRequest) -> Fetched:
        found = self._found(read.key)
        if found is None:
            raise missing_object(read.key, self.root_url)
        check_unchanged(read, etag=found.version.etag, modified_at=found.last_modified.timestamp())
        if read.suffix is not None:
            data = found.data[-read.suffix :]
        else:
            data = found.data[read.start : read.end]
        check_length(read, len(data), self.root_url)
        count(1, read=len(data))
        return Fetched(data=data, version=found.version, last_modified=found.last_modified)

    def _found(self, key: str) -> _Object | None:
        path = self._base + check_key(key)
        return self._space.below(path).get(path)

    def head(self, key: str) -> ObjectInfo | None:
        found = self._found(key)
        count(1)
        return None if found is None else _info(key, found)

    def put(self, key: str, data: bytes, *, condition: Condition = None) -> ObjectVersion | None:
        path = self._base + check_key(key)
        with self._space.lock:
            objects = self._space.objects.setdefault(path.partition("/")[0], {})
            current = objects.get(path)
            match condition:
                case CreateOnly() if current is not None:
                    return None
                case ReplaceIfUnchanged(version=version) if (
                    current is None or current.version.etag != version.etag
                ):
                    return None
            version = ObjectVersion(etag=f"m{next(self._space.counter)}")
            count(1, written=len(data))
            objects[path] = _Object(bytes(data), version, datetime.now(UTC))
        return version

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        with self._space.lock:
            for key in keys:
                count(1)
                path = self._base + check_key(key)
                self._space.below(path).pop(path, None)
        return []

    def folders(self) -> Iterator[str]:
        keys = (info.key for info in self.list())
        yield from dict.fromkeys(key.partition("/")[0] for key in keys if "/" in key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        split_prefix(prefix)
        count(1)
        start = self._base + prefix
        with self._space.lock:
            names = [start.partition("/")[0]] if "/" in start else self._space.objects
            matching = sorted(
                item
                for name in names
                for item in self._space.below(name).items()
                if item[0].startswith(start)
            )
        for path, found in matching:
            yield _info(path[len(self._base) :], found)


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(
        key=key, size=len(found.data), version=found.version, last_modified=found.last_modified
    )
