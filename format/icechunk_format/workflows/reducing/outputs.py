"""Derives the arrays of a result: names, data types, attributes and documents, as xarray's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.node_path import NodePath
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import ArrayTarget, path_in
from icechunk_format.names import shown
from icechunk_format.tables.cf import attribute_decoder
from icechunk_format.workflows.horizontal.axes import string_attribute
from icechunk_format.workflows.reducing.run import Output, Values
from icechunk_format.workflows.reducing.statistics import (
    OF_ONE_DIMENSION,
    PARTS_OF,
    WEIGHTED,
    Kind,
)
from icechunk_format.workflows.zonal.quantiles import column_suffix, meant_by, quantile_of
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

Names = str | Sequence[str]

_OF_TIMES: Final = ("count", "min", "max", "first", "last", "mean", "idxmin", "idxmax")
_MISSING: Final = ("_FillValue", "missing_value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A statistic of a variable: its name, the quantile, and the name of the result."""

    statistic: str
    share: float | None
    name: str


def wanted_statistics(
    statistics: Mapping[str, Names] | Names, names: Iterable[str]
) -> dict[str, list[Wanted]]:
    """Return the statistics of each variable.

    Parameters
    ----------
    names
        The variables if `statistics` does not name them.
    """
    if not isinstance(statistics, Mapping):
        statistics = dict.fromkeys(names, statistics)
    found: dict[str, list[Wanted]] = {}
    seen: set[str] = set()
    for name, given in statistics.items():
        several = not isinstance(given, str)
        chosen: list[str] = [given] if isinstance(given, str) else list(given)
        if not chosen:
            raise InvalidInputError(
                f"statistics names none for {name!r}; choose of {_known()}", option="statistics"
            )
        for statistic in chosen:
            share = None if statistic in PARTS_OF else _share(statistic)
            result = f"{name}_{column_suffix(statistic)}" if several else name
            if result in seen:
                raise InvalidInputError(
                    f"statistics gives two results the name {result!r}; leave one out",
                    option="statistics",
                    variable=result,
                )
            seen.add(result)
            found.setdefault(name, []).append(Wanted(statistic=statistic, share=share, name=result))
    return found


def _share(statistic: object) -> float | None:
    share = quantile_of(statistic) if isinstance(statistic, str) else None
    if share is None:
        hint = meant_by(statistic, PARTS_OF)
        raise InvalidInputError(
            f"statistics has {shown(statistic)}; {hint}choose of {_known()}",
            option="statistics",
            found=shown(statistic),
        )
    return share


def _known() -> str:
    return ", ".join([*PARTS_OF, "median", "quantile(q=0.9)"])


def check_wanted(
    variable: Variable,
    wanted: Sequence[Wanted],
    over: Sequence[str],
    *,
    grouped: bool,
    weighted: bool,
    skipna: bool | None,
    ddof: int,
) -> None:
    """Raise InvalidInputError for statistics that a reduction cannot have."""
    for one in wanted:
        statistic, problem = one.statistic, None
        if statistic in OF_ONE_DIMENSION and len(over) > 1:
            problem = f"needs one dimension, but over has {', '.join(over)}"
        elif statistic.startswith("arg") and grouped:
            problem = f"is not known for groups; use idx{statistic[3:]}, which gives labels"
        elif statistic.startswith(("arg", "idx")) and skipna is False:
            problem = "ignores missing values; leave skipna out"
        elif statistic.startswith("idx") and over[0] not in (variable.dims or ()):
            problem = f"needs the dimension {over[0]}"
        elif weighted and one.share is not None:
            problem = "is not built with weights; leave weights out, or compute it with map_blocks"
        elif weighted and ddof and statistic in ("std", "var"):
            problem = "has no ddof with weights, as in xarray; leave ddof out"
        if problem is not None:
            raise InvalidInputError(
                f"statistic {statistic!r} of {variable.name!r} {problem}",
                option="statistics",
                variable=variable.name,
                statistic=statistic,
            )


