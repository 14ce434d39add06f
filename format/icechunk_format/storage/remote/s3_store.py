"""Stores objects on S3 through botocore: for ``storage.client=fsspec``, and after a fork.

Rules of this file
------------------
1. The botocore client sends every request exactly once; ``request_policy.py`` retries. ``call_s3``
   of s3fs is not used: aiohttp below it resends a PUT if the connection closes before the response,
   so the resent conditional write fails although the first succeeded, and no option prevents this.
   Its reads also take four requests instead of one.
2. Requests run concurrently in threads.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

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
from icechunk_format.storage.ranges import quoted, unquoted
from icechunk_format.storage.remote import fsspec_store
from icechunk_format.storage.remote.endpoint import check_reachable, server_url
from icechunk_format.storage.remote.remote_storage import BucketStorage
from icechunk_format.storage.remote.request_policy import (
    Failure,
    FailureKind,
    RequestFailedError,
    failure_of_code,
    failure_of_status,
    safe_reason,
)
from icechunk_format.storage.remote.s3_credentials import check_conditions, make_client, s3_settings

_MULTIPART_FROM: Final = 256 * 2**20
_PART_SIZE: Final = 64 * 2**20


class S3Storage(BucketStorage):
    """Objects below a prefix of an S3 bucket; its server is contacted once."""

    def __init__(self, address: Address, options: StorageOptions) -> None:
        settings = s3_settings(address, options)
        server = server_url(address, options, settings.region)
        if server is not None:
            check_reachable(server, root_url=address.shown_url)
        super().__init__(
            address,
            options,
            classify=classify,
            secrets=settings.credentials.secrets() if settings.credentials else (),
            endpoint=server or "",
        )
        self._client = make_client(settings, options, connections=self._concurrency)
        self._bucket = {"Bucket": address.bucket}
        if options.flag("requester_pays"):
            self._bucket["RequestPayer"] = "requester"
        self._prefix = address.root_prefix
        self._threads = self._reads = PacedThreads(self._concurrency)

    def _at(self, key: str) -> dict[str, str]:
        return {**self._bucket, "Key": self._path(key)}

    # Reading

    def _fetch(self, read: ReadRequest) -> Fetched:
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
        response = self._client.get_object(**arguments)
        with contextlib.closing(response["Body"]) as body:
            return Fetched(
                data=body.read(), version=_version(response), last_modified=response["LastModified"]
            )

    def _look_at(self, key: str) -> ObjectInfo:
        response = self._client.head_object(**self._at(key))
        return self._info(self._path(key), response["ContentLength"], response)

    def _info(self, path: str, size: int, response: Any) -> ObjectInfo:
        return ObjectInfo(
            key=path.removeprefix(self._prefix),
            size=size,
            version=_version(response),
            last_modified=response["LastModified"],
        )

    # Writing

    def _conditional_write(
        self, key: str, data: bytes, condition: CreateOnly | ReplaceIfUnchanged
    ) -> Callable[[], ObjectVersion] | None:
        if isinstance(condition, CreateOnly):
            demand = {"IfNoneMatch": "*"}
        elif condition.version.etag is None:
            return None
        else:
            demand = {"IfMatch": quoted(condition.version.etag)}
        check_conditions(self._client)
        arguments = {**self._at(key), **demand}
        return lambda: _version(self._client.put_object(Body=data, **arguments))

    def _write(self, key: str, data: bytes) -> ObjectVersion:
        arguments = self._at(key)
        if len(data) < _MULTIPART_FROM:
            return _version(self._client.put_object(Body=data, **arguments))
        return _version(self._upload_parts(data, arguments))

    def _upload_parts(self, data: bytes, arguments: dict[str, str]) -> Any:
        client = self._client
        upload_id = client.create_multipart_upload(**arguments)["UploadId"]
        upload = {**arguments, "UploadId": upload_id}
        try:
            parts = []
            for number, first in enumerate(range(0, len(data), _PART_SIZE), start=1):
                body = data[first : first + _PART_SIZE]
                response = client.upload_part(Body=body, PartNumber=number, **upload)
                parts.append({"ETag": response["ETag"], "PartNumber": number})
            return client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to show
                client.abort_multipart_upload(**upload)
            raise

    def _delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        left = [self._path(key) for key in keys]
        failures: list[DeleteFailure] = []

        def send() -> None:
            nonlocal left
            wanted = {"Objects": [{"Key": path} for path in left], "Quiet": True}
            response = self._client.delete_objects(**self._bucket, Delete=wanted)
            left, transient = [], None
            for problem in response.get("Errors", []):
                path, code = str(problem.get("Key", "")), str(problem.get("Code", "unknown"))
                failure = failure_of_code(code)
                if failure.kind is not FailureKind.REFUSED:
                    left.append(path)
                    transient = failure
                elif code != "NoSuchKey":
                    key = path.removeprefix(self._prefix)
                    failures.append(DeleteFailure(key=key, reason=code))
            if transient is not None:
                raise RequestFailedError(transient)

        self._server.call("delete from", "", send, weight=len(keys))
        return failures

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> ObjectVersion | None:
        source_at = {"Bucket": self._bucket["Bucket"], "Key": self._at(source)["Key"]}
        arguments: dict[str, Any] = {**self._at(target), "CopySource": source_at}
        if source_version is not None and source_version.etag is not None:
            arguments["CopySourceIfMatch"] = quoted(source_version.etag)
        response = self._server.request(
            f"copy to {target!r} the",
            source,
            lambda: self._client.copy_object(**arguments),
            none_for=(FailureKind.CONDITION,),
        )
        return None if response is None else _version(response["CopyObjectResult"])

    # Listing

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        for entry in self._listed("Contents", Prefix=self._prefix + prefix):
            yield self._info(entry["Key"], entry["Size"], entry)

    def _folders(self) -> Iterator[str]:
        for entry in self._listed("CommonPrefixes", Prefix=self._prefix, Delimiter="/"):
            yield entry["Prefix"].removeprefix(self._prefix).rstrip("/")

    def _listed(self, kind: str, **arguments: str) -> Iterator[Any]:
        """Yield the entries of a kind in all pages of a listing."""
        arguments |= self._bucket
        while True:
            page = self._server.call("list", "", lambda: self._client.list_objects_v2(**arguments))
            yield from page.get(kind, [])
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


def _version(response: Any) -> ObjectVersion:
    etag = response.get("ETag")
    return ObjectVersion(etag=None if etag is None else unquoted(etag))
