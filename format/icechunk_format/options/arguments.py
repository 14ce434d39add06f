"""Checks the arguments of public functions by the types of their signatures.

The signature of a function declares its arguments once: names, types, words and defaults. The
decorator `checked_arguments` checks each call against it, before the function does anything.

Rules of this file
------------------
1. A wrong argument raises InvalidInputError with its name, the allowed values and the value. So do
   a keyword that the function does not have, with the nearest one, and arguments beyond those that
   it takes by position.
2. Values of NumPy become those of Python, paths become strings, and sequences become tuples.
3. A string for a sequence of names is a list separated by commas, as in options.
4. ``**options`` are left to the parser of options.
5. A type that only a type checker imports is not checked, except that of the session.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from os import PathLike, fspath
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import shown
from icechunk_format.options.declare import Call
from icechunk_format.options.keywords import check_keywords, items_of, single, with_option_help
from icechunk_format.options.values import listed, parse_names

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Check = Callable[[str, Any], Any]

_WORDS: Final = {
    bool: "True or False",
    int: "a whole number below 2^63",
    float: "a number",
    str: "a string",
    NoneType: "None",
}
# Arguments that may be names of local files, which need not be UTF-8.
_PATHS: Final = ("path", "to", "source", "target", "files")
_VARIABLE: Final = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


class _Unfit(Exception):
    """The value does not fit a type."""


def checked_arguments(function: _Function) -> _Function:
    """Check the arguments of each call, and convert them, by the annotations of the function.

    Raises InvalidInputError for the first argument that does not fit.
    """
    return _checked(function, None, (), {})


def checked_call(takes: Call, *names: str, **examples: str) -> Callable[[_Function], _Function]:
    """Return the decorator `checked_arguments` for a function whose ``**options`` are of a call.

    The docstring lists them before ``**options``. Only the arguments `names` are checked by
    their types, by default all; others are options, too. `examples` of arguments are for errors.
    """
    return lambda function: _checked(function, takes, names, examples)


def _checked(
    function: _Function, takes: Call | None, names: Sequence[str], examples: Mapping[str, str]
) -> _Function:
    signature = inspect.signature(function)
    own = [one.name for one in signature.parameters.values() if one.kind not in _VARIABLE]

    if takes is not None:
        function.__doc__ = with_option_help(function.__doc__, takes)

    @functools.cache
    def kinds() -> dict[str, Any]:
        found = _kinds_of(function, signature)
        return {name: found[name] for name in names or found}

    @functools.wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        check_keywords(function.__name__, [name for name in named if name not in own], own, takes)
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            raise _misused(function.__name__, signature, given, named, examples) from None
        for name, kind in kinds().items():
            if name in bound.arguments:
                value = bound.arguments[name]
                bound.arguments[name] = check_argument(name, value, kind, examples.get(name))
        return function(*bound.args, **bound.kwargs)

    return cast("_Function", checked)


def _misused(
    function: str,
    signature: inspect.Signature,
    given: Sequence[Any],
    named: Mapping[str, Any],
    examples: Mapping[str, str],
) -> InvalidInputError:
    """Return the error of a call with too many or too few arguments."""
    found = signature.parameters.values()
    ordered = [one.name for one in found if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    rest = [one.name for one in found if one.kind is inspect.Parameter.KEYWORD_ONLY]
    usage = f"{function}({', '.join(ordered)}{', ...' if rest else ''})"
    if len(given) > len(ordered):
        by_name = f", and other arguments by name, such as {rest[0]}=" if rest else ""
        return InvalidInputError(
            f"{function} is called with {len(given)} arguments by position, but has"
            f" {len(ordered)}: call {usage}{by_name}",
            function=function,
            found=len(given),
        )
    for name in ordered[: len(given)]:
        if name in named:
            return InvalidInputError(
                f"the argument {name!r} is given twice, by position and by name: call {usage}",
                option=name,
            )
    missing = next(
        one.name
        for one in list(found)[len(given) :]
        if one.default is one.empty and one.kind not in _VARIABLE and one.name not in named
    )
    usage = (
        usage
        if missing in ordered
        else usage.replace("...", f"{missing}={examples.get(missing, '...')}")
    )
    return InvalidInputError(
        f"{function} needs the argument {missing!r}: call {usage}", option=missing
    )


def check_argument(name: str, value: Any, kind: Any, example: str | None = None) -> Any:
    """Return the value of an argument as one of type `kind`, or raise InvalidInputError."""
    if name == "spark":
        return _checked_session(value, allows_none=NoneType in get_args(kind) or kind is NoneType)
    try:
        return _fitted(name, value, kind)
    except _Unfit:
        hint = "" if example is None else f", such as {example}"
        raise InvalidInputError(
            f"{name} must be {_in_words(kind)}{hint}, but is {shown(value)}",
            option=name,
            found=shown(value),
        ) from None


def _kinds_of(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    found = {}
    for name, parameter in signature.parameters.items():
        kind: Any = parameter.annotation
        if isinstance(kind, str):
            try:
                kind = eval(kind, function.__globals__)
            except NameError:
                is_optional = kind.endswith("| None")
                kind = Any if name != "spark" else NoneType if is_optional else SessionType
        if parameter.kind not in _VARIABLE:
            found[name] = kind
    return found


class SessionType:
    """The type of a session in signatures, where Spark is not imported."""


def _checked_session(value: Any, *, allows_none: bool) -> Any:
    is_session = callable(getattr(value, "createDataFrame", None))
    if not is_session and not (allows_none and value is None):
        raise InvalidInputError(
            f"spark must be a SparkSession, but is {shown(value)}: pass the session as the first"
            " argument, such as the one of SparkSession.builder.getOrCreate()",
            option="spark",
        )
    return value


def _fitted(name: str, value: Any, kind: Any) -> Any:
    """Return a value as one of a type; raise _Unfit if it has another one."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _fitted_to_one(name, value, get_args(kind))
    if origin is Literal:
        return _word(single(value), get_args(kind))
    if origin is Mapping:
        return _mapping(name, value, *get_args(kind))
    if origin in (Sequence, Iterable):
        return _sequence(name, value, get_args(kind)[0])
    if origin is Callable or kind is Callable:
        return _if(callable(value), value)
    if kind in (None, NoneType):
        return _if(value is None, value)
    if kind in _WORDS:
        return _plain(single(value), kind, is_path=name in _PATHS)
    return _if(not isinstance(kind, type) or isinstance(value, kind), value)


