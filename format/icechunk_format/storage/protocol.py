"""Defines the interface of every storage: its verbs, their values and the checks of keys.

Rules of this contract
----------------------
1. Keys are relative to the root of the storage, use ``/`` and never leave the root
   (:func:`check_key`). Objects are opaque bytes.
2. A write is atomic: readers see the old object or the new one, never a part.
3. A lost race is a result (``None``), not an error. A conditional write without a response
   raises ``StorageError`` with ``outcome_unknown``: a retry could lose because the first attempt
   succeeded. Overwrites are simply retried.
4. Batch verbs run their requests concurrently; callers limit the bytes that they request.
5. Every storage is picklable and survives a fork: clients are made per process, when first used.

Errors that any verb may raise: ``InvalidInputError`` (a bad key or range), ``StorageError``
(the storage failed), ``ReadOnlyError`` and ``UnsupportedError`` (the storage cannot do it at all).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NoReturn, Protocol, TypeAlias, runtime_checkable

from icechunk_format.errors import InvalidInputError, NotFoundError, ReadOnlyError

MAX_KEY_LENGTH: Final = 1024
"""Longest key in UTF-8 bytes: the limit of S3, GCS and Azure."""

MAX_READ_LENGTH: Final = 8 * 2**30
"""Longest byte range of one request: one damaged reference must not cause a million requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """Identifies one state of an object."""

    etag: str | None
    """The entity tag without quotes; all verbs return the same one for the same state."""
    generation: str | None = None
    """A second identifier that some storages need for a condition: the generation on GCS, a digest
    of the content for local files (only if the content was read or written). Do not compare it."""

    def matches(self, expected: ObjectVersion) -> bool:
        """Return True if this is the expected version; its generation is compared if it has one."""
        return self.etag == expected.etag and (
            expected.generation is None or self.generation == expected.generation
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Bytes of an object, and the version that they were read from."""

    data: bytes
    version: ObjectVersion
    last_modified: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """Size, version and time of an object; ``last_modified`` has a time zone."""

    key: str
    size: int
    version: ObjectVersion
    last_modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One range of one object.

    Attributes
    ----------
    key
        Object key below the root.
    start, end
        Byte range ``[start, end)``; ``None`` means from the first byte, up to the last one.
    suffix
        The last ``suffix`` bytes instead of a range.
    if_match
        Entity tag that the object must still have, with or without quotes.
    if_unmodified_since
        Seconds since 1970 after which the object must not have changed.
    """

    key: str
    start: int | None = None
    end: int | None = None
    suffix: int | None = None
    if_match: str | None = None
    if_unmodified_since: int | None = None

    def __post_init__(self) -> None:
        first = self.start or 0
        last = first if self.end is None else self.end
        if self.suffix is not None:
            if self.start is not None or self.end is not None:
                self._refuse("it has both a range and a suffix; give one")
            first, last = 0, self.suffix
        if first < 0 or last < first:
            self._refuse(f"bytes {first} to {last} are not a range; 0 <= start <= end is needed")
        if self.if_match is not None and not self.if_match.isprintable():
            self._refuse(f"its etag {self.if_match!r} has characters that are not printable")
        if not 0 <= (self.if_unmodified_since or 0) < 2**32:
            self._refuse(
                f"if_unmodified_since is {self.if_unmodified_since}; seconds since 1970 below "
                "2**32 are allowed"
            )
        if last - first > MAX_READ_LENGTH:
            self._refuse(
                f"{last - first} bytes are requested at once; at most {MAX_READ_LENGTH} are allowed"
            )

    def _refuse(self, problem: str) -> NoReturn:
        raise InvalidInputError(f"the read of {self.key!r} is invalid: {problem}", key=self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOnly:
    """Write only if the object does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceIfUnchanged:
    """Write only if the object still has this version."""

    version: ObjectVersion


Condition: TypeAlias = CreateOnly | ReplaceIfUnchanged | None
"""The condition of a write; ``None`` overwrites any existing object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFailure:
    """An object that could not be deleted, and the reason; missing objects count as deleted."""

    key: str
    reason: str


class Storage(Protocol):
    """A storage of objects below one root."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root_url!r})"

    @property
    def root_url(self) -> str:
        """URL of the root for messages, without credentials."""
        ...

    @property
    def cache_scope(self) -> Hashable:
        """Key for caches of the process; storages that may return different bytes differ in it."""
        return self.root_url

    @property
    def is_read_only(self) -> bool:
        """True if every write is refused with ``ReadOnlyError``."""
        return False

    @property
    def lost_race_is_certain(self) -> bool:
        """True if a replacement that returns ``None`` certainly wrote nothing.

        A client of a remote storage may have repeated a request whose response was lost, so that
        its first attempt may have succeeded.
        """
        return False

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        """Return one object, or bytes ``[start, end)`` of it, in one request.

        Raises
        ------
        NotFoundError
            The object (``kind="object"``) or the bucket (``kind="bucket"``) does not exist.
        StorageError
            The object is shorter than ``end``, or the storage failed.
        """
        ...

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        """Return the bytes of every request, in order.

        Ranges of one object that are close together are fetched together, large ones in parts, all
        of them concurrently. An empty range sends no request.

        Raises
        ------
        NotFoundError
            An object is missing.
        ChunkModifiedError
            ``if_match`` or ``if_unmodified_since`` is not met.
        StorageError
            An object is too short (facts ``expected`` and ``found``), or the storage failed.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return size, version and time of an object; ``None`` if it does not exist."""
        ...

    def put(self, key: str, data: bytes, *, condition: Condition = None) -> ObjectVersion | None:
        """Write one object atomically; return its new version.

        Returns ``None`` if the condition is not met and nothing was written, as far as the client
        can tell (``lost_race_is_certain``).

        Raises StorageError if the storage failed; with ``outcome_unknown``, a conditional write may
        have succeeded.
        """
        ...

    def put_many(self, items: Iterable[tuple[str, bytes]]) -> list[ObjectVersion]:
        """Overwrite many objects concurrently; return their versions in order.

        After an error, some objects are written and some are not.
        """
        return [overwritten(self, key, data) for key, data in items]

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        """Delete objects; return the failures. Missing objects count as deleted.

        Raises StorageError if the storage refused to delete; some of the objects may be deleted.
        """
        ...

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> ObjectVersion | None:
        """Copy an object, overwriting ``target``; return ``None`` if the source has changed.

        Raises NotFoundError if the object ``source`` does not exist.
        """
        check_key(target)
        fetched = self.get(source)
        if source_version is not None and not fetched.version.matches(source_version):
            return None
        return self.put(target, fetched.data)

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the root, without listing deeper ones."""
        ...

    # Last, because inside the class the name hides the type.
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with ``prefix``, page by page, in no fixed order."""
        ...


@runtime_checkable
class StagingStorage(Protocol):
    """A storage in which killed writers leave staged files."""

    def delete_staged(
        self, older_than: datetime, *, dry_run: bool = False
    ) -> tuple[Sequence[int], Sequence[DeleteFailure]]:
        """Delete files that were staged before a time and never moved to their keys.

        Returns the sizes in bytes of the files that were (or would be) deleted, and the failures.
        """
        ...


def overwritten(storage: Storage, key: str, data: bytes) -> ObjectVersion:
    """Overwrite an object; return its new version."""
    written = storage.put(key, data)
    assert written is not None, "only conditional writes are lost"
    return written


def check_key(key: str) -> str:
    """Return ``key`` if it names an object below the root.

    Raises InvalidInputError if the key is empty, too long, absolute, or contains ``..``, ``.`` or
    an empty segment, a backslash or a control character.
    """
    problem = _key_problem(key)
    if problem is not None:
        shown = key if len(key) <= 200 else key[:200] + "..."
        raise InvalidInputError(
            f"{shown!r} cannot be an object key: {problem}. "
            "Keys are relative paths of non-empty segments separated by '/'",
            key=shown,
        )
    return key


def _key_problem(key: str) -> str | None:
    if not key:
        return "it is empty"
    if key.startswith("/"):
        return "it is absolute"
    if "\\" in key:
        return "it holds a backslash"
    if not key.isprintable() and any(ord(c) < 32 or ord(c) == 127 for c in key):
        return "it holds a control character"
    # The segments are split only if one can be bad: this runs for every object fetched.
    if ("." in key or "//" in key or key.endswith("/")) and any(
        segment in ("", ".", "..") for segment in key.split("/")
    ):
        return "it has an empty, '.' or '..' segment"
    try:
        too_long = len(key) > MAX_KEY_LENGTH or len(key.encode()) > MAX_KEY_LENGTH
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return f"it is longer than {MAX_KEY_LENGTH} bytes" if too_long else None


def split_prefix(prefix: str) -> tuple[str, str]:
    """Return the folder of a listing prefix (``""`` or without a final ``/``) and the rest."""
    folder, _, rest = prefix.rpartition("/")
    if folder or prefix.startswith("/"):
        check_key(folder)
    return folder, rest


def check_writable(storage: Storage) -> None:
    """Raise ReadOnlyError if a storage can only be read."""
    if storage.is_read_only:
        raise ReadOnlyError(
            f"{storage.root_url} can only be read, so it cannot be changed; open it where it "
            "can be written",
            location=storage.root_url,
        )


def missing_object(key: str, root_url: str) -> NotFoundError:
    """Return the error for an object that does not exist."""
    return NotFoundError(
        f"there is no object {key!r} below {root_url}", kind="object", key=key, root_url=root_url
    )
