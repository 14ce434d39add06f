"""Writes the cells of one box as a Parquet file on an executor, with statistics for Delta's log.

Rules of this file
------------------
1. Rows are in the order of chunks, so that row groups have narrow bounds along every dimension.
2. Labels of dimensions are dictionary-encoded; values are not, since they seldom repeat.
3. Statistics have only exact bounds: no NaN or infinity, no long strings, no nested values.
4. An unfinished file has no entry in the log; a vacuum deletes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import secrets
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from icechunk_format.errors import StorageError
from icechunk_format.storage.batches import sized_batches
from icechunk_format.tables.reading import ScanContext, ScanTask, run_scan
from icechunk_format.workflows.mirroring.boxes import file_name

if TYPE_CHECKING:
    from icechunk_format.workflows.mirroring.delta_table import DeltaTarget

ROW_GROUP_ROWS: Final = 1_000_000
# Parquet's LZ4_RAW: writing with zstd takes 25 % longer, and snappy makes larger files.
COMPRESSION: Final = "lz4"
# Longer strings are left out of statistics, in which Delta would truncate them.
_MOST_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class FileTask:
    """A file to write: the box of its cells, ``(start_0, stop_0, start_1, ...)``, and their number.

    Each attempt generates a new name, so that two attempts never write to the same file.
    """

    box: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class FileReceipt:
    """A written file."""

    path: str
    size: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """The part of a plan that all tasks share."""

    scan: ScanContext
    target: DeltaTarget
    schema: pa.Schema
    has_nan: bool = False
    """True if floats may be NaN: extremes are then unknown, since Spark sorts NaN after all numbers
    and Parquet's statistics ignore it."""

    @property
    def bounded(self) -> list[str]:
        """The columns that have statistics."""
        return [
            item.name
            for item in self.schema
            if not (self.has_nan and pa.types.is_floating(item.type))
        ]


def write_file(context: FileContext, task: FileTask) -> FileReceipt:
    """Write a file.

    Raises
    ------
    StorageError
        The storage failed, or its disk is full. The table does not change.
    """
    collected: list[pq.FileMetaData] = []
    box = np.array(task.box, dtype=np.int64).reshape(-1, 2)
    name = file_name(box, secrets.token_hex(8))
    scan_task = ScanTask(parts=((0, *task.box),), rows=task.rows)
    files = context.target.file_system()
    try:
        with files.open_output_stream(name) as stream:
            with pq.ParquetWriter(
                stream,
                context.schema,
                compression=COMPRESSION,
                use_dictionary=_repeated(context),
                write_statistics=context.bounded,
                write_page_index=True,
                store_schema=False,
                metadata_collector=collected,
            ) as writer:
                sized = ((b, b.num_rows) for b in run_scan(context.scan, scan_task) if b.num_rows)
                for batches in sized_batches(sized, ROW_GROUP_ROWS, ROW_GROUP_ROWS):
                    rows = pa.Table.from_batches(batches).cast(context.schema)
                    writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
            size = stream.tell()
    except OSError as error:
        _drop(files, name)
        is_full = error.errno == errno.ENOSPC
        problem = context.target.shown(error)
        raise StorageError(
            f"writing {name} to {context.target} failed{'; its disk is full' * is_full}: {problem}."
            f" The table is unchanged; mirror again{' after freeing space' * is_full}",
            target=str(context.target),
        ) from None
    except BaseException:
        _drop(files, name)
        raise
    [metadata] = collected
    stats = statistics(metadata, context.schema)
    return FileReceipt(name, size, metadata.num_rows, json.dumps(stats, allow_nan=False))


def _drop(files: pa_fs.FileSystem, name: str) -> None:
    with contextlib.suppress(OSError):
        files.delete_file(name)


def _repeated(context: FileContext) -> list[str]:
    return [
        column.name
        for column in context.scan.table.columns
        if column.role == "dimension" or pa.types.is_string(column.arrow_type)
    ]


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a file in the format of Delta's log, from its row groups."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        kind = schema.field(name).type if name in schema.names else None
        if kind is None or pa.types.is_nested(kind):
            continue
        found = [group.column(index).statistics for group in groups]
        if all(item is not None and item.has_null_count for item in found):
            nulls[name] = sum(item.null_count for item in found)
        bounds = _bounds(found, kind)
        if bounds is not None:
            least[name], most[name] = bounds
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _bounds(found: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return the minimum and the maximum of a column; None if they are unknown."""
    known = [item for item in found if item is not None and item.has_min_max]
    # A row group without extremes has only missing values, or values that Parquet cannot order.
    if not known or any(
        item is None or (not item.has_min_max and item.num_values) for item in found
    ):
        return None
    try:
        low, high = min(item.min for item in known), max(item.max for item in known)
    except (ValueError, OverflowError):  # timestamps outside of Python's range
        return None
    shown = _shown(low, kind), _shown(high, kind)
    return None if None in shown else shown


def _shown(value: Any, kind: pa.DataType) -> Any:
    """Convert a value to JSON of Delta's log; None if statistics cannot have it."""
    if pa.types.is_floating(kind):
        return value if math.isfinite(value) else None
    if pa.types.is_integer(kind):
        return int(value)
    if isinstance(value, datetime):
        zone = "Z" if kind.tz is not None else ""
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _MOST_CHARACTERS else None
    return None
