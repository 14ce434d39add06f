"""Finds the dimension columns of a DataFrame, and the arrays that its columns were read from.

The field metadata of a column that this package read describes its array.

Rules of this file
------------------
1. Options override field metadata. Outdated metadata is ignored: a user may have dropped a
   dimension or cast a column.
2. Dimensions are found in this order: option ``dims``, field metadata, the existing group.
3. Expressions lose field metadata, so a column without metadata may be a computed dimension. Its
   name is then compared with the dimensions of the group and of the other columns. If one of these
   dimensions has no column, and a column without metadata may be it, the write is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable
from icechunk_format.names import unknown
from icechunk_format.repository.changes import MISSING, PACKING
from icechunk_format.tables.table.table import FIELD_METADATA_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of the DataFrame."""

    name: str
    arrow_type: pa.DataType
    described: Mapping[str, Any] = field(default_factory=dict)
    """The description of the array in the field metadata, or empty."""

    @property
    def is_dimension(self) -> bool:
        """True if the column was a dimension when it was read."""
        return self.described.get("role") == "dimension"

    @property
    def is_index(self) -> bool:
        """True if the column was a dimension without labels when it was read."""
        return self.is_dimension and "stored_dtype" not in self.described

    @property
    def dims(self) -> tuple[str, ...] | None:
        """The dimensions of the array; None if unknown."""
        return self._names("dimensions")

    @property
    def table_dims(self) -> tuple[str, ...]:
        """All dimensions of the table that a dimension column was read from."""
        return self._names("table_dimensions") or ()

    def _names(self, key: str) -> tuple[str, ...] | None:
        found = self.described.get(key)
        is_list = isinstance(found, list) and all(isinstance(dim, str) for dim in found)
        return tuple(found or ()) if is_list else None

    @property
    def group_attributes(self) -> Mapping[str, Any]:
        """The attributes of the group that a dimension column was read from."""
        found = self.described.get("group_attributes")
        return found if isinstance(found, dict) else {}

    @property
    def is_raw(self) -> bool:
        """True if the column holds undecoded numbers, read with ``decodeCf=false``."""
        attributes = self.described.get("attributes")
        if not isinstance(attributes, dict):
            return False
        units = attributes.get("units")
        return any(key in attributes for key in (*PACKING, *MISSING)) or (
            isinstance(units, str) and "since" in units
        )


def source_columns(schema: pa.Schema) -> dict[str, SourceColumn]:
    """Return the columns of a schema by name."""
    found: dict[str, SourceColumn] = {}
    for column in schema:
        if column.name in found:
            raise InvalidInputError(
                f"the DataFrame has more than one column {column.name!r}: rename or drop one of "
                "them",
                column=column.name,
            )
        if not column.name or "/" in column.name or column.name in (".", "..", "zarr.json"):
            raise InvalidInputError(
                f"the column {column.name!r} is not a name of an array; rename it, without '/'",
                column=column.name,
            )
        found[column.name] = SourceColumn(
            name=column.name, arrow_type=column.type, described=_described(column)
        )
    if not found:
        raise InvalidInputError("the DataFrame has no columns; there is nothing to write")
    return found


def _described(column: pa.Field) -> Mapping[str, Any]:
    raw = (column.metadata or {}).get(FIELD_METADATA_KEY)
    if raw is None:
        return {}
    try:
        found = json.loads(raw)
    except ValueError:
        # Field metadata that other programs have damaged is ignored.
        return {}
    # Metadata of the statistics of layout=summary describes the source values.
    return found if isinstance(found, dict) and "statistic" not in found else {}


def find_dims(
    columns: Mapping[str, SourceColumn],
    *,
    given: Sequence[str] | None,
    existing: Iterable[Variable],
) -> tuple[str, ...]:
    """Return the names of the dimension columns, in order."""
    if given is not None:
        _check_dims(columns, given)
        return tuple(given)
    arrays = list(existing)
    found = _described_dims(columns, arrays) or _dims_of_group(columns, arrays)
    if found:
        return found
    shown = ", ".join(columns)
    _check_columns_of_group(columns, arrays)
    if len(columns) == 1:
        raise InvalidInputError(
            f"{shown} is the only column, and a write needs a column of values and a column for "
            "each of their dimensions; add the dimensions",
            columns=tuple(columns),
        )
    first = list(columns)[: len(columns) - 1]
    raise InvalidInputError(
        f"the dimension columns are not known: the columns {shown} carry no metadata of a read, "
        "and no group with such dimensions exists; name them with the option dims, for instance "
        f"dims={','.join(first)}",
        columns=tuple(columns),
    )


