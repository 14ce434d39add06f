"""Implements ``spark.readStream.format("icechunk")``: a batch is the changes between two snapshots.

Rules of this file
------------------
1. One long-lived process of Spark calls a reader for offsets and partitions; executors get another
   reader, which only reads. So a reader must be cheap to create, and its constructor opens nothing.
2. Spark 4.2 and later pass the start of a batch, and limits. In earlier versions, `latestOffset`
   has no arguments. The reader then keeps the last offset that Spark planned; after a restart,
   Spark plans this offset again, without rows.
3. The columns are those that ``load()`` found. A snapshot that no longer has them is an error.
   Until a snapshot has all of them for the first time, batches are empty.
4. The first call parses the options, because Spark replaces errors of the constructor by its own.
5. A batch is planned like a batch read: executors open manifests, the driver does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.changes import run_changes
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.reading.reader import fit_batches
from icechunk_spark.schema import arrow_target

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The class of Spark 4.2 and later."""

    ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    # Spark 4.0 and 4.1 do not have it.
    from pyspark.sql.streaming.datasource import ReadLimit

    from icechunk_format import SnapshotId
    from icechunk_format.repository import RepositoryReader
    from icechunk_format.workflows.changes.steps import Offset
    from icechunk_spark.reading.plan import OpenedTable


class IcechunkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the columns of a schema from the commits of a branch, as a stream."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = options
        self._schema = schema
        self._target = arrow_target(schema)
        # The last planned offset, which Spark before 4.2 does not pass.
        self._planned: dict[str, Any] | None = None
        # The last snapshot that a query with Trigger.AvailableNow reads.
        self._goal: SnapshotId | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_target": self._target}

    @cached_property
    def _options(self) -> ReadRequest:
        options = parse_read_options(self._given, "readStream")
        if options.table is not None:
            raise UnsupportedError(
                "streams read arrays only; spark.read reads metadata tables", table=options.table
            )
        return options

    # -- offsets ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning of a new stream: option ``startingFrom``."""
        with errors_on_one_line():
            # Spark before 4.2 calls this once and does not pass it again.
            self._planned = self._beginning().as_json()
            return self._planned

    def _beginning(self) -> Offset:
        # Heavy (the planner), and not for executors.
        from icechunk_format.workflows.changes.steps import BEGINNING, next_offset, offset_of

        wanted = (self._options.starting_from or "earliest").strip()
        if wanted.lower() == "earliest":
            return BEGINNING
        repository = self._repository()
        tip = self._tip(repository)
        if wanted.lower() == "latest":
            return offset_of(repository, tip)
        offset = offset_of(repository, self._named(repository, wanted))
        next_offset(repository, offset, tip, self._options)  # raises for another history
        return offset

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is no newer snapshot."""
        from icechunk_format.workflows.changes.steps import Offset, next_offset

        with errors_on_one_line():
            offset = Offset.parse(start or self._planned or self.initialOffset())
            repository = self._repository()
            tip = self._goal or self._tip(repository)
            unlimited = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
            end = next_offset(repository, offset, tip, self._options, is_limited=not unlimited)
            return end.as_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options as a limit of Spark."""
        options = self._options
        if options.max_snapshots_per_trigger is None and options.max_chunks_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxFiles(max_files=options.max_snapshots_per_trigger or 2**31 - 1)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest snapshot of the branch, for the progress that Spark reports."""
        from icechunk_format.workflows.changes.steps import offset_of

        repository = self._repository()
        return offset_of(repository, self._tip(repository)).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the currently newest snapshot the last one of the query."""
        with errors_on_one_line():
            self._goal = self._tip(self._repository())

    def _repository(self) -> RepositoryReader:
        from icechunk_format.options.location import location_of
        from icechunk_format.repository import RepositoryReader

        return RepositoryReader.open(location_of(self._options)).as_read()

    def _tip(self, repository: RepositoryReader) -> SnapshotId:
        try:
            return repository.resolve(branch=self._options.branch)
        except NotFoundError as error:
            raise NotFoundError(
                f"{error.message}; the stream follows this branch: create it again at the snapshot"
                " of the stream's last offset, or start a new stream on another branch",
                **error.facts,
            ) from error

    def _named(self, repository: RepositoryReader, name: str) -> SnapshotId:
        """Return the snapshot of ``startingFrom``: a tag, a snapshot id or a timestamp."""
        from icechunk_format.options.values import parse_timestamp
        from icechunk_format.tables import named_snapshot

        try:
            datetime.fromisoformat(name)
        except ValueError:
            pass
        else:
            timestamp = parse_timestamp("startingFrom", name)
            return repository.resolve(branch=self._options.branch or "main", as_of=timestamp)
        try:
            return named_snapshot(repository, name)
        except NotFoundError as error:
            raise NotFoundError(
                f"{error.message}; option startingFrom takes earliest, latest, a tag, a snapshot id"
                " or a timestamp such as 2024-07-01T12:00:00Z",
                **error.facts,
            ) from error

    # -- batches ----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read the changes between two offsets."""
        from icechunk_format.workflows.changes import plan_changes_since
        from icechunk_format.workflows.changes.steps import Offset
        from icechunk_spark.schema import column_names

        self._planned = end
        first, last = Offset.parse(start), Offset.parse(end)
        if first.snapshot == last.snapshot or last.snapshot is None:
            return []
        with errors_on_one_line():
            opened = self._open(first.snapshot, last.snapshot)
            if opened is None:
                return []
            since = "" if first.snapshot is None else str(first.snapshot)
            if since and self._options.on_history_change == "restart" and not self._exists(since):
                since = ""
            plan = plan_changes_since(
                self._options,
                str(last.snapshot),
                opened.table,
                column_names(self._schema, opened.table.columns),
                since,
                opened.time_zone,
            )
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the record batches of one task."""
        task = None if partition is None else partition.value
        return fit_batches(run_changes(None, task), self._target)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a repository does not record its readers."""

    def stop(self) -> None:
        """Do nothing: no resource is open."""

    def _open(self, older: SnapshotId | None, newer: SnapshotId) -> OpenedTable | None:
        """Open the table of a snapshot; None if the columns of the stream did not exist before."""
        try:
            return self._opened(newer)
        except (NotFoundError, InvalidInputError) as error:
            if older is None or not self._has_columns(older):
                return None
            raise InvalidInputError(
                f"snapshot {newer} no longer has the table of the stream: {error.message}. Start a"
                " new query, with a new load, a new checkpointLocation and"
                f" startingFrom={newer}, or list the remaining variables in the option variables",
                snapshot_id=str(newer),
            ) from error

    def _opened(self, snapshot: SnapshotId) -> OpenedTable:
        from dataclasses import replace

        from icechunk_spark.reading.plan import open_table
        from icechunk_spark.schema import column_names

        opened = open_table(self._options, snapshot=str(snapshot))
        names = set(column_names(self._schema, opened.table.columns))
        # Only columns of the schema are compared: other variables may change.
        kept = [c for c in opened.table.columns if c.role != "variable" or c.name in names]
        if any(column.role == "variable" for column in kept):
            opened = replace(opened, table=replace(opened.table, columns=tuple(kept)))
        return opened

    def _has_columns(self, snapshot: SnapshotId) -> bool:
        try:
            self._opened(snapshot)
        except (NotFoundError, InvalidInputError):
            return False
        return True

    def _exists(self, snapshot: str) -> bool:
        try:
            self._repository().snapshot(snapshot)
        except NotFoundError:
            return False
        return True
