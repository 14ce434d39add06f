"""One server as a storage talks to it: repeat what may be repeated, and word what went wrong.

The three clients of remote objects (obstore, s3fs, fsspec) differ in their calls and exceptions.
What follows from a failure is the same for all of them, and is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from icechunk_format.errors import (
    IcechunkError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from icechunk_format.storage.protocol import ObjectInfo, ReadRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, the root that is used on it, and how failures are read.

    Attributes
    ----------
    root_url
        The root, for people: without credentials.
    kind
        Kind of URL, for hints and limits.
    endpoint
        Where requests go, for hints.
    classify
        Turns an exception of the client (and what must not be shown) into a failure, or ``None``
        for what is not a failed request.
    secrets
        What must not be shown.
    backoff
        How often requests are repeated here, on top of what the client does.
    conditional_backoff
        The same for conditional writes, which no client repeats.
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
        """Send a request, again where that may help.

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

    def read_error(
        self,
        read: ReadRequest,
        failure: Failure,
        head: Callable[[str], ObjectInfo | None],
    ) -> IcechunkError:
        """Return the error to show for a read: of a changed, a short or a missing object."""
        if failure.kind is FailureKind.CONDITION:
            return modified_error(read)
        if failure.kind is FailureKind.RANGE:
            # The range begins behind the last byte; the size makes the error say so.
            info = head(read.key)
            found = max((info.size if info else 0) - (read.start or 0), 0)
            try:
                check_length(read, found, self.root_url)
            except StorageError as error:
                return error
        return self.error(failure, "read", read.key)

    def refuse_writing(self, key: str = "") -> None:
        """Refuse every write where the server takes none.

        Raises
        ------
        ReadOnlyError
            It is a web server.
        """
        if self.is_read_only:
            what = f"object {key!r} below " if key else ""
            raise ReadOnlyError(
                f"{what}{self.root_url} cannot be written: HTTP servers are read only here; "
                "write to the object store behind it",
                key=key,
            )

    def refuse_listing(self) -> None:
        """Refuse to list where there is no listing.

        Raises
        ------
        UnsupportedError
            It is a web server.
        """
        if self.kind == "http":
            raise UnsupportedError(
                f"{self.root_url} cannot be listed: HTTP has no listing; "
                "open what you need by its name, or use the object store behind it"
            )
