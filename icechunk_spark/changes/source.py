"""Implements ``spark.readStream.format("icechunk")``: a batch is what two versions differ in.

Rules of this file
------------------
1. One long-lived process of Spark holds a reader and asks it for offsets and partitions; executors
   get another one, which only reads. So a reader is cheap to make and opens nothing by itself.
2. Spark 4.2 and later tell where a batch starts, and take limits. Before, `latestOffset` has no
   arguments; the reader then remembers the last offset that Spark planned, which Spark also plans
   (without rows) after a restart.
3. The columns are those that ``load()`` found. A version that no longer has them is an error; until
   a version has all of them for the first time, there are no rows.
4. Options are parsed when Spark first asks for something: after an error in the constructor, Spark
   hides it behind one of its own.
5. A batch is planned as a batch read is: executors open manifests, the driver does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from icechunk_format.errors import (
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.read import ReadRequest
from icechunk_format.workflows.changes.run import run_changes
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
        """Stands for the class that Spark has since 4.2."""

    ReadAllAvailable = ReadMaxFiles = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    # Spark 4.0 and 4.1 do not have it.
    from pyspark.sql.streaming.datasource import ReadLimit

    from icechunk_format import SnapshotId
    from icechunk_format.repository.reader import RepositoryReader
    from icechunk_format.workflows.changes.offsets import Offset
    from icechunk_spark.reading.plan import OpenedTable


class IcechunkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the commits of a branch as a stream.

    Parameters
    ----------
    options
        The options of the load, as Spark hands them over.
    schema
        The columns to read, in order.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = options
        self._schema = schema
        self._target = arrow_target(schema)
        # What Spark before 4.2 does not tell.
        self._planned: dict[str, Any] | None = None
        # The newest version that a query with Trigger.AvailableNow reads.
        self._goal: SnapshotId | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_target": self._target}

    @cached_property
    def _options(self) -> ReadRequest:
        options = parse_read_options(self._given, "readStream")
        if options.table is not None:
            raise UnsupportedError(
                "streams are of arrays: metadata tables are read by spark.read", table=options.table
            )
        return options

    # -- offsets ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new stream begins, as the option ``startingFrom`` says."""
        with errors_on_one_line():
            # Spark before 4.2 asks this once, and does not tell it again.
            self._planned = self._beginning().as_json()
            return self._planned

    def _beginning(self) -> Offset:
        # Heavy (the planner), and not for executors.
        from icechunk_format.workflows.changes.offsets import BEGINNING, offset_of

        wanted = (self._options.starting_from or "earliest").strip()
        if wanted.lower() == "earliest":
            return BEGINNING
        repository = self._repository()
        tip = self._tip(repository)
        if wanted.lower() == "latest":
            return offset_of(repository, tip)
        offset = offset_of(repository, self._named(repository, wanted))
        self._after(repository, offset, tip)
        return offset

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next batch ends; the same as ``start`` where nothing is new."""
        from icechunk_format.workflows.changes.offsets import Offset

        with errors_on_one_line():
            told = start or self._planned or self.initialOffset()
            repository = self._repository()
            tip = self._goal or self._tip(repository)
            unlimited = ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)
            found = self._after(repository, Offset.parse(told), tip, limited=not unlimited)
            return found.as_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit in Spark's words; the options say how much it is."""
        options = self._options
        if options.max_snapshots_per_trigger is None and options.max_chunks_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxFiles(max_files=options.max_snapshots_per_trigger or 2**31 - 1)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest version of the branch, for the progress that Spark reports."""
        from icechunk_format.workflows.changes.offsets import offset_of

        repository = self._repository()
        return offset_of(repository, self._tip(repository)).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the version that is the newest now."""
        with errors_on_one_line():
            self._goal = self._tip(self._repository())

    def _after(
        self, repository: RepositoryReader, start: Offset, tip: SnapshotId, *, limited: bool = False
    ) -> Offset:
        from icechunk_format.workflows.changes.offsets import next_offset

        options = self._options
        return next_offset(
            repository,
            start,
            tip,
            max_snapshots=options.max_snapshots_per_trigger if limited else None,
            max_chunks=options.max_chunks_per_trigger if limited else None,
            any_history=options.on_history_change == "restart",
        )

    def _repository(self) -> RepositoryReader:
        from icechunk_format.options.location import location_of
        from icechunk_format.repository.reader import RepositoryReader

        return RepositoryReader.open(location_of(self._options)).as_read()

    def _tip(self, repository: RepositoryReader) -> SnapshotId:
        try:
            return repository.resolve(branch=self._options.branch)
        except NotFoundError as error:
            raise NotFoundError(
                f"{error.message}; the stream follows this branch: create it again at the snapshot"
                " of the stream's last offset, or start another stream on another branch",
                **error.facts,
            ) from error

    def _named(self, repository: RepositoryReader, text: str) -> SnapshotId:
        """Return the version that ``startingFrom`` names: a tag, a snapshot or an instant."""
        from icechunk_format.dataset.metadata_tables.read import named_version
        from icechunk_format.options.values import parse_timestamp

        try:
            datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            instant = parse_timestamp("startingFrom", text)
            return repository.resolve(branch=self._options.branch or "main", as_of=instant)
        try:
            return named_version(repository, text)
        except NotFoundError as error:
            raise NotFoundError(
                f"{error.message}; option startingFrom takes earliest, latest, a tag, a snapshot id"
                " or an instant such as 2024-07-01T12:00:00Z",
                **error.facts,
            ) from error

    # -- batches ----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks that read what changed between two offsets."""
        from icechunk_format.workflows.changes.offsets import Offset
        from icechunk_format.workflows.changes.plan import plan_changes
        from icechunk_format.workflows.changes.steps import Step, steps_to
        from icechunk_spark.reading.changes import change_request
        from icechunk_spark.schema import column_names

        self._planned = end
        first, last = Offset.parse(start), Offset.parse(end)
        if first.snapshot == last.snapshot or last.snapshot is None:
            return []
        with errors_on_one_line():
            repository = self._repository()
            opened = self._open(first.snapshot, last.snapshot)
            if opened is None:
                return []
            names = column_names(self._schema, opened.table.columns)
            newer = repository.snapshot_info(last.snapshot)
            restarts = self._options.on_history_change == "restart"
            if restarts and first.snapshot is not None and not self._is_there(first.snapshot):
                steps = [Step(older=None, newer=newer)]
            else:
                steps = steps_to(repository, newer, first.snapshot, any_history=restarts)
            request = change_request(self._options, repository, opened.table, opened.time_zone)
            plan = plan_changes(request, steps, opened.table.select(names).columns)
        return [InputPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yield the record batches of one task."""
        task = None if partition is None else partition.value
        return fit_batches(run_changes(None, task), self._target)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the history of the repository needs no word of its readers."""

    def stop(self) -> None:
        """Do nothing: nothing is held open."""

    def _open(self, older: SnapshotId | None, newer: SnapshotId) -> OpenedTable | None:
        """Open the table of a version; None where the stream has not come to its first rows yet.

        Raises
        ------
        InvalidInputError
            The version does not have the columns of the stream any more.
        """
        try:
            return self._opened(newer)
        except IcechunkError as error:
            if not isinstance(error, NotFoundError | InvalidInputError):
                raise
            if older is None or not self._has_columns(older):
                return None
            raise InvalidInputError(
                f"snapshot {newer} no longer has the table of the stream: {error.message}. Start a"
                " new query from there, with a new load and a new checkpointLocation and"
                f" startingFrom={newer}, or name the variables that stay",
                snapshot_id=str(newer),
            ) from error

    def _opened(self, snapshot: SnapshotId) -> OpenedTable:
        from dataclasses import replace

        from icechunk_spark.reading.plan import open_table
        from icechunk_spark.schema import column_names

        opened = open_table(self._options, snapshot=str(snapshot))
        names = set(column_names(self._schema, opened.table.columns))
        # Only what the schema names is compared: other variables may come and go.
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

    def _is_there(self, snapshot: SnapshotId) -> bool:
        try:
            self._repository().snapshot(snapshot)
        except NotFoundError:
            return False
        return True
