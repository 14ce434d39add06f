"""Implements ``icechunk_spark.view``: temporary views that follow their branch.

Spark keeps the relation of a view ``USING icechunk``, and with it the snapshot of its creation. In
classic sessions, the rule of ``queries`` plans the read of a view for each query, at the newest
snapshot. With Spark Connect, which has no such rule, the view calls two table functions: a scalar
subquery plans the read at the current snapshot, and each partition runs its share of the plan's
tasks. The rules below are those of these functions.

Rules of this file
------------------
1. Spark computes equal scalar subqueries of a query once and keeps the result. So a query reads one
   snapshot, even if it references the view several times or Spark repeats tasks.
2. Options are in the pickled functions, not in the SQL text, since they may contain credentials.
3. Any SQL can call the functions with arbitrary bytes. So plans are signed with a key that only the
   functions of one view hold, and other plans are not unpickled.
4. The columns are fixed at creation. A query fails if one of them no longer exists or has another
   type.
5. Spark must not underestimate the size of a large view, or it broadcasts the view in every join.
   It estimates the size from the rows of a range, most of which a filter drops.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.location import location_of
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.metrics import accumulator_of
from icechunk_spark.jobs.session import described
from icechunk_spark.jobs.session_options import session_read
from icechunk_spark.queries.planning import planned_view
from icechunk_spark.queries.read import read
from icechunk_spark.reading.plan import open_read
from icechunk_spark.schema import quoted_name, row_bytes
from icechunk_spark.sql.functions import register_view_functions

# Maximum number of partitions. If a plan has more tasks, several of them share a partition.
_MOST_PARTITIONS: Final = 10_000
# Above Spark's default broadcast limit of 10 MB, and above limits that users set.
_MOST_BYTES: Final = 1 << 30


@checked_call("read")
def view(spark: SparkSession, name: str, path: str, **options: Any) -> None:
    """Create or replace a temporary view that reads its branch at each query.

    A query reads one snapshot: the newest at the time of the query. With ``tag``, ``snapshot`` or
    ``as_of``, the view stays at that snapshot. The view can be queried by SQL of the session, with
    joins and common table expressions; it cannot be written to.

    Parameters
    ----------
    spark
        A classic or Spark Connect session; registration is not required. With Connect, the package
        must be installed on the server, and the client needs access to the storage.
    name
        Name of the view.
    path
        Root of the repository, or ``path#name`` for a metadata table, such as ``path#history``.
    **options
        Options of `icechunk_spark.read`.

    Raises
    ------
    IcechunkError
        An option cannot be used, or an object that it names does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.view(spark, "weather", "s3://bucket/weather")  # doctest: +SKIP
    >>> spark.sql("SELECT time, avg(t2m) FROM weather GROUP BY time")  # doctest: +SKIP
    """
    request = session_read(spark, path, options)
    if request.tag or request.snapshot or request.as_of:
        read(spark, path, **options).createOrReplaceTempView(quoted_name(name))
        return
    with errors_on_one_line():
        planned = planned_view(spark, request, name)
    if planned is not None:
        planned.createOrReplaceTempView(quoted_name(name))
        return
    with errors_on_one_line():
        # In the machine's time zone; the plan of a query uses the session's.
        opened = open_read(request)
        opened.warn_of_left_out()
        reader, size_bytes = opened.planned(opened.schema)
    functions = f"icechunk_{hashlib.sha256(name.lower().encode()).hexdigest()[:12]}"
    counts = accumulator_of(spark)
    # A Connect client cannot determine the number of tasks that run at once.
    cores = 1 if counts is None else spark.sparkContext.defaultParallelism
    parts = min(max(len(reader.partitions()), cores), _MOST_PARTITIONS)
    register_view_functions(
        spark,
        functions,
        request,
        opened.schema,
        parts=parts,
        key=secrets.token_bytes(32),
        counts=counts,
    )
    rows = min(size_bytes, _MOST_BYTES) // row_bytes(opened.schema)
    with described(f"create view {name} of {location_of(request)}"):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {quoted_name(name)} {_comments(opened.schema)} AS "
            f"SELECT * FROM {functions}_rows(TABLE({_parts(parts, rows, functions)}))"
        )


def _parts(parts: int, rows: int, functions: str) -> str:
    """Return a query with one row for each partition, for which Spark estimates `rows` rows."""
    bits = max(0, (rows // parts).bit_length())
    return (
        f"SELECT shiftright(id, {bits}) AS part, (SELECT plan FROM {functions}_plan()) AS plan "
        f"FROM range(0, {parts << bits}, 1, {parts}) WHERE (id & {(1 << bits) - 1}L) = 0"
    )


def _comments(schema: StructType) -> str:
    """Return the columns of a view with their comments, which DESCRIBE shows."""
    columns = []
    for field in schema:
        comment = field.metadata.get("comment", "") if field.metadata else ""
        escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
        columns.append(quoted_name(field.name) + (f" COMMENT '{escaped}'" if comment else ""))
    return f"({', '.join(columns)})"
