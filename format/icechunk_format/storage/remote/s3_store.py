"""Stores objects on S3 through botocore: for ``storage.client=fsspec``, and after a fork.

Rules of this file
------------------
1. One botocore client sends every request exactly once; ``retry.py`` decides what is sent again.
   s3fs would not do: aiohttp beneath it repeats a PUT by itself when the connection closes before
   the answer, and a repeated conditional write can fail because the first one succeeded.
2. Requests run side by side in threads.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

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
    unquoted,
)
from icechunk_format.storage.remote import fsspec_store
from icechunk_format.storage.remote.endpoint import check_reachable, server_url
from icechunk_format.storage.remote.request_policy import RemoteStorage, Server
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
    check_conditions,
    make_client,
    s3_settings,
)

_DEFAULT_CONCURRENCY: Final = 32
_DELETE_BATCH: Final = 1000
_MULTIPART_FROM: Final = 256 * 2**20
_PART_SIZE: Final = 64 * 2**20


def open_s3(address: Address, options: StorageOptions) -> S3Storage:
    """Return the storage of an S3 location; its server is contacted once.

    Raises
    ------
    InvalidInputError
        The options do not fit together.
    StorageError
        Nobody answers at the endpoint, or there are no credentials.
    """
    settings = s3_settings(address, options)
    server = server_url(address, options, settings.region)
    if server is not None:
        check_reachable(server, root_url=address.shown_url)
    concurrency = options.number("concurrency", _DEFAULT_CONCURRENCY)
    return S3Storage(
        make_client(settings, options.get("profile"), connections=concurrency),
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


class S3Storage(RemoteStorage):
    """Objects below a prefix of an S3 bucket.

    Parameters
    ----------
    client
        A botocore client of this process that repeats nothing.
    bucket, prefix
        Place of the root; the prefix is empty or ends with a slash.
    root_url
        The root, for messages.
    endpoint
        URL of the server, for hints.
    requester_pays
        Whether each request says that its sender pays.
    concurrency
        Requests in flight at once.
    max_gap
        Largest gap in bytes between two ranges that are read as one.
    max_retries
        Tries after the first one.
    secrets
        Texts that no error may show.
    """

    def __init__(
        self,
        client: Any,
        *,
        bucket: str,
        prefix: str,
        root_url: str,
        endpoint: str,
        requester_pays: bool,
        concurrency: int,
        max_gap: int,
        max_retries: int,
        secrets: Sequence[str],
    ) -> None:
        self._client = client
        self._bucket = {"Bucket": bucket}
        if requester_pays:
            self._bucket["RequestPayer"] = "requester"
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
        self._max_gap = max_gap
        self._threads = PacedThreads(concurrency)

    def _at(self, key: str) -> dict[str, str]:
        return {**self._bucket, "Key": self._prefix + check_key(key)}

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=check_key(key), start=start, end=end)
        if end is not None and end == (start or 0):
            return self._no_bytes_of(key)
        data, answer = self._read(read)
        return Fetched(data=data, version=_version(answer), last_modified=answer["LastModified"])

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_reads(requests, max_gap=self._max_gap)
        return plan.assemble(self._threads.map(lambda read: self._read(read)[0], plan.reads))

    def _read(self, read: ReadRequest) -> tuple[bytes, Any]:
        data, answer = self._server.read(read, lambda: self._fetch(read), self.head)
        # Some S3-compatible servers ignore the conditions.
        modified_at = answer["LastModified"].timestamp()
        check_unchanged(read, etag=answer.get("ETag"), modified_at=modified_at)
        check_length(read, len(data), self.root_url)
        return data, answer

    def _fetch(self, read: ReadRequest) -> tuple[bytes, Any]:
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
        answer = self._client.get_object(**arguments)
        with contextlib.closing(answer["Body"]) as body:
            return body.read(), answer

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._server.head(key, lambda: self._client.head_object(**self._at(key)))
        if answer is None:
            return None
        return ObjectInfo(
            key=key,
            size=answer["ContentLength"],
            version=_version(answer),
            last_modified=answer["LastModified"],
        )

    # Writing

    def put(self, key: str, data: bytes, *, condition: Condition = OVERWRITE) -> Written | Lost:
        match condition:
            case CreateOnly():
                demand = {"IfNoneMatch": "*"}
            case ReplaceIfUnchanged(version=version):
                if version.etag is None:
                    return Lost()
                demand = {"IfMatch": quoted(version.etag)}
            case _:
                return Written(version=self._overwrite(key, data))
        check_conditions(self._client)
        arguments = {**self._at(key), **demand}
        answer = self._server.write_conditionally(
            key, lambda: self._client.put_object(Body=data, **arguments)
        )
        return Lost() if answer is None else Written(version=_version(answer))

    def _overwrite(self, key: str, data: bytes) -> ObjectVersion:
        arguments = self._at(key)

        def write() -> Any:
            if len(data) < _MULTIPART_FROM:
                return self._client.put_object(Body=data, **arguments)
            return self._upload_parts(data, arguments)

        return _version(self._server.call("write", key, write))

    def _upload_parts(self, data: bytes, arguments: dict[str, str]) -> Any:
        client = self._client
        upload_id = client.create_multipart_upload(**arguments)["UploadId"]
        upload = {**arguments, "UploadId": upload_id}
        try:
            parts = []
            for number, first in enumerate(range(0, len(data), _PART_SIZE), start=1):
                body = data[first : first + _PART_SIZE]
                answer = client.upload_part(Body=body, PartNumber=number, **upload)
                parts.append({"ETag": answer["ETag"], "PartNumber": number})
            return client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to show
                client.abort_multipart_upload(**upload)
            raise

    def put_many(self, items: Iterable[tuple[str, bytes]]) -> list[ObjectVersion]:
        return self._threads.map(lambda item: self._overwrite(*item), items)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        wanted = [check_key(key) for key in keys]
        failures: list[DeleteFailure] = []
        for first in range(0, len(wanted), _DELETE_BATCH):
            objects = [{"Key": self._prefix + key} for key in wanted[first : first + _DELETE_BATCH]]
            answer = self._server.call(
                "delete from",
                "",
                lambda batch=objects: self._client.delete_objects(  # type: ignore[misc]
                    **self._bucket, Delete={"Objects": batch, "Quiet": True}
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
        source_at = {"Bucket": self._bucket["Bucket"], "Key": self._at(source)["Key"]}
        arguments: dict[str, Any] = {**self._at(target), "CopySource": source_at}
        if source_version is not None and source_version.etag is not None:
            arguments["CopySourceIfMatch"] = quoted(source_version.etag)
        try:
            answer = self._server.attempt(lambda: self._client.copy_object(**arguments))
        except RequestFailedError as error:
            if error.failure.kind is FailureKind.CONDITION:
                return Lost()
            action = f"copy to {target!r} the"
            raise self._server.error(error.failure, action, source) from None
        return Written(version=_version(answer["CopyObjectResult"]))

    # Listing; last, because inside the class the name hides the type.

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        split_prefix(prefix)
        return self._pages(prefix)

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        arguments = {**self._bucket, "Prefix": self._prefix + prefix}
        while True:
            page = self._server.call("list", "", lambda: self._client.list_objects_v2(**arguments))
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
    """Return the failure for an exception of botocore."""
    import botocore.exceptions

    if isinstance(error, botocore.exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status == 0 and code.isdigit():
            status = int(code)
        return failure_of_status(status, "" if code.isdigit() else code)
    if isinstance(
        error,
        (
            botocore.exceptions.EndpointConnectionError,
            botocore.exceptions.ConnectTimeoutError,
            botocore.exceptions.ProxyConnectionError,
            botocore.exceptions.SSLError,
        ),
    ):
        reason = safe_reason(type(error).__name__, secrets)
        return Failure(kind=FailureKind.UNREACHABLE, reason=reason)
    if isinstance(
        error, (botocore.exceptions.HTTPClientError, botocore.exceptions.IncompleteReadError)
    ):
        reason = safe_reason(f"{type(error).__name__}: {error}", secrets)
        return Failure(kind=FailureKind.BROKEN, reason=reason)
    return fsspec_store.classify(error, secrets)


def _version(answer: Any) -> ObjectVersion:
    etag = answer.get("ETag")
    return ObjectVersion(etag=None if etag is None else unquoted(etag))