def is_time(variable: Variable) -> bool:
    """Return True if a variable holds times, which are reduced as they are stored."""
    is_number = variable.metadata.data_type.numpy.kind in "iuf"
    return is_number and "since" in string_attribute(variable, "units")


def numbers_of(variable: Variable) -> Values:
    """Return how the values of a variable become numbers, with xarray's data types."""
    data_type = variable.metadata.data_type
    stored = data_type.numpy
    attributes = variable.attributes
    if is_time(variable):
        given = [attributes[key] for key in _MISSING if key in attributes]
        if stored.kind == "f" or given:
            missing = tuple(value for value in given if isinstance(value, int | float))
            return Values(dtype=np.dtype(np.float64), missing=missing)
        return Values(dtype=stored)
    decoder = attribute_decoder(attributes, data_type, name=variable.name)
    if stored.kind not in "biuf" or not decoder.is_numeric:
        raise InvalidInputError(
            f"variable {variable.name!r} holds {data_type.name} and not numbers: name others in"
            " statistics",
            variable=variable.name,
        )
    decoded = np.dtype(decoder.arrow_type.to_pandas_dtype())
    if decoded.kind in "iu":
        # Spark's types are wider than those of unsigned integers.
        unsigned = {"true": "u", "false": "i"}.get(str(attributes.get("_Unsigned")).lower())
        decoded = np.dtype(f"{unsigned or stored.kind}{stored.itemsize}")
    if decoded.kind in "iu" and decoder.encoding.keys() & set(_MISSING):
        # Integers with missing values become floats, as in xarray.
        decoded = np.dtype(np.float32 if decoded.itemsize <= 2 else np.float64)
    used = decoder.encoding.keys() - {"dtype"}
    if not used and decoded == stored:
        return Values(dtype=np.dtype(np.float32) if decoded == np.float16 else decoded)
    return Values(dtype=decoded, decoder=decoder)


def result_dtype(
    statistic: str, dtype: np.dtype[Any], *, weighted: bool, has_empty: bool
) -> np.dtype[Any]:
    """Return the data type of a statistic of values of a type, as in xarray."""
    is_float = dtype.kind == "f"
    if statistic == "count" or statistic.startswith("arg"):
        return np.dtype(np.int64)
    if statistic in ("any", "all"):
        return np.dtype(np.bool_)
    if weighted and statistic in WEIGHTED:
        return np.dtype(np.float64)
    if is_float and not statistic.startswith("quantile"):
        return dtype
    if statistic not in ("sum", "prod", "min", "max", "first", "last") or has_empty:
        return np.dtype(np.float64)
    if statistic in ("sum", "prod"):
        return np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    return dtype


def output_of(
    variable: Variable,
    one: Wanted,
    *,
    group: NodePath,
    dims: Sequence[str],
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    weighted: bool,
    has_empty: bool,
    keep_attrs: bool,
    names: Iterable[str],
    labels: Variable | None,
) -> Output:
    """Return a statistic with its array.

    Parameters
    ----------
    names
        Names of the coordinates of the result.
    labels
        The labels of the reduced dimension.
    """
    missing: Any = None
    attributes: dict[str, Any]
    if one.statistic.startswith("idx"):
        assert labels is not None
        dtype, missing, attributes = _of_labels(labels)
    elif is_time(variable):
        if one.statistic not in _OF_TIMES:
            raise InvalidInputError(
                f"variable {variable.name!r} holds times, of which {one.statistic} is not known;"
                f" choose of {', '.join(_OF_TIMES)}",
                option="statistics",
                variable=variable.name,
            )
        dtype, missing, attributes = _of_times(variable, one.statistic, has_empty=has_empty)
    else:
        data_type = variable.metadata.data_type
        decoder = attribute_decoder(variable.attributes, data_type, name=variable.name)
        dtype = result_dtype(
            one.statistic, _decoded_dtype(variable), weighted=weighted, has_empty=has_empty
        )
        attributes = dict(decoder.attributes) if keep_attrs else {}
    coordinates = attributes.pop("coordinates", None)
    if isinstance(coordinates, str):
        known = set(names)
        kept = [name for name in coordinates.split() if name in known]
        if kept:
            attributes["coordinates"] = " ".join(kept)
    if attributes.get("grid_mapping") not in {None, *names}:
        del attributes["grid_mapping"]
    fill: Any = missing
    if fill is None and dtype.kind == "f":
        fill = dtype.type(np.nan)
    metadata = build_array_metadata(
        shape=shape,
        data_type=data_type_from_numpy(dtype),
        chunk_shape=[max(1, size) for size in chunk_shape],
        fill_value=fill,
        dimension_names=dims,
        attributes=attributes,
        node_path=path_in(group, one.name),
    )
    return Output(
        statistic=one.statistic,
        share=one.share,
        target=ArrayTarget.of_new(metadata),
        missing=missing,
    )


