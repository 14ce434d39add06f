"""Objects on S3 through s3fs, with conditional writes.

Rules of this file
------------------
1. s3fs brings session, credentials and event loop; the requests are its ``call_s3``, because its
   file verbs know no conditions and hold listings in memory.
2. botocore and s3fs are told not to repeat anything: what may be repeated is decided in
   ``retry.py``.
3. Conditional writes do not go through s3fs at all, because aiohttp beneath it repeats requests
   on its own; see :func:`icechunk_format.storage.remote.s3_credentials.client_that_sends_once`.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from icechunk_format.storage.concurrency import PerProcess, WorkerThreads
from icechunk_format.storage.protocol import (
    NO_ATTRIBUTES,
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
    missing_object,
    split_prefix,
)
from icechunk_format.storage.ranges import (
    DEFAULT_MAX_GAP,
    check_length,
    check_unchanged,
    plan_reads,
    quoted,
    unquoted,
)
from icechunk_format.storage.remote import fsspec_store
from icechunk_format.storage.remote.endpoint import check_reachable, server_url
from icechunk_format.storage.remote.request_policy import Server
from icechunk_format.storage.remote.retry import (
    DEFAULT_RETRIES,
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    failure_of_status,
    safe_reason,
)
from icechunk_format.storage.remote.s3_credentials import (
    CONNECT_SECONDS,
    S3Settings,
    client_that_sends_once,
    s3_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from icechunk_format.storage.address import Address
    from icechunk_format.storage.options import StorageOptions

T = TypeVar("T")

_DEFAULT_CONCURRENCY: Final = 32
_DELETE_BATCH: Final = 1000
_MULTIPART_FROM: Final = 256 * 2**20


def open_s3fs(address: Address, options: StorageOptions) -> S3fsStorage:
    """Return the storage of an S3 location; its server is contacted once.

    Raises
    ------
    InvalidInputError
        The options do not fit together.
    StorageError
        Nobody answers at the endpoint, or there are no credentials.
    """
    # Imported here because it takes a second, and most locations do without it.
    import s3fs

    settings = s3_settings(address, options)
    server = server_url(address, options, settings.region)
    if server is not None:
        check_reachable(server, root_url=address.shown_url)
    concurrency = options.number("concurrency", _DEFAULT_CONCURRENCY)
    files = s3fs.S3FileSystem(
        **_credential_arguments(settings, options.get("profile")),
        endpoint_url=settings.endpoint,
        requester_pays=settings.requester_pays,
        client_kwargs={
            "region_name": settings.region,
            **({"verify": False} if settings.any_certificate else {}),
        },
        config_kwargs={
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": settings.timeout,
            "max_pool_connections": concurrency,
            "retries": {"max_attempts": 0, "mode": "standard"},
            "s3": {"addressing_style": settings.addressing_style},
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    files.retries = 1
    return S3fsStorage(
        files,
        once=PerProcess(lambda: client_that_sends_once(settings, options.get("profile"))),
        bucket=address.bucket,
        prefix=address.root_prefix,
        root_url=address.shown_url,
        endpoint=server or "",
        requester_pays=settings.requester_pays,
        concurrency=concurrency,
        max_gap=options.number("max_gap_bytes", DEFAULT_MAX_GAP),
        max_retries=options.number("max_retries", DEFAULT_RETRIES),
        secrets=settings.credentials.secrets() if settings.credentials else (),
    )


def _credential_arguments(settings: S3Settings, profile: str | None) -> dict[str, Any]:
    if settings.credentials is None:
        return {"anon": True}
    if settings.credentials.renewing is not None:
        # s3fs asks botocore itself, and renews by itself.
        return {"profile": profile} if profile else {}
    key, secret, token, _ = settings.credentials.current()
    return {"key": key, "secret": secret, "token": token}


class S3fsStorage:
    """Objects below a prefix of an S3 bucket.

    Parameters
    ----------
    files
        An ``s3fs.S3FileSystem`` that repeats nothing.
    once
        Makes a botocore client that repeats nothing, for conditional writes.
    bucket, prefix
        Where the root is; the prefix is empty or ends with a slash.
    root_url
        The root, for people.
    endpoint
        URL of the server, for hints.
    requester_pays
        Whether conditional writes say so too.
    concurrency
        Requests in flight at once.
    max_gap
        Bytes between two ranges that are read rather than asked for apart.
    secrets
        What must not be shown.
    """

    def __init__(
        self,
        files: Any,
        *,
        once: PerProcess[Any],
        bucket: str,
        prefix: str,
        root_url: str,
        endpoint: str = "",
        requester_pays: bool = False,
        concurrency: int = _DEFAULT_CONCURRENCY,
        max_gap: int = DEFAULT_MAX_GAP,
        max_retries: int = DEFAULT_RETRIES,
        secrets: Sequence[str] = (),
    ) -> None:
        self._files = files
        self._once = once
        self._payer = {"RequestPayer": "requester"} if requester_pays else {}
        self._bucket = bucket
        self._prefix = prefix
        self._server = Server(
            root_url=root_url,
            kind="s3",
            endpoint=endpoint,
            classify=classify,
            secrets=tuple(secrets),
            backoff=Backoff(max_retries=max_retries),
            conditional_backoff=Backoff(max_retries=max_retries),
        )
        self._concurrency = concurrency
        self._max_gap = max_gap
        self._threads = WorkerThreads(concurrency)

    def __repr__(self) -> str:
        return f"S3fsStorage({self.root_url!r})"

    @property
    def root_url(self) -> str:
        return self._server.root_url

    @property
    def is_read_only(self) -> bool:
        return False

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=check_key(key), start=start, end=end)
        if end is not None and end == (start or 0):
            info = self.head(key)
            if info is None:
                raise missing_object(key, self.root_url)
            return Fetched(data=b"", version=info.version, last_modified=info.last_modified)
        data, answer = self._read(read)
        return Fetched(data=data, version=_version(answer), last_modified=answer["LastModified"])

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_reads(requests, max_gap=self._max_gap)
        if not plan.reads:
            return plan.assemble([])

        async def fetch_all() -> list[Any]:
            limit = asyncio.Semaphore(self._concurrency)

            async def fetch(read: ReadRequest) -> Any:
                async with limit:
                    return await self._fetch(read)

            return await asyncio.gather(*map(fetch, plan.reads), return_exceptions=True)

        answers: list[bytes] = []
        for read, outcome in zip(plan.reads, self._run(fetch_all), strict=True):
            if isinstance(outcome, Exception):
                failure = classify(outcome, self._server.secrets)
                if failure.kind not in (FailureKind.BROKEN, FailureKind.THROTTLED):
                    raise self._server.read_error(read, failure, self.head) from None
                outcome = self._read(read)
            answers.append(self._checked(read, *outcome))
        return plan.assemble(answers)

    def _read(self, read: ReadRequest) -> tuple[bytes, Any]:
        try:
            data, answer = self._server.attempt(lambda: self._run(lambda: self._fetch(read)))
        except RequestFailedError as error:
            raise self._server.read_error(read, error.failure, self.head) from None
        return self._checked(read, data, answer), answer

    def _checked(self, read: ReadRequest, data: bytes, answer: Any) -> bytes:
        # Not every S3-compatible server heeds the conditions.
        modified_at = answer["LastModified"].timestamp()
        check_unchanged(read, etag=answer.get("ETag"), modified_at=modified_at)
        check_length(read, len(data), self.root_url)
        return data

    async def _fetch(self, read: ReadRequest) -> tuple[bytes, Any]:
        arguments: dict[str, Any] = self._at(read.key)
        if read.suffix is not None:
            arguments["Range"] = f"bytes=-{read.suffix}"
        elif read.end is not None:
            arguments["Range"] = f"bytes={read.start or 0}-{read.end - 1}"
        elif read.start:
            arguments["Range"] = f"bytes={read.start}-"
        if read.if_match is not None:
            arguments["IfMatch"] = quoted(read.if_match)
        if read.if_unmodified_since is not None:
            arguments["IfUnmodifiedSince"] = datetime.fromtimestamp(read.if_unmodified_since, UTC)
        answer = await self._files._call_s3("get_object", **arguments)
        async with answer["Body"] as body:
            return await body.read(), answer

    def head(self, key: str) -> ObjectInfo | None:
        try:
            answer = self._server.attempt(
                lambda: self._files.call_s3("head_object", **self._at(key))
            )
        except RequestFailedError as error:
            if error.failure.kind is FailureKind.MISSING:
                return None
            raise self._server.error(error.failure, "look at", key) from None
        return ObjectInfo(
            key=key,
            size=answer["ContentLength"],
            version=_version(answer),
            last_modified=answer["LastModified"],
        )

    # Writing

    def put(
        self,
        key: str,
        data: bytes,
        *,
        condition: Condition = OVERWRITE,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> Written | Lost:
        match condition:
            case CreateOnly():
                demand = {"IfNoneMatch": "*"}
            case ReplaceIfUnchanged(version=version):
                if version.etag is None:
                    return Lost()
                demand = {"IfMatch": quoted(version.etag)}
            case _:
                return Written(version=self._overwrite(key, data, attributes))
        arguments = {**self._at(key), **self._payer, **demand, "Metadata": dict(attributes)}
        client = self._once.get()
        try:
            answer = self._server.attempt(
                lambda: client.put_object(Body=data, **arguments), conditional=True
            )
        except RequestFailedError as error:
            # Missing: the object to be replaced is gone.
            if error.failure.kind in (FailureKind.CONDITION, FailureKind.MISSING):
                return Lost()
            raise self._server.error(error.failure, "write", key, conditional=True) from None
        return Written(version=_version(answer))

    def _overwrite(self, key: str, data: bytes, attributes: Mapping[str, str]) -> ObjectVersion:
        at = self._at(key)

        def write() -> Any:
            if len(data) < _MULTIPART_FROM:
                return self._files.call_s3("put_object", **at, Body=data, Metadata=dict(attributes))
            self._files.pipe_file(f"{at['Bucket']}/{at['Key']}", data, Metadata=dict(attributes))
            return self._files.call_s3("head_object", **at)

        return _version(self._server.call("write", key, write))

    def put_many(
        self,
        items: Iterable[tuple[str, bytes]],
        *,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> list[ObjectVersion]:
        return self._threads.map(lambda item: self._overwrite(*item, attributes), items)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        wanted = [check_key(key) for key in keys]
        failures: list[DeleteFailure] = []
        for first in range(0, len(wanted), _DELETE_BATCH):
            objects = [{"Key": self._prefix + key} for key in wanted[first : first + _DELETE_BATCH]]
            answer = self._server.call(
                "delete from",
                "",
                lambda batch=objects: self._files.call_s3(  # type: ignore[misc]
                    "delete_objects",
                    Bucket=self._bucket,
                    Delete={"Objects": batch, "Quiet": True},
                ),
            )
            failures += [
                DeleteFailure(
                    key=str(problem.get("Key", "")).removeprefix(self._prefix),
                    reason=str(problem.get("Code", "unknown")),
                )
                for problem in answer.get("Errors", [])
                if problem.get("Code") != "NoSuchKey"
            ]
        return failures

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> Written | Lost:
        arguments: dict[str, Any] = {**self._at(target), "CopySource": self._at(source)}
        if source_version is not None and source_version.etag is not None:
            arguments["CopySourceIfMatch"] = quoted(source_version.etag)
        try:
            answer = self._server.attempt(lambda: self._files.call_s3("copy_object", **arguments))
        except RequestFailedError as error:
            if error.failure.kind is FailureKind.CONDITION:
                return Lost()
            action = f"copy to {target!r} the"
            raise self._server.error(error.failure, action, source) from None
        return Written(version=_version(answer["CopyObjectResult"]))

    def _run(self, coroutine: Callable[[], Any]) -> Any:
        # Imported here like s3fs itself, which has imported it by now.
        from fsspec.asyn import sync

        return sync(self._files.loop, coroutine)

    # Listing; last, because inside the class the name hides the type.

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        split_prefix(prefix)
        return self._pages(prefix)

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        arguments = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        while True:
            page = self._server.call(
                "list", "", lambda: self._files.call_s3("list_objects_v2", **arguments)
            )
            for entry in page.get("Contents", []):
                yield ObjectInfo(
                    key=entry["Key"].removeprefix(self._prefix),
                    size=entry["Size"],
                    version=_version(entry),
                    last_modified=entry["LastModified"],
                )
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


def classify(error: Exception, secrets: Sequence[str]) -> Failure:
    """Return what an exception of s3fs or botocore means.

    s3fs turns botocore's errors into ``OSError`` and keeps the server's answer in ``__cause__``.
    """
    import botocore.exceptions

    chained: BaseException | None = error
    while chained is not None:
        if isinstance(chained, botocore.exceptions.ClientError):
            code = str(chained.response.get("Error", {}).get("Code", ""))
            status = int(chained.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if status == 0 and code.isdigit():
                status = int(code)
            return failure_of_status(status, "" if code.isdigit() else code)
        if isinstance(
            chained,
            (
                botocore.exceptions.EndpointConnectionError,
                botocore.exceptions.ConnectTimeoutError,
                botocore.exceptions.ProxyConnectionError,
                botocore.exceptions.SSLError,
            ),
        ):
            reason = safe_reason(type(chained).__name__, secrets)
            return Failure(kind=FailureKind.UNREACHABLE, reason=reason)
        if isinstance(
            chained, (botocore.exceptions.HTTPClientError, botocore.exceptions.IncompleteReadError)
        ):
            reason = safe_reason(f"{type(chained).__name__}: {chained}", secrets)
            return Failure(kind=FailureKind.BROKEN, reason=reason)
        chained = chained.__cause__
    return fsspec_store.classify(error, secrets)


def _version(answer: Any) -> ObjectVersion:
    etag = answer.get("ETag")
    return ObjectVersion(etag=None if etag is None else unquoted(etag))
