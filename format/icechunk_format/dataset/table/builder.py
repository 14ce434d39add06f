"""Builds the table of a layout from the arrays of a group; refuses options that do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from icechunk_format.dataset.table.chunk_row_rules import check_chunk_rows
from icechunk_format.dataset.table.columns import (
    ColumnFactory,
    layout_columns,
    summary_columns,
)
from icechunk_format.dataset.table.dimension_sets import choose_dimensions, named_variables
from icechunk_format.dataset.table.layouts import LAYOUTS, Layout
from icechunk_format.dataset.table.table import Column, Table
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.names import choose, unknown


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableBuilder:
    """Builds tables of one group.

    Parameters
    ----------
    data_variables
        The arrays of a table for which the user names none.
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
        """Build the table of a layout; arguments and errors are those of ``Dataset.table``."""
        rules = LAYOUTS[choose("layout", layout, LAYOUTS)]
        if block is not None and "block" not in rules.options:
            raise InvalidInputError(
                f"block={dict(block)} goes with layout=summary, not with layout={layout}",
                layout=layout,
            )
        if not decoded and "decoded" not in rules.options:
            raise InvalidInputError(
                f"decoded=false goes with layout=chunks, not with layout={layout}; "
                "for stored values use decodeCf=false",
                layout=layout,
            )
        if coords and "coords" not in rules.options:
            raise InvalidInputError(
                f"coords goes with layout=cells; with layout={layout} name the arrays with "
                "the option variables",
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
        if layout == "chunks":
            self._check_chunk_rows(arrays, named=names is not None, decoded=decoded)
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

    def _check_chunk_rows(self, arrays: Sequence[Variable], *, named: bool, decoded: bool) -> None:
        for variable in arrays:
            try:
                check_chunk_rows(variable, decoded=decoded)
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
    """Return the elements of a block along each dimension; None where none are given."""
    for name, size in block.items():
        if name not in dims:
            raise InvalidInputError(
                f"block={name}={size}: {unknown('dimension', name, dims)}",
                dims=tuple(dims),
            )
        if size < 1:
            raise InvalidInputError(f"block={name}={size} must be at least 1", dim=name)
    return tuple(block.get(dim) for dim in dims)
