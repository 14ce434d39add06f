"""Finds the weights of elements: areas of cells, a variable, or an array with labels.

Rules of this file
------------------
1. An area is that of a cell on a sphere, between the bounds of its latitudes and longitudes, or
   else midway between labels. Cells end at the poles. Only ratios of areas matter, so their unit is
   the square of the radius.
2. Areas are a product of weights along latitude and longitude. A grid with latitudes alone, such as
   that of zonal means, has weights along them.
3. A last longitude that repeats the first, one turn later, has the weight 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.names import unknown
from icechunk_format.tables import Dataset
from icechunk_format.workflows.horizontal.axes import (
    DEGREES_OF_A_CIRCLE,
    bounds_of,
    detected_circle,
    direction_of,
)
from icechunk_format.workflows.reducing.outputs import numbers_of
from icechunk_format.workflows.reducing.run import Factor
from icechunk_format.workflows.zonal.axes import cell_axis

AREA: Final = "area"
_log = logging.getLogger("icechunk_format")

Ranges = Mapping[str, tuple[int, int]]


def factors_of(
    dataset: Dataset, variable: Variable, weights: Any, ranges: Ranges
) -> tuple[Factor, ...]:
    """Return the weights of a variable.

    Parameters
    ----------
    weights
        ``"area"``, the name of a variable, or an array of xarray with labels.
    ranges
        The selected range of each selected dimension.
    """
    if weights is None:
        return ()
    if not isinstance(weights, str):
        return (_of_array(dataset, variable, weights, ranges),)
    named = dataset.variables.get(weights)
    if named is not None:
        _check_dims(variable, weights, named.dims)
        axes = tuple(variable.dims.index(dim) for dim in named.dims)
        return (Factor(axes=axes, path=named.path, numbers=numbers_of(named)),)
    if weights == AREA:
        return _areas(dataset, variable, ranges)
    known = [AREA, *dataset.variables]
    raise InvalidInputError(
        f"weights: {unknown('variable', weights, known)}", option="weights", variable=weights
    )


def note_unweighted(variable: Variable, dataset: Dataset, over: Sequence[str]) -> None:
    """Log that a mean over latitudes counts each of them alike, if the cells differ in area."""
    for dim in over:
        labels = dataset.variables.get(dim)
        if labels is not None and direction_of(labels) == ("y", "geographic"):
            _log.warning(
                "the mean of %r over %r counts every cell alike, although cells are smaller towards"
                " the poles; weights='area' counts each by its area",
                variable.name,
                dim,
            )
            return


def _areas(dataset: Dataset, variable: Variable, ranges: Ranges) -> tuple[Factor, ...]:
    found: dict[str, Factor] = {}
    for axis, dim in enumerate(variable.dims):
        for labels in _along(dataset, dim):
            directed = direction_of(labels)
            if directed is None or directed[0] in found:
                continue
            direction, kind = directed
            if kind == "projected":
                raise InvalidInputError(
                    f"weights='area' is the area of cells between latitudes and longitudes, but"
                    f" {labels.name!r} is a projected coordinate: leave weights= out if cells have"
                    " the same area, or name a variable that holds areas",
                    option="weights",
                    coordinate=labels.name,
                )
            sizes = _heights(dataset, labels) if direction == "y" else _widths(dataset, labels)
            low, high = ranges.get(dim, (0, len(sizes)))
            found[direction] = Factor(axes=(axis,), values=sizes[low:high])
    if "y" not in found:
        raise InvalidInputError(
            f"weights='area' needs latitudes along a dimension of {variable.name!r}"
            f" ({', '.join(variable.dims)}), found by standard_name, units or name: write these"
            " attributes, or name a variable that holds areas",
            option="weights",
            variable=variable.name,
        )
    return tuple(found.values())


def _along(dataset: Dataset, dim: str) -> list[Variable]:
    """Return the one-dimensional coordinates along a dimension, that of its labels first."""
    found = [v for v in dataset.variables.values() if v.dims == (dim,)]
    return sorted(found, key=lambda v: v.name != dim)


def _heights(dataset: Dataset, labels: Variable) -> NDArray[np.float64]:
    cells = cell_axis(
        labels.name,
        _numbers(dataset, labels),
        bounds=_bounds(dataset, labels),
        ends_at_poles=True,
    )
    return np.abs(np.diff(np.sin(np.radians(cells.edges))))


def _widths(dataset: Dataset, labels: Variable) -> NDArray[np.float64]:
    values = _numbers(dataset, labels)
    if len(values) == 1:
        # Every cell has the same width.
        return np.ones(1)
    circle = detected_circle(labels, values)
    period = DEGREES_OF_A_CIRCLE if circle is not None else None
    cells = cell_axis(labels.name, values, bounds=_bounds(dataset, labels), period=period)
    widths = np.abs(np.diff(np.radians(cells.edges)))
    return np.concatenate([widths, np.zeros(len(values) - len(widths))])


def _numbers(dataset: Dataset, variable: Variable) -> NDArray[Any]:
    return numbers_of(variable).decode(dataset.read(variable.name))


def _bounds(dataset: Dataset, labels: Variable) -> NDArray[Any] | None:
    bounds = bounds_of(labels, dataset.variables)
    return None if bounds is None else _numbers(dataset, bounds)


def _of_array(dataset: Dataset, variable: Variable, weights: Any, ranges: Ranges) -> Factor:
    """Return the weights of an array of xarray, aligned by labels."""
    from icechunk_format.workflows.reducing.grouping import decoded_labels, stored_labels

    if not hasattr(weights, "dims") or not hasattr(weights, "reindex"):
        raise InvalidInputError(
            f"weights is of type {type(weights).__name__}; give 'area', the name of a variable, or"
            " an xarray.DataArray",
            option="weights",
        )
    dims = tuple(str(dim) for dim in weights.dims)
    _check_dims(variable, "weights", dims)
    for dim in dims:
        axis = variable.dims.index(dim)
        low, high = ranges.get(dim, (0, variable.shape[axis]))
        labels = dataset.variables.get(dim)
        if dim in weights.coords and labels is not None and labels.dims == (dim,):
            wanted = decoded_labels(labels, stored_labels(dataset, labels, ranges)).values
            missing = ~np.isin(wanted, weights[dim].values)
            if missing.any():
                raise InvalidInputError(
                    f"weights have no label {dim}={wanted[int(np.argmax(missing))]}, which"
                    f" {variable.name!r} has; give a weight for each label",
                    option="weights",
                    dimension=dim,
                )
            weights = weights.sel({dim: wanted})
        elif weights.sizes[dim] != high - low:
            raise InvalidInputError(
                f"weights have {weights.sizes[dim]} elements along {dim!r}, and"
                f" {variable.name!r} has {high - low}",
                option="weights",
                dimension=dim,
            )
    axes = tuple(variable.dims.index(dim) for dim in dims)
    return Factor(axes=axes, values=np.asarray(weights.values, dtype=np.float64))


def _check_dims(variable: Variable, name: str, dims: Sequence[str]) -> None:
    others = [dim for dim in dims if dim not in variable.dims]
    if others:
        raise InvalidInputError(
            f"weights {name!r} have the dimension {others[0]!r}, which {variable.name!r}"
            f" ({', '.join(variable.dims)}) does not have",
            option="weights",
            dimension=others[0],
        )
