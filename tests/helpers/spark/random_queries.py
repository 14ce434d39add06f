"""Draws random queries of SQL over tables of known columns.

Long because the tables of conditions and the shapes of queries are one grammar.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS: Final = {
    "number": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    "text": ("string",),
    "time": ("timestamp", "timestamp_ntz", "date"),
    "truth": ("boolean",),
    "span": ("interval",),
}
_TESTS: Final = {
    "number": (
        "{c} {op} {v}",
        "{c} BETWEEN {v} AND {v}",
        "{c} IN ({v}, {v}, {v})",
        "{c} NOT IN ({v}, {v})",
        "{c} IN ({v}, NULL)",
        "{c} IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, {v}, {v})",
        "{c} {op} {n}",
        "{c} {op} {n}.5",
        "{c} {op} {n}D",
        "{c} {op} '{n}'",
        "try_add({c}, {v}) {op} {c}",
        "try_multiply({c}, 2) {op} {n}",
        "{c} % 3 {op} 1",
        "try_divide({c}, {v}) {op} 0.5",
        "coalesce({c}, {v}) {op} {n}",
        "nullif({c}, {v}) IS {not}NULL",
        "abs(cast({c} AS DOUBLE)) {op} {n}",
        "cast({c} AS STRING) LIKE '{n}%'",
        "cast({c} AS DECIMAL(38, 4)) {op} {n}",
        "try_cast({c} AS TINYINT) {op} {n}",
        "cast({c} AS BOOLEAN)",
        "greatest({c}, {v}) {op} {v}",
        "isnan({c})",
        "floor(cast({c} AS DOUBLE)) {op} {n}",
        "round(cast({c} AS DOUBLE), 1) {op} {v}",
        "-{c} {op} {n}",
    ),
    "text": (
        "{c} {op} {v}",
        "{c} IN ({v}, {v}, 'x')",
        "{c} LIKE '%{d}%'",
        "{c} NOT LIKE '_t%{d}'",
        "{c} RLIKE '{d}$'",
        "startswith({c}, {v})",
        "contains({c}, '{d}')",
        "endswith({c}, '{d}')",
        "substring({c}, {d}, 3) {op} substring({v}, {d}, 3)",
        "length({c}) {op} {d}",
        "upper({c}) {op} upper({v})",
        "trim({c}) = ''",
        "concat({c}, '-') {op} {v}",
        "{c} COLLATE UTF8_LCASE = upper({v})",
        "coalesce({c}, '') {op} {v}",
        "{c} BETWEEN {v} AND {v}",
        "hash({c}) % 2 = 0",
    ),
    "time": (
        "{c} {op} {v}",
        "{c} IN ({v}, {v})",
        "{c} BETWEEN {v} AND {v}",
        "{c} {op} '2024-11-03'",
        "{c} {op} date'2024-11-03'",
        "{c} {op} timestamp'2024-11-03 01:30:00'",
        "{c} {op} timestamp_ntz'2024-11-03 06:00:00'",
        "cast({c} AS DATE) {op} cast({v} AS DATE)",
        "hour({c}) {op} {d}",
        "day({c}) {op} 3",
        "year({c}) = 2024",
        "month({c}) {op} 11",
        "minute({c}) = 30",
        "dayofweek({c}) {op} {d}",
        "weekofyear({c}) {op} 44",
        "date_trunc('day', {c}) {op} {v}",
        "date_trunc('hour', {c}) {op} {v}",
        "{c} + interval '6' hour {op} {v}",
        "{c} - interval '1' day {op} {v}",
        "{c} + interval '1' month {op} {v}",
        "{c} - {v} {op} interval '1' day",
        "unix_timestamp({c}) % 3 {op} 1",
        "unix_timestamp({c}) {op} unix_timestamp({v})",
        "datediff({c}, {v}) {op} 1",
        "date_add({c}, 1) {op} cast({v} AS DATE)",
        "date_format({c}, 'yyyy-MM-dd HH') {op} date_format({v}, 'yyyy-MM-dd HH')",
        "cast({c} AS STRING) LIKE '2024-11-0%'",
        "last_day({c}) = date'2024-11-30'",
        "cast({c} AS TIMESTAMP) {op} {v}",
        "cast({c} AS TIMESTAMP_NTZ) {op} {v}",
    ),
    "truth": ("coalesce({c}, false)", "NOT {c}", "{c} = {v}", "{c} IS NOT TRUE", "{c} > false"),
    "span": ("{c} {op} {v}", "{c} IN ({v}, {v})", "{c} * 2 > {v}"),
}
_GROUPINGS: Final = {
    "number": (
        "{c}",
        "{c} % 3",
        "floor(cast({c} AS DOUBLE) / 10)",
        "{c} > {v}",
        "CASE WHEN {c} > {v} THEN 'more' WHEN {c} = {v} THEN 'it''s \\\\ \"same\"' END",
        "nullif({c}, {v})",
        "-{c} * 0",
        "coalesce({c}, {v})",
        "{c} IN ({v}, {v})",
    ),
    "text": ("{c}", "substring({c}, 1, 9)", "{c} LIKE '%{d}'", "upper({c})", "concat({c}, 'x')"),
    "time": (
        "{c}",
        "day({c})",
        "cast({c} AS DATE)",
        "date_trunc('day', {c})",
        "year({c})",
        "hour({c})",
        "{c} > {v}",
        "date_format({c}, 'yyyy-MM')",
        "{c} > timestamp'2024-11-03 01:30:00'",
    ),
    "truth": ("coalesce({c}, false)", "NOT {c}"),
    "span": ("{c}",),
}
_OPERATORS: Final = ("<", "<=", "=", "<>", ">=", ">", "<=>")


@dataclass(frozen=True, slots=True)
class Column:
    """A column in SQL, its type, and literals of some of its values."""

    sql: str
    type: str
    values: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kind of its type, or ``other``."""
        names = ((kind, name) for kind, names in _KINDS.items() for name in names)
        base = self.type.split("(")[0].split(" ")[0]
        return next((kind for kind, name in names if base == name), "other")


