"""Finds values that an array would hold as other values, and the encoding that would hold them.

Packing and short floats round. That is intended for measurements, but a label that is rounded is
another label.

Rules of this file
------------------
1. A value is held if it is read back as it was given. A decimal number is held by a shorter float
   that is written with the same digits: 0.1 as ``float32``, but neither 1/3 nor 16777217.
2. A whole number of milliseconds is held by floats that are read back as that millisecond, since
   no float has exact minutes in days.
3. A packed number is held if it is within a thousandth of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.tables.cf.encode_times import microseconds_of

if TYPE_CHECKING:
    from icechunk_format.tables.cf.encode import VariableEncoder

# The rounding of arithmetic with doubles, such as 0.1 * 3.
_NOISE: Final = 1e-12
_SHARE_OF_STEP: Final = 1e-3
_MILLISECOND: Final = 1_000
_UNITS: Final = (
    ("days", 86_400_000_000),
    ("hours", 3_600_000_000),
    ("minutes", 60_000_000),
    ("seconds", 1_000_000),
    ("milliseconds", _MILLISECOND),
    ("microseconds", 1),
)


def comparable(values: pa.Array, encoder: VariableEncoder) -> NDArray[Any]:
    """Return present values of a column as numbers or objects that are equal if the values are."""
    decoder = encoder.decoder
    if decoder._time is not None:
        return microseconds_of(values, decoder._time, name=encoder.name)
    if pa.types.is_decimal(values.type):
        return np.array(values.to_pylist(), dtype=object)
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def is_written_as(number: np.floating[Any], wanted: float) -> bool:
    """Return True if a float is written with the digits of a double, up to rounding errors."""
    return bool(float(number) == wanted or abs(float(str(number)) - wanted) <= _NOISE * abs(wanted))


def changed_values(
    values: pa.Array, stored: NDArray[Any], encoder: VariableEncoder
) -> NDArray[np.bool_]:
    """Return a mask of the present values that ``stored``, their encoded form, does not hold."""
    decoder = encoder.decoder
    back = decoder.decode(stored)
    if decoder._time is not None:
        given, found = comparable(values, encoder), comparable(back, encoder)
        return changed_times(given, found, stored.dtype)
    if pa.types.is_string(back.type) or pa.types.is_binary(back.type):
        differs = pc.not_equal(values.cast(back.type), back)
        return np.asarray(differs.to_numpy(zero_copy_only=False), np.bool_)
    given = comparable(values, encoder)
    if given.dtype.kind not in "iuf" or not decoder.is_numeric:
        return np.zeros(len(values), np.bool_)
    if decoder._scaled is None and stored.dtype.kind in "iub":
        return np.zeros(len(values), np.bool_)  # the encoder has compared them
    found = back.to_numpy(zero_copy_only=False)
    # Integers are compared as integers, since a double would round both.
    with np.errstate(invalid="ignore"):
        changed = np.asarray(found.astype(given.dtype) != given, np.bool_)
    if given.dtype.kind in "iu":
        changed |= found != np.floor(found)
    at = np.flatnonzero(changed)
    if not len(at):
        return changed
    wanted = given[at].astype(np.float64)
    is_exact = wanted.astype(given.dtype) == given[at]
    if decoder._scaled is not None and stored.dtype.kind in "iu":
        scale, offset = decoder._scale_factor or 1.0, decoder._add_offset or 0.0
        view = stored if decoder._integer_view is None else stored.view(decoder._integer_view)
        steps = (wanted - offset) / scale
        changed[at] = ~(is_exact & (np.abs(steps - view[at]) <= _SHARE_OF_STEP))
        return changed
    # The shortest decimal number of a float, which is how it is written.
    written = found[at].astype("U").astype(np.float64)
    changed[at] = ~(is_exact & (np.abs(written - wanted) <= _NOISE * np.abs(wanted)))
    return changed


def changed_times(
    given: NDArray[np.int64], found: NDArray[np.int64], stored: np.dtype[Any]
) -> NDArray[np.bool_]:
    """Return a mask of the times, in microseconds, that are read back as another time."""
    changed: NDArray[np.bool_] = np.asarray(given != found, np.bool_)
    if stored.kind == "f":
        is_whole = given % _MILLISECOND == 0
        changed &= ~(is_whole & (np.abs(given - found) < _MILLISECOND // 2))
    return changed


def holding_encoding(values: pa.Array, encoder: VariableEncoder) -> dict[str, Any]:
    """Return an encoding, as in the option ``encoding``, of an array that holds the values."""
    decoder = encoder.decoder
    packing: dict[str, Any] = {
        key: None for key in ("scale_factor", "add_offset") if key in decoder.encoding
    }
    if decoder._time is None:
        is_whole = pa.types.is_integer(values.type)
        return {"dtype": str(values.type) if is_whole else "float64", **packing}
    if encoder.data_type.numpy.kind in "Mm":
        return {"dtype": f"{'datetime' if decoder._time.is_timestamp else 'timedelta'}64[us]"}
    since = comparable(values, encoder) - np.int64(decoder._time.offset)
    unit = next(name for name, length in _UNITS if not (since % length).any())
    _, _, reference = str(decoder.encoding["units"]).partition(" since ")
    units = f"{unit} since {reference.strip()}" if reference else unit
    return {"dtype": "int64", "units": units, **packing}
