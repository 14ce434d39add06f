"""Defines the layouts of a table, its columns, and the metadata for writing them back.

``reading.plan`` (planning on the driver) and ``reading.run`` (reading on executors) also have a
table with an entry for each layout; they are separate because executors import no planning.

Rules of this file
------------------
1. Columns are in this order: dimensions in array order, variables, requested coordinates.
2. Every column is nullable and has exactly the Arrow type that Spark gives its SQL type, because
   Spark 4.2 and later refuse a batch that differs.
3. Two columns may not differ in case alone: Spark compares names without case by default and would
   refuse both.
4. A table holds plain values and no connection, since it is pickled into every task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection, Variable
from icechunk_format.groups.positions import MOST_COMPARED
from icechunk_format.names import unknown
from icechunk_format.options.declare import Layout as Layout
from icechunk_format.zarr.data_types import DataType

if TYPE_CHECKING:
    from icechunk_format.groups import SnapshotArrays
    from icechunk_format.tables.cf.decode import VariableDecoder
    from icechunk_format.tables.selection.where.condition import Residual

Fields = tuple[tuple[str, pa.DataType], ...]

CHUNKS_FIELDS: Final[Fields] = (
    ("array", pa.string()),
    ("chunk", pa.list_(pa.int64())),
    ("start", pa.list_(pa.int64())),
    ("shape", pa.list_(pa.int64())),
    ("dtype", pa.string()),
    ("data", pa.binary()),
)

REFS_FIELDS: Final[Fields] = (
    ("array", pa.string()),
    ("chunk", pa.list_(pa.int64())),
    ("kind", pa.string()),
    ("chunk_id", pa.string()),
    ("location", pa.string()),
    ("offset", pa.int64()),
    ("length", pa.int64()),
    ("etag", pa.string()),
    ("last_modified", pa.timestamp("us", tz="UTC")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """Rules by which the driver builds the table of a layout."""

    fields: Fields = ()
    """Columns of the layout; empty if they depend on the dimensions and variables of a group."""
    options: frozenset[str] = frozenset()
    """The options among ``coords``, ``block`` and ``decoded`` that the layout takes."""
    takes_coordinates: bool = False
    """True if a table without named variables also holds the coordinate arrays."""

    @property
    def has_values(self) -> bool:
        """True if rows come from cells, so that a condition may name variables."""
        return not self.fields


LAYOUTS: Final[Mapping[Layout, LayoutRules]] = {
    "cells": LayoutRules(options=frozenset({"coords"})),
    "chunks": LayoutRules(fields=CHUNKS_FIELDS, options=frozenset({"decoded"})),
    "refs": LayoutRules(fields=REFS_FIELDS, takes_coordinates=True),
    "summary": LayoutRules(options=frozenset({"coords", "block"})),
}


def data_type_name(data_type: DataType) -> str:
    """Return the column ``dtype``: an argument of ``numpy.dtype``, or the name of a Zarr type."""
    dtype = data_type.numpy
    if dtype.hasobject:
        return data_type.name
    if dtype.names is not None:
        return json.dumps(data_type.to_json())
    return dtype.newbyteorder("<").str


Role = Literal["dimension", "variable", "coordinate", "layout"]

FIELD_METADATA_KEY = b"icechunk"
"""The key under which Arrow field metadata holds ``Column.metadata`` as JSON."""

_MOST_LISTED_LABELS = 1_000
# Labels of a dimension up to this length are read whole, once per process; of a longer dimension, a
# task reads only the range that it covers.
WHOLE_LABELS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    arrow_type: pa.DataType
    role: Role
    """``dimension``, ``variable``, ``coordinate``, or ``layout`` for columns that describe chunks
    rather than values."""
    source: str = ""
    """The dimension or variable of the column; for ``layout`` the name in the layout. Scans
    identify columns by source, since users may spell ``name`` in another case."""
    path: str | None = None
    """The array that holds the values; None for a dimension without labels and for ``layout``."""
    dims: tuple[str, ...] = ()
    """The dimensions of that array, in array order."""
    decoder: VariableDecoder | None = None
    """Turns stored values into Arrow; None if ``path`` is None."""
    statistic: str | None = None
    """In the layout ``summary``: ``first``, ``last``, ``count``, ``min``, ..."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that describe the column, made by ``describe``."""

    @property
    def arrow_field(self) -> pa.Field:
        """The Arrow field, nullable, with the metadata as JSON."""
        described = json.dumps(self.metadata).encode()
        return pa.field(
            self.name, self.arrow_type, nullable=True, metadata={FIELD_METADATA_KEY: described}
        )

    def labels(
        self, arrays: SnapshotArrays, size: int, selection: DimSelection | None = None
    ) -> pa.Array:
        """Return the values of a dimension column at the selected positions; None is all."""
        selection = selection or DimSelection.whole(size)
        if self.path is None or self.decoder is None:
            if selection.count > MOST_COMPARED:
                raise InvalidInputError(
                    f"dimension {self.source!r} has {size:,} elements and no labels, too many to "
                    f"compare; select with isel={self.source}=<positions>",
                    dim=self.source,
                    found=size,
                    allowed=MOST_COMPARED,
                )
            return pa.array(selection.positions(), type=self.arrow_type)
        start, stop = (0, size) if size <= WHOLE_LABELS else (selection.start, selection.stop)
        stored = arrays.stored_labels(self.path, size, start, stop)
        return self.decoder.decode(stored[selection.positions() - start])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns and dimensions that a scan produces.

    Parameters
    ----------
    dims, sizes
        The dimensions of the table. In the layouts ``chunks`` and ``refs``: all dimensions that
        can be selected on.
    arrays
        Paths of the arrays that the table is made of: the variables of ``cells`` and
        ``summary``, the arrays of ``chunks`` and ``refs``.
    value_columns
        Columns that a condition may name: those of the layout ``cells``, and the coordinates of
        the group along the table's dimensions. ``chunks`` and ``refs`` have dimensions only.
    block
        In the layout ``summary``: elements of a block along each dimension, or None to use the
        chunks.
    decoded
        In the layout ``chunks``: whether the data are decoded.
    """

    layout: Layout = "cells"
    dims: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    columns: tuple[Column, ...] = ()
    arrays: tuple[str, ...] = ()
    value_columns: tuple[Column, ...] = ()
    block: tuple[int | None, ...] = ()
    decoded: bool = True

    @property
    def sizes_by_dim(self) -> dict[str, int]:
        """The length of each dimension."""
        return dict(zip(self.dims, self.sizes, strict=True))

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches, with field metadata."""
        return pa.schema([column.arrow_field for column in self.columns])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def needed(self, residual: Residual | None) -> list[Column]:
        """Return the columns of values that rows or a condition need, one for each source.

        Scans identify columns by their source; only rows use the user's spelling of names.
        """
        sources = {column.source for column in self.columns}
        sources.update(() if residual is None else residual.columns)
        found = {column.source: column for column in self.value_columns if column.source in sources}
        if self.layout == "cells":
            # A scan of cells may have positions in place of the labels of a dimension.
            found.update((column.source, column) for column in self.columns)
        return list(found.values())

    def selections(self, chosen: Mapping[str, DimSelection]) -> list[DimSelection]:
        """Return the selection along each dimension; whole if it is not in ``chosen``."""
        return [
            chosen.get(dim) or DimSelection.whole(size)
            for dim, size in zip(self.dims, self.sizes, strict=True)
        ]

    def column(self, name: str) -> Column:
        """Return the column of a name, or else the only one that differs from it in case alone."""
        for column in self.columns:
            if column.name == name:
                return column
        alike = [column for column in self.columns if column.name.casefold() == name.casefold()]
        if len(alike) == 1:
            return alike[0]
        raise InvalidInputError(
            unknown("column", name, self.names), column=name, existing=self.names
        )

    def select(self, names: Sequence[str]) -> Table:
        """Keep some columns, in the order and the spelling of ``names``."""
        if not names:
            raise InvalidInputError(
                f"no column is selected; the table has {', '.join(self.names)}",
                columns=(),
                existing=self.names,
            )
        if len({name.casefold() for name in names}) < len(names):
            raise InvalidInputError(
                f"a column is selected twice: {', '.join(names)}",
                columns=tuple(names),
                existing=self.names,
            )
        return replace(self, columns=tuple(replace(self.column(name), name=name) for name in names))


