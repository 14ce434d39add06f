"""Resolves the location of a virtual chunk to a storage and key that the user authorized.

Algorithm
---------
1. ``vcc://NAME/rest`` becomes the URL prefix of the container NAME followed by ``rest``. Any
   other location belongs to the container with the longest URL prefix that it begins with, as
   written or percent-decoded, if any.
2. The URL is parsed (``virtual_url``). One of the prefixes that the *user* gave must cover it.
   Containers authorize nothing.
3. The storage is the bucket or host, or for files the authorized folder itself. Its options are
   those of the container (region, endpoint, anonymous access, never credentials), overridden by
   the user's.

Containers are part of a repository, which is untrusted. A container cannot provide credentials,
read files or disable checks.

=====================  ==========================  ================================================
container's store      options taken from it       others (timeouts, checksums, headers) are left
=====================  ==========================  ================================================
s3, s3_compatible      region, endpoint_url,       ``anonymous`` gives way to credentials that the
                       anonymous,                  user gives
                       force_path_style,
                       requester_pays
tigris                 the same                    endpoint https://t3.storage.dev by default
gcs                    skip_signature, base_url    written with or without ``google_*``
azure                  account, skip_signature,    written with or without ``azure_storage_*``,
                       endpoint                    ``azure_*``
http,                  nothing
local_file_system
=====================  ==========================  ================================================

A container may also name an endpoint, which would receive credentials and provide the bytes. The
user must authorize it too, by ``virtual.authorize`` or ``virtual.storage.endpoint_url``.
Redirects of web servers to this machine or to a metadata service are not followed.

Specification: "Virtual chunks", "Virtual chunk containers".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from icechunk_format.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.repository.chunks.virtual_url import (
    MalformedUrlError,
    UrlParts,
    parse_url,
    shown,
)
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import (
    KNOWN_OPTIONS,
    SECRET_OPTIONS,
    StorageOptions,
    parse_options,
    relevant_options,
)

if TYPE_CHECKING:
    from icechunk_format.encoding.config.config import VirtualChunkContainer

_NAMED: Final = "vcc://"
_TIGRIS_ENDPOINT: Final = "https://t3.storage.dev"

_S3_WORDS: Final = {
    "region": "region",
    "endpoint_url": "endpoint_url",
    "anonymous": "anon",
    "force_path_style": "force_path_style",
    "requester_pays": "requester_pays",
}
_WORDS: Final[dict[str, dict[str, str]]] = {
    "s3": _S3_WORDS,
    "s3_compatible": _S3_WORDS,
    "tigris": _S3_WORDS,
    "gcs": {
        "skip_signature": "anon",
        "google_skip_signature": "anon",
        "base_url": "endpoint_url",
        "google_base_url": "endpoint_url",
    },
    "azure": {
        "account": "account_name",
        "account_name": "account_name",
        "azure_storage_account_name": "account_name",
        "skip_signature": "anon",
        "azure_skip_signature": "anon",
        "endpoint": "endpoint_url",
        "azure_endpoint": "endpoint_url",
        "azure_storage_endpoint": "endpoint_url",
    },
}
_CREDENTIALS: Final = SECRET_OPTIONS | {"profile", "client_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualObject:
    """The object of a virtual chunk: its storage, and its key there."""

    location: Location
    object_key: str


def parse_authorized(prefixes: Iterable[str]) -> dict[str, UrlParts]:
    """Parse the URL prefixes that a user authorizes; ``s3://`` alone is refused."""
    authorized = {}
    for string in prefixes:
        try:
            authorized[string] = parse_url(string)
        except MalformedUrlError as error:
            raise InvalidInputError(
                f"virtual.authorize cannot be {shown(string)!r}: {error}; "
                "give URL prefixes such as s3://bucket/folder/ or file:///data/",
                found=shown(string),
            ) from None
    return authorized


def is_authorized(url_prefix: str, prefixes: Iterable[str]) -> bool:
    """Return True if one of the authorized prefixes covers all URLs below ``url_prefix``."""
    try:
        parts = parse_url(url_prefix)
    except MalformedUrlError:
        return False
    return any(prefix.covers(parts) for prefix in parse_authorized(prefixes).values())


