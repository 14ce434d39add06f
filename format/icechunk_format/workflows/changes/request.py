"""Defines the request of a change feed, and the columns that describe a change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from icechunk_format.dataset.table.table import Column, Table, check_names

if TYPE_CHECKING:
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.repository import RepositoryReader

#: Columns that describe the change of a row.
CHANGE_COLUMNS: Final = tuple(
    Column(name=name, arrow_type=kind, role="layout", source=name)
    for name, kind in (
        ("_change", pa.string()),
        ("_snapshot_id", pa.string()),
        ("_committed_at", pa.timestamp("us", tz="UTC")),
    )
)
CHANGE_NAMES: Final = frozenset(column.source for column in CHANGE_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """The table and the selection to read from each snapshot.

    Parameters
    ----------
    read
        The options, with the group and the variables of the table.
    time_zone
        Zone of times in the option ``where``; None is UTC.
    """

    repository: RepositoryReader
    read: ReadRequest
    time_zone: str | None = None

    @property
    def only_stored(self) -> bool:
        """True if the table has no rows for missing chunks."""
        read = self.read
        return read.layout == "refs" or read.missing_chunks == "skip" or not read.decoded


def with_change_columns(table: Table) -> Table:
    """Append `CHANGE_COLUMNS` to a table."""
    columns = (*table.columns, *CHANGE_COLUMNS)
    check_names(columns)
    return replace(table, columns=columns)
