"""Converts the arrays of a block to an ``xarray.Dataset``, and the result of a function to arrays.

Rules of this file
------------------
1. xarray decodes and encodes values. Encodings are those of the first block, so that times and
   packed numbers of all blocks have the same encoding.
2. An error message of a function contains the labels of the block, the type of the error and the
   lines of the user.
"""

from __future__ import annotations

import base64
import functools
import inspect
import json
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.names import choose
from icechunk_format.workflows.mapping.blocks import Block, OtherArrays
from icechunk_format.workflows.mapping.others import StoredArray
from icechunk_format.workflows.mapping.outputs import Layout, Result
from icechunk_spark.mapping.encoding import ENCODING, encoded, plain_attributes

# Larger labels are decoded for each block.
_LABEL_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class DatasetFunction:
    """Adapts a function of datasets to stored arrays; `encoding` has the keys of xarray."""

    function: Callable[..., Any]
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    times: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Encoding of arrays of the result that may be times, by variable."""

    def __post_init__(self) -> None:
        for key in (key for own in self.encoding.values() for key in own):
            choose("encoding", key, (*ENCODING, "codecs"))

    @property
    def name(self) -> str:
        """Name of the function."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return str(getattr(function, "__qualname__", type(function).__qualname__))

    def like(self, arrays: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> DatasetFunction:
        """Return a function that encodes times like arrays with these types and attributes."""
        times = {
            name: {
                "dtype": dtype,
                **{key: attributes[key] for key in ("units", "calendar") if key in attributes},
            }
            for name, (dtype, attributes) in arrays.items()
            if "units" in attributes
        }
        return replace(self, times=times)

    def layouts(self, template: xr.Dataset) -> tuple[list[Layout], dict[str, Any]]:
        """Return the layouts and attributes of the whole result; values are ignored."""
        small = template.isel({dim: slice(0, 1) for dim in template.dims})
        results, attributes = self._results(small, "of the template")
        sizes = {str(dim): size for dim, size in template.sizes.items()}
        layouts = [
            replace(result.layout, shape=tuple(sizes[dim] for dim in result.layout.dims))
            for result in results
        ]
        return layouts, attributes

    def __call__(
        self,
        block: Block,
        arrays: Mapping[str, StoredArray],
        attributes: Mapping[str, Any],
        others: Sequence[OtherArrays] = (),
    ) -> tuple[list[Result], dict[str, Any]]:
        """Return the encoded variables of a block, and the attributes of the dataset."""
        returned = self.call(block, arrays, attributes, others)
        if isinstance(returned, xr.DataArray):
            name = "result" if returned.name is None else returned.name
            returned = returned.to_dataset(name=name)
        if not isinstance(returned, xr.Dataset):
            raise InvalidInputError(
                f"the function returned a {type(returned).__name__} for block"
                f" {self.label(block, arrays)}; return an xarray Dataset or DataArray",
                found=type(returned).__name__,
            )
        return self._results(_trimmed(returned, block), f"of block {self.label(block, arrays)}")

    def source(self, block: Block, arrays: Mapping[str, StoredArray]) -> list[Result]:
        """Return arrays of the source as a function would return them unchanged."""
        dataset = _trimmed(_around(dataset_of(arrays, {}), block), block)
        return self._results(dataset, f"of block {block.number}")[0]

    def shown(self, layout: Layout, value: Any) -> str:
        """Return a stored value as text."""
        variable = xr.Variable((), value, dict(layout.attributes))
        try:
            variable = xr.conventions.decode_cf_variable(layout.name, variable)
        except (ValueError, TypeError, OverflowError):
            return str(value)
        return _shown(variable.values[()])

    def rows(
        self,
        block: Block,
        arrays: Mapping[str, StoredArray],
        attributes: Mapping[str, Any],
        schema: pa.Schema,
        others: Sequence[OtherArrays] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the function returns for a block."""
        returned = self.call(block, arrays, attributes, others)
        if returned is None:
            return
        if isinstance(returned, pd.DataFrame):
            given = list(returned.items())
        elif isinstance(returned, pa.Table | pa.RecordBatch):
            given = list(zip(returned.schema.names, returned.columns, strict=True))
        else:
            raise InvalidInputError(
                f"the function returned a {type(returned).__name__} for block"
                f" {self.label(block, arrays)}; return a pandas DataFrame or an Arrow table",
                found=type(returned).__name__,
            )
        names = [str(name) for name, _ in given]
        if sorted(names) != sorted(schema.names):
            raise InvalidInputError(
                f"the rows of block {self.label(block, arrays)} have the columns {names}, but"
                f" schema has {schema.names}: return the columns of schema, or change schema",
                columns=tuple(names),
            )
        fitted = []
        for column in schema:
            values = given[names.index(column.name)][1]
            try:
                fitted += pa.table({column.name: values}).cast(pa.schema([column])).columns
            except (pa.ArrowException, ValueError) as error:
                wanted = f"{column.type}{'' if column.nullable else ' not null'}"
                found = str(getattr(values, "dtype", None) or values.type)
                raise InvalidInputError(
                    f"column {column.name!r} of the rows of block {self.label(block, arrays)} has"
                    f" type {found}, but schema has {wanted} ({error.args[0]}): return values of"
                    " this type, or change schema",
                    column=column.name,
                    found=found,
                ) from error
        yield from pa.Table.from_arrays(fitted, schema=schema).to_batches()

    def _results(self, dataset: xr.Dataset, where: str) -> tuple[list[Result], dict[str, Any]]:
        variables, attrs = xr.conventions.encode_dataset_coordinates(dataset)
        results = [
            encoded(
                variable,
                str(name),
                where,
                is_coordinate=name in dataset.coords,
                encoding=self.encoding.get(str(name), {}),
                times=self.times.get(str(name), {}),
            )
            for name, variable in variables.items()
        ]
        return results, plain_attributes(attrs, f"the dataset {where}")

    def call(
        self,
        block: Block,
        arrays: Mapping[str, StoredArray],
        attributes: Mapping[str, Any],
        others: Sequence[OtherArrays] = (),
    ) -> Any:
        """Call the function with the datasets of a block, and the block if it takes one more."""
        dataset = _around(dataset_of(arrays, attributes), block)
        datasets = [dataset, *(_labelled(other, dataset) for other in others)]
        try:
            if _takes_more(self.function, len(datasets)):
                return self.function(*datasets, block)
            return self.function(*datasets)
        except IcechunkError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
            where = " > ".join(
                f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
                for frame in (own or frames)[-8:]
            )
            label = self.label(block, arrays)
            raise InvalidInputError(
                f"the function failed at block {label}: {type(error).__name__}: {error}"
                f" (at {where})",
                block=label,
                error=type(error).__name__,
            ) from error

    def label(self, block: Block, arrays: Mapping[str, StoredArray]) -> str:
        """Return the first and last labels of a block, such as ``time=2024-01-01..2024-01-31``."""
        decoded = dataset_of({n: a for n, a in arrays.items() if a.dims == (n,)}, {})
        parts = []
        for dim, start in block.start.items():
            stop, origin = block.stop[dim], block.read_start[dim]
            if dim in decoded.variables and stop > start:
                labels = decoded[dim].values[start - origin : stop - origin]
                parts.append(f"{dim}={_shown(labels[0])}..{_shown(labels[-1])}")
            else:
                parts.append(f"{dim}[{start}:{stop}]")
        return ", ".join(parts)


def dataset_of(arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any]) -> xr.Dataset:
    """Return stored arrays as a decoded dataset in memory."""
    cftime = _cftime_variables(arrays)
    labels = {} if any("coordinates" in a.attributes for a in arrays.values()) else arrays
    labels = {name: array for name, array in labels.items() if _is_own_label(name, array)}
    variables = {n: _stored_variable(a) for n, a in arrays.items() if n not in labels}
    # The steps of decode_cf, without a dataset of the stored values and its indexes.
    decoded, attrs, coords = xr.conventions.decode_cf_variables(
        variables, dict(attributes), decode_times=_coders(cftime)
    )
    known = {
        name: _decoded_label(
            name,
            array.values.dtype.str,
            array.values.tobytes(),
            json.dumps(array.attributes, sort_keys=True),
            name in cftime,
        )
        for name, array in labels.items()
    }
    indexed = xr.Coordinates(
        {name: variable.copy(deep=False) for name, (variable, _) in known.items()},
        indexes={name: index for name, (_, index) in known.items()},
    )
    dataset = xr.Dataset(decoded, coords=indexed, attrs=attrs)
    more = coords.intersection(decoded)
    # Each copy of a dataset takes as long as the decoding of a small chunk.
    return (dataset.set_coords(more) if more else dataset).load()


def _stored_variable(array: StoredArray) -> xr.Variable:
    given = dict(array.attributes)
    fill = given.get("_FillValue")
    if isinstance(fill, str) and array.values.dtype.kind in "fc":
        given["_FillValue"] = struct.unpack("<d", base64.b64decode(fill)[:8])[0]
    # Functions may change values in place, as those of datasets that xarray has loaded.
    return xr.Variable(array.dims, np.require(array.values, requirements="W"), given)


def _coders(cftime: Sequence[str]) -> Any:
    return dict.fromkeys(cftime, xr.coders.CFDatetimeCoder(use_cftime=True)) or True


def _is_own_label(name: str, array: StoredArray) -> bool:
    """Return True if an array has small labels that no other array helps to decode."""
    is_small = array.values.dtype.kind in "iuf" and array.values.nbytes <= _LABEL_BYTES
    return array.dims == (name,) and is_small and "bounds" not in array.attributes


@functools.lru_cache(maxsize=128)
def _decoded_label(
    name: str, dtype: str, data: bytes, attributes: str, is_cftime: bool
) -> tuple[xr.Variable, xr.Index]:
    """Return the labels of a dimension and their index, which neighbouring blocks share."""
    stored = StoredArray((name,), np.frombuffer(data, dtype).copy(), json.loads(attributes))
    decoded, _, _ = xr.conventions.decode_cf_variables(
        {name: _stored_variable(stored)}, {}, decode_times=_coders([name] if is_cftime else [])
    )
    dataset = xr.Dataset(decoded).load()
    return dataset.variables[name], dataset.xindexes[name]


def _cftime_variables(arrays: Mapping[str, StoredArray]) -> list[str]:
    """Return the names of times that xarray decodes to cftime for the whole group."""
    spans = [
        (name, a.span.dtype.str, a.span.tobytes(), json.dumps(a.attributes, sort_keys=True))
        for name, a in arrays.items()
        if a.span is not None
    ]
    return _cftime_names(tuple(spans))


@functools.lru_cache(maxsize=64)
def _cftime_names(spans: tuple[tuple[str, str, bytes, str], ...]) -> list[str]:
    """Return the names of times with these types, first and last values and attributes."""
    ends = {
        name: xr.Variable((f"{name} ends",), np.frombuffer(data, dtype), json.loads(attributes))
        for name, dtype, data, attributes in spans
    }
    decoded = xr.decode_cf(xr.Dataset(ends))
    return [str(name) for name, own in decoded.variables.items() if own.dtype.hasobject]


def _labelled(other: OtherArrays, block: xr.Dataset) -> xr.Dataset:
    """Return a further source of a block with the labels of the block, so that xarray aligns both.

    Matched labels may differ: as float32 and float64, or by a tolerance.
    """
    source, dataset = other.source, dataset_of(other.arrays, other.source.attributes)
    dataset = dataset.set_coords([dim for dim in source.dropped if dim in dataset.variables])
    shared = [dim for dim in source.labelled if dim in dataset.sizes and dim in block.indexes]
    return dataset.assign_coords({dim: block.variables[dim] for dim in shared})


def _takes_more(function: Callable[..., Any], datasets: int) -> bool:
    """Return True if a function has more parameters without default than it gets datasets."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters) > datasets


def _trimmed(dataset: xr.Dataset, block: Block) -> xr.Dataset:
    """Drop the elements of the overlap."""
    chosen = {}
    for dim, start in block.start.items():
        origin, length = block.read_start[dim], block.read_stop[dim] - block.read_start[dim]
        if length == block.stop[dim] - start or dim not in dataset.sizes:
            continue
        if dataset.sizes[dim] != length:
            raise InvalidInputError(
                f"the function returned {dataset.sizes[dim]} elements along {dim!r} for a block of"
                f" {length} with overlap; return the same number of elements",
                dimension=dim,
            )
        chosen[dim] = slice(start - origin, block.stop[dim] - origin)
    return dataset.isel(chosen)


def _around(dataset: xr.Dataset, block: Block) -> xr.Dataset:
    """Continue labels beyond the ends of a periodic dimension: -1, 0, 1 instead of 359, 0, 1."""
    for dim, period in block.periods.items():
        if dim not in dataset.indexes:
            continue
        labels = np.array(dataset[dim].values)
        below = max(0, -block.read_start[dim])
        above = max(0, block.read_stop[dim] - block.sizes[dim])
        inner = labels[below : len(labels) - above]
        shift = -period if len(inner) > 1 and inner[1] < inner[0] else period
        labels[:below] -= shift
        labels[len(labels) - above :] += shift
        dataset = dataset.assign_coords({dim: (dim, labels, dataset[dim].attrs)})
    return dataset


def _shown(label: Any) -> str:
    if isinstance(label, np.datetime64):
        return str(np.datetime_as_string(label, unit="auto"))
    return str(label)
