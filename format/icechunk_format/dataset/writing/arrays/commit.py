"""Commits arrays that tasks have written block by block.

Rules of this file
------------------
1. One session makes one commit. A new repository and a new branch are created directly before it,
   after the receipts have been checked.
2. The commit is rebased on commits of other writers. If they changed the same arrays, a
   ConflictError is raised and nothing is committed.
3. Nothing is deleted after a failure: objects of tasks are garbage, or data if the outcome is
   unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.arrays.new_nodes import build_group_metadata
from icechunk_format.arrays.zarr_json import parse_group_metadata
from icechunk_format.dataset.writing.commit import (
    find_destination,
    made_destination,
    with_containers,
    with_tasks,
)
from icechunk_format.dataset.writing.part import ArrayTarget, Destination, TaskReceipt
from icechunk_format.dataset.writing.result import WriteResult, txn_metadata
from icechunk_format.dataset.writing.storing import ChunkValues
from icechunk_format.errors import AlreadyExistsError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.files.manifest_files import ManifestReceipt
from icechunk_format.repository.session import WriteSession
from icechunk_format.spec.node_path import ancestors, parse_node_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysCommit:
    """The nodes that one commit creates, replaces or changes.

    Parameters
    ----------
    destination
        The result of ``open_destination``; the commit is based on its snapshot.
    options
        Branch, message, metadata, txnAppId and txnVersion, and the handling of conflicts.
    arrays
        An array without ``old_shape`` is created, and replaces an array at its path. Other arrays
        get their new document, and keep the chunks that no receipt replaces.
    groups
        Attributes by path. Missing groups, also those above the arrays, are created. Attributes
        replace those of an existing group; None keeps them.
    cleared
        By path of an array, coordinates of chunks to delete, ``int64 (n, ndim)``.
    values
        Values that the driver stores.
    deleted
        Paths of arrays to delete; paths that do not exist are ignored.
    message
        The default message.
    """

    destination: Destination
    options: WriteOptions
    arrays: Sequence[ArrayTarget]
    groups: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    cleared: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    values: Sequence[ChunkValues] = ()
    deleted: Sequence[str] = ()
    message: str


def commit_arrays(change: ArraysCommit, receipts: Iterable[TaskReceipt]) -> WriteResult:
    """Commit arrays, given the receipt of each task.

    Raises
    ------
    InvalidInputError
        Two tasks wrote one chunk, or a receipt belongs to another commit.
    AlreadyExistsError
        A group is at the path of an array, or another writer created the repository.
    ConflictError
        Other writers changed the same arrays, or any array with ``on_conflict="fail"``; nothing was
        committed.
    CommitOutcomeUnknownError
        The commit may or may not have landed.
    NotFoundError, ReadOnlyError, StorageError, FormatError
        The repository cannot be written; nothing was committed.
    """
    options, receipts = change.options, list(receipts)
    repository, done = find_destination(change.destination, options)
    if done is not None:
        return done
    manifests = _manifests(change, receipts)
    repository, base = made_destination(repository, change.destination, options)
    seen = with_containers(repository, change.destination, receipts)
    session = seen.writable_session(options.branch, base=base)
    _make_groups(session, change)
    for path in change.deleted:
        if session.node(path) is not None:
            session.delete(path)
    for array in change.arrays:
        _put_array(session, array)
    for values in change.values:
        values.store(session)
    for path, coords in change.cleared.items():
        session.delete_chunks(path, coords)
    for path, found in manifests.items():
        session.add_manifests(path, found)
    if not session.has_changes:
        return WriteResult.skipped(options, base, "nothing changed")
    commit = session.commit(
        options.message or change.message,
        metadata=txn_metadata(options),
        on_conflict=options.on_conflict,
    )
    return WriteResult(
        branch=commit.branch,
        snapshot_id=commit.snapshot_id,
        chunks=sum(receipt.chunks for receipt in receipts),
        manifests=sum(map(len, manifests.values())),
        commit=with_tasks(commit, receipts),
    )


def _manifests(
    change: ArraysCommit, receipts: Sequence[TaskReceipt]
) -> dict[str, list[ManifestReceipt]]:
    """Return the manifests by path of the array; raise if two tasks wrote the same chunk."""
    paths = {array.path for array in change.arrays}
    manifests: dict[str, list[ManifestReceipt]] = {}
    for receipt in receipts:
        for path, stored in receipt.manifests.items():
            if path not in paths:
                raise InvalidInputError(
                    f"a receipt has chunks of array {path}, which is not part of this commit",
                    variable=path,
                )
            manifests.setdefault(path, []).extend(stored)
    # The session checks this again, but only after a new repository is created.
    for found in manifests.values():
        ChunkChanges(len(found[0].extents)).add_receipts(found)
    return {path: found for path, found in manifests.items() if found}


def _make_groups(session: WriteSession, change: ArraysCommit) -> None:
    wanted: dict[str, Mapping[str, Any] | None] = dict(change.groups)
    for path in [*change.groups, *(array.path for array in change.arrays)]:
        for above in ancestors(parse_node_path(path)):
            wanted.setdefault(above, None)
    for path in sorted(wanted, key=lambda path: (path.count("/") if path != "/" else 0, path)):
        node, attributes = session.node(path), wanted[path]
        if node is None:
            document = build_group_metadata(attributes=attributes, node_path=path)
            session.create_group(path, document.to_bytes())
        elif attributes is not None:
            group = parse_group_metadata(node.user_data, node_path=path)
            if group.attributes != attributes:
                session.update_metadata(path, group.with_attributes(attributes).to_bytes())


def _put_array(session: WriteSession, array: ArrayTarget) -> None:
    """Create or replace an array, or update the document of an existing one."""
    metadata, node = array.metadata, session.node(array.path)
    document, shape, counts = metadata.to_bytes(), metadata.shape, metadata.grid.num_chunks
    if array.old_shape is not None:
        if node is None or node.user_data != document:
            session.update_metadata(array.path, document, shape=shape, num_chunks=counts)
        return
    if node is not None:
        if node.array is None:
            raise AlreadyExistsError(
                f"{array.path} is a group, so no array can be written there; choose another group "
                "or name",
                kind="group",
                path=array.path,
            )
        session.delete(array.path)
    session.create_array(
        array.path,
        document,
        shape=shape,
        num_chunks=counts,
        dimension_names=metadata.dimension_names,
        node_id=array.node_id,
    )
