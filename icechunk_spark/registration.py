"""Making ``format("icechunk")`` known to a session.

An installed package is found by Spark itself, through the module ``pyspark_icechunk``. Registering
is still the first line of every example, because that lookup gives up altogether when any one
``pyspark_*`` package on the machine is broken, and then says only that the source is not found.

Rules of this file
------------------
1. Registering twice, or registering what the lookup has found, is fine and says nothing.
2. Classic and Connect sessions are served alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.errors import PySparkException

from icechunk_spark.source import IcechunkDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_registered: WeakSet[Any] = WeakSet()


def register(spark: SparkSession) -> None:
    """Register the data source ``icechunk`` with a session.

    Spark keeps it until the session ends; it has no way to take a source back.

    Parameters
    ----------
    spark
        A classic session, or one of Spark Connect. With Connect, the package must be installed on
        the server.
    """
    if spark in _registered or _is_known(spark):
        return
    try:
        spark.dataSource.register(IcechunkDataSource)
    except PySparkException as error:
        # Spark 4.0 and 4.1 refuse to register over what the lookup found, which is this class.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _registered.add(spark)


def _is_known(spark: SparkSession) -> bool:
    """Whether the session finds the source already; a Connect client cannot tell, and says no."""
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is None:
        return False
    manager = jvm_session.sessionState().dataSourceManager()
    return bool(manager.dataSourceExists(IcechunkDataSource.name()))
