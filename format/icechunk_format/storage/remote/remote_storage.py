"""Implements the verbs of a storage as requests to a server, for every client."""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from icechunk_format.errors import IcechunkError, StorageError
from icechunk_format.storage.address import Address
from icechunk_format.storage.batches import batches
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.measures import count
from icechunk_format.storage.options import StorageOptions
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
from icechunk_format.storage.ranges import (
    DEFAULT_MAX_GAP,
    check_length,
    check_unchanged,
    modified_error,
    plan_reads,
)
from icechunk_format.storage.remote.request_policy import (
    DEFAULT_RETRIES,
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    Server,
)

DEFAULT_CONCURRENCY: Final = 32
_DELETE_BATCH: Final = 1000
_LOST: Final = (FailureKind.CONDITION, FailureKind.MISSING)  # missing: the object was deleted


_log = logging.getLogger(__name__)


class RemoteStorage(Storage):
    """A storage on a server; arguments are those of ``Server``."""

    def __init__(
        self,
        address: Address,
        options: StorageOptions,
        *,
        classify: Callable[[Exception, Sequence[str]], Failure | None],
        secrets: Sequence[str],
        endpoint: str = "",
    ) -> None:
        self._server = Server(
            root_url=address.shown_url,
            kind=address.kind,
            endpoint=endpoint,
            classify=classify,
            secrets=tuple(secrets),
            backoff=Backoff(max_retries=options.number("max_retries", DEFAULT_RETRIES)),
        )
        self._max_gap = options.number("max_gap_bytes", DEFAULT_MAX_GAP)
        self._concurrency = options.number("concurrency", DEFAULT_CONCURRENCY)

    @property
    def root_url(self) -> str:
        return self._server.root_url

    @property
    def is_read_only(self) -> bool:
        return self._server.is_read_only

    def head(self, key: str) -> ObjectInfo | None:
        check_key(key)
        return self._server.request("inspect", key, lambda: self._look_at(key))

    @abstractmethod
    def _look_at(self, key: str) -> ObjectInfo | None:
        """Request size, version and time of an object."""

    def _existing(self, key: str) -> ObjectInfo:
        info = self.head(key)
        if info is None:
            raise missing_object(key, self.root_url)
        return info

    @abstractmethod
    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with a checked prefix."""

    def folders(self) -> Iterator[str]:
        self._server.refuse_listing()
        return self._folders()

    @abstractmethod
    def _folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the root."""

    # Last, because inside the class the name hides the type.
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._server.refuse_listing()
        split_prefix(prefix)
        return self._pages(prefix)


class BucketStorage(RemoteStorage):
    """Objects in a bucket of a server that compares versions itself; requests run in threads."""

    _prefix: str
    """Prefix of every key in the bucket: empty, or a path with a slash at its end."""
    _threads: PacedThreads
    _reads: PacedThreads
    """Threads for reads: as many as ``_threads``, more if reads are small and latency is high."""

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=check_key(key), start=start, end=end)
        if end is not None and end == (start or 0):
            # Clients cannot request an empty range.
            info = self._existing(key)
            return Fetched(data=b"", version=info.version, last_modified=info.last_modified)
        [fetched] = self._reads.map(self._read, [read])
        return fetched

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_reads(requests, max_gap=self._max_gap)
        fetched = self._reads.map(self._read, plan.reads, mean_bytes=plan.mean_bytes)
        return plan.assemble([one.data for one in fetched])

    def _read(self, read: ReadRequest) -> Fetched:
        began = time.monotonic()
        try:
            fetched = self._server.attempt(lambda: self._fetch(read))
        except RequestFailedError as error:
            raise self._read_error(read, error.failure) from None
        count(read=len(fetched.data))
        _note("read", read.key, len(fetched.data), began)
        # Plain web servers and some S3-compatible ones ignore the conditions.
        assert fetched.last_modified is not None
        modified_at = fetched.last_modified.timestamp()
        check_unchanged(read, etag=fetched.version.etag, modified_at=modified_at)
        check_length(read, len(fetched.data), self.root_url)
        return fetched

    def _read_error(self, read: ReadRequest, failure: Failure) -> IcechunkError:
        if failure.kind is FailureKind.CONDITION:
            return modified_error(read)
        if failure.kind is FailureKind.RANGE:
            # The range begins after the last byte: the error needs the size.
            info = self.head(read.key)
            found = max((info.size if info else 0) - (read.start or 0), 0)
            try:
                check_length(read, found, self.root_url)
            except StorageError as error:
                return error
        return self._server.error(failure, "read", read.key)

    @abstractmethod
    def _fetch(self, read: ReadRequest) -> Fetched:
        """Read a range in one request, under the conditions of the read."""

    # Writing

    def put(self, key: str, data: bytes, *, condition: Condition = None) -> ObjectVersion | None:
        check_key(key)
        self._server.refuse_writing(key)
        if condition is None:
            return self._overwrite(key, data)
        send = self._conditional_write(key, data, condition)
        if send is None:
            return None
        began = time.monotonic()
        written = self._server.request("write", key, send, none_for=_LOST, conditional=True)
        count(written=len(data))
        _note("wrote" if written is not None else "lost the race for", key, len(data), began)
        return written

    @abstractmethod
    def _conditional_write(
        self, key: str, data: bytes, condition: CreateOnly | ReplaceIfUnchanged
    ) -> Callable[[], ObjectVersion] | None:
        """Return a function that sends a conditional write exactly once; None if it would lose."""

    def _overwrite(self, key: str, data: bytes) -> ObjectVersion:
        began = time.monotonic()
        version = self._server.call("write", key, lambda: self._write(key, data))
        count(written=len(data))
        _note("wrote", key, len(data), began)
        return version

    @abstractmethod
    def _write(self, key: str, data: bytes) -> ObjectVersion:
        """Overwrite an object; large ones are sent in parts."""

    def put_many(self, items: Iterable[tuple[str, bytes]]) -> list[ObjectVersion]:
        self._server.refuse_writing()
        return self._threads.map(lambda item: self._overwrite(*item), items)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        self._server.refuse_writing()
        wanted = batches([check_key(key) for key in keys], _DELETE_BATCH)
        return [failure for batch in self._threads.map(self._delete, wanted) for failure in batch]

    @abstractmethod
    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """Delete at most a thousand objects."""


def _note(what: str, key: str, size: int, began: float) -> None:
    """Log a request: key, bytes, and milliseconds including retries."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s %s: %d bytes in %.0f ms", what, key, size, 1000 * (time.monotonic() - began))
