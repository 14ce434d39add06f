"""Registers ``format("icechunk")`` with a session, for fast reads and for planned writes.

Spark finds the installed package through the module ``pyspark_icechunk``. There are three reasons
to register nevertheless: one broken ``pyspark_*`` package on the machine makes that lookup fail;
rows of a Python source cost twice as much as rows of `mapInArrow`; and a Python source can neither
distribute the rows to write nor support the save modes ``errorifexists`` and ``ignore``.

Rules of this file
------------------
1. Registering twice, or registering a source that the lookup has found, has no effect.
2. Writes are planned in classic and in Connect sessions, each of which has its own DataFrame class.
   Connect reads use the source, since the client may not reach the storage; Connect streams use it,
   since Spark does not pass the query of a batch to functions there.
3. ``DataFrame.write`` is replaced once per DataFrame class by a property that calls the original
   one, and returns its writer unchanged in unregistered sessions. ``DataFrame.writeStream``,
   ``SparkSession.read``, ``SparkSession.readStream`` and ``SparkSession.sql`` of classic sessions
   are replaced in the same way. ``DataFrame.writeTo`` refuses icechunk, for which Spark has no
   catalog tables. The iterator of ``DataFrame.toLocalIterator`` of classic sessions raises errors
   as ``collect`` does, and the JVM keeps none of its rows. `unregister` restores the originals when
   no registered session remains.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from weakref import WeakSet

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from icechunk_format.options.arguments import checked_arguments
from icechunk_format.options.values import parse_url_prefixes
from icechunk_spark.changes.stream_writer import PlannedStream
from icechunk_spark.compatibility import require_supported_spark
from icechunk_spark.jobs.cancelling import set_progress
from icechunk_spark.jobs.errors import rows_of_iterator
from icechunk_spark.jobs.hadoop import settings_of_hadoop
from icechunk_spark.jobs.metrics import accumulator_of, local_rows
from icechunk_spark.jobs.profiles import note_source, set_profiles, source_knows_names
from icechunk_spark.jobs.session import is_connect
from icechunk_spark.jobs.session_options import (
    CatalogWrite,
    DefaultsLoad,
    NotedOptions,
    SessionDefaults,
    kept_defaults,
    noting,
    set_session_options,
)
from icechunk_spark.queries.installing import PUSHDOWN
from icechunk_spark.queries.read import MappedLoad
from icechunk_spark.source import IcechunkDataSource, source_of
from icechunk_spark.sql.refusals import checked_sql
from icechunk_spark.sql.table_function import function_of
from icechunk_spark.writing.write import PlannedSave

if TYPE_CHECKING:
    from pyspark.sql.udtf import UserDefinedTableFunction

    # Not checked as an argument, whose message would show it.
    from icechunk_format.storage.credentials import Source as CredentialsSource

#: Reader of ``format("icechunk")``: a function for `mapInArrow`, or Spark's data source.
Reader = Literal["function", "source"]

_CLASSIC: Final = "pyspark.sql.classic.dataframe"
_CONNECT: Final = "pyspark.sql.connect.dataframe"
_CLASSIC_SESSION: Final = "pyspark.sql.session"

# Sessions with the planned write, by module of DataFrame.
_registered: Final[dict[str, WeakSet[Any]]] = {_CLASSIC: WeakSet(), _CONNECT: WeakSet()}
# Separate from `_registered`: Spark makes several Python objects for one session, and a copy of the
# session for each streaming query. Their writes are planned, too.
_unregistered: Final[WeakSet[Any]] = WeakSet()
# The properties and methods that were replaced, by class and name.
_replaced: Final[dict[tuple[Any, str], Any]] = {}
# The readers of registered classic sessions, by the JVM's ids of sessions.
_readers: Final[dict[str, Reader]] = {}


@checked_arguments
def register(
    spark: SparkSession,
    *,
    reader: Reader = "function",
    virtual_authorize: Sequence[str] = (),
    storage_from_spark: bool = False,
    credentials: Mapping[str, CredentialsSource] | None = None,
    pushdown: bool | None = None,
    progress: bool = False,
) -> None:
    """Register the data source ``icechunk`` with a session, with fast reads and planned writes.

    After registration, ``df.write.format("icechunk")`` supports all four save modes and writes
    whole chunks in parallel. In classic sessions, ``df.writeStream.format("icechunk")`` does so for
    each batch, and ``spark.read.format("icechunk")`` reads as `icechunk_spark.read` does. The table
    function ``icechunk('path', tag => 'v1')`` of SQL takes the options of reading. Other formats do
    not change. Spark keeps the data source until the session ends.

    Parameters
    ----------
    spark
        A classic or Spark Connect session. With Connect, the package must be installed on the
        server, and writes also require access to the storage from the client.
    reader
        The reader of ``spark.read.format("icechunk")`` in a classic session: ``"function"`` is a
        function that Spark calls by `mapInArrow`, ``"source"`` is Spark's Python data source. SQL
        views and Connect always use the data source.
    virtual_authorize
        Default of the option ``virtual.authorize`` in this session: URL prefixes from which reads
        and writes may fetch virtual chunks.
    storage_from_spark
        Default of the option ``storage.from_spark`` in this session: take credentials, endpoint and
        region from Hadoop's settings ``fs.s3a.*``, ``fs.azure.*`` and ``fs.gs.*``; classic sessions
        only.
    credentials
        Settings of storages by name, for the option ``credentials`` of this session: ``{"weather":
        {"key": "...", "secret": "..."}}``, named like ``storage.*`` without the prefix. Instead of
        settings, a function without arguments may return them; with ``expires_at``, a time, it is
        called again before that time, otherwise after five minutes. Names are also looked up in
        Spark's configuration, as ``spark.icechunk.credentials.weather.secret``, and in the
        environment, as "ICECHUNK_CREDENTIALS__WEATHER__SECRET".
    pushdown
        If False, queries of a classic session read all cells of their reads, to compare; as ``SET
        icechunk.pushdown = false``. None leaves the setting as it is; without it, a query reads
        only what its conditions, columns and limits need.
    progress
        If True, each job that a function of this package runs shows a bar with its description, in
        the notebook or terminal (``pip install 'icechunk-spark[progress]'``).

    Raises
    ------
    InvalidInputError
        An argument has another type, a prefix is not a URL, or Spark's configuration has a
        credential under a name that Spark does not redact.
    UnsupportedError
        The server has a release before Spark 4.0.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.register(spark)  # doctest: +SKIP
    >>> df = spark.read.format("icechunk").load("s3://bucket/weather")  # doctest: +SKIP
    """
    # The server of a Connect client may be older than the client.
    require_supported_spark(getattr(spark, "version", None), "the server")
    defaults: dict[str, Any] = {}
    if virtual_authorize:
        prefixes = json.dumps(virtual_authorize)
        defaults["virtual.authorize"] = list(parse_url_prefixes("virtual_authorize", prefixes))
    if storage_from_spark:
        settings_of_hadoop(spark)  # raises in a client of Connect, before anything changes
        defaults["storage.from_spark"] = "true"
    set_profiles(spark, credentials)
    set_session_options(spark, defaults)
    set_progress(spark, progress)
    if pushdown is not None:
        spark.conf.set(PUSHDOWN, str(pushdown).lower())
    module = _frame_module(spark)
    session = kept_defaults(spark)
    _register_source(spark, session)
    table_function = udtf(function_of(accumulator_of(spark), session), useArrow=True)
    spark.udtf.register(IcechunkDataSource.name(), cast("UserDefinedTableFunction", table_function))
    _registered[module].add(spark)
    _unregistered.discard(spark)
    _replace_write(module)
    if module == _CLASSIC:
        _read_by(spark, reader)


@checked_arguments
def unregister(spark: SparkSession) -> None:
    """Restore Spark's own ``spark.read`` and ``df.write`` in a session, and remove its defaults.

    Reads then use the data source, and writes are unplanned, with ``mode("append")`` and
    ``mode("overwrite")`` only.

    Parameters
    ----------
    spark
        The session; nothing happens if it is not registered.

    Examples
    --------
    >>> icechunk_spark.unregister(spark)  # doctest: +SKIP
    """
    set_session_options(spark, {})
    set_progress(spark, False)
    set_profiles(spark, None)
    _register_source(spark, SessionDefaults())
    spark.conf.unset(PUSHDOWN)
    module = _frame_module(spark)
    _registered[module].discard(spark)
    _unregistered.add(spark)
    if not _registered[module]:
        for name in ("write", "writeStream", "writeTo", "toLocalIterator"):
            _put_back(importlib.import_module(module).DataFrame, name)
    if module == _CLASSIC:
        _read_by(spark, None)


def _register_source(spark: SparkSession, session: SessionDefaults) -> None:
    """Register the data source with the defaults of a session, where Spark replaces a source."""
    if not session and not source_knows_names(spark) and _is_known(spark):
        return
    try:
        spark.dataSource.register(source_of(session))
    except PySparkException as error:
        # Spark 4.0 and 4.1 refuse to replace the class that the lookup found, which has no session.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    else:
        note_source(spark, knows_names=bool(session))


def _frame_module(spark: SparkSession) -> str:
    return _CONNECT if is_connect(spark) else _CLASSIC


def _replace_write(module: str) -> None:
    """Make ``DataFrame.write`` of a module return writers that plan."""

    def planned_by(mixin: type[NotedOptions]) -> Callable[[Any, Any], Any]:
        def make(frame: Any, writer: Any) -> Any:
            if frame.sparkSession in _unregistered:
                return writer
            planned = noting(writer, mixin)
            planned._icechunk_frame = frame
            return planned

        return make

    cls = importlib.import_module(module).DataFrame
    _replace(cls, "write", planned_by(PlannedSave))
    _replace(cls, "writeTo", _catalog_write)
    if module == _CLASSIC:
        _replace(cls, "writeStream", planned_by(PlannedStream))
        _replace(cls, "toLocalIterator", _local_iterator)


def _read_by(spark: SparkSession, reader: Reader | None) -> None:
    """Make readers of a classic session use `mapInArrow` or the data source, or Spark's alone."""
    cls = importlib.import_module(_CLASSIC_SESSION).SparkSession
    if reader is not None:
        _readers[_session_id(spark)] = reader
        _replace(cls, "read", _reader_of)
        _replace(cls, "readStream", _stream_reader_of)
        _replace(cls, "sql", _sql_of)
        return
    _readers.pop(_session_id(spark), None)
    if not _readers:
        _put_back(cls, "read")
        _put_back(cls, "readStream")
        _put_back(cls, "sql")


