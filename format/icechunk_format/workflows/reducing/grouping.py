"""Finds the groups of a dimension as xarray does: by accessor, frequency, coordinate or bins.

Long because each kind of group has its own labels and errors.

Rules of this file
------------------
1. xarray finds the groups, from labels alone, so that names, types and order of groups are those of
   its groups, bins, resampled times and coarse dimensions, in every calendar.
2. Bins are stored as midpoints with bounds, since Zarr has no intervals.
"""

from __future__ import annotations

import base64
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable
from icechunk_format.names import shown
from icechunk_format.tables import Dataset
from icechunk_format.workflows.horizontal.axes import string_attribute

if TYPE_CHECKING:
    import xarray as xr

By = str | int | Mapping[str, Any]

_ACCESSOR: Final = re.compile(r"([^.]+)\.([a-z_]+)")
_FREQUENCY: Final = re.compile(r"[0-9]*[A-Za-z]+(-[A-Za-z]+)?")
# Parts of times that xarray's accessor computes and that a group may be.
_PARTS: Final = (
    "year", "month", "day", "hour", "minute", "second", "season", "quarter", "dayofyear",
    "dayofweek", "weekday", "weekofyear", "week", "days_in_month", "daysinmonth", "date", "time",
)  # fmt: skip
_HOW: Final = (
    "an accessor of times such as 'time.month', a frequency such as '1D' or 'MS', the name of a"
    " coordinate along it, a number of elements, or {'name': [edges of bins]}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelArray:
    """A coordinate of the result, as stored."""

    name: str
    dims: tuple[str, ...]
    values: NDArray[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grouping:
    """The groups of a dimension.

    Parameters
    ----------
    dim, name
        The dimension of the source, and that of the result.
    codes
        The group of each element of the dimension, or -1 for none.
    size
        Number of groups.
    """

    dim: str
    name: str
    codes: NDArray[np.int64]
    size: int
    labels: tuple[LabelArray, ...]


def grouping_of(
    dataset: Dataset,
    by: By,
    over: Sequence[str],
    sizes: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int]],
) -> Grouping:
    """Return the groups along one of the dimensions `over`.

    Parameters
    ----------
    sizes, ranges
        Lengths of the selected parts of dimensions, and the range of elements of those that are
        selected.
    """
    labels = _Labels(dataset, sizes, ranges)
    if isinstance(by, Mapping):
        if len(by) != 1:
            raise _refused(by, over, f"names {len(by)} dimensions; group along one")
        [(name, given)] = by.items()
        if isinstance(given, int):
            return _coarse(labels, _one(name, over, by), given, by)
        if isinstance(given, str):
            return _resampled(labels, _one(name, over, by), given, by)
        return _binned(labels, name, over, given, by)
    if isinstance(by, int):
        return _coarse(labels, _only(over, by), by, by)
    accessor = _ACCESSOR.fullmatch(by)
    if accessor is not None and by not in dataset.variables:
        return _by_part(labels, accessor[1], accessor[2], over, by)
    if by in dataset.variables:
        return _unique(labels.coordinate(by, over, by), by, by)
    if _FREQUENCY.fullmatch(by):
        times = [dim for dim in over if _has_times(dataset, dim)]
        return _resampled(labels, _only(times if len(times) == 1 else over, by), by, by)
    raise _refused(by, over, "is not known")


class _Labels:
    """Reads labels as xarray decodes them."""

    def __init__(
        self,
        dataset: Dataset,
        sizes: Mapping[str, int],
        ranges: Mapping[str, tuple[int, int]],
    ) -> None:
        self.dataset, self.sizes, self._ranges = dataset, sizes, ranges
        self.xarray = _xarray()

    def coordinate(self, name: str, over: Sequence[str], by: By) -> xr.DataArray:
        """Return a coordinate along one of the reduced dimensions, decoded."""
        variable = self.dataset.variables.get(name)
        if variable is None:
            raise _refused(by, over, f"names {name!r}, which {self.dataset.label} does not have")
        if len(variable.dims) != 1 or variable.dims[0] not in over:
            along = ", ".join(variable.dims) or "no dimension"
            raise _refused(by, over, f"names {name!r}, which is along {along}")
        return decoded_labels(variable, stored_labels(self.dataset, variable, self._ranges))


def _xarray() -> Any:
    try:
        import xarray
        import xarray.groupers
    except ImportError as error:
        raise UnsupportedError(
            "groups are computed by xarray: pip install 'icechunk-spark[xarray]'", package="xarray"
        ) from error
    return xarray


def stored_labels(
    dataset: Dataset, variable: Variable, ranges: Mapping[str, tuple[int, int]]
) -> NDArray[Any]:
    """Return the stored values of the selected part of a variable."""
    lower, upper = (
        [
            ranges.get(dim, (0, size))[end]
            for dim, size in zip(variable.dims, variable.shape, strict=True)
        ]
        for end in (0, 1)
    )
    return dataset.read(variable.name, lower, upper)


