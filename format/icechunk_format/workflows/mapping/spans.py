"""Finds the first and last time of variables, since xarray chooses their type for a whole group.

xarray decodes a variable to ``datetime64`` if all of its times are in the range of that type, and
to objects of cftime otherwise. A block contains only its own times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.tables import Dataset
from icechunk_format.tables.cf import attribute_decoder
from icechunk_format.workflows.horizontal.axes import string_attribute

# Of larger variables, only the first and the last element are read.
_MOST_ELEMENTS: Final = 1 << 23
_MISSING: Final = ("_FillValue", "missing_value")


def time_spans(dataset: Dataset, arrays: Mapping[str, Variable]) -> dict[str, NDArray[Any]]:
    """Return the smallest and largest stored value of each variable of times, by name."""
    spans = {}
    for name in _times(arrays):
        variable = arrays[name]
        if variable.metadata.data_type.numpy.kind not in "iuf" or not math.prod(variable.shape):
            continue
        values = _read(dataset, variable)
        given = {key: variable.attributes[key] for key in _MISSING if key in variable.attributes}
        try:
            decoder = attribute_decoder(given, variable.metadata.data_type, name=name)
        except InvalidInputError:
            continue  # xarray reports it when it decodes a block
        _, valid = decoder.decode_numeric(values)
        present = values if valid is None else values[valid]
        present = present[~np.isnan(present)] if present.dtype.kind == "f" else present
        if len(present):
            spans[name] = np.array([present.min(), present.max()])
    return spans


def _read(dataset: Dataset, variable: Variable) -> NDArray[Any]:
    """Return all stored values of a variable, or those of both ends, flat."""
    if math.prod(variable.shape) <= _MOST_ELEMENTS:
        return dataset.read(variable.name).reshape(-1)
    last = [size - 1 for size in variable.shape]
    ends = [dataset.read(variable.name, at, [i + 1 for i in at]) for at in ([0] * len(last), last)]
    return np.stack(ends).reshape(-1)


def _times(arrays: Mapping[str, Variable]) -> set[str]:
    """Return the names of times, and of bounds that take the units of times."""
    found: set[str] = set()
    for name, variable in arrays.items():
        if "since" in string_attribute(variable, "units"):
            found |= {name, string_attribute(variable, "bounds")} & arrays.keys()
    return found
