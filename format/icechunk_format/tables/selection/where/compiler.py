"""Compiles sqlglot's syntax tree to the expressions that executors evaluate.

Long because one class compiles all constructs, with a short handler for each.

Rules of this file
------------------
1. The tables of ``syntax`` declare the allowed constructs. Errors about other constructs list the
   allowed ones.
2. The table of handlers lists the parts of a node that each handler reads; other parts are refused.
3. Types are resolved here, by the rules of ``types``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import unknown
from icechunk_format.tables.cf.arrow_values import is_number, sql_name
from icechunk_format.tables.selection.where.condition import Constant
from icechunk_format.tables.selection.where.kernels import EvaluationError
from icechunk_format.tables.selection.where.long_lists import as_literals, as_set
from icechunk_format.tables.selection.where.operators import (
    chosen,
    combine,
    combine_bits,
    compare,
    days_added,
    formatted,
    positive_remainder,
    time_part,
    truncated,
    widest,
)
from icechunk_format.tables.selection.where.syntax import (
    ARITHMETIC,
    BIT_OPERATIONS,
    CAST_TYPES,
    COMPARISONS,
    DATE_TRUNCATIONS,
    DAY_TO_SECOND,
    DOUBLE_FUNCTIONS,
    EXTRACT_PARTS,
    FUNCTION_NODES,
    INTERVAL_UNITS,
    STRING_FUNCTIONS,
    STRING_SEARCHES,
    TIME_PARTS,
    TRUNCATIONS,
    WhereDialect,
    allow_parts,
    like_pattern,
    operands,
    refused,
    sql_text,
)
from icechunk_format.tables.selection.where.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    INTERVAL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Typed,
    TypeMismatchError,
    call,
    cast,
    column,
    comparable,
    constant,
    decimal_literal,
    number_literal,
)


class Compiler:
    """Compiles syntax trees against the columns of one table.

    ``columns`` are the types of the columns that an expression may name. ``lists`` are the items of
    the lists that `cut_lists` replaced by placeholders.
    """

    def __init__(
        self, columns: Mapping[str, pa.DataType], lists: Mapping[str, list[str]] | None = None
    ) -> None:
        self._columns = columns
        self._lists = lists or {}
        self._folded: dict[str, list[str]] = {}
        for name in columns:
            self._folded.setdefault(name.casefold(), []).append(name)

    def compile(self, node: exp.Expression) -> Typed:
        """Return the typed expression of a node.

        Raises InvalidInputError if the node, or a node below it, is not supported or combines
        incompatible types.
        """
        try:
            return self._dispatch(node)
        except (TypeMismatchError, EvaluationError, pa.ArrowException, OverflowError) as error:
            raise InvalidInputError(
                f"where: in {sql_text(node)}: {error}", option="where"
            ) from error

    def _dispatch(self, node: exp.Expression) -> Typed:
        kind = type(node)
        if kind in COMPARISONS:
            left, right = self._operands(node)
            return compare(COMPARISONS[kind], left, right)
        if kind in ARITHMETIC:
            left, right = self._operands(node, "typed", "safe")
            return combine(ARITHMETIC[kind], left, right)
        if kind in BIT_OPERATIONS:
            return combine_bits(BIT_OPERATIONS[kind], *self._operands(node))
        if kind in FUNCTION_NODES:
            return self._function(FUNCTION_NODES[kind], node)
        if kind not in _HANDLERS:
            raise refused(node)
        handler, *parts = _HANDLERS[kind]
        allow_parts(node, *parts)
        return handler(self, node)

    def _operands(self, node: exp.Expression, *ignored: str) -> tuple[Typed, Typed]:
        allow_parts(node, "this", "expression", *ignored)
        return self.compile(node.this), self.compile(node.expression)

    def _column(self, node: exp.Expression) -> Typed:
        if not isinstance(node.this, exp.Identifier):
            raise refused(node)
        name = node.name
        names = [name] if name in self._columns else self._folded.get(name.casefold(), [])
        if not names:
            raise InvalidInputError(
                f"where: {unknown('column', name, self._columns)}", option="where", column=name
            )
        if len(names) > 1:
            raise InvalidInputError(
                f"where: column {name!r} may be any of {', '.join(names)}; write it in their case",
                option="where",
                column=name,
                existing=tuple(names),
            )
        return column(names[0], self._columns[names[0]])

    def _literal(self, node: exp.Expression) -> Typed:
        return constant(node.name, STRING) if node.is_string else number_literal(node.name)

    def _concat(self, node: exp.Expression) -> Typed:
        """Join strings, or adjacent string literals, as SQL does."""
        parts = (node.this, node.expression) if isinstance(node, exp.DPipe) else node.expressions
        return call("concat", STRING, *(self._string_argument(part, node) for part in parts))

    def _connector(self, node: exp.Expression) -> Typed:
        terms = [self._condition(term) for term in operands(node)]
        return call("and" if isinstance(node, exp.And) else "or", BOOLEAN, *terms)

    def _condition(self, node: exp.Expression) -> Typed:
        value = self.compile(node)
        if value.type != BOOLEAN and not pa.types.is_null(value.type):
            raise InvalidInputError(
                f"where: {sql_text(node)} is {sql_name(value.type)}, not a condition; compare it "
                f"with something",
                option="where",
            )
        return cast(value, BOOLEAN)

    def _not(self, node: exp.Expression) -> Typed:
        return call("not", BOOLEAN, self._condition(node.this))

    def _is(self, node: exp.Expression) -> Typed:
        value, test = self.compile(node.this), node.expression
        if isinstance(test, exp.Null):
            return call("is_null", BOOLEAN, value)
        if isinstance(test, exp.Boolean) and value.type == BOOLEAN:
            return call("null_safe_eq", BOOLEAN, value, constant(bool(test.this), BOOLEAN))
        raise refused(node)

    def _between(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        low, high = self.compile(node.args["low"]), self.compile(node.args["high"])
        return call("and", BOOLEAN, compare("ge", value, low), compare("le", value, high))

    def _in(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        items = self._lists.get(node.expressions[0].name) if node.expressions else None
        found = None if items is None else as_set(value, items)
        if found is not None:
            return call("in", BOOLEAN, *found)
        choices = None if items is None else as_literals(items)
        if choices is None:
            nodes = node.expressions if items is None else map(_parsed, items)
            choices = [self.compile(choice) for choice in nodes]
        by_wall_time = len(choices) == 1
        pairs = [comparable(value, choice, by_wall_time=by_wall_time) for choice in choices]
        if not pairs:
            raise refused(node)
        kind = pairs[0][1].type
        constants = [right.literal for _, right in pairs if right.literal is not None]
        same = all(left.type == kind == right.type for left, right in pairs)
        if same and len(constants) == len(pairs):
            choices_of_kind = pa.array([one.as_py() for one in constants], kind)
            return call("in", BOOLEAN, pairs[0][0], Typed(Constant(choices_of_kind), kind))
        equal = [call("eq", BOOLEAN, *pair) for pair in pairs]
        return equal[0] if len(equal) == 1 else call("or", BOOLEAN, *equal)

    def _like(self, node: exp.Expression) -> Typed:
        escape, inner = "\\", node
        if isinstance(node, exp.Escape):
            inner = node.this
            if not isinstance(inner, (exp.Like, exp.ILike)) or not node.expression.is_string:
                raise refused(node)
            escape = node.expression.name
            if len(escape) != 1:
                raise refused(node)
        allow_parts(inner, "this", "expression", "negate")
        pattern = like_pattern(self._word(inner.expression, inner), escape, inner)
        flags = "(?is)" if isinstance(inner, exp.ILike) else "(?s)"
        found = self._matches(inner.this, f"{flags}\\A(?:{pattern})\\z", inner)
        return call("not", BOOLEAN, found) if inner.args.get("negate") else found

    def _regexp(self, node: exp.Expression) -> Typed:
        return self._matches(node.this, self._word(node.expression, node), node)

    def _matches(self, subject: exp.Expression, pattern: str, node: exp.Expression) -> Typed:
        value = self._string_argument(subject, node)
        try:
            pc.match_substring_regex(pa.array([], STRING), pattern)
        except pa.ArrowException as error:
            raise InvalidInputError(
                f"where: {sql_text(node)}: the pattern is not supported: {error}; "
                f"use df.where(...) for it",
                option="where",
            ) from error
        return call("matches", BOOLEAN, value, options=(pattern,))

    def _case(self, node: exp.Expression) -> Typed:
        ifs = [node] if isinstance(node, exp.If) else node.args["ifs"]
        compared = (
            None if isinstance(node, exp.If) or node.this is None else self.compile(node.this)
        )
        arguments = []
        for one in ifs:
            if compared is None:
                arguments.append(self._condition(one.this))
            else:
                arguments.append(compare("eq", compared, self.compile(one.this)))
            arguments.append(self.compile(one.args["true"]))
        other = node.args.get("false") if isinstance(node, exp.If) else node.args.get("default")
        return chosen(
            *arguments, constant(None, pa.null()) if other is None else self.compile(other)
        )

    def _of_one_type(self, node: exp.Expression) -> Typed:
        """Compile COALESCE, GREATEST and LEAST, in the common type of their arguments."""
        values = [self.compile(value) for value in (node.this, *node.expressions)]
        kind = widest(values)
        return call(node.key, kind, *(cast(value, kind) for value in values))

    def _sign(self, node: exp.Expression) -> Typed:
        return call("sign", DOUBLE, cast(self.compile(node.this), DOUBLE))

    def _quotient(self, node: exp.Expression) -> Typed:
        return combine_bits("quotient", self.compile(node.this), self.compile(node.expression))

    def _days_added(self, node: exp.Expression) -> Typed:
        if node.args["unit"].name.upper() != "DAY":
            raise refused(node)
        return days_added(self.compile(node.this), self.compile(node.expression))

    def _days_between(self, node: exp.Expression) -> Typed:
        return call("days_between", INT, self.compile(node.this), self.compile(node.expression))

    def _date_format(self, node: exp.Expression) -> Typed:
        inner = node.this.this if isinstance(node.this, exp.TimeStrToTime) else node.this
        return formatted(self._word(node.args["format"], node), self.compile(inner))

    def _seconds(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        if value.type not in (DATE, TIMESTAMP_NTZ, TIMESTAMP):
            raise TypeMismatchError(f"a date or timestamp is needed, not {sql_name(value.type)}")
        # Spark converts a date by the session time zone, but not a TIMESTAMP_NTZ.
        return call("seconds", BIGINT, cast(value, TIMESTAMP) if value.type == DATE else value)

    def _negation(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number_literal(f"-{node.this.name}")
        if not is_number(value.type) and value.type != INTERVAL:
            raise TypeMismatchError(f"{sql_name(value.type)} has no negative")
        return call("negate", value.type, value)

    def _cast(self, node: exp.Expression) -> Typed:
        value, to_type = self.compile(node.this), node.args["to"]
        name = to_type.this.name if hasattr(to_type.this, "name") else str(to_type.this)
        if name == "DECIMAL" and isinstance(node.this, exp.Literal):
            return decimal_literal(Decimal(node.this.name))
        sizes = to_type.expressions
        if name == "DECIMAL" and pa.types.is_integer(value.type) and len(sizes) == 2:
            return cast(value, pa.decimal128(*(int(size.this.name) for size in sizes)))
        kind = CAST_TYPES.get(name)
        if kind is None or to_type.expressions or to_type.args.get("collate") is not None:
            raise refused(node)
        return cast(value, kind)

    def _extract(self, node: exp.Expression) -> Typed:
        part = EXTRACT_PARTS.get(node.this.name.upper())
        if part is None:
            raise refused(node)
        return time_part(part, self.compile(node.expression))

    def _interval(self, node: exp.Expression) -> Typed:
        amount, unit = node.this, node.args.get("unit")
        if not isinstance(amount, exp.Literal) or unit is None:
            raise refused(node)
        if isinstance(unit, exp.IntervalSpan):
            ends = (unit.this.name.upper(), unit.expression.name.upper())
            match = DAY_TO_SECOND.fullmatch(amount.name.strip())
            if ends != ("DAY", "SECOND") or match is None:
                raise refused(node)
            sign, days, hours, minutes, seconds, fraction = match.groups()
            total = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
            total = total * 1_000_000 + int((fraction or "").ljust(6, "0"))
            return constant(-total if sign == "-" else total, INTERVAL)
        length = INTERVAL_UNITS.get(unit.name.upper().removesuffix("S"))
        if length is None:
            raise refused(node)
        try:
            exact = Decimal(amount.name) * length
        except ArithmeticError:
            raise refused(node) from None
        if exact != int(exact):
            raise refused(node)
        return constant(int(exact), INTERVAL)

    def _anonymous(self, node: exp.Expression) -> Typed:
        name = str(node.this).lower()
        arguments = [self.compile(argument) for argument in node.expressions]
        if name == "weekday" and len(arguments) == 1:
            return time_part(name, arguments[0])
        if name == "pmod" and len(arguments) == 2:
            return positive_remainder(*arguments)
        if name in ("isnull", "isnotnull") and len(arguments) == 1:
            found = call("is_null", BOOLEAN, arguments[0])
            return found if name == "isnull" else call("not", BOOLEAN, found)
        raise refused(node)

    def _function(self, name: str, node: exp.Expression) -> Typed:
        if name in TIME_PARTS:
            allow_parts(node, "this")
            inner = node.this
            if isinstance(inner, exp.TsOrDsToDate):
                allow_parts(inner, "this")
                inner = inner.this
            return time_part(name, self.compile(inner))
        if name in DOUBLE_FUNCTIONS:
            allow_parts(node, "this")
            return call(name, DOUBLE, cast(self.compile(node.this), DOUBLE))
        if name in STRING_FUNCTIONS:
            allow_parts(node, "this")
            return call(name, STRING_FUNCTIONS[name], self._string_argument(node.this, node))
        allow_parts(node, "this", "expression")
        value = self._string_argument(node.this, node)
        word = self._word(node.expression, node)
        return call(STRING_SEARCHES[name], BOOLEAN, value, options=(word,))

    def _abs(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        if not is_number(value.type):
            raise TypeMismatchError(f"abs needs a number, not {sql_name(value.type)}")
        return call("abs", value.type, value)

    def _whole(self, node: exp.Expression) -> Typed:
        """Compile FLOOR, CEIL and ROUND to whole numbers."""
        value = self.compile(node.this)
        digits = node.args.get("decimals")
        if digits is not None and (node.key != "round" or self._whole_number(digits, node) != 0):
            raise refused(node)
        if pa.types.is_integer(value.type):
            return value if isinstance(node, exp.Round) else cast(value, BIGINT)
        if not pa.types.is_floating(value.type):
            raise TypeMismatchError(
                f"FLOAT or DOUBLE is needed here, not {sql_name(value.type)}; CAST it AS DOUBLE"
            )
        return call(node.key, value.type if isinstance(node, exp.Round) else BIGINT, value)

    def _power(self, node: exp.Expression) -> Typed:
        left, right = self._operands(node)
        return call("power", DOUBLE, cast(left, DOUBLE), cast(right, DOUBLE))

    def _is_nan(self, node: exp.Expression) -> Typed:
        value = self.compile(node.this)
        if not pa.types.is_floating(value.type):
            value = cast(value, DOUBLE)
        return call("is_nan", BOOLEAN, value)

    def _nullif(self, node: exp.Expression) -> Typed:
        value, other = comparable(*self._operands(node))
        return call("nullif", value.type, value, other)

    def _substring(self, node: exp.Expression) -> Typed:
        value = self._string_argument(node.this, node)
        start = self._whole_number(node.args.get("start"), node)
        if start < 0:
            raise refused(node)
        start = max(start - 1, 0)
        stop = None
        if node.args.get("length") is not None:
            stop = start + max(self._whole_number(node.args["length"], node), 0)
        return call("slice", STRING, value, options=(start, stop))

    def _left_or_right(self, node: exp.Expression) -> Typed:
        value = self._string_argument(node.this, node)
        length = max(self._whole_number(node.expression, node), 0)
        bounds = (-length, None) if isinstance(node, exp.Right) and length else (0, length)
        return call("slice", STRING, value, options=bounds)

    def _date_trunc(self, node: exp.Expression) -> Typed:
        unit = node.args["unit"].name.lower()
        if unit not in TRUNCATIONS:
            raise refused(node)
        return truncated(unit, self.compile(node.this))

    def _truncated_date(self, node: exp.Expression) -> Typed:
        unit = DATE_TRUNCATIONS.get(node.args["unit"].name.upper())
        if unit is None:
            raise refused(node)
        midnight = cast(cast(self.compile(node.this), DATE), TIMESTAMP_NTZ)
        return cast(call("truncate", TIMESTAMP_NTZ, midnight, options=(unit,)), DATE)

    def _string_argument(self, argument: exp.Expression, node: exp.Expression) -> Typed:
        value = self.compile(argument)
        if pa.types.is_null(value.type):
            return cast(value, STRING)
        if value.type != STRING:
            raise TypeMismatchError(f"{sql_text(node)} needs a string, not {sql_name(value.type)}")
        return value

    def _word(self, argument: exp.Expression, node: exp.Expression) -> str:
        """Return the value of a node that must be a string literal, such as a pattern."""
        if not isinstance(argument, exp.Literal) or not argument.is_string:
            raise refused(node)
        return str(argument.name)

    def _whole_number(self, argument: exp.Expression | None, node: exp.Expression) -> int:
        literal = None if argument is None else self.compile(argument).literal
        value = None if literal is None else literal.as_py()
        if not isinstance(value, int) or isinstance(value, bool):
            raise refused(node)
        return value


def _parsed(item: str) -> exp.Expression:
    return exp.maybe_parse(item, dialect=WhereDialect)


_Handler = Callable[[Compiler, exp.Expression], Typed]

# The handler of each construct, and the parts that its node may have.
_HANDLERS: Final[dict[type[exp.Expression], tuple[_Handler, *tuple[str, ...]]]] = {
    exp.Column: (Compiler._column, "this"),
    exp.Literal: (Compiler._literal, "this", "is_string"),
    exp.Concat: (Compiler._concat, "expressions", "safe", "coalesce"),
    exp.DPipe: (Compiler._concat, "this", "expression", "safe"),
    exp.Case: (Compiler._case, "this", "ifs", "default"),
    exp.If: (Compiler._case, "this", "true", "false"),
    exp.Greatest: (Compiler._of_one_type, "this", "expressions", "ignore_nulls"),
    exp.Least: (Compiler._of_one_type, "this", "expressions", "ignore_nulls"),
    exp.Sign: (Compiler._sign, "this"),
    exp.IntDiv: (Compiler._quotient, "this", "expression"),
    exp.TsOrDsAdd: (Compiler._days_added, "this", "expression", "unit"),
    exp.DateDiff: (Compiler._days_between, "this", "expression"),
    exp.TimeToStr: (Compiler._date_format, "this", "format"),
    exp.StrToUnix: (Compiler._seconds, "this", "format"),
    exp.DateTrunc: (Compiler._truncated_date, "this", "unit"),
    exp.Boolean: (lambda _, node: constant(bool(node.this), BOOLEAN), "this"),
    exp.Null: (lambda _, node: constant(None, pa.null()),),
    exp.Paren: (lambda compiler, node: compiler.compile(node.this), "this"),
    exp.And: (Compiler._connector, "this", "expression"),
    exp.Or: (Compiler._connector, "this", "expression"),
    exp.Not: (Compiler._not, "this"),
    exp.Is: (Compiler._is, "this", "expression"),
    exp.Between: (Compiler._between, "this", "low", "high"),
    exp.In: (Compiler._in, "this", "expressions"),
    exp.Like: (Compiler._like, "this", "expression", "negate"),
    exp.ILike: (Compiler._like, "this", "expression", "negate"),
    exp.Escape: (Compiler._like, "this", "expression"),
    exp.RegexpLike: (Compiler._regexp, "this", "expression"),
    exp.Neg: (Compiler._negation, "this"),
    exp.Cast: (Compiler._cast, "this", "to"),
    # sqlglot's node of CAST in Spark SQL. TRY_CAST is the same node with one more part, which is
    # refused.
    exp.TryCast: (Compiler._cast, "this", "to"),
    exp.TsOrDsToDate: (
        lambda compiler, node: cast(compiler.compile(node.this), DATE),
        "this",
        "safe",
    ),
    exp.Extract: (Compiler._extract, "this", "expression"),
    exp.Interval: (Compiler._interval, "this", "unit"),
    exp.Anonymous: (Compiler._anonymous, "this", "expressions"),
    exp.Abs: (Compiler._abs, "this"),
    exp.Floor: (Compiler._whole, "this"),
    exp.Ceil: (Compiler._whole, "this"),
    exp.Round: (Compiler._whole, "this", "decimals"),
    exp.Pow: (Compiler._power, "this", "expression"),
    exp.IsNan: (Compiler._is_nan, "this"),
    exp.Coalesce: (Compiler._of_one_type, "this", "expressions", "is_nvl", "is_null"),
    exp.Nullif: (Compiler._nullif, "this", "expression"),
    exp.Substring: (Compiler._substring, "this", "start", "length"),
    exp.Left: (Compiler._left_or_right, "this", "expression"),
    exp.Right: (Compiler._left_or_right, "this", "expression"),
    exp.TimestampTrunc: (Compiler._date_trunc, "this", "unit"),
}
