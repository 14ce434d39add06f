"""Reads JSON or MessagePack records of the drafts, value by value.

The bytes are untrusted: values are checked on access, and an invalid value raises a ``FormatError``
that names its field. MessagePack records must have named fields, since the drafts do not define an
order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgpack

from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.repository.history.resolve import microseconds
from icechunk_format.storage.protocol import Storage
from icechunk_format.zarr.named_configuration import shortened

MAX_RECORD_BYTES: Final = 512 * 2**20
"""Largest object that is read whole."""

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1
_NAMES: Final = {str: "string", int: "integer", list: "list", dict: "named fields", bytes: "bytes"}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_T = TypeVar("_T")


def read_object(storage: Storage, object_key: str, file_type: str) -> bytes:
    """Return a whole object of at most ``MAX_RECORD_BYTES``."""
    found = storage.head(object_key)
    if found is None:
        raise NotFoundError(
            f"{file_type} {object_key!r} does not exist below {storage.root_url}, but the draft "
            "refers to it; the copy of the repository is incomplete",
            kind="object",
            key=object_key,
        )
    if found.size > MAX_RECORD_BYTES:
        problem = f"it has {found.size} bytes; up to {MAX_RECORD_BYTES} are read"
        raise FormatError(problem, object_key=object_key, file_type=file_type)
    return storage.get(object_key).data


def read_record(storage: Storage, object_key: str, file_type: str) -> Field:
    """Return the record in an object."""
    data = read_object(storage, object_key, file_type)
    return decode_record(data, object_key=object_key, file_type=file_type)


def decode_record(data: bytes, *, object_key: str, file_type: str) -> Field:
    """Parse one record; it is JSON if the first byte is ``{``, which is not a MessagePack map."""
    try:
        if data.lstrip()[:1] == b"{":
            value = json.loads(data)
        else:
            value = msgpack.unpackb(data, strict_map_key=False, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        problem = f"neither a JSON object nor a MessagePack map ({error or type(error).__name__})"
        raise FormatError(problem, object_key=object_key, file_type=file_type) from error
    record = Field(value, object_key, file_type)
    if isinstance(value, list):
        raise record.error(
            "its fields are stored by position, but the draft gives no order; convert the record "
            "to named fields"
        )
    record.mapping()
    return record


@dataclass(frozen=True, slots=True)
class Field:
    """A value in a record, with its path for errors."""

    value: Any
    object_key: str
    file_type: str
    path: str = ""

    def error(self, problem: str) -> FormatError:
        """Return the error for this value."""
        return FormatError(
            problem, object_key=self.object_key, file_type=self.file_type, field=self.path or None
        )

    def of(self, kind: type[_T]) -> _T:
        """Return the value; raise FormatError if it is not of this JSON type."""
        value = self.value
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f"expected {_NAMES[kind]}, found {shortened(value)}")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise self.error(f"{shortened(value)} is not valid Unicode")
        return value

    def maybe(self, take: Callable[[Field], _T]) -> _T | None:
        """Apply a function to this field; None if the value is null."""
        return None if self.value is None else take(self)

    def _below(self, name: object, value: Any) -> Field:
        path = f"{self.path}.{name}" if self.path else str(name)
        return Field(value, self.object_key, self.file_type, path)

    def __getitem__(self, name: str) -> Field:
        fields = self.of(dict)
        if name not in fields:
            raise self._below(name, None).error("the field is missing")
        return self._below(name, fields[name])

    def get(self, name: str, default: Any = None) -> Field:
        """Return a field of an object, with a default value if it is missing or null."""
        value = self.of(dict).get(name)
        return self._below(name, default if value is None else value)

    def mapping(self) -> dict[str, Any]:
        """Return an object with string names."""
        if not all(isinstance(name, str) for name in self.of(dict)):
            raise self.error(f"names must be strings, found {shortened(list(self.value))}")
        return self.of(dict)

    def fields(self) -> Iterator[tuple[str, Field]]:
        """Yield the name and value of each field of an object."""
        for name, value in self.mapping().items():
            yield name, self._below(name, value)

    def items(self) -> list[Field]:
        """Return the values of a list."""
        return [self._below(number, value) for number, value in enumerate(self.of(list))]

    def tagged(self) -> tuple[str, Field]:
        """Return the only field of an object; its name is the type of the value."""
        if len(self.of(dict)) != 1:
            raise self.error(f"expected one value with its type, found {shortened(self.value)}")
        return next(self.fields())

    def integer(self, low: int = 0, high: int = MAX_U64) -> int:
        """Return an integer between two limits, inclusive."""
        if not low <= self.of(int) <= high:
            raise self.error(f"expected {low} to {high}, found {shortened(self.value)}")
        return self.of(int)

    def timestamp(self) -> int:
        """Parse an RFC 3339 time to microseconds since 1970."""
        string = self.of(str)
        try:
            passed = microseconds(datetime.fromisoformat(string), argument="the time")
        except (ValueError, InvalidInputError) as error:
            raise self.error(f"{string!r} is not a time with a time zone ({error})") from error
        return self._below("microseconds", passed).integer()

    def raw(self, size: int | None = None) -> bytes:
        """Return bytes, stored as a binary or as a list of numbers from 0 to 255."""
        try:
            found = bytes(self.value) if isinstance(self.value, list) else self.of(bytes)
        except (ValueError, TypeError) as error:
            raise self.error("a list of bytes must have numbers from 0 to 255") from error
        if size is not None and len(found) != size:
            raise self.error(f"expected {size} bytes, found {len(found)}")
        return found

    def json(self) -> Any:
        """Return an object or null; parse a string or bytes as JSON."""
        if self.value is None or isinstance(self.value, dict):
            return self.value
        try:
            return json.loads(self.value if isinstance(self.value, str) else self.raw())
        except (ValueError, RecursionError) as error:
            raise self.error(f"it is not JSON ({error})") from error
