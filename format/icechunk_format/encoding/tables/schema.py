"""Declares the fields of flatbuffers tables, for reading and for writing.

Rules of this file
------------------
1. A schema lists the fields of a table in the order of the ``.fbs`` file, because the order is the
   slot number. Fields are only ever added at the end.
2. Names are those of the ``.fbs`` file.

Specification: the ``.fbs`` files; flatbuffers internals (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

INLINE: Final = {
    "u8": struct.Struct("<B"),
    "bool": struct.Struct("<?"),
    "u16": struct.Struct("<H"),
    "u32": struct.Struct("<I"),
    "i32": struct.Struct("<i"),
    "u64": struct.Struct("<Q"),
    "offset": struct.Struct("<I"),
    "id8": struct.Struct("<8s"),
    "id12": struct.Struct("<12s"),
}
"""The packed form of a field inside its table, by kind."""

OFFSET: Final = np.dtype("<u4")
"""Type of a field that points to a vector, string or table."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One slot of a table: its number, kind, inline size and alignment, and its type in NumPy."""

    slot: int
    kind: str
    size: int
    alignment: int
    dtype: np.dtype[Any]


class TableSchema:
    """The fields of one table of a ``.fbs`` file, in slot order.

    ``fields`` map names to kinds: ``u8 u16 u32 i32 u64 bool``, with the default 0, ``offset`` for
    vectors, strings and tables, ``id8`` and ``id12`` for inline id structs. A union is two fields,
    ``<name>_type="u8"`` and ``<name>="offset"``.
    """

    __slots__ = ("fields", "name")

    def __init__(self, table_name: str, **fields: str) -> None:
        self.name = table_name
        self.fields: dict[str, FieldSpec] = {}
        for slot, (field_name, kind) in enumerate(fields.items()):
            size = INLINE[kind].size
            is_id = kind.startswith("id")
            dtype = np.dtype(("u1", (size,)) if is_id else INLINE[kind].format)
            self.fields[field_name] = FieldSpec(slot, kind, size, 1 if is_id else size, dtype)
