"""Plans reads of metadata tables: ``load(path + "#snapshots")``.

Rules of this file
------------------
1. ``icechunk_format.options.metadata_tables`` declares the schema, and the comments that DESCRIBE
   shows.
2. Reads of arrays import this module, so the planner of metadata tables is imported inside
   functions.
3. Snapshots are pinned as for arrays: as a string on the data source. A table about the whole
   repository is not pinned; its task reads the repository in its current state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructField, StructType

from icechunk_format.options.metadata_tables import METADATA_TABLES, MetadataTable
from icechunk_format.options.read import ReadRequest
from icechunk_spark.reading.reader import IcechunkReader
from icechunk_spark.schema import arrow_target, column_names, row_bytes, spark_type

# Estimated rows of a task that opens manifests, and of any other table.
_ROWS_OF_A_TASK: Final = 1_000_000
_ROWS_OF_A_SMALL_TABLE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRead:
    """A metadata table at the pinned snapshots, with the methods of `OpenedTable`."""

    options: ReadRequest
    snapshot: str
    """The result of ``resolve_versions``."""
    table: MetadataTable

    @classmethod
    def of(cls, options: ReadRequest, pinned: str | None) -> MetadataRead:
        """Return the read of the options at the pinned snapshots."""
        if pinned is None:
            from icechunk_format.dataset.metadata_tables.read import resolve_versions

            pinned = resolve_versions(options)
        return cls(options=options, snapshot=pinned, table=METADATA_TABLES[str(options.table)])

    @property
    def schema(self) -> StructType:
        """All columns of the table."""
        return table_schema(self.table)

    @property
    def base(self) -> None:
        """None, since rows of metadata tables are not written."""

    def warn_of_left_out(self) -> None:
        """Do nothing: a metadata table contains all of its columns."""

    def reader(self, schema: StructType, *, since: str | None = None) -> IcechunkReader:
        """Return the reader of the columns of `schema`."""
        from icechunk_format.dataset.metadata_tables.read import (
            requested_inspection,
            run_inspection,
        )

        names = column_names(schema, self.table.columns)
        plan = requested_inspection(self.options, self.snapshot, names)
        return IcechunkReader(plan, arrow_target(schema), run_inspection)

    def planned(self, schema: StructType) -> tuple[IcechunkReader, int]:
        """Return the reader of a whole read, and the approximate number of bytes of its rows."""
        reader, rows = self.reader(schema), _ROWS_OF_A_SMALL_TABLE
        if self.table.cut == "between manifests":
            rows = len(reader.partitions()) * (self.options.rows_per_partition or _ROWS_OF_A_TASK)
        return reader, rows * row_bytes(schema)


def table_schema(table: MetadataTable) -> StructType:
    """Return the Spark schema of a metadata table."""
    return StructType(
        [
            StructField(
                column.name,
                spark_type(column.arrow_type),
                metadata={"comment": column.about},
            )
            for column in table.columns
        ]
    )
