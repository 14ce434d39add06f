"""Commits a version of a Delta table: added and removed files, and the record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.workflows.mirroring.delta_table import DeltaTarget, TableState, deltalake
from icechunk_format.workflows.mirroring.parquet import FileContext, FileReceipt, FileTask
from icechunk_format.workflows.mirroring.record import APP_ID, RECORD_KEY, MirrorRecord

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction


# Characters that Delta does not allow in column names without column mapping.
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
_MOST_DISCARDED: Final = 1_000  # after a lost race


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """One version of the table to write."""

    context: FileContext
    tasks: list[FileTask]
    state: TableState | None
    record: MirrorRecord
    removed: list[tuple[str, int]] | None
    """Names and sizes of files to remove; None removes all, and the schema may change."""
    full_copy: str | None
    """The reason why all cells are written; None if only changed cells are written."""
    row_bytes: float
    """Approximate bytes of a row in a file."""


def delta_schema(columns: pa.Schema) -> pa.Schema:
    """Return the table schema without metadata; raise for columns that Delta does not support."""
    for item in columns:
        if _FORBIDDEN & set(item.name):
            raise UnsupportedError(
                f"column {item.name!r} cannot be in a Delta table, whose names have no spaces and"
                " none of ,;{}()=: rename the array, or name the others with option variables",
                column=item.name,
            )
        if pa.types.is_duration(item.type):
            raise UnsupportedError(
                f"column {item.name!r} is a duration, which Delta does not support: name the other"
                " columns with option variables, or copy the numbers with decodeCf=false",
                column=item.name,
            )
    return pa.schema([pa.field(item.name, item.type) for item in columns])


def commit(plan: MirrorPlan, added: Sequence[FileReceipt]) -> int | None:
    """Commit a version of the table; return its number, or None if another run committed first.

    Raises
    ------
    StorageError
        The storage failed. The version may have been committed; the next run reads it.
    """
    package, target, record = deltalake(), plan.context.target, plan.record
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        package.transaction.AddAction(
            path=receipt.path,
            size=receipt.size,
            partition_values={},
            modification_time=now,
            data_change=True,
            stats=receipt.stats,
        )
        for receipt in added
    ]
    actions += [
        package.transaction.RemoveAction(
            path=name,
            data_change=True,
            deletion_timestamp=now,
            size=size,
            partition_values={},
        )
        for name, size in plan.removed or ()
    ]
    properties = package.CommitProperties(
        custom_metadata={RECORD_KEY: record.to_json()},
        app_transactions=[package.Transaction(APP_ID, record.number)],
        # No retries: a version in between may be of another run, so the run is planned again.
        max_commit_retries=0,
    )
    schema = package.Schema.from_arrow(plan.context.schema)
    try:
        with target.errors("committing to"):
            if plan.state is None:
                return _create(plan, schema, actions, properties)
            table = plan.state.table
            if plan.removed is None:
                _allow_times(table, plan.context.schema)
            table.create_write_transaction(
                actions,
                mode="overwrite" if plan.removed is None else "append",
                schema=schema,
                commit_properties=properties,
            )
    except package.exceptions.CommitFailedError:
        return None
    # The open table object stays at the previous version.
    return int(table.version()) + 1


def _create(plan: MirrorPlan, schema: Any, actions: Sequence[Any], properties: Any) -> int | None:
    package, target, record = deltalake(), plan.context.target, plan.record
    try:
        package.transaction.create_table_with_add_actions(
            target.url,
            schema,
            list(actions),
            mode="error",
            description=f"Copy of {record.repository}, branch {record.branch}",
            # The log names the snapshot of each version, so log entries must not expire before
            # files.
            configuration={"delta.enableExpiredLogCleanup": "false"},
            storage_options=dict(target.options) or None,
            commit_properties=properties,
        )
    except package.exceptions.DeltaError:
        if target.open() is None:
            raise
        return None  # another run created it
    return 0


def _allow_times(table: DeltaTable, schema: pa.Schema) -> None:
    """Add the table feature of timestamps without a time zone if the first schema had none."""
    has_times = any(pa.types.is_timestamp(item.type) and item.type.tz is None for item in schema)
    if has_times and "timestampNtz" not in (table.protocol().writer_features or ()):
        table.alter.add_feature(
            deltalake().TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
        )


def discard(target: DeltaTarget, names: Sequence[str]) -> None:
    """Delete files that are not in any version; the next vacuum deletes any that remain."""
    files = target.file_system()
    for name in names[:_MOST_DISCARDED]:
        with contextlib.suppress(OSError, IcechunkError):
            files.delete_file(name)
