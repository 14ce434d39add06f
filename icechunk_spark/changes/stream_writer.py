"""Implements ``df.writeStream.format("icechunk")`` of a registered classic session.

Rules of this file
------------------
1. Every call is passed to Spark's own writer unchanged, except `start` with ``format("icechunk")``.
2. `start` checks options, columns and repository first, then lets Spark call a function with each
   batch, which runs a planned write.
3. The import is cheap, because `icechunk_spark` imports this module.
4. Spark prints the plan of a failed stream below its error. So its exception has the error of this
   package as a note, which Python prints last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from icechunk_format.options.keywords import option_strings
from icechunk_format.options.write_request import parse_write_options
from icechunk_spark.jobs.errors import errors_on_one_line, noted_error, noted_errors
from icechunk_spark.jobs.session_options import NotedWrite, with_session_options


class ReportedQuery(StreamingQuery):
    """A streaming query whose exceptions end with an error of this package, if it caused them."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait as Spark does."""
        with noted_errors():
            return super().awaitTermination(timeout)

    def processAllAvailable(self) -> None:
        """Wait as Spark does."""
        with noted_errors():
            super().processAllAvailable()

    def exception(self) -> StreamingQueryException | None:
        """Return the exception of the query, as Spark does."""
        found = super().exception()
        return None if found is None else noted_error(found)


def _reported(query: StreamingQuery) -> StreamingQuery:
    if type(query) is StreamingQuery:
        query.__class__ = ReportedQuery
    return query


class PlannedStream(NotedWrite):
    """Mixin for Spark's classic `DataStreamWriter` that plans the batches of icechunk."""

    _icechunk_output_mode: str | None = None

    def outputMode(self, outputMode: str) -> Any:
        """Record the output mode, and pass it to Spark."""
        self._icechunk_output_mode = outputMode
        return super().outputMode(outputMode)  # type: ignore[misc]

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the stream: planned for icechunk, by Spark for other formats."""
        if not self._is_ours(format):
            started: StreamingQuery = super().start(  # type: ignore[misc]
                path, format, outputMode, partitionBy, queryName, **options
            )
            return _reported(started)
        self.options(**options)
        strings = self._icechunk_strings(path, partitionBy)
        given = with_session_options(
            self._icechunk_frame.sparkSession, strings, path, "writeStream"
        )
        request = parse_write_options(option_strings(given), "writeStream")
        # Heavy (Arrow, NumPy, the layer of tables): see rule 3.
        from icechunk_spark.changes.batches import (
            PlannedBatches,
            check_stream,
            mode_of,
            refuse_checkpoint_inside,
        )

        mode = mode_of(outputMode or self._icechunk_output_mode)
        request = replace(request, mode=mode)
        with errors_on_one_line():
            refuse_checkpoint_inside(request, self._icechunk_checkpoint())
            group = check_stream(request, self._icechunk_frame.schema)
        if outputMode is not None:
            self.outputMode(outputMode)
        if queryName is not None:
            self.queryName(queryName)  # type: ignore[attr-defined]
        self.foreachBatch(PlannedBatches(request, group))  # type: ignore[attr-defined]
        planned: StreamingQuery = super().start()  # type: ignore[misc]
        return _reported(planned)

    def _icechunk_checkpoint(self) -> str | None:
        """Return the location of checkpoints, of the option or of the session."""
        from icechunk_spark.changes.batches import checkpoint_in

        found = checkpoint_in(self._icechunk_options)
        if found is not None:
            return found
        conf = self._icechunk_frame.sparkSession.conf
        default: str | None = conf.get("spark.sql.streaming.checkpointLocation", None)
        return default