class VirtualResolver:
    """Resolves locations of virtual chunks, and caches the results."""

    def __init__(
        self,
        containers: Sequence[VirtualChunkContainer],
        authorized: Iterable[str],
        options: Mapping[str, str],
    ) -> None:
        # All readers ignore containers whose prefix does not end with "/".
        usable = [c for c in containers if c.url_prefix.endswith("/")]
        self._by_length = sorted(usable, key=lambda c: len(c.url_prefix), reverse=True)
        self._by_name = {c.name: c for c in reversed(usable) if c.name is not None}
        self._authorized = parse_authorized(authorized)
        self._options = options
        self._resolved: dict[str, VirtualObject] = {}

    def resolve(self, location: str) -> VirtualObject:
        """Return the object at a location.

        Raises
        ------
        UnauthorizedVirtualChunkError
            No authorized prefix covers the location, or it could leave its prefix.
        NotFoundError
            It names a container that the repository does not have.
        FormatError
            It is not a URL.
        """
        resolved = self._resolved.get(location)
        if resolved is None:
            resolved = self._resolved[location] = self._resolve(location)
        return resolved

    def _resolve(self, location: str) -> VirtualObject:
        url, container = self._container_of(location)
        try:
            parts = parse_url(url)
        except MalformedUrlError as error:
            raise _refused(
                location,
                f"{error}\n"
                "locations must be plain absolute URLs that stay below an authorized prefix",
                problem=str(error),
            ) from None
        covering = self._covering(parts)
        if covering is None:
            raise self._unauthorized(location, parts, container)
        return self._object(location, parts, covering, container)

    def _container_of(self, location: str) -> tuple[str, VirtualChunkContainer | None]:
        if location[: len(_NAMED)].lower() == _NAMED:
            name, _, rest = location[len(_NAMED) :].partition("/")
            container = self._by_name.get(name)
            if container is None:
                names = ", ".join(sorted(self._by_name)) or "none"
                raise NotFoundError(
                    f"the virtual chunk at {shown(location)!r} belongs to the container {name!r}, "
                    f"which the repository does not have; named containers: {names}",
                    kind="virtual chunk container",
                    name=name,
                )
            return container.url_prefix + rest, container
        spellings = (location, _decoded(location))
        for container in self._by_length:
            if any(spelling.startswith(container.url_prefix) for spelling in spellings):
                return location, container
        return location, None

    def _covering(self, parts: UrlParts) -> UrlParts | None:
        covering = [prefix for prefix in self._authorized.values() if prefix.covers(parts)]
        return max(covering, key=lambda prefix: len(prefix.path), default=None)

    def _unauthorized(
        self, location: str, parts: UrlParts, container: VirtualChunkContainer | None
    ) -> UnauthorizedVirtualChunkError:
        if container is None:
            belongs = "no container of the repository covers it"
            suggestion = shown(
                f"{parts.scheme}://{parts.authority}{parts.path.rpartition('/')[0]}/"
            )
        else:
            named = f" {container.name!r}" if container.name else ""
            suggestion = shown(container.url_prefix)
            belongs = f"its container{named} has the prefix {suggestion!r}"
        prefixes = ", ".join(self._authorized)
        allowed = f"only {prefixes} is authorized" if prefixes else "no prefix is authorized"
        return _refused(
            location,
            f"{belongs}, and {allowed}\nto allow it, set the option virtual.authorize={suggestion}",
            container=None if container is None else container.name,
            url_prefix=suggestion,
        )

    def _object(
        self,
        location: str,
        parts: UrlParts,
        covering: UrlParts,
        container: VirtualChunkContainer | None,
    ) -> VirtualObject:
        root_url, object_key = _root_url(parts), parts.path.lstrip("/")
        if parts.scheme == "file":
            # A storage cannot leave its folder, so the authorized folder is used as its root.
            folder = covering.path.rstrip("/")
            if folder == parts.path:
                folder = folder.rpartition("/")[0]
            root_url, object_key = folder or "/", parts.path[len(folder) + 1 :]
        if not object_key:
            raise FormatError(
                f"the location {shown(location)!r} of a virtual chunk names no object",
                object_key=shown(location),
                file_type="manifest",
                field="location",
            )
        if "//" in f"/{object_key}/":
            raise UnsupportedError(
                f"the virtual chunk at {shown(location)!r} is under a key with an empty segment "
                "('//' or a final '/'), which the storage clients cannot address",
                location=shown(location),
            )
        kind = Location(root_url).address.kind
        options, endpoint = _storage_options(kind, container, self._options)
        if endpoint is not None and (parts.scheme, endpoint) != ("tigris", _TIGRIS_ENDPOINT):
            self._check_endpoint(endpoint, location)
        # Web servers redirect, and only the fsspec client can check the target.
        client: Literal["auto", "fsspec"] = "fsspec" if kind == "http" else "auto"
        return VirtualObject(
            location=Location(root_url, client=client, options=options), object_key=object_key
        )

    def _check_endpoint(self, endpoint: str, location: str) -> None:
        try:
            parts = parse_url(endpoint)
        except MalformedUrlError as error:
            raise _refused(
                location,
                f"its container names the endpoint {shown(endpoint)!r}, but {error}\n"
                "set virtual.storage.endpoint_url to the right one",
                endpoint_url=shown(endpoint),
            ) from None
        if self._covering(parts) is None:
            raise _refused(
                location,
                f"its container names the endpoint {shown(endpoint)!r}, which is not authorized\n"
                f"to send requests and credentials there, add {shown(endpoint)} to "
                f"virtual.authorize, or set virtual.storage.endpoint_url={shown(endpoint)}",
                endpoint_url=shown(endpoint),
            )


