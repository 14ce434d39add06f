"""Plans reads of metadata tables: ``load(path + "#snapshots")``.

Rules of this file
------------------
1. ``icechunk_format.dataset.metadata_tables.declared`` gives the schema, and the comments that
   DESCRIBE shows.
2. A version is pinned as that of arrays is: as a text on the data source. A table about the whole
   repository is not pinned; its task reads the repository as it is then.
"""

from __future__ import annotations

from pyspark.sql.types import StructField, StructType

from icechunk_format.dataset.metadata_tables.declared import METADATA_TABLES, MetadataTable
from icechunk_format.dataset.metadata_tables.read import (
    plan_inspection,
    resolve_change,
    run_inspection,
)
from icechunk_format.dataset.table.table import Column
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.repository import Repository
from icechunk_spark.options.location import location_of
from icechunk_spark.options.read import ReadOptions
from icechunk_spark.reading.reader import IcechunkReader
from icechunk_spark.schema import arrow_target, column_names, spark_type

# Separates the two snapshots to which `changes` is pinned; no id contains it.
_TO = ".."


def resolve_versions(options: ReadOptions) -> str:
    """Return the snapshot, or the two, to which a metadata table is pinned; empty for none.

    Raises
    ------
    NotFoundError
        The repository or a version does not exist.
    InvalidInputError
        The versions cannot be compared.
    """
    table = _table(options)
    repository = Repository.open(location_of(options))
    if table.scope == "repository":
        return ""
    if table.scope == "changes":
        older, newer = resolve_change(
            repository, older=options.from_version, newer=options.to_version
        )
        return f"{older}{_TO}{newer}"
    return str(
        repository.resolve(
            branch=options.branch,
            tag=options.tag,
            snapshot=options.snapshot,
            as_of=options.as_of,
        )
    )


def table_schema(options: ReadOptions) -> StructType:
    """Return the Spark schema of the metadata table that the options name."""
    return StructType(
        [
            StructField(
                column.name,
                spark_type(column.arrow_type),
                nullable=True,
                metadata={"comment": column.about},
            )
            for column in _table(options).columns
        ]
    )


def make_table_reader(options: ReadOptions, schema: StructType, *, pinned: str) -> IcechunkReader:
    """Return the reader of a metadata table.

    Parameters
    ----------
    options
        The options of the load.
    schema
        The columns to read, in order: the table's own, or the user's choice of them.
    pinned
        What ``resolve_versions`` gave.

    Raises
    ------
    IcechunkError
        An option or the schema cannot be used, or what they name does not exist.
    """
    table = _table(options)
    columns = [
        Column(name=column.name, arrow_type=column.arrow_type, role="layout")
        for column in table.columns
    ]
    repository = Repository.open(location_of(options))
    older, _, newer = pinned.rpartition(_TO)
    plan = plan_inspection(
        repository,
        table,
        columns=column_names(schema, columns),
        snapshot_id=repository.resolve(snapshot=newer) if newer else None,
        older_id=repository.resolve(snapshot=older) if older else None,
        group=options.group,
        refs_per_task=options.rows_per_partition,
    )
    return IcechunkReader(plan, arrow_target(schema), run_inspection)


def _table(options: ReadOptions) -> MetadataTable:
    if options.table is None:
        raise InvalidInputError("no metadata table is named; give one as path#name", option="table")
    return METADATA_TABLES[options.table]
