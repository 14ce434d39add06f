"""Plans a read from its options, on the driver.

Rules of this file
------------------
1. The plan is made when the reader is made, not in `partitions()`: Spark pickles the reader for
   the executors *before* it asks for the partitions.
2. If the caller gives a pinned snapshot, no branch or tag is resolved.
3. Only the driver imports this module, because it imports the planner.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructField, StructType

from icechunk_format.dataset.change_feed.request import with_change_columns
from icechunk_format.dataset.change_feed.run import run_feed
from icechunk_format.dataset.dataset import Dataset, open_dataset
from icechunk_format.dataset.reading.scan import ScanPlan
from icechunk_format.dataset.selection.where.split import Selecting
from icechunk_format.dataset.table.table import Table
from icechunk_format.repository.repository import Repository
from icechunk_spark.options.location import location_of
from icechunk_spark.options.read import ReadOptions
from icechunk_spark.reading.changes import plan_changes, resolve_since
from icechunk_spark.reading.metadata_tables import make_table_reader, resolve_versions, table_schema
from icechunk_spark.reading.pushdown import make_pushdown_reader
from icechunk_spark.reading.reader import IcechunkReader
from icechunk_spark.schema import arrow_target, column_names, spark_schema

if TYPE_CHECKING:
    from icechunk_format import SnapshotId
    from icechunk_spark.reading.mapped_tasks import TaskReader

# Guesses of the rows of metadata tables: of a task that opens manifests, and of any other table.
_ROWS_OF_A_TASK: Final = 1_000_000
_ROWS_OF_A_SMALL_TABLE: Final = 10_000
# Guess of the cells of a block of the layout `summary`, which is one row.
_CELLS_OF_A_BLOCK: Final = 1_000
_BYTES_OF_A_TASK_OF_CHUNKS: Final = 32 << 20
# The estimates of Spark's optimizer for a row, and for a value of variable width.
_BYTES_OF_A_ROW: Final = 8
_BYTES_OF_A_TEXT: Final = 20
_MOST_SHOWN: Final = 8
# Characters of an option in the name of a read: plans repeat it several times.
_MOST_CHARACTERS: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTable:
    """A group of one snapshot as a table, as the options name it."""

    snapshot: str
    """The id of the snapshot, as text."""
    dataset: Dataset
    table: Table


def resolve_snapshot(options: ReadOptions) -> str:
    """Return the id of the snapshot that the options mean now.

    Raises
    ------
    NotFoundError
        The repository, branch, tag or snapshot does not exist.
    """
    return str(_open_version(options, None)[1])


def _open_version(options: ReadOptions, pinned: str | None) -> tuple[Repository, SnapshotId]:
    place = location_of(options)
    if pinned is not None:
        return Repository.open_version(place, snapshot=pinned)
    return Repository.open_version(
        place,
        branch=options.branch,
        tag=options.tag,
        snapshot=options.snapshot,
        as_of=options.as_of,
    )


def open_group(options: ReadOptions, *, snapshot: str | None) -> tuple[str, Dataset]:
    """Return the id of the snapshot that the options mean, and the group there.

    Raises
    ------
    NotFoundError
        The repository, the branch, tag or snapshot, or the group does not exist.
    """
    repository, snapshot_id = _open_version(options, snapshot)
    dataset = open_dataset(
        repository,
        snapshot_id,
        options.group,
        authorize=options.virtual_authorize,
        virtual_options=options.virtual_storage_options,
    )
    return str(snapshot_id), dataset


def open_table(options: ReadOptions, *, snapshot: str | None) -> OpenedTable:
    """Open the group that the options name, at `snapshot` where one is pinned already.

    Raises
    ------
    NotFoundError
        The repository, the branch, tag or snapshot, the group or a variable does not exist.
    InvalidInputError
        An option cannot be used with this group.
    """
    opened, dataset = open_group(options, snapshot=snapshot)
    table = dataset.table(
        options.layout,
        variables=options.variables,
        coords=options.coords,
        decode_cf=options.decode_cf,
        timestamp_type=options.timestamp_type,
        block=options.block,
        decoded=options.decoded,
    )
    if options.change_columns:
        table = with_change_columns(table)
    return OpenedTable(snapshot=opened, dataset=dataset, table=table)


def warn_of_left_out(options: ReadOptions, opened: OpenedTable) -> None:
    """Warn once for each table of the variables that it leaves out by default."""
    if options.variables is not None or options.layout not in ("cells", "summary"):
        return
    others = opened.dataset.left_out(opened.table)
    if not others:
        return
    shown = ", ".join(f"{v.name} ({', '.join(v.dims)})" for v in others[:_MOST_SHOWN])
    more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
    dims = ", ".join(opened.table.dims)
    # Python shows a text once in a process, as long as it comes from one line.
    warnings.warn(
        f"the table of group {opened.dataset.path} over ({dims}) leaves out variables on fewer"
        f" dimensions: {shown}{more}. Name the variables that you want with the option variables,"
        " which repeats those on fewer dimensions; the metadata table 'variables' lists all",
        UserWarning,
        stacklevel=1,
    )


def reader_of(
    options: ReadOptions,
    opened: OpenedTable,
    names: Sequence[str],
    target: pa.Schema,
    *,
    since: str | None,
) -> tuple[IcechunkReader, int]:
    """Plan a read of some columns; return its reader, and an upper bound of its rows.

    Parameters
    ----------
    since
        The id of the snapshot since which changes are read, as text; empty for all rows.
    """
    if options.changes_since is None:
        plan = plan_read(options, opened, names, where=options.where)
        return IcechunkReader(plan, target), plan.rows
    since = resolve_since(options) if since is None else since
    feed = plan_changes(options, opened.snapshot, opened.table, names, since)
    return IcechunkReader(feed, target, run_feed), feed.rows


def plan_read(
    options: ReadOptions, opened: OpenedTable, columns: Sequence[str], *, where: str | None
) -> ScanPlan:
    """Plan the scan of some columns, with `where` in place of the option."""
    selecting = {name: getattr(options, name) for name in Selecting.__annotations__}
    return opened.dataset.plan(
        opened.table,
        columns=columns,
        **cast("Selecting", selecting | {"where": where}),
        rows_per_partition=options.rows_per_partition,
        missing_chunks=options.missing_chunks,
        read_ahead_bytes=options.read_ahead_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """A read that is ready to run."""

    schema: StructType
    """The columns that its rows have."""
    reader: TaskReader
    name: str
    """What is read, as ``explain`` shows it."""
    size_bytes: int
    """About how many bytes its rows have, an upper bound where nothing better is known."""


def plan_table(options: ReadOptions, schema: StructType | None) -> PlannedTable:
    """Plan a whole read of arrays or of a metadata table, at the snapshot that is current now.

    Parameters
    ----------
    options
        The options; ``pushdown`` has no effect.
    schema
        The columns to read, in order, or None for all.

    Raises
    ------
    IcechunkError
        An option or the schema cannot be used, or what they name does not exist.
    """
    if options.table is not None:
        wanted = table_schema(options) if schema is None else schema
        pinned = resolve_versions(options)
        inspection = make_table_reader(options, wanted, pinned=pinned)
        rows = _ROWS_OF_A_SMALL_TABLE
        if options.table == "chunks":
            tasks = len(inspection.partitions())
            rows = tasks * (options.rows_per_partition or _ROWS_OF_A_TASK)
        size = rows * _row_bytes(arrow_target(wanted))
        return PlannedTable(
            schema=wanted, reader=inspection, name=_shown(options, pinned), size_bytes=size
        )
    opened = open_table(options, snapshot=None)
    if schema is None:
        warn_of_left_out(options, opened)
    wanted = spark_schema(opened.table.columns) if schema is None else schema
    names = column_names(wanted, opened.table.columns)
    target = arrow_target(wanted)
    reader, rows = reader_of(options, opened, names, target, since=None)
    tasks = len(reader.partitions())
    if options.layout == "chunks":
        size = tasks * _BYTES_OF_A_TASK_OF_CHUNKS
    elif options.layout == "summary":
        size = max(tasks, rows // _CELLS_OF_A_BLOCK) * _row_bytes(target)
    else:
        size = rows * _row_bytes(target)
    return PlannedTable(
        schema=wanted,
        reader=reader,
        name=_shown(options, opened.snapshot),
        size_bytes=size,
    )


def _shown(options: ReadOptions, snapshot: str) -> str:
    """Return the place, the version and the selection on one line, without credentials."""
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
        "where": options.where,
        "sel": _selected(options.sel),
        "isel": _selected(options.isel),
    }
    told = [f"{name}={_one_line(str(text))}" for name, text in facts.items() if text]
    return " ".join(["icechunk", str(location_of(options)), *told])


def _selected(given: str | Mapping[str, Any] | None) -> str | None:
    """Return labels or positions as the option takes them as text."""
    if not isinstance(given, Mapping):
        return given
    return "; ".join(
        f"{dim}={value.start}:{value.stop}" if isinstance(value, slice) else f"{dim}={value}"
        for dim, value in given.items()
    )


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    line = line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
    return f"'{line}'" if " " in line else line


def _row_bytes(schema: pa.Schema) -> int:
    return _BYTES_OF_A_ROW + sum(_value_bytes(field.type) for field in schema)


def _value_bytes(arrow_type: pa.DataType) -> int:
    if pa.types.is_struct(arrow_type):
        return sum(_value_bytes(field.type) for field in arrow_type)
    if pa.types.is_list(arrow_type):
        return _value_bytes(arrow_type.value_type)
    try:
        return -(-int(arrow_type.bit_width) // 8)
    except ValueError:  # texts and bytes have no width
        return _BYTES_OF_A_TEXT


def make_reader(
    options: ReadOptions, schema: StructType, opened: OpenedTable, *, since: str | None
) -> DataSourceReader:
    """Return the reader for one DataFrame.

    Parameters
    ----------
    options
        The options of the load.
    schema
        The columns to read, in order: the table's own, or the user's choice of them.
    opened
        The table.
    since
        The snapshot since which changes are read, where it is pinned already.

    Raises
    ------
    IcechunkError
        An option or the schema cannot be used, or what they name does not exist.
    """
    columns = column_names(schema, opened.table.columns)
    target = arrow_target(schema)

    def plan(where: str | None) -> ScanPlan:
        return plan_read(options, opened, columns, where=where)

    if options.pushdown:
        # Spark's filters have the types of the user's schema, `where` has those of the table.
        ours = spark_schema(opened.table.columns)
        alike = {field.name for field in schema for our in ours if _is_same(field, our)}
        return make_pushdown_reader(plan, target, where=options.where, columns=frozenset(alike))
    return reader_of(options, opened, columns, target, since=since)[0]


def _is_same(field: StructField, other: StructField) -> bool:
    return field.name == other.name and field.dataType == other.dataType