def part_target(kind: Kind, part: str, path: str, like: Output) -> ArrayTarget:
    """Return the array that stores a part, with the dimensions and chunks of a statistic."""
    nothing, dtype = kind.nothing(part)
    metadata = like.target.metadata
    assert metadata.grid.chunk_shape is not None
    made = build_array_metadata(
        shape=metadata.shape,
        data_type=data_type_from_numpy(dtype),
        chunk_shape=metadata.grid.chunk_shape,
        fill_value=dtype.type(nothing),
        dimension_names=metadata.dimension_names,
        node_path=path,
    )
    return ArrayTarget.of_new(made)


def _decoded_dtype(variable: Variable) -> np.dtype[Any]:
    if variable.metadata.data_type.numpy == np.float16:
        return np.dtype(np.float16)
    return numbers_of(variable).dtype


def _of_labels(labels: Variable) -> tuple[np.dtype[Any], Any, dict[str, Any]]:
    """Return the stored form of labels that may be missing."""
    stored, attributes = labels.metadata.data_type.numpy, dict(labels.attributes)
    attributes = {key: value for key, value in attributes.items() if key not in ("bounds", "axis")}
    if stored.kind not in "iuf":
        raise InvalidInputError(
            f"statistics names idxmin or idxmax, but the labels {labels.name!r} hold"
            f" {labels.metadata.data_type.name}; use argmin or argmax, which give positions",
            option="statistics",
            dimension=labels.name,
        )
    if stored.kind == "f":
        return stored, None, attributes
    if not is_time(labels):
        return np.dtype(np.float64), None, attributes
    missing = np.iinfo(np.int64).min
    return np.dtype(np.int64), missing, {**attributes, "_FillValue": missing}


def _of_times(
    variable: Variable, statistic: str, *, has_empty: bool
) -> tuple[np.dtype[Any], Any, dict[str, Any]]:
    stored, attributes = variable.metadata.data_type.numpy, dict(variable.attributes)
    if statistic == "count":
        drop = ("units", "calendar", *_MISSING)
        return np.dtype(np.int64), None, {k: v for k, v in attributes.items() if k not in drop}
    if (
        stored.kind == "f"
        or statistic == "mean"
        or (has_empty and not attributes.keys() & set(_MISSING))
    ):
        kept = {key: value for key, value in attributes.items() if key not in _MISSING}
        return np.dtype(np.float64), None, kept
    given = [attributes[key] for key in _MISSING if isinstance(attributes.get(key), int)]
    return stored, (given[0] if given else None), attributes


def repr_of(dims: Mapping[str, int], coordinates: Iterable[Any], outputs: Iterable[Output]) -> str:
    """Return a text like the one that xarray shows for a dataset."""
    sizes = ", ".join(f"{dim}: {size}" for dim, size in dims.items())
    lines = [f"Dimensions: ({sizes})", "Coordinates:"]
    lines += [f"    {one.name} ({', '.join(one.dims)}) {one.values.dtype}" for one in coordinates]
    lines.append("Data variables:")
    for output in outputs:
        target = output.target
        lines.append(
            f"    {target.name} ({', '.join(target.dims)}) {target.metadata.data_type.name}"
        )
    return "\n".join(lines)


def values_of_labels(labels: Variable, stored: NDArray[Any]) -> NDArray[Any]:
    """Return labels as idxmin and idxmax store them."""
    return stored.astype(_of_labels(labels)[0])
