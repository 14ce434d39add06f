"""Turns the keywords of Python functions into options: names, help, and values as strings.

Rules of this file
------------------
1. A keyword is the option's name in Python spelling: ``as_of`` for ``asOf``, ``sel_method`` for
   ``sel.method``, ``from_`` for ``from``. A test compares the signatures with `OPTIONS`.
2. `help()` shows the help of the option with its keyword.
3. Other spellings, and families such as ``storage.*``, are passed as ``**options``.
4. Python values are written as in a call of `option()`; a value without such a form raises an error
   instead of being passed as its ``repr``.
5. Dictionaries of ``sel`` and ``isel`` are not converted, since the selection uses their values.
6. Values of NumPy, pandas and xarray are recognized by an abstract number type, by the name of
   their type or by their methods, so that this package need not import those libraries.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest, shown
from icechunk_format.options.declare import CHANGING, Call, Option, fold_name
from icechunk_format.options.parse import (
    OPTIONS,
    meaningless,
    option_named,
    parse_read_options,
)
from icechunk_format.options.read import ReadRequest
from icechunk_format.storage.credentials import Credentials

# Types of option values, for annotations.
Names = str | Sequence[str]
Sizes = str | Mapping[str, int]
Selection = str | Mapping[str, Any]

# Options whose dictionaries are passed unchanged to the selection.
_SELECTING: Final = ("sel", "isel")

# Words of xarray and pandas for arguments of this library.
_OF_XARRAY: Final = {
    **dict.fromkeys(("dim", "dims", "axis"), "over"),
    **dict.fromkeys(("groupby", "group_by", "resample", "coarsen", "freq"), "by"),
    **dict.fromkeys(("how", "agg"), "statistics"),
    **dict.fromkeys(("time", "lat", "latitude", "lon", "longitude", "level", "depth"), "sel"),
}
# Words of arguments that other functions have for all functions.
_ELSEWHERE: Final = {
    "progress": "icechunk_spark.register(spark, progress=True) shows the progress of jobs; it"
}
# Keywords of more words, such as delete_expired_tags, mean something else than one of them.
_MOST_WORDS: Final = 2

# The lines of a docstring, without its indentation, that the list of options replaces.
_LIST: Final = (
    '**options\n    The options of the page "Options" of the manual, which ``help()`` lists.\n'
)


def option_strings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options from Python values to strings for `option()`; None is omitted.

    Numbers and booleans are written as in Spark, timestamps as ISO 8601, mappings as JSON, and
    lists, ranges and arrays as a JSON list. Mappings of ``sel`` and ``isel``, which have a value, a
    list, an array or a slice for each dimension, are returned unchanged.

    Raises InvalidInputError if a value cannot be converted.
    """
    return {name: _as_string(name, value) for name, value in options.items() if value is not None}


def _as_string(name: str, value: Any) -> Any:
    if not isinstance(name, str):
        raise InvalidInputError(f"names of options are strings, but one is {shown(name)}")
    value = single(value)
    if fold_name(name) == "path":
        return path_string(value)
    if isinstance(value, Credentials) or (
        isinstance(value, Mapping) and fold_name(name) in _SELECTING
    ):
        return value
    string = _scalar(value)
    if string is not None:
        return string
    plain = dict(value) if isinstance(value, Mapping) else items_of(value)
    if plain is None:
        raise InvalidInputError(
            f"option '{name}' must be a string, a number, a boolean, a timestamp, a list,"
            f" an array or a dictionary, but is of type {type(value).__name__}",
            option=name,
        )
    try:
        return json.dumps(plain, default=_json_value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"option '{name}' cannot be written as JSON: {error}", option=name
        ) from None


def _scalar(value: Any) -> str | None:
    if isinstance(value, str):
        return str(value)
    kind = type(value).__name__
    if isinstance(value, bool) or kind in ("bool", "bool_"):  # NumPy's
        return "true" if value else "false"
    if _has_any_attribute(value):
        return None
    # A NumPy duration is an instance of an integer type, so it is checked first.
    if isinstance(value, timedelta) or kind == "timedelta64":
        return None
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


def _json_value(value: Any) -> Any:
    """Convert a value that JSON does not support to one that it does."""
    value = single(value)
    items = dict(value) if isinstance(value, Mapping) else items_of(value)
    if items is not None:
        return items
    string = _scalar(value)
    if string is None:
        raise TypeError(f"{value!r} is of type {type(value).__name__}")
    if isinstance(value, Integral | Real) or type(value).__name__ in ("bool", "bool_"):
        return value.item()
    return string


def items_of(value: Any) -> list[Any] | None:
    """Return the items of a list, a range or an array; None for anything else."""
    if isinstance(value, list | tuple | range):
        return list(value)
    if _has_any_attribute(value):
        return None
    if str(getattr(value, "type", "")) == "bool" and hasattr(value, "to_pylist"):
        return list(value.to_pylist())  # Arrow's booleans are bits, which NumPy cannot share
    if hasattr(value, "to_numpy"):  # of pandas, xarray and Arrow
        value = value.to_numpy()
    return list(value) if type(value).__name__ == "ndarray" and value.ndim else None