def _fitted_to_one(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    for kind in kinds:
        try:
            return _fitted(name, value, kind)
        except _Unfit:
            continue
    raise _Unfit


def _word(value: Any, words: Sequence[Any]) -> Any:
    for word in words:
        is_same = isinstance(value, str) and str(value) == word
        if is_same or (type(value) is type(word) and value == word):
            return word
        if isinstance(word, bool) and type(value).__name__ == "bool" and bool(value) == word:
            return word
    raise _Unfit


def _plain(value: Any, kind: type, *, is_path: bool) -> Any:
    is_boolean = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    is_duration = type(value).__name__ == "timedelta64"
    if kind is bool and is_boolean:
        return bool(value)
    if kind is str and isinstance(value, PathLike):
        value = fspath(value)
    if kind is str and isinstance(value, str):
        with suppress(UnicodeEncodeError):
            value.encode(errors="surrogateescape" if is_path else "strict")
            return str(value)
    if kind is int and isinstance(value, Integral) and not is_boolean and not is_duration:
        return _if(abs(int(value)) < 2**63, int(value))
    if kind is float and isinstance(value, Real) and not is_boolean and not is_duration:
        return float(value)
    raise _Unfit


def _mapping(name: str, value: Any, key: Any, item: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _Unfit
    return {_fitted(name, k, key): _fitted(name, v, item) for k, v in value.items()}


def _sequence(name: str, value: Any, item: Any) -> tuple[Any, ...]:
    value = single(value)
    if isinstance(value, str) and item is str:
        return tuple(_fitted(name, one, item) for one in parse_names(name, value))
    items = items_of(value)
    if items is None:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _Unfit
        items = list(value)
    return tuple(_fitted(name, one, item) for one in items)


def _if(fits: bool, value: Any) -> Any:
    if not fits:
        raise _Unfit
    return value


def _in_words(kind: Any) -> str:
    """Return the values of a type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        found = [_in_words(part) for part in parts if part is not NoneType]
        return " or ".join(dict.fromkeys(found)) + (", or None" if NoneType in parts else "")
    if origin is Literal:
        words = [str(part) for part in parts if isinstance(part, str)]
        others = [str(part) for part in parts if not isinstance(part, str)]
        return " or ".join([*others, *([listed(words, "or")] if words else [])])
    if origin is Mapping:
        return f"a dictionary with {_several(parts[1])} by name"
    if origin in (Sequence, Iterable):
        return f"a list of {_several(parts[0])}"
    if origin is Callable or kind is Callable:
        return "a function"
    return _WORDS.get(kind, f"of type {getattr(kind, '__name__', kind)}")


def _several(kind: Any) -> str:
    words = {int: "whole numbers", float: "numbers", str: "strings", bool: "True or False"}
    return "dictionaries" if get_origin(kind) is Mapping else words.get(kind, "values")
