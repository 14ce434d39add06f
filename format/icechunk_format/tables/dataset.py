"""Opens a group of a snapshot as a dataset, describes its tables and plans their reads.

Runs on the driver. Reads one snapshot and the labels of dimensions; opens no manifest of a data
variable.

Long because callers hold one class, ``Dataset``, whose public methods are documented here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.grid.cover import Boxes
from icechunk_format.groups import (
    SnapshotArrays,
    SnapshotSource,
    Variable,
    arrays_in,
    named_variables,
)
from icechunk_format.groups.dimension_sets import data_variables, find_group
from icechunk_format.names import choose
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.tables.cf.arrow_values import TimestampType
from icechunk_format.tables.reading.plan import PlanRequest, plan_scan
from icechunk_format.tables.reading.scan import DEFAULT_READ_AHEAD_BYTES, ScanContext, ScanPlan
from icechunk_format.tables.reading.task_cutting import DEFAULT_ROWS_PER_PARTITION
from icechunk_format.tables.selection.select import Selecting, Selection, select
from icechunk_format.tables.table.columns import ColumnFactory, TableBuilder
from icechunk_format.tables.table.table import (
    LAYOUTS,
    WHOLE_LABELS,
    Column,
    Layout,
    Table,
    described_order,
)
from icechunk_format.zarr.zarr_json import parse_group_metadata

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
        An open repository.
    snapshot_id
        The snapshot to read.
    group
        Path of the group. None chooses the root if it has arrays, else the only group with arrays.
    access
        Authorized prefixes and storage options of virtual chunks.

    Returns
    -------
    Dataset
        The group. Data are read later, by its plans or by ``read``.

    Raises
    ------
    NotFoundError
        The snapshot or the group does not exist; the message suggests similar paths.
    InvalidInputError
        ``group`` is None and several groups have arrays, or the path is that of an array.

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
    """A group of a snapshot: its arrays, the tables of them, and plans to read these.

    Made by ``open_dataset``; its constructor is internal.

    Attributes
    ----------
    path
        The path of the group.
    label
        Group and repository, for messages.
    attributes
        The group's attributes.
    variables
        The arrays directly in the group, by name, in the order of their paths.
    source
        The snapshot and the access to its chunks, which tasks take.
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
        self.variables: dict[str, Variable] = arrays_in(snapshot, path)

    @property
    def snapshot_id(self) -> SnapshotId:
        """The id of the snapshot."""
        return self.snapshot.id

    @property
    def data_variables(self) -> list[Variable]:
        """The arrays that are not coordinates of others; all arrays if all are coordinates."""
        return data_variables(list(self.variables.values()), self.attributes)

    def left_out(self, table: Table) -> list[Variable]:
        """Return the data variables that have no column in a table, in stored order."""
        held = {column.path for column in table.columns}
        return [variable for variable in self.data_variables if variable.path not in held]

    def read(
        self, name: str, lower: Sequence[int] | None = None, upper: Sequence[int] | None = None
    ) -> NDArray[Any]:
        """Read the stored values of an array, or of its box ``[lower, upper)``.

        Parameters
        ----------
        name
            Name of an array of this group.
        lower, upper
            First index and end of the box along each axis. None is the whole array.

        Returns
        -------
        numpy.ndarray
            The values as stored: CF attributes are not applied.

        Raises
        ------
        NotFoundError
            The array does not exist.
        UnauthorizedVirtualChunkError
            A virtual chunk is outside of every authorized prefix.
        FormatError
            A chunk or a manifest is damaged.

        Examples
        --------
        >>> dataset.read("latitude")
        >>> dataset.read("air_temperature", (0, 0, 0), (1, 37, 49))
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
        """Describe a table of the group, without reading data variables.

        Parameters
        ----------
        layout
            What a row is: an element (``cells``), a chunk (``chunks``), a chunk reference
            (``refs``), or the statistics of a block (``summary``).
        variables
            Names of arrays. None takes the largest set of dimensions (``cells``, ``summary``),
            all data variables (``chunks``), or all arrays (``refs``).
        coords
            Coordinates that become columns too (``cells``, ``summary``).
        decode_cf
            Decode values by their CF attributes: missing values, packing, times.
        timestamp_type
            ``ntz`` for times without a zone, ``utc`` for timestamps in UTC.
        block
            Elements of a block of ``summary`` by dimension, such as ``{"time": 24}``. Other
            dimensions take the chunks.
        decoded
            Decode the bytes of ``chunks``.

        Returns
        -------
        Table
            Columns, types and metadata; an argument of ``plan``.

        Raises
        ------
        NotFoundError
            A named array does not exist.
        InvalidInputError
            The variables are on several sets of dimensions, names clash, or an option does not
            apply to the layout.
        UnsupportedError
            A selected array uses an unsupported data type, codec or chunk grid.

        Examples
        --------
        >>> dataset.table(variables=["air_temperature"]).arrow_schema
        """
        table = TableBuilder(
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
        return table if layout != "cells" else self._described(table)

    def _described(self, table: Table) -> Table:
        """Add to dimension columns what a writer needs: the group's attributes, the label order.

        Labels of all dimensions are read concurrently: each takes two or three round trips.
        """
        sizes = table.sizes_by_dim

        def describe(column: Column) -> Column:
            if column.role != "dimension":
                return column
            metadata = dict(column.metadata)
            if self.attributes:
                metadata["group_attributes"] = self.attributes
            size = sizes[column.source]
            if column.path is not None and size <= WHOLE_LABELS:
                # A schema does not need the labels; reading rows will raise the error.
                with suppress(IcechunkError):
                    labels = self._arrays().stored_labels(column.path, size, 0, size)
                    metadata["order"] = described_order(labels)
            return replace(column, metadata=metadata)

        with ThreadPoolExecutor(max(1, len(sizes)), "icechunk-labels") as threads:
            return replace(table, columns=tuple(threads.map(describe, table.columns)))

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
        usual_rows: int = DEFAULT_ROWS_PER_PARTITION,
        **selecting: Unpack[Selecting],
    ) -> ScanPlan:
        """Plan a scan of a table.

        Parameters
        ----------
        table
            A table of this dataset.
        selection
            The result of ``choose``. None: resolve the keywords ``selecting``.
        columns
            Columns to produce, in order; only their chunks are fetched. None is all.
        rows_per_partition
            Target number of rows of a task. None is ``usual_rows``, or more if the plan would
            exceed about 100,000 tasks.
        missing_chunks
            ``fill`` reads missing chunks as the fill value, ``skip`` leaves out cells of which no
            variable of the table has a chunk.
        read_ahead_bytes
            Bytes that one task may hold ahead of its consumer.
        only
            Boxes to which the scan is limited, ``int64 (n, ndim, 2)``; None for all. In the layouts
            ``cells`` and ``summary``, boxes of elements of the table under the key ``""``; in the
            others, boxes of (inner) chunks by the path of the array.
        usual_rows
            Target number of rows of a task if ``rows_per_partition`` is None, in the layouts
            ``cells`` and ``summary``.
        **selecting
            ``where``: a SQL condition on the columns of ``cells``; in the layouts ``chunks`` and
            ``refs`` on dimensions only. ``sel``, ``isel``, ``sel_method``: slices by label and by
            index, and how labels match. ``time_zone``: the zone of ``where``, UTC by default.

        Returns
        -------
        ScanPlan
            Context and tasks; ``tables.reading.run.run_scan`` yields the rows of a task.

        Raises
        ------
        InvalidInputError
            A column does not exist, or a condition, selection or number is invalid.

        Examples
        --------
        >>> table = dataset.table()
        >>> plan = dataset.plan(table, where="latitude BETWEEN 35 AND 45")
        >>> [batch for task in plan.tasks for batch in run_scan(plan.context, task)]
        """
        for name, number in (
            ("rowsPerPartition", rows_per_partition),
            ("readAheadBytes", read_ahead_bytes),
        ):
            if number is not None and number < 1:
                raise InvalidInputError(
                    f"{name}={number} must be at least 1", option=name, found=number
                )
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
                usual_rows=usual_rows,
                chunks=chosen.chunks,
            )
        )
        context = ScanContext(
            source=self.source,
            table=_light(projected),
            selections={d: s for d, s in chosen.dims.items() if not s.is_whole},
            residual=chosen.residual,
            chunks=chosen.chunks,
            skip_missing=missing_chunks == "skip",
            read_ahead_bytes=read_ahead_bytes,
        )
        return ScanPlan(context=context, tasks=tasks)

    def choose(self, table: Table, **selecting: Unpack[Selecting]) -> Selection:
        """Resolve ``where``, ``sel`` and ``isel`` into one selection.

        Keywords are those of ``plan``. Reads the labels of the dimensions that they name.

        Returns
        -------
        Selection
            Positions by dimension, and the condition on values that remains.

        Raises
        ------
        InvalidInputError
            A condition or selector is invalid, names an unknown dimension or column, or needs
            values in a layout without values.

        Examples
        --------
        >>> dataset.choose(table, sel="latitude=35:45", isel="time=0:24")
        """
        chosen = select(
            dims=table.sizes_by_dim,
            columns={column.name: column.arrow_type for column in table.value_columns},
            coordinate=lambda dim: self.coordinate(table, dim),
            **selecting,
        )
        if chosen.residual is not None and not LAYOUTS[table.layout].has_values:
            raise InvalidInputError(
                f"where={selecting.get('where')!r} has the condition {chosen.residual.sql}, which "
                f"does not select along one dimension; with layout={table.layout} conditions may "
                "only select along dimensions",
                where=selecting.get("where"),
                layout=table.layout,
            )
        return chosen

    def labels(self, table: Table, dim: str) -> pa.Array:
        """Return the decoded labels of a dimension, or its positions if it has no labels.

        Parameters
        ----------
        table
            A table of this dataset.
        dim
            Name of a dimension of the table.

        Returns
        -------
        pyarrow.Array
            One label per position.

        Raises
        ------
        InvalidInputError
            The array of labels has a different length.
        """
        size = table.sizes[table.dims.index(dim)]
        column = self._dimension_column(table, dim)
        return column.labels(self._arrays(), size)

    def coordinate(self, table: Table, dim: str) -> pa.Array | range:
        """Return the labels of a dimension, or the range of its positions if it has no labels.

        Unlike those of ``labels``, positions of a long dimension are not made.
        """
        if self._dimension_column(table, dim).path is None:
            return range(table.sizes[table.dims.index(dim)])
        return self.labels(table, dim)

    def _dimension_column(self, table: Table, dim: str) -> Column:
        for column in table.value_columns:
            if column.role == "dimension" and column.source == dim:
                return column
        raise InvalidInputError(
            f"the dimension {dim!r} has no labels of equal length in group {self.path}; select on "
            "it with isel",
            dim=dim,
        )

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


def _light(table: Table) -> Table:
    """Drop the metadata of columns, which tasks do not need."""
    return replace(
        table,
        columns=tuple(replace(column, metadata={}) for column in table.columns),
        value_columns=tuple(replace(column, metadata={}) for column in table.value_columns),
    )
