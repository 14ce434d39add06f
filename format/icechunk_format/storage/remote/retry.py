"""Classifies failed requests, repeats those that are safe to repeat, and makes their errors.

Rules of this file
------------------
1. Each client turns its own exceptions into a :class:`Failure`; everything after that is shared.
2. Transient failures (5xx, throttling, timeouts, lost connections) are tried again with
   exponential backoff and full jitter. Refusals (400, 401, 403, 404, 412) are not.
3. A conditional write is tried again only if the store did not process it (throttled, or never
   connected). After any other lost answer the outcome is unknown: a repetition can fail because
   the first attempt succeeded.
4. Texts of clients may hold credentials (signed URLs, request dumps): errors show them shortened,
   without queries and secret options, and do not chain the client's exception.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from icechunk_format.errors import IcechunkError, NotFoundError, StorageError
from icechunk_format.storage.protocol import missing_object

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


_REPEATABLE: Final = (FailureKind.THROTTLED, FailureKind.UNREACHABLE, FailureKind.BROKEN)
_NEVER_LOOKED_AT: Final = (FailureKind.THROTTLED, FailureKind.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The meaning of a failed request, and a short reason without secrets."""

    kind: FailureKind
    reason: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Number and length of the pauses between attempts.

    Attributes
    ----------
    max_retries
        Tries after the first one.
    first_delay, max_delay
        Seconds before the second try, and the longest wait; in between it doubles.
    give_up_after
        Seconds since the first try after which there is no further one.
    """

    max_retries: int = DEFAULT_RETRIES
    first_delay: float = 0.1
    max_delay: float = 10.0
    give_up_after: float = 90.0

    def delay(self, retry: int) -> float:
        """Return the seconds to wait before a retry (0 is the first): random, up to the longest."""
        longest = min(self.max_delay, self.first_delay * 2.0 ** min(retry, 30))
        return random.uniform(0.0, longest)


class RequestFailedError(Exception):
    """A request failed; raised and caught within the storage layer only."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def call_with_retries(
    operation: Callable[[], T],
    classify: Callable[[Exception], Failure | None],
    *,
    backoff: Backoff,
    conditional: bool = False,
) -> T:
    """Call ``operation``, and repeat it after transient failures.

    Parameters
    ----------
    operation
        Sends one request.
    classify
        Turns a client's exception into a failure; ``None`` if it is no failed request.
    backoff
        How often to try again.
    conditional
        Whether the request is a conditional write (rule 3).

    Raises
    ------
    RequestFailedError
        The last failure.
    """
    started = time.monotonic()
    retry = 0
    repeatable = _NEVER_LOOKED_AT if conditional else _REPEATABLE
    while True:
        try:
            return operation()
        except IcechunkError:
            raise
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
            delay = backoff.delay(retry)
            late = time.monotonic() + delay - started > backoff.give_up_after
            if failure.kind not in repeatable or retry >= backoff.max_retries or late:
                # Not chained: the client's own text may hold credentials (rule 4).
                raise RequestFailedError(failure) from None
            time.sleep(delay)
            retry += 1


def failure_of_status(status: int, code: str = "") -> Failure:
    """Return the failure for an HTTP status and an error code of the store."""
    reason = f"HTTP {status}" + (f" {code}" if code else "")
    if code in ("NoSuchBucket", "ContainerNotFound"):
        kind = FailureKind.MISSING_BUCKET
    elif status == 429 or code in ("SlowDown", "Throttling", "ServerBusy", "TooManyRequests"):
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


def safe_reason(text: str, secrets: Iterable[str]) -> str:
    """Return a client's text on one line, shortened, without secrets, queries and users of URLs."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    text = _URL_USER.sub(r"\1", _URL_QUERY.sub(r"\1", " ".join(text.split())))
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."


_REFUSED_FOR_ACCESS: Final = (301, 307, 400)
_ACCESS_HINTS: Final = {
    "s3": "check storage.key and storage.secret (or the environment's credentials), storage.region "
    "and storage.endpoint_url; for public data set storage.anon=true",
    "gs": "check storage.token (or GOOGLE_APPLICATION_CREDENTIALS); for public data set "
    "storage.anon=true",
    "az": "check storage.account_name and storage.account_key or storage.sas_token; for public "
    "data set storage.anon=true",
}


def error_of(
    failure: Failure,
    *,
    action: str,
    key: str,
    root_url: str,
    kind: str,
    endpoint: str = "",
    conditional: bool = False,
) -> StorageError | NotFoundError:
    """Return the error to raise for a failed request.

    Parameters
    ----------
    failure
        The classified failure.
    action, key, root_url
        The verb such as ``"read"``, the key (may be empty), and the root without credentials.
    kind
        Kind of URL, for the hint.
    endpoint
        URL of the server, for the hint.
    conditional
        Whether the request was a conditional write, whose outcome may now be unknown.
    """
    what = f"object {key!r} below {root_url}" if key else root_url
    if failure.kind is FailureKind.MISSING_BUCKET:
        return NotFoundError(
            f"cannot {action} {what}: the bucket does not exist; check its name and "
            "storage.endpoint_url",
            kind="bucket",
            root_url=root_url,
        )
    if failure.kind is FailureKind.MISSING and key:
        return missing_object(key, root_url)
    hint = "see the store's own log for more"
    if (
        failure.kind is FailureKind.DENIED
        or "region" in failure.reason.lower()
        or failure.status in _REFUSED_FOR_ACCESS
    ):
        hint = _ACCESS_HINTS.get(kind, "check who may read and write there")
    elif failure.kind is FailureKind.UNREACHABLE:
        where = f" ({endpoint})" if endpoint else ""
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
