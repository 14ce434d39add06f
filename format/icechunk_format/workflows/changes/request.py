"""Holds the request of a change feed, and the columns that describe a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from icechunk_format.dataset.selection.where.split import Selecting
from icechunk_format.dataset.table.table import Column, Table, check_names

if TYPE_CHECKING:
    from icechunk_format.repository.reader import RepositoryReader

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
    """The table and selection that are read of each snapshot.

    Parameters
    ----------
    table_options
        Keywords of ``Dataset.table`` but for variables and coordinates.
    selection
        Keywords of ``Dataset.choose``.
    plan_options
        Keywords of ``Dataset.plan``: rows of a task, missing chunks, read-ahead.
    deletions
        True if deleted rows are yielded.
    """

    repository: RepositoryReader
    group: str
    layout: Literal["cells", "chunks", "refs"]
    variables: tuple[str, ...] | None = None
    coords: tuple[str, ...] = ()
    table_options: Mapping[str, Any] = field(default_factory=dict)
    selection: Selecting = field(default_factory=Selecting)
    plan_options: Mapping[str, Any] = field(default_factory=dict)
    authorize: tuple[str, ...] = ()
    virtual_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    deletions: bool = True

    @property
    def only_stored(self) -> bool:
        """True if the table has no rows for chunks that are missing."""
        skips = self.plan_options.get("missing_chunks") == "skip"
        return self.layout == "refs" or skips or not self.table_options.get("decoded", True)


def with_change_columns(table: Table) -> Table:
    """Return a table with `CHANGE_COLUMNS` at its end."""
    columns = (*table.columns, *CHANGE_COLUMNS)
    check_names(columns)
    return replace(table, columns=columns)
