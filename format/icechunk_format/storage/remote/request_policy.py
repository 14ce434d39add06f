"""Sends requests to a server, retries them if safe, and converts failures to errors.

The three clients (obstore, botocore, fsspec) differ in calls and exceptions. Each converts its
exceptions to a :class:`Failure`, by its meaning, and failures are handled in the same way.

Rules of this file
------------------
1. Transient failures (5xx, throttling, timeouts, lost connections) are retried with exponential
   backoff and full jitter. Refusals (400, 401, 403, 404, 412) are not.
2. A conditional write is retried only if the server did not process it (throttled, or not
   connected). After any other lost response the outcome is unknown: a retry can fail because the
   first attempt succeeded.
3. After a throttled request, all requests of the storage in this process slow down together
   (``pace.py``), and are repeated for as long as others are answered.
4. Errors do not chain the client's exception, since its message may contain credentials (signed
   URLs, request dumps): messages are shortened, and queries and secret options are removed.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from icechunk_format.errors import (
    IcechunkError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.storage.concurrency import PerProcess
from icechunk_format.storage.measures import count
from icechunk_format.storage.protocol import missing_object
from icechunk_format.storage.remote.pace import Pace

T = TypeVar("T")

DEFAULT_RETRIES: Final = 8


class FailureKind(Enum):
    """Meaning of a failed request."""

    MISSING = "missing"
    MISSING_BUCKET = "missing bucket"
    DENIED = "denied"
    CONDITION = "condition"
    RANGE = "range"
    REFUSED = "refused"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The meaning of a failed request, and a short reason without secrets."""

    kind: FailureKind
    reason: str
    status: int | None = None

    @property
    def is_throttled(self) -> bool:
        """True if the server refused the request because there are too many.

        A 503 without a code counts, since responses to HEAD have no body.
        """
        return self.kind is FailureKind.THROTTLED or self.status == 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Number and length of the pauses between attempts.

    Attributes
    ----------
    first_delay, max_delay
        Seconds before the second attempt, and the longest wait; the wait doubles each time.
    give_up_after
        Seconds since the first attempt after which no other is made. If the server throttles:
        since its last answer to any request.
    """

    max_retries: int = DEFAULT_RETRIES
    first_delay: float = 0.1
    max_delay: float = 10.0
    give_up_after: float = 90.0

    def delay(self, retry: int) -> float:
        """Return the random seconds to wait before a retry; the first retry is 0."""
        longest = min(self.max_delay, self.first_delay * 2.0 ** min(retry, 30))
        return random.uniform(0.0, longest)


class RequestFailedError(Exception):
    """A request failed; raised and caught within the storage layer only."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure

    def __reduce__(self) -> tuple[type[RequestFailedError], tuple[Failure]]:
        # Errors of tasks are pickled with their causes.
        return type(self), (self.failure,)


_THROTTLED_CODES: Final = ("SlowDown", "Throttling", "ServerBusy", "TooManyRequests")
_BROKEN_CODES: Final = ("InternalError", "ServiceUnavailable", "OperationTimedOut")


def failure_of_code(code: str) -> Failure:
    """Return the failure for an error code within a response of status 200."""
    if code in _THROTTLED_CODES:
        kind = FailureKind.THROTTLED
    else:
        kind = FailureKind.BROKEN if code in _BROKEN_CODES else FailureKind.REFUSED
    return Failure(kind=kind, reason=code)


def failure_of_status(status: int, code: str = "") -> Failure:
    """Return the failure for an HTTP status and an error code of the server."""
    reason = f"HTTP {status}" + (f" {code}" if code else "")
    if code in ("NoSuchBucket", "ContainerNotFound"):
        kind = FailureKind.MISSING_BUCKET
    elif status == 429 or code in _THROTTLED_CODES:
        kind = FailureKind.THROTTLED
    elif status in (404, 410):
        kind = FailureKind.MISSING
    elif status in (401, 403):
        kind = FailureKind.DENIED
    elif status in (409, 412):
        # 409: another conditional write to the same key was under way.
        kind = FailureKind.CONDITION
    elif status == 416:
        kind = FailureKind.RANGE
    elif status >= 500 or status == 408:
        kind = FailureKind.BROKEN
    else:
        kind = FailureKind.REFUSED
    return Failure(kind=kind, reason=reason, status=status)


