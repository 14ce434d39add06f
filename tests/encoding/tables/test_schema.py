"""Fields have the size, the alignment and the type of their kind."""

from __future__ import annotations

import numpy as np

from icechunk_format.encoding.tables.schema import TableSchema


def test_fields_of_every_kind() -> None:
    kinds = ("u8", "bool", "u16", "u32", "i32", "u64", "offset", "id8", "id12")
    schema = TableSchema("Every", **{f"a_{kind}": kind for kind in kinds})
    assert schema.name == "Every"
    found = {
        spec.kind: (name, spec.slot, spec.size, spec.alignment, spec.dtype)
        for name, spec in schema.fields.items()
    }
    assert found == {
        "u8": ("a_u8", 0, 1, 1, np.dtype("u1")),
        "bool": ("a_bool", 1, 1, 1, np.dtype("?")),
        "u16": ("a_u16", 2, 2, 2, np.dtype("<u2")),
        "u32": ("a_u32", 3, 4, 4, np.dtype("<u4")),
        "i32": ("a_i32", 4, 4, 4, np.dtype("<i4")),
        "u64": ("a_u64", 5, 8, 8, np.dtype("<u8")),
        "offset": ("a_offset", 6, 4, 4, np.dtype("<u4")),
        # Structs of bytes are not aligned.
        "id8": ("a_id8", 7, 8, 1, np.dtype(("u1", (8,)))),
        "id12": ("a_id12", 8, 12, 1, np.dtype(("u1", (12,)))),
    }
