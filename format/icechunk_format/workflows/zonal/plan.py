"""Plans zonal statistics: the grid, the variables, and the tasks.

Tasks are divided in two ways. A *column* is one chunk of the horizontal grid, along all other
dimensions. A *split* is a box of the other dimensions, cut at chunk edges, so that a grid with few
columns has enough tasks.

Rules of this file
------------------
1. The driver reads one snapshot, and the labels and bounds of the two horizontal axes. A plan does
   not grow with the number of chunks or zones.
2. A context holds plain values, since it is pickled into every task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.grid.axes import ChunkAxis
from icechunk_format.groups import DimSelection, Variable, cut_axes, leading_variable
from icechunk_format.names import choose, unknown
from icechunk_format.tables.cf import VariableDecoder, attribute_decoder, is_number
from icechunk_format.tables.reading import Column, ScanContext
from icechunk_format.workflows.horizontal.axes import (
    HorizontalGrid,
    bounds_of,
    detected_circle,
    horizontal_grid,
)
from icechunk_format.workflows.horizontal.reference_systems import (
    WGS_84,
    axis_scale,
    given_crs,
    grid_crs,
)
from icechunk_format.workflows.zonal.axes import CellAxis, cell_axis
from icechunk_format.workflows.zonal.quantiles import column_suffix, part_steps, quantile_of
from icechunk_format.workflows.zonal.statistics import check_statistics, parts_of

if TYPE_CHECKING:
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.tables import Dataset

Coverage = Literal["fraction", "center", "touched"]
OnInvalid = Literal["error", "null"]
Antimeridian = Literal["error", "split", "keep"]

#: The weights by spherical area of cells, which are not a variable.
AREA: Final = "area"
# A task reads about this many cells, or fewer so that all cores are used.
_MOST_CELLS_OF_A_TASK: Final = 32 << 20
_FEWEST_CELLS_OF_A_TASK: Final = 4 << 20
_TASKS_OF_A_CORE: Final = 4
# Limit of labels, since edges and labels are pickled into every task.
_MOST_LABELS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonalRequest:
    """The arguments of ``icechunk_spark.zonal``, and the approximate number of parallel tasks.

    Raises InvalidInputError if an argument is not one of the allowed values.
    """

    statistics: tuple[str, ...]
    coverage: Coverage = "fraction"
    weights: str | None = None
    crs: Any = None
    on_invalid: OnInvalid = "error"
    antimeridian: Antimeridian = "error"
    cores: int = 1

    def __post_init__(self) -> None:
        check_statistics(self.statistics)
        choose("coverage", self.coverage, get_args(Coverage))
        choose("on_invalid", self.on_invalid, get_args(OnInvalid))
        choose("antimeridian", self.antimeridian, get_args(Antimeridian))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZonalContext:
    """The values that all tasks share; small and picklable.

    Parameters
    ----------
    y, x
        The cells of the horizontal grid.
    horizontal
        Indices of the dimensions of y and x in the table.
    columns
        The chunk edges along y and x.
    others
        Indices of the other dimensions of the table, in order.
    splits
        For each other dimension, the ranges ``(start, stop)`` of the splits that have selected
        positions.
    is_geographic
        True if coordinates are longitudes and latitudes.
    projection
        The CRS of zones and of the grid as WKT, and the scales of the grid's labels along x and y;
        None if zones are in coordinates of the grid.
    """

    scan: ScanContext
    request: ZonalRequest
    y: CellAxis
    x: CellAxis
    horizontal: tuple[int, int]
    columns: tuple[ChunkAxis, ChunkAxis]
    others: tuple[int, ...]
    splits: tuple[tuple[tuple[int, int], ...], ...]
    period: float | None
    is_geographic: bool
    projection: tuple[str, str, tuple[float, float]] | None = None
    weights: Column | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the statistics."""
        return parts_of(self.request.statistics)

    @property
    def shares(self) -> dict[str, float]:
        """The quantiles among the statistics by name, from 0 to 1."""
        found = ((name, quantile_of(name)) for name in self.request.statistics)
        return {name: share for name, share in found if share is not None}

    def part_steps(self, split: int) -> tuple[int, ...]:
        """Return the number of steps along each dimension whose quantiles are computed together."""
        cells = len(self.variables) * math.prod(self.selection(p).count for p in self.horizontal)
        return part_steps([s.count for s in self.split_selections(split)], cells)

    @property
    def variables(self) -> list[Column]:
        """The variables of the statistics, in order."""
        return [c for c in self.scan.table.columns if c.role != "dimension"]

    @property
    def split_counts(self) -> tuple[int, ...]:
        """Number of ranges of each other dimension."""
        return tuple(len(ranges) for ranges in self.splits)

    @property
    def split_count(self) -> int:
        """Number of splits; 0 if nothing is selected."""
        return math.prod(self.split_counts)

    @property
    def column_count(self) -> int:
        """Number of columns of the grid."""
        return self.columns[0].count * self.columns[1].count

    def selection(self, dim: int) -> DimSelection:
        """Return the selected positions of a dimension of the table."""
        return self.scan.table.selections(self.scan.selections)[dim]

    def split_ranges(self, split: int) -> list[tuple[int, int]]:
        """Return the range ``(start, stop)`` of a split along each other dimension."""
        at = np.unravel_index(split, self.split_counts)
        return [ranges[int(number)] for ranges, number in zip(self.splits, at, strict=True)]

    def split_selections(self, split: int) -> list[DimSelection]:
        """Return the selected positions of a split along each other dimension."""
        return [
            self.selection(dim).within(start, stop)
            for dim, (start, stop) in zip(self.others, self.split_ranges(split), strict=True)
        ]

    def result_fields(self) -> list[pa.Field]:
        """Return the fields of the result after the keys: other dimensions, then statistics."""
        table = self.scan.table
        by_dim = {c.source: c for c in table.columns if c.role == "dimension"}
        others = [table.dims[dim] for dim in self.others]
        fields = [pa.field(name, by_dim[name].arrow_type) for name in others]
        for column in self.variables:
            for statistic in self.request.statistics:
                kind = value_type(column) if statistic in ("min", "max") else pa.float64()
                fields.append(pa.field(f"{column.name}_{column_suffix(statistic)}", kind))
        return fields


