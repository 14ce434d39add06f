"""Reads the tokens of Catalyst's SQL, and the operands of its aggregates.

Rules of this file
------------------
1. An operand is one column, or arithmetic of one column with constants whose results are those of
   ``layouts.arithmetic``: FLOAT and DOUBLE, and integers after a cast to DOUBLE.
2. Divisors are constants other than zero, since a division by zero is an error or NULL.
3. Anything else raises `NotRewritten`, and the query keeps its own aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from icechunk_format.tables.reading.layouts.arithmetic import Operation, Step

_TOKENS: Final = re.compile(
    r"(?P<string>'(?:[^'\\]|\\.)*')|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<number>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?[A-Za-z]*)|(?P<word>[^\W\d]\w*)"
    r"|(?P<space>\s+)|(?P<other>[<>=!|&]+|.)",
    re.DOTALL,
)
Token = tuple[str, str]
"""A kind of `_TOKENS`, and the text."""


class NotRewritten(Exception):
    """An aggregate that only Spark computes; the message gives the reason."""


class Operand(NamedTuple):
    """A column, the type of the result, and the steps from the column's values to it."""

    column: str
    type: pa.DataType
    steps: tuple[Step, ...]


_OPERATIONS: Final[Mapping[str, Operation]] = {
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
}


def operand(tokens: Sequence[Token], types: Mapping[str, pa.DataType]) -> Operand:
    """Return the operand that an argument of an aggregate is."""
    tokens = bare(tokens)
    if len(tokens) == 1 and tokens[0][0] == "quoted":
        name = unquoted(tokens[0][1])
        if name not in types:
            raise NotRewritten(f"{tokens[0][1]} is not a column of the table")
        return Operand(name, types[name], ())
    strings = [string.lower() for _, string in tokens]
    if strings[:2] == ["cast", "("] and strings[-3:] == ["as", "double", ")"]:
        inner = operand(tokens[2:-3], types)
        if not (pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type)):
            raise NotRewritten(f"a cast of {inner.type}")
        return Operand(inner.column, pa.float64(), (*inner.steps, Step("double")))
    if strings[:2] == ["abs", "("] and closing(tokens, 1) == len(tokens) - 1:
        return _after(operand(tokens[2:-1], types), Step("abs"))
    if strings[:1] == ["-"]:
        return _after(operand(tokens[1:], types), Step("negate"))
    return _binary(tokens, types)


def _binary(tokens: Sequence[Token], types: Mapping[str, pa.DataType]) -> Operand:
    """Return the operand of an operation on a column and a constant."""
    depth, at = 0, 0
    for at, (kind, string) in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(string, 0) if kind == "other" else 0
        if at and not depth and kind == "other" and string in _OPERATIONS:
            break
    else:
        raise NotRewritten(f"an aggregate of {shown(tokens)}")
    operation = _OPERATIONS[tokens[at][1]]
    left, right = tokens[:at], tokens[at + 1 :]
    constant = _constant(right)
    is_first = constant is None
    if is_first:
        constant = _constant(left)
    if constant is None or (operation == "divide" and (is_first or not constant[0])):
        raise NotRewritten(f"an aggregate of {shown(tokens)}")
    value, kind_of_constant = constant
    inner = operand(right if is_first else left, types)
    if inner.type != kind_of_constant:
        raise NotRewritten(f"arithmetic of {inner.type}")
    return _after(inner, Step(operation, value, is_first))


def _after(inner: Operand, step: Step) -> Operand:
    if inner.type not in (pa.float32(), pa.float64()):
        raise NotRewritten(f"arithmetic of {inner.type}")
    return Operand(inner.column, inner.type, (*inner.steps, step))


def _constant(tokens: Sequence[Token]) -> tuple[float, pa.DataType] | None:
    """Return a literal of type DOUBLE or FLOAT, with its type."""
    strings = [string for _, string in bare(tokens)]
    sign = -1.0 if strings[:1] == ["-"] else 1.0
    strings = strings[strings[:1] == ["-"] :]
    if len(strings) == 1 and re.fullmatch(r"[\d.]+([eE][-+]?\d+)?D", strings[0]):
        return sign * float(strings[0][:-1]), pa.float64()
    is_cast = [string.lower() for string in (*strings[:2], *strings[3:4])] == ["cast", "(", "as"]
    if not is_cast or len(strings) != 6 or not strings[2].startswith("'"):
        return None
    kind = {"double": pa.float64(), "float": pa.float32()}.get(strings[4].lower())
    try:
        value = sign * float(strings[2][1:-1])
    except ValueError:
        return None
    if kind == pa.float32() and np.isfinite(value):
        single = np.float32(value)
        # The nearest FLOAT is not that of the nearest DOUBLE if this is between two of them.
        if 2 * abs(value - float(single)) == float(np.spacing(np.abs(single))):
            return None
    return None if kind is None else (value, kind)


def shown(tokens: Sequence[Token]) -> str:
    """Return the SQL of tokens."""
    return " ".join(string for _, string in tokens)


def bare(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return tokens without the parentheses around all of them."""
    while tokens and tokens[0][1] == "(" and closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def split(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split arguments at commas."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token[1], 0)
        if token[1] == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def tokens_of(sql: str) -> list[Token]:
    """Return the tokens of an expression, without spaces and without its alias."""
    found = [
        (str(match.lastgroup), match[0])
        for match in _TOKENS.finditer(sql)
        if match.lastgroup != "space"
    ]
    if any(string in ("\0", '"', "'", "`") for kind, string in found if kind == "other"):
        raise NotRewritten("an expression of unknown syntax")
    if len(found) > 2 and is_token(found, len(found) - 2, "as"):
        return found[:-2]
    return found


def is_token(tokens: Sequence[Token], position: int, string: str) -> bool:
    """Return True if a token is a word or sign, without case."""
    if not 0 <= position < len(tokens):
        return False
    kind, found = tokens[position]
    return kind in ("word", "other") and found.lower() == string


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Return the position of the parenthesis that closes another."""
    depth = 0
    for position in range(opening, len(tokens)):
        kind, string = tokens[position]
        if kind == "other":
            depth += {"(": 1, ")": -1}.get(string, 0)
        if not depth:
            return position
    raise NotRewritten("an expression without its end")


def unquoted(string: str) -> str:
    """Return the name of a column in backticks."""
    return string[1:-1].replace("``", "`") if string.startswith("`") else string


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"
