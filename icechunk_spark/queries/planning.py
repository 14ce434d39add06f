"""Plans a read when its DataFrame is made, and keeps it for the queries that plan it again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icechunk_format.errors import UnsupportedError
from icechunk_format.options.read import ReadRequest
from icechunk_spark.jobs.session import session_time_zone
from icechunk_spark.queries.frames import Failing, frame_of, placeholder
from icechunk_spark.queries.installing import installed
from icechunk_spark.queries.reads import READS, Opened, Read
from icechunk_spark.reading.plan import open_read, shown_read
from icechunk_spark.reading.reader import IcechunkTasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def planned_read(
    spark: SparkSession,
    options: ReadRequest,
    columns: StructType | None,
    time_zone: str | None = None,
) -> DataFrame:
    """Plan a whole read at the current snapshot; queries on its DataFrame plan it again.

    `columns` selects and orders columns; None is all of them.
    """
    table = open_read(options, time_zone=time_zone)
    if columns is None:
        table.warn_of_left_out()
    schema = table.schema if columns is None else columns
    since = _since(options)
    reader, size_bytes = table.planned(schema, since)
    name = shown_read(options, table.snapshot)
    tasks = IcechunkTasks(reader, name)
    logging.getLogger("icechunk_spark").info("planned %s, tasks: %d", name, len(tasks))
    rule = installed(spark)
    if rule is None:
        return frame_of(spark, tasks, schema, size_bytes)
    id = READS.new_id()
    frame = frame_of(spark, tasks, schema, size_bytes, id)
    read = Read(
        spark=spark,
        options=options,
        name=name,
        columns=schema,
        since=since,
        tasks=len(tasks),
        snapshot=table.snapshot,
        time_zone=time_zone,
    )
    READS.add(id, read, Opened(table))
    rule.watch(frame, id)
    return frame


def planned_view(spark: SparkSession, options: ReadRequest, name: str) -> DataFrame | None:
    """Return a DataFrame that each query plans at the newest snapshot; None without the rule."""
    rule = installed(spark)
    if rule is None:
        return None
    table = open_read(options, time_zone=session_time_zone(spark))
    table.warn_of_left_out()
    reader, size_bytes = table.planned(table.schema)
    shown = shown_read(options, None, view=name)
    error = UnsupportedError(
        f"view {name} was not planned for this query: keep the Python process that created it"
        " running, or create the view again with icechunk_spark.view",
        view=name,
    )
    id = READS.new_id()
    frame = placeholder(spark, Failing(error, shown), table.schema, size_bytes, id)
    read = Read(
        spark=spark,
        options=options,
        name=shown,
        columns=table.schema,
        snapshot=table.snapshot,
        tasks=len(reader.partitions()),
        is_fresh=True,
    )
    READS.add(id, read, Opened(table))
    rule.watch(frame, id)
    return frame


def _since(options: ReadRequest) -> str | None:
    if options.changes_since is None:
        return None
    # Heavy, and most reads are of no changes.
    from icechunk_format.workflows.changes import resolve_since

    return resolve_since(options)
