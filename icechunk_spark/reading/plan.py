"""Plans a read from its options, on the driver.

Rules of this file
------------------
1. The plan is made with the reader, not in `partitions()`: Spark pickles the reader for the
   executors *before* it calls `partitions()`.
2. If the caller passes a pinned snapshot, no branch or tag is resolved.
3. A metadata table about the whole repository is not pinned; its task reads the repository in its
   current state.
4. Reads of arrays import this module, so the planner of metadata tables is imported inside
   functions.
5. Only the driver imports this module, because it imports the planner.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructField, StructType

from icechunk_format.groups import Variable
from icechunk_format.names import shortened
from icechunk_format.options.location import location_of
from icechunk_format.options.metadata_tables import METADATA_TABLES, MetadataTable
from icechunk_format.options.read import ReadRequest
from icechunk_format.tables import (
    Dataset,
    Table,
    requested_dataset,
    requested_scan,
    requested_table,
)
from icechunk_format.tables.requested import open_snapshot
from icechunk_spark.reading.reader import IcechunkReader, IcechunkTasks
from icechunk_spark.schema import arrow_target, column_names, row_bytes, spark_schema, spark_type

if TYPE_CHECKING:
    from icechunk_format.tables.metadata_tables.conditions import InspectionConditions
    from icechunk_format.tables.reading import Residual

# Estimated cells of a block in the layout `summary`, where a block is one row.
_CELLS_OF_A_BLOCK: Final = 1_000
_BYTES_OF_A_TASK_OF_CHUNKS: Final = 32 << 20
_MOST_SHOWN: Final = 8
# Estimated rows of a task that opens manifests, and of any other table.
_ROWS_OF_A_TASK: Final = 1_000_000
_ROWS_OF_A_SMALL_TABLE: Final = 10_000
# Maximum length of an option in the name of a read, which plans repeat several times.
_MOST_CHARACTERS: Final = 120


# Items of an IN list that a plan shows, if the list has more than the second number.
_FIRST_ITEMS: Final = 2
_MOST_ITEMS: Final = 8
_WORDS: Final = r"[A-Za-z_]+ ?"
_VALUE: Final = r"(?:'(?:[^'\\]|\\.)*+'|[-\w.]++)"
_ITEM: Final = re.compile(rf"CAST\({_VALUE} AS [^()]*\)|(?:{_WORDS})?{_VALUE}")
_LIST: Final = re.compile(rf"(\bIN ?\()((?:(?:{_ITEM.pattern}),? ?)++)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTable:
    """A group of one snapshot as a table, as specified by options."""

    options: ReadRequest
    dataset: Dataset
    table: Table
    time_zone: str | None = None
    """The session's time zone; None if only Spark's tasks can determine it."""

    @property
    def snapshot(self) -> str:
        """The id of the snapshot, as a string."""
        return str(self.dataset.snapshot_id)

    @property
    def schema(self) -> StructType:
        """All columns of the table."""
        return spark_schema(self.table.columns)

    @property
    def base(self) -> dict[str, str] | None:
        """The origin of rows read from a branch, for overwrites; None for a tag or snapshot."""
        options = self.options
        if options.tag or options.snapshot or options.as_of or options.changes_since:
            return None
        return {
            "place": str(location_of(options)),
            "branch": options.branch or "main",
            "group": str(self.dataset.path),
            "snapshot": self.snapshot,
        }

    def warn_of_left_out(self) -> None:
        """Warn of the variables that the table omits by default, once for each table."""
        options = self.options
        if options.variables is not None or options.layout not in ("cells", "summary"):
            return
        others = self.dataset.left_out(self.table)
        if not others:
            return
        dims = ", ".join(self.table.dims)
        # Python shows a warning once in a process if it comes from the same line.
        warnings.warn(
            f"the table of group {self.dataset.path} over ({dims}) leaves out variables on fewer "
            f"dimensions: {shown_variables(others)}. List the variables that you want in the "
            "option variables, which repeats those on fewer dimensions; the metadata table "
            "'variables' lists all",
            UserWarning,
            stacklevel=1,
        )

    def reader(self, schema: StructType, *, since: str | None) -> DataSourceReader:
        """Return the reader of the columns of `schema`; `since` is the pinned start of changes."""
        return self._planned(schema, since)[0]

    def planned(
        self,
        schema: StructType,
        since: str | None = None,
        conditions: Sequence[Residual] = (),
    ) -> tuple[IcechunkReader, int]:
        """Return the reader of a whole read, and the approximate number of bytes of its rows.

        Changes that do not meet all `conditions` are left out.
        """
        reader, rows = self._planned(schema, since, conditions)
        return reader, self.size_bytes(schema, len(reader.partitions()), rows)

    def size_bytes(self, schema: StructType, tasks: int, rows: int) -> int:
        """Return the approximate number of bytes of the rows of a plan."""
        if self.options.layout == "chunks":
            return tasks * _BYTES_OF_A_TASK_OF_CHUNKS
        if self.options.layout == "summary":
            rows = max(tasks, rows // _CELLS_OF_A_BLOCK)
        return rows * row_bytes(schema)

    def _planned(
        self, schema: StructType, since: str | None, conditions: Sequence[Residual] = ()
    ) -> tuple[IcechunkReader, int]:
        """Return the reader of the columns of `schema`, and an upper bound of its rows."""
        names, target = column_names(schema, self.table.columns), arrow_target(schema)
        if self.options.changes_since is None:
            plan = requested_scan(
                self.options, self.dataset, self.table, columns=names, time_zone=self.time_zone
            )
            return IcechunkReader(plan, target), plan.rows
        from icechunk_format.workflows.changes import plan_changes_since, resolve_since, run_changes

        since = resolve_since(self.options) if since is None else since
        feed = plan_changes_since(
            self.options, self.snapshot, self.table, names, since, self.time_zone, conditions
        )
        return IcechunkReader(feed, target, run_changes), feed.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRead:
    """A metadata table at the pinned snapshots, with the methods of `OpenedTable`."""

    options: ReadRequest
    snapshot: str
    """The result of `resolve_read`."""
    table: MetadataTable

    @property
    def schema(self) -> StructType:
        """All columns of the table."""
        return StructType(
            [
                StructField(
                    column.name, spark_type(column.arrow_type), metadata={"comment": column.about}
                )
                for column in self.table.columns
            ]
        )

    @property
    def base(self) -> None:
        """None, since rows of metadata tables are not written."""

    def warn_of_left_out(self) -> None:
        """Do nothing: a metadata table contains all of its columns."""

    def reader(
        self,
        schema: StructType,
        *,
        since: str | None = None,
        conditions: InspectionConditions | None = None,
        limit: int | None = None,
    ) -> IcechunkReader:
        """Return the reader of the columns of `schema`.

        Arrays and manifests that do not meet `conditions` are left out, as are rows of a task that
        are beyond the limit.
        """
        from icechunk_format.tables import requested_inspection, run_inspection

        names = column_names(schema, self.table.columns)
        plan = requested_inspection(self.options, self.snapshot, names, conditions, limit)
        return IcechunkReader(plan, arrow_target(schema), run_inspection)

    def planned(self, schema: StructType, since: str | None = None) -> tuple[IcechunkReader, int]:
        """Return the reader of a whole read, and the approximate number of bytes of its rows."""
        reader = self.reader(schema)
        return reader, self.size_bytes(schema, len(reader.partitions()))

    def size_bytes(self, schema: StructType, tasks: int) -> int:
        """Return the approximate number of bytes of the rows of some tasks."""
        rows = _ROWS_OF_A_SMALL_TABLE
        if self.table.cut == "between manifests":
            rows = tasks * (self.options.rows_per_partition or _ROWS_OF_A_TASK)
        return rows * row_bytes(schema)


def resolve_read(options: ReadRequest) -> str:
    """Resolve the options to a snapshot, or to the two snapshots of a metadata table."""
    if options.table is not None:
        from icechunk_format.tables import resolve_snapshots

        return resolve_snapshots(options)
    return str(open_snapshot(options)[1])


def open_read(
    options: ReadRequest, pinned: str | None = None, time_zone: str | None = None
) -> OpenedTable | MetadataRead:
    """Open the arrays or metadata table of the options, at the snapshot `pinned` if it is set."""
    if options.table is None:
        return open_table(options, snapshot=pinned, time_zone=time_zone)
    pinned = resolve_read(options) if pinned is None else pinned
    return MetadataRead(options=options, snapshot=pinned, table=METADATA_TABLES[options.table])


def open_table(
    options: ReadRequest, *, snapshot: str | None, time_zone: str | None = None
) -> OpenedTable:
    """Open the group that the options name, at the pinned `snapshot` if it is set."""
    dataset = requested_dataset(options, snapshot)
    table = requested_table(options, dataset)
    if options.change_columns:
        from icechunk_format.workflows.changes import with_change_columns

        table = with_change_columns(table)
    if time_zone is None and options.timestamp_type == "ntz":
        # The zone then affects only times that a clock change skips.
        time_zone = "UTC"
    return OpenedTable(options=options, dataset=dataset, table=table, time_zone=time_zone)


def shown_variables(variables: Sequence[Variable]) -> str:
    """Return the first few variables with their dimensions, for a warning."""
    return shortened([f"{v.name} ({', '.join(v.dims)})" for v in variables], _MOST_SHOWN)


def plan_table(
    options: ReadRequest, schema: StructType | None, time_zone: str | None = None
) -> tuple[IcechunkTasks, StructType, int]:
    """Plan a whole read of arrays or of a metadata table, at the current snapshot.

    Return the tasks, the columns of their rows, and the approximate number of bytes of the rows (or
    an upper bound). `schema` selects and orders columns; None is all of them.
    """
    opened = open_read(options, time_zone=time_zone)
    if schema is None:
        opened.warn_of_left_out()
    wanted = opened.schema if schema is None else schema
    reader, size = opened.planned(wanted)
    tasks = IcechunkTasks(reader, shown_read(options, opened.snapshot))
    logging.getLogger("icechunk_spark").info("planned %s, tasks: %d", tasks.__name__, len(tasks))
    return tasks, wanted, size


def shown_read(
    options: ReadRequest,
    snapshot: str | None,
    *,
    conditions: Sequence[str] = (),
    **more: str | None,
) -> str:
    """Return location, snapshot and selection on one line, without credentials.

    ``where`` has the option and the `conditions` of a query.
    """
    where = " AND ".join(filter(None, (options.where, *conditions)))
    facts = {
        "table": options.table,
        "branch": options.branch,
        "tag": options.tag,
        "as_of": options.as_of and options.as_of.isoformat(),
        "snapshot": snapshot,
        "changes_since": options.changes_since,
        "group": options.group,
        "layout": options.layout if options.table is None else None,
        "variables": ",".join(options.variables or ()),
        "where": without_long_lists(where),
        "sel": _selected(options.sel),
        "isel": _selected(options.isel),
        **more,
    }
    shown = [f"{name}={_one_line(str(string))}" for name, string in facts.items() if string]
    return " ".join(["icechunk", str(location_of(options)), *shown])


def without_long_lists(sql: str) -> str:
    """Replace the values of long IN lists by the first ones and their number."""

    def cut(match: re.Match[str]) -> str:
        items = _ITEM.findall(match[2])
        if len(items) <= _MOST_ITEMS:
            return match[0]
        return f"{match[1]}{', '.join(items[:_FIRST_ITEMS])}, … {len(items):,} values)"

    return _LIST.sub(cut, sql)


def _selected(given: str | Mapping[str, Any] | None) -> str | None:
    """Return labels or positions in the string form of the option."""
    if not isinstance(given, Mapping):
        return given
    return "; ".join(
        f"{dim}={value.start}:{value.stop}" if isinstance(value, slice) else f"{dim}={value}"
        for dim, value in given.items()
    )


def _one_line(string: str) -> str:
    line = " ".join(string.split())
    line = line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
    return f"'{line}'" if " " in line else line