def value_type(column: Column) -> pa.DataType:
    """Return the type of minimum and maximum: the variable's, or DOUBLE for wide types."""
    kind = column.arrow_type
    narrow = pa.types.is_float32(kind) or (pa.types.is_integer(kind) and kind.bit_width <= 32)
    return kind if narrow else pa.float64()


def plan_zonal(
    dataset: Dataset, request: ZonalRequest, read: ReadRequest, *, time_zone: str | None = None
) -> ZonalContext:
    """Plan zonal statistics; selections and conditions must be on dimensions."""
    # Not for executors, which import this module for its context.
    from icechunk_format.tables import planning, requested_table, selecting

    table = requested_table(read, dataset)
    summed = [c for c in table.columns if c.role != "dimension"]
    for column in summed:
        _check_numbers(column)
    first = dataset.variables[summed[0].source]
    grid = _grid_of(first, dataset)
    for column in summed:
        missing = [dim for dim in grid.dims if dim not in column.dims]
        if missing:
            raise InvalidInputError(
                f"variable {column.name!r} has no dimension {' and no '.join(missing)} of the"
                " grid: name the variables of the grid with variables=",
                variable=column.name,
            )
    scan = dataset.plan(table, **selecting(read, time_zone), **planning(read)).context
    if scan.residual is not None:
        raise InvalidInputError(
            f"where={read.where!r} has the condition {scan.residual.sql}, which does not select"
            " along one dimension: zonal takes conditions on dimensions only; mask cells with"
            " weights=",
            option="where",
        )
    y, x, period = _cells(dataset, grid)
    arrays = [dataset.variables[path.rpartition("/")[2]] for path in table.arrays]
    axes = cut_axes(
        table.sizes_by_dim, arrays, leading_variable(arrays, dataset.snapshot.manifest_files)
    )
    horizontal = (table.dims.index(grid.dims[0]), table.dims.index(grid.dims[1]))
    others = tuple(dim for dim in range(len(table.dims)) if dim not in horizontal)
    context = ZonalContext(
        scan=scan,
        request=request,
        y=y,
        x=x,
        horizontal=horizontal,
        columns=(axes[horizontal[0]], axes[horizontal[1]]),
        others=others,
        splits=(),
        period=period,
        is_geographic=grid.kind == "geographic",
        projection=_projection(first, dataset, grid, request.crs),
        weights=_weights(dataset, request.weights, grid),
    )
    if request.weights == AREA and context.weights is None and grid.kind == "projected":
        raise InvalidInputError(
            "weights='area' is the area of cells between latitudes and longitudes, but the grid"
            f" has {y.name} and {x.name}, on which covered fractions are projected areas: leave"
            " weights= out, or name a variable that holds areas",
            option="weights",
        )
    return replace(context, splits=_cut_splits(context, [axes[dim] for dim in others]))


def _check_numbers(column: Column) -> None:
    kind = column.arrow_type
    if not is_number(kind):
        raise InvalidInputError(
            f"variable {column.name!r} holds {kind} and not numbers: name others with variables=",
            variable=column.name,
        )


def _grid_of(variable: Variable, dataset: Dataset) -> HorizontalGrid:
    grid = horizontal_grid(variable, dataset.variables)
    if grid is None:
        raise InvalidInputError(
            f"variable {variable.name!r} of dimensions ({', '.join(variable.dims)}) has no"
            " coordinates that are a latitude and a longitude, or projection_y_coordinate and"
            " projection_x_coordinate, by standard_name, units or name: name variables of a grid"
            " with variables=, or write these attributes",
            variable=variable.name,
        )
    if grid.is_curvilinear:
        raise UnsupportedError(
            f"variable {variable.name!r} is on the curvilinear grid ({grid.y.name},"
            f" {grid.x.name}), whose cells are not rectangles; zonal needs coordinates with one"
            " dimension each, as of a regular or a projected grid",
            variable=variable.name,
        )
    return grid


