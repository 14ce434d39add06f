"""Raises the refusals of SQL statements as errors of this package.

Spark would accept a table of icechunk with a list of columns, which could never be read, and would
report an internal error for ``DELETE FROM`` a view. It would keep credentials that are options of
a view. The rule of ``queries`` recognizes these
statements by their plans and refuses them.

Rules of this file
------------------
1. The text of a statement decides only whether the rule is installed, never whether it is refused.
2. Only a refusal of the rule becomes an error of this package; other errors are Spark's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

from pyspark.errors import UnsupportedOperationException

from icechunk_spark.jobs.errors import raise_error_of_task
from icechunk_spark.queries.installing import installed

_OF_RULE: Final = re.compile(
    r"\btable\b.*\busing\b.*icechunk|\busing\b.*icechunk.*\boptions\b.*storage",
    re.IGNORECASE | re.DOTALL,
)


def checked_sql(spark: Any, sql: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``spark.sql`` of a classic session with the errors of this package."""

    @functools.wraps(sql)
    def run(sqlQuery: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(sqlQuery, str) and _OF_RULE.search(sqlQuery):
            installed(spark)
        try:
            return sql(sqlQuery, *arguments, **named)
        except UnsupportedOperationException as failure:
            raise_error_of_task(failure)
            raise

    return run