_URL_QUERY: Final = re.compile(r"(https?://[^\s?'\"<>]*)\?[^\s'\"<>]*")
_URL_USER: Final = re.compile(r"(https?://)[^\s/@]+@")
_MAX_REASON: Final = 300


def safe_reason(string: str, secrets: Iterable[str]) -> str:
    """Return a client's message as a short line without secrets, URL queries and URL users."""
    for secret in secrets:
        if len(secret) >= 4:
            string = string.replace(secret, "***")
    string = _URL_USER.sub(r"\1", _URL_QUERY.sub(r"\1", " ".join(string.split())))
    return string if len(string) <= _MAX_REASON else string[:_MAX_REASON] + "..."


_NEVER_LOOKED_AT: Final = (FailureKind.THROTTLED, FailureKind.UNREACHABLE)
_REPEATABLE: Final = (*_NEVER_LOOKED_AT, FailureKind.BROKEN)
_REFUSED_FOR_ACCESS: Final = (301, 307, 400)
_ACCESS_HINTS: Final = {
    "s3": "check storage.key and storage.secret (or the environment's credentials), storage.region "
    "and storage.endpoint_url; for public data set storage.anon=true",
    "gs": "check storage.token (or GOOGLE_APPLICATION_CREDENTIALS); for public data set "
    "storage.anon=true",
    "az": "check storage.account_name and storage.account_key or storage.sas_token; for public "
    "data set storage.anon=true",
}