def _has_any_attribute(value: Any) -> bool:
    """Return True if an object has attributes of every name, such as a column of Spark."""
    return hasattr(value, "no_such_attribute")


def single(value: Any) -> Any:
    """Return the value of an array without dimensions, such as xarray's labels."""
    if isinstance(value, str):
        return str(value)  # NumPy's strings have no dimensions, either
    if _has_any_attribute(value):
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "__array__"):
        array = value.to_numpy() if hasattr(value, "to_numpy") else value
        return array[()]
    return value


def keyword_options(call: Call) -> list[Option]:
    """Return the options that have a keyword, in the order of the manual's table."""
    return [
        option
        for option in OPTIONS
        if call in option.calls and option.has_keyword and not option.is_prefix
    ]


def own_options(call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call among the arguments of its function, its ``locals()``.

    Those of ``**options`` are included.
    """
    named = {}
    for option in keyword_options(call):
        value = arguments.get(option.keyword)
        # The signatures of these calls have the defaults of some options, which may be spelled
        # otherwise in ``**options``.
        is_default = call in CHANGING and option.default is not None and value == option.default
        if value is not None and not is_default:
            named[option.keyword] = value
    return {**named, **arguments["options"]}


def check_keywords(
    function: str, given: Iterable[str], own: Sequence[str], call: Call | None
) -> None:
    """Check the keywords of a function that are not among its `own`; they are options of `call`.

    Raises InvalidInputError with the nearest keyword of the function for an unknown one, and for an
    option of other calls. With None, the function takes no options.
    """
    for name in given:
        found = None if call is None else option_named(name)
        if call is not None and found is not None and call in found[0].calls:
            continue
        options = [one for one in OPTIONS if call in one.calls and one.name != "path"]
        families = [f"{one.name[:-2].replace('.', '_')}_*" for one in options if one.is_prefix]
        single = [one.keyword for one in options if not one.is_prefix]
        known = list(dict.fromkeys([*own, *single]))
        near = _OF_XARRAY.get(name.lower())
        near = near if near in known else _with_same_word(name, known)
        if near is None and call is not None and found is not None:
            raise meaningless(found[0], call, function)
        near = near or _nearest_keyword(name, known)
        hint = f"did you mean {near!r}? It" if near else _ELSEWHERE.get(name.lower(), "it")
        raise InvalidInputError(
            f"{function} has no argument {name!r}: {hint} takes {', '.join([*known, *families])}",
            option=name,
            nearest=near,
        )


def _with_same_word(name: str, known: Sequence[str]) -> str | None:
    """Return the keyword of which `name` is a word, in singular or plural."""
    word = name.lower().removesuffix("s")
    words = {one: [part.removesuffix("s") for part in one.split("_")] for one in known}
    found = [one for one in known if word in words[one] and len(words[one]) <= _MOST_WORDS]
    return min(found, key=lambda one: len(words[one]), default=None)


def _nearest_keyword(name: str, known: Sequence[str]) -> str | None:
    folded = {fold_name(one): one for one in known}
    word = fold_name(name)
    begun = [one for one in folded if len(word) > 2 and one.startswith(word)]
    near = nearest(word, folded, cutoff=0.8) or next(iter(begun), None) or nearest(word, folded)
    return None if near is None else folded[near]


def path_string(path: object) -> str:
    """Return a path or URL as a string; raise InvalidInputError for anything else."""
    if isinstance(path, PathLike):
        path = fspath(path)
    if not isinstance(path, str):
        raise InvalidInputError(
            f"path must be a URL or a local path, but is {shown(path)}: give the root of the"
            " repository, such as 's3://bucket/weather'",
            option="path",
        )
    return str(path)


def given_options(path: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument `path` and the other options of a function, as strings.

    Raises InvalidInputError if the path is also given as an option, or a value cannot be written as
    a string.
    """
    if any(fold_name(str(name)) == "path" for name in options):
        raise InvalidInputError("the path is given twice: leave option 'path' out", option="path")
    return {"path": path_string(path), **option_strings(options)}


def parse_arguments(path: object, options: Mapping[str, Any], call: Call) -> ReadRequest:
    """Parse the argument `path` and the other options of a Python function.

    Raises InvalidInputError if an option does not apply to `call`, or is invalid.
    """
    return parse_read_options(given_options(path, options), call)


def with_option_help(string: str | None, call: Call) -> str | None:
    """Return a docstring with the list of the options of a call before ``**options``."""
    if string is None:  # with python -OO
        return string
    # Python 3.13 and later remove the indentation of docstrings when they compile them.
    return inspect.cleandoc(string).replace(_LIST, f"{_listed(call)}**options\n")


def _listed(call: Call) -> str:
    lines = []
    for option in keyword_options(call):
        default = option.shown_default
        about = f"{option.shown_type}; default: {default}" if default else option.shown_type
        string = (call == "write" and option.write_help) or option.help
        lines += [f"{option.keyword}: {about}", textwrap.indent(textwrap.fill(string, 88), "    ")]
    return ("\n".join(lines) + "\n").replace("`", "``")
