"""Spells options given as Python values in the text that ``option()`` takes.

Rules of this file
------------------
1. Python values are spelled as a user of `option()` would spell them; what has no such spelling
   is refused rather than passed on as its ``repr``.
2. ``sel``, ``isel`` and ``block`` may be dictionaries of values, lists and slices, as xarray takes
   them. They become text of the grammar of ``icechunk_format.dataset.selection.sel_isel``, which is
   the one form that Spark transports and that the plan shows.
3. Values of NumPy, pandas and xarray are recognised by an abstract number type, by the name of
   their type or by their methods, so that this package need not import those libraries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_spark.options.declare import fold_name

# Types of options' values, for annotations.
Names = str | Sequence[str]
Sizes = str | Mapping[str, int]
Selection = str | Mapping[str, Any]

# Options that select along dimensions, with the text between two dimensions.
_SELECTING: Final = {"sel": "; ", "isel": "; ", "block": ","}
# Microseconds of the units of durations, as ``sel`` reads them.
_UNITS: Final = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "us": 1}


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options given as Python values in the text that `option()` takes; None is left out.

    Numbers and truth values are spelled as Spark spells them, instants by ISO 8601, durations like
    ``6h``, mappings as JSON, and lists, ranges and arrays as a JSON list. Mappings of ``sel``,
    ``isel`` and ``block`` have a value, a list, an array or a slice for each dimension.

    Raises
    ------
    InvalidInputError
        A value has no such spelling.
    """
    return {name: _as_text(name, value) for name, value in options.items() if value is not None}


def _as_text(name: str, value: Any) -> str:
    value = _single(value)
    if isinstance(value, Mapping) and fold_name(name) in _SELECTING:
        between = _SELECTING[fold_name(name)]
        return between.join(f"{dim}={_selector(name, dim, part)}" for dim, part in value.items())
    text = _scalar(value)
    if text is not None:
        return text
    plain = dict(value) if isinstance(value, Mapping) else _items(value)
    if plain is None:
        raise InvalidInputError(
            f"option '{name}' must be text, a number, a truth value, an instant, a duration, a"
            f" list, an array or a dictionary, but is of type {type(value).__name__}",
            option=name,
        )
    try:
        return json.dumps(plain, default=_json_value)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"option '{name}' cannot be written as JSON: {error}", option=name
        ) from None


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return str(value)
    kind = type(value).__name__
    if isinstance(value, bool) or kind in ("bool", "bool_"):  # NumPy's
        return "true" if value else "false"
    # A duration of NumPy calls itself a whole number, so it is asked for before these.
    if isinstance(value, timedelta) or kind == "timedelta64":
        return _duration(value)
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, Decimal) or kind in ("datetime64", "SnapshotId"):
        return str(value)
    if isinstance(value, PathLike):
        return str(fspath(value))
    if hasattr(value, "isoformat"):  # dates and times of Python, pandas and cftime
        return str(value.isoformat())
    return None


def _duration(value: Any) -> str | None:
    """Return a duration in whole microseconds, in the largest unit that divides it."""
    if isinstance(value, timedelta):
        if getattr(value, "nanoseconds", 0):  # pandas has them
            return None
        count = value // timedelta(microseconds=1)
    else:
        exact = value.astype("timedelta64[us]")
        try:
            if exact != value:  # nanoseconds, or no time at all
                return None
        except TypeError:  # months and years
            return None
        count = int(exact.astype("int64"))
    unit = next(name for name, size in _UNITS.items() if count % size == 0)
    return f"{count // _UNITS[unit]}{unit}"


def _items(value: Any) -> list[Any] | None:
    """Return the items of a list, a range or an array; None for anything else."""
    if isinstance(value, list | tuple | range):
        return list(value)
    if hasattr(value, "to_numpy"):  # of pandas, xarray and Arrow
        value = value.to_numpy()
    return list(value) if type(value).__name__ == "ndarray" and value.ndim else None


def _single(value: Any) -> Any:
    """Take the only value out of an array without dimensions, as xarray's labels are."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item") and _scalar(value) is None:
        array = value.to_numpy() if hasattr(value, "to_numpy") else value
        return array[()]
    return value


def _json_value(value: Any) -> Any:
    """Return a value that JSON cannot hold as one that it can."""
    value = _single(value)
    items = dict(value) if isinstance(value, Mapping) else _items(value)
    if items is not None:
        return items
    text = _scalar(value)
    if text is None:
        raise TypeError(f"{value!r} is of type {type(value).__name__}")
    is_number = isinstance(value, Integral | Real) and type(value).__name__ != "timedelta64"
    if is_number or type(value).__name__ in ("bool", "bool_"):
        return value.item()
    return text


def _selector(option: str, dim: str, part: Any) -> str:
    if isinstance(part, slice):
        is_by_label = fold_name(option) == "sel"
        ends = [part.start, part.stop] if is_by_label else [part.start, part.stop, part.step]
        if is_by_label and part.step is not None:
            raise InvalidInputError(
                f"option '{option}' cannot take steps, but has {part!r} for dimension '{dim}':"
                " use isel for steps",
                option=option,
            )
        if len(ends) == 3 and part.step is None:
            ends.pop()
        # Two dots, since the text of an instant has colons of its own.
        return (".." if is_by_label else ":").join(
            "" if end is None else _label(option, dim, end) for end in ends
        )
    items = None if _scalar(part) is not None else _items(part)
    if items is None:
        return _label(option, dim, part)
    if not items:
        raise InvalidInputError(
            f"option '{option}' has an empty list for dimension '{dim}': name a value, or leave"
            " the dimension out",
            option=option,
        )
    return ",".join(_label(option, dim, item) for item in items)


def _label(option: str, dim: str, value: Any) -> str:
    text = _scalar(_single(value))
    if text is None or any(mark in text for mark in (";", ",", "..", "\n")):
        raise InvalidInputError(
            f"option '{option}' must hold a number, an instant, a duration or plain text, a list"
            f" or an array of these, or a slice for dimension '{dim}', but has {value!r} there: use"
            " option 'where' for it",
            option=option,
        )
    return text
