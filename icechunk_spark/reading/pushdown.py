"""Takes part in Spark's filter pushdown, for loads with ``pushdown=true``.

Pushdown is off by default, because one ``load()`` has one read plan in Spark's JVM (up to 4.3),
which the filters of the *last* query overwrite. A DataFrame that is used twice, in two queries or
twice in one, then silently gets the rows of other filters. ``tests/spark/reading/test_pushdown.py``
fails when Spark mends this defect. The option ``where`` does not have it.

Rules of this file
------------------
1. Filters become SQL text of the option `where`, so both have the same semantics.
2. Only filters whose text means exactly the same are taken; Spark does not check them again. Every
   other filter is handed back to Spark.
3. Spark 4.1 or later and the setting ``spark.sql.python.filterPushdown.enabled`` are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_spark.reading.reader import IcechunkReader

if TYPE_CHECKING:
    # Spark 4.0 does not have it.
    from pyspark.sql.datasource import Filter

    from icechunk_format.dataset.reading.scan import ScanPlan

    Planner = Callable[[str | None], ScanPlan]


class PushdownReader(IcechunkReader):
    """A reader that is planned again with the filters that Spark hands over.

    Parameters
    ----------
    plan
        Plans the scan with a given `where`.
    target
        The Arrow schema that every batch must have.
    where
        The user's own condition; filters are added to it.
    columns
        The columns that the DataFrame has with the name and type of the table. Filters on others
        are left to Spark.

    Raises
    ------
    UnsupportedError
        This Spark is older than 4.1.
    """

    def __init__(
        self, plan: Planner, target: pa.Schema, *, where: str | None, columns: frozenset[str]
    ) -> None:
        if not hasattr(DataSourceReader, "pushFilters"):
            raise UnsupportedError(
                "option pushdown=true needs Spark 4.1 or later: leave it out, and give the"
                " condition as option 'where' instead",
                option="pushdown",
            )
        super().__init__(plan(where), target)
        self._plan = plan
        self._where = where
        self._columns = columns

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that `where` can express, and return the others."""
        texts = [filter_sql(item, self._columns) for item in filters]
        taken = [text for text in texts if text is not None]
        if taken and self._take(taken):
            return [item for item, text in zip(filters, texts, strict=True) if text is None]
        # One of them cannot be planned: find out which by adding one after another.
        taken, refused = [], []
        for item, text in zip(filters, texts, strict=True):
            if text is not None and self._take([*taken, text]):
                taken.append(text)
            else:
                refused.append(item)
        return refused

    def _take(self, conditions: list[str]) -> bool:
        """Plan with further conditions; return False, and change nothing, if that fails."""
        given = [] if self._where is None else [f"({self._where})"]
        try:
            plan = self._plan(" AND ".join([*given, *conditions]))
        except (InvalidInputError, UnsupportedError):
            return False
        self._tasks = plan.tasks
        self._context = plan.context
        return True


_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


def filter_sql(item: Filter, columns: frozenset[str]) -> str | None:
    """Return a filter of Spark's as SQL text, or None where no text has the same meaning.

    Parameters
    ----------
    item
        One of the filter classes of ``pyspark.sql.datasource``. They are told apart by name,
        since Spark 4.0 does not have them.
    columns
        The columns that may be named.
    """
    kind = type(item).__name__
    if kind == "Not":
        inner = filter_sql(item.child, columns)  # type: ignore[attr-defined]
        return None if inner is None else f"(NOT {inner})"
    attribute: tuple[str, ...] = item.attribute  # type: ignore[attr-defined]
    if len(attribute) != 1 or attribute[0] not in columns:
        return None
    column = f"`{attribute[0].replace('`', '``')}`"
    if kind in ("IsNull", "IsNotNull"):
        return f"({column} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL)"
    value = item.value  # type: ignore[attr-defined]
    if kind in _COMPARISONS:
        literal = _literal_sql(value)
        return None if literal is None else f"({column} {_COMPARISONS[kind]} {literal})"
    if kind == "In":
        literals = [_literal_sql(entry) for entry in value]
        if not literals or None in literals:
            return None
        return f"({column} IN ({', '.join(entry for entry in literals if entry)}))"
    return None


def _literal_sql(value: Any) -> str | None:
    """Return a literal as SQL text, or None for a value that has no exact text."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return f"{value:f}" if value.is_finite() else None
    if isinstance(value, datetime):
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        return f"{kind} '{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str) and "\\" not in value:
        return "'" + value.replace("'", "''") + "'"
    return None