def _check_columns_of_group(
    columns: Mapping[str, SourceColumn], arrays: Sequence[Variable]
) -> None:
    """Raise InvalidInputError if the columns are dimensions of the group alone, or none of them."""
    if columns.keys() <= {dim for variable in arrays for dim in variable.dims}:
        values = sorted(v.name for v in arrays if not v.is_dimension_coordinate and v.dims)
        raise InvalidInputError(
            f"all columns ({', '.join(columns)}) are dimensions of the group, so there are no "
            f"values to write; add a column of values. The group has {', '.join(values)}",
            columns=tuple(columns),
        )
    for variable in arrays:
        if variable.name in columns and variable.dims:
            dims = ", ".join(variable.dims)
            raise InvalidInputError(
                f"array /{variable.name} has the dimensions ({dims}), and the DataFrame has none "
                f"of them; each dimension of the array needs a column: add {dims}",
                columns=tuple(columns),
                missing=variable.dims,
            )


def named_as(columns: Mapping[str, SourceColumn]) -> dict[str, str]:
    """Return the column of each dimension that was read, by the dimension's original name."""
    return {
        column.dims[0]: name
        for name, column in columns.items()
        if column.is_dimension and column.dims
    }


def _described_dims(
    columns: Mapping[str, SourceColumn], arrays: Sequence[Variable]
) -> tuple[str, ...]:
    """Return the dimensions in the field metadata, completed from the group's arrays."""
    columns_of = named_as(columns)
    named = [columns_of.get(dim, dim) for dim in _dims_before(columns.values())]
    found = [
        name
        for name in named
        if name in columns and (columns[name].is_dimension or not columns[name].described)
    ]
    missing = [name for name in named if name not in found]
    computed = [name for name, column in columns.items() if not column.described]
    if not found or not computed or (not missing and all(columns[n].is_dimension for n in found)):
        return tuple(found)
    found += [name for name in _dims_of_group(columns, arrays) if name not in found]
    free = [name for name in computed if name not in found]
    has_array = any(
        variable.name in columns and variable.name not in found and variable.dims
        for variable in arrays
    )
    # Without a value column that was read, one of the computed columns must be the value.
    values = [c for name, c in columns.items() if c.described and name not in found]
    if missing and not has_array and len(free) > (0 if values else 1):
        shown = ", ".join(map(repr, free))
        raise InvalidInputError(
            f"the dimension columns are ambiguous: the rows were read from a table over "
            f"({', '.join(named)}), the column {' or '.join(map(repr, missing))} is missing, and "
            f"the computed columns {shown} may be dimensions or values; name all dimensions with "
            f"the option dims: dims={','.join(found)} if {shown} are values, "
            f"dims={','.join([free[0], *found])} if {free[0]!r} is a dimension",
            columns=tuple(columns),
            missing=tuple(missing),
        )
    return tuple(found)


def _dims_before(columns: Iterable[SourceColumn]) -> list[str]:
    """Return the dimensions of columns that were read, in the order of the largest array."""
    described = [column for column in columns if column.described]
    values = [column.dims or () for column in described if not column.is_dimension]
    values.sort(key=len, reverse=True)
    dims = [column for column in described if column.is_dimension]
    own = [column.dims or () for column in dims]
    found = chain(*values, *(column.table_dims for column in dims), *own)
    return list(dict.fromkeys(found))


def _dims_of_group(
    columns: Mapping[str, SourceColumn], arrays: Sequence[Variable]
) -> tuple[str, ...]:
    """Return the columns that are dimensions of the group, in the order of its arrays."""
    known = {dim for variable in arrays for dim in variable.dims if dim in columns}
    named = [variable for variable in arrays if variable.name in columns and variable.dims]
    named.sort(key=lambda variable: -len(variable.dims))
    for variable in named:
        if not variable.is_dimension_coordinate and set(variable.dims) <= columns.keys():
            rest = sorted(known - set(variable.dims), key=list(columns).index)
            return (*variable.dims, *rest)
    if known and len(known) < len(columns):
        return tuple(name for name in columns if name in known)
    return ()


def _check_dims(columns: Mapping[str, SourceColumn], given: Sequence[str]) -> None:
    for dim in given:
        if dim not in columns:
            raise InvalidInputError(
                f"dims: {unknown('column', dim, columns)}",
                dim=dim,
                columns=tuple(columns),
            )
    if len(set(given)) < len(given):
        raise InvalidInputError(f"dims={','.join(given)} names a column twice", dims=tuple(given))
