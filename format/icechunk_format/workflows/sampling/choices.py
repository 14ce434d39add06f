"""Parses the option ``on``: column, coordinate and method of each key.

Rules of this file
------------------
1. A key is a dimension, with or without labels, or a coordinate with one or two dimensions. Two
   coordinates on the same dimensions are the latitude and longitude of each cell.
2. Longitudes in degrees are circular unless ``circular`` overrides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.names import choose, unknown
from icechunk_format.tables import ColumnFactory
from icechunk_format.workflows.horizontal.axes import direction_of, period_of
from icechunk_format.workflows.sampling.axis import METHODS, Method
from icechunk_format.workflows.sampling.labels import (
    Kind,
    calendar_of,
    check_column,
    kind_of,
    read_tolerance,
)
from icechunk_format.workflows.sampling.sampled import AxisChoice, TreeChoice

if TYPE_CHECKING:
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.tables import Dataset

PointColumns = Mapping[str, "tuple[str, pa.DataType]"]
"""Name and type of the points' column, by key of ``on``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """The arguments of ``icechunk_spark.sample``, and the column names of the points."""

    points: PointColumns
    read: ReadRequest
    existing: Sequence[str] = ()
    method: Any = "nearest"
    tolerance: Mapping[str, Any] | None = None
    outside: str = "null"
    keep: Sequence[str] = ()
    crs: Any = None
    circular: Mapping[str, float | None] | None = None


