"""Defines the context and the tasks of a read of a metadata table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icechunk_format.dataset.reading.opened import pinned_snapshot
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.repository import RepositoryReader
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.node_path import NodePath, is_below
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage

Row = dict[str, Any]
Part = tuple[int, int, int]
"""A node number, and the range ``[start, stop)`` of the array's manifests."""
Task = tuple[Part, ...]
"""Ranges of manifests; empty if a single task reads everything."""
RowsOf = Callable[["InspectionContext", Task], Iterator[Row]]
"""Yields the rows of a task."""
BatchesOf = Callable[["InspectionContext", Task], Iterator[pa.RecordBatch]]
"""Yields the rows of a task in batches with the columns of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionContext:
    """Values that all tasks of one read share; small and picklable.

    Parameters
    ----------
    table
        Name of the metadata table.
    snapshot_id
        The snapshot; the newer one of ``changes``. None for a table about the repository.
    older_id
        The older snapshot of ``changes``.
    group
        Limits the table to nodes at or below this path; None is all nodes.
    """

    location: Location
    table: str
    columns: tuple[str, ...]
    snapshot_id: SnapshotId | None = None
    older_id: SnapshotId | None = None
    group: str | None = None

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of every batch."""
        whole = METADATA_TABLES[self.table].arrow_schema
        return pa.schema([whole.field(name) for name in self.columns])

    @property
    def version(self) -> SnapshotId:
        """The snapshot that the table describes."""
        assert self.snapshot_id is not None, "plan_inspection requires the snapshot"
        return self.snapshot_id

    def repository(self) -> RepositoryReader:
        """Return the repository, opened in this process."""
        return RepositoryReader.open(self.location)

    def opened(self) -> tuple[Storage, Snapshot]:
        """Return the repository's storage, and the loaded snapshot."""
        storage = open_storage(self.location)
        return storage, pinned_snapshot(storage, self.version)

    def nodes(self, snapshot: Snapshot) -> list[int]:
        """Return the node numbers at or below the group."""
        if self.group is None:
            return list(range(len(snapshot.nodes)))
        group = NodePath(self.group)
        return [
            number
            for number, node in enumerate(snapshot.nodes)
            if node.path == group or is_below(node.path, group)
        ]

    def arrays(self, snapshot: Snapshot) -> list[int]:
        """Return the node numbers of arrays at or below the group."""
        return [n for n in self.nodes(snapshot) if snapshot.nodes[n].array is not None]
