"""Checks the ``storage.*`` options; the names are those of fsspec for all clients.

Rules of this file
------------------
1. Case, ``-`` and ``_`` in names are ignored. Other libraries' names are accepted
   (``aws_access_key_id`` for ``key``), so that settings of other tools can be pasted.
2. The error for an unknown name suggests the nearest existing one. For URLs that only fsspec
   supports, any name is accepted and passed on.
3. No error shows a value: any value may be a credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest

_EVERY_STORE: Final = {
    "concurrency": "requests in flight (default 32; up to 256 small reads if latency is high)",
    "max_gap_bytes": "largest gap in bytes between two ranges that are read as one",
    "timeout": "seconds for one request (default 300)",
    "max_retries": "retries after transient failures (default 8)",
}
_EVERY_SERVER: Final = {
    "allow_http": "true to connect without TLS to an endpoint given without http://",
    "allow_invalid_certificates": "true to accept any TLS certificate",
}

KNOWN_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "local": {"follow_symlinks": "true to follow links out of the folder"},
    "memory": {},
    "s3": {
        "key": "access key id",
        "secret": "secret access key",
        "token": "session token",
        "endpoint_url": "URL of an S3-compatible server",
        "region": "region of the bucket",
        "anon": "true for public buckets: requests are not signed",
        "profile": "name of a profile in the AWS configuration files",
        "requester_pays": "true to pay for requests to the bucket of another account",
        "virtual_hosted_style": "true for https://bucket.host/key instead of https://host/bucket/key",
        **_EVERY_SERVER,
        **_EVERY_STORE,
    },
    "gs": {
        "token": "path or text of a service account's JSON key, 'anon', or an access token",
        "anon": "true for public buckets: requests are not signed",
        "project": "project to bill",
        "endpoint_url": "URL of a GCS-compatible server",
        **_EVERY_SERVER,
        **_EVERY_STORE,
    },
    "az": {
        "account_name": "storage account",
        "account_key": "key of the account",
        "sas_token": "shared access signature",
        "connection_string": "connection string, instead of the three above",
        "tenant_id": "tenant of a service principal",
        "client_id": "id of a service principal",
        "client_secret": "secret of a service principal",
        "authority_host": "URL of the login server of a service principal, in other clouds",
        "token": "access token of Microsoft Entra ID",
        "anon": "true for public containers: requests are not signed",
        "endpoint_url": "URL of a blob service",
        **_EVERY_SERVER,
        **_EVERY_STORE,
    },
    "http": {**_EVERY_SERVER, **_EVERY_STORE},
    "other": {
        "single_writer": "true to promise that only one process writes",
        "concurrency": "requests in flight (default 32)",
        "max_gap_bytes": _EVERY_STORE["max_gap_bytes"],
        "max_retries": _EVERY_STORE["max_retries"],
    },
}
"""Kind of URL -> canonical name of an option -> one line of help."""

SECRET_OPTIONS: Final = frozenset(
    ("key", "secret", "token", "account_key", "sas_token", "connection_string", "client_secret")
)
"""Options whose values must not appear in messages."""

#: Words in names of options whose values may be credentials, of any client.
SECRET_WORDS: Final = re.compile(
    "key|secret|token|password|connection|credential|service.?account|sas", re.IGNORECASE
)

_EVERY_ALIAS: Final = {"skip_signature": "anon", "anonymous": "anon", "endpoint": "endpoint_url"}
_ALIASES: Final = {
    "s3": {
        "access_key_id": "key",
        "aws_access_key_id": "key",
        "access_key": "key",
        "secret_access_key": "secret",
        "aws_secret_access_key": "secret",
        "secret_key": "secret",
        "session_token": "token",
        "aws_session_token": "token",
        "aws_endpoint_url": "endpoint_url",
        "aws_endpoint": "endpoint_url",
        "region_name": "region",
        "aws_region": "region",
        "default_region": "region",
        "request_payer": "requester_pays",
        "virtual_hosted_style_request": "virtual_hosted_style",
        **_EVERY_ALIAS,
    },
    "gs": {
        "service_account": "token",
        "service_account_key": "token",
        "application_credentials": "token",
        **_EVERY_ALIAS,
    },
    "az": {
        "account": "account_name",
        "access_key": "account_key",
        "sas_key": "sas_token",
        "bearer_token": "token",
        **_EVERY_ALIAS,
    },
}
_NEGATED: Final = {"s3": {"force_path_style": "virtual_hosted_style"}}

_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")
_BOOLEANS: Final = frozenset(
    {
        "anon",
        "requester_pays",
        "virtual_hosted_style",
        "follow_symlinks",
        "single_writer",
        *_EVERY_SERVER,
    }
)
_NUMBERS: Final = {
    "concurrency": (1, 1024),
    "max_gap_bytes": (0, 2**30),
    "timeout": (1, 86_400),
    "max_retries": (0, 100),
}


def _squashed(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


class StorageOptions(Mapping[str, str]):
    """Checked options under their canonical names: immutable, hashable, picklable, never shown."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = tuple(sorted(values.items()))

    def __getitem__(self, name: str) -> str:
        for known, value in self._values:
            if known == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self._values)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name}: ..." for name in self) + "}"

    def flag(self, name: str, default: bool = False) -> bool:
        """Return True if a checked option is true; ``default`` if it is not given."""
        value = self.get(name)
        return default if value is None else value == "true"

    def number(self, name: str, default: int) -> int:
        """Return a checked whole-number option."""
        value = self.get(name)
        return default if value is None else int(value)


