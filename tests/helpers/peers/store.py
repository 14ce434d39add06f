"""A Zarr store over a session, for the tests that other libraries have of their stores."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from helpers.peers.keys import ReadView, SessionKeys
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


def opened(url: str, *, read_only: bool = False, spec_version: int = 2) -> SessionStore:
    """Return a store over a new session of ``main``, in a repository that is made if needed."""
    repository = Repository.find(url) or Repository.create(url, spec_version=spec_version)
    if read_only:
        return SessionStore(repository, view_of(repository))
    return SessionStore(repository, repository.writable_session("main"))


def view_of(repository: Repository, **version: Any) -> ReadView:
    """Return a snapshot for reading; the keywords are those of ``Repository.resolve``."""
    return ReadView(repository, repository.snapshot(repository.resolve(**version)))


def check_writable(store: Store, value: Buffer) -> None:
    """Raise the errors of zarr for a store that is read-only, or a value that is no buffer."""
    store._check_writable()
    if not isinstance(value, Buffer):
        raise TypeError(
            f"{type(store).__name__}.set(): `value` must be a Buffer instance. Got an instance "
            f"of {type(value)} instead."
        )


class SessionStore(Store):
    """A store whose changes are those of a session; ``session.commit`` commits them."""

    supports_writes = True
    supports_deletes = True
    supports_listing = True
    supports_partial_writes = False
    # Icechunk keeps a document for each node, in one snapshot.
    supports_consolidated_metadata = False

    def __init__(self, repository: Repository, session: Any, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only or isinstance(session, ReadView))
        self.repository = repository
        self.session = session
        self.keys = SessionKeys(session, repository.chunk_source())

    @classmethod
    async def open(cls, url: str, **kwargs: Any) -> Self:
        """Return an open store over a new session of a repository; see ``opened``."""
        store = opened(url, **kwargs)
        await store._open()
        return store

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionStore):
            return False
        same = self.session is other.session or (self.read_only and other.read_only)
        return same and (self.repository.location, self.session.snapshot_id) == (
            other.repository.location,
            other.session.snapshot_id,
        )

    __hash__ = None

    def __repr__(self) -> str:
        return f"SessionStore({str(self.repository.location)!r}, {self.session.snapshot_id})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.session.has_changes:
            raise TypeError("changes that are not committed cannot be pickled")
        return _reopened, (self.repository, str(self.session.snapshot_id))

    def with_read_only(self, read_only: bool = False) -> SessionStore:
        return SessionStore(self.repository, self.session, read_only=read_only)

    # -- without a loop -------------------------------------------------------------------------

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        return sync(self.get(key, prototype or default_buffer_prototype(), byte_range))

    def set_sync(self, key: str, value: Buffer) -> None:
        sync(self.set(key, value))

    def delete_sync(self, key: str) -> None:
        sync(self.delete(key))

    # -- reading --------------------------------------------------------------------------------

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        try:
            found = self.keys.get(key, as_tuple(byte_range))
        except InvalidInputError:
            return None
        return None if found is None else prototype.buffer.from_bytes(found)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return await self._size(key) is not None

    async def getsize(self, key: str) -> int:
        size = await self._size(key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def _size(self, key: str) -> int | None:
        try:
            return self.keys.size(key)
        except InvalidInputError:
            return None

    async def list(self) -> AsyncIterator[str]:
        for key, _ in self.keys.sizes():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key, _ in self.keys.sizes(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in self.keys.list_dir(prefix):
            yield name

    # -- writing --------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        check_writable(self, value)
        self.keys.set(key, value.to_bytes())

    async def delete(self, key: str) -> None:
        self._check_writable()
        with suppress(InvalidInputError):  # no such key exists
            self.keys.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        self._check_writable()
        self.keys.delete_dir(prefix)

    async def clear(self) -> None:
        self._check_writable()
        self.keys.clear()


def _reopened(repository: Repository, snapshot: str) -> SessionStore:
    return SessionStore(repository, view_of(repository, snapshot=snapshot))


def as_tuple(request: ByteRequest | None) -> tuple[int | None, int | None]:
    """Return the start and the end of a request."""
    match request:
        case None:
            return None, None
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return None, suffix
    raise ValueError(f"Unexpected byte_range, got {request}.")
