"""Parses the values of options: one parser for each kind of value.

Rules of this file
------------------
1. A parser takes the documented name of an option and its string, and returns the value or raises
   ``InvalidInputError``; the message quotes the option, the string, and a valid example.
2. Only the standard library and the errors of this package are imported, since this module runs in
   Spark's planner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest, shown
from icechunk_format.storage.credentials import Credentials

Parser = Callable[[str, Any], Any]


def listed(names: tuple[str, ...] | list[str], joiner: str = "and") -> str:
    """Return names in quotes, as an enumeration for a sentence."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {joiner} {quoted[-1]}"


def refused(name: str, problem: str, **facts: Any) -> InvalidInputError:
    """Return the error for an option; `problem` follows its name in the message."""
    return InvalidInputError(f"option '{name}' {problem}", option=name, **facts)


def _wrong(name: str, string: str, wanted: str, hint: str = "", **facts: Any) -> InvalidInputError:
    """Return the error for an option whose string is not `wanted`."""
    return refused(name, f"must be {wanted}, but is {shown(string)}{hint}", value=string, **facts)


def parse_string(name: str, string: str) -> str:
    """Parse a string that must not be empty."""
    value = string.strip()
    if not value:
        raise refused(name, "is empty: give a value or leave the option out", value="")
    return value


def parse_credentials(name: str, given: Any) -> Credentials | None:
    """Return credentials unchanged, or those of the environment under a name; None if empty."""
    if isinstance(given, Credentials):
        return given
    if not given:
        return None
    # A value that is no name may be a credential, so no message shows it.
    return Credentials(given.strip() if isinstance(given, str) else given)