def _catalog_write(frame: Any, write_to: Callable[[str], Any]) -> Callable[[str], Any]:
    if frame.sparkSession in _unregistered:
        return write_to

    @functools.wraps(write_to)
    def noted(table: str) -> Any:
        return noting(write_to(table), CatalogWrite)

    return noted


def _local_iterator(frame: Any, iterate: Callable[..., Any]) -> Callable[..., Any]:
    if frame.sparkSession in _unregistered:
        return iterate

    @functools.wraps(iterate)
    def iterated(prefetchPartitions: bool = False) -> Any:
        # Imports Arrow.
        from icechunk_spark.mapping.iterating import iterator_of

        start = functools.partial(iterator_of(frame), prefetchPartitions)
        return rows_of_iterator(local_rows(frame, start))

    return iterated


def _reader_of(spark: Any, reader: Any) -> Any:
    chosen = _readers.get(_session_id(spark))
    if chosen is None:
        return reader
    return noting(reader, MappedLoad if chosen == "function" else DefaultsLoad)


def _stream_reader_of(spark: Any, reader: Any) -> Any:
    return noting(reader, DefaultsLoad) if _session_id(spark) in _readers else reader


def _sql_of(spark: Any, sql: Callable[..., Any]) -> Callable[..., Any]:
    return checked_sql(spark, sql) if _session_id(spark) in _readers else sql


def _session_id(spark: Any) -> str:
    return str(spark._jsparkSession.sessionUUID())


def _replace(cls: Any, name: str, change: Callable[[Any, Any], Any]) -> None:
    """Replace a property or method of a class by a property that changes its value, once."""
    if (cls, name) in _replaced:
        return
    original = getattr(cls, name)
    _replaced[cls, name] = original

    def changed(self: Any) -> Any:
        return change(self, original.__get__(self, cls))

    setattr(cls, name, property(changed, doc=original.__doc__))


def _put_back(cls: Any, name: str) -> None:
    if (cls, name) in _replaced:
        setattr(cls, name, _replaced.pop((cls, name)))


def _is_known(spark: SparkSession) -> bool:
    """Return True if the session already finds the source; False in a Connect client."""
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is None:
        return False
    manager = jvm_session.sessionState().dataSourceManager()
    return bool(manager.dataSourceExists(IcechunkDataSource.name()))