@dataclass(frozen=True, slots=True)
class VirtualAccess:
    """The right to fetch virtual chunks."""

    authorized: tuple[str, ...] = ()
    """URL prefixes from which the user allows virtual chunks to be fetched."""
    options: Mapping[str, str] = StorageOptions({})
    """Storage options for virtual chunks, which override those of the containers. Never shown."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", StorageOptions(self.options))


NO_ACCESS: Final = VirtualAccess()


def parse_options(kind: str, given: Mapping[str, str]) -> StorageOptions:
    """Return the options of a kind of URL under their canonical names.

    Raises InvalidInputError if a name is unknown or given twice, or a value is invalid.
    """
    spellings = _spellings(kind)
    values: dict[str, str] = {}
    first_spelling: dict[str, str] = {}
    for name, value in given.items():
        canonical, negated = spellings.get(_squashed(name), (None, False))
        if canonical is None:
            if kind != "other":
                raise _unknown(kind, name, spellings)
            canonical = name.replace("-", "_")
        if canonical in values:
            raise InvalidInputError(
                f"storage.{name} and storage.{first_spelling[canonical]} are the same option; "
                "give one of them",
                option=canonical,
            )
        first_spelling[canonical] = name
        values[canonical] = _checked(name, canonical, value, negated)
    return StorageOptions(values)


def canonical_options(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return options of a kind of URL under their canonical names, and unknown ones unchanged."""
    spellings = _spellings(kind)
    found = {}
    for name, value in given.items():
        canonical, is_negated = spellings.get(_squashed(name), (name, False))
        found[name if is_negated else canonical] = value
    return found


def relevant_options(kind: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a kind of URL has; all of them for URLs that only fsspec supports."""
    spellings = _spellings(kind)
    return {
        name: value
        for name, value in given.items()
        if kind == "other" or _squashed(name) in spellings
    }


def _spellings(kind: str) -> dict[str, tuple[str, bool]]:
    spellings = {_squashed(name): (name, False) for name in KNOWN_OPTIONS[kind]}
    for alias, name in _ALIASES.get(kind, {}).items():
        spellings[_squashed(alias)] = (name, False)
    for alias, name in _NEGATED.get(kind, {}).items():
        spellings[_squashed(alias)] = (name, True)
    return spellings


def _checked(name: str, canonical: str, value: str, negated: bool) -> str:
    if canonical in _BOOLEANS:
        lowered = value.strip().lower()
        if lowered not in _TRUE + _FALSE:
            raise InvalidInputError(
                f"storage.{name} is neither true nor false; write 'true' or 'false'", option=name
            )
        return "true" if (lowered in _TRUE) is not negated else "false"
    if canonical in _NUMBERS:
        low, high = _NUMBERS[canonical]
        string = value.strip()
        is_short = len(string) < 20 and string.isascii()
        if not (is_short and string.isdigit() and low <= int(string) <= high):
            raise InvalidInputError(
                f"storage.{name} must be a whole number from {low} to {high}", option=name
            )
        return string
    return value


def _unknown(kind: str, name: str, spellings: Mapping[str, tuple[str, bool]]) -> InvalidInputError:
    known = sorted(KNOWN_OPTIONS[kind])
    near = nearest(_squashed(name), spellings, cutoff=0.5)
    guess = f"; did you mean storage.{spellings[near][0]}?" if near else "."
    allowed = ", ".join(known) if known else "none"
    urls = _KIND_NAMES.get(kind, f"{kind}:// URLs")
    return InvalidInputError(
        f"storage.{name} is not an option of {urls}{guess} Known: {allowed}",
        option=name,
        known=known,
    )


_KIND_NAMES: Final = {"local": "local folders", "http": "http(s):// URLs", "other": "this URL"}
