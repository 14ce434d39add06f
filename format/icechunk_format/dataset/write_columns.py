"""What a DataFrame says about its columns: roles, dimensions, and how they were stored before.

A column that was read with this project carries a description of its array (``table.describe``) in
its field metadata. Others carry nothing, and options or the existing group decide.

Rules of this file
------------------
1. What metadata says is a wish, not a truth: a user may have dropped a dimension or cast a column
   since. What no longer fits is not used; what options say comes first.
2. Dimensions are found in this order: option ``dims``, field metadata, the existing group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from icechunk_format.dataset.table import FIELD_METADATA_KEY
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from icechunk_format.dataset.variable import Variable

_CF_KEYS = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of the DataFrame.

    Parameters
    ----------
    name, arrow_type
        Of the column.
    described
        What its field metadata says; empty where it has none.
    """

    name: str
    arrow_type: pa.DataType
    described: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_dimension(self) -> bool:
        """Whether the column was a dimension when it was read."""
        return self.described.get("role") == "dimension"

    @property
    def is_index(self) -> bool:
        """Whether the column was a dimension without labels when it was read."""
        return self.is_dimension and "stored_dtype" not in self.described

    @property
    def dims(self) -> tuple[str, ...] | None:
        """The dimensions that the array had; None where nothing is known."""
        found = self.described.get("dimensions")
        if isinstance(found, list) and all(isinstance(dim, str) for dim in found):
            return tuple(found)
        return None

    @property
    def is_raw(self) -> bool:
        """Whether the column holds stored numbers, read with ``decodeCf=false``."""
        attributes = self.described.get("attributes")
        if not isinstance(attributes, dict):
            return False
        units = attributes.get("units")
        return any(key in attributes for key in _CF_KEYS) or (
            isinstance(units, str) and "since" in units
        )


def source_columns(schema: pa.Schema) -> dict[str, SourceColumn]:
    """Return the columns of a schema by name.

    Raises
    ------
    InvalidInputError
        Two columns have one name, or a name cannot be that of an array.
    """
    found: dict[str, SourceColumn] = {}
    for column in schema:
        if column.name in found:
            raise InvalidInputError(
                f"the DataFrame has two columns {column.name!r}; rename one", column=column.name
            )
        if not column.name or "/" in column.name or column.name in (".", "..", "zarr.json"):
            raise InvalidInputError(
                f"the column {column.name!r} cannot become an array of that name; rename it, "
                "without '/'",
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
        # Metadata travels through other people's code; damaged, it says nothing.
        return {}
    # Statistics of the layout summary describe the values that they were made of, not themselves.
    return found if isinstance(found, dict) and "statistic" not in found else {}


def find_dims(
    columns: Mapping[str, SourceColumn],
    *,
    asked: Sequence[str] | None,
    existing: Iterable[Variable],
) -> tuple[str, ...]:
    """Return the names of the dimension columns, in order.

    Parameters
    ----------
    columns
        The DataFrame.
    asked
        The option ``dims``.
    existing
        The arrays that the group keeps.

    Raises
    ------
    InvalidInputError
        They cannot be found, or a name is no column.
    """
    if asked is not None:
        _check_dims(columns, asked)
        return tuple(asked)
    marked = [column.name for column in columns.values() if column.is_dimension]
    if marked:
        return _in_array_order(marked, columns.values())
    # Labels of a group are columns of the same name; arrays that are columns say the order.
    arrays = list(existing)
    known = {dim for variable in arrays for dim in variable.dims if dim in columns}
    named = [variable for variable in arrays if variable.name in columns and variable.dims]
    named.sort(key=lambda variable: -len(variable.dims))
    for variable in named:
        if not variable.is_dimension_coordinate and set(variable.dims) <= columns.keys():
            rest = sorted(known - set(variable.dims), key=list(columns).index)
            return (*variable.dims, *rest)
    if known and len(known) < len(columns):
        return tuple(name for name in columns if name in known)
    shown = ", ".join(columns)
    first = list(columns)[: max(1, len(columns) - 1)]
    raise InvalidInputError(
        f"which columns are dimensions is not known: the DataFrame has {shown}, without the "
        "metadata of a reader, and no group with such dimensions exists. Name them with the "
        f"option dims, for instance dims={','.join(first)}",
        columns=tuple(columns),
    )


def _check_dims(columns: Mapping[str, SourceColumn], asked: Sequence[str]) -> None:
    for dim in asked:
        if dim not in columns:
            near = get_close_matches(dim, columns, n=1, cutoff=0.0)
            raise InvalidInputError(
                f"dims names {dim!r}, which is no column; did you mean {near[0]!r}? The DataFrame "
                f"has {', '.join(columns)}",
                dim=dim,
                columns=tuple(columns),
            )
    if len(set(asked)) < len(asked):
        raise InvalidInputError(f"dims={','.join(asked)} names a column twice", dims=tuple(asked))


def _in_array_order(marked: Sequence[str], columns: Iterable[SourceColumn]) -> tuple[str, ...]:
    """Order dimensions as the array with most of them has them; others follow as columns do."""
    best: tuple[str, ...] = ()
    for column in columns:
        dims = tuple(dim for dim in column.dims or () if dim in marked)
        if not column.is_dimension and len(dims) > len(best) and len(set(dims)) == len(dims):
            best = dims
    return (*best, *(name for name in marked if name not in best))
