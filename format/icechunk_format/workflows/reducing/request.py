"""Defines the arguments and results of a reduction, and opens its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icechunk_format.display import shown_by
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable, named_variables
from icechunk_format.groups.changing import WriteResult
from icechunk_format.names import check_names
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import RepositoryReader
from icechunk_format.storage.location import Location
from icechunk_format.tables import Dataset, open_requested
from icechunk_format.workflows.rectangle import Ranges, common_sizes, selected_ranges
from icechunk_format.workflows.reducing.grouping import (
    By,
    LabelArray,
)
from icechunk_format.workflows.reducing.outputs import (
    Names,
    Wanted,
    wanted_statistics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceRequest:
    """Arguments of a reduction, as in ``icechunk_spark.reduce``.

    Parameters
    ----------
    read
        The group, its snapshot, and the selected region.
    target, options
        The repository of the result, and how it is committed; None for values on the driver.
    """

    read: ReadRequest
    statistics: Mapping[str, Names] | Names
    over: tuple[str, ...]
    by: By | None = None
    weights: Any = None
    target: Location | None
    options: WriteOptions
    memory: int
    follow: bool = False
    skipna: bool | None = None
    min_count: int | None = None
    ddof: int = 0
    keep_attrs: bool = True


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceResult:
    """The result of a reduction, or of its dry run.

    Attributes
    ----------
    arrays
        Paths of the arrays of statistics.
    direct, shuffled
        Number of source arrays without and with a shuffle.
    tasks
        Number of tasks.
    decoded_bytes
        Decoded bytes of the source arrays.
    shuffled_bytes
        Maximum bytes of parts that Spark shuffles.
    written_bytes
        Decoded bytes of the result.
    requests
        Maximum number of chunks to read and write. Missing chunks are not read, and chunks of fill
        values are not written.
    buffer_bytes
        Maximum bytes of parts that a task holds.
    layout
        Dimensions, coordinates and variables of the result, as xarray shows them.
    full_run
        The reason why a run with ``follow`` read everything; None if it read only what changed.
    commit
        The result of the write; None for a dry run.
    """

    arrays: tuple[str, ...]
    direct: int = 0
    shuffled: int = 0
    tasks: int = 0
    decoded_bytes: int = 0
    shuffled_bytes: int = 0
    written_bytes: int = 0
    requests: int = 0
    buffer_bytes: int = 0
    layout: str = ""
    full_run: str | None = None
    commit: WriteResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReducedArrays:
    """A result on the driver: stored values and attributes of each variable."""

    variables: Mapping[str, LabelArray]
    """Variables by name, as stored."""
    coordinates: tuple[str, ...]
    """Names of the coordinates among them."""
    attributes: Mapping[str, Any]
    """Attributes of the group."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """The group that is reduced, and its variables."""

    repository: RepositoryReader
    dataset: Dataset
    wanted: Mapping[str, list[Wanted]]
    chosen: list[Variable]

    @classmethod
    def of(cls, request: ReduceRequest) -> Source:
        """Open the group; raise InvalidInputError for unknown statistics and dimensions."""
        read = request.read
        repository, dataset = open_requested(read)
        wanted = wanted_statistics(request.statistics, _default_names(dataset, request))
        chosen = named_variables(list(wanted), dataset.variables, dataset.label)
        named = chosen or dataset.data_variables
        dims = list(dict.fromkeys(dim for variable in named for dim in variable.dims))
        check_names("over", "dimension", request.over, dims)
        if len(set(request.over)) < len(request.over) or not request.over:
            raise InvalidInputError(
                f"over has {', '.join(request.over) or 'no dimension'}; name each reduced dimension"
                " once",
                option="over",
            )
        return cls(repository=repository, dataset=dataset, wanted=wanted, chosen=chosen)

    def ranges(self, request: ReduceRequest) -> tuple[dict[str, int], Ranges]:
        """Return the lengths of selected dimensions, and the selected ranges."""
        sizes = common_sizes(self.chosen, self.dataset.label)
        read = request.read
        ranges = selected_ranges(self.dataset, sizes, sel=read.sel, isel=read.isel)
        return sizes | {dim: stop - start for dim, (start, stop) in ranges.items()}, ranges

    def others(self, request: ReduceRequest) -> list[str]:
        """Return the names of labels and weights."""
        dims = {dim for variable in self.chosen for dim in variable.dims}
        data = {variable.name for variable in self.dataset.data_variables}
        names = {variable.name for variable in self.chosen}
        return [
            one.name
            for one in self.dataset.variables.values()
            if one.name not in names
            and (one.name == request.weights or one.name not in data)
            and (not one.dims or dims & {*one.dims})
        ]


def _default_names(dataset: Dataset, request: ReduceRequest) -> list[str]:
    """Return the names of variables if none are given: numbers with a reduced dimension."""
    if request.read.variables is not None:
        return list(request.read.variables)
    return [
        variable.name
        for variable in dataset.data_variables
        if set(request.over) & {*variable.dims} and variable.metadata.data_type.numpy.kind in "biuf"
    ]