@dataclass(frozen=True, slots=True)
class Source:
    """A table of a query, and the number of its first columns that are dimensions."""

    name: str
    columns: tuple[Column, ...]
    dims: int


def source_of(spark: SparkSession, name: str, dims: int) -> Source:
    """Describe a table or view."""
    frame: DataFrame = spark.table(name)
    columns = []
    quoted = [f"`{column.replace('`', '``')}`" for column in frame.columns]
    texts = frame.selectExpr(*(f"cast({sql} AS STRING)" for sql in quoted)).collect()
    for position, (field, sql) in enumerate(zip(frame.schema, quoted, strict=True)):
        kind = field.dataType.simpleString()
        found = sorted({row[position] for row in texts} - {None})
        escaped = [text.replace("\\", "\\\\").replace("'", "\\'") for text in found]
        values = (f"CAST('{text}' AS {kind})" for text in escaped[:: 1 + len(escaped) // 12])
        columns.append(Column(sql, kind, (*values, f"CAST(NULL AS {kind})")))
    return Source(name, tuple(columns), dims)


class Drawing:
    """Draws queries with one generator of random numbers."""

    def __init__(self, draw: random.Random, sources: Sequence[Source]) -> None:
        self.draw = draw
        self.sources = sources

    def query(self) -> tuple[str, bool]:
        """Return a query, and whether -0.0 and 0.0 are apart in its rows."""
        shape = self.draw.choice(_SHAPES)
        # Aggregates of views of cells are the ones that tasks reduce.
        first = self.sources[:5] if shape in (_totals, _groups) else self.sources
        sources = self.draw.choice((first, self.sources))
        text = shape(self, self.draw.choice(sources))
        # The extreme of a block with both zeros is that of the part that a task reads first.
        return text, shape in _EXACT and "summary" not in text

    def condition(self, source: Source, alias: str = "", depth: int = 2) -> str:
        """Return a condition on a source."""
        choice = self.draw.random()
        if depth and choice < 0.55:
            one, other = (self.condition(source, alias, depth - 1) for _ in range(2))
            form = self.draw.choice(
                (
                    "{a} AND {b}",
                    "{a} AND {b}",
                    "({a}) OR ({b})",
                    "NOT ({a} AND {b})",
                    "({a}) <=> ({b})",
                    "CASE WHEN {a} THEN {b} END",
                    "CASE WHEN {a} THEN true WHEN {b} THEN NULL ELSE false END",
                    "if({a}, {b}, NULL)",
                    "coalesce({a}, {b})",
                )
            )
            return "(" + form.format(a=one, b=other) + ")"
        if choice > 0.97:
            return self.draw.choice(("rand(3) >= 0", "true", "NULL IS NULL", "1 = 2"))
        column = self._column(source)
        tests = ("{c} IS {not}NULL", "{c} IS NOT NULL", *_TESTS.get(column.kind, ()))
        return "(" + self._filled(self.draw.choice(tests), column, alias) + ")"

    def grouping(self, source: Source, columns: Sequence[Column]) -> str:
        """Return a grouping expression."""
        column = self.draw.choice([one for one in columns if one.kind != "other"])
        return self._filled(self.draw.choice(_GROUPINGS[column.kind]), column, "")

    def aggregate(self, source: Source) -> str:
        """Return an aggregate."""
        column = self._column(source)
        choices = ["count(*)", "count(1)", f"count({column.sql})"]
        condition = self.condition(source, depth=0).replace("rand(3) >= 0", "true")
        choices.append(f"count_if({condition})")
        if column.kind != "other":
            choices += [f"min({column.sql})", f"max({column.sql})", f"count(DISTINCT {column.sql})"]
        if column.kind == "number":
            choices += [
                f"sum({column.sql})",
                f"avg({column.sql})",
                f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END)",
                f"round(stddev({column.sql}), 5)",
                f"round(var_pop(cast({column.sql} AS DOUBLE)), 4)",
                f"sum({column.sql}) + count(*)",
            ]
        chosen = self.draw.choice(choices)
        can_filter = "DISTINCT" not in chosen and "+" not in chosen and "round" not in chosen
        if can_filter and self.draw.random() < 0.25:
            chosen += f" FILTER (WHERE {condition})"
        return chosen

    def where(self, source: Source) -> str:
        """Return no clause, one on a dimension, or any."""
        dims = Source(source.name, source.columns[: source.dims] or source.columns, 0)
        simple = self.condition(dims, depth=0).replace("rand(3) >= 0", "true")
        return self.draw.choice(("", f" WHERE {simple}", f" WHERE {self.condition(source)}"))

    def some(self, source: Source) -> list[Column]:
        """Return some columns of a source, in random order."""
        number = self.draw.randint(1, min(4, len(source.columns)))
        return self.draw.sample(source.columns, number)

    def _column(self, source: Source) -> Column:
        is_dim = source.dims and self.draw.random() < 0.5
        return self.draw.choice(source.columns[: source.dims] if is_dim else source.columns)

    def _filled(self, text: str, column: Column, alias: str) -> str:
        parts = text.split("{v}")
        text = parts[0] + "".join(self.draw.choice(column.values) + part for part in parts[1:])
        for word, found in (
            ("{c}", alias + column.sql),
            ("{op}", self.draw.choice(_OPERATORS)),
            ("{not}", self.draw.choice(("", "NOT "))),
            ("{n}", str(self.draw.choice((-20, -2, 0, 3, 7, 10, 271, 300)))),
            ("{d}", str(self.draw.randrange(6))),
        ):
            text = text.replace(word, found)
        return text


def _names(columns: Sequence[Column], alias: str = "") -> str:
    return ", ".join(alias + column.sql for column in columns)


def _orderable(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.kind != "other"] or list(columns[:1])


def _rows(g: Drawing, s: Source) -> str:
    return f"SELECT {_names(g.some(s))} FROM {s.name} WHERE {g.condition(s)}"


def _all_columns(g: Drawing, s: Source) -> str:
    return f"SELECT * FROM {s.name} WHERE {g.condition(s)} AND {g.condition(s)}"


def _nested(g: Drawing, s: Source) -> str:
    column = g.draw.choice(s.columns)
    inner = f"SELECT *, {g.condition(s, depth=1)} AS flag_1 FROM {s.name} WHERE {g.condition(s)}"
    flag = g.draw.choice(("flag_1", "NOT flag_1", "flag_1 IS NULL", "flag_1 <=> true"))
    return f"SELECT {column.sql}, flag_1 FROM ({inner}) WHERE {flag} AND {g.condition(s, depth=1)}"


def _totals(g: Drawing, s: Source) -> str:
    aggregates = ", ".join(g.aggregate(s) for _ in range(g.draw.randint(1, 3)))
    where = g.where(s)
    return f"SELECT {aggregates} FROM {s.name}{where}"


def _groups(g: Drawing, s: Source) -> str:
    columns = s.columns[: s.dims] if s.dims and g.draw.random() < 0.8 else s.columns
    groups = [g.grouping(s, columns) for _ in range(g.draw.randint(1, 2))]
    listed = ", ".join(f"{sql} AS g_{number}" for number, sql in enumerate(groups))
    aggregates = "".join(f", {g.aggregate(s)}" for _ in range(g.draw.randint(0, 2)))
    where = g.where(s)
    having = g.draw.choice(("", "", f" HAVING count(*) > {g.draw.randrange(9)}"))
    keys = ", ".join(groups)
    return f"SELECT {listed}{aggregates} FROM {s.name}{where} GROUP BY {keys}{having}"


def _grouping_sets(g: Drawing, s: Source) -> str:
    one, other = _orderable(s.columns)[:2] if len(_orderable(s.columns)) > 1 else 2 * s.columns[:1]
    form = g.draw.choice(("ROLLUP ({k})", "CUBE ({k})", "GROUPING SETS (({k}), ({one}), ())"))
    by = form.format(k=f"{one.sql}, {other.sql}", one=one.sql)
    condition = g.condition(s)
    return (
        f"SELECT {one.sql}, {other.sql}, {g.aggregate(s)}, grouping_id() FROM {s.name}"
        f" WHERE {condition} GROUP BY {by}"
    )


def _distinct(g: Drawing, s: Source) -> str:
    columns = _orderable(g.some(s))
    if any(column.kind == "other" for column in columns):
        return _totals(g, s)
    return f"SELECT DISTINCT {_names(columns)} FROM {s.name} WHERE {g.condition(s)}"


def _sets(g: Drawing, s: Source) -> str:
    columns = [one for one in g.some(s) if one.kind != "other"]
    if not columns:
        return _rows(g, s)
    both = g.draw.choice(("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL"))
    one, other = (
        f"SELECT {_names(columns)} FROM {s.name} WHERE {g.condition(s)}" for _ in range(2)
    )
    return f"SELECT * FROM ({one} {both} {other})"


def _join(g: Drawing, s: Source) -> str:
    keys = g.draw.sample(s.columns[: s.dims], min(2, s.dims)) if s.dims else []
    on = " AND ".join(f"l.{one.sql} = r.{one.sql}" for one in keys) or "true"
    how = g.draw.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
    left, right = g.condition(s, "l."), g.condition(s, "r.", depth=1)
    columns = [one for one in g.some(s) if one.kind != "other"] or list(s.columns[:1])
    selected = _names(columns, "l.")
    both = "SEMI" not in how and "ANTI" not in how
    if both:
        selected += ", " + _names(columns[:1], "r.")
    if g.draw.random() < 0.5 and both:
        source = f"FROM {s.name} l {how} {s.name} r ON {on} WHERE {left} AND {right}"
    else:
        source = f"FROM {s.name} l {how} {s.name} r ON {on} AND {right} WHERE {left}"
    return f"SELECT {selected}, count(*) {source} GROUP BY {selected}"


def _subqueries(g: Drawing, s: Source) -> str:
    column, other = g.draw.choice(_orderable(s.columns)), g.draw.choice(_orderable(s.columns))
    inner = g.condition(s, "i.", depth=1)
    form = g.draw.choice(
        (
            "o.{c} IN (SELECT i.{c} FROM {s} i WHERE {w})",
            "o.{c} NOT IN (SELECT i.{c} FROM {s} i WHERE {w})",
            "EXISTS (SELECT 1 FROM {s} i WHERE i.{c} = o.{c} AND {w})",
            "NOT EXISTS (SELECT 1 FROM {s} i WHERE i.{c} = o.{c} AND {w})",
            "o.{c} = (SELECT max(i.{c}) FROM {s} i WHERE {w})",
            "o.{c} >= (SELECT min(i.{c}) FROM {s} i WHERE i.{k} = o.{k} AND {w})",
            "(o.{c} IN (SELECT i.{c} FROM {s} i WHERE {w}) OR o.{k} IS NULL)",
        )
    ).format(c=column.sql, k=other.sql, s=s.name, w=inner)
    return f"SELECT {_names(g.some(s), 'o.')} FROM {s.name} o WHERE {form} AND {g.condition(s)}"


def _correlated(g: Drawing, s: Source) -> str:
    key = g.draw.choice(s.columns[: s.dims] or _orderable(s.columns))
    one, other = g.aggregate(s), g.aggregate(s)
    where = g.draw.choice(("", f"AND {g.condition(s, 'i.', depth=1)}"))
    inner = f"FROM {s.name} i WHERE i.{key.sql} = o.{key.sql} {where}"
    one, other = (text.replace("count(*)", "count(1)") for text in (one, other))
    return (
        f"SELECT o.{key.sql}, (SELECT {one} {inner}), (SELECT {other} {inner})"
        f" FROM {s.name} o WHERE {g.condition(s, 'o.', depth=1)}"
    )


def _sorted(g: Drawing, s: Source) -> str:
    columns = [one for one in g.some(s) if one.kind != "other"]
    if not columns:
        return _totals(g, s)
    end = f"LIMIT {g.draw.randrange(12)}" + g.draw.choice(("", f" OFFSET {g.draw.randrange(5)}"))
    order = ", ".join(
        f"{one.sql} {g.draw.choice(('', 'DESC', 'ASC NULLS LAST'))}" for one in columns
    )
    inner = f"SELECT {_names(columns)} FROM {s.name} WHERE {g.condition(s)} ORDER BY {order} {end}"
    return f"SELECT * FROM ({inner})"


def _counted_limit(g: Drawing, s: Source) -> str:
    where = g.draw.choice(("", f" WHERE {g.condition(s)}"))
    columns = g.draw.choice(("*", s.columns[0].sql, "1"))
    end = g.draw.choice(("LIMIT {n}", "LIMIT {n} OFFSET 3", "OFFSET {n}"))
    inner = f"SELECT {columns} FROM {s.name}{where} {end.format(n=g.draw.randrange(70))}"
    return f"SELECT count(*) FROM ({inner})"


def _windows(g: Drawing, s: Source) -> str:
    columns = _orderable(s.columns)
    key, value = g.draw.choice(columns), g.draw.choice(columns)
    function = g.draw.choice(("rank()", "count(*)", f"max({value.sql})", f"lag({value.sql})"))
    window = f"PARTITION BY {key.sql} ORDER BY {_names(columns)}"
    inner = f"SELECT *, {function} OVER ({window}) AS found_1 FROM {s.name} WHERE {g.condition(s)}"
    # A condition on the key passes the window, the others do not.
    outer = g.condition(Source(s.name, (key,), 1), depth=1)
    return f"SELECT {key.sql}, {value.sql}, found_1 FROM ({inner}) WHERE {outer}"


def _common(g: Drawing, s: Source) -> str:
    key = g.draw.choice(_orderable(s.columns))
    return (
        f"WITH a AS (SELECT * FROM {s.name} WHERE {g.condition(s)}), b AS (SELECT {key.sql},"
        f" {g.aggregate(s)} AS m_1 FROM a GROUP BY {key.sql}) SELECT count(*), max(b.m_1) FROM a"
        f" JOIN b USING ({key.sql}) WHERE {g.condition(s, 'a.', depth=1)}"
    )


_SHAPES: Final[tuple[Callable[[Drawing, Source], str], ...]] = (
    _rows,
    _rows,
    _all_columns,
    _all_columns,
    _nested,
    _totals,
    _totals,
    _groups,
    _groups,
    _groups,
    _grouping_sets,
    _distinct,
    _sets,
    _join,
    _subqueries,
    _subqueries,
    _correlated,
    _sorted,
    _counted_limit,
    _windows,
    _common,
)
_EXACT: Final = (_rows, _all_columns, _nested)
