"""Finds the distinct vtables of a list of tables, and the vtable of each table.

A vtable records the offset of each field in a table. The tables of a list share very few vtables,
so `bulk_reader` can read columns instead of tables.

Spec: https://flatbuffers.dev/internals.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elimination costs one comparison per vtable and row; beyond this many, sorting is cheaper.
_MAX_ELIMINATED_VTABLES: Final = 24


class SharedVtable(NamedTuple):
    """The vtable of a list whose tables share one.

    The ``size`` bytes from ``at`` are inside the buffer, and so are ``table_size`` bytes from the
    last table, at ``last``.
    """

    at: int
    size: int
    table_size: int
    last: int


def number_vtables(vtables: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp] | None]:
    """Return the distinct vtables, and the index of each row's vtable (None if all are equal)."""
    if not vtables.size:
        return vtables, None
    first = vtables[0]
    is_left = vtables != first
    if not is_left.any():
        return vtables[:1], None
    distinct = [first]
    codes = np.zeros(vtables.shape, dtype=np.intp)
    while len(distinct) < _MAX_ELIMINATED_VTABLES:
        at = int(is_left.argmax())
        if not is_left[at]:
            return np.array(distinct, dtype=np.int64), codes
        is_same = vtables == vtables[at]
        codes[is_same] = len(distinct)
        distinct.append(vtables[at])
        is_left &= ~is_same
    found, inverse = np.unique(vtables, return_inverse=True)
    return found, inverse.reshape(-1)
