"""Builds the table of a layout from the arrays of a group; refuses options of other layouts.

===========  ==========================================================================
layout       columns
===========  ==========================================================================
``cells``    dimensions, variables, requested coordinates
``chunks``   ``array chunk start shape dtype data``
``refs``     ``array chunk kind chunk_id location offset length etag last_modified``
``summary``  per dimension ``<d>_first <d>_last``; per variable ``<v>_count <v>_nulls
             <v>_min <v>_max <v>_sum <v>_mean <v>_m2``
===========  ==========================================================================

``count`` and ``nulls`` add up to the cells of the block that were selected; ``m2`` is the sum of
squared differences from ``mean``, so that blocks can be merged into exact variances. ``sum``,
``mean`` and ``m2`` exist for numbers only; ``min`` and ``max`` also for times and durations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable, named_variables
from icechunk_format.groups.dimension_sets import DimensionSet, choose_dimensions
from icechunk_format.names import choose, unknown
from icechunk_format.tables.cf.arrow_values import TimestampType, is_number
from icechunk_format.tables.cf.decode import (
    VariableDecoder,
    attribute_decoder,
    inherit_time_attributes,
)
from icechunk_format.tables.table.table import (
    LAYOUTS,
    Column,
    Fields,
    Layout,
    Role,
    Table,
    check_names,
    describe,
)

# Spark and Arrow's plain binary hold at most this many bytes in one value.
_MOST_VALUE_BYTES = 2**31 - 1


class ColumnFactory:
    """Makes columns of the variables of one group.

    Parameters
    ----------
    variables
        All arrays of the group, by name.
    decode_cf
        Whether CF attributes are applied.
    named
        Whether the user named the arrays; if not, errors explain how to name the others.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        *,
        decode_cf: bool,
        timestamp_type: TimestampType,
        named: bool,
    ) -> None:
        self.variables = variables
        self._decode_cf = decode_cf
        self._timestamp_type = timestamp_type
        self._named = named
        self._attributes: Mapping[str, Mapping[str, Any]] = (
            inherit_time_attributes({name: v.attributes for name, v in variables.items()})
            if decode_cf
            else {}
        )

    def of_variable(self, variable: Variable, role: Role) -> Column:
        """Make the column of an array."""
        try:
            decoder = self._decoder(variable)
            metadata = describe(variable, role, decoder)
        except UnsupportedError as error:
            if self._named:
                raise
            others = [v for v in self.variables.values() if v.name != variable.name and v.dims]
            raise _with_advice(error, others) from error
        return Column(
            name=variable.name,
            arrow_type=decoder.arrow_type,
            role=role,
            source=variable.name,
            path=variable.path,
            dims=variable.dims,
            decoder=decoder,
            metadata=metadata,
        )

    def of_dimension(self, dim: str, size: int) -> Column:
        """Make the column of a dimension: its labels, or its 0-based index."""
        labels = self.variables.get(dim)
        if labels is None or not labels.is_dimension_coordinate:
            return Column(
                name=dim,
                arrow_type=pa.int64(),
                role="dimension",
                source=dim,
                dims=(dim,),
                metadata={"role": "dimension", "dimensions": [dim], "shape": [size]},
            )
        if labels.shape != (size,):
            raise InvalidInputError(
                f"the dimension {dim!r} has {size} elements here, but the array {labels.path} "
                f"that labels it has {labels.shape[0]}; name variables of one size with the "
                "option variables, or repair the group",
                dim=dim,
                size=size,
                labels=labels.shape[0],
            )
        return self.of_variable(labels, "dimension")

    def of_cells(
        self, chosen: DimensionSet, variables: Sequence[Variable], coords: Sequence[Variable]
    ) -> tuple[Column, ...]:
        """Make the columns of the layout ``cells``."""
        # Each dimension column lists all dimensions, so that a writer notices dropped ones.
        among = {"table_dimensions": list(chosen.dims)}
        columns = [
            replace(column, metadata={**column.metadata, **among})
            for column in map(self.of_dimension, chosen.dims, chosen.sizes)
        ]
        is_column = {column.path for column in columns if column.path is not None}
        by_role: dict[Role, Sequence[Variable]] = {"variable": variables, "coordinate": coords}
        for role, arrays in by_role.items():
            for variable in arrays:
                if variable.path in is_column:
                    continue
                foreign = sorted(set(variable.dimensions) - chosen.dimensions)
                if foreign:
                    raise InvalidInputError(
                        f"the coordinate {variable.name!r} has the dimension "
                        f"{', '.join(f'{dim}={size}' for dim, size in foreign)}, which the table "
                        f"of ({', '.join(chosen.dims)}) does not have",
                        coordinate=variable.name,
                        dims=chosen.dims,
                    )
                is_column.add(variable.path)
                columns.append(self.of_variable(variable, role))
        check_names(columns)
        return tuple(columns)

    def of_conditions(
        self, chosen: DimensionSet, coords: Sequence[Variable], shown: Sequence[Column]
    ) -> list[Column]:
        """Make the columns of coordinates that only a condition may name; rows do not hold them."""
        columns: list[Column] = []
        names = {column.name for column in shown}
        for variable in coords:
            if variable.name not in names and set(variable.dimensions) <= chosen.dimensions:
                # Not requested by the user: skipped if it cannot be read.
                with suppress(UnsupportedError):
                    columns.append(self.of_variable(variable, "coordinate"))
        return columns

    def _decoder(self, variable: Variable) -> VariableDecoder:
        return attribute_decoder(
            self._attributes.get(variable.name, variable.attributes),
            variable.metadata.data_type,
            decode_cf=self._decode_cf,
            timestamp_type=self._timestamp_type,
            name=variable.name,
        )