_EXPIRED: Final = "the credentials have expired: renew them and open the repository again; {access}"
_SKEWED: Final = "the clock of this machine differs from that of the server: set it, by NTP"
_CODE_HINTS: Final = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": _SKEWED,
    "RequestExpired": _SKEWED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, the root of a storage on it, and the rules for failures."""

    root_url: str
    """URL of the root for messages, without credentials."""
    kind: str
    endpoint: str = ""
    classify: Callable[[Exception, Sequence[str]], Failure | None]
    """Converts an exception of the client to a failure without ``secrets``; ``None`` if the
    exception is not a failed request."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Strings that must not appear in errors."""
    backoff: Backoff
    """Retries of requests."""
    paces: PerProcess[Pace] = field(default_factory=lambda: PerProcess(Pace), repr=False)
    """The rate of all requests of this storage; a child of a fork has its own, since another thread
    may hold the lock of its parent's."""

    @property
    def is_read_only(self) -> bool:
        """True if the server does not accept writes."""
        return self.kind == "http"

    @property
    def pace(self) -> Pace:
        """The rate of this process."""
        return self.paces.get()

    def attempt(
        self, operation: Callable[[], T], *, conditional: bool = False, weight: int = 1
    ) -> T:
        """Send a request, and retry it if that is safe.

        ``conditional`` applies rule 2; ``weight`` is the number of objects of the request.

        Raises RequestFailedError with the last failure.
        """
        backoff = self.backoff
        repeatable = _NEVER_LOOKED_AT if conditional else _REPEATABLE
        count(1)
        started = time.monotonic()
        retry = 0
        while True:
            waited = self._wait_for_turn(weight)
            sent = time.monotonic()
            try:
                result = operation()
            except IcechunkError:
                raise
            except Exception as error:
                if isinstance(error.__cause__, IcechunkError):  # fsspec hides refused redirects
                    raise error.__cause__ from None
                failure = self._failure_of(error)
                if failure is None:
                    raise
                now = time.monotonic()
                since = started
                if failure.is_throttled:
                    self.pace.throttled(sent, now)
                    since = max(started, self.pace.answered_at)
                elif failure.status is not None:
                    self.pace.answered(now, waited=waited)
                delay = backoff.delay(retry)
                late = now + delay - since > backoff.give_up_after
                if failure.kind not in repeatable or retry >= backoff.max_retries or late:
                    raise RequestFailedError(failure) from None
                time.sleep(delay)
                retry += 1
            else:
                self.pace.answered(time.monotonic(), waited=waited, weight=weight)
                return result

    def _failure_of(self, error: Exception) -> Failure | None:
        if isinstance(error, RequestFailedError):
            return error.failure
        return self.classify(error, self.secrets)

    def _wait_for_turn(self, weight: int) -> bool:
        """Wait until the pace allows a request; return True if that took time."""
        pace = self.pace
        if math.isinf(pace.rate):
            return False
        waited = False
        with pace.turnstile:
            while (seconds := pace.due - time.monotonic()) > 0:
                time.sleep(seconds)
                waited = True
            pace.sent(time.monotonic(), weight)
        return waited

    def call(self, action: str, key: str, operation: Callable[[], T], *, weight: int = 1) -> T:
        """Send a request; convert a failure to the error for the user."""
        try:
            return self.attempt(operation, weight=weight)
        except RequestFailedError as error:
            raise self.error(error.failure, action, key) from None

    def request(
        self,
        action: str,
        key: str,
        operation: Callable[[], T],
        *,
        none_for: Collection[FailureKind] = (FailureKind.MISSING,),
        conditional: bool = False,
    ) -> T | None:
        """Send a request; return None for failures of some kinds, else raise as ``call`` does."""
        try:
            return self.attempt(operation, conditional=conditional)
        except RequestFailedError as error:
            if error.failure.kind in none_for:
                return None
            raise self.error(error.failure, action, key, conditional=conditional) from None

    def error(
        self, failure: Failure, action: str, key: str, *, conditional: bool = False
    ) -> NotFoundError | StorageError:
        """Return the error for a failure.

        The outcome of a ``conditional`` write may be unknown.
        """
        what = f"object {key!r} below {self.root_url}" if key else self.root_url
        if failure.kind is FailureKind.MISSING_BUCKET:
            return NotFoundError(
                f"cannot {action} {what}: the bucket does not exist; check its name and "
                "storage.endpoint_url",
                kind="bucket",
                root_url=self.root_url,
            )
        if failure.kind is FailureKind.MISSING and key:
            return missing_object(key, self.root_url)
        hint = "see the log of the server for more"
        named = next((_CODE_HINTS[code] for code in _CODE_HINTS if code in failure.reason), None)
        if named is not None:
            hint = named.format(access=_ACCESS_HINTS.get(self.kind, ""))
        elif (
            failure.kind is FailureKind.DENIED
            or "region" in failure.reason.lower()
            or failure.status in _REFUSED_FOR_ACCESS
        ):
            hint = _ACCESS_HINTS.get(self.kind, "check the permissions there")
        elif failure.kind is FailureKind.UNREACHABLE:
            where = f" ({self.endpoint})" if self.endpoint else ""
            hint = f"check storage.endpoint_url{where} and the network"
        elif failure.kind is FailureKind.THROTTLED:
            hint = "lower storage.concurrency, or try later"
        unknown = conditional and failure.kind is FailureKind.BROKEN
        if unknown:
            hint = "the write may have landed: read the object before writing again"
        return StorageError(
            f"cannot {action} {what}: {failure.reason}; {hint}",
            outcome_unknown=unknown,
            key=key,
            reason=failure.reason,
            status=failure.status,
        )

    def refuse_writing(self, key: str = "") -> None:
        """Raise ReadOnlyError for a web server."""
        if self.is_read_only:
            what = f"object {key!r} below " if key else ""
            raise ReadOnlyError(
                f"{what}{self.root_url} cannot be written: HTTP servers are read only here; "
                "write to the object store behind it",
                key=key,
            )

    def refuse_listing(self) -> None:
        """Raise UnsupportedError for a web server, which has no listing."""
        if self.kind == "http":
            raise UnsupportedError(
                f"{self.root_url} cannot be listed: HTTP has no listing; "
                "open what you need by its name, or use the object store behind it"
            )
