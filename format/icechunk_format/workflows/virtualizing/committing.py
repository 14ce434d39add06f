"""Commits the changes of a ``virtualize`` call: groups, arrays, references, containers, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.data_types import parse_data_type
from icechunk_format.arrays.new_nodes import build_array_metadata, build_group_metadata
from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.dataset.writing.chunks.containers import add_containers
from icechunk_format.dataset.writing.part import path_in
from icechunk_format.dataset.writing.prepare import branch_missing
from icechunk_format.dataset.writing.result import txn_metadata
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.session import WriteSession
from icechunk_format.spec.ids import NodeId, SnapshotId
from icechunk_format.spec.node_path import ROOT, NodePath
from icechunk_format.workflows.virtualizing.planning.record import ATTRIBUTE, RECORD, Record
from icechunk_format.workflows.virtualizing.references.manifests import ReferencesReceipt
from icechunk_format.workflows.virtualizing.references.tasks import PlannedArray

_FILES_PER_CHUNK: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a call."""

    group: NodePath
    """The group of the arrays."""
    groups: Mapping[str, Mapping[str, Any]]
    """Attributes of groups by path relative to ``group``, whose path is ``""``."""
    arrays: Sequence[PlannedArray]
    receipts: Sequence[ReferencesReceipt]
    record: Record
    is_first: bool
    """True if the group had no record before."""


def check_consent(wanted: set[str], covered: set[str], containers: bool) -> None:
    """Raise InvalidInputError if a prefix needs a container and containers must not be added."""
    missing = sorted(wanted - covered)
    if missing and not containers:
        raise InvalidInputError(
            f"containers=False, and no virtual chunk container of the repository covers "
            f"{missing[0]}: readers could not fetch the chunks. Add a container to the "
            "configuration, or leave containers=False out",
            option="containers",
            place=missing[0],
        )


def commit_changes(
    repository: Repository,
    base: SnapshotId,
    changes: Changes,
    options: WriteOptions,
    *,
    authorized: Sequence[str],
    virtual_options: Mapping[str, str],
    message: str,
) -> SnapshotId:
    """Commit on top of the snapshot for which the call was planned.

    Raises
    ------
    ConflictError
        Other writers changed the same arrays meanwhile; nothing was committed.
    CommitOutcomeUnknownError
        The commit may have landed.
    StorageError, ReadOnlyError
        Nothing was committed.
    """
    if branch_missing(repository, options):
        repository.create_branch(options.branch, base)
    add_containers(
        repository,
        {prefix for receipt in changes.receipts for prefix in receipt.prefixes},
        authorized=authorized,
        virtual_options=virtual_options,
    )
    session = repository.writable_session(options.branch, base=base)
    _make_groups(session, changes)
    for array in changes.arrays:
        _change_array(session, array)
    for receipt in changes.receipts:
        if receipt.manifests:
            session.add_manifests(receipt.path, receipt.manifests)
    _write_record(session, changes.group, changes.record)
    commit = session.commit(
        options.message or message, metadata=txn_metadata(options), on_conflict=options.on_conflict
    )
    return commit.snapshot_id


def _change_array(session: WriteSession, array: PlannedArray) -> None:
    target = array.target
    metadata = target.metadata
    if array.is_new and session.node(target.path) is not None:
        session.delete(target.path)
    if target.old_shape != metadata.shape or array.is_new:
        _put_array(session, metadata, target.node_id)
    if array.values is not None:
        _set_values(session, metadata, array.values, array.first_changed)
    for lower, upper in array.cleared:
        sizes = [b - a for a, b in zip(lower, upper, strict=True)]
        coords = np.indices(sizes).reshape(len(sizes), -1).T + np.array(lower, np.int64)
        session.delete_chunks(target.path, coords)


def _make_groups(session: WriteSession, changes: Changes) -> None:
    wanted: dict[str, Mapping[str, Any]] = {ROOT: {}}
    parts = [part for part in changes.group.split("/") if part]
    for number in range(len(parts)):
        wanted["/" + "/".join(parts[: number + 1])] = {}
    for path in sorted(changes.groups):
        full = path_in(changes.group, path) if path else str(changes.group)
        wanted[full] = changes.groups[path]
    for path, attributes in wanted.items():
        node = session.node(path)
        document = build_group_metadata(attributes=attributes, node_path=path)
        if node is None:
            session.create_group(path, document.to_bytes())
        elif attributes and changes.is_first:
            session.update_metadata(path, document.to_bytes())


def _write_record(session: WriteSession, group: NodePath, record: Record) -> None:
    """Replace the record of a group."""
    path = path_in(group, RECORD)
    attributes = {
        "description": "Files that the arrays of this group were made of; see virtualize",
        ATTRIBUTE: record.layout.to_json(),
    }
    document = build_group_metadata(attributes=attributes, node_path=path).to_bytes()
    if session.node(path) is None:
        session.create_group(path, document)
    else:
        session.update_metadata(path, document)
    for name, (kind, values) in record.columns().items():
        metadata = build_array_metadata(
            shape=[len(values)],
            data_type=parse_data_type(kind),
            chunk_shape=[_FILES_PER_CHUNK],
            dimension_names=["file"],
            node_path=f"{path}/{name}",
        )
        _put_array(session, metadata)
        _set_values(session, metadata, np.array(values, dtype=metadata.data_type.numpy))


def _put_array(
    session: WriteSession, metadata: ArrayMetadata, node_id: NodeId | None = None
) -> None:
    """Create an array, or change its shape."""
    path, document, shape = metadata.node_path, metadata.to_bytes(), metadata.shape
    counts = metadata.grid.num_chunks
    if session.node(path) is not None:
        session.update_metadata(path, document, shape=shape, num_chunks=counts)
        return
    session.create_array(
        path,
        document,
        shape=shape,
        num_chunks=counts,
        dimension_names=metadata.dimension_names,
        node_id=node_id,
    )


def _set_values(
    session: WriteSession, metadata: ArrayMetadata, values: NDArray[Any], first_changed: int = 0
) -> None:
    """Store the values of an array, from the chunk of the first changed value on."""
    codecs, grid = metadata.chunk_codecs(), metadata.grid
    coords, payloads = [], []
    for index in np.ndindex(*grid.num_chunks):
        lower, upper = grid.box_of(index)
        if lower and upper[0] <= first_changed:
            continue
        chunk = metadata.fill_array(grid.full_chunk_shape(index))
        sizes = [b - a for a, b in zip(lower, upper, strict=True)]
        box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
        chunk[tuple(slice(0, n) for n in sizes)] = values[box]
        coords.append(index)
        payloads.append(codecs.encode(chunk))
    if coords:
        rows = np.array(coords, np.int64).reshape(len(coords), metadata.ndim)
        session.set_chunks(metadata.node_path, rows, payloads)
