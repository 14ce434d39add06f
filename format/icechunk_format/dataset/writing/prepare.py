"""The first half of planning a write: what can be known without a look at any row.

Rules of this file
------------------
1. Whatever is wrong with the options, the schema or the repository is said here, before a job runs.
2. Nothing is written, and nothing is read but a snapshot.
3. Existing arrays keep their data types, chunks, codecs and encoding; columns have to fit them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icechunk_format.dataset.cf.decode import inherit_time_attributes
from icechunk_format.dataset.cf.encode import variable_encoder
from icechunk_format.dataset.table.group_choice import find_group
from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.chunks.columns import check_layout_columns
from icechunk_format.dataset.writing.columns.checks import (
    check_existing,
    check_index_type,
    check_names,
    check_new_place,
)
from icechunk_format.dataset.writing.columns.new_arrays import NewArray
from icechunk_format.dataset.writing.columns.source import find_dims, named_as, source_columns
from icechunk_format.dataset.writing.prepared import ExistingArray, PreparedWrite
from icechunk_format.dataset.writing.result import WriteResult, find_committed
from icechunk_format.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_format.repository.chunks.container_options import check_virtual_options
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.chunks.virtual import parse_authorized
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.node_path import ROOT, NodePath, parse_node_path
from icechunk_format.storage.location import Location, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from icechunk_format.dataset.writing.columns.source import SourceColumn
    from icechunk_format.dataset.writing.options import WriteOptions
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.snapshot.file import Snapshot


def prepare_write(
    location: Place,
    schema: pa.Schema,
    options: WriteOptions,
    *,
    authorize: Sequence[str] = (),
    virtual_options: Mapping[str, str] | None = None,
) -> PreparedWrite:
    """Check a write and find the arrays of its columns.

    Parameters
    ----------
    location
        The repository; it need not exist.
    schema
        Of the DataFrame; fields may carry the metadata that readers gave them.
    options
        What the user wants.
    authorize, virtual_options
        How virtual chunks may be fetched, should one have to be patched.

    Raises
    ------
    AlreadyExistsError
        ``mode=errorifexists``, and the group has arrays; or there is no repository, but something
        else at its place.
    NotFoundError
        The branch does not exist.
    InvalidInputError
        Dimensions are not known, a column does not fit its array, or an option cannot be used.
    UnsupportedError
        An existing array uses what is not known here.
    """
    place = Location.of(location)
    repository = Repository.open(place) if Repository.exists(place) else None
    if repository is None:
        check_new_place(place, options)
        parse_authorized(authorize)
        check_virtual_options(virtual_options or {}, authorize)
        found = PreparedWrite(
            location=place,
            options=options,
            group=NodePath("/" + (options.group or "").strip("/")),
            manifest_format=ManifestFormat(spec_version=options.spec_version),
            chunk_source=ChunkSource(
                location=place,
                authorized=tuple(authorize),
                virtual_options=virtual_options or {},
            ),
        )
        arrays: dict[str, Variable] = {}
        base, snapshot = None, None
    else:
        base = _base(repository, options)
        snapshot = repository.snapshot(base)
        found = PreparedWrite(
            location=place,
            options=options,
            group=_group(snapshot, options, place),
            base=base,
            manifest_format=ManifestFormat(
                spec_version=repository.spec_version, config=repository.config
            ),
            chunk_source=repository.chunk_source(
                authorized=authorize, virtual_options=virtual_options
            ),
        )
        arrays = _arrays(snapshot, found.group)
        skipped = find_committed(repository, options)
        if skipped is not None:
            return _with(found, skipped=skipped)
    found = _with(found, missing_groups=_missing_groups(snapshot, found.group))
    if options.layout != "cells":
        check_layout_columns(schema, options.layout)
    return _settled(found, arrays) or _prepare(found, arrays, source_columns(schema))


def prepare_again(
    before: PreparedWrite, snapshot: Snapshot, options: WriteOptions
) -> PreparedWrite:
    """Prepare a write anew for a later version of its branch.

    Parameters
    ----------
    before
        What ``prepare_write`` returned.
    snapshot
        The version to begin with now.
    options
        Those of before, with the group and the dimensions that were found.

    Raises
    ------
    AlreadyExistsError, InvalidInputError, UnsupportedError
        As for ``prepare_write``.
    """
    group = _group(snapshot, options, before.location)
    found = _with(
        before,
        options=options,
        group=group,
        base=snapshot.id,
        missing_groups=_missing_groups(snapshot, group),
        targets={},
        kept={},
        replaced={},
    )
    arrays = _arrays(snapshot, group)
    return _settled(found, arrays) or _prepare(found, arrays, before.columns)


def _arrays(snapshot: Snapshot, group: NodePath) -> dict[str, Variable]:
    nodes = [node for node in snapshot.children(group) if node.array is not None]
    return {variable.name: variable for variable in map(Variable, nodes)}


def _settled(prepared: PreparedWrite, arrays: Mapping[str, Variable]) -> PreparedWrite | None:
    """Return the write where its mode leaves nothing to do; refuse what the mode forbids."""
    if arrays and prepared.options.mode == "ignore":
        return _with(prepared, skipped=_ignored(prepared, arrays))
    if arrays and prepared.options.mode == "errorifexists":
        raise _exists(prepared, arrays)
    return None


def _prepare(
    prepared: PreparedWrite, arrays: dict[str, Variable], columns: Mapping[str, SourceColumn]
) -> PreparedWrite:
    if prepared.options.mode == "overwrite":
        prepared = _with(prepared, replaced=arrays)
        arrays = {}
    prepared = _with(prepared, kept=arrays, columns=columns)
    return _prepare_cells(prepared) if prepared.options.layout == "cells" else prepared


def _with(prepared: PreparedWrite, **changes: Any) -> PreparedWrite:
    values = {name: getattr(prepared, name) for name in PreparedWrite.__dataclass_fields__}
    return PreparedWrite(**(values | changes))


def _base(repository: Repository, options: WriteOptions) -> SnapshotId:
    branches = repository.branches()
    if options.branch in branches:
        return branches[options.branch]
    if options.create_branch:
        return repository.resolve(branch="main")
    # The message of resolve lists the branches, nearest first.
    return repository.resolve(branch=options.branch)


def _group(snapshot: Snapshot, options: WriteOptions, place: Location) -> NodePath:
    if options.group is None:
        return find_group(snapshot, None, place=str(place))
    path = parse_node_path("/" + options.group.strip("/"))
    above = path
    while above != ROOT:
        node = snapshot.node(above)
        if node is not None and node.array is not None:
            raise InvalidInputError(
                f"{above} of {place} is an array, and nothing can be written below it; choose "
                "another group",
                group=str(path),
            )
        above = NodePath(above.rpartition("/")[0] or "/")
    return path


def _missing_groups(snapshot: Snapshot | None, group: NodePath) -> tuple[str, ...]:
    parts = [part for part in group.split("/") if part]
    paths = ["/", *("/" + "/".join(parts[: n + 1]) for n in range(len(parts)))]
    return tuple(p for p in paths if snapshot is None or snapshot.node(NodePath(p)) is None)


def _ignored(prepared: PreparedWrite, arrays: Mapping[str, Variable]) -> WriteResult:
    return WriteResult(
        branch=prepared.options.branch,
        snapshot_id=prepared.base,
        is_skipped=True,
        reason=f"mode=ignore, and group {prepared.group} has arrays: {', '.join(arrays)}",
    )


def _exists(prepared: PreparedWrite, arrays: Mapping[str, Variable]) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"group {prepared.group} of {prepared.location} has arrays already "
        f"({', '.join(sorted(arrays))}), and the mode is errorifexists; choose mode append to add "
        "to them, overwrite to replace them in a new version, or ignore",
        kind="arrays",
        group=str(prepared.group),
        arrays=tuple(arrays),
    )


def _prepare_cells(prepared: PreparedWrite) -> PreparedWrite:
    options, kept, columns = prepared.options, prepared.kept, prepared.columns
    # Replaced arrays still say which columns were dimensions.
    known = kept or prepared.replaced
    dims = find_dims(columns, asked=options.dims, existing=known.values())
    variables = [name for name in columns if name not in dims]
    if not variables:
        raise InvalidInputError(
            f"all columns ({', '.join(columns)}) are dimensions, so there are no values to write; "
            "name the dimensions with the option dims",
            dims=dims,
        )
    check_names(options, columns, dims)
    attributes = inherit_time_attributes({name: v.attributes for name, v in kept.items()})
    renamed = named_as(columns)
    targets: dict[str, ExistingArray | NewArray] = {}
    for name, column in columns.items():
        said = options.encoding.get(name, {})
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
        targets[name] = NewArray(column, path=prepared.array_path(name), dims=own, said=said)
    return _with(prepared, dims=dims, targets=targets)


def _is_index(
    column: SourceColumn, variable: Variable | None, kept: Mapping[str, Variable]
) -> bool:
    """Whether a dimension has no labels, so that its column holds indices."""
    if variable is not None:
        if not variable.is_dimension_coordinate:
            raise InvalidInputError(
                f"the dimension {column.name!r} cannot have labels: the group has an array "
                f"{variable.path} with dimensions ({', '.join(variable.dims)}); rename the column",
                dim=column.name,
            )
        return False
    if any(column.name in other.dims for other in kept.values()):
        return True
    return column.is_index


def branch_missing(repository: Repository, options: WriteOptions) -> bool:
    """Whether the branch has to be created first.

    Raises
    ------
    NotFoundError
        It does not exist, and may not be created.
    """
    if options.branch in repository.branches():
        return False
    if not options.create_branch:
        raise NotFoundError(
            f"there is no branch {options.branch!r} in {repository.location}; set "
            "createBranch=true to make it",
            kind="branch",
            name=options.branch,
        )
    return True
