"""Stores objects on S3, Google, Azure and HTTP servers, through obstore.

Rules of this file
------------------
1. obstore's calls block without holding Python's lock, so concurrency is plain threads.
2. obstore sends requests once, and ``request_policy.py`` retries them. Only uploads in parts and
   listings without an order use the client that retries by itself (see ``clients.py``).
3. obstore's runtime does not survive a fork: a child of a process that used obstore needs another
   client (:func:`claim_runtime`).
4. Entity tags have no quotes outside of this file; requests add quotes.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import obstore
import obstore.exceptions

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import Address
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.options import StorageOptions
from icechunk_format.storage.protocol import (
    CreateOnly,
    DeleteFailure,
    Fetched,
    ObjectInfo,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
)
from icechunk_format.storage.ranges import check_length, quoted, unquoted
from icechunk_format.storage.remote.obstore.clients import make_clients
from icechunk_format.storage.remote.remote_storage import BucketStorage
from icechunk_format.storage.remote.request_policy import (
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    failure_of_code,
    failure_of_status,
    safe_reason,
)

_MOST_CONCURRENCY: Final = 256
_LIST_PAGE: Final = 1000
_BELOW_A_SECOND: Final = timedelta(microseconds=999_999)
_PART_SIZE: Final = 16 * 2**20

_WHOLE_BATCH: Final = (
    FailureKind.UNREACHABLE,
    FailureKind.MISSING_BUCKET,
    FailureKind.DENIED,
    FailureKind.THROTTLED,  # halves of the batch would only be more requests
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>|\"code\": ?\"(\w{1,64})\"")

_STATUS_OF_KIND: Final = {
    FileNotFoundError: 404,
    obstore.exceptions.PermissionDeniedError: 403,
    obstore.exceptions.UnauthenticatedError: 401,
    obstore.exceptions.AlreadyExistsError: 412,
    obstore.exceptions.PreconditionError: 412,
}

_runtime_owner: int | None = None


def claim_runtime() -> bool:
    """Return True if this process can use obstore, False if a parent used it before the fork."""
    global _runtime_owner
    if _runtime_owner is None:
        _runtime_owner = os.getpid()
    return _runtime_owner == os.getpid()


class ObjectStoreStorage(BucketStorage):
    """Objects below a root of a bucket or an HTTP folder; its server is contacted once."""

    def __init__(self, address: Address, options: StorageOptions) -> None:
        clients = make_clients(address, options)
        super().__init__(
            address,
            options,
            classify=classify,
            secrets=clients.secrets,
            endpoint=clients.server,
        )
        self._patient, self._once = clients.patient, clients.once
        # An HTTP client has the path in its URL.
        self._prefix = "" if address.kind == "http" else address.root_prefix
        # Directory buckets of S3 list in no order and do not support offsets.
        is_directory = address.bucket.endswith("--x-s3")
        self._lists_in_order = address.kind in ("s3", "gs") and not is_directory
        self._threads = PacedThreads(self._concurrency)
        most = self._concurrency if "concurrency" in options else _MOST_CONCURRENCY
        self._reads = PacedThreads(self._concurrency, most)

    # Reading

    def _read(self, read: ReadRequest) -> Fetched:
        try:
            return super()._read(read)
        except UnsupportedError:
            if read.suffix is None:
                raise
        # The server does not support suffix requests (Azure).
        size = self._existing(read.key).size
        check_length(read, min(size, read.suffix), self.root_url)
        return super()._read(replace(read, suffix=None, start=size - read.suffix, end=size))

    def _fetch(self, read: ReadRequest) -> Fetched:
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
        result = obstore.get(
            self._once,
            self._path(read.key),
            options=options or None,  # type: ignore[arg-type]
        )
        return Fetched(
            data=result.bytes().to_bytes(),
            version=version_of(result.meta),
            last_modified=result.meta["last_modified"],
        )

    def _look_at(self, key: str) -> ObjectInfo:
        return self._info(obstore.head(self._once, self._path(key)))

    # Writing

    def _conditional_write(
        self, key: str, data: bytes, condition: CreateOnly | ReplaceIfUnchanged
    ) -> Callable[[], ObjectVersion] | None:
        mode: Any = "create"
        if isinstance(condition, ReplaceIfUnchanged):
            current = self._with_generation(key, condition.version)
            if current is None:
                return None
            mode = update_mode(current)
        return lambda: version_of(
            obstore.put(self._once, self._path(key), data, mode=mode, use_multipart=False)
        )

    def _with_generation(self, key: str, version: ObjectVersion) -> ObjectVersion | None:
        """Add the generation that GCS requires for conditions; None if the version is outdated."""
        if self._server.kind != "gs" or version.generation is not None:
            return version
        found = self.head(key)
        return None if found is None or found.version.etag != version.etag else found.version

    def _write(self, key: str, data: bytes) -> ObjectVersion:
        in_parts = len(data) > 2 * _PART_SIZE
        return version_of(
            obstore.put(
                self._patient if in_parts else self._once,
                self._path(key),
                data,
                use_multipart=in_parts,
                chunk_size=_PART_SIZE,
            )
        )

    def _delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        paths = [self._path(key) for key in keys]
        try:
            self._server.attempt(lambda: obstore.delete(self._once, paths), weight=len(keys))
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
    ) -> ObjectVersion | None:
        paths = self._path(source), self._path(target)
        self._server.refuse_writing(target)
        if source_version is not None:
            # obstore's copy has no condition on the source: fetch, compare, write.
            return super().copy(source, target, source_version=source_version)
        action = f"copy to {target!r} the"
        self._server.call(action, source, lambda: obstore.copy(self._once, *paths))
        return self._existing(target).version

    def _info(self, meta: Any) -> ObjectInfo:
        return ObjectInfo(
            key=meta["path"].removeprefix(self._prefix),
            size=meta["size"],
            version=version_of(meta),
            last_modified=meta["last_modified"],
        )

    # Listing

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, rest = prefix.rpartition("/")
        start = prefix if rest else ""
        # obstore lists whole path segments, so a prefix within a segment is compared here. If keys
        # are ordered, the listing begins shortly before the prefix and ends after it: many
        # processes can then share a folder of millions of objects by prefixes.
        offset = _shortly_before(start) if self._lists_in_order else None
        behind = None if offset is None else self._prefix + offset
        stream: Any = None

        def next_page() -> Any:
            nonlocal stream
            if stream is None:
                stream = obstore.list(
                    self._once if self._lists_in_order else self._patient,
                    (self._prefix + folder).strip("/") or None,
                    offset=behind,
                    chunk_size=_LIST_PAGE,
                )
            try:
                return next(stream, None)
            except Exception:
                # A failed stream reports its end at the next call.
                stream = None
                raise

        # The client of a listing without an order retries by itself, but not after a broken body.
        retries = self._server.backoff if self._lists_in_order else Backoff(max_retries=1)
        server = replace(self._server, backoff=retries)
        while True:
            page = server.call("list", "", next_page)
            if page is None:
                return
            if self._lists_in_order:
                behind = page[-1]["path"]
            else:
                # A listing cannot be resumed, so from here on a failure is an error.
                server = replace(self._server, backoff=Backoff(max_retries=0))
            for meta in page:
                info = self._info(meta)
                if info.key.startswith(start):
                    yield info
                elif self._lists_in_order and info.key > start:
                    return

    def _folders(self) -> Iterator[str]:
        prefix = self._prefix.strip("/") or None
        found = self._server.call(
            "list", "", lambda: obstore.list_with_delimiter(self._once, prefix)
        )
        for folder in found["common_prefixes"]:
            yield folder.removeprefix(self._prefix).strip("/")


def _shortly_before(start: str) -> str | None:
    """Return an offset shortly before all keys that begin with a prefix; None if impossible.

    A listing begins after its offset. The prefix may be a key, so it cannot be the offset.
    """
    if not start or start[-1] < "!" or start[-1] > "~" or start[-1] == "0":
        return None
    return start[:-1] + chr(ord(start[-1]) - 1) + "zzz"


def classify(error: Exception, secrets: Sequence[str]) -> Failure | None:
    """Return the failure for an exception of obstore.

    The class of the exception is checked first. Others have only a message, which may contain the
    HTTP status and error code; without both, the failure is ``BROKEN``, and a write may be stored.
    """
    string = str(error)
    if isinstance(error, obstore.exceptions.NotSupportedError):
        raise UnsupportedError(
            f"this store cannot do that: {safe_reason(string, secrets)}"
        ) from None
    if isinstance(error, (obstore.exceptions.InvalidPathError, ValueError)):
        raise InvalidInputError(
            f"the object store cannot hold this key: {safe_reason(string, secrets)}"
        ) from None
    status = _STATUS.search(string)
    found = _CODE.search(string)
    code = (found.group(1) or found.group(2)) if found else ""
    for kind, meaning in _STATUS_OF_KIND.items():
        if isinstance(error, kind):
            return failure_of_status(meaning, code)
    if not isinstance(error, (obstore.exceptions.BaseError, OSError)):
        return None
    if status is not None:
        return failure_of_status(int(status.group(1)), code)
    if code:
        return failure_of_code(code)
    summary, _, details = string.partition("Debug source")
    reason = safe_reason(summary, secrets)
    if "StartTooLarge" in details:
        return Failure(kind=FailureKind.RANGE, reason=reason)
    if "kind: Connect" in details:
        return Failure(kind=FailureKind.UNREACHABLE, reason=f"no connection ({reason})")
    return Failure(kind=FailureKind.BROKEN, reason=reason)


def version_of(meta: Any) -> ObjectVersion:
    """Return the version in a response, without the quotes of its entity tag."""
    etag = meta["e_tag"]
    return ObjectVersion(
        etag=None if etag is None else unquoted(etag), generation=meta.get("version")
    )


def update_mode(version: ObjectVersion) -> dict[str, str]:
    """Return obstore's ``mode`` argument for replacing an object only if it has this version."""
    mode = {} if version.etag is None else {"e_tag": quoted(version.etag)}
    return mode if version.generation is None else {**mode, "version": version.generation}
