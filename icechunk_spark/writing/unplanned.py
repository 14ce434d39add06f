"""Writes rows of unregistered sessions and of SQL INSERT, which arrive unsorted.

Several tasks may receive rows of one chunk. So the tasks stage their rows as Arrow files in the
repository's storage, and the commit reads all of them and writes one table. This takes place in one
process, so the write has a limit in bytes.

Rules of this file
------------------
1. Staged files are in ``staging/<random>/``, outside of the prefixes of the format, and no commit
   references them; so they may be deleted in every outcome, including a lost commit response.
   Nothing else is ever deleted.
2. Only files that the receipts name are read. Those of failed or speculative attempts have other
   names.
3. Memory is bounded: a task holds one file, the commit at most ``maxUnplannedBytes`` of rows and
   the chunks that it writes.
4. Spark also calls `abort` after a failed `commit`, with the real receipts.
5. Spark pins a view, and the rows read from it, to one snapshot. Their columns record it, and an
   overwrite fails unless that snapshot is the tip of its branch.
6. Spark runs the write that creates a catalog table within another execution, which tasks see. They
   refuse it: Spark would drop the table's options. It then drops the table.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from icechunk_format.errors import ConflictError, InvalidInputError, UnsupportedError
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.write import WriteRequest
from icechunk_format.repository import Repository
from icechunk_format.storage.batches import sized_batches
from icechunk_format.storage.location import open_storage
from icechunk_format.tables.writing.in_process import write_prepared_table
from icechunk_format.tables.writing.prepare import PreparedWrite, prepare_write
from icechunk_spark.jobs.session import QUERY_ID
from icechunk_spark.jobs.session_options import catalog_refused
from icechunk_spark.schema import BASE_KEY, column_metadata, fitted, write_schema

# Largest size of a staged file.
_FILE_BYTES: Final = 16 * 2**20
_FILE_BATCHES: Final = 10_000


@dataclass(frozen=True, slots=True)
class StagedRows(WriterCommitMessage):
    """The receipt of one task: its staged files."""

    keys: tuple[str, ...]
    nbytes: int
    rows: int


class UnplannedWriter(DataSourceArrowWriter):
    """Stages the rows of all tasks, and writes them in the commit.

    The mode of `request` is ``append`` or ``overwrite``, since Spark supports no other for Python
    sources. `folder` is the folder of staged rows; by default a new one.
    """

    def __init__(
        self, request: WriteRequest, schema: StructType, *, folder: str | None = None
    ) -> None:
        if request.replace_where is not None:
            raise UnsupportedError(
                "replaceWhere needs a planned write: call icechunk_spark.register(spark) first, or"
                " use icechunk_spark.write(df, path, mode='overwrite', replace_where=...)",
                option="replaceWhere",
            )
        self._request = request
        self._schema = write_schema(schema)
        self._base = _base_of(schema, request) if request.mode == "overwrite" else None
        self._folder = folder or f"staging/{secrets.token_hex(16)}"

    # Spark passes Arrow batches to an Arrow writer; pyspark's annotation is that of the row writer.
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        _refuse_catalog_table()
        storage = open_storage(location_of(self._request))
        keys: list[str] = []
        total = rows = 0
        fitting = (fitted(batch, self._schema) for batch in iterator)
        sized = ((batch, batch.nbytes) for batch in fitting)
        for batches in sized_batches(sized, _FILE_BATCHES, _FILE_BYTES):
            total += sum(batch.nbytes for batch in batches)
            rows += sum(batch.num_rows for batch in batches)
            self._check_size(total)
            keys.append(self._stage(storage, batches))
        return StagedRows(tuple(keys), total, rows)

    def check_base(self, tip: str | None = None) -> None:
        """Refuse to overwrite with rows of a snapshot that is not the tip of its branch.

        `tip` is the snapshot on which the write is based; by default, the newest of the branch.
        ConflictError is raised if the branch has moved since the rows were read.
        """
        if self._base is None:
            return
        location, branch = location_of(self._request), self._request.branch or "main"
        if tip is None:
            tip = str(Repository.open(location).resolve(branch=branch))
        if tip != self._base:
            raise ConflictError(
                f"branch {branch!r} of {location} has moved to snapshot {tip}, and the view or"
                f" DataFrame is pinned at {self._base}: an overwrite would drop later commits;"
                " create the view or load the DataFrame again, and repeat the write",
                branch=branch,
                base=self._base,
                tip=tip,
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the staged rows, and commit."""
        receipts = [message for message in messages if isinstance(message, StagedRows)]
        try:
            self._check_size(sum(receipt.nbytes for receipt in receipts))
            table = self._staged(receipts)
            # Deleted first, because a new repository needs an empty location; the rows are in
            # memory.
            self._delete_staged()
            options = self._request
            prepared = prepare_write(
                location_of(self._request),
                table.schema,
                options if self._base is None else replace(options, on_conflict="fail"),
                access_of(self._request),
            )
            if isinstance(prepared, PreparedWrite):
                self.check_base(str(prepared.destination.base))
                write_prepared_table(prepared, table)
        finally:
            self._delete_staged()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged files, which no commit refers to."""
        self._delete_staged()

    def _stage(self, storage: Any, batches: list[pa.RecordBatch]) -> str:
        key = f"{self._folder}/{secrets.token_hex(16)}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        storage.put(key, sink.getvalue().to_pybytes())
        return key

    def _staged(self, receipts: list[StagedRows]) -> pa.Table:
        storage = open_storage(location_of(self._request))
        batches: list[pa.RecordBatch] = []
        for receipt in receipts:
            for key in receipt.keys:
                batches += pa.ipc.open_stream(storage.get(key).data)
        table = pa.Table.from_batches(batches, schema=self._schema)
        expected = sum(receipt.rows for receipt in receipts)
        if table.num_rows != expected:
            raise InvalidInputError(
                f"{expected} rows were staged under '{self._folder}', but {table.num_rows} were"
                " read back: another program changes objects there; write again",
                expected=expected,
                found=table.num_rows,
            )
        return table

    def _delete_staged(self) -> None:
        storage = open_storage(location_of(self._request))
        # The listing also has files of attempts that Spark abandoned, which have no receipt.
        storage.delete_many([found.key for found in storage.list(self._folder + "/")])

    def _check_size(self, nbytes: int) -> None:
        limit = self._request.max_unplanned_bytes
        if nbytes > limit:
            raise UnsupportedError(
                f"an unplanned write holds at most {limit:,} bytes of rows (option"
                f" 'maxUnplannedBytes'), but these rows have {nbytes:,} or more: call"
                " icechunk_spark.register(spark) first, or icechunk_spark.write(df, path, ...),"
                " which plan writes of any size",
                limit=limit,
                found=nbytes,
            )


def _base_of(schema: StructType, request: WriteRequest) -> str | None:
    """Return the snapshot at which rows of the written group were read; None for other rows."""
    for field in schema.fields:
        match column_metadata(field).get(BASE_KEY):
            case {"place": place, "branch": branch, "group": group, "snapshot": str(snapshot)} if (
                place == str(location_of(request))
                and branch == (request.branch or "main")
                and (request.group is None or group == "/" + request.group.strip("/"))
            ):
                return snapshot
    return None


def _refuse_catalog_table() -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.getLocalProperty(QUERY_ID):
        return
    execution = context.getLocalProperty("spark.sql.execution.id")
    if execution != context.getLocalProperty("spark.sql.execution.root.id"):
        raise catalog_refused("creating a table")