def parse_selection(name: str, given: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Parse the string of a selection, or return a mapping of values by dimension unchanged."""
    if not isinstance(given, Mapping) or not given:
        return parse_string(name, str(given or ""))
    names: list[Any] = list(given)
    odd = next((dim for dim in names if not isinstance(dim, str)), None)
    if odd is not None or None in names:
        raise refused(name, f"has the key {shown(odd)}: its keys are names of dimensions")
    return given


def parse_boolean(name: str, string: str) -> bool:
    """Return True if the string is ``true``, False if it is ``false``."""
    value = string.strip().lower()
    if value not in ("true", "false"):
        raise _wrong(name, string, "true or false")
    return value == "true"


class Choice:
    """Parses one of several words."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __call__(self, name: str, string: str) -> str:
        """Return the allowed word that equals the string of the option `name`."""
        value = string.strip().lower()
        if value not in self.allowed:
            near = nearest(value, self.allowed)
            hint = f"; did you mean '{near}'?" if near else ""
            raise _wrong(name, string, listed(self.allowed, "or"), hint, allowed=self.allowed)
        return value


# Python refuses to convert very many digits.
_NUMBER = re.compile(r"[0-9][0-9_]{0,99}")


def parse_positive_int(name: str, string: str) -> int:
    """Parse a whole number above 0."""
    value = string.strip()
    if not _NUMBER.fullmatch(value) or not 0 < int(value) < 2**63:
        raise _wrong(name, string, "a whole number above 0, such as 4000000")
    return int(value)


_SIZE = re.compile(r"([0-9][0-9_]{0,99})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_FACTORS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_byte_size(name: str, string: str) -> int:
    """Parse a number of bytes, such as ``64m``."""
    found = _SIZE.fullmatch(string.strip())
    size = int(found[1]) * _SIZE_FACTORS[found[2].lower()] if found else 0
    if not 0 < size < 2**63:
        wanted = "a size in bytes above 0, such as 67108864, 512k, 64m or 1g"
        raise _wrong(name, string, wanted)
    return size


def parse_timestamp(name: str, string: str) -> datetime:
    """Parse an ISO 8601 timestamp; the default zone is UTC, and a date means its midnight."""
    try:
        # Displays write UTC as a word.
        value = datetime.fromisoformat(string.strip().replace(" UTC", "Z"))
    except ValueError:
        wanted = (
            "an ISO 8601 timestamp such as 2024-07-01T12:00:00Z (without a zone it is taken as UTC)"
        )
        raise _wrong(name, string, wanted, _of_epoch(string.strip())) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# Digits of the seconds, milliseconds and microseconds since 1970 of the years 2001 to 2286.
_EPOCH_FACTORS: Final = {10: 1, 13: 1_000, 16: 1_000_000}
_DIGITS: Final = re.compile(r"[0-9]+")


def _of_epoch(string: str) -> str:
    """Return a hint if the string is a time in units since 1970, as other formats take it."""
    factor = _EPOCH_FACTORS.get(len(string))
    if factor is None or not _DIGITS.fullmatch(string):
        return ""
    unit = {1: "seconds", 1_000: "milliseconds", 1_000_000: "microseconds"}[factor]
    moment = datetime.fromtimestamp(int(string) // factor, UTC)
    part = f".{int(string) % factor:0{len(string) - 10}}" if int(string) % factor else ""
    return f"; as {unit} since 1970 it is {moment:%Y-%m-%dT%H:%M:%S}{part}Z"


def parse_names(name: str, string: str) -> tuple[str, ...]:
    """Parse ``a,b``, or a JSON list for names that contain a comma."""
    value = string.strip()
    if value.startswith("["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
            wanted = 'names separated by commas, or a JSON list of strings such as ["a", "b"]'
            raise _wrong(name, string, wanted)
        names = tuple(parsed)
    else:
        names = tuple(part.strip() for part in value.split(","))
    if not names or not all(names):
        raise _wrong(name, string, "names separated by commas, such as 'a,b'")
    twice = sorted({item for item in names if names.count(item) > 1})
    if twice:
        raise refused(name, f"names {listed(twice)} more than once", value=string)
    return names


def parse_url_prefixes(name: str, string: str) -> tuple[str, ...]:
    """Parse URL prefixes, separated by commas."""
    prefixes = parse_names(name, string)
    bad = [prefix for prefix in prefixes if "://" not in prefix]
    if bad:
        wanted = "URL prefixes separated by commas, such as 's3://bucket/folder/'"
        raise _wrong(name, string, wanted, f": {listed(bad)} has no '://'")
    return prefixes


_SIZE_OF = re.compile(r"([^=]+?)\s*=\s*([0-9][0-9_]{0,99})")


def parse_sizes(name: str, string: str) -> dict[str, int]:
    """Parse ``time=24,latitude=180``, or the same as a JSON object."""
    sizes: dict[str, Any] = {}
    if string.strip().startswith("{"):
        sizes = parse_json_object(name, string)
    else:
        for part in filter(None, (part.strip() for part in re.split("[,;]", string))):
            found = _SIZE_OF.fullmatch(part)
            if found is None or found[1] in sizes:
                sizes = {}
                break
            sizes[found[1]] = int(found[2])
    usable = all(type(size) is int and 0 < size < 2**63 for size in sizes.values())
    if not sizes or not usable:
        wanted = "sizes above 0 by dimension, such as 'time=24,latitude=180', each dimension once"
        raise _wrong(name, string, wanted)
    return sizes


_ORDERS: Final = ("ascending", "descending", "unsorted")


def parse_orders(name: str, string: str) -> dict[str, str]:
    """Parse ``latitude=descending,time=unsorted``, or the same as a JSON object."""
    if string.strip().startswith("{"):
        orders = parse_json_object(name, string)
    else:
        pairs = [[word.strip() for word in part.partition("=")[::2]] for part in string.split(",")]
        orders = dict(pairs) if len({dim for dim, _ in pairs}) == len(pairs) else {}
    if not orders or any(order not in _ORDERS for order in orders.values()):
        words = f"{', '.join(_ORDERS)} by dimension, such as 'latitude=descending'"
        raise _wrong(name, string, f"{words}, each dimension once")
    return orders


def parse_json_object(name: str, string: str) -> dict[str, Any]:
    """Parse a JSON object."""
    wanted = 'a JSON object such as {"name": "value"}'
    try:
        value = json.loads(string)
    except (ValueError, RecursionError) as error:
        raise _wrong(name, string, wanted, f", which is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _wrong(name, string, wanted)
    return value


def parse_json_of_objects(name: str, string: str) -> dict[str, dict[str, Any]]:
    """Parse a JSON object of JSON objects."""
    value = parse_json_object(name, string)
    for key, item in value.items():
        if not isinstance(item, dict):
            raise refused(
                name,
                'must hold one JSON object per variable, such as {"t2m": {"dtype": "float32"}},'
                f" but {key!r} is {json.dumps(item)}",
                variable=key,
            )
    return value


def parse_fraction(name: str, string: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        value = float(string)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise _wrong(name, string, "a number from 0 to 1, such as 0.01")
    return value


def parse_whole_number(name: str, string: str) -> int:
    """Parse a whole number from 0."""
    value = string.strip()
    if not _NUMBER.fullmatch(value) or int(value) >= 2**63:
        raise _wrong(name, string, "a whole number from 0")
    return int(value)


def parse_spec_version(name: str, string: str) -> int:
    """Parse a version of the Icechunk specification, 1 or 2."""
    return int(Choice("1", "2")(name, string))


_SHOWN_TYPES: Final[Mapping[Parser, str]] = {
    parse_string: "string",
    parse_boolean: "boolean",
    parse_positive_int: "integer",
    parse_whole_number: "integer",
    parse_names: "names, comma-separated",
    parse_json_object: "JSON object",
}


def shown_type(parse: Parser) -> str:
    """Return the type of the values of a parser, in words; empty if it has none."""
    if isinstance(parse, Choice):
        return ", ".join(f"`{word}`" for word in parse.allowed)
    return _SHOWN_TYPES.get(parse, "")


_PARSERS: Final[Mapping[Any, Parser]] = {
    str: parse_string,
    bool: parse_boolean,
    int: parse_positive_int,
    datetime: parse_timestamp,
    tuple[str, ...]: parse_names,
    Mapping[str, str]: parse_string,
    Mapping[str, int]: parse_sizes,
    Mapping[str, Any]: parse_json_object,
    str | Mapping[str, Any]: parse_selection,
}


def parser_of(kind: Any) -> Parser:
    """Return the usual parser of values of a type, or None: of words if the type lists them."""
    if get_origin(kind) in (Union, UnionType):
        kind = reduce(or_, (one for one in get_args(kind) if one is not NoneType))
    return Choice(*get_args(kind)) if get_origin(kind) is Literal else _PARSERS[kind]
