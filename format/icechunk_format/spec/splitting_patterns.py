r"""Translates the patterns of splitting rules from Rust's ``regex`` to Python's ``re``.

The two languages share most of their syntax and differ in the rest: ``$``, ``\z``, ``\Z``,
``*+``, ``{``, look-around and classes of Unicode. A writer that understands a rule in another way
cuts manifests in another way, so a pattern is translated, or refused.

Rules of this file
------------------
1. Patterns that Rust refuses match nothing, as in the reference.
2. Patterns that Rust takes and this file cannot translate raise ``UnsupportedError``.
3. Of ``\w`` and ``\b`` and of ignored case the two agree on ASCII only; other texts are refused.

Specification: ``manifest.splitting`` of the repository configuration; syntax of Rust's ``regex``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from string import ascii_letters, digits
from typing import Final, NamedTuple, Never

from icechunk_format.errors import UnsupportedError

_MAX_REPEATS: Final = 1000
_SPACES: Final = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_POSIX: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": "\\x00-\\x7f", "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~",
    "punct": "!-/:-@\\[-`{-~", "space": "\\t-\\r ", "upper": "A-Z", "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip
_NAME: Final = re.compile(r"(?:P?<)([A-Za-z_][A-Za-z0-9_]*)>")
_FLAGS: Final = re.compile(r"([is]+)(?:-([is]+))?([:)])")
_COUNTS: Final = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII)


class _Translated(NamedTuple):
    pattern: re.Pattern[str]
    is_for_ascii: bool


class _RefusedByRustError(ValueError):
    """The pattern is no regular expression of Rust; the text says why."""


def check_pattern(pattern: str) -> None:
    """Raise unless a pattern means the same to existing libraries and to this one.

    Raises
    ------
    ValueError
        It is no regular expression of Rust.
    UnsupportedError
        It is one, but is not translated.
    """
    _translated(pattern)


def contains(pattern: str, text: str) -> bool:
    """Tell whether Rust's ``regex`` would find a pattern in a text.

    Raises
    ------
    UnsupportedError
        The pattern is not translated, or not for such a text.
    """
    try:
        translated = _translated(pattern)
    except _RefusedByRustError:
        return False
    if translated.is_for_ascii and not text.isascii():
        raise UnsupportedError(
            f"the repository splits manifests by the pattern {pattern!r}, in which \\w, \\b or "
            f"ignored case may differ between libraries for {text!r}; write the pattern with "
            "classes such as [a-z], or the name in ASCII",
            found=pattern,
        )
    return translated.pattern.search(text) is not None


@lru_cache(maxsize=256)
def _translated(pattern: str) -> _Translated:
    reader = _Reader(pattern)
    text = reader.alternatives(is_inside=False)
    if reader.ignores_case and not pattern.isascii():
        reader.unsupported("ignored case beside letters beyond ASCII")
    try:
        return _Translated(re.compile(text), reader.is_for_ascii)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedError(
            f"the repository splits manifests by the pattern {pattern!r}, which is not "
            f"understood here ({error}); write a simpler pattern",
            found=pattern,
        ) from error


class _Reader:
    """Reads a pattern from left to right, and translates each part for ``re``."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.names: set[str] = set()
        self.is_for_ascii = False
        self.ignores_case = False
        self.depth = 0

    def unsupported(self, what: str) -> Never:
        """Raise UnsupportedError for a part of the pattern."""
        raise UnsupportedError(
            f"the repository splits manifests by the pattern {self.pattern!r}, and {what} is not "
            "understood here; write the pattern without",
            found=self.pattern,
        )

    def _next(self) -> str:
        if self.at == len(self.pattern):
            raise _RefusedByRustError("the pattern ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self.at += len(text) if found else 0
        return found

    def alternatives(self, *, is_inside: bool) -> str:
        """Return the translation up to the end of the group, or of the pattern."""
        self.depth += 1
        if self.depth > 50:
            self.unsupported("nesting deeper than 50 groups")
        parts: list[str] = []
        # A quantifier must follow a part; Rust also repeats assertions, which is refused here.
        while self.at < len(self.pattern):
            if self._peek(")"):
                break
            character = self._next()
            if character in "*+?{":
                raise _RefusedByRustError("nothing stands before a quantifier")
            if character == "|":
                parts.append("|")
                continue
            atom, is_repeatable = self._atom(character)
            parts.append(atom + self._quantifier(is_repeatable))
        self.depth -= 1
        if is_inside and not self._take(")"):
            raise _RefusedByRustError("a group is not closed")
        if not is_inside and self.at < len(self.pattern):
            raise _RefusedByRustError("a group is closed that was not opened")
        return "".join(parts)

    def _quantifier(self, is_repeatable: bool) -> str:
        start = self.at
        if not self._take("*") and not self._take("+") and not self._take("?"):
            if not self._peek("{"):
                return ""
            counts = _COUNTS.match(self.pattern, self.at)
            if counts is None:
                self.unsupported("a '{' that is no count such as {2,3}")
            low, high = int(counts[1]), int(counts[3] or counts[1])
            if low > high:
                raise _RefusedByRustError(f"{counts[0]} counts backwards")
            if high > _MAX_REPEATS:
                self.unsupported(f"repeating more than {_MAX_REPEATS} times")
            self.at = counts.end()
        if not is_repeatable:
            self.unsupported("a quantifier behind an assertion or a flag")
        quantifier = self.pattern[start : self.at]
        # Only whether there is a match counts, so lazy repetition is the same as greedy.
        self._take("?")
        if self.at < len(self.pattern) and self.pattern[self.at] in "*+?{":
            self.unsupported("a quantifier behind another")
        return quantifier

    def _atom(self, character: str) -> tuple[str, bool]:
        """Return one part, and whether it can be repeated."""
        if character == "(":
            return self._group()
        if character == "[":
            return self._class(), True
        if character == "\\":
            return self._escape()
        if character == "$":
            return "\\Z", False
        if character == "^":
            return "\\A", False
        return character if character == "." else re.escape(character), True

    def _group(self) -> tuple[str, bool]:
        if not self._take("?") or self._take(":"):
            return f"(?:{self.alternatives(is_inside=True)})", True
        name = _NAME.match(self.pattern, self.at)
        if name is not None:
            if name[1] in self.names:
                raise _RefusedByRustError(f"two groups are named {name[1]}")
            self.names.add(name[1])
            self.at = name.end()
            return f"(?:{self.alternatives(is_inside=True)})", True
        if self.at < len(self.pattern) and (
            self.pattern[self.at] in "=!#|>&("
            or any(self._peek(text) for text in ("<=", "<!", "P=", "P>"))
        ):
            raise _RefusedByRustError("look-around, references and comments are not in Rust")
        flags = _FLAGS.match(self.pattern, self.at)
        if flags is None:
            self.unsupported(f"{self.pattern[self.at - 2 : self.at + 6]!r}")
        if len({*flags[1], *(flags[2] or "")}) != len(flags[1] + (flags[2] or "")):
            raise _RefusedByRustError("a flag is given twice")
        self.is_for_ascii |= "i" in flags[1]
        self.ignores_case |= "i" in flags[1]
        is_leading = self.at == 2
        self.at = flags.end()
        if flags[3] == ":":
            return f"(?{flags[0]}{self.alternatives(is_inside=True)})", True
        if not is_leading or flags[2]:
            self.unsupported("a flag that begins inside of the pattern")
        return f"(?{flags[1]})", False

    def _escape(self) -> tuple[str, bool]:
        character = self._next()
        if character in "AbB":
            if self._peek("{"):
                self.unsupported("\\b with braces")
            self.is_for_ascii |= character != "A"
            return f"\\{character}", False
        if character == "z":
            return "\\Z", False
        if character in "<>":
            self.unsupported(f"\\{character}")
        return self._character_or_set(character, in_class=False), True

    def _character_or_set(self, character: str, *, in_class: bool) -> str:
        """Return the character or set of characters behind a backslash."""
        if character in "sS":
            if in_class and character == "S":
                self.unsupported("\\S in a class")
            return _SPACES if in_class else f"[{'^' * (character == 'S')}{_SPACES}]"
        if character in "wWdD":
            self.is_for_ascii |= character in "wW"
            return f"\\{character}"
        return re.escape(self._character(character))

    def _character(self, character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character in _HEX_DIGITS:
            return self._hexadecimal(_HEX_DIGITS[character])
        if character in "pP":
            self.unsupported(f"\\{character}, a class of Unicode")
        if character in ascii_letters + digits or not character.isascii():
            raise _RefusedByRustError(f"\\{character} is no escape")
        return character

    def _hexadecimal(self, count: int) -> str:
        if self._take("{"):
            text, closed, _ = self.pattern[self.at :].partition("}")
            self.at += len(text) + len(closed)
        else:
            text = self.pattern[self.at : self.at + count]
            self.at += count
        if not re.fullmatch("[0-9A-Fa-f]{1,8}", text) or self.at > len(self.pattern):
            raise _RefusedByRustError(f"{text!r} is no number of a character")
        number = int(text, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise _RefusedByRustError(f"{text!r} is no number of a character")
        return chr(number)

    def _class(self) -> str:
        parts = ["[^" if self._take("^") else "["]
        is_first = True
        while is_first or not self._take("]"):
            if self._take("[:"):
                name, closed, _ = self.pattern[self.at :].partition(":]")
                if not closed or name not in _POSIX:
                    self.unsupported("a class inside of a class")
                self.at += len(name) + 2
                parts.append(_POSIX[name])
            else:
                parts.append(self._class_item(is_first=is_first))
            is_first = False
        return "".join([*parts, "]"])

    def _class_item(self, *, is_first: bool) -> str:
        """Return a character, a set or a range."""
        if any(self._peek(text) for text in ("[", "&&", "--", "~~")):
            self.unsupported("a class inside of a class")
        character = self._next()
        if character == "\\":
            escaped = self._next()
            if escaped in "sSwWdD":
                if self._peek("-") and not self._peek("-]"):
                    self.unsupported("a range that begins with a set")
                return self._character_or_set(escaped, in_class=True)
            character = self._character(escaped)
        elif character == "-" and not is_first and not self._peek("]"):
            self.unsupported("a '-' inside of a class; escape it")
        if not self._peek("-") or self._peek("-]"):
            return re.escape(character)
        self.at += 1
        if any(self._peek(text) for text in ("[", "-", "&&", "~~")):
            self.unsupported("a class inside of a class")
        last = self._next()
        if last == "\\":
            escaped = self._next()
            if escaped in "sSwWdD":
                raise _RefusedByRustError("a range ends with a set")
            last = self._character(escaped)
        if character > last:
            raise _RefusedByRustError(f"the range {character}-{last} runs backwards")
        return f"{re.escape(character)}-{re.escape(last)}"
