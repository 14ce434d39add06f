"""Sends requests to a server, repeats them where safe, and turns failures into errors.

The three clients of remote objects (obstore, botocore, fsspec) differ in calls and exceptions; they
share what follows from a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from icechunk_format.errors import (
    IcechunkError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.storage.protocol import (
    Fetched,
    ObjectInfo,
    ReadRequest,
    Storage,
    missing_object,
)
from icechunk_format.storage.ranges import check_length, modified_error
from icechunk_format.storage.remote.retry import (
    Backoff,
    Failure,
    FailureKind,
    RequestFailedError,
    call_with_retries,
    error_of,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, the root of a storage on it, and the rules for failures.

    Attributes
    ----------
    root_url
        The root for messages: without credentials.
    kind
        Kind of URL, for hints and limits.
    endpoint
        URL of the server, for hints.
    classify
        Turns an exception of the client, and ``secrets``, into a failure; ``None`` if the exception
        is no failed request.
    secrets
        Texts that no error may show.
    backoff
        Repetitions beyond those of the client itself.
    conditional_backoff
        Repetitions of conditional writes, which no client repeats.
    """

    root_url: str
    kind: str
    endpoint: str = ""
    classify: Callable[[Exception, Sequence[str]], Failure | None]
    secrets: tuple[str, ...] = field(default=(), repr=False)
    backoff: Backoff
    conditional_backoff: Backoff

    @property
    def is_read_only(self) -> bool:
        """Whether the server takes no writes."""
        return self.kind == "http"

    def attempt(self, operation: Callable[[], T], *, conditional: bool = False) -> T:
        """Send a request, and repeat it where that is safe.

        Raises
        ------
        RequestFailedError
            The last failure.
        """
        return call_with_retries(
            operation,
            lambda error: self.classify(error, self.secrets),
            backoff=self.conditional_backoff if conditional else self.backoff,
            conditional=conditional,
        )

    def call(self, action: str, key: str, operation: Callable[[], T]) -> T:
        """Send a request; a failure becomes the error to show.

        Raises
        ------
        NotFoundError
            The object or the bucket is missing.
        StorageError
            Any other failure.
        """
        try:
            return self.attempt(operation)
        except RequestFailedError as error:
            raise self.error(error.failure, action, key) from None

    def error(
        self, failure: Failure, action: str, key: str, *, conditional: bool = False
    ) -> NotFoundError | StorageError:
        """Return the error to show for a failure."""
        return error_of(
            failure,
            action=action,
            key=key,
            root_url=self.root_url,
            kind=self.kind,
            endpoint=self.endpoint,
            conditional=conditional,
        )

    def head(self, key: str, operation: Callable[[], T]) -> T | None:
        """Ask for an object without its bytes; ``None`` where there is none.

        Raises
        ------
        StorageError
            The request failed.
        """
        try:
            return self.attempt(operation)
        except RequestFailedError as error:
            if error.failure.kind is FailureKind.MISSING:
                return None
            raise self.error(error.failure, "look at", key) from None

    def write_conditionally(self, key: str, operation: Callable[[], T]) -> T | None:
        """Send a conditional write; ``None`` where its condition does not hold.

        Raises
        ------
        StorageError
            The request failed; with ``outcome_unknown`` where the write may have landed.
        """
        try:
            return self.attempt(operation, conditional=True)
        except RequestFailedError as error:
            # Missing: the object to be replaced is gone.
            if error.failure.kind in (FailureKind.CONDITION, FailureKind.MISSING):
                return None
            raise self.error(error.failure, "write", key, conditional=True) from None

    def read(
        self,
        read: ReadRequest,
        operation: Callable[[], T],
        head: Callable[[str], ObjectInfo | None],
    ) -> T:
        """Send a read; ``head`` finds the size of an object that is too short for it.

        Raises
        ------
        NotFoundError, ChunkModifiedError
            The object is missing, or was changed.
        StorageError
            The object is shorter than the range, or the request failed.
        """
        try:
            return self.attempt(operation)
        except RequestFailedError as error:
            raise self._read_error(read, error.failure, head) from None

    def _read_error(
        self,
        read: ReadRequest,
        failure: Failure,
        head: Callable[[str], ObjectInfo | None],
    ) -> IcechunkError:
        if failure.kind is FailureKind.CONDITION:
            return modified_error(read)
        if failure.kind is FailureKind.RANGE:
            # The range begins behind the last byte: the size is needed for the error.
            info = head(read.key)
            found = max((info.size if info else 0) - (read.start or 0), 0)
            try:
                check_length(read, found, self.root_url)
            except StorageError as error:
                return error
        return self.error(failure, "read", read.key)

    def refuse_writing(self, key: str = "") -> None:
        """Refuse every write to a web server.

        Raises
        ------
        ReadOnlyError
            The server is a web server.
        """
        if self.is_read_only:
            what = f"object {key!r} below " if key else ""
            raise ReadOnlyError(
                f"{what}{self.root_url} cannot be written: HTTP servers are read only here; "
                "write to the object store behind it",
                key=key,
            )

    def refuse_listing(self) -> None:
        """Refuse to list a web server, which has no listing.

        Raises
        ------
        UnsupportedError
            The server is a web server.
        """
        if self.kind == "http":
            raise UnsupportedError(
                f"{self.root_url} cannot be listed: HTTP has no listing; "
                "open what you need by its name, or use the object store behind it"
            )


class RemoteStorage(Storage):
    """A storage on a server."""

    _server: Server

    @property
    def root_url(self) -> str:
        """The root, without credentials."""
        return self._server.root_url

    @property
    def is_read_only(self) -> bool:
        """Whether the server only gives objects out."""
        return self._server.is_read_only

    def _existing(self, key: str) -> ObjectInfo:
        info = self.head(key)
        if info is None:
            raise missing_object(key, self.root_url)
        return info

    def _no_bytes_of(self, key: str) -> Fetched:
        """Return an empty range of an object, which clients cannot ask for."""
        info = self._existing(key)
        return Fetched(data=b"", version=info.version, last_modified=info.last_modified)