def _cells(dataset: Dataset, grid: HorizontalGrid) -> tuple[CellAxis, CellAxis, float | None]:
    y, x = (_labels(dataset, coordinate) for coordinate in (grid.y, grid.x))
    circle = detected_circle(grid.x, x)
    period = None if circle is None else circle.period
    ends_at_poles = grid.kind != "projected"
    return (
        cell_axis(grid.y.name, y, bounds=_bounds(dataset, grid.y), ends_at_poles=ends_at_poles),
        cell_axis(grid.x.name, x, bounds=_bounds(dataset, grid.x), period=period),
        period,
    )


def _labels(dataset: Dataset, coordinate: Variable) -> NDArray[Any]:
    if coordinate.shape[0] > _MOST_LABELS:
        raise UnsupportedError(
            f"coordinate {coordinate.name!r} has {coordinate.shape[0]:,} labels; zonal takes"
            f" {_MOST_LABELS:,} at most",
            coordinate=coordinate.name,
        )
    return _decoded(dataset, coordinate)


def _bounds(dataset: Dataset, coordinate: Variable) -> NDArray[Any] | None:
    bounds = bounds_of(coordinate, dataset.variables)
    return None if bounds is None else _decoded(dataset, bounds)


def _decoded(dataset: Dataset, variable: Variable) -> NDArray[Any]:
    stored = dataset.read(variable.name)
    data_type = variable.metadata.data_type
    decoder = attribute_decoder(variable.attributes, data_type, name=variable.name)
    return numbers_or_nan(decoder, stored)


def numbers_or_nan(decoder: VariableDecoder, stored: NDArray[Any]) -> NDArray[Any]:
    """Decode stored values to numbers, with NaN for missing values."""
    values, valid = decoder.decode_numeric(stored)
    return values if valid is None else np.where(valid, values, np.nan)


def _projection(
    variable: Variable, dataset: Dataset, grid: HorizontalGrid, crs: Any
) -> tuple[str, str, tuple[float, float]] | None:
    if crs is None:
        if grid.kind != "geographic":
            raise InvalidInputError(
                f"variable {variable.name!r} is on the {grid.kind} grid ({grid.y.name},"
                f" {grid.x.name}): give the CRS of the zones, such as"
                " crs='EPSG:4326', or crs='grid' if they are in the grid's own coordinates",
                option="crs",
            )
        return None
    if isinstance(crs, str) and crs == "grid":
        return None
    source = given_crs(crs)
    is_geographic = grid.kind == "geographic"
    # Longitudes and latitudes are not transformed to the ellipsoid of the grid.
    if is_geographic and source.equals(given_crs(WGS_84), ignore_axis_order=True):
        return None
    target = grid_crs(variable, dataset.variables, grid)
    if is_geographic and source.equals(target, ignore_axis_order=True):
        return None
    x, y = (axis_scale(axis, variable, dataset.variables) for axis in (grid.x, grid.y))
    return source.to_wkt(), target.to_wkt(), (x, y)


def _weights(dataset: Dataset, name: str | None, grid: HorizontalGrid) -> Column | None:
    """Return the column of weights; an array named ``area`` takes precedence over cell areas."""
    if name is None or (name == AREA and AREA not in dataset.variables):
        return None
    if name not in dataset.variables:
        found = unknown("array", name, [AREA, *dataset.variables])
        told = f"weights: {found}; {AREA!r} is the area of cells"
        raise NotFoundError(told, option="weights", name=name)
    table = dataset.table("cells", variables=[name])
    [column] = [c for c in table.columns if c.source == name]
    _check_numbers(column)
    foreign = [dim for dim in column.dims if dim not in grid.dims]
    if foreign or not column.dims:
        raise InvalidInputError(
            f"weights={name!r} has the dimensions ({', '.join(column.dims)}), but weights have only"
            f" {grid.dims[0]} and {grid.dims[1]}",
            option="weights",
        )
    return column


def _cut_splits(
    context: ZonalContext, axes: Sequence[ChunkAxis]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Cut the other dimensions at chunk edges, starting with the first dimension."""
    numbers = [
        context.selection(dim).chunks(axis) for dim, axis in zip(context.others, axes, strict=True)
    ]
    steps = math.prod(context.selection(dim).count for dim in context.others)
    cells = context.y.size * context.x.size * steps
    of_a_task = min(
        max(cells // (_TASKS_OF_A_CORE * context.request.cores), _FEWEST_CELLS_OF_A_TASK),
        _MOST_CELLS_OF_A_TASK,
    )
    # For quantiles, one task holds the values of a zone from all columns.
    columns = 1 if context.shares else max(1, context.column_count)
    wanted = -(-cells // columns // of_a_task)
    splits = []
    for found, axis in zip(numbers, axes, strict=True):
        runs = np.array_split(found, max(1, min(wanted, len(found))))
        wanted = -(-wanted // max(1, len(runs)))
        ends = [np.array([run[0], run[-1] + 1], dtype=np.int64) for run in runs if len(run)]
        splits.append(tuple(tuple(axis.start_of(end).tolist()) for end in ends))
    return tuple(splits)
