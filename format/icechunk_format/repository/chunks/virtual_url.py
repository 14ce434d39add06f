"""Parses URLs of virtual chunks and of authorized prefixes by the same rules.

A repository is untrusted, and its virtual references name bytes that are fetched with the reader's
network and credentials. The parts of a URL that are checked against authorized prefixes are also
those that are fetched, since parsing a URL in two ways would let a reference escape the check.

Rules of this file
------------------
1. The scheme is lower case; hosts of http are in ASCII, as used for connections, without their
   default port. Buckets are compared verbatim.
2. The path ends at ``?`` or ``#`` and is percent-decoded once, as the format requires. ``.`` and
   ``..`` segments, plain or encoded, are refused, not resolved.
3. A user name before the host is refused: the host of ``https://trusted.org@evil.org/`` is
   evil.org. Azure's ``container@account``, where ``@`` has another meaning, is allowed.
4. A prefix covers whole path segments: ``s3://data/a`` covers ``s3://data/a/b``, not
   ``s3://data/abc``; ``s3://data`` does not cover ``s3://data-evil``.

Specification: "Virtual chunks".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from icechunk_format.errors import IcechunkError
from icechunk_format.storage.address import ascii_authority

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)", re.DOTALL)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_USER_IN_AUTHORITY: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})


class MalformedUrlError(IcechunkError):
    """The string is not a URL that can be checked; the caller adds its origin to the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlParts:
    """The parts of a URL, for authorizing and fetching.

    Attributes
    ----------
    scheme
        In lower case.
    authority
        Bucket, container or host; empty for files.
    path
        Percent-decoded; empty or beginning with ``/``.
    """

    scheme: str
    authority: str
    path: str

    def covers(self, other: UrlParts) -> bool:
        """Return True if ``other`` is at or below this URL, compared by path segments."""
        if (self.scheme, self.authority) != (other.scheme, other.authority):
            return False
        if self.path in ("", "/"):
            return True
        if self.path.endswith("/"):
            return other.path.startswith(self.path)
        return other.path == self.path or other.path.startswith(self.path + "/")


def parse_url(string: str) -> UrlParts:
    """Parse a URL.

    Raises MalformedUrlError if the string is not a valid URL; the message does not repeat it.
    """
    match = _URL.match(string)
    if match is None:
        raise MalformedUrlError("it does not begin with a scheme such as s3:// or file://")
    scheme, authority, raw_path = match[1].lower(), match[2], match[3]
    if "@" in authority and scheme not in _USER_IN_AUTHORITY:
        raise MalformedUrlError("it has a user name or password in front of the host")
    if "::" in authority and not authority.startswith("["):
        raise MalformedUrlError("it is a chain of URLs, of which only one can be checked")
    if scheme in ("http", "https"):
        try:
            authority = ascii_authority(authority).removesuffix(_DEFAULT_PORTS[scheme])
        except ValueError:
            raise MalformedUrlError("it names no host that can be connected to") from None
    if scheme == "file":
        if authority.lower() not in ("", "localhost"):
            raise MalformedUrlError(f"it names a file of another machine, {authority!r}")
        authority = ""
    elif not authority:
        raise MalformedUrlError("it names no bucket or host")
    try:
        path = unquote_to_bytes(raw_path).decode("utf-8")
        authority.encode("utf-8")
    except UnicodeError:
        raise MalformedUrlError("it is not valid UTF-8 after percent-decoding") from None
    if scheme == "file":
        path = re.sub("/{2,}", "/", path)
    for part in (authority, path):
        if "\\" in part or any(ord(c) < 32 or ord(c) == 127 for c in part):
            raise MalformedUrlError("it holds a backslash or a control character")
    if any(segment in (".", "..") for segment in path.split("/")):
        raise MalformedUrlError("it holds a '.' or '..' segment, which could leave its prefix")
    return UrlParts(scheme=scheme, authority=authority, path=path)


def shown(location: str) -> str:
    """Return a location for messages: shortened, and without a query, which may be a signature."""
    string = re.split(r"[?#]", location, maxsplit=1)[0]
    scheme, separator, rest = string.partition("://")
    if separator and "@" in rest.partition("/")[0] and scheme.lower() not in _USER_IN_AUTHORITY:
        string = f"{scheme}://***@{rest.partition('@')[2]}"
    return string if len(string) <= 300 else string[:300] + "..."