def decoded_labels(variable: Variable, values: NDArray[Any]) -> xr.DataArray:
    """Return stored labels as xarray decodes them, with their attributes."""
    attributes = dict(variable.attributes)
    fill = attributes.get("_FillValue")
    if isinstance(fill, str) and values.dtype.kind in "fc":
        attributes["_FillValue"] = struct.unpack("<d", base64.b64decode(fill)[:8])[0]
    attributes.pop("bounds", None)
    xarray = _xarray()
    found: xr.DataArray
    dataset = xarray.Dataset({variable.name: (variable.dims, values, attributes)})
    try:
        found = xarray.decode_cf(dataset)[variable.name]
    except (ValueError, ImportError) as error:
        problem = " ".join(str(error).split())
        raise InvalidInputError(
            f"the labels of {variable.name!r} cannot be decoded: {problem:.300}",
            variable=variable.name,
        ) from error
    found.attrs.pop("coordinates", None)
    return found


def _by_part(labels: _Labels, name: str, part: str, over: Sequence[str], by: By) -> Grouping:
    if part not in _PARTS:
        raise _refused(by, over, f"has no part {part!r}; parts are {', '.join(_PARTS)}")
    times = labels.coordinate(name, over, by)
    _check_times(times, by)
    try:
        values = (
            times.dt.isocalendar().week
            if part in ("week", "weekofyear")
            else (getattr(times.dt, part))
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise _refused(by, over, f"cannot be computed: {error}") from error
    return _unique(values, part, by)


def _unique(values: xr.DataArray, name: str, by: By) -> Grouping:
    xarray = _xarray()
    values = values.rename(name)
    if name in values.dims:
        # Labels of a dimension are groups of their own, of equal labels.
        values = xarray.DataArray(values.values, dims=values.dims, name=name, attrs=values.attrs)
    found = xarray.groupers.UniqueGrouper().factorize(values)
    unique = np.asarray(found.full_index.values)
    return Grouping(
        dim=str(values.dims[0]),
        name=name,
        codes=_codes(found),
        size=len(unique),
        labels=(_label_array(name, name, unique, values.attrs, values.encoding, by),),
    )


def _resampled(labels: _Labels, dim: str, frequency: str, by: By) -> Grouping:
    xarray = labels.xarray
    times = labels.coordinate(dim, [dim], by)
    _check_times(times, by)
    try:
        indexed = times.assign_coords({dim: times.values})
        found = xarray.groupers.TimeResampler(frequency).factorize(indexed)
    except (
        ValueError, TypeError, AttributeError, KeyError, NotImplementedError, ZeroDivisionError,
    ) as error:  # fmt: skip
        raise InvalidInputError(
            f"by={by!r}: {dim!r} cannot be grouped by {frequency!r}{_reason(dim, frequency, error)}"
            f"; give {_HOW}",
            option="by",
            found=frequency,
        ) from error
    index = np.asarray(found.full_index.values)
    return Grouping(
        dim=dim,
        name=dim,
        codes=_codes(found),
        size=len(index),
        labels=(_label_array(dim, dim, index, times.attrs, times.encoding, by),),
    )


def _reason(dim: str, frequency: str, error: Exception) -> str:
    """Return why times cannot be grouped by a frequency."""
    if frequency.lower() in _PARTS:
        return f", which is a part of times: did you mean '{dim}.{frequency.lower()}'"
    problem = " ".join(str(error).split())
    # pandas quotes the value and its own errors several times.
    is_unknown = "frequency" in problem.lower() or isinstance(error, ZeroDivisionError)
    return (
        ", which is neither a coordinate nor a frequency"
        if is_unknown
        else f", which is no coordinate either: {problem:.300}"
    )


def _binned(labels: _Labels, name: str, over: Sequence[str], edges: Any, by: By) -> Grouping:
    xarray = labels.xarray
    values = labels.coordinate(name, over, by)
    if not isinstance(edges, Sequence) or len(edges) < 2:
        raise _refused(by, over, "has no list of at least two edges of bins")
    kind = values.dtype if values.dtype.kind in "Mm" else None
    try:
        edges = np.asarray(edges, dtype=kind)
        increases = bool((edges[1:] > edges[:-1]).all())
    except (ValueError, TypeError) as error:
        raise _refused(by, over, f"has edges of bins that are not {values.dtype}") from error
    if not increases:
        raise _refused(by, over, "has edges of bins that do not increase")
    try:
        found = xarray.groupers.BinGrouper(bins=edges).factorize(
            xarray.DataArray(values.values, dims=values.dims, name=name, attrs=values.attrs)
        )
    except (ValueError, TypeError) as error:
        low, high = (shown(str(end)) for end in (values.values.min(), values.values.max()))
        raise _refused(
            by, over, f"has edges of bins that hold no label of {name!r}, from {low} to {high}"
        ) from error
    dim = f"{name}_bins"
    bounds = np.stack([np.asarray(found.full_index.left), np.asarray(found.full_index.right)], 1)
    middle = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) / 2
    attributes = {**values.attrs, "bounds": f"{dim}_bounds"}
    held = _label_array(dim, dim, middle, attributes, values.encoding, by)
    encoding = {
        key: held.attributes[key] for key in ("units", "calendar") if key in held.attributes
    }
    ends = _label_array(f"{dim}_bounds", dim, bounds, {}, encoding, by)
    return Grouping(
        dim=str(values.dims[0]),
        name=dim,
        codes=_codes(found),
        size=len(bounds),
        labels=(held, ends),
    )


