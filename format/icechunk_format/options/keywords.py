"""Derives the keywords of ``icechunk_spark.read`` and ``icechunk_spark.write`` from the options.

Rules of this file
------------------
1. A keyword has the option's name as Python spells names: ``asOf`` is ``as_of``, ``sel.method`` is
   ``sel_method``, ``from`` is ``from_``. A test compares the signatures with `OPTIONS`.
2. `help()` shows the help of the option beside its keyword.
3. Other spellings, and families such as ``storage.*``, are given as ``**options``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.declare import Option, Use, fold_name
from icechunk_format.options.parse import (
    OPTIONS,
    STREAM_OPTIONS,
    collect_options,
    parse_read_options,
)
from icechunk_format.options.path import repository_path
from icechunk_format.options.python_values import option_texts
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import listed, refused

_Function = TypeVar("_Function", bound="Callable[..., Any]")

# `path` is an argument of its own; the others concern only unplanned writes, and streams.
_NO_KEYWORDS: Final = frozenset({"path", "maxUnplannedBytes", *STREAM_OPTIONS})
# The line of a docstring that the list of options replaces.
_LIST: Final = (
    '    each_option\n        As on the page "Options" of the manual, and in ``help()``.\n'
)

#: Options of reading that say which values of arrays are read, and from where.
OF_VALUES: Final = (
    "path",
    "branch",
    "tag",
    "snapshot",
    "asOf",
    "storage.client",
    "storage.*",
    "virtual.authorize",
    "virtual.storage.*",
    "group",
    "variables",
    "decodeCf",
    "timestampType",
    "sel",
    "sel.method",
    "isel",
    "readAheadBytes",
)


def keyword_options(use: Use) -> list[Option]:
    """Return the options that have a keyword, in the order of the manual's table."""
    return [
        option
        for option in OPTIONS
        if use in option.uses and not option.is_prefix and option.name not in _NO_KEYWORDS
    ]


def given_options(arguments: Mapping[str, Any], use: Use) -> dict[str, Any]:
    """Return the path and the options among the arguments of a function, as texts."""
    named = {option.keyword: arguments[option.keyword] for option in keyword_options(use)}
    given = {**named, **arguments["options"]}
    _refuse_second_path(given)
    return {"path": str(arguments["path"]), **option_texts(given)}


def _refuse_second_path(options: Mapping[str, Any]) -> None:
    """Refuse a path among the options of a function that has an argument for it."""
    if any(fold_name(name) == "path" for name in options):
        raise InvalidInputError("the path is given twice: leave option 'path' out", option="path")


def parse_options_of_values(
    path: str, options: Mapping[str, Any], what: str, also: str
) -> ReadRequest:
    """Parse options of reading given as Python values: those of `OF_VALUES` and `also`.

    Raises
    ------
    InvalidInputError
        An option means nothing for `what`, or cannot be used.
    """
    _refuse_second_path(options)
    texts = option_texts({"path": repository_path(path), **options})
    taken = (*OF_VALUES, also)
    foreign = [name for name in collect_options(texts, use="read") if name not in taken]
    if foreign:
        raise refused(foreign[0], f"means nothing for {what}: it takes {listed(taken[1:])}")
    return parse_read_options(texts)


def with_option_help(use: Use) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the options in the docstring, in place of ``each_option``."""

    def describe(function: _Function) -> _Function:
        if function.__doc__ is not None:  # as with python -OO
            function.__doc__ = function.__doc__.replace(_LIST, _listed(use))
        return function

    return describe


def _listed(use: Use) -> str:
    lines = []
    for option in keyword_options(use):
        default = option.default_text
        about = f"{option.type_text}; default: {default}" if default else option.type_text
        text = (use == "write" and option.write_help) or option.help
        lines += [f"{option.keyword}: {about}", textwrap.indent(textwrap.fill(text, 88), "    ")]
    return textwrap.indent("\n".join(lines) + "\n", "    ").replace("`", "``")