def _with_advice(error: UnsupportedError, others: Sequence[Variable]) -> UnsupportedError:
    """Return an error that also names the arrays that can be read."""
    names = ",".join(variable.name for variable in others)
    return UnsupportedError(
        f"{error.message}\nTo read the other arrays, name them: variables={names}", **error.facts
    )


def layout_columns(fields: Fields) -> tuple[Column, ...]:
    """Make the columns of a layout that describes chunks."""
    return tuple(
        Column(
            name=name,
            arrow_type=arrow_type,
            role="layout",
            source=name,
            metadata={"role": "layout"},
        )
        for name, arrow_type in fields
    )


def summary_columns(cells: Sequence[Column]) -> tuple[Column, ...]:
    """Make the columns of the layout ``summary`` from those of ``cells``."""
    columns: list[Column] = []
    for column in cells:
        if column.role == "dimension":
            statistics = [("first", column.arrow_type), ("last", column.arrow_type)]
        else:
            statistics = [("count", pa.int64()), ("nulls", pa.int64())]
            if column.decoder is not None and column.decoder.is_numeric:
                statistics += [("min", column.arrow_type), ("max", column.arrow_type)]
            # Booleans also have a sum.
            if is_number(column.arrow_type) or pa.types.is_boolean(column.arrow_type):
                total = pa.int64() if sums_to_integer(column.arrow_type) else pa.float64()
                statistics += [("sum", total), ("mean", pa.float64()), ("m2", pa.float64())]
        columns += [
            Column(
                name=f"{column.name}_{statistic}",
                arrow_type=arrow_type,
                role=column.role,
                source=column.name,
                path=column.path,
                dims=column.dims,
                statistic=statistic,
                metadata={**column.metadata, "statistic": statistic, "of": column.name},
            )
            for statistic, arrow_type in statistics
        ]
    check_names(columns)
    return tuple(columns)


