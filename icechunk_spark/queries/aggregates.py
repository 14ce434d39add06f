"""Plans an aggregate of a read, which tasks reduce where they read the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from icechunk_spark.queries.replanning import QueriedRead


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateColumn:
    """A column of an aggregate: its expression in SQL, and the type of its values."""

    sql: str
    type: DataType


def replan_aggregate(
    read: QueriedRead,
    conjuncts: Sequence[str],
    groups: Sequence[str],
    aggregates: Sequence[AggregateColumn],
) -> DataFrame | None:
    """Return an aggregate of the rows that satisfy all conjuncts, or None to leave it to Spark.

    Parameters
    ----------
    read
        The read: its session (``spark``), table (``opened.table``), time zone, and ``pruned``,
        which turns conjuncts into a selection of cells.
    conjuncts
        All conditions below the aggregate. Spark does not evaluate them again, so that each has to
        be applied: use a `Pruned` only if it ``is_total``.
    groups
        Grouping expressions. Names of columns are quoted. Spark takes -0.0 and 0.0 for one group.
    aggregates
        The columns of the result in order, with exactly these types. They consist of grouping
        expressions and functions such as ``avg(`t2m`)``.
    """
    return None
