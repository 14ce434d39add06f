"""Making ``format("icechunk")`` known to a session, for reading and for planned writes.

An installed package is found by Spark itself, through the module ``pyspark_icechunk``. Registering
is still the first line of every example: that lookup gives up altogether when any one
``pyspark_*`` package on the machine is broken, and Spark gives a Python source neither a say in
how the rows to write are distributed nor the save modes ``errorifexists`` and ``ignore``.

Rules of this file
------------------
1. Registering twice, or registering what the lookup has found, is fine and says nothing.
2. Classic and Connect sessions are served alike; each has a DataFrame class of its own.
3. ``DataFrame.write`` is replaced once per DataFrame class, by a property that asks the replaced
   one for the writer, and leaves that as it is for sessions that were unregistered. `unregister`
   puts the replaced one back when no session is left.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark.errors import PySparkException

from icechunk_spark.source import IcechunkDataSource
from icechunk_spark.writing import PlannedSave, planned_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASSIC: Final = "pyspark.sql.classic.dataframe"
_CONNECT: Final = "pyspark.sql.connect.dataframe"

# Sessions with the planned write, and the properties that were replaced, by module of DataFrame.
_registered: Final[dict[str, WeakSet[Any]]] = {_CLASSIC: WeakSet(), _CONNECT: WeakSet()}
# Not simply "all others": Spark makes several Python objects for one session.
_unregistered: Final[WeakSet[Any]] = WeakSet()
_replaced: Final[dict[str, property]] = {}


def register(spark: SparkSession) -> None:
    """Register the data source ``icechunk`` with a session, and plan its writes.

    After it, ``df.write.format("icechunk")`` takes all four save modes and writes whole chunks in
    parallel. Other formats are not touched. Spark keeps the source until the session ends; it has
    no way to take one back.

    Parameters
    ----------
    spark
        A classic session, or one of Spark Connect. With Connect, the package must be installed on
        the server, and for writing the client must reach the storage, too.
    """
    module = _frame_module(spark)
    if spark not in _registered[module] and not _is_known(spark):
        try:
            spark.dataSource.register(IcechunkDataSource)
        except PySparkException as error:
            # Spark 4.0 and 4.1 refuse to register over what the lookup found, which is this class.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    _registered[module].add(spark)
    _unregistered.discard(spark)
    _replace_write(module)


def unregister(spark: SparkSession) -> None:
    """Undo what `register` did to ``df.write``; reading stays as it is.

    Spark then hands the rows of this session over as they come, with ``mode("append")`` and
    ``mode("overwrite")`` only.

    Parameters
    ----------
    spark
        The session; one that is not registered is fine.
    """
    module = _frame_module(spark)
    _registered[module].discard(spark)
    _unregistered.add(spark)
    if not _registered[module] and module in _replaced:
        importlib.import_module(module).DataFrame.write = _replaced.pop(module)


def _frame_module(spark: SparkSession) -> str:
    is_connect = ".connect" in type(spark).__module__
    return _CONNECT if is_connect else _CLASSIC


def _replace_write(module: str) -> None:
    """Let ``DataFrame.write`` of a module give writers that plan."""
    if module in _replaced:
        return
    frame_class = importlib.import_module(module).DataFrame
    original: property = frame_class.write
    made: dict[type, type] = {}

    def write(self: Any) -> Any:
        writer = original.__get__(self, frame_class)
        if self.sparkSession in _unregistered:
            return writer
        base = type(writer)
        if base not in made:
            made[base] = type(base.__name__, (PlannedSave, base), {"__doc__": base.__doc__})
        return planned_writer(writer, self, made[base])

    _replaced[module] = original
    frame_class.write = property(write, doc=original.__doc__)


def _is_known(spark: SparkSession) -> bool:
    """Whether the session finds the source already; a Connect client cannot tell, and says no."""
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is None:
        return False
    manager = jvm_session.sessionState().dataSourceManager()
    return bool(manager.dataSourceExists(IcechunkDataSource.name()))
