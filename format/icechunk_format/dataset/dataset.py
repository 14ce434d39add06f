"""A group of a snapshot as a dataset: what tables it holds, and plans to read them.

Everything here runs on the driver. It reads one snapshot and the labels of the dimensions that a
condition names; it never opens a manifest of a data variable.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from icechunk_format.arrays.zarr_json import parse_group_metadata
from icechunk_format.dataset import predicates
from icechunk_format.dataset.block_option import parse_block
from icechunk_format.dataset.chunks_layout import check_chunk_rows
from icechunk_format.dataset.dimension_sets import (
    DimensionSet,
    choose,
    group_by_dimensions,
    named_variables,
)
from icechunk_format.dataset.planning import PlanRequest, plan_tasks
from icechunk_format.dataset.scan import DEFAULT_READ_AHEAD_BYTES, ScanContext, ScanPlan
from icechunk_format.dataset.scan_arrays import ScanArrays
from icechunk_format.dataset.selection import DimSelection
from icechunk_format.dataset.table import LAYOUTS, Column, Layout, Table
from icechunk_format.dataset.table_columns import (
    CHUNKS_FIELDS,
    REFS_FIELDS,
    ColumnFactory,
    layout_columns,
    summary_columns,
)
from icechunk_format.dataset.variable import Variable, coordinate_names
from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.spec.node_path import ROOT, parent, parse_node_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from icechunk_format.dataset.arrow_values import TimestampType
    from icechunk_format.repository.chunks import ChunkSource
    from icechunk_format.repository.repository import Repository
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.node_path import NodePath
    from icechunk_format.spec.snapshot import Snapshot
    from icechunk_format.storage.location import Location

MissingChunks = Literal["fill", "skip"]

_MOST_GROUPS_SHOWN = 20


def open_dataset(
    repository: Repository,
    snapshot_id: SnapshotId,
    group: str | None = None,
    *,
    authorize: Sequence[str] = (),
    virtual_options: Mapping[str, str] | None = None,
) -> Dataset:
    """Open a group of a snapshot.

    Parameters
    ----------
    repository
        The repository.
    snapshot_id
        The version to read.
    group
        Path of the group. None chooses the root if it has arrays, or else the only group that
        has.
    authorize
        URL prefixes from which virtual chunks may be fetched.
    virtual_options
        Storage options for virtual chunks.

    Raises
    ------
    NotFoundError
        There is no such group; the message lists the nearest.
    InvalidInputError
        No group is given and several have arrays, or the path is that of an array.
    """
    snapshot = repository.snapshot(snapshot_id)
    source = repository.chunk_source(authorized=authorize, virtual_options=virtual_options)
    path = _find_group(snapshot, group)
    return Dataset(
        location=repository.location,
        snapshot_id=snapshot_id,
        snapshot=snapshot,
        path=path,
        chunk_source=source,
    )


class Dataset:
    """A group: its arrays, and the tables that can be made of them.

    Use ``open_dataset``.

    Attributes
    ----------
    path
        The group.
    snapshot_id
        The version.
    attributes
        The group's attributes.
    variables
        The arrays directly in the group, by name, in the order of their paths.
    """

    def __init__(
        self,
        *,
        location: Location,
        snapshot_id: SnapshotId,
        snapshot: Snapshot,
        path: NodePath,
        chunk_source: ChunkSource,
    ) -> None:
        self._location = location
        self._snapshot = snapshot
        self._chunk_source = chunk_source
        self.snapshot_id = snapshot_id
        self.path = str(path)
        node = snapshot.node(path)
        self.attributes: dict[str, Any] = (
            {}
            if node is None
            else dict(parse_group_metadata(node.user_data, node_path=path).attributes)
        )
        arrays = [Variable(n) for n in snapshot.children(path) if n.array is not None]
        self.variables: dict[str, Variable] = {variable.name: variable for variable in arrays}

    def __repr__(self) -> str:
        return f"<Dataset {self.path} of {self.snapshot_id}: {', '.join(self.variables)}>"

    @property
    def data_variables(self) -> list[Variable]:
        """The arrays that are not coordinates of others; all of them, where all are."""
        coordinates = coordinate_names(self.variables.values(), self.attributes)
        data = [
            variable
            for variable in self.variables.values()
            if not variable.is_dimension_coordinate and variable.name not in coordinates
        ]
        return data or list(self.variables.values())

    def dimension_sets(self) -> list[DimensionSet]:
        """Return the sets of dimensions of the data variables, the largest first."""
        return group_by_dimensions(self.data_variables)

    def read(
        self, name: str, lower: Sequence[int] | None = None, upper: Sequence[int] | None = None
    ) -> NDArray[Any]:
        """Read stored values of an array, or of the box ``[lower, upper)`` of it.

        Raises
        ------
        NotFoundError
            There is no such array.
        """
        [variable] = named_variables([name], self.variables, self.path)
        reader = self._arrays(_no_table()).reader(variable.path)
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
        block: str | None = None,
        decoded: bool = True,
        case_sensitive: bool = False,
    ) -> Table:
        """Describe a table of the group.

        Parameters
        ----------
        layout
            What a row is.
        variables
            Names of arrays. None takes the largest set of dimensions (``cells``, ``summary``),
            all data variables (``chunks``), or all arrays (``refs``).
        coords
            Coordinates that become columns too (``cells``, ``summary``).
        decode_cf
            Whether CF attributes are obeyed.
        timestamp_type
            ``ntz`` for times without a zone, ``utc`` for instants.
        block
            Elements of a block of ``summary``, like ``"time=24,latitude=10"``; chunks otherwise.
        decoded
            Whether ``chunks`` are decoded.
        case_sensitive
            Whether columns may differ in case alone.

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
        if layout not in LAYOUTS:
            raise InvalidInputError(
                f"layout={layout!r} is not known; choose {', '.join(LAYOUTS)}",
                found=layout,
                allowed=LAYOUTS,
            )
        if block is not None and layout != "summary":
            raise InvalidInputError(
                f"block={block!r} goes with layout=summary, not with layout={layout}",
                block=block,
                layout=layout,
            )
        if not decoded and layout != "chunks":
            raise InvalidInputError(
                f"decoded=false goes with layout=chunks, not with layout={layout}; "
                "for stored values use decodeCf=false",
                layout=layout,
            )
        factory = ColumnFactory(
            self.variables,
            decode_cf=decode_cf,
            timestamp_type=timestamp_type,
            named=variables is not None,
        )
        if layout in ("chunks", "refs"):
            if coords:
                raise InvalidInputError(
                    f"coords goes with layout=cells; with layout={layout} name the arrays with "
                    "the option variables",
                    layout=layout,
                )
            return self._array_table(layout, variables, factory, decoded=decoded)
        return self._cell_table(layout, variables, coords, factory, block, case_sensitive)

    def plan(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        sel: str | None = None,
        isel: str | None = None,
        sel_method: str | None = None,
        rows_per_partition: int | None = None,
        missing_chunks: MissingChunks = "fill",
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
    ) -> ScanPlan:
        """Plan a scan of a table.

        Parameters
        ----------
        table
            A table of this dataset.
        columns
            The columns to produce, in order; only what they need is fetched. None is all.
        where
            A SQL condition on the columns of ``cells``; in the layouts ``chunks`` and ``refs`` on
            dimensions only.
        sel, isel, sel_method
            Slices by label and by index, and how labels match.
        rows_per_partition
            Wanted rows of a task. None is 4,000,000, and more where that would make more than
            about 100,000 tasks.
        missing_chunks
            ``fill`` reads missing chunks as the fill value, ``skip`` leaves out cells of which no
            variable of the table has a chunk.
        read_ahead_bytes
            Bytes that one task may hold ahead of its consumer.

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
        if missing_chunks not in ("fill", "skip"):
            raise InvalidInputError(
                f"missingChunks={missing_chunks!r} is not known; choose fill or skip",
                found=missing_chunks,
            )
        projected = table if columns is None else table.select(columns)
        chosen = predicates.select(
            dims=dict(zip(table.dims, table.sizes, strict=True)),
            columns={column.name: column.arrow_type for column in table.value_columns},
            coordinate=lambda dim: self._labels(table, dim),
            where=where,
            sel=sel,
            isel=isel,
            sel_method=sel_method,
        )
        if chosen.residual is not None and table.layout in ("chunks", "refs"):
            raise InvalidInputError(
                f"where={where!r} has the condition {chosen.residual.sql}, which is not about one "
                f"dimension; with layout={table.layout} a condition may only select along "
                "dimensions",
                where=where,
                layout=table.layout,
            )
        variables = tuple(self._by_path(path) for path in table.arrays)
        tasks = plan_tasks(
            PlanRequest(
                table=table,
                variables=variables,
                selections=chosen.dims,
                manifest_files=self._snapshot.manifest_files,
                rows_per_partition=rows_per_partition,
                skip_missing=missing_chunks == "skip",
            )
        )
        context = ScanContext(
            location=self._location,
            snapshot_id=self.snapshot_id,
            chunk_source=self._chunk_source,
            table=_light(projected),
            selections={d: s for d, s in chosen.dims.items() if not s.is_whole},
            residual=chosen.residual,
            skip_missing=missing_chunks == "skip",
            read_ahead_bytes=read_ahead_bytes,
        )
        return ScanPlan(context=context, tasks=tasks)

    def _cell_table(
        self,
        layout: Layout,
        names: Sequence[str] | None,
        coords: Sequence[str],
        factory: ColumnFactory,
        block: str | None,
        case_sensitive: bool,
    ) -> Table:
        candidates = (
            self.data_variables
            if names is None
            else named_variables(names, self.variables, self.path)
        )
        chosen, variables = choose(candidates, named=names is not None, group_path=self.path)
        asked = named_variables(coords, self.variables, self.path)
        columns = factory.of_cells(chosen, variables, asked, case_sensitive=case_sensitive)
        paths = tuple(variable.path for variable in variables)
        table = Table(
            layout=layout,
            dims=chosen.dims,
            sizes=chosen.sizes,
            columns=columns,
            arrays=paths,
            value_columns=columns,
        )
        if layout == "cells":
            return table
        return replace(
            table,
            columns=summary_columns(columns, case_sensitive=case_sensitive),
            block=parse_block(block or "", chosen.dims),
        )

    def _array_table(
        self,
        layout: Layout,
        names: Sequence[str] | None,
        factory: ColumnFactory,
        *,
        decoded: bool,
    ) -> Table:
        if names is not None:
            arrays = named_variables(names, self.variables, self.path)
        else:
            arrays = self.data_variables if layout == "chunks" else list(self.variables.values())
        if layout == "chunks":
            for variable in arrays:
                try:
                    variable.codecs  # noqa: B018 - raises where a codec is missing
                    check_chunk_rows(variable, decoded=decoded)
                except UnsupportedError as error:
                    if names is not None:
                        raise
                    others = ",".join(v.name for v in arrays if v is not variable)
                    raise UnsupportedError(
                        f"{error.message}\nTo read the other arrays, name them: variables={others}",
                        **error.facts,
                    ) from error
        sizes: dict[str, set[int]] = {}
        for variable in arrays:
            for dim, size in variable.dimensions:
                sizes.setdefault(dim, set()).add(size)
        # A dimension of two sizes cannot be selected on; its arrays are still listed.
        single = {dim: min(found) for dim, found in sizes.items() if len(found) == 1}
        fields = CHUNKS_FIELDS if layout == "chunks" else REFS_FIELDS
        return Table(
            layout=layout,
            dims=tuple(single),
            sizes=tuple(single.values()),
            columns=layout_columns(fields),
            arrays=tuple(variable.path for variable in arrays),
            value_columns=tuple(self._label_columns(single, factory)),
            decoded=decoded,
        )

    def _label_columns(self, sizes: Mapping[str, int], factory: ColumnFactory) -> list[Column]:
        columns = []
        for dim, size in sizes.items():
            labels = self.variables.get(dim)
            fits = labels is None or not labels.is_dimension_coordinate or labels.shape == (size,)
            if fits:
                columns.append(factory.of_dimension(dim, size))
        return columns

    def _labels(self, table: Table, dim: str) -> pa.Array:
        for column in table.value_columns:
            if column.role == "dimension" and column.source == dim:
                size = table.sizes[table.dims.index(dim)]
                return self._arrays(table).labels(column, size, DimSelection.whole(size))
        raise InvalidInputError(
            f"the dimension {dim!r} has no labels of its length in group {self.path}; select on "
            "it with isel",
            dim=dim,
        )

    def _arrays(self, table: Table) -> ScanArrays:
        return ScanArrays(
            ScanContext(
                location=self._location,
                snapshot_id=self.snapshot_id,
                chunk_source=self._chunk_source,
                table=table,
                selections={},
            )
        )

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
    """Drop what only describes columns, so that a task ships without it."""
    return replace(
        table,
        columns=tuple(replace(column, metadata={}) for column in table.columns),
        value_columns=tuple(replace(column, metadata={}) for column in table.value_columns),
    )


def _find_group(snapshot: Snapshot, group: str | None) -> NodePath:
    with_arrays = sorted(
        {
            found
            for node in snapshot.nodes
            if node.array is not None and (found := parent(node.path)) is not None
        }
    )
    if group is None:
        if ROOT in with_arrays or not with_arrays:
            return ROOT
        if len(with_arrays) == 1:
            return with_arrays[0]
        shown = ", ".join(with_arrays[:_MOST_GROUPS_SHOWN])
        more = len(with_arrays) - _MOST_GROUPS_SHOWN
        raise InvalidInputError(
            f"{len(with_arrays)} groups have arrays: {shown}"
            + (f" and {more} more" if more > 0 else "")
            + f"; choose one with the option group, for instance group={with_arrays[0]}",
            groups=tuple(with_arrays),
        )
    path = parse_node_path("/" + group.strip("/"))
    node = snapshot.node(path)
    if node is not None and node.array is None:
        return path
    if node is not None:
        above = parent(path) or ROOT
        raise InvalidInputError(
            f"{path} is an array; read it with group={above} and "
            f"variables={path.rpartition('/')[2]}",
            group=path,
        )
    groups = [str(n.path) for n in snapshot.nodes if n.array is None]
    near = get_close_matches(path, groups, n=_MOST_GROUPS_SHOWN, cutoff=0.0)
    raise NotFoundError(
        f"there is no group {path}; there are {', '.join(near) or 'no groups'}",
        kind="node",
        name=str(path),
        existing=tuple(near),
    )
