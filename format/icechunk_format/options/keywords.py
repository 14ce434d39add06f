"""Derives the keywords of ``icechunk_spark.read`` and ``icechunk_spark.write`` from the options.

Rules of this file
------------------
1. A keyword is the option's name in Python spelling: ``as_of`` for ``asOf``, ``sel_method`` for
   ``sel.method``, ``from_`` for ``from``. A test compares the signatures with `OPTIONS`.
2. `help()` shows the help of the option with its keyword.
3. Other spellings, and families such as ``storage.*``, are passed as ``**options``.
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
    """Return the argument `path` and the other options of a function, as strings.

    Raises InvalidInputError if the path is also given as an option, or a value cannot be written as
    a string.
    """
    if any(fold_name(name) == "path" for name in options):
        raise InvalidInputError("the path is given twice: leave option 'path' out", option="path")
    return {"path": str(path), **option_texts(options)}


def parse_arguments(path: object, options: Mapping[str, Any], call: Call) -> ReadRequest:
    """Parse the argument `path` and the other options of a Python function.

    Raises InvalidInputError if an option does not apply to `call`, or is invalid.
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
