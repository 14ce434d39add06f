r"""Matches the patterns of splitting rules that Rust's ``regex`` and Python's ``re`` agree on.

Writers that interpret a rule differently split manifests differently. So a pattern is used only if
both languages interpret it identically, and refused otherwise.

Rules of this file
------------------
1. Both interpret identically: characters, ``.``, sets of characters and ranges, ``\d \w \s`` and
   their complements, repetition of these (counts up to 99), groups (also optional ones), ``|``,
   ``^``, ``$``, ``\A``, ``\b``, ``\B``, and ``(?i)`` at the beginning.
2. Patterns that Rust certainly rejects match nothing, as in the reference; a new configuration
   must not contain them. All others are refused.
3. For ``\d``, ``\w``, ``\s``, ``\b`` and ignored case the two agree on ASCII only, for ``$`` and
   ``\s`` on printable characters only; names with other characters are refused.
4. ``re`` backtracks and Rust does not, so repeated groups and more than four repetitions, which
   could take exponential time, are refused. Rust limits a pattern to about 209 times ``\w``.

Specification: ``manifest.splitting`` of the repository configuration; syntax of Rust's ``regex``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Never

from icechunk_format.errors import UnsupportedError

_MAX_REPETITIONS: Final = 4
_MAX_CLASSES: Final = 200
_ESCAPED: Final = r"\\[\\.^$|?*+()\[\]{}\-/#&~]"
_IN_SET: Final = rf"(?:[^\\\[\]^&~|-]|{_ESCAPED})"
_SET: Final = rf"\[\^?-?(?:{_IN_SET}(?:-{_IN_SET})?|\\[dDwWsS])+-?\]"
_REPETITION: Final = r"(?:[*+]|\{[0-9]{1,2}(?:,(?:[0-9]{1,2})?)?\})"
_PART: Final = re.compile(
    rf"(?:[^\\.^$|?*+()\[\]{{}}]|\.|{_ESCAPED}|\\[dDwWsS]|{_SET})(?:({_REPETITION})\??|\?{{1,2}})?"
    rf"|[\^$|]|\\[AbB]|\((?:\?:|\?P<[A-Za-z_][A-Za-z0-9_]*>|(?!\?))|\)\?{{0,2}}"
)
_CLASS: Final = re.compile(r"\\[dDwWsS]")
_FOR_ASCII: Final = re.compile(r"\(\?i\)|(?:^|[^\\])(?:\\\\)*\\[dDwWsSbB]")
# A backslash at the end or before an unknown letter, groups that Rust lacks, unclosed groups or
# sets.
_REFUSED_BY_RUST: Final = re.compile(
    r"\\(?:\Z|(?![aftnrvxuUpPdDwWsSAzbB])[0-9A-Za-z]|[^\x00-\x7f])"
    r"|\(\?(?:[=!>#|&()]|<[=!]|P(?:[^<]|<[>0-9]))|\([^)]*\Z|\[\^?\]?[^\]]*\Z"
)


def check_pattern(pattern: str) -> None:
    """Raise UnsupportedError unless other libraries interpret a pattern identically."""
    if _compiled(pattern) is None:
        _refuse(pattern, "which is not a regular expression of Rust and matches nothing")


def contains(pattern: str, string: str) -> bool:
    """Return True if Rust's ``regex`` would find a pattern in a string.

    Raises UnsupportedError if the two languages may interpret the pattern differently for this
    string.
    """
    compiled = _compiled(pattern)
    if compiled is None:
        return False
    if not string.isprintable() or not (string.isascii() or _FOR_ASCII.search(pattern) is None):
        raise UnsupportedError(
            f"the repository splits manifests by the pattern {pattern!r}, which libraries may read "
            f"differently for {string!r}; write the pattern with classes such as [a-z], or the "
            "name in printable ASCII",
            found=pattern,
        )
    return compiled.search(string) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern for ``re``; None if Rust refuses it."""
    at = 4 if pattern.startswith("(?i)") and pattern.isascii() else 0
    repetitions = classes = 0
    before = "|"
    while at < len(pattern):
        part = _PART.match(pattern, at)
        if part is None:
            is_open = before == "|" or before.startswith("(")
            if (is_open and pattern[at] in "*+?{") or _REFUSED_BY_RUST.match(pattern, at):
                return None
            _refuse_differing(pattern, f"{pattern[at : at + 8]!r} at character {at + 1}")
        before, at, repetitions = part[0], part.end(), repetitions + (part[1] is not None)
        if _CLASS.search(before):
            classes += max(map(int, re.findall("[0-9]+", part[1] or "")), default=1)
    if classes > _MAX_CLASSES:
        _refuse_differing(
            pattern, f"more than {_MAX_CLASSES} classes such as \\w, counts written out"
        )
    if repetitions > _MAX_REPETITIONS:
        _refuse_differing(pattern, f"more than {_MAX_REPETITIONS} repetitions")
    try:
        return re.compile(pattern)
    except re.error:
        # All parts are known: a group is unbalanced or named twice, or a range or count is
        # reversed.
        return None
    except RecursionError as error:
        _refuse_differing(pattern, f"{error}")


def _refuse_differing(pattern: str, problem: str) -> Never:
    _refuse(pattern, f"which libraries may read differently ({problem})")


def _refuse(pattern: str, problem: str) -> Never:
    raise UnsupportedError(
        f"the repository splits manifests by the pattern {pattern!r}, {problem}; write it with "
        "characters, sets such as [a-z], '.', '|', groups, '*', '+', '?', '^' and '$'",
        found=pattern,
    )
