"""Commits one version of a copy's Delta table.

A version appears by one transaction, which adds and removes files and holds the record of the
snapshot. A lost race changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.workflows.mirroring.record import APP_ID, RECORD_KEY, MirrorRecord
from icechunk_format.workflows.mirroring.target import DeltaTarget, TargetState, deltalake

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

# Characters that Delta allows in no name of a column, unless tables map names.
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
# How many files one run deletes at most after a lost race.
_MOST_DISCARDED: Final = 1_000


def delta_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of the table, without metadata.

    Raises
    ------
    UnsupportedError
        Delta has no such column.
    """
    for item in columns:
        if _FORBIDDEN & set(item.name):
            raise UnsupportedError(
                f"column {item.name!r} cannot be in a Delta table, whose names hold no blank and"
                " none of ,;{}()=: rename the array, or name the others with option variables",
                column=item.name,
            )
        if pa.types.is_duration(item.type):
            raise UnsupportedError(
                f"column {item.name!r} is a duration, which Delta does not have: name the other"
                " columns with option variables, or copy the numbers with decodeCf=false",
                column=item.name,
            )
    return pa.schema([pa.field(item.name, item.type) for item in columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A version to write: files that come and go, and the record.

    Attributes
    ----------
    added
        Rows of the schema ``ADDED``.
    removed
        Names and sizes of files that go; None where all go and the schema may change.
    """

    schema: pa.Schema
    record: MirrorRecord
    added: pa.Table
    removed: Sequence[tuple[str, int]] | None


def commit(target: DeltaTarget, state: TargetState | None, change: Transaction) -> int | None:
    """Write one version of the table, and return its number; None where another run was faster.

    Raises
    ------
    StorageError
        The store failed. The version may have landed; the next run finds out.
    """
    package = deltalake()
    now = int(time.time() * 1000)
    adds: list[AddAction | RemoveAction] = [
        package.transaction.AddAction(
            path=row["path"],
            size=row["size"],
            partition_values={},
            modification_time=now,
            data_change=True,
            stats=row["stats"],
        )
        for row in change.added.to_pylist()
    ]
    properties = package.CommitProperties(
        custom_metadata={RECORD_KEY: change.record.to_json()},
        app_transactions=[package.Transaction(APP_ID, change.record.number)],
        # A version in between may be another copy: what to do is planned anew.
        max_commit_retries=0,
    )
    schema = package.Schema.from_arrow(change.schema)
    try:
        with target.errors("committing to"):
            if state is None:
                return _create(target, schema, adds, change, properties)
            if change.removed is None:
                _allow_times(state.table, change.schema)
                mode = "overwrite"
            else:
                mode = "append"
                adds += [
                    package.transaction.RemoveAction(
                        path=name,
                        data_change=True,
                        deletion_timestamp=now,
                        size=size,
                        partition_values={},
                    )
                    for name, size in change.removed
                ]
            state.table.create_write_transaction(
                adds, mode=mode, schema=schema, commit_properties=properties
            )
    except package.exceptions.CommitFailedError:
        return None
    # The open table stays at the version before.
    return int(state.table.version()) + 1


def _create(
    target: DeltaTarget, schema: Any, adds: Sequence[Any], change: Transaction, properties: Any
) -> int | None:
    package = deltalake()
    try:
        package.transaction.create_table_with_add_actions(
            target.url,
            schema,
            list(adds),
            mode="error",
            description=f"Copy of {change.record.repository}, branch {change.record.branch}",
            # The log names the snapshot of each version, so it is kept as long as the files are.
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
    """Let a table have times without a zone, where its first schema had none."""
    has_times = any(pa.types.is_timestamp(item.type) and item.type.tz is None for item in schema)
    if has_times and "timestampNtz" not in (table.protocol().writer_features or ()):
        table.alter.add_feature(
            deltalake().TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
        )


def discard(target: DeltaTarget, names: Sequence[str]) -> None:
    """Delete files that no version has; what stays goes with the next vacuum."""
    files = target.file_system()
    for name in names[:_MOST_DISCARDED]:
        with contextlib.suppress(OSError, IcechunkError):
            files.delete_file(name)
