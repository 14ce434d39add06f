"""Builds the table of a layout from the arrays of a group; refuses options of other layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from icechunk_format.dataset.table.columns import ColumnFactory, layout_columns, summary_columns
from icechunk_format.dataset.table.dimension_sets import choose_dimensions, named_variables
from icechunk_format.dataset.table.layouts import LAYOUTS, Layout
from icechunk_format.dataset.table.table import Column, Table
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.names import choose, unknown

# Spark and Arrow's plain binary hold at most this many bytes in one value.
_MOST_VALUE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableBuilder:
    """Builds tables of one group.

    Parameters
    ----------
    data_variables
        The arrays of a table without named variables.
    label
        The group, for messages.
    """

    variables: Mapping[str, Variable]
    data_variables: Sequence[Variable]
    label: str
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
        return named_variables(names, self.variables, self.label)

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
        others = [v for v in self.variables.values() if v not in self.data_variables]
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
            arrays = list(self.variables.values() if every else self.data_variables)
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
                others = ",".join(v.name for v in arrays if v is not variable)
                raise UnsupportedError(
                    f"{error.message}\nTo read the other arrays, name them: variables={others}",
                    **error.facts,
                ) from error

    def _label_columns(self, sizes: Mapping[str, int]) -> list[Column]:
        """Return the columns that a condition may name: dimensions whose labels can be read."""
        columns = []
        for dim, size in sizes.items():
            labels = self.variables.get(dim)
            if labels is not None and labels.is_dimension_coordinate:
                if labels.shape != (size,):
                    continue
                try:
                    columns.append(self.factory.of_dimension(dim, size))
                except UnsupportedError:
                    # Listing references does not need the labels.
                    continue
            else:
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
