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
from icechunk_format.options.declare import Call, Option, fold_name
from icechunk_format.options.parse import OPTIONS, parse_read_options
from icechunk_format.options.python_values import option_texts
from icechunk_format.options.read import ReadRequest

_Function = TypeVar("_Function", bound="Callable[..., Any]")

# The line of a docstring that the list of options replaces.
_LIST: Final = (
    '    each_option\n        The options are described on the page "Options" of the manual, and in'
    " ``help()``.\n"
)


def keyword_options(call: Call) -> list[Option]:
    """Return the options that have a keyword, in the order of the manual's table."""
    return [
        option
        for option in OPTIONS
        if call in option.calls and option.has_keyword and not option.is_prefix
    ]


def given_options(path: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that a function takes beside its argument `path`, with it, as strings.

    Raises
    ------
    InvalidInputError
        The path is given as an option too, or a value cannot be spelled as a string.
    """
    if any(fold_name(name) == "path" for name in options):
        raise InvalidInputError("the path is given twice: leave option 'path' out", option="path")
    return {"path": str(path), **option_texts(options)}


def parse_arguments(path: object, options: Mapping[str, Any], call: Call) -> ReadRequest:
    """Parse the options that a function of Python takes beside its argument `path`.

    Raises
    ------
    InvalidInputError
        An option is not for `call`, or cannot be used.
    """
    return parse_read_options(given_options(path, options), call)


def with_option_help(call: Call) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the options in the docstring, in place of ``each_option``."""

    def describe(function: _Function) -> _Function:
        if function.__doc__ is not None:  # as with python -OO
            function.__doc__ = function.__doc__.replace(_LIST, _listed(call))
        return function

    return describe


def _listed(call: Call) -> str:
    lines = []
    for option in keyword_options(call):
        default = option.default_text
        about = f"{option.type_text}; default: {default}" if default else option.type_text
        text = (call == "write" and option.write_help) or option.help
        lines += [f"{option.keyword}: {about}", textwrap.indent(textwrap.fill(text, 88), "    ")]
    return textwrap.indent("\n".join(lines) + "\n", "    ").replace("`", "``")
