"""Rewrites the aggregates of a query, as SQL of Catalyst, for rows of partial aggregates.

``avg(t2m)`` over cells becomes ``sum(total) / sum(count)`` over partial rows. Everything else of an
expression, such as a cast or a label, keeps its text, so that Spark evaluates it itself.

Rules of this file
------------------
1. Only constructs in the tables of this file are rewritten. Anything else raises `NotRewritten`,
   and the query keeps its own aggregate.
2. Results have the types and values of Spark's own functions, except for the last digits of floats,
   which differ between two partitionings, too.
3. ``min``, ``max`` and DISTINCT give the same result on one row for each label, so those of
   dimensions are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pyarrow as pa

from icechunk_format.tables.aggregates import MeasureRequest
from icechunk_format.tables.reading.layouts.partials import CELLS, measure_name
from icechunk_format.tables.reading.layouts.segments import Measure
from icechunk_spark.queries.operands import (
    NotRewritten,
    Operand,
    Token,
    bare,
    closing,
    is_token,
    operand,
    quoted,
    split,
    tokens_of,
    unquoted,
)
from icechunk_spark.reading.combine import merged_moments

if TYPE_CHECKING:
    from icechunk_format.tables import Table
    from icechunk_format.tables.reading.layouts.arithmetic import Step
    from icechunk_format.tables.reading.layouts.statistics import Statistic

# Words beside names of functions; names of columns are quoted.
_WORDS: Final = (
    "and as between bigint binary boolean byte case date day distinct div double else end false"
    " filter float hour if in int integer interval is like long minute month not null or second"
    " short smallint string then timestamp timestamp_ltz timestamp_ntz tinyint to true when where"
    " year"
)
_KEYWORDS: Final = frozenset(_WORDS.split())
# Functions without state, whose result depends on their arguments and the session alone.
_FUNCTIONS: Final = (
    "abs add_months bround cast ceil ceiling char coalesce concat date_add date_format date_sub"
    " date_trunc datediff day dayofmonth dayofweek dayofyear decimal dayname floor greatest hour if"
    " ifnull isnan isnotnull isnull last_day least length ln lower make_date minute mod month"
    " monthname nullif nvl pmod pow power quarter round rtrim second sign signum sqrt substr"
    " substring to_date to_timestamp trim trunc try_cast unix_date unix_timestamp upper varchar"
    " weekday weekofyear year"
)
_SCALARS: Final = frozenset(_FUNCTIONS.split())
_MOMENTS: Final = {
    "stddev_pop": "CASE WHEN t.n > 0 THEN sqrt(t.m2 / t.n) END",
    "var_pop": "CASE WHEN t.n > 0 THEN t.m2 / t.n END",
    "stddev_samp": "CASE WHEN t.n > 1 THEN sqrt(t.m2 / (t.n - 1)) END",
    "var_samp": "CASE WHEN t.n > 1 THEN t.m2 / (t.n - 1) END",
}
_SAME: Final = {
    "mean": "avg",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
}
_AGGREGATES: Final = frozenset({"avg", "count", "max", "min", "sum", *_MOMENTS})


class _Call(NamedTuple):
    """A call of an aggregate function within an expression."""

    name: str
    arguments: list[Token]
    condition: list[Token]
    is_distinct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """The measure that several aggregates share."""

    column: str | None
    condition: str | None
    mode: Literal["float", "exact", "upper", "lower"]
    steps: tuple[Step, ...] = ()


class AggregateCalls:
    """Rewrites the expressions of one query, and collects their dimensions and measures.

    ``ansi`` is True if sums of BIGINT fail on overflow rather than wrap.
    """

    def __init__(self, table: Table, *, ansi: bool) -> None:
        self._ansi = ansi
        self._dims = {c.name for c in table.columns if c.role == "dimension"}
        self._types: Mapping[str, pa.DataType] = {c.name: c.arrow_type for c in table.columns}
        self._numeric = {
            c.name for c in table.columns if c.decoder is not None and c.decoder.is_numeric
        }
        if any(name.startswith("icechunk_") for name in self._types):
            raise NotRewritten("a column has the name of a column of partial aggregates")
        self.dims: dict[str, None] = {}
        self._measures: dict[_Needed, set[Statistic]] = {}

    @property
    def measures(self) -> list[MeasureRequest]:
        """The measures of all expressions so far, by their numbers."""
        return [
            MeasureRequest(
                needed.column,
                Measure(
                    wanted=frozenset(wanted),
                    exact_sum=needed.mode != "float",
                    half=needed.mode if needed.mode in ("upper", "lower") else None,
                    steps=needed.steps,
                ),
                needed.condition,
            )
            for needed, wanted in self._measures.items()
        ]

    @property
    def has_moments(self) -> bool:
        """True if a variance is wanted, whose parts Spark collects."""
        return any("moments" in wanted for wanted in self._measures.values())

    def group(self, sql: str) -> str:
        """Return a grouping expression of dimensions."""
        return self._labels(tokens_of(sql))

    def aggregate(self, sql: str) -> str:
        """Return an expression of aggregates, without its alias."""
        tokens = tokens_of(sql)
        found, position = [], 0
        while position < len(tokens):
            name = _SAME.get(tokens[position][1].lower(), tokens[position][1].lower())
            is_call = tokens[position][0] == "word" and is_token(tokens, position + 1, "(")
            if not (is_call and name in _AGGREGATES):
                found.append((position, position + 1))
                position += 1
                continue
            start, position = position, closing(tokens, position + 1) + 1
            if is_token(tokens, position, "filter"):
                position = closing(tokens, position + 1) + 1
            found.append((start, position))
        parts: list[str] = []
        rest: list[Token] = []
        for start, stop in found:
            if stop == start + 1:
                rest.append(tokens[start])
                continue
            parts.append(self._merged(_call(tokens[start:stop])))
            # Takes the place of the call, and is no column.
            rest.append(("merged", f"\0{len(parts) - 1}"))
        string = self._labels(rest)
        return re.sub("\0([0-9]+)", lambda number: f"({parts[int(number[1])]})", string)

    def _labels(self, tokens: Sequence[Token]) -> str:
        """Return an expression that uses no cells: only dimensions, and functions of them."""
        names, string = self._resolved([_without_settings(*token) for token in tokens])
        for name in names:
            if name not in self._dims:
                raise NotRewritten(f"{name} is not a dimension")
            if "${" in name:
                raise NotRewritten(f"Spark's parser would replace a variable in {name}")
            self.dims[name] = None
        return string

    def _resolved(self, tokens: Sequence[Token]) -> tuple[list[str], str]:
        """Return the columns in an expression, and its SQL with their exact names."""
        names: list[str] = []
        parts: list[str] = []
        for position, (kind, string) in enumerate(tokens):
            is_called = is_token(tokens, position + 1, "(")
            if kind == "quoted":
                name = unquoted(string)
                if name not in self._types or is_called or is_token(tokens, position + 1, "."):
                    raise NotRewritten(f"{string} is not a column of the table")
                names.append(name)
            elif kind == "word":
                known = _KEYWORDS | _SCALARS if is_called else _KEYWORDS
                if string.lower() not in known:
                    raise NotRewritten(f"{string} is not evaluated on labels")
            parts.append(string if kind == "merged" else f"{string} ")
        return names, "".join(parts)

    def _merged(self, call: _Call) -> str:
        """Return the SQL that merges the parts of one aggregate."""
        names, arguments = self._resolved(call.arguments)
        if call.is_distinct or (call.name in ("min", "max") and self._dims.issuperset(names)):
            kept = f" FILTER (WHERE {self._labels(call.condition)})" if call.condition else ""
            distinct = "DISTINCT " if call.is_distinct else ""
            return f"{call.name}({distinct}{self._labels(call.arguments)}){kept}"
        condition = self._resolved(call.condition)[1] if call.condition else None
        counted = _counted_condition(call)
        if counted is not None and condition is None:
            sql = self._resolved(counted)[1]
            total = f"sum({self._part(None, sql, 'float', 'count')})"
            return total if call.name == "sum" else f"coalesce({total}, 0L)"
        if call.name == "count" and not names:
            if arguments.strip() not in ("*", "1"):
                raise NotRewritten(f"count({arguments})")
            part = CELLS if condition is None else self._part(None, condition, "float", "count")
            return f"coalesce(sum({part}), 0L)"
        found = operand(call.arguments, self._types)
        name = found.column
        if name in self._dims:
            if call.name != "count" or condition is not None or found.steps:
                raise NotRewritten(f"{call.name} of the dimension {name} needs its cells")
            self._labels(call.arguments)
            counts = f"CASE WHEN {quoted(name)} IS NULL THEN 0L ELSE {CELLS} END"
            return f"coalesce(sum({counts}), 0L)"
        if found.steps and call.name != "count":
            return self._of_numbers(call.name, found, condition)
        return self._of_column(call.name, name, condition)

    def _of_column(self, function: str, name: str, condition: str | None) -> str:
        kind = self._types[name]
        if function == "count":
            return f"coalesce(sum({self._part(name, condition, 'float', 'count')}), 0L)"
        if name not in self._numeric:
            raise NotRewritten(f"{function} of {kind}")
        if function in ("min", "max"):
            if not _has_order(kind):
                raise NotRewritten(f"{function} of {kind}")
            field: Literal["low", "high"] = "low" if function == "min" else "high"
            return f"{function}({self._part(name, condition, _mode(kind), field, field)})"
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            if function != "sum" or pa.types.is_floating(kind):
                return self._of_numbers(function, Operand(name, kind, ()), condition)
        elif function != "sum" or not pa.types.is_decimal(kind):
            raise NotRewritten(f"{function} of {kind}")
        if pa.types.is_decimal(kind):
            return f"CAST({self._exact_sum(name, condition)} AS DECIMAL(30, 0))"
        if _mode(kind) == "exact" or not self._ansi:
            # Wraps without ANSI, as does Spark.
            return f"sum({self._part(name, condition, 'exact', 'total', 'total')})"
        total = self._exact_sum(name, condition)
        ends = "-9223372036854775808BD AND 9223372036854775807BD"
        return (
            f"CASE WHEN {total} IS NULL THEN CAST(NULL AS BIGINT) WHEN {total} BETWEEN {ends} THEN "
            f"CAST({total} AS BIGINT) ELSE 9223372036854775807L + count(1) END"
        )

    def _of_numbers(self, function: str, operand: Operand, condition: str | None) -> str:
        """Return the SQL of a function whose result is computed in DOUBLE, or of an extreme."""
        name, kind, steps = operand
        if name not in self._numeric:
            raise NotRewritten(f"{function} of {kind}")
        while function not in ("min", "max") and steps and steps[-1].operation == "double":
            # Sums widen the values themselves.
            steps = steps[:-1]
        kind = kind if steps else self._types[name]
        mode = "float" if steps else _mode(kind)
        if function in _MOMENTS:
            fields = (
                self._part(name, condition, mode, field, "moments", steps=steps)
                for field in ("count", "mean", "m2")
            )
            return merged_moments(*fields, finish=_MOMENTS[function])
        if function in ("min", "max"):
            field: Literal["low", "high"] = "low" if function == "min" else "high"
            return f"{function}({self._part(name, condition, mode, field, field, steps=steps)})"
        total = self._part(name, condition, mode, "total", "total", steps=steps)
        if function == "sum":
            return f"sum(CAST({total} AS DOUBLE))"
        count = self._part(name, condition, mode, "count", steps=steps)
        return f"sum(CAST({total} AS DOUBLE)) / nullif(sum({count}), 0L)"

    def _exact_sum(self, name: str, condition: str | None) -> str:
        upper, lower = (
            f"sum(CAST({self._part(name, condition, mode, 'total', 'total')} AS DECIMAL(20, 0)))"
            for mode in ("upper", "lower")
        )
        return f"({upper} * 4294967296BD + {lower})"

    def _part(
        self,
        column: str | None,
        condition: str | None,
        mode: Literal["float", "exact", "upper", "lower"],
        field: str,
        *wanted: Statistic,
        steps: tuple[Step, ...] = (),
    ) -> str:
        """Return the partial column of a statistic, and note that it is wanted."""
        needed = _Needed(column=column, condition=condition, mode=mode, steps=steps)
        self._measures.setdefault(needed, set()).update(wanted)
        return measure_name(list(self._measures).index(needed), field)


def _mode(kind: pa.DataType) -> Literal["float", "exact"]:
    """Return how a type is summed: exactly if sums of all cells of a task fit."""
    narrow = pa.types.is_integer(kind) and kind.bit_width <= 32
    return "exact" if narrow else "float"


def _has_order(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_decimal(kind)
    )


def _counted_condition(call: _Call) -> list[Token] | None:
    """Return the condition that a call counts, as Catalyst writes ``count_if`` and its like."""
    tokens = bare(call.arguments)
    words = [word.lower() for _, word in tokens]
    if call.name == "count" and words[:2] == ["if", "("] and closing(tokens, 1) == len(tokens) - 1:
        parts = split(tokens[2:-1])
        null = ["cast", "(", "null", "as", "boolean", ")"]
        if len(parts) == 3 and [string.lower() for _, string in parts[1]] in (null, ["null"]):
            test = bare(parts[0])
            if test[0][1].lower() == "not" and bare(test[1:]) == bare(parts[2]):
                return parts[2]
    is_one = words[-5:] == ["then", "1", "else", "0", "end"] and words.count("when") == 1
    if call.name == "sum" and words[:2] == ["case", "when"] and is_one:
        return list(tokens[2:-5])
    return None


def _call(tokens: Sequence[Token]) -> _Call:
    name = tokens[0][1].lower()
    end = closing(tokens, 1)
    arguments = list(tokens[2:end])
    is_distinct = is_token(arguments, 0, "distinct")
    condition: list[Token] = []
    if end + 1 < len(tokens):
        # ``FILTER (WHERE ...)``.
        if not is_token(tokens, end + 3, "where"):
            raise NotRewritten("a filter without a condition")
        condition = list(tokens[end + 4 : -1])
    return _Call(
        name=_SAME.get(name, name),
        arguments=arguments[1:] if is_distinct else arguments,
        condition=condition,
        is_distinct=is_distinct,
    )


def _without_settings(kind: str, string: str) -> Token:
    """Return a token of Catalyst as one that Spark parses alike with all settings of a session.

    A setting makes TIMESTAMP a TIMESTAMP_NTZ, another one keeps backslashes in strings, and the
    parser replaces variables such as ``${env:HOME}``.
    """
    if kind == "word" and string.lower() == "timestamp":
        return kind, "timestamp_ltz"
    if kind == "string" and ("\\" in string or "${" in string):
        value = re.sub(r"\\(.)", r"\1", string[1:-1], flags=re.DOTALL)
        return kind, f"CAST(X'{value.encode().hex()}' AS STRING)"
    return kind, string
