"""Holds a planned sampling as values for tasks: coordinates, variables and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from icechunk_format.dataset.reading.scan import ScanContext
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.table.table import Column

if TYPE_CHECKING:
    from icechunk_format.workflows.sampling.axis import Method
    from icechunk_format.workflows.sampling.labels import Kind

Outside = Literal["null", "error", "drop"]
OUTSIDE: tuple[Outside, ...] = ("null", "error", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisChoice:
    """A coordinate with one dimension, and how points choose on it.

    Parameters
    ----------
    name
        The key of the option ``on``.
    point
        The number of the points' column.
    column
        The labels; its path is None where the dimension has none and positions count.
    dim, size
        The dimension.
    kind, calendar
        The kind of the labels.
    method
        How a value finds its label.
    tolerance
        The largest distance, in units of the labels (microseconds for times), or None.
    period
        The length of one turn, where the axis is circular.
    scale
        By what to divide values in the units of a reference system to get those of the labels.
    """

    name: str
    point: int
    column: Column
    dim: str
    size: int
    kind: Kind
    method: Method
    calendar: str | None = None
    tolerance: float | None = None
    period: float | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChoice:
    """Latitudes and longitudes along the same dimensions, of which points choose the nearest.

    Parameters
    ----------
    y, x
        The coordinates.
    y_point, x_point
        The numbers of the points' columns.
    dims, shape
        The dimensions of both.
    tolerance
        The longest arc to a cell, in degrees, or None.
    """

    y: Column
    x: Column
    y_point: int
    x_point: int
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    tolerance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizontal:
    """The points' columns that say where on Earth a point lies.

    Parameters
    ----------
    kind
        What the grid's coordinates are.
    y_point, x_point
        The numbers of the points' columns; None for one that is not given.
    points_crs, grid_crs
        Reference systems as WKT, where points are moved from one to the other; else None.
    is_declared
        Whether the user said in what the points are, so that their values are not doubted.
    """

    kind: str
    y_point: int | None
    x_point: int | None
    points_crs: str | None = None
    grid_crs: str | None = None
    is_declared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledVariable:
    """A variable to sample.

    Parameters
    ----------
    column
        Its name, array and decoder.
    pointed
        Axes of the array that points choose on, and their dimensions.
    selections
        The positions to take along every other axis.
    kept
        The axes that become arrays, the outermost first.
    arrow_type
        The type of the result.
    """

    column: Column
    pointed: Mapping[int, str]
    selections: Mapping[int, DimSelection]
    kept: tuple[int, ...]
    arrow_type: pa.DataType

    @property
    def cells(self) -> int:
        """Number of values that a point takes."""
        count = 1
        for selection in self.selections.values():
            count *= selection.count
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A planned sampling; small and picklable.

    Parameters
    ----------
    context
        How tasks open the arrays.
    points
        The names of the points' columns, for messages.
    axes, trees
        What points choose on.
    variables
        What is sampled; the first one's chunks decide which points are brought together.
    horizontal
        Which columns are places on Earth, or None.
    outside
        What becomes of points that lie outside.
    skip_missing
        Whether values of missing chunks are NULL rather than the fill value.
    """

    context: ScanContext
    points: tuple[str, ...]
    axes: tuple[AxisChoice, ...]
    trees: tuple[TreeChoice, ...]
    variables: tuple[SampledVariable, ...]
    lead: int
    horizontal: Horizontal | None = None
    outside: Outside = "null"
    skip_missing: bool = False

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns that sampling adds."""
        return pa.schema([pa.field(v.column.name, v.arrow_type) for v in self.variables])

    @property
    def bytes_of_a_point(self) -> int:
        """About how many bytes one point needs while it is sampled."""
        total = 64 * (len(self.axes) + 2 * len(self.trees))
        for variable in self.variables:
            methods = {axis.dim: axis.method for axis in self.axes}
            linear = sum(methods.get(dim) == "linear" for dim in variable.pointed.values())
            total += 48 * variable.cells * 2**linear
        return total


def nested(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of arrays in arrays, `depth` deep."""
    for _ in range(depth):
        arrow_type = pa.list_(arrow_type)
    return arrow_type
