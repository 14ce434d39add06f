"""Implements the data source ``icechunk``: resolves options to a snapshot, and creates readers.

Rules of this file
------------------
1. The import is cheap. Spark imports this module in a planner process at the first lookup of *any*
   source, so only pyspark's data source module and the options are imported at the top; methods
   import Arrow and the layer of tables.
2. The snapshot is resolved once, at Spark's first call. Spark pickles the instance after
   `schema()`, so `reader()` finds the snapshot that `schema()` stores on it. With a user's schema,
   Spark calls nothing before the first action and never calls `schema()`, and Spark 4.0 creates a
   new reader for every action; such an instance is pinned when it is pickled.
3. Errors of `icechunk_format.errors` are raised on one line: Spark prints them under a traceback,
   and users read the last line.
4. `self.options` may hold credentials. It never enters a message or a `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from icechunk_format.errors import IcechunkError
from icechunk_format.options.declare import Call, fold_name
from icechunk_format.options.keywords import option_strings
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write_request import parse_write_options
from icechunk_spark.jobs.errors import errors_on_one_line

if TYPE_CHECKING:
    from icechunk_format.options.write import Mode
    from icechunk_spark.jobs.session_options import SessionDefaults


class IcechunkDataSource(DataSource):
    """The data source of ``format("icechunk")``, which reads and writes Icechunk repositories.

    `register` adds the class to a session. Spark creates its instances for ``spark.read``,
    ``spark.readStream``, ``df.write``, ``df.writeStream`` and SQL views ``USING icechunk``. The
    page "Options" of the manual describes the options of reads and writes.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.register(spark)  # doctest: +SKIP
    >>> df = spark.read.format("icechunk").load("s3://bucket/weather")  # doctest: +SKIP
    """

    # The id of the snapshot, or the pinned snapshots of a metadata table. A class attribute,
    # because Spark advises sources not to override `__init__`.
    _pinned_snapshot: str | None = None
    # The id of the snapshot since which changes are read.
    _pinned_since: str | None = None
    # The defaults of the session, of the class that `source_of` returns.
    _session: SessionDefaults | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pin the snapshot before Spark sends the instance to the JVM: see rule 2."""
        if self._pinned_snapshot is None:
            # A missing repository may be created before the action; the reader reports errors.
            with suppress(IcechunkError):
                options = parse_read_options(self._given(), "read", "readStream")
                # Heavy (the repository layer): see rule 1.
                from icechunk_spark.reading.plan import resolve_read

                self._pinned_snapshot = resolve_read(options)
                self._pin_since(options)
        return self.__dict__

    def _given(self, call: Call = "read") -> Mapping[str, Any]:
        """Return the options, with the defaults of the session."""
        if self._session is None:
            return self.options
        return option_strings(self._session.applied(dict(self.options), "", call))

    def _pin_since(self, options: ReadRequest) -> None:
        if options.changes_since is not None and self._pinned_since is None:
            # Heavy (the repository layer): see rule 1.
            from icechunk_format.workflows.changes import resolve_since

            self._pinned_since = resolve_since(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "icechunk"

    def schema(self) -> StructType:
        """Resolve and pin the snapshot, and return the columns of the table."""
        # Heavy (Arrow, NumPy, the layer of tables): see rule 1.
        from icechunk_spark.reading.plan import open_read
        from icechunk_spark.schema import with_base

        with errors_on_one_line(is_planner=True):
            options = parse_read_options(self._given(), "read", "readStream")
            opened = open_read(options, self._pinned_snapshot)
            self._pinned_snapshot = opened.snapshot
            self._pin_since(options)
            opened.warn_of_left_out()
            return with_base(opened.schema, opened.base)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the pinned snapshot for the columns of `schema`."""
        # Heavy (Arrow, NumPy, the layer of tables): see rule 1.
        from icechunk_spark.reading.plan import open_read

        with errors_on_one_line(is_planner=True):
            options = parse_read_options(self._given())
            opened = open_read(options, self._pinned_snapshot)
            self._pinned_snapshot = opened.snapshot
            return opened.reader(schema, since=self._pinned_since)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of an unplanned write, for sessions without `register`."""
        # Heavy (Arrow, NumPy, the layer of tables): see rule 1.
        from icechunk_spark.writing.unplanned import UnplannedWriter

        with errors_on_one_line(is_planner=True):
            # A view may read timestamps in UTC, so that Spark does not convert inserted ones.
            options = {
                name: value
                for name, value in self._given("write").items()
                if fold_name(name).replace("_", "").replace(".", "") != "timestamptype"
            }
            request = parse_write_options(options, mode="overwrite" if overwrite else "append")
            writer = UnplannedWriter(request, schema)
            writer.check_base()
            return writer

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream, for the columns of `schema`."""
        # Heavy (Arrow, NumPy): see rule 1.
        from icechunk_spark.changes.source import IcechunkStreamReader

        return IcechunkStreamReader(self._given("readStream"), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one batch in a session that is not registered.

        Spark calls this method when a batch begins and again for its commit, and calls nothing
        before the stream starts. So the stream is checked here, before the rows of its first batch
        are computed. If the group is not yet known, errors that may depend on it are raised by
        tasks.
        """
        with errors_on_one_line(is_planner=True):
            mode: Mode = "overwrite" if overwrite else "append"
            request = parse_write_options(self._given("writeStream"), "writeStream", mode=mode)
        # Heavy (Arrow, NumPy, the layer of tables): see rule 1.
        from icechunk_spark.changes.batches import (
            check_stream,
            checkpoint_in,
            refuse_checkpoint_inside,
        )
        from icechunk_spark.changes.staged import StagedStreamWriter

        with errors_on_one_line(is_planner=True):
            # The checkpoint exists by now, so a new repository would refuse the folder.
            refuse_checkpoint_inside(request, checkpoint_in(self.options))
        try:
            with errors_on_one_line(is_planner=True):
                group = check_stream(request, schema)
        except IcechunkError as error:
            if request.group is not None:
                raise
            return StagedStreamWriter(request, schema, refused=error)
        return StagedStreamWriter(request, schema, group=group)


def source_of(session: SessionDefaults) -> type[IcechunkDataSource]:
    """Return the data source of a session with its defaults.

    Spark pickles the class with the defaults, and shows neither.
    """

    class OfSession(IcechunkDataSource):
        _session = session

    return OfSession if session else IcechunkDataSource
