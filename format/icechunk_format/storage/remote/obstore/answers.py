"""Turns answers and exceptions of obstore into versions and failures, for ``store.py``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import obstore.exceptions

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.protocol import ObjectVersion
from icechunk_format.storage.ranges import quoted, unquoted
from icechunk_format.storage.remote.failures import (
    Failure,
    FailureKind,
    failure_of_status,
    safe_reason,
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>|\"code\": ?\"(\w{1,64})\"")


def classify(error: Exception, secrets: Sequence[str]) -> Failure | None:
    """Return the failure for an exception of obstore.

    The class of the exception decides first. The rest has only a text, which may hold the server's
    HTTP status and error code. Errors without both count as ``BROKEN``: a write may have landed.
    """
    text = str(error)
    if isinstance(error, obstore.exceptions.NotSupportedError):
        raise UnsupportedError(f"this store cannot do that: {safe_reason(text, secrets)}") from None
    if isinstance(error, (obstore.exceptions.InvalidPathError, ValueError)):
        raise InvalidInputError(
            f"the object store cannot hold this key: {safe_reason(text, secrets)}"
        ) from None
    status = _STATUS.search(text)
    found = _CODE.search(text)
    code = (found.group(1) or found.group(2)) if found else ""
    if isinstance(error, FileNotFoundError):
        return failure_of_status(404, code)
    if isinstance(error, obstore.exceptions.PermissionDeniedError):
        return failure_of_status(403, code)
    if isinstance(error, obstore.exceptions.UnauthenticatedError):
        return failure_of_status(401, code)
    if isinstance(
        error, (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)
    ):
        return failure_of_status(412, code)
    if not isinstance(error, (obstore.exceptions.BaseError, OSError)):
        return None
    if status is not None:
        return failure_of_status(int(status.group(1)), code)
    summary, _, details = text.partition("Debug source")
    reason = safe_reason(summary, secrets)
    if "StartTooLarge" in details:
        return Failure(kind=FailureKind.RANGE, reason=reason)
    if "kind: Connect" in details:
        return Failure(kind=FailureKind.UNREACHABLE, reason=f"no connection ({reason})")
    return Failure(kind=FailureKind.BROKEN, reason=reason)


def version_of(meta: Any) -> ObjectVersion:
    """Return the version in an answer; its entity tag loses its quotes."""
    etag = meta["e_tag"]
    return ObjectVersion(
        etag=None if etag is None else unquoted(etag), generation=meta.get("version")
    )


def update_mode(version: ObjectVersion) -> dict[str, str]:
    """Return the condition that an object still has a version, in obstore's words."""
    mode = {} if version.etag is None else {"e_tag": quoted(version.etag)}
    return mode if version.generation is None else {**mode, "version": version.generation}
