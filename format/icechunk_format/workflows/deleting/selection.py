"""Resolves the selection of a deletion to labels of one dimension, or to the cells of a region.

Rules of this file
------------------
1. A selection that restricts only one dimension deletes labels of that dimension.
2. A condition on values, or a selection that restricts several dimensions, is a region: its cells
   become missing, and labels are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icechunk_format.dataset import Dataset
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.dataset.selection.select import Selecting, Selection
from icechunk_format.dataset.selection.where.condition import Residual
from icechunk_format.dataset.table.table import Table
from icechunk_format.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsToDelete:
    """Labels of one dimension, to delete."""

    dim: str
    labels: DimSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionToDelete:
    """The cells of a region of a table.

    Parameters
    ----------
    variables
        Names of the arrays whose cells become missing. Each has all restricted dimensions; with a
        condition on values, exactly the dimensions of the table.
    selections
        Selected positions by restricted dimension.
    residual
        The condition on values.
    """

    table: Table
    variables: tuple[str, ...]
    selections: Mapping[str, DimSelection]
    residual: Residual | None

    @property
    def is_empty(self) -> bool:
        """True if the selection has no cells."""
        return any(not chosen.count for chosen in self.selections.values())


def what_to_delete(
    dataset: Dataset, variables: tuple[str, ...] | None, selecting: Selecting
) -> LabelsToDelete | RegionToDelete:
    """Resolve a selection of a group.

    Raises
    ------
    InvalidInputError
        The selection is empty or covers every cell, or a name or value is invalid.
    """
    if not any(selecting.get(name) for name in ("where", "sel", "isel")):
        raise InvalidInputError(
            "delete needs where, sel or isel; to remove a variable with all its labels, use"
            " Repository.drop",
            option="where",
        )
    table, chosen = _chosen(dataset, variables, selecting)
    restricted = {dim: found for dim, found in chosen.dims.items() if not found.is_whole}
    if chosen.residual is None and variables is None and len(restricted) < 2:
        if restricted:
            [(dim, labels)] = restricted.items()
            return LabelsToDelete(dim=dim, labels=labels)
        named = list(chosen.dims)
        if len(named) == 1:
            return LabelsToDelete(dim=named[0], labels=chosen.dims[named[0]])
        raise InvalidInputError(
            f"the selection has every cell of {dataset.label}; to delete labels, restrict"
            " one dimension; to remove variables, use Repository.drop",
            dims=tuple(named),
        )
    names = variables
    if names is None:
        every = dataset.data_variables
        names = tuple(v.name for v in every if _takes_part(v.dims, table, chosen, restricted))
    for name in names:
        dims = dataset.variables[name].dims
        if not _takes_part(dims, table, chosen, restricted):
            needed = table.dims if chosen.residual is not None else tuple(restricted)
            raise InvalidInputError(
                f"variable {name!r} has the dimensions ({', '.join(dims)}), and the selection needs"
                f" ({', '.join(needed)}); leave it out of variables",
                variable=name,
                dims=dims,
            )
    return RegionToDelete(
        table=table, variables=names, selections=restricted, residual=chosen.residual
    )


def _takes_part(
    dims: tuple[str, ...], table: Table, chosen: Selection, restricted: Mapping[str, Any]
) -> bool:
    if chosen.residual is not None:
        return sorted(dims) == sorted(table.dims)
    return set(restricted) <= set(dims)


def _chosen(
    dataset: Dataset, variables: tuple[str, ...] | None, selecting: Selecting
) -> tuple[Table, Selection]:
    """Return the table that the selection applies to, and the resolved selection."""
    try:
        table = dataset.table("cells", variables=variables)
        return table, dataset.choose(table, **selecting)
    except InvalidInputError:
        if variables is not None:
            raise
        # The default table may not have the selected dimensions, or may be ambiguous.
        seen: set[tuple[str, ...]] = set()
        for variable in dataset.data_variables:
            if variable.dims in seen:
                continue
            seen.add(variable.dims)
            try:
                table = dataset.table("cells", variables=(variable.name,))
                chosen = dataset.choose(table, **selecting)
            except InvalidInputError:
                continue
            if chosen.residual is None:
                return table, chosen
        raise
