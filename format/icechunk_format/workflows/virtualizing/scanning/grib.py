"""Finds messages of a GRIB2 file that its parser left out beside others of the same parameter.

An array has one message for a variable, level, time and member. If a file has two, such as
forecasts of two runs for the same time, gribberish keeps the last one. It also leaves out messages
of parameters that it does not know; these are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from icechunk_format.errors import UnsupportedError
from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray
from icechunk_format.workflows.virtualizing.scanning.source_files import FileStore

_Parameter = tuple[int, int, int]

# Section 0 has the discipline, edition and length; section 4 the parameter's category and number.
_SECTION_0: Final = 16
_EDITION: Final = 2
_PRODUCT: Final = 4
_MOST_SECTIONS: Final = 5


def check_messages(arrays: Sequence[ParsedArray], store: FileStore) -> None:
    """Raise UnsupportedError if a message of an array's parameter is in no array."""
    spans = [
        np.stack([own.offsets, own.offsets + own.lengths], axis=1)
        for own in arrays
        if own.inline is None and own.coords.shape[1] > 1
    ]
    if not spans:
        return
    taken = np.unique(np.concatenate(spans), axis=0)
    starts = np.append(taken[:, 0], store.size)
    ends = np.insert(np.maximum.accumulate(taken[:, 1]), 0, 0)
    gaps = np.flatnonzero(ends < starts)
    left_out = [at for gap in gaps for at in _messages(store, int(ends[gap]), int(starts[gap]))]
    if not left_out:
        return
    names = {
        _parameter(store, int(own.offsets[0])): own.path
        for own in arrays
        if own.inline is None and own.coords.shape[1] > 1 and len(own.offsets)
    }
    for at in left_out:
        path = names.get(_parameter(store, at))
        if path is not None:
            raise UnsupportedError(
                f"its message at byte {at:,} is in no array, since another one has the same level, "
                "time and member, such as the forecast of another run; split the file, or leave "
                "the message out with parser=GribberishParser() of gribberish.virtualizarr",
                array=path,
            )


def _messages(store: FileStore, start: int, end: int) -> Iterator[int]:
    """Yield where the messages in a part of the file begin; others than GRIB2 end it."""
    while start + _SECTION_0 <= end:
        head = store.get_range("", start=start, end=start + _SECTION_0)
        length = int.from_bytes(head[8:], "big")
        if head[:4] != b"GRIB" or head[7] != _EDITION or length < _SECTION_0:
            return
        yield start
        start += length


def _parameter(store: FileStore, start: int) -> _Parameter | None:
    """Return the discipline, category and number of a message; None if they are not found."""
    discipline = store.get_range("", start=start, end=start + _SECTION_0)[6]
    at = start + _SECTION_0
    for _ in range(_MOST_SECTIONS):
        if at + 11 > store.size:
            return None
        head = store.get_range("", start=at, end=at + 11)
        if head[4] == _PRODUCT:
            return discipline, head[9], head[10]
        at += max(int.from_bytes(head[:4], "big"), 5)
    return None
