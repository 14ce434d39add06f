"""Opens the further sources of a mapping at one snapshot, and aligns them with the blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import Variable, named_variables
from icechunk_format.names import check_names, choose, shown
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables import Dataset, open_requested, single_selectors
from icechunk_format.tables.reading import DURATION_EXAMPLES, read_duration
from icechunk_format.workflows.mapping.others.labels import (
    METHODS,
    Method,
    SourceLabels,
    match,
    refuse_unmatched,
)
from icechunk_format.workflows.mapping.others.source import OtherSource, Positions
from icechunk_format.workflows.mapping.record import RECORD_KEY
from icechunk_format.workflows.mapping.spans import time_spans
from icechunk_format.workflows.rectangle import common_sizes, selected_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRequest:
    """A further source of a mapping, with the options of ``others`` in ``map_blocks``.

    Parameters
    ----------
    method
        How labels are matched, for all dimensions or by dimension: ``exact``, ``nearest``, or
        ``whole`` for dimensions that each block reads as a whole.
    tolerance
        Largest distance to the nearest label, for all dimensions or by dimension; a duration for
        times.
    """

    name: str
    read: ReadRequest
    method: str | Mapping[str, str] = "exact"
    tolerance: Any = None

    def method_of(self, dim: str) -> Method:
        """Return the method of a dimension."""
        given = self.method if isinstance(self.method, str) else self.method.get(dim, "exact")
        found: Method = choose(f"method of {self.name!r} in others", given, METHODS)
        return found

    def tolerance_of(self, labels: SourceLabels) -> float | None:
        """Return the tolerance of a dimension, in microseconds for times."""
        dim = labels.variable.name
        given = self.tolerance
        if isinstance(given, Mapping):
            given = given.get(dim)
        if given is None:
            return None
        is_time = labels.labels.is_time or labels.labels.is_duration
        found = _duration(given) if is_time else _number(given)
        if found is None or not found >= 0:
            wanted = f"a duration such as {DURATION_EXAMPLES}" if is_time else "a number from 0"
            raise InvalidInputError(
                f"others: the tolerance of {self.name!r} along {dim!r} is {shown(given)}; its"
                f" labels are {labels.kind}, so give {wanted}, or give it by dimension:"
                f" tolerance={{{dim!r}: ...}}",
                option="others",
                source=self.name,
                dimension=dim,
            )
        return found

    def settings(self) -> dict[str, Any]:
        """Return the settings that affect the elements of a block."""
        given = {name: getattr(self.read, name) for name in ("sel", "isel")}
        given |= {"method": self.method, "tolerance": self.tolerance}
        plain = {key: value for key, value in given.items() if value not in (None, "exact")}
        return {key: v if isinstance(v, Mapping) else str(v) for key, v in plain.items()}


class OpenedOther(NamedTuple):
    """A further source with its repository and group, for the driver."""

    request: OtherRequest
    repository: RepositoryReader
    dataset: Dataset
    own: OtherSource


def open_other(
    request: OtherRequest, first: Dataset, selected: Mapping[str, tuple[int, int]]
) -> OpenedOther:
    """Open a further source, and match its labels with those of the blocks.

    Parameters
    ----------
    first
        The group that is divided into blocks.
    selected
        Its selected range of elements, by dimension.

    Raises
    ------
    InvalidInputError
        A label does not match, or a dimension without labels has another length.
    """
    read = request.read
    repository, dataset = open_requested(read)
    arrays = _arrays_of(request, dataset)
    chosen = chosen_ranges(request, dataset)
    for option in ("method", "tolerance"):
        given = getattr(request, option)
        if isinstance(given, Mapping):
            check_names(f"{option} of {request.name!r} in others", "dimension", given, chosen)
    dropped = _dropped(request, dataset, chosen)
    shared = [
        dim
        for dim in chosen
        if dim in selected and dim not in dropped and request.method_of(dim) != "whole"
    ]
    positions: dict[str, Positions] = {}
    labelled = []
    for dim in shared:
        found = aligned(request, first, dataset, dim, selected[dim], chosen[dim])
        if found is None:
            positions[dim] = _by_position(request, dim, selected[dim], chosen[dim])
            continue
        labels, matched = found
        if (matched < 0).any():
            refuse_unmatched(*labels, selected[dim], chosen[dim], matched, request.method_of(dim))
        positions[dim] = _compact(matched)
        labelled.append(dim)
    own = OtherSource(
        name=request.name,
        source=dataset.source,
        paths={name: variable.path for name, variable in arrays.items()},
        dims={name: variable.dims for name, variable in arrays.items()},
        positions=positions,
        ranges={dim: own for dim, own in chosen.items() if dim not in positions},
        labelled=tuple(labelled),
        dropped=dropped,
        attributes={k: v for k, v in dataset.attributes.items() if k != RECORD_KEY},
        spans=time_spans(dataset, arrays),
    )
    return OpenedOther(request, repository, dataset, own)


def chosen_ranges(request: OtherRequest, dataset: Dataset) -> dict[str, tuple[int, int]]:
    """Return the selected range of elements of each dimension of a source."""
    sizes = common_sizes(_arrays_of(request, dataset).values(), dataset.label)
    whole = {dim: (0, size) for dim, size in sizes.items()}
    return whole | selected_ranges(dataset, sizes, sel=request.read.sel, isel=request.read.isel)


def _dropped(
    request: OtherRequest, dataset: Dataset, chosen: Mapping[str, tuple[int, int]]
) -> tuple[str, ...]:
    """Return the dimensions selected by one position or label, which are dropped as by xarray.

    A string selects a period of times, so these keep their dimension.
    """
    read = request.read
    sizes = {dim: stop - start for dim, (start, stop) in chosen.items()}
    found = single_selectors("isel", read.isel, sizes)
    for dim, is_string in single_selectors("sel", read.sel, sizes).items():
        labels = SourceLabels.of(dataset, dim, request.name) if is_string else None
        if labels is None or labels.kind in ("strings", "numbers"):
            found[dim] = is_string
    return tuple(dim for dim, size in sizes.items() if dim in found and size == 1)


def _arrays_of(request: OtherRequest, dataset: Dataset) -> dict[str, Variable]:
    """Return the selected data variables, and all other arrays."""
    names = request.read.variables
    named_variables(names or (), dataset.variables, dataset.label)
    data = {variable.name for variable in dataset.data_variables}
    left_out = set() if names is None else data - set(names)
    return {name: v for name, v in dataset.variables.items() if name not in left_out}


def aligned(
    request: OtherRequest,
    first: Dataset,
    other: Dataset,
    dim: str,
    mine: tuple[int, int],
    own: tuple[int, int],
) -> tuple[tuple[SourceLabels, SourceLabels], NDArray[np.int64]] | None:
    """Match the labels of a dimension; None if one of the two has no labels.

    Positions of labels that `other` does not have are -1.
    """
    one = SourceLabels.of(first, dim, "the blocks")
    two = SourceLabels.of(other, dim, request.name)
    if one is None or two is None:
        return None
    method, tolerance = request.method_of(dim), request.tolerance_of(two)
    return (one, two), match(one, two, mine, own, method, tolerance)


def _by_position(
    request: OtherRequest, dim: str, mine: tuple[int, int], own: tuple[int, int]
) -> range:
    """Return the elements of a dimension without labels, which must be as many."""
    lengths = [stop - start for start, stop in (mine, own)]
    if lengths[0] != lengths[1]:
        raise InvalidInputError(
            f"others: {dim!r} has {lengths[1]} elements in {request.name!r} and {lengths[0]} in the"
            f" blocks, and no labels in one of them; select as many elements with isel, or read all"
            f" of them in each block with method={{{dim!r}: 'whole'}}",
            option="others",
            source=request.name,
            dimension=dim,
        )
    return range(*own)


def _compact(positions: NDArray[np.int64]) -> Positions:
    """Return an arithmetic sequence as a range."""
    if len(positions) < 2:
        return positions
    step = int(positions[1] - positions[0])
    if not step or (np.diff(positions) != step).any():
        return positions
    return range(int(positions[0]), int(positions[-1]) + (1 if step > 0 else -1), step)


def _duration(given: Any) -> float | None:
    """Return a duration in microseconds; None if it is not one."""
    if isinstance(given, str):
        return read_duration(given)
    if isinstance(given, np.timedelta64):
        given = given.astype("m8[us]").item()
    return given / timedelta(microseconds=1) if isinstance(given, timedelta) else None


def _number(given: Any) -> float | None:
    try:
        return None if isinstance(given, bool | timedelta) else float(given)
    except (TypeError, ValueError):
        return None
