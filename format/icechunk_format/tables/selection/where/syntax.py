"""Declares the constructs that a ``where`` may contain, as tables over sqlglot's syntax tree.

Rules of this file
------------------
1. A construct that is not in a table is refused by name, with a list of the allowed constructs.
2. Nodes have optional parts (ESCAPE, IGNORE NULLS, a second argument). Parts that a handler does
   not declare are refused rather than ignored, so that a newer parser cannot change the meaning of
   a condition.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, cast

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
)


class WhereDialect(Spark):
    """Spark SQL since 4.0, in which a doubled quote in a string is one quote."""

    class Tokenizer(Spark.Tokenizer):
        """Reads a doubled quote as one quote, not as two adjacent strings."""

        STRING_ESCAPES: ClassVar[list[str]] = [*Spark.Tokenizer.STRING_ESCAPES, *("'", '"')]


COMPARISONS: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "eq",
    exp.NEQ: "ne",
    exp.LT: "lt",
    exp.LTE: "le",
    exp.GT: "gt",
    exp.GTE: "ge",
    exp.NullSafeEQ: "null_safe_eq",
    exp.NullSafeNEQ: "null_safe_ne",
}
ARITHMETIC: Final[dict[type[exp.Expression], str]] = {
    exp.Add: "add",
    exp.Sub: "subtract",
    exp.Mul: "multiply",
    exp.Div: "divide",
    exp.Mod: "remainder",
}
# Integer functions of a date or a timestamp: name -> (kernel, whether it needs a time of day).
TIME_PARTS: Final = {
    "year": ("year", False),
    "quarter": ("quarter", False),
    "month": ("month", False),
    "day": ("day", False),
    "dayofmonth": ("day", False),
    "dayofweek": ("day_of_week", False),
    "weekday": ("weekday", False),
    "dayofyear": ("day_of_year", False),
    "weekofyear": ("week_of_year", False),
    "hour": ("hour", True),
    "minute": ("minute", True),
    "second": ("second", True),
}
# The names of these parts in EXTRACT.
EXTRACT_PARTS: Final = {
    "YEAR": "year",
    "QUARTER": "quarter",
    "MONTH": "month",
    "WEEK": "weekofyear",
    "DAY": "day",
    "DAYOFWEEK": "dayofweek",
    "DOW": "dayofweek",
    "DOY": "dayofyear",
    "DAYOFYEAR": "dayofyear",
    "HOUR": "hour",
    "MINUTE": "minute",
}
DOUBLE_FUNCTIONS: Final = ("sqrt", "exp", "ln", "sin", "cos", "tan", "radians", "degrees")
STRING_FUNCTIONS: Final = {"lower": STRING, "upper": STRING, "trim": STRING, "length": INT}
STRING_SEARCHES: Final = {
    "startswith": "starts_with",
    "endswith": "ends_with",
    "contains": "contains",
}
BIT_OPERATIONS: Final[dict[type[exp.Expression], str]] = {
    exp.BitwiseAnd: "bit_and",
    exp.BitwiseOr: "bit_or",
    exp.BitwiseXor: "bit_xor",
}
# Parts of a DATE_FORMAT that are supported, as sqlglot writes them, with those of strftime.
FORMATS: Final = {
    "%Y": "%Y",  # yyyy
    "%mstrict": "%m",  # MM
    "%dstrict": "%d",  # dd
    "%Hstrict": "%H",  # HH
    "%Mstrict": "%M",  # mm
}
DATE_TRUNCATIONS: Final = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MM", "MON"), "month"),
    "WEEK": "week",
}
TRUNCATIONS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")

# sqlglot's class of each function in these tables, except ``weekday``.
FUNCTION_NODES: Final[dict[type, str]] = {
    exp.FUNCTION_BY_NAME[name.upper()]: name
    for name in (*TIME_PARTS, *DOUBLE_FUNCTIONS, *STRING_FUNCTIONS, *STRING_SEARCHES)
    if name.upper() in exp.FUNCTION_BY_NAME
}
_OTHER_FUNCTIONS: Final = (
    "abs ceil coalesce concat date_add date_format date_sub date_trunc datediff floor greatest if "
    "ifnull isnan isnotnull isnull least left nullif nvl pmod power right round sign substring "
    "to_date trunc unix_timestamp weekday"
)
FUNCTION_NAMES: Final = tuple(sorted({*FUNCTION_NODES.values(), *_OTHER_FUNCTIONS.split()}))

CAST_TYPES: Final = {
    "BOOLEAN": BOOLEAN,
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": INT,
    "BIGINT": BIGINT,
    "FLOAT": pa.float32(),
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "VARCHAR": STRING,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}
INTERVAL_UNITS: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
DAY_TO_SECOND: Final = re.compile(
    r"([+-]?)(\d{1,9}) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", re.ASCII
)

ALLOWED: Final = (
    "AND, OR, NOT, =, <=>, <>, <, <=, >, >=, BETWEEN, IN (list), IS [NOT] NULL, [I]LIKE, RLIKE, "
    "CASE, +, -, *, /, %, DIV, &, |, ^, CAST, literals (also DATE, TIMESTAMP and INTERVAL), and "
    "the functions " + ", ".join(FUNCTION_NAMES)
)


def like_pattern(string: str, escape: str, node: exp.Expression) -> str:
    """Translate a LIKE pattern to a regular expression."""
    parts, letters = [], iter(string)
    for letter in letters:
        if letter == escape:
            follower = next(letters, None)
            if follower is None or follower not in ("_", "%", escape):
                raise InvalidInputError(
                    f"where: {sql_text(node)}: {escape!r} in a pattern has to be followed by _, % "
                    f"or itself",
                    option="where",
                )
            parts.append(re.escape(follower))
        else:
            parts.append({"_": ".", "%": ".*"}.get(letter) or re.escape(letter))
    return "".join(parts)


def allow_parts(node: exp.Expression, *allowed: str) -> None:
    """Raise InvalidInputError if a node has a part that the caller does not handle."""
    for part, value in node.args.items():
        if value and part not in allowed:
            raise refused(node)


def operands(node: exp.Expression) -> list[exp.Expression]:
    """Return all operands of a chain of ANDs or ORs without recursing for each."""
    return [cast("exp.Expression", operand) for operand in node.flatten()]


def refused(node: exp.Expression) -> InvalidInputError:
    """Return the error for a construct that is not in the tables."""
    return InvalidInputError(
        f"where: {sql_text(node)} is not supported; use df.where(...) for it, which Spark "
        f"evaluates after reading; where can hold {ALLOWED}",
        option="where",
        construct=type(node).__name__,
    )


def sql_text(node: Any) -> str:
    """Return a node as SQL, quoted and shortened for an error."""
    string = node.sql(dialect="spark", comments=False)
    return repr(string if len(string) <= 200 else string[:200] + "…")
