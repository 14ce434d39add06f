"""Stores objects on S3, Google, Azure and HTTP servers, through obstore.

Rules of this file
------------------
1. obstore's calls block without holding Python's lock, so concurrency is plain threads.
2. obstore repeats failed requests itself; conditional writes use a client that never does (see
   ``clients.py``).
3. obstore has one runtime per process that does not survive a fork: :func:`claim_runtime` tells
   whether this process may use it. A child of a process that used it needs another client.
4. Entity tags have no quotes outside of this file; requests add them again.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import obstore
import obstore.exceptions

from icechunk_format.errors import UnsupportedError
from icechunk_format.storage.address import Address
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.options import StorageOptions
from icechunk_format.storage.protocol import (
    OVERWRITE,
    Condition,
    CreateOnly,
    DeleteFailure,
    Fetched,
    Lost,
    ObjectInfo,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
    Written,
    check_key,
    split_prefix,
)
from icechunk_format.storage.ranges import (
    DEFAULT_MAX_GAP,
    check_length,
    check_unchanged,
    plan_reads,
    quoted,
)
from icechunk_format.storage.remote.obstore.answers import classify, update_mode, version_of
from icechunk_format.storage.remote.obstore.clients import ObstoreClients, make_clients
from icechunk_format.storage.remote.request_policy import RemoteStorage, Server
from icechunk_format.storage.remote.retry import (
    DEFAULT_RETRIES,
    Backoff,
    FailureKind,
    RequestFailedError,
)

T = TypeVar("T")

DEFAULT_CONCURRENCY: Final = 32
_MOST_CONCURRENCY: Final = 256
_DELETE_BATCH: Final = 1000
_LIST_PAGE: Final = 1000
_BELOW_A_SECOND: Final = timedelta(microseconds=999_999)
_PART_SIZE: Final = 16 * 2**20
# obstore repeats requests itself, but not those whose body broke off halfway.
_ONCE_MORE: Final = Backoff(max_retries=1, give_up_after=60.0)

_WHOLE_BATCH: Final = (
    FailureKind.UNREACHABLE,
    FailureKind.MISSING_BUCKET,
    FailureKind.DENIED,
    FailureKind.THROTTLED,  # halves of the batch would only be more requests
)

_runtime_owner: int | None = None


def claim_runtime() -> bool:
    """Claim obstore for this process; false if its parent used obstore before the fork."""
    global _runtime_owner
    if _runtime_owner is None:
        _runtime_owner = os.getpid()
    return _runtime_owner == os.getpid()


def open_obstore(address: Address, options: StorageOptions) -> ObjectStoreStorage:
    """Return the storage of a location; its server is contacted once.

    Raises
    ------
    InvalidInputError
        The options do not fit together.
    StorageError
        Nobody answers at the endpoint, or there are no credentials.
    """
    return ObjectStoreStorage(
        make_clients(address, options),
        root_url=address.shown_url,
        max_retries=options.number("max_retries", DEFAULT_RETRIES),
        # An HTTP client has the path in its URL.
        prefix="" if address.kind == "http" else address.root_prefix,
        kind=address.kind,
        # S3's directory buckets list in no order, and refuse to start in the middle.
        lists_in_order=address.kind in ("s3", "gs") and not address.bucket.endswith("--x-s3"),
        concurrency=options.number("concurrency", 0) or None,
        max_gap=options.number("max_gap_bytes", DEFAULT_MAX_GAP),
    )


class ObjectStoreStorage(RemoteStorage):
    """Objects below a root of a bucket or an HTTP folder.

    Parameters
    ----------
    clients
        Clients of the bucket.
    root_url
        The root, for messages.
    prefix
        Prefix of every key in the bucket: empty, or a path with a slash at its end.
    lists_in_order
        Whether the store lists keys in the order of their bytes, and from any key on.
    kind
        Kind of URL (``"s3"``, ``"gs"``, ``"az"``, ``"http"``, ``"memory"``), for hints and limits.
    concurrency
        Requests in flight at once. None for 32, and for up to 256 small reads where latency is
        high.
    max_gap
        Largest gap in bytes between two ranges that are read as one.
    max_retries
        Repetitions of a throttled conditional write.
    """

    def __init__(
        self,
        clients: ObstoreClients,
        *,
        root_url: str,
        prefix: str,
        kind: str,
        lists_in_order: bool = False,
        concurrency: int | None = None,
        max_gap: int = DEFAULT_MAX_GAP,
        max_retries: int = DEFAULT_RETRIES,
    ) -> None:
        self._clients = clients
        self._server = Server(
            root_url=root_url,
            kind=kind,
            endpoint=clients.server,
            classify=classify,
            secrets=clients.secrets,
            backoff=_ONCE_MORE,
            conditional_backoff=Backoff(max_retries=max_retries),
        )
        self._prefix = prefix
        self._lists_in_order = lists_in_order
        self._max_gap = max_gap
        self._threads = PacedThreads(concurrency or DEFAULT_CONCURRENCY)
        self._paced = PacedThreads(
            concurrency or DEFAULT_CONCURRENCY, concurrency or _MOST_CONCURRENCY
        )

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=check_key(key), start=start, end=end)
        if end is not None and end == (start or 0):
            return self._no_bytes_of(key)
        [(data, meta)] = self._paced.map(self._read, [read], mean_bytes=math.inf)
        return Fetched(data=data, version=version_of(meta), last_modified=meta["last_modified"])

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_reads(requests, max_gap=self._max_gap)
        answers = self._paced.map(
            lambda read: self._read(read)[0], plan.reads, mean_bytes=plan.mean_bytes
        )
        return plan.assemble(answers)

    def _read(self, read: ReadRequest) -> tuple[bytes, Any]:
        options: dict[str, Any] = {}
        if read.suffix is not None:
            options["range"] = {"suffix": read.suffix}
        elif read.end is not None:
            options["range"] = (read.start or 0, read.end)
        elif read.start:
            options["range"] = {"offset": read.start}
        if read.if_match is not None:
            options["if_match"] = quoted(read.if_match)
        if read.if_unmodified_since is not None:
            # Servers compare whole seconds; obstore's memory store compares microseconds.
            options["if_unmodified_since"] = datetime.fromtimestamp(
                read.if_unmodified_since, UTC
            ) + (_BELOW_A_SECOND if self._server.kind == "memory" else timedelta())

        def fetch() -> tuple[bytes, Any]:
            result = obstore.get(
                self._clients.patient,
                self._prefix + read.key,
                options=options or None,  # type: ignore[arg-type]
            )
            return result.bytes().to_bytes(), result.meta

        try:
            data, meta = self._server.read(read, fetch, self.head)
        except UnsupportedError:
            if read.suffix is None:
                raise
            return self._read_without_suffix(read)
        # Plain web servers and some S3-compatible ones ignore the conditions.
        check_unchanged(read, etag=meta["e_tag"], modified_at=meta["last_modified"].timestamp())
        check_length(read, len(data), self.root_url)
        return data, meta

    def _read_without_suffix(self, read: ReadRequest) -> tuple[bytes, Any]:
        """Read a suffix as a range, for stores without suffix requests (Azure)."""
        info, length = self._existing(read.key), read.suffix or 0
        check_length(read, min(info.size, length), self.root_url)
        return self._read(
            ReadRequest(
                key=read.key,
                start=info.size - length,
                end=info.size,
                if_match=read.if_match,
                if_unmodified_since=read.if_unmodified_since,
            )
        )

    def head(self, key: str) -> ObjectInfo | None:
        path = self._prefix + check_key(key)
        meta = self._server.head(key, lambda: obstore.head(self._clients.patient, path))
        return None if meta is None else self._info(meta)

    # Writing

    def put(self, key: str, data: bytes, *, condition: Condition = OVERWRITE) -> Written | Lost:
        path = self._prefix + check_key(key)
        self._server.refuse_writing(key)
        match condition:
            case CreateOnly():
                mode: Any = "create"
            case ReplaceIfUnchanged(version=version):
                current = self._with_generation(key, version)
                if current is None:
                    return Lost()
                mode = update_mode(current)
            case _:
                return Written(version=self._overwrite(key, data))

        def send() -> Any:
            return obstore.put(self._clients.once, path, data, mode=mode, use_multipart=False)

        result = self._server.write_conditionally(key, send)
        return Lost() if result is None else Written(version=version_of(result))

    def _with_generation(self, key: str, version: ObjectVersion) -> ObjectVersion | None:
        """Add the generation that Google's conditions need; None if the version is outdated."""
        if self._server.kind != "gs" or version.generation is not None:
            return version
        found = self.head(key)
        return None if found is None or found.version.etag != version.etag else found.version

    def _overwrite(self, key: str, data: bytes) -> ObjectVersion:
        path = self._prefix + check_key(key)
        result = self._server.call(
            "write",
            key,
            lambda: obstore.put(
                self._clients.patient,
                path,
                data,
                use_multipart=len(data) > 2 * _PART_SIZE,
                chunk_size=_PART_SIZE,
            ),
        )
        return version_of(result)

    def put_many(self, items: Iterable[tuple[str, bytes]]) -> list[ObjectVersion]:
        self._server.refuse_writing()
        return self._threads.map(lambda item: self._overwrite(*item), items)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        self._server.refuse_writing()
        wanted = [check_key(key) for key in keys]
        batches = [wanted[i : i + _DELETE_BATCH] for i in range(0, len(wanted), _DELETE_BATCH)]
        return [failure for batch in self._threads.map(self._delete, batches) for failure in batch]

    def _delete(self, keys: list[str]) -> list[DeleteFailure]:
        try:
            self._server.attempt(
                lambda: obstore.delete(self._clients.patient, [self._prefix + k for k in keys])
            )
        except RequestFailedError as error:
            if error.failure.kind is FailureKind.MISSING and len(keys) == 1:
                return []
            if error.failure.kind in _WHOLE_BATCH:
                raise self._server.error(error.failure, "delete from", "") from None
            if len(keys) == 1:
                return [DeleteFailure(key=keys[0], reason=error.failure.reason)]
            # The error of a batch does not name the object, and some stores fail for missing ones:
            # halving the batch finds them in few requests.
            middle = len(keys) // 2
            return self._delete(keys[:middle]) + self._delete(keys[middle:])
        return []

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> Written | Lost:
        paths = self._prefix + check_key(source), self._prefix + check_key(target)
        self._server.refuse_writing(target)
        if source_version is not None:
            # obstore's copy has no condition on the source: fetch, compare, write.
            return super().copy(source, target, source_version=source_version)
        action = f"copy to {target!r} the"
        self._server.call(action, source, lambda: obstore.copy(self._clients.patient, *paths))
        return Written(version=self._existing(target).version)

    def _info(self, meta: Any) -> ObjectInfo:
        return ObjectInfo(
            key=meta["path"].removeprefix(self._prefix),
            size=meta["size"],
            version=version_of(meta),
            last_modified=meta["last_modified"],
        )

    # Listing; last, because inside the class the name hides the type.

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._server.refuse_listing()
        folder, rest = split_prefix(prefix)
        return self._pages(folder, prefix if rest else "")

    def _pages(self, folder: str, start: str) -> Iterator[ObjectInfo]:
        # obstore lists whole path segments, so a prefix within a segment is compared here. Where
        # keys come in order, the listing begins shortly before the prefix and ends behind it: many
        # processes can then share a folder of millions of objects by prefixes.
        offset = _shortly_before(start) if self._lists_in_order else None
        behind = None if offset is None else self._prefix + offset
        stream: Any = None

        def next_page() -> Any:
            nonlocal stream
            if stream is None:
                stream = obstore.list(
                    self._clients.patient,
                    (self._prefix + folder).strip("/") or None,
                    offset=behind,
                    chunk_size=_LIST_PAGE,
                )
            try:
                return next(stream, None)
            except Exception:
                # A stream that has failed says that it is at its end when it is asked again.
                stream = None
                raise

        server = self._server
        while True:
            page = server.call("list", "", next_page)
            if page is None:
                return
            if self._lists_in_order:
                behind = page[-1]["path"]
            else:
                # Nothing says where to go on, so a failure is an error from here on.
                server = replace(self._server, backoff=Backoff(max_retries=0))
            for meta in page:
                info = self._info(meta)
                if info.key.startswith(start):
                    yield info
                elif self._lists_in_order and info.key > start:
                    return


def _shortly_before(start: str) -> str | None:
    """Return an offset shortly before all keys that begin with a prefix; None if there is none.

    A listing begins behind its offset. The prefix may be a key itself, so it cannot be the offset.
    """
    if not start or start[-1] < "!" or start[-1] > "~" or start[-1] == "0":
        return None
    return start[:-1] + chr(ord(start[-1]) - 1) + "zzz"
