"""From options to a planned read, on the driver.

Rules of this file
------------------
1. The plan is made when the reader is made, not in `partitions()`: Spark pickles the reader for
   the executors *before* it asks for the partitions.
2. The snapshot comes from the caller where one is pinned; then no branch or tag is looked at.
3. Only the driver imports this module: it pulls in the planner and the SQL parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.repository.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_spark.pushdown import make_pushdown_reader
from icechunk_spark.reader import IcechunkReader
from icechunk_spark.schema import arrow_target, column_names, spark_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructField, StructType

    from icechunk_format import SnapshotId
    from icechunk_format.dataset.dataset import Dataset
    from icechunk_format.dataset.scan import ScanPlan
    from icechunk_format.dataset.table import Table
    from icechunk_spark.options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTable:
    """What the options name: a group of one snapshot, seen as a table."""

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
    place = Location(
        url=options.path, client=options.storage_client, options=options.storage_options
    )
    if pinned is not None:
        return Repository.open_version(place, snapshot=pinned)
    return Repository.open_version(
        place,
        branch=options.branch,
        tag=options.tag,
        snapshot=options.snapshot,
        as_of=options.as_of,
    )


def open_table(options: ReadOptions, *, snapshot: str | None) -> OpenedTable:
    """Open the group that the options name, at `snapshot` where one is pinned already.

    Raises
    ------
    NotFoundError
        The repository, the branch, tag or snapshot, the group or a variable does not exist.
    InvalidInputError
        An option cannot be used with this group.
    """
    repository, snapshot_id = _open_version(options, snapshot)
    dataset = open_dataset(
        repository,
        snapshot_id,
        options.group,
        authorize=options.virtual_authorize,
        virtual_options=options.virtual_storage_options,
    )
    table = dataset.table(
        options.layout,
        variables=options.variables,
        coords=options.coords,
        decode_cf=options.decode_cf,
        timestamp_type=options.timestamp_type,
        block=options.block,
        decoded=options.decoded,
    )
    return OpenedTable(snapshot=str(snapshot_id), dataset=dataset, table=table)


def plan_read(
    options: ReadOptions, opened: OpenedTable, columns: Sequence[str], *, where: str | None
) -> ScanPlan:
    """Plan the scan of some columns, with `where` in place of the option."""
    return opened.dataset.plan(
        opened.table,
        columns=columns,
        where=where,
        sel=options.sel,
        isel=options.isel,
        sel_method=None if options.sel_method == "exact" else options.sel_method,
        rows_per_partition=options.rows_per_partition,
        missing_chunks=options.missing_chunks,
        read_ahead_bytes=options.read_ahead_bytes,
    )


def make_reader(options: ReadOptions, schema: StructType, opened: OpenedTable) -> DataSourceReader:
    """Return the reader for one DataFrame.

    Parameters
    ----------
    options
        The options of the load.
    schema
        The columns to read, in order: the table's own, or the user's choice of them.
    opened
        The table.

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
        # Spark speaks of the columns in the user's schema, `where` of those of the table.
        ours = spark_schema(opened.table.columns)
        alike = {field.name for field in schema for our in ours if _is_same(field, our)}
        return make_pushdown_reader(plan, target, where=options.where, columns=frozenset(alike))
    return IcechunkReader(plan(options.where), target)


def _is_same(field: StructField, other: StructField) -> bool:
    return field.name == other.name and field.dataType == other.dataType