def describe(variable: Variable, role: Role, decoder: VariableDecoder) -> dict[str, Any]:
    """Return the metadata of an array's column, sufficient to write it back without options.

    Tables add ``table_dimensions``, ``order`` and ``group_attributes`` to their dimensions.
    """
    metadata = variable.metadata
    raw = metadata.raw
    described: dict[str, Any] = {
        "role": role,
        "dimensions": list(variable.dims),
        "shape": list(variable.shape),
        "stored_dtype": raw.get("data_type"),
        "fill_value": raw.get("fill_value"),
        "codecs": raw.get("codecs"),
    }
    grid = metadata.grid
    outer = None if grid.chunk_shape is None else list(grid.chunk_shape)
    if outer is None:
        described["chunk_grid"] = raw.get("chunk_grid")
    sharding = variable.codecs.sharding
    if sharding is None:
        described["chunks"] = outer
    else:
        described["chunks"] = list(sharding.inner_shape)
        described["shards"] = outer
    described["attributes"] = dict(decoder.attributes)
    described["encoding"] = dict(decoder.encoding)
    return described


def check_names(columns: Sequence[Column]) -> None:
    """Raise InvalidInputError if two columns have one name, or differ in case alone."""
    seen: dict[str, Column] = {}
    for column in columns:
        other = seen.setdefault(column.name.casefold(), column)
        if other is column:
            continue
        if other.name == column.name:
            raise InvalidInputError(
                f"{column.path or column.name} cannot be a column: {column.name!r} is the "
                f"{other.role} column already. An array with the name of a dimension that it "
                "does not label cannot be a column of this table; name the other arrays with the "
                "option variables, or read this one with layout=chunks",
                columns=(other.name, column.name),
            )
        raise InvalidInputError(
            f"the columns {other.name!r} and {column.name!r} differ in case alone, and Spark "
            "compares names without case; name one of them with the option variables",
            columns=(other.name, column.name),
        )


def direction(labels: NDArray[Any]) -> int:
    """Return 1 if labels ascend, -1 if they descend, 0 if neither."""
    if len(labels) < 2 or bool(np.all(labels[1:] > labels[:-1])):
        return 1
    return -1 if bool(np.all(labels[1:] < labels[:-1])) else 0


def described_order(labels: NDArray[Any]) -> str | list[Any] | None:
    """Return ``ascending``, ``descending``, or the stored labels themselves if they are few.

    None stands for any other order, or labels that JSON cannot hold. Rows of a table have no order:
    without this, a descending latitude would be written back ascending.
    """
    if labels.dtype.names is not None or labels.dtype.kind in "cV":
        return None
    found = direction(labels)
    if found:
        return "ascending" if found > 0 else "descending"
    if len(labels) > _MOST_LISTED_LABELS or labels.dtype.kind == "S":
        return None
    values = labels.view(np.int64) if labels.dtype.kind in "Mm" else labels
    listed: list[Any] = values.tolist()
    if not all(isinstance(value, str | int | float) and value == value for value in listed):
        return None
    return listed
