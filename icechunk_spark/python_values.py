"""Options given as Python values, as the text that ``option()`` takes.

Rules of this file
------------------
1. Python values are spelled as a user of `option()` would spell them; what has no such spelling
   is refused rather than passed on as its ``repr``.
2. What selects along dimensions may be given as to xarray: a dictionary of values, lists and
   slices. It becomes the grammar of ``icechunk_format.dataset.selectors``.
3. NumPy's values are recognised by the numbers that they are, or by the name of their type:
   importing it would make the import of this package dear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from numbers import Integral, Real
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_spark.options import fold_name

# What the values of options may be, for annotations.
Names = str | Sequence[str]
Sizes = str | Mapping[str, int]
Selection = str | Mapping[str, Any]

# Options that select along dimensions, with what lies between two dimensions.
_SELECTING: Final = {"sel": "; ", "isel": "; ", "block": ","}


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options given as Python values in the text that `option()` takes; None is left out.

    Numbers and truth values are spelled as Spark spells them, instants by ISO 8601, mappings as
    JSON, and sequences of names as a JSON list. Mappings of ``sel``, ``isel`` and ``block`` have
    a value, a list or a slice for each dimension.

    Raises
    ------
    InvalidInputError
        A value has no such spelling.
    """
    return {name: _as_text(name, value) for name, value in options.items() if value is not None}


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, Mapping) and fold_name(name) in _SELECTING:
        between = _SELECTING[fold_name(name)]
        return between.join(f"{dim}={_selector(name, dim, part)}" for dim, part in value.items())
    if isinstance(value, Mapping | list | tuple):
        plain = dict(value) if isinstance(value, Mapping) else list(value)
        try:
            return json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"option '{name}' cannot be written as JSON: {error}", option=name
            ) from None
    text = _scalar(value)
    if text is None:
        raise InvalidInputError(
            f"option '{name}' must be text, a number, a truth value, an instant, a list or a"
            f" dictionary, but is of type {type(value).__name__}",
            option=name,
        )
    return text


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's
        return "true" if value else "false"
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value)
    return None


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
    if isinstance(part, list | tuple):
        return ",".join(_label(option, dim, item) for item in part)
    return _label(option, dim, part)


def _label(option: str, dim: str, value: Any) -> str:
    text = _scalar(value)
    if text is None or any(mark in text for mark in (";", ",", "..", "\n")):
        raise InvalidInputError(
            f"option '{option}' must hold a number, an instant or plain text, a list of these or"
            f" a slice for dimension '{dim}', but has {value!r} there: use option 'where' for it",
            option=option,
        )
    return text
