"""Samples batches of points, on executors.

Rules of this file
------------------
1. A NULL or NaN in a column of a point gives NULL for every variable with that dimension. A point
   outside gives NULL too, unless ``outside`` overrides it.
2. Corners of an interpolation with weight zero are not read. A missing value at any other corner
   makes the result NULL.
3. Labels and trees are kept in the metadata cache of the process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DecodedChunks, chunk_axes
from icechunk_format.repository.files import Loaded, metadata_cache
from icechunk_format.tables.cf import scattered
from icechunk_format.tables.reading import Column
from icechunk_format.workflows.horizontal.axes import circle_of
from icechunk_format.workflows.sampling.axis import Axis, Positions
from icechunk_format.workflows.sampling.earth import doubt_lengths, moved_points, outside_of_degrees
from icechunk_format.workflows.sampling.gather import Gather, chunk_numbers
from icechunk_format.workflows.sampling.labels import Kind, column_numbers, coordinate_numbers
from icechunk_format.workflows.sampling.sampled import (
    AxisChoice,
    SampledVariable,
    SamplePlan,
    TreeChoice,
)
from icechunk_format.workflows.sampling.sphere import SphereTree

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointPositions:
    """Positions of points along each dimension."""

    count: int
    along: Mapping[str, Positions]
    present: Mapping[str, NDArray[np.bool_]]

    @property
    def outside(self) -> NDArray[np.bool_]:
        """A mask of the points without NULL that are outside along a dimension."""
        every = np.ones(self.count, np.bool_)
        inside = np.ones(self.count, np.bool_)
        for dim, found in self.along.items():
            every &= self.present[dim]
            inside &= found.inside | ~self.present[dim]
        return every & ~inside


class Sampler:
    """Samples points according to a plan."""

    def __init__(self, plan: SamplePlan) -> None:
        self.plan = plan
        self.arrays = plan.context.open_arrays()
        # Half for prefetched chunks, half for chunks that the next points may need.
        self._max_bytes = max(1, plan.context.read_ahead_bytes // 2)
        self._kept = DecodedChunks(self._max_bytes)
        self._gathers: dict[str, Gather] = {}

    # --- positions ------------------------------------------------------------------------------

    def find(self, columns: Sequence[pa.Array]) -> PointPositions:
        """Return the positions of points; columns are in the order of the plan."""
        plan = self.plan
        kinds: dict[int, tuple[Kind, str | None]]
        kinds = {axis.point: (axis.kind, axis.calendar) for axis in plan.axes}
        read = [
            column_numbers(column, *kinds.get(number, ("number", None)))
            for number, column in enumerate(columns)
        ]
        numbers: list[Any] = [values for values, _, _ in read]
        present = [valid for _, valid, _ in read]
        exists = [existing for _, _, existing in read]
        self._onto_grid(numbers, present)
        along: dict[str, Positions] = {}
        by_dim: dict[str, NDArray[np.bool_]] = {}
        for choice in plan.axes:
            if choice.kind == "string":
                positions = self._by_value(choice, numbers[choice.point])
            elif self._is_decimal(choice, columns[choice.point]):
                positions = self._by_value(choice, columns[choice.point])
            else:
                values = numbers[choice.point]
                scaled = values if choice.scale == 1.0 else values / choice.scale
                positions = self.axis(choice).find(scaled)
            existing = exists[choice.point]
            if existing is not None:
                positions = positions.only(existing)
            along[choice.dim], by_dim[choice.dim] = positions, present[choice.point]
        for tree in plan.trees:
            found, inside = self._tree(tree).find(numbers[tree.y_point], numbers[tree.x_point])
            for dim, lower in zip(tree.dims, found, strict=True):
                along[dim] = Positions(lower=lower, inside=inside)
                by_dim[dim] = present[tree.y_point] & present[tree.x_point]
        count = len(columns[0])
        return PointPositions(count=count, along=along, present=by_dim)

    def _onto_grid(self, numbers: list[Any], present: list[NDArray[np.bool_]]) -> None:
        """Transform points to the CRS of the grid; points outside of their CRS become infinite."""
        earth = self.plan.horizontal
        if earth is None:
            return
        y, x = earth.y_point, earth.x_point
        if earth.points_crs is not None:
            assert y is not None
            assert x is not None
            numbers[x], numbers[y] = moved_points(earth, numbers[x], numbers[y])
            present[x] = present[y] = present[x] & present[y]
            return
        names = self.plan.points
        keys = {axis.point: axis for axis in self.plan.axes}
        if earth.kind != "projected":
            for point, is_latitude in ((y, True), (x, False)):
                if point is not None:
                    coordinate = keys[point].name if point in keys else names[point]
                    numbers[point] = outside_of_degrees(
                        names[point], coordinate, numbers[point], is_latitude=is_latitude
                    )
        elif not earth.is_declared and y is not None and x is not None:
            both = present[y] & present[x]
            doubt_lengths(
                [names[y], names[x]],
                [keys[y].name, keys[x].name],
                [numbers[y][both], numbers[x][both]],
                [self.axis(keys[point]).step for point in (y, x)],
            )

    def axis(self, choice: AxisChoice) -> Axis:
        """Return the labels of a coordinate, read once per process."""

        def make() -> tuple[Axis, int]:
            stored = choice.column.labels(self.arrays, choice.size)
            labels, valid = coordinate_numbers(stored, choice.kind, choice.calendar)
            circle = None
            if choice.period is not None:
                circle = circle_of(labels[valid], choice.period)
            axis = Axis(
                labels,
                valid,
                name=choice.name,
                method=choice.method,
                tolerance=choice.tolerance,
                circle=circle,
            )
            return axis, 3 * labels.nbytes + 1000

        return self._cached(("axis", choice.method, choice.tolerance, choice.period), choice, make)

    def _is_decimal(self, choice: AxisChoice, column: pa.Array) -> bool:
        """Return True if numbers must be compared as decimals, which NumPy does not have."""
        earth = self.plan.horizontal
        is_moved = earth is not None and earth.points_crs is not None
        if choice.method != "exact" or choice.period is not None or choice.scale != 1 or is_moved:
            return False
        kinds = (choice.column.arrow_type, column.type)
        is_whole = all(pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in kinds)
        return is_whole and choice.tolerance is None and any(map(pa.types.is_decimal, kinds))

    def _by_value(self, choice: AxisChoice, column: pa.Array) -> Positions:
        labels = self._cached(
            ("values",), choice, lambda: _with_cost(choice.column.labels(self.arrays, choice.size))
        )
        kind = labels.type
        if choice.kind == "number":
            self.axis(choice)  # raises for duplicate labels
            kind = pa.decimal256(76, max(getattr(column.type, "scale", 0), 0))
        found = pc.index_in(column.cast(kind), value_set=labels.cast(kind), skip_nulls=True)
        inside = found.is_valid().to_numpy(zero_copy_only=False)
        lower = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return Positions(lower=lower, inside=inside)

    def _tree(self, choice: TreeChoice) -> SphereTree:
        def make() -> tuple[SphereTree, int]:
            y, x = (self._degrees(column) for column in (choice.y, choice.x))
            tree = SphereTree(y, x, tolerance=choice.tolerance)
            return tree, tree.nbytes + 1000

        key = (choice.y.path, choice.x.path, choice.tolerance)
        return self._kept_in_process(("sphere", *key), make)

    def _degrees(self, column: Column) -> NDArray[np.float64]:
        assert column.decoder is not None
        reader = self.arrays.reader(str(column.path))
        decoded = column.decoder.decode(reader.read_all()).cast(pa.float64())
        degrees: NDArray[np.float64] = decoded.to_numpy(zero_copy_only=False)
        return degrees.reshape(reader.shape)

    def _cached(
        self, key: tuple[Any, ...], choice: AxisChoice, make: Callable[[], tuple[V, int]]
    ) -> V:
        # A dimension without labels has no path, so its key has no array.
        own = (choice.column.path, choice.dim, choice.size, choice.column.arrow_type)
        return self._kept_in_process((*key, *own), make)

    def _kept_in_process(self, key: tuple[Any, ...], make: Callable[[], tuple[V, int]]) -> V:
        context = self.plan.context
        whole = (
            "sampling",
            context.source.chunk_source.cache_scope,
            str(context.source.snapshot_id),
            *key,
        )
        return metadata_cache().get_many([whole], lambda _: [Loaded(*make())])[0]

    # --- values ---------------------------------------------------------------------------------

    def chunk_of(self, points: PointPositions) -> NDArray[np.int64]:
        """Return a number for each point, equal for points in the same chunk of the leading array.

        Points outside of the grid get negative numbers that spread them evenly over tasks.
        """
        variable = self.plan.variables[self.plan.lead]
        axes = chunk_axes(self.arrays.variable(str(variable.column.path)))
        rows = self._rows(variable, points)
        numbers = -1 - np.arange(points.count, dtype=np.int64)
        chunks = [
            axes[axis].chunk_of(points.along[dim].lower[rows])
            for axis, dim in sorted(variable.pointed.items())
        ]
        if chunks:
            counts = [axes[axis].count for axis in sorted(variable.pointed)]
            numbers[rows] = chunk_numbers(chunks, counts)
        return numbers

    def sample(self, points: PointPositions) -> list[pa.Array]:
        """Return the values at points, one array for each variable."""
        return [self._values(variable, points) for variable in self.plan.variables]

    def labels(self, count: int) -> list[pa.Array]:
        """Return the labels of kept dimensions for `count` points: the same array for each."""
        return [kept.repeated(self.arrays, count) for kept in self.plan.labels]

    def check_outside(self, points: PointPositions, columns: Sequence[pa.Array]) -> None:
        """Raise InvalidInputError for the first point that is outside."""
        outside = np.flatnonzero(points.outside)
        if len(outside):
            row = int(outside[0])
            values = ", ".join(
                f"{name}={column[row].as_py()!s}"
                for name, column in zip(self.plan.points, columns, strict=True)
            )
            raise InvalidInputError(
                f"the point {values} is outside of the grid{self._range(points, row)}; choose"
                " outside='null' for a NULL or outside='drop' to leave it out",
                option="outside",
            )

    def _range(self, points: PointPositions, row: int) -> str:
        """Describe the labels of the first axis along which a point is outside."""
        for choice in self.plan.axes:
            if not points.along[choice.dim].inside[row]:
                ends = pc.min_max(choice.column.labels(self.arrays, choice.size)).as_py()
                method = "" if choice.method == "nearest" else f", method {choice.method!r}"
                near = "" if choice.tolerance is None else ", and none is within the tolerance"
                return f": {choice.name!r} ranges from {ends['min']} to {ends['max']}{method}{near}"
        return ", whose nearest cell is too far away"

    @staticmethod
    def _rows(variable: SampledVariable, points: PointPositions) -> NDArray[np.int64]:
        """Return the rows of points that have a value."""
        has = np.ones(points.count, np.bool_)
        for dim in variable.pointed.values():
            has &= points.present[dim] & points.along[dim].inside
        return np.flatnonzero(has)

    def _values(self, variable: SampledVariable, points: PointPositions) -> pa.Array:
        rows = self._rows(variable, points)
        along = {axis: points.along[dim] for axis, dim in variable.pointed.items()}
        linear = [axis for axis, found in along.items() if found.upper is not None]
        if linear:
            values = self._interpolated(variable, along, linear, rows)
        else:
            lower = {axis: found.lower[rows] for axis, found in along.items()}
            values = self._decoded(variable, *self._taken(variable, len(rows), lower))
        return _in_rows(values, variable, rows, points.count)

    def _taken(
        self, variable: SampledVariable, count: int, positions: Mapping[int, NDArray[np.int64]]
    ) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return stored values, with the axes in ``keep`` first, in this order."""
        path = str(variable.column.path)
        if path not in self._gathers:
            reader = self.arrays.reader(path)
            self._gathers[path] = Gather(reader, self._kept, self._max_bytes)
        skip = self.plan.skip_missing
        values, stored = self._gathers[path].take(
            count, positions, variable.selections, with_stored=skip
        )
        selected = sorted(variable.selections)
        order = [selected.index(axis) for axis in variable.kept]
        order += [index for index in range(len(selected)) if index not in order]
        order = [0, *(index + 1 for index in order)]
        return values.transpose(order), None if stored is None else stored.transpose(order)

    def _decoded(
        self, variable: SampledVariable, values: NDArray[Any], stored: NDArray[np.bool_] | None
    ) -> pa.Array:
        assert variable.column.decoder is not None
        decoded = variable.column.decoder.decode(values)
        if stored is not None and not stored.all():
            missing = pa.scalar(None, decoded.type)
            decoded = pc.if_else(pa.array(stored.reshape(-1)), decoded, missing)
        return decoded

    def _interpolated(
        self,
        variable: SampledVariable,
        along: Mapping[int, Positions],
        linear: Sequence[int],
        rows: NDArray[np.int64],
    ) -> pa.Array:
        """Return the weighted means of the corners around points."""
        decoder = variable.column.decoder
        assert decoder is not None
        positions: dict[int, list[NDArray[np.int64]]] = {axis: [] for axis in along}
        weights, owners = [], []
        for uppers in itertools.product((False, True), repeat=len(linear)):
            weight = np.ones(len(rows))
            chosen = {axis: found.lower for axis, found in along.items()}
            for axis, is_upper in zip(linear, uppers, strict=True):
                found = along[axis]
                assert found.upper is not None
                assert found.weight is not None
                weight = weight * (found.weight[rows] if is_upper else 1 - found.weight[rows])
                if is_upper:
                    chosen[axis] = found.upper
            used = np.flatnonzero(weight)
            weights.append(weight[used])
            owners.append(used)
            for axis, lower in chosen.items():
                positions[axis].append(lower[rows[used]])
        weight, owner = np.concatenate(weights), np.concatenate(owners)
        joined = {axis: np.concatenate(parts) for axis, parts in positions.items()}
        stored_values, stored = self._taken(variable, len(owner), joined)
        numbers, present = decoder.decode_numeric(stored_values)
        cells = variable.cells
        values = numbers.astype(np.float64).reshape(len(owner), cells)
        valid = np.ones(values.shape, np.bool_)
        if present is not None:
            valid &= present.reshape(values.shape)
        if stored is not None:
            valid &= stored.reshape(values.shape)
        values = np.where(valid, values, 0.0) * weight[:, None]
        total = np.zeros((len(rows), cells))
        whole = np.ones((len(rows), cells), np.bool_)
        begin = 0
        for used in owners:  # without repeated points in one corner
            total[used] += values[begin : begin + len(used)]
            whole[used] &= valid[begin : begin + len(used)]
            begin += len(used)
        kind = variable.arrow_type
        while pa.types.is_list(kind):
            kind = kind.value_type
        return pa.array(total.reshape(-1), mask=~whole.reshape(-1)).cast(kind)


def _in_rows(
    values: pa.Array, variable: SampledVariable, rows: NDArray[np.int64], count: int
) -> pa.Array:
    """Return values at the rows of their points, as arrays for kept axes, and NULL elsewhere."""
    sizes = [variable.selections[axis].count for axis in variable.kept]
    if not sizes:
        return scattered(values, rows, count)
    for size in reversed(sizes[1:]):
        offsets = np.arange(0, len(values) + 1, size, dtype=np.int32)
        values = pa.ListArray.from_arrays(offsets, values)
    lengths = np.zeros(count, np.int64)
    lengths[rows] = sizes[0]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    absent = np.append(lengths == 0, False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=absent), values)


def _with_cost(labels: pa.Array) -> tuple[pa.Array, int]:
    return labels, labels.nbytes + 500
