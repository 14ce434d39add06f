"""Chooses the group to read, and the variables of a table: those on one set of dimensions.

Rules of this file
------------------
1. Dimensions of one name and different sizes are different: ``dim_0`` of 10 and ``dim_0`` of 20.
2. Without named variables, the table has those on the largest set. If another set is not a subset
   of the largest, the error lists the sets and how to name the variables of each.
3. All named variables must be on the largest set among them or on a subset of it; the latter are
   broadcast. Scalars and variables on subsets must be named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icechunk_format.encoding.node_path import ROOT, NodePath, group_path, parent
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.groups.variable import Dimension, Variable, coordinate_names
from icechunk_format.names import by_likeness, shortened, unknown

_MOST_NAMES_IN_LINE = 6


def find_group(snapshot: Snapshot, group: str | None, *, label: str) -> NodePath:
    """Return the path of the group to read; ``label`` is the repository, for messages.

    ``group`` may lack the leading ``/``. None chooses the root if it has arrays, else the only
    group with arrays, without hidden groups: those below a name that begins with a dot.
    """
    if group is None:
        with_arrays = sorted(
            {
                found
                for node in snapshot.nodes
                if node.array is not None
                and (found := parent(node.path)) is not None
                and "/." not in found
            }
        )
        if ROOT in with_arrays or not with_arrays:
            return ROOT
        if len(with_arrays) == 1:
            return with_arrays[0]
        raise InvalidInputError(
            f"{len(with_arrays)} groups of {label} have arrays: {shortened(with_arrays)}; choose "
            f"one with the option group, for instance group={with_arrays[0]}",
            groups=tuple(with_arrays),
        )
    path = group_path(group)
    node = snapshot.node(path)
    if node is not None and node.array is None:
        return path
    if node is not None:
        above = parent(path) or ROOT
        raise InvalidInputError(
            f"{path} of {label} is an array; read it with group={above} and "
            f"variables={path.rpartition('/')[2]}",
            group=path,
        )
    groups = [str(n.path) for n in snapshot.nodes if n.array is None]
    raise NotFoundError(
        f"{label}: {unknown('group', path, groups)}",
        kind="node",
        name=str(path),
        existing=tuple(by_likeness(path, groups)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionSet:
    """Variables that share all dimensions, in the order of the first variable."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    variables: tuple[str, ...]

    @property
    def dimensions(self) -> frozenset[Dimension]:
        """The dimensions without their order."""
        return frozenset(zip(self.dims, self.sizes, strict=True))


def data_variables(
    variables: Sequence[Variable], group_attributes: Mapping[str, Any]
) -> list[Variable]:
    """Return the arrays that are not coordinates of others; all arrays if all are coordinates."""
    coordinates = coordinate_names(variables, group_attributes)
    data = [
        variable
        for variable in variables
        if not variable.is_dimension_coordinate and variable.name not in coordinates
    ]
    return data or list(variables)


def default_columns(
    variables: Sequence[Variable], group_attributes: Mapping[str, Any]
) -> frozenset[str] | None:
    """Return the names in the default table of a group; None if variables must be named."""
    try:
        chosen, held = choose_dimensions(
            data_variables(variables, group_attributes), named=False, label=""
        )
    except InvalidInputError:
        return None
    return frozenset(chosen.dims) | {variable.name for variable in held}


def group_by_dimensions(variables: Iterable[Variable]) -> list[DimensionSet]:
    """Sort variables into sets of dimensions, the largest first."""
    members: dict[frozenset[Dimension], list[Variable]] = {}
    for variable in variables:
        members.setdefault(frozenset(variable.dimensions), []).append(variable)
    sets = [
        DimensionSet(
            dims=found[0].dims, sizes=found[0].shape, variables=tuple(v.name for v in found)
        )
        for found in members.values()
    ]
    return sorted(sets, key=lambda s: (-len(s.dims), s.variables))


def named_variables(
    names: Sequence[str], variables: Mapping[str, Variable], label: str
) -> list[Variable]:
    """Return the named variables without repeats, in the order of the names."""
    found: dict[str, Variable] = {}
    for name in names:
        variable = variables.get(name)
        if variable is None:
            raise NotFoundError(
                f"group {label}: {unknown('array', name, variables)}",
                kind="variable",
                name=name,
                group=label,
                existing=tuple(by_likeness(name, variables)),
            )
        found[name] = variable
    return list(found.values())


def choose_dimensions(
    candidates: Sequence[Variable], *, named: bool, label: str
) -> tuple[DimensionSet, list[Variable]]:
    """Return the dimensions of a table, and its variables in the order of ``candidates``.

    ``candidates`` are the named variables, or all data variables of the group. Only named variables
    may be scalars or be on a subset of the dimensions.
    """
    _refuse_repeated_dimensions(candidates, named=named, label=label)
    taking_part = [v for v in candidates if v.dims or named]
    sets = group_by_dimensions(taking_part)
    if not candidates:
        raise InvalidInputError(
            f"group {label} is empty: it holds no array; read another group (option group) "
            "or another snapshot (options branch, tag, snapshot)",
            group=label,
            arrays=(),
        )
    if not sets:
        raise InvalidInputError(
            f"group {label} has only scalars: {_listed([v.name for v in candidates])}; "
            "name those to read with the option variables",
            group=label,
        )
    largest = sets[0]
    if any(not s.dimensions < largest.dimensions for s in sets[1:]):
        raise _no_single_set(sets, label, named=named)
    if named:
        return largest, taking_part
    return largest, [v for v in taking_part if frozenset(v.dimensions) == largest.dimensions]


def _refuse_repeated_dimensions(candidates: Sequence[Variable], *, named: bool, label: str) -> None:
    for variable in candidates:
        if variable.has_repeated_dimension:
            others = ",".join(v.name for v in candidates if not v.has_repeated_dimension)
            advice = f"; name other arrays: variables={others}" if others and not named else ""
            raise InvalidInputError(
                f"array {variable.path} has the dimensions ({', '.join(variable.dims)}): a name "
                "that occurs twice cannot be two columns. Read it with layout=chunks, or rename "
                f"its dimensions{advice}",
                group=label,
                variable=variable.name,
                dims=variable.dims,
            )


def _no_single_set(sets: Sequence[DimensionSet], label: str, *, named: bool) -> InvalidInputError:
    lines = []
    for s in sets:
        sizes = ", ".join(f"{dim}={size}" for dim, size in zip(s.dims, s.sizes, strict=True))
        lines.append(f"  ({sizes}): variables={','.join(s.variables)}")
    what = "the named variables are" if named else f"the variables of group {label} are"
    return InvalidInputError(
        f"{what} on {len(sets)} sets of dimensions that are not subsets of one another:\n"
        + "\n".join(lines)
        + "\nOne table has one set of dimensions; choose one with the option variables: "
        + "; ".join(f"variables={_listed(s.variables)} for ({', '.join(s.dims)})" for s in sets),
        group=label,
        named=named,
        sets=tuple((s.dims, s.sizes, s.variables) for s in sets),
    )


def _listed(names: Sequence[str]) -> str:
    """Join names, shortened so that the last line of a message stays one line."""
    shown = ",".join(names[:_MOST_NAMES_IN_LINE])
    return shown if len(names) <= _MOST_NAMES_IN_LINE else f"{shown},..."