class Choices:
    """The coordinates by which points select cells.

    Attributes
    ----------
    axes, trees
        One-dimensional coordinates, and pairs of latitude and longitude.
    dims
        The key of ``on`` by chosen dimension.
    """

    def __init__(
        self,
        dataset: Dataset,
        candidates: Sequence[Variable],
        factory: ColumnFactory,
        request: SampleRequest,
    ) -> None:
        points, method = request.points, request.method
        self._variables = dataset.variables
        self._factory = factory
        self._group = dataset.label
        self._sizes = {dim: size for v in candidates for dim, size in v.dimensions}
        self._numbers = {key: number for number, key in enumerate(points)}
        self._tolerance: Mapping[str, Any] = request.tolerance or {}
        self._circular = request.circular
        self.dims: dict[str, str] = {}
        if not points:
            raise InvalidInputError(
                "on is empty: name a column for each dimension that points choose on, as in"
                " on={'latitude': 'lat', 'longitude': 'lon'}",
                option="on",
            )
        for option, given in (("tolerance", self._tolerance), ("circular", self._circular or {})):
            _check_keys(option, given, points)
        if isinstance(method, Mapping):
            _check_keys("method", method, points)
        paired = self._paired(points)
        axes, trees = [], []
        for key, (name, arrow_type) in points.items():
            chosen = _method(method, key)
            if key in paired:
                check_column(name, arrow_type, key, "number")
                if chosen != "nearest":
                    raise InvalidInputError(
                        f"method={chosen!r} does not apply to {key!r}, which has the dimensions"
                        f" ({', '.join(self._variables[key].dims)}): use 'nearest'",
                        coordinate=key,
                    )
                y, x = paired[key]
                if key == y.name:
                    trees.append(self._tree(y, x))
                continue
            axes.append(self._axis(key, name, arrow_type, chosen))
        self.axes, self.trees = tuple(axes), tuple(trees)
        chosen_dims = [(axis.dim, axis.name) for axis in axes]
        chosen_dims += [(dim, tree.y.name) for tree in trees for dim in tree.dims]
        for dim, key in chosen_dims:
            if dim in self.dims:
                raise InvalidInputError(
                    f"on[{self.dims[dim]!r}] and on[{key!r}] both choose on dimension {dim!r};"
                    " leave one of them out",
                    dim=dim,
                )
            self.dims[dim] = key

    def _paired(self, points: PointColumns) -> dict[str, tuple[Variable, Variable]]:
        """Return the keys of latitude-longitude pairs of cells, with both arrays."""
        by_dims: dict[tuple[str, ...], list[Variable]] = {}
        for key in points:
            variable = self._variables.get(key)
            if variable is not None and variable.dims and not variable.is_dimension_coordinate:
                by_dims.setdefault(variable.dims, []).append(variable)
        paired: dict[str, tuple[Variable, Variable]] = {}
        for dims, arrays in by_dims.items():
            by_direction = {
                directed[0]: array
                for array in arrays
                for directed in [direction_of(array)]
                if directed is not None
            }
            if len(arrays) == 2 and len(by_direction) == 2:
                for array in arrays:
                    paired[array.name] = (by_direction["y"], by_direction["x"])
            elif len(dims) > 1:
                names = ", ".join(repr(array.name) for array in arrays)
                raise InvalidInputError(
                    f"on names {names} on the dimensions ({', '.join(dims)}), which need a"
                    " latitude and a longitude: name one of each, with the attribute standard_name"
                    " or units",
                    dims=dims,
                )
        return paired

    def _tree(self, y: Variable, x: Variable) -> TreeChoice:
        tolerance = self._tolerance
        given = [tolerance[name] for name in (y.name, x.name) if name in tolerance]
        arcs = [read_tolerance(value, y.name, "number") for value in given]
        for dim, size in y.dimensions:
            if self._sizes.get(dim) != size:
                raise self._unknown(y.name)
        return TreeChoice(
            y=self._factory.of_variable(y, "coordinate"),
            x=self._factory.of_variable(x, "coordinate"),
            y_point=self._numbers[y.name],
            x_point=self._numbers[x.name],
            dims=y.dims,
            tolerance=min(arcs) if arcs else None,
        )

    def _axis(self, key: str, name: str, arrow_type: pa.DataType, method: Method) -> AxisChoice:
        array = self._variables.get(key)
        dim = key
        if array is not None and len(array.dims) == 1:
            dim = array.dims[0]
        if dim not in self._sizes:
            raise self._unknown(key)
        size = self._sizes[dim]
        if array is not None and not array.is_dimension_coordinate and array.shape == (size,):
            column = self._factory.of_variable(array, "coordinate")
        else:
            column = self._factory.of_dimension(dim, size)
            array = array if column.path is not None else None
        kind = kind_of(column)
        check_column(name, arrow_type, key, kind)
        if kind == "string" and method != "exact":
            raise InvalidInputError(
                f"method={method!r} does not apply to {key!r}, whose labels are strings: give"
                f" method={{{key!r}: 'exact', ...}}",
                coordinate=key,
            )
        read = None
        if key in self._tolerance:
            read = read_tolerance(self._tolerance[key], key, kind)
        return AxisChoice(
            name=key,
            point=self._numbers[key],
            column=column,
            dim=dim,
            size=size,
            kind=kind,
            calendar=calendar_of(column) if kind == "calendar" else None,
            method=method,
            tolerance=read,
            period=_period(key, array, kind, self._circular),
        )

    def _unknown(self, key: str) -> InvalidInputError:
        known = dict.fromkeys(
            [
                *self._sizes,
                *(
                    v.name
                    for v in self._variables.values()
                    if v.dims
                    and len(v.dims) <= 2
                    and all(self._sizes.get(dim) == n for dim, n in v.dimensions)
                    and direction_of(v) is not None
                ),
            ]
        )
        message = unknown("dimension or coordinate", key, known)
        return InvalidInputError(f"on: in {self._group} {message}", coordinate=key)


def _check_keys(option: str, given: Mapping[str, Any], points: PointColumns) -> None:
    for key in given:
        if key not in points:
            raise InvalidInputError(
                f"{option}[{key!r}] does not name a key of on: {', '.join(points)}", option=option
            )


def _method(given: Any, key: str) -> Method:
    method = given.get(key, "nearest") if isinstance(given, Mapping) else given
    return choose(f"method[{key!r}]", method, METHODS)


def _period(
    key: str, array: Variable | None, kind: Kind, circular: Mapping[str, float | None] | None
) -> float | None:
    if circular is None:
        return None if array is None or kind != "number" else period_of(array)
    period = circular.get(key)
    if not period:
        return None
    if kind != "number" or not 0 < float(period) < float("inf"):
        raise InvalidInputError(
            f"circular[{key!r}]={period!r} must be a period, such as 360, of a"
            " coordinate whose labels are numbers",
            option="circular",
        )
    return float(period)
