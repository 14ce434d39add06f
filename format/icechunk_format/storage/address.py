r"""Parses URLs and local paths into kind of storage, bucket and path, without I/O.

| URL | kind | bucket | path |
|---|---|---|---|
| ``data/era5``, ``~/x``, ``C:\x``, ``file:///x``, ``file:/x`` | local | - | absolute path |
| ``memory://a/b`` | memory | - | ``a/b`` |
| ``s3://bucket/a`` (``s3a``, ``s3n``) | s3 | bucket | ``a`` |
| ``gs://bucket/a`` (``gcs``) | gs | bucket | ``a`` |
| ``az://container/a``, ``abfs(s)://`` or ``wasb(s)://c@account.host/a`` | az | container | ``a`` |
| ``dbfs:/Volumes/a`` | local | - | ``/Volumes/a`` |
| ``http(s)://host/a`` | http | - | ``a`` |
| any other ``scheme://`` or ``a::b`` | other | - | passed to fsspec |

Keys in ``s3``, ``gs`` and ``az`` URLs are verbatim, as in fsspec: nothing is percent-decoded.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from icechunk_format.errors import InvalidInputError

Kind: TypeAlias = Literal["local", "memory", "s3", "gs", "az", "http", "other"]

_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+)://")
_ONE_SLASH: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]+):(/.*)$")
_IPV6: Final = re.compile(r"(?<=://)\[[^]/]*]")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_CHAINED: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]+::")
_KINDS: Final[dict[str, Kind]] = {
    "file": "local",
    "local": "local",
    "memory": "memory",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
    "http": "http",
    "https": "http",
}

# Where Databricks mounts volumes.
_VOLUMES: Final = "/Volumes/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URL."""

    kind: Kind
    """Kind of storage."""
    url: str
    """The normalized URL: no slash at the end, local paths absolute and without scheme."""
    shown_url: str
    """The URL for messages: without user, password and query."""
    bucket: str = ""
    """Bucket or container; empty if the kind has none."""
    path: str = ""
    """Path of the root within the bucket, without slashes at its ends; absolute for ``local``."""
    account: str | None = None
    """Azure account, if the URL names it."""

    @property
    def root_prefix(self) -> str:
        """Prefix of every key in the bucket: empty, or the path with a slash."""
        return f"{self.path}/" if self.path else ""


def parse_url(url: str) -> Address:
    """Parse a URL or a local path."""
    if not url.strip():
        raise InvalidInputError("the storage path is empty; give a local path or a URL")
    try:
        # Local paths may have bytes that are not Unicode.
        url.encode(errors="strict" if "://" in url else "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"the path {_shown(url)!r} cannot be encoded: it has half of a surrogate pair"
        ) from None
    match = _SCHEME.match(url)
    if match is None:
        if _CHAINED.match(url):
            return Address(kind="other", url=url, shown_url=_shown(url))
        return _local(os.path.expanduser(_without_hadoop_scheme(url)))
    scheme = match.group(1).lower()
    rest = url[match.end() :]
    if scheme == "dbfs" and rest.startswith(_VOLUMES):
        return _local(rest)
    kind = _KINDS.get(scheme, "other")
    if "::" in _IPV6.sub("", url) or kind == "other":
        return Address(kind="other", url=url.rstrip("/"), shown_url=_shown(url.rstrip("/")))
    if kind == "local":
        return _local_url(url)
    if kind == "http":
        return _http(url)
    if kind == "memory":
        path = rest.strip("/")
        _check_path(path, url)
        return Address(
            kind="memory", url=f"memory://{path}", shown_url=f"memory://{path}", path=path
        )
    return _bucket(kind, scheme, rest, url)


def ascii_authority(string: str) -> str:
    """Return a host with optional port, normalized for a connection: IDNA, lower case.

    Raises ValueError if the string is not a host with or without a port.
    """
    host, bracket, port = string.rpartition("]")
    if not bracket:
        host, colon, port = string.partition(":")
        port = colon + port
    found = host.encode("idna").decode("ascii").lower() + bracket + port
    match = _HOST.fullmatch(found)
    if match is None or int(match[2] or 0) > 65535:
        raise ValueError("not a host")
    return found


