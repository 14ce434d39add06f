"""Extracts keys along dimensions from file names, by templates with braces."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from icechunk_format.errors import InvalidInputError

_DIRECTIVES: Final = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{2}",
    "d": r"\d{2}",
    "H": r"\d{2}",
    "M": r"\d{2}",
    "S": r"\d{2}",
    "j": r"\d{3}",
    "f": r"\d{1,6}",
    "b": r"[^\W\d_]{3}",
    "B": r"[^\W\d_]+",
    "%": "%",
}
_FIELD: Final = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_EPOCH: Final = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Extracts keys from file names; made by ``parse_template``."""

    string: str
    pattern: str
    formats: Mapping[str, str]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions in the template, in order."""
        return tuple(self.formats)

    @property
    def dates(self) -> frozenset[str]:
        """The dimensions whose keys are dates."""
        return frozenset(dim for dim, form in self.formats.items() if "%" in form)

    def keys(self, url: str) -> dict[str, Any]:
        """Return the keys of a file by dimension: strings, integers, or microseconds since 1970."""
        found = re.fullmatch(self.pattern, unquote(url))
        if found is None:
            raise InvalidInputError(f"its name does not fit the template {self.string!r}")
        keys: dict[str, Any] = {}
        for dim, form in self.formats.items():
            string = found[dim]
            if form == "d":
                keys[dim] = int(string)
                if keys[dim] >= 2**63:
                    raise InvalidInputError(f"the number {string} in its name does not fit 64 bits")
            elif form:
                try:
                    date = datetime.datetime.strptime(string, form)
                except ValueError as error:
                    raise InvalidInputError(
                        f"{string!r} in its name is not a date: {error}"
                    ) from None
                keys[dim] = (date - _EPOCH) // datetime.timedelta(microseconds=1)
            else:
                keys[dim] = string
        return keys


def parse_template(string: str) -> Template:
    """Parse a template such as ``"{member}/{time:%Y%m%d}.nc"``, or raise InvalidInputError."""
    parts: list[str] = [r"(?:.*/)?"]
    formats: dict[str, str] = {}
    at = 0
    for found in _FIELD.finditer(string):
        parts.append(re.escape(string[at : found.start()]).replace(r"\*", "[^/]*"))
        at = found.end()
        dim, form = found[1], found[2] or ""
        if dim in formats:
            raise _bad_template(string, f"{dim!r} is named twice")
        formats[dim] = form
        parts.append(f"(?P<{dim}>{_expression(string, form)})")
    rest = string[at:]
    if not formats or "{" in rest or "}" in rest:
        raise _bad_template(string, "it must name dimensions in braces")
    parts.append(re.escape(rest).replace(r"\*", "[^/]*"))
    return Template(string=string, pattern="".join(parts), formats=formats)


def _expression(string: str, form: str) -> str:
    if not form:
        return r"[^/]+?"
    if form == "d":
        return r"\d+"
    if "%" not in form:
        raise _bad_template(string, f"the format {form!r} is neither 'd' nor one of dates")
    parts = []
    for literal, letter in re.findall(r"([^%]*)(?:%(.))?", form):
        parts.append(re.escape(literal))
        if letter and letter not in _DIRECTIVES:
            raise _bad_template(
                string, f"%{letter} is unknown; choose from {', '.join(_DIRECTIVES)}"
            )
        parts.append(_DIRECTIVES.get(letter, ""))
    return "".join(parts)


def _bad_template(string: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"template={string!r}: {why}; write it like '{{member}}/{{time:%Y%m%d}}.nc', with * for "
        "the parts that do not matter",
        option="template",
    )
