"""Writes the batches of a stream for Spark's own sink: unregistered sessions and Connect.

Tasks stage their rows, and the commit writes them in one process, as an unplanned write does, up to
``maxUnplannedBytes`` for each batch.

Rules of this file
------------------
1. Spark creates one writer for the tasks of a batch and another for its commit, so the messages of
   the tasks contain everything that the commit needs, such as the id of the query.
2. The staging folder is named after query and batch, so that a repeated batch also deletes the rows
   of its earlier attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.options.write import WriteRequest
from icechunk_spark.changes.batches import of_query, run_maintenance, with_group, write_once
from icechunk_spark.jobs.session import QUERY_ID
from icechunk_spark.jobs.task_rows import batches_of
from icechunk_spark.schema import write_schema
from icechunk_spark.writing.unplanned import StagedRows, UnplannedWriter

_BATCH_ID: Final = "streaming.sql.batchId"
_ROWS_AT_ONCE: Final = 10_000
# Spark 4.0 passes rows; later versions pass Arrow batches to this class.
_TAKES_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_Base: Any = (
    datasource.DataSourceStreamArrowWriter if _TAKES_ARROW else datasource.DataSourceStreamWriter
)


@dataclass(frozen=True, slots=True)
class StagedBatch(WriterCommitMessage):
    """The receipt of one task of a batch."""

    staged: StagedRows
    app_id: str
    query: str | None
    folder: str
    group: str | None


class StagedStreamWriter(_Base):  # type: ignore[misc]
    """Stages the rows of a batch, and writes them in its commit.

    `group` is the group that was chosen when the batch began, and `refused` is an error for tasks
    to raise.
    """

    def __init__(
        self,
        request: WriteRequest,
        schema: StructType,
        *,
        group: str | None = None,
        refused: IcechunkError | None = None,
    ) -> None:
        self._request = request
        self._refused = refused
        self._group = group
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        from pyspark import TaskContext

        if self._refused is not None:
            raise self._refused
        context = TaskContext.get()
        running = context and context.getLocalProperty(QUERY_ID)
        query = self._request.txn_app_id or running
        if not query or context is None:
            raise UnsupportedError(
                "Spark does not pass the id of the query of this batch: set option 'txnAppId' to"
                " a name that no other stream has"
            )
        number = context.getLocalProperty(_BATCH_ID) or "batch"
        folder = f"staging/stream-{_as_key(query)}-{_as_key(number)}"
        batches = iterator
        if not _TAKES_ARROW:
            batches = batches_of(iterator, write_schema(self._schema), _ROWS_AT_ONCE)
        staged = self._writer(folder).write(batches)
        assert isinstance(staged, StagedRows)
        return StagedBatch(staged, query, running or None, folder, self._group)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Write the rows of a batch in one commit, unless an earlier attempt did."""
        found = [message for message in messages if isinstance(message, StagedBatch)]
        if not found:
            return
        request = replace(self._request, txn_app_id=found[0].app_id, txn_version=batchId)
        if not any(message.staged.rows for message in found):
            self.abort(messages, batchId)
            return
        request = of_query(with_group(request, found[0].group), found[0].query)
        writer = UnplannedWriter(request, self._schema, folder=found[0].folder)
        staged = [message.staged for message in found]
        write_once(request, lambda: writer.commit(staged))
        run_maintenance(request, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the staged rows of a batch, which no commit refers to."""
        folders = {message.folder for message in messages if isinstance(message, StagedBatch)}
        for folder in folders:
            self._writer(folder).abort([])

    def _writer(self, folder: str) -> UnplannedWriter:
        return UnplannedWriter(self._request, self._schema, folder=folder)


def _as_key(string: str) -> str:
    """Return a string as a part of an object key."""
    return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in string)
