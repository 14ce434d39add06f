"""Metadata of a repository or a snapshot: named JSON values, decoded on demand.

Rules of this file
------------------
1. Values stay in their stored encoding: opening a repository with many snapshots decodes none,
   rewriting ``repo`` keeps their bytes, and a damaged value raises only when it is read.
2. Items record their encoding: MessagePack in spec version 1, FlexBuffers in version 2. They are
   translated when written into a file of the other version.
3. Items are sorted by the UTF-8 bytes of their names; of several items with one name the first is
   used.
4. Items in a long list of snapshots are sliced from its bytes on first access.
5. The MessagePack decoder raises only ``FormatError``, and bounds lengths by the size of the input.
   Types without a JSON equivalent are refused in both directions.

Specification: "MetadataItem" in "Common Types".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgpack

from icechunk_format.encoding.envelope import SPEC_V1, SPEC_V2
from icechunk_format.encoding.tables.reader import Table
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.encoding.values.flexbuffers import (
    MAX_DEPTH,
    MAX_VALUES,
    decode_flexbuffer,
    encode_flexbuffer,
)
from icechunk_format.errors import FormatError, InvalidInputError

METADATA_ITEM = TableSchema("MetadataItem", name="offset", value="offset")


class _CutOnAccess:
    """Base with the slots of items that ``_read(_first, _count)`` returns on first access."""

    __slots__ = ("_count", "_first", "_read")

    _read: Callable[[int, int], tuple[tuple[str, bytes], ...]]
    _first: int
    _count: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Python calls this for a slot that is not set.
            if name != "items":
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
            items = self._read(self._first, self._count)
            object.__setattr__(self, "items", items)
            return items


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataItems(_CutOnAccess):
    """Named values in their stored encoding; make them from JSON with ``of``.

    Parameters
    ----------
    items
        Pairs of name and encoded value, sorted by name, names unique.
    spec_version
        1 if the values are MessagePack, 2 if they are FlexBuffers.
    origin
        Key of the object that contains the items, for messages.
    """

    items: tuple[tuple[str, bytes], ...] = ()
    spec_version: int = SPEC_V2
    origin: str = field(default="<bytes>", compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any] | None, *, spec_version: int = SPEC_V2) -> MetadataItems:
        """Encode JSON values (None for no values), or raise InvalidInputError."""
        encode = encode_msgpack if spec_version == SPEC_V1 else encode_flexbuffer
        items = []
        for name, value in sorted(checked_values(values).items()):
            try:
                items.append((name, encode(value)))
            except InvalidInputError as error:
                raise InvalidInputError(f"metadata {name!r}: {error}", name=name) from error
        return cls(items=tuple(items), spec_version=spec_version)

    def decode(self) -> dict[str, Any]:
        """Decode all values; FormatError if one is damaged."""
        return {name: self._decode_one(name, value) for name, value in self.items}

    def get(self, name: str) -> Any:
        """Decode the value of one name; None if there is none, FormatError if it is damaged."""
        for found, value in self.items:
            if found == name:
                return self._decode_one(name, value)
        return None

    def _decode_one(self, name: str, value: bytes) -> Any:
        decode = decode_msgpack if self.spec_version == SPEC_V1 else decode_flexbuffer
        return decode(value, object_key=self.origin, field=f"metadata[{name!r}]")

    def in_version(self, spec_version: int) -> MetadataItems:
        """Return the items in the encoding of another spec version."""
        if spec_version == self.spec_version or not self.items:
            return self
        return self.of(self.decode(), spec_version=spec_version)


NO_ITEMS = MetadataItems()


def checked_values(given: object) -> dict[str, Any]:
    """Return user metadata as a dict, empty for None; only names are checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"metadata must be a mapping of names to JSON values, found {given!r}", found=given
        )
    for name in given:
        if not isinstance(name, str) or any("\ud800" <= sign <= "\udfff" for sign in name):
            raise InvalidInputError(
                f"names of metadata must be strings in UTF-8, found {name!r}", found=name
            )
    return dict(given)


def read_items(table: Table, *, spec_version: int) -> MetadataItems:
    """Read the metadata of a table; an absent vector is an empty one."""
    children = table.optional_children("metadata", METADATA_ITEM)
    found: dict[str, bytes] = {}
    for item in children or ():
        found.setdefault(item.string("name"), item.blob("value"))
    if not found:
        return NO_ITEMS
    return MetadataItems(
        items=tuple(sorted(found.items())), spec_version=spec_version, origin=table.object_key
    )


def write_items(writer: TableWriter, items: MetadataItems, *, spec_version: int) -> int:
    """Write a vector of items, empty if there are none, and return its handle."""
    return writer.offsets(
        [
            writer.table(METADATA_ITEM, name=writer.string(name), value=writer.blob(value))
            for name, value in items.in_version(spec_version).items
        ]
    )


RESERVED_METADATA: Final = "__icechunk"
"""Name of the snapshot metadata that is reserved for libraries."""


# -- MessagePack ----------------------------------------------------------------------------


def decode_msgpack(
    data: bytes, *, object_key: str = "<bytes>", field: str = "value", file_type: str = "object"
) -> Any:
    """Read exactly one MessagePack value of JSON types, or raise FormatError."""
    where = {"object_key": object_key, "field": field, "file_type": file_type}
    # Lengths are limited to the input's, so that the library does not allocate more.
    limit = min(len(data), MAX_VALUES)
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            max_str_len=limit,
            max_array_len=limit,
            max_map_len=limit,
            max_bin_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # ValueError covers truncation, trailing bytes, limits, nesting and bad UTF-8; TypeError is
        # a map key that cannot be hashed.
        raise FormatError(
            f"not one MessagePack value of JSON types ({error or type(error).__name__}); "
            "the value is damaged",
            **where,
        ) from error
    problem = _json_problem(value)
    if problem:
        raise FormatError(f"{problem}; only JSON types are allowed here", **where)
    return value


def encode_msgpack(value: Any) -> bytes:
    """Return a JSON value as MessagePack, or raise InvalidInputError."""
    # Raises for values that are not JSON or that an upgrade to version 2 could not store.
    encode_flexbuffer(value)
    serialized: bytes = msgpack.packb(value, use_bin_type=True)
    return serialized


def _json_problem(value: Any) -> str | None:
    """Return the first problem of a value that is not JSON, or None; does not recurse."""
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"values are nested deeper than {MAX_DEPTH}"
        if isinstance(item, dict):
            for key, child in item.items():
                if not isinstance(key, str):
                    return f"a map key is a {type(key).__name__}, not a string"
                pending.append((child, depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((child, depth + 1) for child in item)
        elif not (item is None or isinstance(item, bool | int | float | str)):
            return f"found a {type(item).__name__}"
    return None
