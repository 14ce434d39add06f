"""Reading records of the drafts: JSON or MessagePack objects, field by field, with their types.

Rules of this file
------------------
1. A record is untrusted: every field is checked when it is taken, and only ``FormatError`` leaves
   this file.
2. Which of the two encodings it is, its first byte tells: ``{`` begins no MessagePack map.
3. MessagePack records must have named fields. Records with fields by position are refused, because
   the drafts give no order of fields.

Specification: the JSON schemas of both drafts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgpack

from icechunk_format.errors import FormatError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_format.storage.protocol import Storage

MAX_RECORD_BYTES: Final = 512 * 1024 * 1024
"""Largest record that is read; all of it is in memory at once."""

MAX_U64: Final = 2**64 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING: Final = object()


def read_object(storage: Storage, object_key: str, file_type: str) -> bytes:
    """Return a whole object of bounded size.

    Raises
    ------
    NotFoundError
        There is none.
    FormatError
        It is larger than any such object may be.
    """
    found = storage.head(object_key)
    if found is None:
        raise NotFoundError(
            f"there is no object {object_key!r} below {storage.root_url}, although the draft names "
            f"it as a {file_type}; the copy of the repository is incomplete",
            kind="object",
            key=object_key,
        )
    if found.size > MAX_RECORD_BYTES:
        raise FormatError(
            f"it has {found.size} bytes; up to {MAX_RECORD_BYTES} are read",
            object_key=object_key,
            file_type=file_type,
        )
    return storage.get(object_key).data


def decode_record(data: bytes, *, object_key: str, file_type: str) -> Record:
    """Read one record.

    Raises
    ------
    FormatError
        The bytes are neither a JSON object nor a MessagePack map.
    """
    try:
        if data.lstrip()[:1] == b"{":
            value = json.loads(data)
        else:
            limit = len(data)
            value = msgpack.unpackb(
                data,
                raw=False,
                strict_map_key=False,
                max_str_len=limit,
                max_bin_len=limit,
                max_array_len=limit,
                max_map_len=limit,
                max_ext_len=0,
            )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise FormatError(
            f"neither a JSON object nor a MessagePack map ({error or type(error).__name__})",
            object_key=object_key,
            file_type=file_type,
        ) from error
    if isinstance(value, list):
        raise FormatError(
            "its fields are stored by position, but the draft gives names and no order; convert "
            "the record to named fields",
            object_key=object_key,
            file_type=file_type,
        )
    return Record(value, object_key=object_key, file_type=file_type).checked()


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object, and where it is.

    Parameters
    ----------
    value
        The object.
    object_key, file_type, path
        For messages: of what object, and which field of it.
    """

    value: Any
    object_key: str
    file_type: str
    path: str = ""

    def error(self, problem: str, name: str = "") -> FormatError:
        """Return the error for a field."""
        where = ".".join(part for part in (self.path, name) if part)
        return FormatError(
            problem, object_key=self.object_key, file_type=self.file_type, field=where or None
        )

    def checked(self) -> Record:
        """Return the record if it is one."""
        if not isinstance(self.value, dict):
            raise self.error(f"an object is expected, found {_shown(self.value)}")
        for key in self.value:
            if not isinstance(key, str):
                raise self.error(f"names are texts, found {_shown(key)}")
        return self

    def has(self, name: str) -> bool:
        """Tell whether a field is there and not null."""
        return self.value.get(name) is not None

    def field(self, name: str) -> Any:
        """Return a field that must be there; null is a value."""
        found = self.value.get(name, _MISSING)
        if found is _MISSING:
            raise self.error("the field is missing", name)
        return found

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text."""
        found = self.value.get(name, default) if default is not None else self.field(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, str):
            raise self.error(f"a text is expected, found {_shown(found)}", name)
        return found

    def integer(self, name: str, low: int = 0, high: int = MAX_U64) -> int:
        """Return an integer between two limits."""
        return self.as_integer(self.field(name), name, low, high)

    def as_integer(self, value: Any, name: str, low: int = 0, high: int = MAX_U64) -> int:
        """Return a value that must be an integer between two limits."""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            problem = f"an integer from {low} to {high} is expected, found {_shown(value)}"
            raise self.error(problem, name)
        return value

    def items(self, name: str, *, optional: bool = False) -> list[Any]:
        """Return a list; with ``optional`` an empty one where there is none."""
        found = self.value.get(name) if optional else self.field(name)
        if found is None and optional:
            return []
        if not isinstance(found, list):
            raise self.error(f"a list is expected, found {_shown(found)}", name)
        return found

    def below(self, name: str) -> Record:
        """Return an object."""
        return self.at(self.field(name), name)

    def at(self, value: Any, name: str) -> Record:
        """Return a value in this record that must be an object."""
        path = f"{self.path}.{name}" if self.path else name
        return Record(value, self.object_key, self.file_type, path).checked()

    def mapping(self, name: str, *, optional: bool = False) -> dict[str, Any]:
        """Return an object as it is; with ``optional`` an empty one where there is none."""
        if optional and not self.has(name):
            return {}
        value: dict[str, Any] = self.below(name).value
        return value

    def records(self, name: str) -> Iterator[Record]:
        """Yield the objects of a list."""
        for number, value in enumerate(self.items(name)):
            yield self.at(value, f"{name}[{number}]")

    def instant(self, name: str) -> int:
        """Return a time in RFC 3339 as microseconds since 1970."""
        text = self.text(name)
        try:
            found = datetime.fromisoformat(text)
        except ValueError as error:
            raise self.error(f"{text!r} is no time ({error})", name) from error
        if found.tzinfo is None:
            raise self.error(f"{text!r} has no time zone", name)
        return self.as_integer((found - _EPOCH) // timedelta(microseconds=1), name)

    def raw_bytes(self, value: Any, name: str, size: int | None = None) -> bytes:
        """Return bytes: a MessagePack binary, or a list of numbers from 0 to 255."""
        if isinstance(value, list):
            try:
                value = bytes(value)
            except (ValueError, TypeError) as error:
                raise self.error("a list of bytes has numbers from 0 to 255", name) from error
        if not isinstance(value, bytes) or (size is not None and len(value) != size):
            wanted = "bytes" if size is None else f"{size} bytes"
            raise self.error(f"{wanted} are expected, found {_shown(value)}", name)
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
