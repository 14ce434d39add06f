"""Defines the plan of a sampling, which tasks receive: coordinates, variables and options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from icechunk_format.groups import DimSelection
from icechunk_format.tables.reading import Column, ScanContext

if TYPE_CHECKING:
    from icechunk_format.groups import SnapshotArrays
    from icechunk_format.workflows.sampling.axis import Method
    from icechunk_format.workflows.sampling.labels import Kind

Outside = Literal["null", "error", "drop"]
OUTSIDE: tuple[Outside, ...] = ("null", "error", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisChoice:
    """A one-dimensional coordinate, and the method by which points match it.

    Parameters
    ----------
    point
        Index of the points' column.
    column
        The column of labels; its path is None for a dimension without labels.
    tolerance
        Maximum distance, in units of the labels (microseconds for times), or None.
    period
        The period of a circular axis, or None.
    scale
        Factor from units of the labels to units of the CRS.
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
    """Latitudes and longitudes on the same dimensions, of which points take the nearest cell.

    Parameters
    ----------
    y_point, x_point
        Indices of the points' columns.
    tolerance
        Maximum arc to a cell, in degrees, or None.
    """

    y: Column
    x: Column
    y_point: int
    x_point: int
    dims: tuple[str, ...]
    tolerance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizontal:
    """The points' columns of horizontal coordinates.

    Parameters
    ----------
    y_point, x_point
        Indices of the columns; None if not given.
    points_crs, grid_crs
        WKT of the CRS, if points are transformed.
    is_declared
        True if the user gave ``crs``; values are then not checked for plausibility.
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
    pointed
        Axes of the array that points match, and their dimensions.
    selections
        The positions to take along each other axis.
    kept
        The axes that become arrays, outermost first.
    """

    column: Column
    pointed: Mapping[int, str]
    selections: Mapping[int, DimSelection]
    kept: tuple[int, ...]
    arrow_type: pa.DataType

    @property
    def cells(self) -> int:
        """Number of values for each point."""
        return math.prod(selection.count for selection in self.selections.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLabels:
    """The labels of a dimension that becomes arrays: the same array for each point."""

    column: Column
    size: int
    selection: DimSelection

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column of the result."""
        return nested(self.column.arrow_type, 1)

    def repeated(self, arrays: SnapshotArrays, count: int) -> pa.Array:
        """Return `count` arrays of the selected labels."""
        if self.column.path is None:
            own = pa.array(self.selection.positions(), pa.int64())
        else:
            own = self.column.labels(arrays, self.size, self.selection)
        repeated = own.take(pa.array(np.tile(np.arange(len(own)), count)))
        offsets = np.arange(count + 1, dtype=np.int64) * len(own)
        return pa.ListArray.from_arrays(offsets.astype(np.int32), repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """A plan to sample points; small and picklable.

    Parameters
    ----------
    variables
        The sampled variables in order; points are grouped into tasks by chunks of variable `lead`.
    labels
        The labels of kept dimensions, outermost first.
    skip_missing
        True if values of missing chunks are NULL instead of the fill value.
    """

    context: ScanContext
    points: tuple[str, ...]
    axes: tuple[AxisChoice, ...]
    trees: tuple[TreeChoice, ...]
    variables: tuple[SampledVariable, ...]
    lead: int
    labels: tuple[KeptLabels, ...] = ()
    horizontal: Horizontal | None = None
    outside: Outside = "null"
    skip_missing: bool = False

    @property
    def bytes_of_a_point(self) -> int:
        """The approximate memory for sampling one point."""
        total = 64 * (len(self.axes) + 2 * len(self.trees))
        methods = {axis.dim: axis.method for axis in self.axes}
        for variable in self.variables:
            linear = sum(methods.get(dim) == "linear" for dim in variable.pointed.values())
            total += 48 * variable.cells * 2**linear
        return total + sum(16 * labels.selection.count for labels in self.labels)


def nested(arrow_type: pa.DataType, depth: int) -> pa.DataType:
    """Return the type of nested arrays, `depth` levels deep."""
    for _ in range(depth):
        arrow_type = pa.list_(arrow_type)
    return arrow_type
