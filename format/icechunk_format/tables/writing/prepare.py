"""Prepares a write: checks options and schema, and finds the array of each column.

Rules of this file
------------------
1. Errors of options, schema and repository are raised here, before a job runs.
2. Preparing writes nothing, and reads a snapshot but no rows.
3. Existing arrays keep their data types, chunks, codecs and encoding; columns must fit them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from icechunk_format.encoding.node_path import ROOT, NodePath, ancestors, group_path
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable, arrays_in
from icechunk_format.groups.changing import Destination, WriteResult, open_destination, path_in
from icechunk_format.groups.dimension_sets import find_group
from icechunk_format.groups.variable import array_at
from icechunk_format.names import nearest, shortened
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location, Place
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.tables.cf.decode import attribute_decoder, inherit_time_attributes
from icechunk_format.tables.cf.encode import VariableEncoder, variable_encoder
from icechunk_format.tables.writing.columns.checks import (
    check_case,
    check_existing,
    check_index_type,
    check_layout_columns,
    check_named,
    check_options,
)
from icechunk_format.tables.writing.columns.new_arrays import NewArray
from icechunk_format.tables.writing.columns.source import (
    SourceColumn,
    find_dims,
    named_as,
    source_columns,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingArray:
    """A column that is written to an existing array."""

    column: SourceColumn
    variable: Variable
    encoder: VariableEncoder

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the array."""
        return self.variable.dims


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A checked write, with the array of each column."""

    destination: Destination
    options: WriteOptions
    group: NodePath
    dims: tuple[str, ...]
    """The dimension columns, in order; empty in the layouts of chunks."""
    columns: Mapping[str, SourceColumn]
    targets: Mapping[str, ExistingArray | NewArray]
    """The array of each column, except dimensions without labels; empty in the layouts of
    chunks."""
    kept: Mapping[str, Variable]
    """The arrays of the group that the write keeps, by name."""
    replaced: Mapping[str, Variable]
    """The arrays of the group that the write replaces, by name."""
    missing_groups: tuple[str, ...]
    """Groups to create, outermost first."""

    @property
    def group_attributes(self) -> Mapping[str, Any]:
        """The attributes of the group that the rows were read from."""
        found = (column.group_attributes for column in self.columns.values())
        return next(filter(None, found), {})

    @property
    def label(self) -> str:
        """The branch and the repository, for messages."""
        return f"branch {self.options.branch!r} of {self.destination.location}"

    def stage(self) -> dict[str, Any]:
        """Return the fields that the plan of this write takes over."""
        return {field.name: getattr(self, field.name) for field in fields(PreparedWrite)}

    def array_path(self, name: str) -> str:
        """Return the path of an array of the group."""
        return path_in(self.group, name)


def prepare_write(
    location: Place,
    schema: pa.Schema,
    options: WriteOptions,
    access: VirtualAccess = NO_ACCESS,
) -> PreparedWrite | WriteResult:
    """Check a write and find the arrays of its columns.

    Returns a ``WriteResult`` if the write is skipped.

    Parameters
    ----------
    location
        The repository, which may not exist.
    access
        Access to virtual chunks, which a write may patch.

    Raises
    ------
    AlreadyExistsError
        ``mode=errorifexists``, and the group has arrays; or the location is not empty and is not a
        repository.
    NotFoundError
        The branch does not exist.
    InvalidInputError
        Dimensions are unknown, a column does not fit its array, or an option is invalid.
    UnsupportedError
        An existing array has an unsupported data type or codec.
    """
    check_options(options)
    found = open_destination(location, options, access)
    if isinstance(found, WriteResult):
        return found
    if options.layout != "cells":
        check_layout_columns(schema, options.layout)
    prepared = _prepared(*found, options, source_columns(schema))
    if isinstance(prepared, PreparedWrite):
        warn_of_rounding(t for name, t in prepared.targets.items() if name not in prepared.dims)
    return prepared


def warn_of_rounding(targets: Iterable[ExistingArray | NewArray]) -> None:
    """Warn that arrays round columns of doubles to shorter floats, once for each set of columns.

    Packed arrays give no warning, since they always round.
    """
    rounded = [
        f"{target.variable.name!r} ({data_type.name})"
        for target in targets
        if isinstance(target, ExistingArray)
        and target.column.arrow_type == pa.float64()
        and (data_type := target.variable.metadata.data_type).kind == "float"
        and data_type.numpy.itemsize < 8
        and not {"scale_factor", "add_offset"} & target.variable.attributes.keys()
    ]
    if rounded:
        warnings.warn(
            f"columns of doubles are rounded to the floats of their arrays: {', '.join(rounded)}."
            " Cast them to FLOAT to write without this warning",
            UserWarning,
            stacklevel=1,
        )


def warn_of_fill_values(grown: Iterable[Variable]) -> None:
    """Warn of arrays that grow without rows, if their new cells do not read as missing."""
    found = []
    for variable in grown:
        metadata = variable.metadata
        # An array that cannot be read as a column gives no warning, and the write does not need it.
        with suppress(InvalidInputError, UnsupportedError):
            decoder = attribute_decoder(variable.attributes, metadata.data_type, name=variable.name)
            if not decoder.decode(metadata.fill_array([1])).null_count:
                found.append(f"{variable.name!r} ({metadata.raw['fill_value']!r})")
    if found:
        warnings.warn(
            "arrays of the group grow, but the rows have no column for them, and their new cells"
            f" read as their fill value instead of as missing: {shortened(found)}. Write them too,"
            " as columns of the same rows or, if they have other dimensions, in another write",
            UserWarning,
            stacklevel=1,
        )


def prepare_again(
    before: PreparedWrite, snapshot: Snapshot, options: WriteOptions
) -> PreparedWrite | WriteResult:
    """Repeat the preparation of a write on a later snapshot of its branch."""
    destination = replace(before.destination, base=snapshot.id)
    return _prepared(destination, snapshot, options, before.columns)


def _prepared(
    destination: Destination,
    snapshot: Snapshot | None,
    options: WriteOptions,
    columns: Mapping[str, SourceColumn],
) -> PreparedWrite | WriteResult:
    """Prepare a write of columns; return its result if ``mode=ignore`` skips it."""
    group = _group(snapshot, options, destination.location, columns)
    arrays = {} if snapshot is None else arrays_in(snapshot, group)
    if arrays and options.mode == "ignore":
        reason = f"mode=ignore, and group {group} has arrays: {', '.join(arrays)}"
        return WriteResult.skipped(options, destination.base, reason)
    if arrays and options.mode == "errorifexists":
        raise AlreadyExistsError(
            f"group {group} of {destination.location} has arrays already "
            f"({', '.join(sorted(arrays))}), and the mode is errorifexists; choose mode append to "
            "add to them, overwrite to replace them, or ignore",
            kind="arrays",
            group=str(group),
            arrays=tuple(arrays),
        )
    is_replaced = options.mode == "overwrite" and options.replace_where is None
    kept = {} if is_replaced else arrays
    dims: tuple[str, ...] = ()
    targets: dict[str, ExistingArray | NewArray] = {}
    if options.layout == "cells":
        check_case(columns, kept)
        # Replaced arrays also determine the dimension columns.
        dims = find_dims(columns, given=options.dims, existing=arrays.values())
        targets = _targets(options, group, columns, dims, kept)
    return PreparedWrite(
        destination=destination,
        options=options,
        group=group,
        dims=dims,
        columns=columns,
        targets=targets,
        kept=kept,
        replaced=arrays if is_replaced else {},
        missing_groups=_missing_groups(snapshot, group),
    )


def _group(
    snapshot: Snapshot | None, options: WriteOptions, location: Location, columns: Iterable[str]
) -> NodePath:
    if snapshot is None:
        return group_path(options.group)
    if options.group is None:
        found = find_group(snapshot, None, label=str(location))
        held = arrays_in(snapshot, found).values()
        names = {name for variable in held for name in (variable.name, *variable.dims)}
        # Do not choose the only group with arrays if it is that of another table.
        is_other_table = options.layout == "cells" and names.isdisjoint(columns)
        return ROOT if is_other_table else found
    path = group_path(options.group)
    for above in (path, *ancestors(path)):
        if array_at(snapshot, above) is not None:
            raise InvalidInputError(
                f"{above} of {location} is an array, and nothing can be written below it; choose "
                "another group",
                group=str(path),
            )
    return path


def _missing_groups(snapshot: Snapshot | None, group: NodePath) -> tuple[str, ...]:
    paths = reversed((group, *ancestors(group)))
    return tuple(path for path in paths if snapshot is None or snapshot.node(path) is None)


def _targets(
    options: WriteOptions,
    group: NodePath,
    columns: Mapping[str, SourceColumn],
    dims: tuple[str, ...],
    kept: Mapping[str, Variable],
) -> dict[str, ExistingArray | NewArray]:
    """Return the existing or new array of each column, except dimensions without labels."""
    if columns.keys() <= set(dims):
        raise InvalidInputError(
            f"all columns ({', '.join(columns)}) are dimensions, so there are no values to write; "
            "name the dimensions with the option dims",
            dims=dims,
        )
    check_named(options, columns, dims)
    attributes = inherit_time_attributes({name: v.attributes for name, v in kept.items()})
    renamed = named_as(columns)
    targets: dict[str, ExistingArray | NewArray] = {}
    for name, column in columns.items():
        encoding = options.encoding.get(name, {})
        variable = kept.get(name)
        if name in dims and _is_index(column, variable, kept):
            check_index_type(column)
            continue
        if variable is not None:
            check_existing(variable, column, dims, options, others=columns.keys() - kept.keys())
            targets[name] = ExistingArray(
                column=column,
                variable=variable,
                encoder=variable_encoder(
                    variable.metadata.data_type,
                    attributes[name],
                    column.arrow_type,
                    decode_cf=not column.is_raw,
                    name=name,
                ),
            )
            continue
        own = column.dims and tuple(renamed.get(dim, dim) for dim in column.dims)
        if name in dims:
            own = (name,)
        elif own is None or not set(own) <= set(dims) or len(set(own)) < len(own):
            own = dims
        targets[name] = NewArray(column, path=path_in(group, name), dims=own, given=encoding)
    for name, target in targets.items():
        if kept and name not in dims and isinstance(target, NewArray):
            _check_new_variable(name, options, kept)
    return targets


def _check_new_variable(name: str, options: WriteOptions, kept: Mapping[str, Variable]) -> None:
    """Raise InvalidInputError for a new variable in an existing group without ``mergeSchema``."""
    if options.merge_schema or name in options.encoding:
        return
    variables = [other for other, variable in kept.items() if variable.dims != (other,)]
    near = nearest(name, variables)
    hint = f": is it {near!r}?" if near else "."
    raise InvalidInputError(
        f"the group has no variable {name!r}{hint} It has {shortened(variables)}. To add a"
        " variable, set mergeSchema=true (merge_schema=True in Python); otherwise rename or drop"
        " the column",
        column=name,
        option="mergeSchema",
        existing=tuple(variables),
    )


def _is_index(
    column: SourceColumn, variable: Variable | None, kept: Mapping[str, Variable]
) -> bool:
    """Return True if a dimension has no labels; its column then holds indices."""
    if variable is not None:
        if not variable.is_dimension_coordinate:
            raise InvalidInputError(
                f"the dimension {column.name!r} cannot have labels, since array {variable.path} "
                f"has the dimensions ({', '.join(variable.dims)}); rename the column",
                dim=column.name,
            )
        return False
    if any(column.name in other.dims for other in kept.values()):
        return True
    return column.is_index