def sums_to_integer(arrow_type: pa.DataType) -> bool:
    """Return True if sums of a type are exact in 64 bits for any size of a block."""
    narrow = pa.types.is_integer(arrow_type) and arrow_type.bit_width <= 32
    return bool(narrow or pa.types.is_boolean(arrow_type))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableBuilder:
    """Builds tables of one group."""

    data_variables: Sequence[Variable]
    """The arrays of a table without named variables."""
    label: str
    """The group, for messages."""
    factory: ColumnFactory

    def build(
        self,
        layout: Layout,
        *,
        names: Sequence[str] | None,
        coords: Sequence[str],
        block: Mapping[str, int] | None,
        decoded: bool,
    ) -> Table:
        """Build the table of a layout, with the arguments and errors of ``Dataset.table``."""
        rules = LAYOUTS[choose("layout", layout, LAYOUTS)]
        given = {"block": block is not None, "decoded": not decoded, "coords": bool(coords)}
        for option in given:
            if given[option] and option not in rules.options:
                meant = [name for name, other in LAYOUTS.items() if option in other.options]
                raise InvalidInputError(
                    f"{option} does not apply to layout={layout}: it is for layout="
                    f"{' and '.join(meant)}",
                    option=option,
                    layout=layout,
                )
        if rules.has_values:
            return self._of_cells(layout, names, coords, block)
        return self._of_arrays(layout, names, decoded=decoded)

    def _named(self, names: Sequence[str]) -> list[Variable]:
        return named_variables(names, self.factory.variables, self.label)

    def _of_cells(
        self,
        layout: Layout,
        names: Sequence[str] | None,
        coords: Sequence[str],
        block: Mapping[str, int] | None,
    ) -> Table:
        candidates = self.data_variables if names is None else self._named(names)
        chosen, variables = choose_dimensions(candidates, named=names is not None, label=self.label)
        columns = self.factory.of_cells(chosen, variables, self._named(coords))
        others = [v for v in self.factory.variables.values() if v not in self.data_variables]
        table = Table(
            layout=layout,
            dims=chosen.dims,
            sizes=chosen.sizes,
            columns=columns,
            arrays=tuple(variable.path for variable in variables),
            value_columns=(*columns, *self.factory.of_conditions(chosen, others, columns)),
        )
        if layout == "summary":
            sizes = _block_sizes(block or {}, chosen.dims)
            return replace(table, columns=summary_columns(columns), block=sizes)
        return table

    def _of_arrays(self, layout: Layout, names: Sequence[str] | None, *, decoded: bool) -> Table:
        if names is not None:
            arrays = self._named(names)
        else:
            every = LAYOUTS[layout].takes_coordinates
            arrays = list(self.factory.variables.values() if every else self.data_variables)
        if layout == "chunks" and decoded:
            self._check_chunk_rows(arrays, named=names is not None)
        sizes: dict[str, set[int]] = {}
        for variable in arrays:
            for dim, size in variable.dimensions:
                sizes.setdefault(dim, set()).add(size)
        # A dimension of two sizes cannot be selected on; its arrays are still listed.
        single = {dim: min(found) for dim, found in sizes.items() if len(found) == 1}
        return Table(
            layout=layout,
            dims=tuple(single),
            sizes=tuple(single.values()),
            columns=layout_columns(LAYOUTS[layout].fields),
            arrays=tuple(variable.path for variable in arrays),
            value_columns=tuple(self._label_columns(single)),
            decoded=decoded,
        )

    def _check_chunk_rows(self, arrays: Sequence[Variable], *, named: bool) -> None:
        for variable in arrays:
            try:
                _check_decoded(variable)
            except UnsupportedError as error:
                if named:
                    raise
                raise _with_advice(error, [v for v in arrays if v is not variable]) from error

    def _label_columns(self, sizes: Mapping[str, int]) -> list[Column]:
        """Return the columns that a condition may name: dimensions whose labels can be read."""
        columns = []
        for dim, size in sizes.items():
            labels = self.factory.variables.get(dim)
            if labels is None or not labels.is_dimension_coordinate or labels.shape == (size,):
                # Listing references does not need the labels.
                with suppress(UnsupportedError):
                    columns.append(self.factory.of_dimension(dim, size))
        return columns


def _block_sizes(block: Mapping[str, int], dims: Sequence[str]) -> tuple[int | None, ...]:
    """Return the elements of a block along each dimension; None if not given."""
    for name, size in block.items():
        if name not in dims:
            raise InvalidInputError(
                f"block={name}={size}: {unknown('dimension', name, dims)}",
                option="block",
                name=name,
                dims=tuple(dims),
            )
        if size < 1:
            raise InvalidInputError(
                f"block={name}={size} must be at least 1", option="block", dim=name, found=size
            )
    return tuple(block.get(dim) for dim in dims)


def _check_decoded(variable: Variable) -> None:
    """Raise UnsupportedError if decoded chunks of an array cannot be BINARY values."""
    data_type, codecs = variable.metadata.data_type, variable.codecs
    if data_type.numpy.hasobject:
        raise UnsupportedError(
            f"array {variable.path} holds {data_type.name} values, which have no fixed size; read "
            "its stored chunks with decoded=false, or its values with layout=cells",
            array=variable.path,
            data_type=data_type.name,
        )
    grid = variable.metadata.grid
    shape = codecs.sharding.inner_shape if codecs.sharding is not None else grid.chunk_shape
    nbytes = math.prod(shape or ()) * data_type.numpy.itemsize
    if nbytes > _MOST_VALUE_BYTES:
        raise UnsupportedError(
            f"a chunk of array {variable.path} has {nbytes} bytes decoded, and a value in Spark "
            f"at most {_MOST_VALUE_BYTES}; read it with layout=cells",
            array=variable.path,
            nbytes=nbytes,
        )
