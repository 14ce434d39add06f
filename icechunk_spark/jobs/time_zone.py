"""Finds the time zone in which a session reads and shows times.

The driver reads it from the session. Spark plans a data source (SQL views, ``spark.read`` over
Connect, streams) in a process that does not receive the zone; the tasks of a batch read do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING: Final = "spark.sql.session.timeZone"


def session_time_zone(spark: SparkSession) -> str:
    """Return the time zone of a session, classic or of Connect."""
    return str(spark.conf.get(_SETTING))


def in_time_zone_of_task(context: Any) -> Any:
    """Return the context of a scan with the session's time zone in its condition, in a task.

    Raises
    ------
    InvalidInputError
        The session has no time zone setting, and the zone of this machine may differ from that of
        the driver.
    """
    residual = getattr(context, "residual", None)
    if residual is None or not residual.needs_zone:
        return context
    task = TaskContext.get()
    zone = None if task is None else task.getLocalProperty(_SETTING)
    if zone is None:
        raise InvalidInputError(
            f"where {residual.sql}: depends on the session's time zone, which is not set: set "
            f"{_SETTING}, as in SET TIME ZONE 'UTC', or write times with their zone, as in "
            "'2024-07-01 00:00:00Z'",
            sql=residual.sql,
        )
    return replace(context, residual=residual.in_zone(zone))
