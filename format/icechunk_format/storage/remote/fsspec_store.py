"""Stores objects on any file system that fsspec opens.

Rules of this file
------------------
1. Only methods that all fsspec file systems support are used: whole or ranged reads, ``pipe_file``,
   ``info``, ``walk``, ``rm_file``.
2. No fsspec file system replaces an object conditionally, so conditional writes are refused, except
   in fsspec's memory file system (one process, one lock) and with ``single_writer=true``, where
   the version is compared before writing. For S3 see ``s3_store.py``.
3. A write is as atomic as the file system's ``pipe_file``; local files are staged and moved.
4. Any exception of a file system becomes a typed error, since their types are not documented.
5. Options become those of each implementation; unknown kinds of URL get them as given.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import errno
import hashlib
import json
import secrets as random_secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import Address
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
    check_key,
)
from icechunk_format.storage.ranges import check_length, check_unchanged, plan_reads, unquoted
from icechunk_format.storage.remote.internal_hosts import guarded_client
from icechunk_format.storage.remote.remote_storage import RemoteStorage
from icechunk_format.storage.remote.request_policy import (
    Failure,
    FailureKind,
    RequestFailedError,
    failure_of_status,
    safe_reason,
)

_STAGED: Final = ".storage-staged-"
_PLAIN_IN_URLS: Final = "/:@!$&'()*+,;="
_TRIES_FOR_ONE_STATE: Final = 5
_conditional_lock = threading.Lock()


class FsspecStorage(RemoteStorage):
    """Objects below a URL, through the fsspec implementation of its scheme."""

    def __init__(self, address: Address, options: StorageOptions) -> None:
        secrets = [value for value in options.values() if len(value) >= 4]
        super().__init__(address, options, classify=classify, secrets=secrets)
        self._files, root = _open_file_system(address, options, secrets)
        self._root = root.rstrip("/")
        protocols = self._files.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        self._is_local = bool(names & {"file", "local"})
        self._is_web = address.kind == "http"
        self._can_compare = options.flag("single_writer") or "memory" in names

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{quote(key, safe=_PLAIN_IN_URLS) if self._is_web else key}"

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=key, start=start, end=end)
        path = self._path(key)
        data = b""
        for _ in range(_TRIES_FOR_ONE_STATE):
            before = self._info("read", key)
            data = self._server.call("read", key, lambda: self._files.cat_file(path, start, end))
            after = self._info("read", key)
            if _etag(before) == _etag(after):
                break
        check_length(read, len(data), self.root_url)
        count(read=len(data))
        whole = start is None and end is None
        return Fetched(
            data=bytes(data),
            version=_version(after, data if whole else None),
            last_modified=_modified(after),
        )

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_reads(requests, max_gap=self._max_gap)
        known: dict[str, Mapping[str, Any]] = {}
        for read in plan.reads:
            if read.if_match is None and read.if_unmodified_since is None:
                continue
            info = known.get(read.key) or self._info("read", read.key)
            known[read.key] = info
            check_unchanged(read, etag=_etag(info), modified_at=_modified(info).timestamp())
        ranges = [
            (-read.suffix, None) if read.suffix is not None else (read.start, read.end)
            for read in plan.reads
        ]
        if not plan.reads:
            return plan.assemble([])
        count(len(plan.reads) - 1)  # the call below counts as one
        responses = self._server.call(
            "read",
            plan.reads[0].key,
            lambda: self._files.cat_ranges(
                [self._path(read.key) for read in plan.reads],
                [first for first, _ in ranges],
                [last for _, last in ranges],
                batch_size=self._concurrency,
                on_error="return",
            ),
        )
        pairs = zip(plan.reads, responses, strict=True)
        return plan.assemble([self._response(*pair) for pair in pairs])

    def _response(self, read: ReadRequest, response: Any) -> bytes:
        """Return the bytes of one response of a batch; retry a failed read separately."""
        if isinstance(response, BaseException):
            path = self._path(read.key)
            first = -read.suffix if read.suffix is not None else read.start
            response = self._server.call(
                "read", read.key, lambda: self._files.cat_file(path, first, read.end)
            )
        data = bytes(response)
        check_length(read, len(data), self.root_url)
        count(read=len(data))
        return data

    def _info(self, action: str, key: str) -> Mapping[str, Any]:
        path = self._path(key)
        info: Mapping[str, Any] = self._server.call(action, key, lambda: self._files.info(path))
        return info

    def _look_at(self, key: str) -> ObjectInfo | None:
        info = self._files.info(self._path(key))
        return _object_info(key, info) if info["type"] == "file" else None

    # Writing

    def put(self, key: str, data: bytes, *, condition: Condition = None) -> ObjectVersion | None:
        path = self._path(key)
        self._server.refuse_writing(key)
        if condition is None:
            return self._write(key, path, data)
        if not self._can_compare:
            raise UnsupportedError(
                f"object {key!r} below {self.root_url} cannot be written conditionally through "
                "fsspec, so two writers could overwrite one another; use a local path, s3://, "
                "gs:// or az:// with storage.client=auto, or set storage.single_writer=true if "
                "only one process ever writes",
                key=key,
            )
        with _conditional_lock:
            if not self._holds(key, condition):
                return None
            return self._write(key, path, data)

    def _holds(self, key: str, condition: CreateOnly | ReplaceIfUnchanged) -> bool:
        current = self.head(key)
        if isinstance(condition, CreateOnly) or current is None:
            return isinstance(condition, CreateOnly) and current is None
        expected = condition.version
        if current.version.etag != expected.etag:
            return False
        # Modification times are coarse, so the content is also compared if its digest is known.
        return expected.generation is None or self.get(key).version.generation == (
            expected.generation
        )

    def _write(self, key: str, path: str, data: bytes) -> ObjectVersion:
        def write() -> None:
            if not self._is_local:
                self._files.pipe_file(path, data)
                return
            folder = path.rpartition("/")[0]
            staged = f"{folder}/{_STAGED}{random_secrets.token_hex(8)}"
            self._files.pipe_file(staged, data)
            self._files.mv(staged, path)

        self._server.call("write", key, write)
        count(written=len(data))
        return _version(self._info("write", key), data)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        self._server.refuse_writing()
        failures: list[DeleteFailure] = []
        for key in keys:
            path = self._path(key)
            try:
                self._server.attempt(lambda p=path: self._files.rm_file(p))  # type: ignore[misc]
            except RequestFailedError as error:
                if error.failure.kind is not FailureKind.MISSING:
                    failures.append(DeleteFailure(key=key, reason=error.failure.reason))
        return failures

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        self._files.invalidate_cache()
        base = f"{self._root}/".lstrip("/")
        waiting = [f"{self._root}/{prefix.rpartition('/')[0]}".rstrip("/")]
        while waiting:
            path = waiting.pop()
            # Folder by folder, since fsspec's ``walk`` cannot continue after a failure.
            listing = partial(self._files.ls, path, detail=True)
            found = self._server.request("list", "", listing)
            if found is None:
                continue
            for info in found:
                name = str(info["name"])
                key = name.lstrip("/").removeprefix(base)
                if info["type"] == "directory":
                    if name.strip("/") != path.strip("/"):
                        waiting.append(name)
                elif key.startswith(prefix) and not key.rpartition("/")[2].startswith(_STAGED):
                    yield _object_info(key, info)

    def _folders(self) -> Iterator[str]:
        self._files.invalidate_cache()
        listing = partial(self._files.ls, self._root or "/", detail=True)
        for info in self._server.request("list", "", listing) or ():
            path = str(info["name"]).strip("/")
            if info["type"] == "directory" and path != self._root.strip("/"):
                yield path.rpartition("/")[2]


_BROKEN_ERRNOS: Final = (
    errno.EIO,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EAGAIN,
    errno.EBUSY,
)


def classify(error: Exception, secrets: Sequence[str]) -> Failure:
    """Return the failure for an exception of a file system; unknown ones count as refused."""
    for seen in (error, error.__cause__):
        # fsspec's HTTP raises FileNotFoundError for every status; its cause has the status.
        status = getattr(seen, "status", None)
        if isinstance(status, int) and 300 <= status < 600:
            return failure_of_status(status)
    reason = safe_reason(f"{type(error).__name__}: {error}", secrets)
    kind = FailureKind.REFUSED
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        kind = FailureKind.MISSING
    elif isinstance(error, PermissionError):
        kind = FailureKind.DENIED
    elif isinstance(error, ConnectionRefusedError) or type(error).__name__ in (
        "ClientConnectorError",
        "ClientConnectorDNSError",
    ):
        kind = FailureKind.UNREACHABLE
    elif (
        isinstance(error, (TimeoutError, ConnectionError))
        or (isinstance(error, OSError) and error.errno in _BROKEN_ERRNOS)
        or type(error).__name__
        in ("FSTimeoutError", "ServerDisconnectedError", "ClientPayloadError")
    ):
        kind = FailureKind.BROKEN
    return Failure(kind=kind, reason=reason)


_ETAG_FIELDS: Final = ("ETag", "etag", "generation", "md5Hash", "content_md5", "checksum")
_TIME_FIELDS: Final = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


def _etag(info: Mapping[str, Any]) -> str:
    for field in _ETAG_FIELDS:
        if info.get(field):
            return unquoted(str(info[field]))
    return f"{_modified(info).timestamp():.9f}-{info.get('size')}-{info.get('ino', '')}"


def _modified(info: Mapping[str, Any]) -> datetime:
    """Return the modification time of an object; 1970 if the file system has none."""
    for field in _TIME_FIELDS:
        value = info.get(field)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return datetime.fromtimestamp(0, UTC)


def _version(info: Mapping[str, Any], content: bytes | None = None) -> ObjectVersion:
    digest = None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()
    return ObjectVersion(etag=_etag(info), generation=digest)


def _object_info(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=int(info.get("size") or 0),
        version=_version(info),
        last_modified=_modified(info),
    )


# -- opening file systems -----------------------------------------------------------------------

_OURS: Final = ("concurrency", "max_gap_bytes", "max_retries", "single_writer")
_OBSTORE_ONLY: Final = ("timeout", "allow_http", "allow_invalid_certificates", "endpoint_url")


def _open_file_system(
    address: Address, options: StorageOptions, secrets: Sequence[str]
) -> tuple[Any, str]:
    """Return a file system without a listings cache, and the path of the root in it."""
    # Imported here because it takes a quarter of a second, and most locations do not need it.
    import fsspec.core

    arguments = _arguments(address, options)
    url = f"file://{address.path}" if address.kind == "local" else address.url
    try:
        file_system, path = fsspec.core.url_to_fs(
            url, skip_instance_cache=address.kind != "memory", use_listings_cache=False, **arguments
        )
    except ImportError as error:
        raise UnsupportedError(
            f"{address.shown_url} needs a package that is not installed: "
            f"{safe_reason(str(error), secrets)}"
        ) from None
    except Exception as error:
        # File systems raise anything; the error must not show the value of an option.
        reason = safe_reason(f"{type(error).__name__}: {error}", secrets)
        raise UnsupportedError(
            f"fsspec cannot open {address.shown_url}: {reason}; check the URL and the options"
        ) from None
    return file_system, str(path)


def _arguments(address: Address, options: StorageOptions) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if name not in _OURS}
    if address.kind == "http":
        return {"get_client": guarded_client(address.url)}
    if address.kind == "gs":
        token = "anon" if options.flag("anon") else given.get("token")
        parsed: Any = token
        if token and token.lstrip().startswith("{"):
            try:
                parsed = json.loads(token)
            except ValueError:
                raise InvalidInputError(
                    "storage.token begins like JSON but is not; give the text of the service "
                    "account's key, or its path",
                    option="token",
                ) from None
        names = {name: given.get(name) for name in ("project", "endpoint_url")}
        return {name: value for name, value in {"token": parsed, **names}.items() if value}
    if address.kind == "az":
        if address.account is not None:
            given.setdefault("account_name", address.account)
        given = {name: value for name, value in given.items() if name not in _OBSTORE_ONLY}
        for name in given.keys() & {"token", "authority_host"}:
            message = f"storage.{name} of {address.shown_url} needs storage.client=obstore"
            raise InvalidInputError(message, option=name)
        return {**given, "anon": options.flag("anon")}
    if address.kind == "local":
        return {"auto_mkdir": True}
    return {name: _typed(name, value) for name, value in given.items()}


_NEVER_NUMBERS: Final = ("password", "passphrase", "secret", "token", "key", "user")


def _typed(name: str, value: str) -> Any:
    """Return an option for an unknown file system: JSON if it is JSON, else a string.

    Passwords and similar options are strings even if they consist of digits.
    """
    if any(word in name.lower() for word in _NEVER_NUMBERS):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
