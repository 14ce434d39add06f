"""Deletes labels of a dimension, or the cells of a region, in one commit.

Rules of this file
------------------
1. The selection is resolved at the tip of the branch, and again at the new tip if other writers
   change the same chunks or arrays meanwhile. The number of attempts is limited.
2. A selection that restricts only one dimension deletes labels of that dimension. A condition on
   values, or a selection that restricts several dimensions, is a region: its cells become missing,
   and labels are kept.
3. The argument ``run`` runs the tasks, in this process or on Spark's executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from icechunk_format.display import shown_by
from icechunk_format.display.plain_text import one_line
from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.groups.changing import (
    ArraysCommit,
    Destination,
    WriteResult,
    commit_arrays,
    open_destination,
)
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.tables import Dataset, Selecting, Selection, Table, dataset_at, selecting
from icechunk_format.tables.reading import ScanContext
from icechunk_format.tables.writing import (
    CellDeletion,
    CellReceipt,
    blank_cells,
    blanked,
    cell_tasks,
)
from icechunk_format.workflows.deleting.labels import (
    LabelDeletion,
    label_tasks,
    move_labels,
    shrunk,
)
from icechunk_format.workflows.running import Run

# Positions of kept labels are held in memory: 8 GiB.
_MOST_LABELS: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """Arguments of a deletion, as in ``icechunk_spark.delete``."""

    read: ReadRequest
    options: WriteOptions
    time_zone: str | None = None
    dry_run: bool = False


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """The result of a deletion, or of its dry run.

    Attributes
    ----------
    arrays
        Paths of the arrays that change.
    dim
        The dimension of the deleted labels; None if cells become missing.
    labels
        Number of deleted labels.
    cells
        Number of cells that become missing, by path of the array; empty if labels are deleted.
    tasks
        Number of tasks.
    commit
        The result of the write, which is skipped if nothing is selected; None for a dry run.
    """

    arrays: tuple[str, ...]
    dim: str | None = None
    labels: int = 0
    cells: Mapping[str, int]
    tasks: int = 0
    commit: WriteResult | None = None


def delete_selected(request: DeleteRequest, run: Run) -> DeleteResult:
    """Delete labels or cells, in one commit."""
    read = request.read

    def attempt(_: int) -> DeleteResult | RaceLost:
        opened = open_destination(location_of(read), request.options, access_of(read))
        if isinstance(opened, WriteResult):
            return DeleteResult(arrays=(), cells={}, commit=opened)
        try:
            destination, repository = opened[0], Repository.open(location_of(read))
            assert destination.base is not None, "the repository exists"
            dataset = dataset_at(read, repository, destination.base)
            return _Deletion(
                request=request, destination=destination, dataset=dataset, run=run
            ).result()
        except ConflictError as error:
            if request.options.on_conflict == "fail":
                raise
            return RaceLost(why=one_line(str(error)), error=error)

    return until_won(attempt, location_of(read), branch=request.options.branch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Deletion:
    """A deletion on the current state of the repository."""

    request: DeleteRequest
    destination: Destination
    dataset: Dataset
    run: Run

    def result(self) -> DeleteResult:
        """Resolve the selection, and delete labels or cells."""
        read, dataset = self.request.read, self.dataset
        variables, options = read.variables, selecting(read, self.request.time_zone)
        if not any(options.get(name) for name in ("where", "sel", "isel")):
            raise InvalidInputError(
                "delete needs where, sel or isel; to remove a variable with all its labels, use"
                " Repository.drop",
                option="where",
            )
        # A rounded label would delete another one.
        table, chosen = _table_of(dataset, variables, {**options, "exactly": True})
        restricted = {dim: found for dim, found in chosen.dims.items() if not found.is_whole}
        if chosen.residual is None and variables is None and len(restricted) < 2:
            named = list(restricted or chosen.dims)
            if len(named) == 1:
                return self._delete_labels(named[0], chosen.dims[named[0]])
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
            variable = dataset.variables[name]
            dims = variable.dims
            if variable.is_dimension_coordinate:
                raise InvalidInputError(
                    f"{name!r} holds the labels of a dimension, which cannot be missing; leave it"
                    " out of variables, or leave variables out to delete the labels with their"
                    " cells",
                    option="variables",
                    variable=name,
                )
            if not _takes_part(dims, table, chosen, restricted):
                needed = table.dims if chosen.residual is not None else tuple(restricted)
                raise InvalidInputError(
                    f"variable {name!r} has the dimensions ({', '.join(dims)}), and the selection"
                    f" needs ({', '.join(needed)}); leave it out of variables",
                    variable=name,
                    dims=dims,
                )
        return self._delete_cells(table, names, replace(chosen, dims=restricted))

    def _delete_labels(self, dim: str, labels: DimSelection) -> DeleteResult:
        dataset, count = self.dataset, labels.count
        if labels.size > _MOST_LABELS:
            raise InvalidInputError(
                f"dimension {dim!r} of {dataset.label} has {labels.size:,} elements; labels"
                f" are deleted from at most {_MOST_LABELS:,}",
                dim=dim,
                found=labels.size,
                allowed=_MOST_LABELS,
            )
        variables = [v for v in dataset.variables.values() if dim in v.dims] if count else []
        for variable in variables:
            if {size for name, size in variable.dimensions if name == dim} != {labels.size}:
                raise InvalidInputError(
                    f"arrays of {dataset.label} have different sizes along {dim!r}; repair the"
                    " group first",
                    dim=dim,
                )
        named = bool(variables) and _has_distinct_labels(dataset, dim)
        arrays = {v.path: shrunk(v, dim, labels, has_labels=named) for v in variables}
        tasks = [task for v in variables for task in label_tasks(arrays[v.path], v.metadata)]
        result = DeleteResult(
            arrays=tuple(arrays), dim=dim, labels=count, cells={}, tasks=len(tasks)
        )
        if self.request.dry_run or not count:
            return self._unchanged(result)
        work = LabelDeletion(destination=self.destination, arrays=arrays)
        receipts = self.run(partial(move_labels, work), tasks)
        change = ArraysCommit(
            destination=self.destination,
            options=self.request.options,
            arrays=[array.target for array in arrays.values()],
            still={
                v.path: arrays[v.path].still(v.metadata)
                for v in variables
                if arrays[v.path].in_place
            },
            message=f"Delete {count:,} label{'' if count == 1 else 's'} of {dim}",
        )
        return replace(result, commit=commit_arrays(change, receipts))

    def _delete_cells(
        self, table: Table, names: tuple[str, ...], chosen: Selection
    ) -> DeleteResult:
        """Make the cells of a region missing, in arrays that have all restricted dimensions.

        With a condition on values, these have exactly the dimensions of the table.
        """
        arrays = {}
        if all(along.count for along in chosen.dims.values()):
            for name in names:
                variable = self.dataset.variables[name]
                arrays[variable.path] = blanked(variable, chosen.dims)
        tasks = [task for array in arrays.values() for task in cell_tasks(array)]
        work = CellDeletion(
            destination=self.destination,
            arrays=arrays,
            condition=None if chosen.residual is None else _condition(self.dataset, table, chosen),
            dry_run=self.request.dry_run,
        )
        receipts: list[CellReceipt] = list(self.run(partial(blank_cells, work), tasks))
        cells = dict.fromkeys(arrays, 0)
        for receipt in receipts:
            cells[receipt.path] += receipt.cells
        result = DeleteResult(arrays=tuple(arrays), cells=cells, tasks=len(tasks))
        if self.request.dry_run or not any(cells.values()):
            return self._unchanged(result)
        change = ArraysCommit(
            destination=self.destination,
            options=self.request.options,
            arrays=[array.target for array in arrays.values()],
            message=f"Delete cells of {', '.join(names)}",
        )
        return replace(result, commit=commit_arrays(change, [one.task for one in receipts]))

    def _unchanged(self, result: DeleteResult) -> DeleteResult:
        """Return the result of a dry run, or of a selection without labels or cells."""
        if self.request.dry_run:
            return result
        reason = "the selection is empty"
        skipped = WriteResult.skipped(self.request.options, self.destination.base, reason)
        return replace(result, commit=skipped)


def _has_distinct_labels(dataset: Dataset, dim: str) -> bool:
    """Return True if cells are followed by their labels, not by positions."""
    variable = dataset.variables.get(dim)
    if variable is None or not variable.is_dimension_coordinate:
        return False
    labels = dataset.read(dim)
    return len(np.unique(labels)) == len(labels)


def _condition(dataset: Dataset, table: Table, chosen: Selection) -> ScanContext:
    """Return the scan of the dimension columns of the rows that satisfy the condition."""
    by_dim = {c.source: c.name for c in table.columns if c.role == "dimension"}
    for dim in table.dims:
        labels = dataset.labels(table, dim)
        if len(labels.unique()) < len(labels):
            raise InvalidInputError(
                f"dimension {dim!r} has duplicate labels, so a condition on values cannot"
                " identify its cells; select with sel or isel",
                dim=dim,
            )
    return ScanContext(
        source=dataset.source,
        table=table.select([by_dim[dim] for dim in table.dims]),
        selections=chosen.dims,
        residual=chosen.residual,
    )


def _takes_part(
    dims: tuple[str, ...], table: Table, chosen: Selection, restricted: Mapping[str, Any]
) -> bool:
    if chosen.residual is not None:
        return sorted(dims) == sorted(table.dims)
    return set(restricted) <= set(dims)


def _table_of(
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
