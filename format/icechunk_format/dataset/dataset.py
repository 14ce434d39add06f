"""Opens a group of a snapshot as a dataset: describes its tables and plans their reads.

All of this runs on the driver. It reads one snapshot and labels of dimensions, and opens no
manifest of a data variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import parse_group_metadata
from icechunk_format.dataset.cf.arrow_values import TimestampType
from icechunk_format.dataset.reading.arrays.opened import (
    WHOLE_LABELS,
    SnapshotArrays,
    SnapshotSource,
)
from icechunk_format.dataset.reading.plan import PlanRequest, plan_scan
from icechunk_format.dataset.reading.scan import DEFAULT_READ_AHEAD_BYTES, ScanContext, ScanPlan
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.selection.where.condition import Selection
from icechunk_format.dataset.selection.where.split import Selecting, select
from icechunk_format.dataset.table.builder import TableBuilder
from icechunk_format.dataset.table.columns import ColumnFactory
from icechunk_format.dataset.table.dimension_sets import (
    data_variables,
    named_variables,
)
from icechunk_format.dataset.table.group_choice import find_group
from icechunk_format.dataset.table.layouts import LAYOUTS, Layout
from icechunk_format.dataset.table.table import Column, Table, described_order
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.display.lazily import shown_by
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.grid.cover import Boxes
from icechunk_format.names import choose
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.node_path import NodePath
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess

if TYPE_CHECKING:
    from icechunk_format.repository import RepositoryReader

MissingChunks = Literal["fill", "skip"]


def open_dataset(
    repository: RepositoryReader,
    snapshot_id: SnapshotId,
    group: str | None = None,
    access: VirtualAccess = NO_ACCESS,
) -> Dataset:
    """Open a group of a snapshot.

    Parameters
    ----------
    repository
        The repository.
    snapshot_id
        The snapshot to read.
    group
        Path of the group. None chooses the root if it has arrays, or else the only group that
        has.
    access
        To virtual chunks.

    Raises
    ------
    NotFoundError
        The group does not exist; the message lists the nearest.
    InvalidInputError
        No group is given and several have arrays, or the path is that of an array.

    Examples
    --------
    >>> dataset = open_dataset(repository, repository.resolve(branch="main"), "/surface")
    >>> dataset.table().arrow_schema
    """
    snapshot = repository.snapshot(snapshot_id)
    source = repository.chunk_source(authorized=access.authorized, virtual_options=access.options)
    path = find_group(snapshot, group, label=str(repository.location))
    return Dataset(snapshot, path, source)


@shown_by("groups.dataset")
class Dataset:
    """A group: its arrays, and the tables that can be made of them; see ``open_dataset``.

    Attributes
    ----------
    path, label
        The group, and the group with its repository, for messages.
    attributes
        The group's attributes.
    variables
        The arrays directly in the group, by name, in the order of their paths.
    source
        The snapshot, for tasks.
    """

    def __init__(self, snapshot: Snapshot, path: NodePath, chunk_source: ChunkSource) -> None:
        self.snapshot = snapshot
        self.source = SnapshotSource(chunk_source, snapshot.id)
        self.path = str(path)
        # For messages: a user may read several repositories at once.
        self.label = f"{path} of {chunk_source.location}"
        node = snapshot.node(path)
        self.attributes: dict[str, Any] = (
            {}
            if node is None
            else dict(parse_group_metadata(node.user_data, node_path=path).attributes)
        )
        arrays = [Variable(n) for n in snapshot.children(path) if n.array is not None]
        self.variables: dict[str, Variable] = {variable.name: variable for variable in arrays}

    @property
    def snapshot_id(self) -> SnapshotId:
        """The snapshot."""
        return self.snapshot.id

    @property
    def data_variables(self) -> list[Variable]:
        """The arrays that are not coordinates of others; all arrays if all are coordinates."""
        return data_variables(list(self.variables.values()), self.attributes)

    def left_out(self, table: Table) -> list[Variable]:
        """Return the data variables that a table has no column for, in stored order."""
        held = {column.path for column in table.columns}
        return [variable for variable in self.data_variables if variable.path not in held]

    def read(
        self, name: str, lower: Sequence[int] | None = None, upper: Sequence[int] | None = None
    ) -> NDArray[Any]:
        """Read stored values of an array, or of its box ``[lower, upper)``.

        Raises
        ------
        NotFoundError
            The array does not exist.
        """
        [variable] = named_variables([name], self.variables, self.label)
        reader = self._arrays().reader(variable.path)
        return reader.read_box(
            [0] * len(variable.shape) if lower is None else lower,
            variable.shape if upper is None else upper,
        )

    def table(
        self,
        layout: Layout = "cells",
        *,
        variables: Sequence[str] | None = None,
        coords: Sequence[str] = (),
        decode_cf: bool = True,
        timestamp_type: TimestampType = "ntz",
        block: Mapping[str, int] | None = None,
        decoded: bool = True,
    ) -> Table:
        """Describe a table of the group.

        Parameters
        ----------
        layout
            Meaning of a row.
        variables
            Names of arrays. None takes the largest set of dimensions (``cells``, ``summary``),
            all data variables (``chunks``), or all arrays (``refs``).
        coords
            Coordinates that become columns too (``cells``, ``summary``).
        decode_cf
            Whether CF attributes are obeyed.
        timestamp_type
            ``ntz`` for times without a zone, ``utc`` for timestamps in UTC.
        block
            Elements of a block of ``summary``, like ``{"time": 24}``; chunks otherwise.
        decoded
            Whether ``chunks`` are decoded.

        Raises
        ------
        NotFoundError
            A named array does not exist.
        InvalidInputError
            The variables have no one set of dimensions, names clash, or an option does not go
            with the layout.
        UnsupportedError
            A selected array uses a data type, codec or grid that is not known here.
        """
        table = TableBuilder(
            variables=self.variables,
            data_variables=self.data_variables,
            label=self.label,
            factory=ColumnFactory(
                self.variables,
                decode_cf=decode_cf,
                timestamp_type=timestamp_type,
                named=variables is not None,
            ),
        ).build(
            layout,
            names=variables,
            coords=coords,
            block=block,
            decoded=decoded,
        )
        return table if layout != "cells" else self._with_order(self._with_attributes(table))

    def _with_attributes(self, table: Table) -> Table:
        """Add the group's attributes to each dimension column, so that a writer can copy them."""
        if not self.attributes:
            return table
        columns = tuple(
            replace(column, metadata={**column.metadata, "group_attributes": self.attributes})
            if column.role == "dimension"
            else column
            for column in table.columns
        )
        return replace(table, columns=columns)

    def _with_order(self, table: Table) -> Table:
        """Describe the order of labels, so that a table can be written back in it.

        Dimensions are read concurrently: each one takes two or three round trips.
        """
        sizes = dict(zip(table.dims, table.sizes, strict=True))
        labelled = [
            column
            for column in table.columns
            if column.role == "dimension"
            and column.path is not None
            and sizes.get(column.source, 0) <= WHOLE_LABELS
        ]
        if not labelled:
            return table

        def describe(column: Column) -> tuple[str, Column]:
            path, size = str(column.path), sizes.get(column.source, 0)
            try:
                labels = self._arrays().stored_labels(path, size, 0, size)
            except IcechunkError:
                # A schema does not need the labels; reading rows will raise the error.
                return column.name, column
            order = {"order": described_order(labels)}
            return column.name, replace(column, metadata={**column.metadata, **order})

        with ThreadPoolExecutor(len(labelled), thread_name_prefix="icechunk-labels") as threads:
            described = dict(threads.map(describe, labelled))
        columns = tuple(described.get(column.name, column) for column in table.columns)
        return replace(table, columns=columns)

    def plan(
        self,
        table: Table,
        selection: Selection | None = None,
        *,
        columns: Sequence[str] | None = None,
        rows_per_partition: int | None = None,
        missing_chunks: MissingChunks = "fill",
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
        only: Mapping[str, Boxes] | None = None,
        **selecting: Unpack[Selecting],
    ) -> ScanPlan:
        """Plan a scan of a table.

        Parameters
        ----------
        table
            A table of this dataset.
        selection
            The result of ``choose``. None resolves ``selecting``.
        columns
            The columns to produce, in order; only their chunks are fetched. None is all.
        rows_per_partition
            Wanted rows of a task. None is 4,000,000, and more where that would make more than
            about 100,000 tasks.
        missing_chunks
            ``fill`` reads missing chunks as the fill value, ``skip`` leaves out cells of which no
            variable of the table has a chunk.
        read_ahead_bytes
            Bytes that one task may hold ahead of its consumer.
        only
            Boxes to which the scan is limited, ``int64 (n, ndim, 2)``; None for all. In the layouts
            ``cells`` and ``summary``, boxes of elements of the table under the key ``""``; in the
            others, boxes of (inner) chunks by the path of the array.
        **selecting
            ``where``: a SQL condition on the columns of ``cells``; in the layouts ``chunks`` and
            ``refs`` on dimensions only. ``sel``, ``isel``, ``sel_method``: slices by label and by
            index, and how labels match. ``time_zone``: the zone of ``where``, UTC by default.

        Raises
        ------
        InvalidInputError
            A column, condition or number cannot be used.
        """
        for name, number in (
            ("rowsPerPartition", rows_per_partition),
            ("readAheadBytes", read_ahead_bytes),
        ):
            if number is not None and number < 1:
                raise InvalidInputError(f"{name}={number} must be at least 1", found=number)
        choose("missingChunks", missing_chunks, ("fill", "skip"))
        chosen = self.choose(table, **selecting) if selection is None else selection
        projected = table if columns is None else table.select(columns)
        variables = tuple(self._by_path(path) for path in table.arrays)
        tasks = plan_scan(
            PlanRequest(
                table=table,
                variables=variables,
                selections=chosen.dims,
                manifest_files=self.snapshot.manifest_files,
                rows_per_partition=rows_per_partition,
                skip_missing=missing_chunks == "skip",
                only=only,
            )
        )
        context = self.context(
            table=_light(projected),
            selections={d: s for d, s in chosen.dims.items() if not s.is_whole},
            residual=chosen.residual,
            skip_missing=missing_chunks == "skip",
            read_ahead_bytes=read_ahead_bytes,
        )
        return ScanPlan(context=context, tasks=tasks)

    def choose(self, table: Table, **selecting: Unpack[Selecting]) -> Selection:
        """Resolve ``where``, ``sel`` and ``isel`` into one selection; see ``plan``."""
        chosen = select(
            dims=dict(zip(table.dims, table.sizes, strict=True)),
            columns={column.name: column.arrow_type for column in table.value_columns},
            coordinate=lambda dim: self.labels(table, dim),
            **selecting,
        )
        if chosen.residual is not None and not LAYOUTS[table.layout].has_values:
            raise InvalidInputError(
                f"where={selecting.get('where')!r} has the condition {chosen.residual.sql}, which "
                f"is not about one dimension; with layout={table.layout} a condition may only "
                "select along dimensions",
                where=selecting.get("where"),
                layout=table.layout,
            )
        return chosen

    def labels(self, table: Table, dim: str) -> pa.Array:
        """Return the decoded labels of a dimension, or its positions if it has no labels.

        Raises
        ------
        InvalidInputError
            The array of its labels has another length.
        """
        for column in table.value_columns:
            if column.role == "dimension" and column.source == dim:
                size = table.sizes[table.dims.index(dim)]
                return self._arrays().labels(column, size, DimSelection.whole(size))
        raise InvalidInputError(
            f"the dimension {dim!r} has no labels of its length in group {self.path}; select on "
            "it with isel",
            dim=dim,
        )

    def context(self, **given: Any) -> ScanContext:
        """Return what tasks need to open this dataset's arrays; ``given`` are further fields."""
        return ScanContext(source=self.source, **{"table": _no_table(), "selections": {}, **given})

    def _arrays(self) -> SnapshotArrays:
        return SnapshotArrays(self.source.chunk_source, self.snapshot)

    def _by_path(self, path: str) -> Variable:
        for variable in self.variables.values():
            if variable.path == path:
                return variable
        raise InvalidInputError(
            f"the table has the array {path}, which is not in group {self.path}; make the table "
            "from the dataset that plans it",
            array=path,
        )


def _no_table() -> Table:
    return Table(layout="cells", dims=(), sizes=(), columns=(), arrays=(), value_columns=())


def _light(table: Table) -> Table:
    """Drop the metadata of columns, which tasks do not need."""
    return replace(
        table,
        columns=tuple(replace(column, metadata={}) for column in table.columns),
        value_columns=tuple(replace(column, metadata={}) for column in table.value_columns),
    )
