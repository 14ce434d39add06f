"""Implements ``icechunk_spark.view``: temporary views that follow their branch.

Spark keeps the relation of a view ``USING icechunk``, and with it the snapshot of its creation. It
analyses a view of SQL text anew at each query. Such a view calls two table functions of its own: a
scalar subquery plans the read at the snapshot that is current, and each partition runs its share of
the plan's tasks.

Rules of this file
------------------
1. Spark computes equal scalar subqueries of a query once, on the driver's behalf, and keeps the
   result. So a query reads one snapshot, however often it names the view and Spark repeats tasks.
2. Options travel in the pickled functions, not in SQL text: they may hold credentials.
3. Any SQL can call the functions with bytes of its own. So plans are signed with a key that is
   known to the functions of one view only, and others are not unpickled.
4. The columns are those of the creation. A query fails if one of them is gone or has another type.
5. Spark must not take a large view for a small one, or it broadcasts the view in every join. Its
   estimate comes from the rows of a range, most of which a filter drops.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from icechunk_format.options.keywords import parse_arguments
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.reading.function import read
from icechunk_spark.reading.plan import open_read
from icechunk_spark.schema import row_bytes
from icechunk_spark.sql.functions import register_view_functions

# More tasks than this share partitions; a plan made later may have more tasks.
_MOST_PARTITIONS: Final = 10_000
# Beyond the limit of a broadcast of 10 MB that Spark has by default, and of those that users set.
_MOST_BYTES: Final = 1 << 30


def view(spark: SparkSession, name: str, path: str, **options: Any) -> None:
    """Create or replace a temporary view that reads its branch as it is at each query.

    All rows of a query are those of one snapshot. With ``tag``, ``snapshot`` or ``as_of`` the view
    stays at that snapshot. The view can be queried by SQL of the session, with joins and common
    table expressions; it cannot be written to.

    Parameters
    ----------
    spark
        A classic session or one of Spark Connect; it need not be registered. With Connect, the
        package must be installed on the server, and the client must reach the storage.
    name
        Name of the view.
    path
        Root of the repository, or ``path#name`` for a metadata table, such as ``path#history``.
    **options
        Options of `icechunk_spark.read`.

    Raises
    ------
    IcechunkError
        An option cannot be used, or what it names does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.view(spark, "weather", "s3://bucket/weather")  # doctest: +SKIP
    >>> spark.sql("SELECT time, avg(t2m) FROM weather GROUP BY time")  # doctest: +SKIP
    """
    request = parse_arguments(path, options, "read")
    if request.tag or request.snapshot or request.as_of:
        read(spark, path, **options).createOrReplaceTempView(name)
        return
    with errors_on_one_line():
        # In the zone of the machine: a plan of a query takes the session's.
        opened = open_read(request)
        opened.warn_of_left_out()
        reader, size_bytes = opened.planned(opened.schema)
    functions = f"icechunk_{hashlib.sha256(name.lower().encode()).hexdigest()[:12]}"
    parts = min(max(len(reader.partitions()), _parallelism(spark)), _MOST_PARTITIONS)
    register_view_functions(
        spark, functions, request, opened.schema, parts=parts, key=secrets.token_bytes(32)
    )
    rows = min(size_bytes, _MOST_BYTES) // row_bytes(opened.schema)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(name)} {_comments(opened.schema)} AS "
        f"SELECT * FROM {functions}_rows(TABLE({_parts(parts, rows, functions)}))"
    )


def _parts(parts: int, rows: int, functions: str) -> str:
    """Return a query for one row for each partition, which Spark takes for about that many rows."""
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
        columns.append(_quoted(field.name) + (f" COMMENT '{escaped}'" if comment else ""))
    return f"({', '.join(columns)})"


def _parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once; 1 if a client of Connect cannot know it."""
    if ".connect" in type(spark).__module__:
        return 1
    return spark.sparkContext.defaultParallelism


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
