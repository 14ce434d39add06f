"""Classifies failed requests by their meaning, for every client.

Each client converts its exceptions to a :class:`Failure`, which ``request_policy.py`` handles.
Messages of clients may contain credentials (signed URLs, request dumps): they are shortened, and
queries and secret options are removed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Number and length of the pauses between attempts.

    Attributes
    ----------
    first_delay, max_delay
        Seconds before the second attempt, and the longest wait; the wait doubles each time.
    give_up_after
        Seconds since the first attempt after which no other is made.
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


def failure_of_status(status: int, code: str = "") -> Failure:
    """Return the failure for an HTTP status and an error code of the server."""
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
    """Return a client's message as a short line without secrets, URL queries and URL users."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    text = _URL_USER.sub(r"\1", _URL_QUERY.sub(r"\1", " ".join(text.split())))
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."
