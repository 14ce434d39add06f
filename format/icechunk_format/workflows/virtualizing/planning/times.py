"""Converts times of files to the units and the data type of the repository's arrays.

Rules of this file
------------------
1. A converted time must be read back as the time in the file, with the rules of
   ``cf.round_trip``, otherwise it is refused.
2. Calendars are not mixed, except for ``standard`` and ``proleptic_gregorian``, which are equal
   after the reform of 1582.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf import (
    GREGORIAN_CALENDARS,
    GREGORIAN_REFORM,
    MICROSECONDS_PER_DAY,
    NOT_A_TIME,
    TimeScale,
    changed_times,
    numeric_missing,
    parse_time_units,
    stored_times,
)
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata


def is_coded_alike(document: ArrayMetadata, other: ArrayMetadata) -> bool:
    """Return True if two arrays encode times in the same way."""
    keys = ("units", "calendar", "_FillValue", "missing_value")
    own, others = document.attributes, other.attributes
    is_same = all(own.get(key) == others.get(key) for key in keys)
    return is_same and document.raw["data_type"] == other.raw["data_type"]


def converted_times(
    values: NDArray[Any], document: ArrayMetadata, wanted: ArrayMetadata, name: str
) -> NDArray[Any]:
    """Convert times of a file to the encoding of another array of times."""
    if is_coded_alike(document, wanted):
        return values
    microseconds, valid, own = _microseconds(values, document, name)
    scale, dtype = _scale(wanted, name), wanted.data_type.numpy
    refused = f"its times cannot be converted to {wanted.attributes['units']!r} in {dtype}"
    if own.calendar != scale.calendar:
        is_old = microseconds < GREGORIAN_REFORM * MICROSECONDS_PER_DAY
        if not {own.calendar, scale.calendar} <= GREGORIAN_CALENDARS or (is_old & valid).any():
            raise InvalidInputError(
                f"{refused}: their calendar is {own.calendar!r}, and {scale.calendar!r} elsewhere"
            )
    counted = dtype if dtype.kind == "f" else np.dtype(np.int64)
    try:
        found = stored_times(microseconds, valid, scale, counted, name=name).astype(dtype)
    except InvalidInputError as error:
        raise InvalidInputError(f"{refused}: {error.message}") from error
    if not valid.all():
        found[~valid] = _absent(wanted, name)
    again, still_valid, _ = _microseconds(found, wanted, name)
    changed = changed_times(microseconds, again, dtype) & valid
    if (valid != still_valid).any() or changed.any():
        raise InvalidInputError(f"{refused}, which does not hold them")
    return found.reshape(values.shape)


def widened(document: ArrayMetadata) -> ArrayMetadata:
    """Return the document of an array of times with the widest data type of its kind."""
    is_float = document.data_type.numpy.kind == "f"
    wide = {"data_type": "float64", "fill_value": "NaN"}
    raw = document.raw | (wide if is_float else {"data_type": "int64", "fill_value": 0})
    return parse_array_metadata(dump_document(raw), node_path=document.node_path)


def _microseconds(
    values: NDArray[Any], document: ArrayMetadata, name: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_], TimeScale]:
    """Return microseconds, a mask of present values, and the scale."""
    scale, flat = _scale(document, name), values.reshape(-1)
    present = ~np.isin(flat, _missing(document, name))
    found, valid = scale.microseconds(flat, present, name=name)
    return found, present if valid is None else valid, scale


def _scale(document: ArrayMetadata, name: str) -> TimeScale:
    attributes = document.attributes
    return parse_time_units(attributes["units"], attributes.get("calendar"), name=name)


def _missing(document: ArrayMetadata, name: str) -> list[Any]:
    dtype = document.data_type.numpy
    given = {key: document.attributes.get(key) for key in ("_FillValue", "missing_value")}
    return list(numeric_missing(given, dtype, dtype, {}, name)[0])


def _absent(document: ArrayMetadata, name: str) -> Any:
    dtype = document.data_type.numpy
    found = [*_missing(document, name), *([np.nan] if dtype.kind == "f" else [])]
    if not found and dtype != np.int64:
        raise InvalidInputError(
            f"some of its times are missing, which {dtype} without _FillValue cannot represent"
        )
    return found[0] if found else NOT_A_TIME