def _refused(location: str, reason: str, **facts: object) -> UnauthorizedVirtualChunkError:
    return UnauthorizedVirtualChunkError(
        f"the virtual chunk at {shown(location)!r} was not fetched: {reason}",
        location=shown(location),
        **facts,
    )


def _decoded(location: str) -> str:
    try:
        parts = parse_url(location)
    except MalformedUrlError:
        return location
    return f"{parts.scheme}://{parts.authority}{parts.path}"


def _root_url(parts: UrlParts) -> str:
    # Tigris has the S3 API; its scheme only selects its endpoint.
    scheme = "s3" if parts.scheme == "tigris" else parts.scheme
    return f"{scheme}://{parts.authority}"


# -- options ------------------------------------------------------------------------------------


def _storage_options(
    kind: str, container: VirtualChunkContainer | None, user_options: Mapping[str, str]
) -> tuple[StorageOptions, str | None]:
    """Return the options for the storage of a virtual chunk, and the container's endpoint in them.

    ``kind`` is a key of ``KNOWN_OPTIONS``. The endpoint is None if the user gave one.
    """
    own = parse_options(kind, relevant_options(kind, user_options))
    stated = {} if container is None else _stated(container)
    theirs = dict(parse_options(kind, relevant_options(kind, stated)))
    if _CREDENTIALS & own.keys() or "anon" in own:
        theirs.pop("anon", None)
    merged = StorageOptions(theirs | dict(own))
    endpoint = None if "endpoint_url" in own else merged.get("endpoint_url")
    return merged, endpoint


def check_virtual_options(options: Mapping[str, str], prefixes: Iterable[str]) -> None:
    """Raise InvalidInputError for a virtual storage option that no kind of storage has.

    If a prefix is opened by fsspec, its options are unknown, and none is refused.
    """
    if any(Location(prefix).address.kind == "other" for prefix in prefixes):
        return
    kinds = [kind for kind in KNOWN_OPTIONS if kind != "other"]
    for name, value in options.items():
        if not any(relevant_options(kind, {name: value}) for kind in kinds):
            parse_options("s3", {name: value})


def _stated(container: VirtualChunkContainer) -> dict[str, str]:
    words = _WORDS.get(container.store_kind, {})
    stated: dict[str, str] = {}
    for name, value in container.store_options.items():
        word = words.get(name.lower())
        if word is not None and (string := _string(value)) is not None:
            stated.setdefault(word, string)
    if container.store_kind == "tigris":
        stated.setdefault("endpoint_url", _TIGRIS_ENDPOINT)
    if "endpoint_url" not in stated and stated.get("force_path_style") == "false":
        # A container's default for AWS; the user's endpoint may not support buckets in host names.
        del stated["force_path_style"]
    return stated


def _string(value: Any) -> str | None:
    """Return a stored string or boolean as the value of an option; None for other values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) and value else None
