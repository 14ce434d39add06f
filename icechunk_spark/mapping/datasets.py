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
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.names import choose
from icechunk_format.workflows.mapping.blocks import Block, StoredArray
from icechunk_format.workflows.mapping.placing import Layout, Result


@dataclass(frozen=True, kw_only=True)
class DatasetFunction:
    """Adapts a function of datasets to stored arrays; `encoding` has the keys of xarray."""

    function: Callable[..., Any]
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    times: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Encoding of arrays of the result that may be times, by variable."""

    def __post_init__(self) -> None:
        for key in (key for own in self.encoding.values() for key in own):
            choose("encoding", key, (*_ENCODING, "codecs"))

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
        results, attributes = self._results(small)
        sizes = {str(dim): size for dim, size in template.sizes.items()}
        layouts = [
            replace(result.layout, shape=tuple(sizes[dim] for dim in result.layout.dims))
            for result in results
        ]
        return layouts, attributes

    def __call__(
        self, block: Block, arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any]
    ) -> tuple[list[Result], dict[str, Any]]:
        """Return the encoded variables of a block, and the attributes of the dataset."""
        returned = self.call(block, arrays, attributes)
        if isinstance(returned, xr.DataArray):
            name = "result" if returned.name is None else returned.name
            returned = returned.to_dataset(name=name)
        if not isinstance(returned, xr.Dataset):
            raise InvalidInputError(
                f"the function returned a {type(returned).__name__} for block"
                f" {self.label(block, arrays)}; return an xarray Dataset or DataArray",
                found=type(returned).__name__,
            )
        return self._results(_trimmed(returned, block))

    def rows(
        self,
        block: Block,
        arrays: Mapping[str, StoredArray],
        attributes: Mapping[str, Any],
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the function returns for a block."""
        returned = self.call(block, arrays, attributes)
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

    def _results(self, dataset: xr.Dataset) -> tuple[list[Result], dict[str, Any]]:
        variables, attrs = xr.conventions.encode_dataset_coordinates(dataset)
        results = [
            self._encoded(variable, str(name), name in dataset.coords)
            for name, variable in variables.items()
        ]
        return results, {str(k): _json(v) for k, v in attrs.items()}

    def call(
        self, block: Block, arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any]
    ) -> Any:
        """Call the function with the dataset of a block, and the block if it takes two."""
        dataset = _around(dataset_of(arrays, attributes), block)
        try:
            if _takes_block(self.function):
                return self.function(dataset, block)
            return self.function(dataset)
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

    def _encoded(self, variable: xr.Variable, name: str, is_coordinate: bool) -> Result:
        variable = variable.copy(deep=False)
        is_time = variable.dtype.kind in "mM" or variable.dtype.hasobject
        pinned = self.times.get(name, {}) if is_time else {}
        variable.encoding = {
            key: value
            for key, value in {**variable.encoding, **pinned, **self.encoding.get(name, {})}.items()
            if key in _ENCODING
        }
        try:
            encoded = xr.conventions.encode_cf_variable(variable, name=name)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                f"encoding: variable {name!r} cannot be encoded as {variable.encoding}: {error}",
                option="encoding",
                variable=name,
            ) from error
        if is_time and "units" in encoded.attrs and "units" not in variable.encoding:
            # xarray spells units that it infers differently from the same units as encoding.
            variable.encoding["units"] = encoded.attrs["units"]
            encoded = xr.conventions.encode_cf_variable(variable, name=name)
        if variable.dims == (name,):
            _check_labels(variable, encoded, name)
        values = np.asarray(encoded.values, order="C")
        if values.dtype.kind in "US":
            values = values.astype(object)
        attributes = {str(key): value for key, value in encoded.attrs.items()}
        fill = attributes.get("_FillValue")
        if fill is not None:
            attributes["_FillValue"] = _stored_fill(fill)
        if fill is None and values.dtype.kind == "f":
            fill = values.dtype.type(np.nan)
        layout = Layout(
            name=name,
            dims=tuple(map(str, encoded.dims)),
            shape=values.shape,
            dtype=values.dtype,
            attributes={key: _json(value) for key, value in attributes.items()},
            fill_value=fill,
            is_coordinate=is_coordinate,
        )
        return Result(layout, values)


def _check_labels(variable: xr.Variable, encoded: xr.Variable, name: str) -> None:
    """Raise InvalidInputError if the encoding rounds labels; measurements may be rounded."""
    found = xr.conventions.decode_cf_variable(name, encoded.copy(deep=False)).values
    given = np.asarray(variable.values)
    if given.dtype.hasobject or given.dtype.kind not in "iufmM":
        return
    if given.dtype.kind in "mM":
        differs = found.astype(given.dtype) != given
        if encoded.dtype.kind == "f":
            off = np.abs(found.astype(given.dtype) - given)
            differs &= off >= np.timedelta64(500, "us")
    elif given.dtype == encoded.dtype:
        return
    else:
        # As much as a float32 or the steps of packing may differ in writing.
        written = found.astype("U").astype(np.float64) if found.dtype.kind == "f" else found
        differs = (found != given) & ~np.isclose(written, given, rtol=1e-12, atol=0)
    if differs.any():
        at = int(np.argmax(differs))
        raise InvalidInputError(
            f"the labels of {name!r} that the function returned have {given[at]}, which the"
            f" encoding would turn into {found[at]}; labels are not rounded: give encoding="
            f"{{{name!r}: ...}} a wider dtype or finer units",
            variable=name,
            label=str(given[at]),
            stored=str(found[at]),
        )


_ENCODING = (
    "dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "units", "calendar",
    "_Unsigned",
)  # fmt: skip


def dataset_of(arrays: Mapping[str, StoredArray], attributes: Mapping[str, Any]) -> xr.Dataset:
    """Return stored arrays as a decoded dataset in memory."""
    variables = {}
    for name, array in arrays.items():
        given = dict(array.attributes)
        fill = given.get("_FillValue")
        if isinstance(fill, str) and array.values.dtype.kind in "fc":
            given["_FillValue"] = struct.unpack("<d", base64.b64decode(fill)[:8])[0]
        variables[name] = xr.Variable(array.dims, array.values, given)
    dataset = xr.Dataset(variables, attrs=dict(attributes))
    return xr.decode_cf(dataset).load()


def _takes_block(function: Callable[..., Any]) -> bool:
    """Return True if a function has a second parameter without default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters) > 1


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
        turn = -period if len(inner) > 1 and inner[1] < inner[0] else period
        labels[:below] -= turn
        labels[len(labels) - above :] += turn
        dataset = dataset.assign_coords({dim: (dim, labels, dataset[dim].attrs)})
    return dataset


def _stored_fill(fill: Any) -> Any:
    """Return a missing value as xarray stores it in Zarr v3."""
    value = np.asarray(fill)
    if value.dtype.kind == "f":
        return base64.b64encode(struct.pack("<d", float(value))).decode()
    return value.item()


def _json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _shown(label: Any) -> str:
    if isinstance(label, np.datetime64):
        return str(np.datetime_as_string(label, unit="auto"))
    return str(label)
