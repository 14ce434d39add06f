"""Plans the sampling of points from metadata: coordinates, variables, fixed dimensions.

Rules of this file
------------------
1. Every dimension of a sampled variable is matched to points (``on``), becomes an array (``keep``),
   is fixed by ``sel`` or ``isel``, or has size one.
2. Without named variables, all data variables are sampled that fulfil rule 1 and have a dimension
   in ``on``.
3. Planning reads only the labels that ``sel`` needs; tasks read all other values.
4. The labels of kept dimensions are columns of the result, unless they are sampled by name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import DimSelection, Variable, leading_variable, named_variables
from icechunk_format.names import choose, unknown
from icechunk_format.tables import ColumnFactory, combined_selection
from icechunk_format.tables.cf import is_number
from icechunk_format.tables.reading import Column, ScanContext
from icechunk_format.workflows.sampling.choices import Choices, SampleRequest
from icechunk_format.workflows.sampling.earth import horizontal_columns
from icechunk_format.workflows.sampling.sampled import (
    OUTSIDE,
    KeptLabels,
    Outside,
    SampledVariable,
    SamplePlan,
    nested,
)

if TYPE_CHECKING:
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.tables import Dataset


def plan_sample(dataset: Dataset, request: SampleRequest) -> SamplePlan:
    """Plan the sampling of a group."""
    outside: Outside = choose("outside", request.outside, OUTSIDE)
    read = request.read
    factory = ColumnFactory(
        dataset.variables, decode_cf=read.decode_cf, timestamp_type=read.timestamp_type, named=True
    )
    named = None
    if read.variables is not None:
        named = named_variables(read.variables, dataset.variables, dataset.label)
    candidates = dataset.data_variables if named is None else named
    choices = Choices(dataset, candidates, factory, request)
    keep = _kept(request.keep, candidates, choices.dims)
    context = ScanContext(source=dataset.source, read_ahead_bytes=read.read_ahead_bytes)
    fixed = _fixed(read, context, factory, candidates, choices.dims, keep)
    sampled = _sampled(candidates, choices.dims, keep, fixed, is_named=named is not None)
    _check_used(choices.dims, keep, fixed, sampled)
    _check_sizes(sampled)
    labels = _kept_labels(keep, sampled, fixed, factory)
    _check_names([*sampled, *(kept.column for kept in labels)], request.existing)
    variables = tuple(
        _described(variable, factory.of_variable(variable, "variable"), choices, keep, fixed)
        for variable in sampled
    )
    lead = leading_variable(sampled, dataset.snapshot.manifest_files)
    assert lead is not None
    points = tuple(name for name, _ in request.points.values())
    horizontal, axes = horizontal_columns(
        choices.axes, choices.trees, points, request.crs, sampled, dataset.variables
    )
    return SamplePlan(
        context=context,
        points=points,
        axes=axes,
        trees=choices.trees,
        variables=variables,
        lead=sampled.index(lead),
        labels=labels,
        horizontal=horizontal,
        outside=outside,
        skip_missing=read.missing_chunks == "skip",
    )


def _kept(
    keep: Sequence[str], candidates: Sequence[Variable], chosen: Mapping[str, str]
) -> tuple[str, ...]:
    known = dict.fromkeys(dim for variable in candidates for dim in variable.dims)
    for dim in keep:
        if dim not in known:
            raise InvalidInputError(f"keep: {unknown('dimension', dim, known)}", dim=dim)
        if dim in chosen:
            raise InvalidInputError(
                f"dimension {dim!r} is both in keep and chosen by on[{chosen[dim]!r}]; name it"
                " in one of them",
                dim=dim,
            )
    return tuple(dict.fromkeys(keep))


def _fixed(
    read: ReadRequest,
    context: ScanContext,
    factory: ColumnFactory,
    candidates: Sequence[Variable],
    chosen: Mapping[str, str],
    keep: Sequence[str],
) -> dict[str, DimSelection]:
    """Resolve ``sel`` and ``isel``."""
    sizes = {dim: size for variable in candidates for dim, size in variable.dimensions}
    arrays = context.open_arrays()

    def labels(dim: str) -> pa.Array:
        column = factory.of_dimension(dim, sizes[dim])
        return column.labels(arrays, sizes[dim])

    found = combined_selection(sizes, labels, sel=read.sel, isel=read.isel, method=read.sel_method)
    for dim, selection in found.items():
        if dim in chosen:
            raise InvalidInputError(
                f"dimension {dim!r} is both selected by sel or isel and chosen by"
                f" on[{chosen[dim]!r}]; leave one of them out",
                dim=dim,
            )
        if selection.count == 0 or (selection.count > 1 and dim not in keep):
            raise InvalidInputError(
                f"sel and isel choose {selection.count} positions of dimension {dim!r}: choose"
                f" one, or more with keep=[{dim!r}], which makes arrays of them",
                dim=dim,
            )
    return found


def _sampled(
    candidates: Sequence[Variable],
    chosen: Mapping[str, str],
    keep: Sequence[str],
    fixed: Mapping[str, DimSelection],
    *,
    is_named: bool,
) -> list[Variable]:
    """Return the variables to sample."""
    sampled: list[Variable] = []
    for variable in candidates:
        problem = _why_not(variable, chosen, {*chosen, *keep, *fixed}, is_named=is_named)
        if problem is None:
            sampled.append(variable)
        elif is_named or (variable is candidates[-1] and not sampled):
            raise problem
    return sampled


def _why_not(
    variable: Variable, chosen: Mapping[str, str], covered: Container[str], *, is_named: bool
) -> InvalidInputError | None:
    """Return the error if a variable cannot be sampled, or is not by default; else None."""
    if variable.has_repeated_dimension:
        return InvalidInputError(
            f"variable {variable.name!r} has the dimensions ({', '.join(variable.dims)}), one of"
            " them twice, and cannot be sampled; name others with variables",
            variable=variable.name,
        )
    for dim, size in variable.dimensions:
        if dim not in covered and size != 1:
            return InvalidInputError(
                f"variable {variable.name!r} has the dimension {dim!r} of size {size}, which is"
                f" not chosen: name a column for it in on, fix it with sel={{{dim!r}: ...}}, or"
                f" make arrays of it with keep=[{dim!r}]",
                variable=variable.name,
                dim=dim,
            )
    if is_named or any(dim in chosen for dim in variable.dims):
        return None
    return InvalidInputError(
        f"no variable has a dimension that 'on' names: {', '.join(chosen)}; name variables to"
        " sample"
    )


def _check_used(
    chosen: Mapping[str, str],
    keep: Sequence[str],
    fixed: Mapping[str, DimSelection],
    sampled: Sequence[Variable],
) -> None:
    used = {dim for variable in sampled for dim in variable.dims}
    sources = {
        **{dim: f"on[{key!r}]" for dim, key in chosen.items()},
        **{dim: f"keep=[{dim!r}]" for dim in keep},
        **{dim: f"sel or isel of {dim!r}" for dim in fixed},
    }
    for dim, source in sources.items():
        if dim not in used:
            names = ", ".join(variable.name for variable in sampled)
            raise InvalidInputError(
                f"{source} selects on dimension {dim!r}, which none of the sampled variables has:"
                f" {names}; leave it out, or name other variables",
                dim=dim,
            )


def _check_sizes(sampled: Sequence[Variable]) -> None:
    sizes: dict[str, tuple[int, Variable]] = {}
    for variable in sampled:
        for dim, size in variable.dimensions:
            known, other = sizes.setdefault(dim, (size, variable))
            if known != size:
                raise InvalidInputError(
                    f"dimension {dim!r} has {known} elements in {other.name!r} and {size} in"
                    f" {variable.name!r}; sample them separately, with the option variables",
                    dim=dim,
                )


def _kept_labels(
    keep: Sequence[str],
    sampled: Sequence[Variable],
    fixed: Mapping[str, DimSelection],
    factory: ColumnFactory,
) -> tuple[KeptLabels, ...]:
    """Return the labels of kept dimensions, without those that are sampled themselves."""
    sizes = {dim: size for variable in sampled for dim, size in variable.dimensions}
    names = {variable.name for variable in sampled}
    return tuple(
        KeptLabels(
            column=factory.of_dimension(dim, sizes[dim]),
            size=sizes[dim],
            selection=fixed.get(dim) or DimSelection.whole(sizes[dim]),
        )
        for dim in keep
        if dim not in names
    )


def _check_names(added: Sequence[Variable | Column], existing: Sequence[str]) -> None:
    folded = {name.casefold(): name for name in existing}
    for one in added:
        found = folded.get(one.name.casefold())
        if found is not None:
            is_variable = isinstance(one, Variable)
            kind = "variable" if is_variable else "kept dimension"
            raise InvalidInputError(
                f"the points already have a column {found!r}, the name of the {kind}"
                f" {one.name!r}: rename the column with withColumnRenamed"
                f"{', or sample other variables' if is_variable else ''}",
                variable=one.name,
            )


def _described(
    variable: Variable,
    column: Column,
    choices: Choices,
    keep: Sequence[str],
    fixed: Mapping[str, DimSelection],
) -> SampledVariable:
    """Return the plan of a variable, with the type of the result."""
    pointed = {axis: dim for axis, dim in enumerate(variable.dims) if dim in choices.dims}
    linear = {axis.dim: axis.name for axis in choices.axes if axis.method == "linear"}
    value_type = column.arrow_type
    if not linear.keys().isdisjoint(pointed.values()):
        if not is_number(value_type):
            raise UnsupportedError(
                f"variable {variable.name!r} is {value_type}, which cannot be"
                f" interpolated: use method 'nearest' for {', '.join(linear.values())}, or name"
                " other variables",
                variable=variable.name,
            )
        if not pa.types.is_floating(value_type):
            value_type = pa.float64()
    selections = {
        axis: fixed.get(dim) or DimSelection.whole(size)
        for axis, (dim, size) in enumerate(variable.dimensions)
        if dim not in choices.dims
    }
    kept = tuple(variable.dims.index(dim) for dim in keep if dim in variable.dims)
    return SampledVariable(
        column=column,
        pointed=pointed,
        selections=selections,
        kept=kept,
        arrow_type=nested(value_type, len(kept)),
    )