def _coarse(labels: _Labels, dim: str, factor: int, by: By) -> Grouping:
    size = labels.sizes[dim]
    if isinstance(factor, bool) or factor < 1 or size % factor:
        raise InvalidInputError(
            f"by={by!r}: {dim!r} has {size} elements, which groups of {factor} do not divide; give"
            " a divisor, or select a part with isel=",
            option="by",
            dimension=dim,
        )
    codes = np.arange(size, dtype=np.int64) // factor
    found: tuple[LabelArray, ...] = ()
    variable = labels.dataset.variables.get(dim)
    if variable is not None and variable.dims == (dim,):
        values = labels.coordinate(dim, [dim], by)
        try:
            middle = values.coarsen({dim: factor}).mean()
        except TypeError as error:
            raise _refused(by, [dim], f"has labels without a mean: {error}") from error
        found = (_label_array(dim, dim, middle.values, values.attrs, values.encoding, by),)
    return Grouping(dim=dim, name=dim, codes=codes, size=size // factor, labels=found)


def _codes(found: Any) -> NDArray[np.int64]:
    return np.asarray(found.codes.values, dtype=np.int64)


def _label_array(
    name: str,
    dim: str,
    values: NDArray[Any],
    attributes: Mapping[str, Any],
    encoding: Mapping[str, Any],
    by: By,
) -> LabelArray:
    """Return labels as they are stored: times in the units of the source."""
    xarray = _xarray()
    dims = (dim,) if values.ndim == 1 else (dim, "bounds")
    variable = xarray.Variable(dims, values, dict(attributes))
    if values.dtype.kind in "mM" or (values.dtype.hasobject and hasattr(values[0], "calendar")):
        wanted = ("units", "calendar")
        variable.encoding = {key: encoding[key] for key in wanted if key in encoding}
    elif values.dtype.hasobject and not all(isinstance(one, str) for one in values.tolist()):
        raise InvalidInputError(
            f"by={by!r} has groups of type {type(values[0]).__name__}, which cannot be stored;"
            f" group by another part",
            option="by",
        )
    with warnings.catch_warnings():
        # Means of times may lie between two whole units, and are stored as floats of the same unit.
        warnings.filterwarnings("ignore", "Times can't be serialized faithfully", UserWarning)
        stored = xarray.conventions.encode_cf_variable(variable, name=name)
    held = np.asarray(stored.values)
    if held.dtype.kind in "UT":
        held = held.astype(object)
    plain = {key: value for key, value in stored.attrs.items() if key != "_FillValue"}
    return LabelArray(name=name, dims=dims, values=held, attributes=plain)


def _check_times(times: xr.DataArray, by: By) -> None:
    is_time = times.dtype.kind == "M" or (
        times.dtype.hasobject and times.size and hasattr(times.values[0], "calendar")
    )
    if not is_time:
        raise InvalidInputError(
            f"by={by!r} needs times, but {times.name!r} holds {times.dtype}; give {_HOW}",
            option="by",
            variable=str(times.name),
        )


def _has_times(dataset: Dataset, dim: str) -> bool:
    labels = dataset.variables.get(dim)
    return labels is not None and "since" in string_attribute(labels, "units")


def _only(over: Sequence[str], by: By) -> str:
    if len(over) != 1:
        raise InvalidInputError(
            f"by={by!r} does not name its dimension, and over has {', '.join(over)}: give"
            f" by={{{over[0]!r}: {by!r}}}",
            option="by",
        )
    return over[0]


def _one(name: str, over: Sequence[str], by: By) -> str:
    if name not in over:
        raise _refused(by, over, f"names {name!r}, which is not among them")
    return name


def _refused(by: By, over: Sequence[str], problem: str) -> InvalidInputError:
    dims = ", ".join(over)
    return InvalidInputError(
        f"by={shown(by)} {problem}; to group along {dims}, give {_HOW}", option="by"
    )