def _without_hadoop_scheme(path: str) -> str:
    """Return the path of ``file:/x``, as Hadoop writes it; refuse other URLs with one slash."""
    match = _ONE_SLASH.match(path)
    if match is None:
        return path
    scheme, rest = match.groups()
    if scheme.lower() == "file":
        return unquote(rest)
    if scheme.lower() == "dbfs" and rest.startswith(_VOLUMES):
        return rest
    advice = f"/dbfs{rest}" if scheme.lower() == "dbfs" else f"{scheme}:/{rest}"
    raise InvalidInputError(
        f"the path {_shown(path)!r} begins like a URL, but with one slash; write {advice!r}, or "
        f"'./{scheme}:...' for a local folder of that name",
        path=_shown(path),
    )


def _local(path: str) -> Address:
    if "\0" in path:
        raise InvalidInputError("the storage path holds a NUL character; give a plain path")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"the path {_shown(path)!a} cannot be encoded in {sys.getfilesystemencoding()!r}, "
            "the encoding of file names in this process; set PYTHONUTF8=1 or LC_ALL=C.UTF-8",
            path=_shown(path),
        ) from None
    absolute = os.path.abspath(path)
    return Address(kind="local", url=absolute, shown_url=absolute, path=absolute)


def _local_url(url: str) -> Address:
    parts = _split(url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInputError(
            f"{_shown(url)} names the host {parts.netloc!r}, but file URLs reach this machine "
            "only; write file:///path with three slashes"
        )
    # '?' and '#' are ordinary characters of file names, and urlsplit would cut them off.
    path = unquote(url.split("://", 1)[1].removeprefix(parts.netloc))
    if re.match(r"^/[A-Za-z]:", path):
        path = path[1:]
    return _local(path)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # such as of brackets without an address
        raise InvalidInputError(f"{_shown(url)} names no host; write https://host/path") from None


def _http(url: str) -> Address:
    parts = _split(url)
    user, at, host = parts.netloc.rpartition("@")
    try:
        authority = f"{user}{at}{ascii_authority(host)}"
    except ValueError:
        raise InvalidInputError(f"{_shown(url)} names no host; write https://host/path") from None
    if parts.query or parts.fragment:
        raise InvalidInputError(
            f"{_shown(url)} has a query or a fragment, which cannot be appended to keys; "
            "give the URL of the folder alone"
        )
    path = parts.path.strip("/")
    _check_path(path, url)
    normal = f"{parts.scheme.lower()}://{authority}/{path}".rstrip("/")
    return Address(kind="http", url=normal, shown_url=_shown(normal), path=path)


def _bucket(kind: Kind, scheme: str, rest: str, url: str) -> Address:
    bucket, _, path = rest.partition("/")
    authority, account = bucket, None
    if kind == "az" and "@" in bucket:
        bucket, _, host = bucket.partition("@")
        account = host.partition(".")[0]
    if not bucket:
        thing = "container" if kind == "az" else "bucket"
        raise InvalidInputError(f"{_shown(url)} names no {thing}; write {scheme}://{thing}/path")
    if "@" in bucket or ":" in bucket or account == "":
        raise InvalidInputError(
            f"{_shown(url)} has credentials or a port in place of the bucket; give them as "
            "storage.key, storage.secret and storage.endpoint_url"
        )
    path = path.strip("/")
    _check_path(path, url)
    normal = f"{kind if account is None else 'abfss'}://{authority}" + (f"/{path}" if path else "")
    return Address(
        kind=kind, url=normal, shown_url=normal, bucket=bucket, path=path, account=account
    )


def _check_path(path: str, url: str) -> None:
    if path and any(segment in ("", ".", "..") for segment in path.split("/")):
        raise InvalidInputError(
            f"{_shown(url)} has an empty, '.' or '..' segment; write the path without it"
        )


def _shown(url: str) -> str:
    """Return a URL without the parts that may hold credentials: user, password, query, fragment."""
    head, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    authority = authority.rpartition("@")[2]
    path = re.split(r"[?#]", path, maxsplit=1)[0]
    return f"{re.sub(r'//[^/@]*@', '//', head)}{separator}{authority}{slash}{path}"
