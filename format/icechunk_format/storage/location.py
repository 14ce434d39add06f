"""The location of a repository or of other objects, and the storage that it opens.

A :class:`Location` consists of a URL, a choice of client, and options. It holds no client, so it
can be sent to executors; each process opens its own clients. Option values are never shown.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import Address, parse_url
from icechunk_format.storage.concurrency import PerProcess
from icechunk_format.storage.options import StorageOptions, parse_options
from icechunk_format.storage.protocol import ReadRequest, Storage
from icechunk_format.storage.ranges import DEFAULT_MAX_GAP, plan_local_reads, plan_reads

Client: TypeAlias = Literal["auto", "obstore", "fsspec"]

_CLIENTS: Final = ("auto", "obstore", "fsspec")
_OBSTORE_KINDS: Final = ("s3", "gs", "az", "http", "memory")


@dataclass(frozen=True, slots=True, repr=False)
class Location:
    """The location of a repository or of other objects.

    Parameters
    ----------
    url
        Local path, ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://``, ``abfs(s)://``,
        ``http(s)://`` (read only), or any other URL that fsspec opens.
    client
        ``"auto"`` (obstore for s3, gs, az and http, fsspec for other kinds of URLs),
        ``"obstore"`` or ``"fsspec"``.
    options
        ``storage.*`` without the prefix; see :mod:`icechunk_format.storage.options`.

    Raises
    ------
    InvalidInputError
        The URL, the client or an option is invalid.

    Examples
    --------
    >>> Location("s3://bucket/weather", options={"region": "eu-central-1", "anon": "true"})
    Location('s3://bucket/weather', client='auto', options={anon: ..., region: ...})
    """

    url: str
    client: Client = field(default="auto", kw_only=True)
    options: Mapping[str, str] = field(default=StorageOptions({}), kw_only=True)

    @classmethod
    def of(cls, place: Place) -> Location:
        """Return the location of a URL or a local path; a ``Location`` is returned unchanged.

        Raises
        ------
        InvalidInputError
            The argument has another type or is invalid.
        """
        return place if isinstance(place, cls) else cls(_string_of(place))

    def __post_init__(self) -> None:
        address = parse_url(_string_of(self.url))
        if self.client not in _CLIENTS:
            raise InvalidInputError(
                f"storage.client is {self.client!r}; it can be {', '.join(_CLIENTS)}",
                option="storage.client",
                found=self.client,
                allowed=_CLIENTS,
            )
        if self.client == "obstore" and address.kind not in _OBSTORE_KINDS:
            raise InvalidInputError(
                f"storage.client=obstore cannot serve {address.shown_url}; "
                "leave storage.client out",
                option="storage.client",
                found="obstore",
            )
        kind = address.kind
        if self.client == "fsspec" and kind in ("local", "memory"):
            kind = "other"
        object.__setattr__(self, "url", address.url)
        object.__setattr__(self, "options", parse_options(kind, self.options))

    @property
    def address(self) -> Address:
        """The parsed URL."""
        return parse_url(self.url)

    @property
    def checked_options(self) -> StorageOptions:
        """The options under their canonical names."""
        options = self.options
        return options if isinstance(options, StorageOptions) else StorageOptions(options)

    def __str__(self) -> str:
        return self.address.shown_url

    def __repr__(self) -> str:
        return f"Location({str(self)!r}, client={self.client!r}, options={self.options!r})"


def _string_of(place: object) -> str:
    string = os.fspath(place) if isinstance(place, os.PathLike) else place
    if not isinstance(string, str):
        raise InvalidInputError(
            f"{place!r} is a {type(place).__name__}, not a location; give a URL, a local "
            "path or a Location",
            found=place,
        )
    return string


Place: TypeAlias = Location | str | os.PathLike[str]
"""Type of the repository argument of public functions; see ``Location.of``."""

_MAX_OPENED: Final = 256

_opened: dict[tuple[int, Location, int], Storage] = {}


def open_storage(location: Location) -> Storage:
    """Return the storage of a location; a process has one storage for equal locations.

    The first request connects. If environment variables for credentials, endpoints or proxies have
    changed, a new storage is made.
    """
    is_local = location.url.startswith(("/", "memory:"))
    key = (os.getpid(), location, 0 if is_local else environment_mark())
    storage = _opened.get(key)
    if storage is None:
        if len(_opened) >= _MAX_OPENED:
            # Each renewal of credentials makes a new location, so the cache is bounded. Storages in
            # use stay alive.
            _opened.clear()
        storage = _opened.setdefault(key, _make(location))
    return storage


def planned_reads(location: Location, requests: Sequence[ReadRequest]) -> list[ReadRequest]:
    """Return the reads that ``Storage.get_many`` would send for some requests."""
    if location.client == "auto" and location.address.kind == "local":
        return plan_local_reads(requests).reads
    gap = location.checked_options.number("max_gap_bytes", DEFAULT_MAX_GAP)
    return plan_reads(requests, max_gap=gap).reads


def environment_mark() -> int:
    """Return a hash of the environment variables that the clients read."""
    prefixes = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    return hash(tuple(item for item in os.environ.items() if item[0].upper().startswith(prefixes)))


def _make(location: Location) -> Storage:
    address = location.address
    # Imported only if needed, as in `_open_clients`.
    if location.client == "auto" and address.kind == "local":
        from icechunk_format.storage.local.store import LocalStorage

        follow_symlinks = location.checked_options.flag("follow_symlinks")
        return LocalStorage(address.path, follow_symlinks=follow_symlinks)
    if location.client == "auto" and address.kind == "memory":
        from icechunk_format.storage.memory import MemoryStorage

        return MemoryStorage(address.path)
    return cast("Storage", PerProcessStorage(location))


class PerProcessStorage:
    """A ``Storage`` that delegates to one that each process opens on first use.

    It survives pickling and forks. With ``storage.client=auto``, a process forked after its parent
    had used obstore uses the other client (see ``obstore/store.py``).
    """

    def __init__(self, location: Location) -> None:
        self.root_url = location.address.shown_url
        self.is_read_only = location.address.kind == "http"
        self.cache_scope: Hashable = (location, environment_mark())
        self._location = location
        self._storage = PerProcess(lambda: _open_clients(location))

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return getattr(self._storage.get(), verb)

    def __repr__(self) -> str:
        return f"PerProcessStorage({self.root_url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return open_storage, (self._location,)


def _open_clients(location: Location) -> Storage:
    """Make the clients of a location in this process.

    Client libraries are imported only if needed: importing all of them takes longer than reading a
    folder, and each new Python worker of Spark imports them again.
    """
    address, options = location.address, location.checked_options
    if location.client == "obstore" or (location.client == "auto" and address.kind != "other"):
        from icechunk_format.storage.remote.obstore.store import ObjectStoreStorage, claim_runtime

        if claim_runtime():
            return ObjectStoreStorage(address, options)
        if location.client == "obstore":
            raise UnsupportedError(
                f"{location} cannot be opened through obstore here: this process was forked after "
                "its parent had used obstore, which does not survive that; set "
                "storage.client=fsspec, or start processes with multiprocessing's 'spawn'"
            )
    if address.kind == "s3":
        from icechunk_format.storage.remote.s3_store import S3Storage

        return S3Storage(address, options)
    from icechunk_format.storage.remote.fsspec_store import FsspecStorage

    return FsspecStorage(address, options)
