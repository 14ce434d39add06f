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
from icechunk_spark.options.declare import Option, Use, fold_name
from icechunk_spark.options.parse import OPTIONS, STREAM_OPTIONS
from icechunk_spark.options.python_values import option_texts

_Function = TypeVar("_Function", bound="Callable[..., Any]")

# `path` is an argument of its own; the others concern only the data source, and streams.
_NO_KEYWORDS: Final = frozenset({"path", "pushdown", "maxUnplannedBytes", *STREAM_OPTIONS})
# The line of a docstring that the list of options replaces.
_LIST: Final = (
    '    each_option\n        As on the page "Options" of the manual, and in ``help()``.\n'
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
    if any(fold_name(name) == "path" for name in given):
        raise InvalidInputError("the path is given twice: leave option 'path' out", option="path")
    return {"path": str(arguments["path"]), **option_texts(given)}


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
