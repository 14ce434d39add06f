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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath, ancestors, parse_node_path
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from icechunk_format.groups.changing.containers import add_containers
from icechunk_format.groups.changing.destination import branch_missing
from icechunk_format.groups.changing.result import WriteResult, find_committed, txn_metadata
from icechunk_format.groups.changing.storing import ChunkValues
from icechunk_format.groups.changing.targets import (
    ArrayTarget,
    Destination,
    TaskReceipt,
    cleared_by,
)
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.changes import ChunkChanges
from icechunk_format.repository.changes.group_lengths import (
    arrays_of,
    new_disagreements,
    other_lengths,
)
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files import ManifestReceipt
from icechunk_format.repository.session import WriteSession
from icechunk_format.repository.session.committing import WhenMoved
from icechunk_format.storage.location import Location
from icechunk_format.zarr.new_nodes import build_group_metadata
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_group_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraysCommit:
    """The nodes that one commit creates, replaces or changes."""

    destination: Destination
    """The result of ``open_destination``; the commit is based on its snapshot."""
    options: WriteOptions
    arrays: Sequence[ArrayTarget]
    """An array without ``old_shape`` is created, and replaces an array at its path. Other arrays
    get their new document, and keep the chunks that no receipt replaces."""
    groups: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Attributes by path, as in ``make_groups``."""
    values: Sequence[ChunkValues] = ()
    """Values that the driver stores."""
    cleared: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """By path of an array, coordinates of chunks to delete, integers of shape (n, ndim), besides
    those of receipts."""
    still: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By path of an array, the chunks along each axis that keep their elements; receipts store
    or delete all others."""
    deleted: Sequence[str] = ()
    """Paths of arrays to delete; paths that do not exist are ignored."""
    check: Callable[[WriteSession, Snapshot], None] | None = None
    """Called before the commit with the session and its base, and again with the newest snapshot
    before a rebase; its exceptions end the commit."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata of the commit, besides those of the options."""
    message: str
    """The default message."""


def commit_arrays(change: ArraysCommit, receipts: Iterable[TaskReceipt]) -> WriteResult:
    """Commit arrays, given the receipt of each task.

    Raises
    ------
    InvalidInputError
        Two tasks wrote one chunk, a receipt belongs to another commit, or arrays of a group would
        have different lengths.
    AlreadyExistsError
        A group is at the path of an array, or another writer created the repository.
    ConflictError
        Other writers changed the same arrays, or any array with ``on_conflict="fail"``; nothing was
        committed.
    CommitOutcomeUnknownError
        The commit may or may not have succeeded.
    """
    paths = [array.path for array in change.arrays]
    opened = open_change(change.destination, change.options, paths, receipts)
    if isinstance(opened, WriteResult):
        return opened
    session, check = opened.session, change.check
    make_groups(session, change.groups, paths)
    for path in change.deleted:
        if session.node(path) is not None:
            session.delete(path)
    for array in change.arrays:
        _put_array(session, array)
    for values in change.values:
        values.store(session)
    for path, num_chunks in change.still.items():
        session.drop_chunks_beyond(path, num_chunks)
    for path, coords in [*change.cleared.items(), *cleared_by(opened.receipts).items()]:
        session.delete_chunks(path, coords)
    for path, found in opened.manifests.items():
        session.add_manifests(path, found)
    if check is not None and session.has_changes:
        check(session, opened.repository.snapshot(opened.base))
    return opened.commit(
        change.options.message or change.message,
        metadata=change.metadata,
        when_moved=None if check is None else lambda tip, _: check(session, tip),
    )


class OpenedChange(NamedTuple):
    """A session for the change of a commit, and the files of its tasks."""

    repository: Repository
    options: WriteOptions
    base: SnapshotId
    session: WriteSession
    manifests: dict[str, list[ManifestReceipt]]
    """By path of the array; the caller adds them to the session."""
    receipts: Sequence[TaskReceipt]

    def commit(
        self,
        message: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        when_moved: WhenMoved | None = None,
        unchanged: str = "nothing changed",
    ) -> WriteResult:
        """Commit what the caller has applied to the session, or skip a commit without changes.

        The result counts the files of tasks as well. Parameters and errors are those of
        ``WriteSession.commit``.
        """
        session, options = self.session, self.options
        if not session.has_changes:
            return WriteResult.skipped(options, self.base, unchanged)
        session.check_lengths()
        commit = session.commit(
            message,
            metadata={**txn_metadata(options), **(metadata or {})},
            on_conflict=options.on_conflict,
            when_moved=when_moved,
        )
        written = Written(dict(commit.files_written), dict(commit.bytes_written))
        for receipt in self.receipts:
            written.add("chunks", receipt.files, receipt.nbytes)
            for found in receipt.manifests.values():
                written.add("manifests", len(found), sum(one.size_bytes for one in found))
        stored = [receipt for found in self.manifests.values() for receipt in found]
        return WriteResult(
            branch=commit.branch,
            snapshot_id=commit.snapshot_id,
            message=message,
            chunks=sum(receipt.num_chunk_refs for receipt in stored),
            manifests=len(stored),
            commit=replace(commit, files_written=written.files, bytes_written=written.bytes),
        )


def open_change(
    destination: Destination,
    options: WriteOptions,
    paths: Collection[str],
    receipts: Iterable[TaskReceipt],
    *,
    check: Callable[[], None] | None = None,
) -> OpenedChange | WriteResult:
    """Open a session on the base of a destination, or return the result of an earlier commit.

    Parameters
    ----------
    paths
        Paths of the arrays whose chunks receipts may have.
    check
        Called after the receipts are checked, before a new repository or branch is created.
    """
    receipts = list(receipts)
    search = Repository.find if destination.base is None else Repository.open
    repository = search(destination.location)
    done = None if repository is None else find_committed(repository.as_read(), options)
    if done is not None:
        return done
    manifests = _manifests_of(receipts, paths)
    if check is not None:
        check()
    repository, base = _made_destination(repository, destination, options)
    seen = _with_containers(repository, destination, receipts)
    session = seen.writable_session(options.branch, base=base)
    return OpenedChange(repository, options, base, session, manifests, receipts)


def check_planned_lengths(
    base: Snapshot | None,
    group: NodePath,
    arrays: Iterable[ArrayTarget],
    deleted: Iterable[str] = (),
) -> None:
    """Raise the error of ``WriteSession.check_lengths`` before the tasks of a commit run."""
    before = {} if base is None else arrays_of(base, group)
    after = {**before, **{array.path: array.metadata for array in arrays}}
    for path in deleted:
        after.pop(path, None)
    for found in new_disagreements(after, [before]):
        raise other_lengths(str(found))


def _made_destination(
    repository: Repository | None, destination: Destination, options: WriteOptions
) -> tuple[Repository, SnapshotId]:
    """Create the repository and the branch if they do not exist; return repository and base."""
    if repository is None or destination.base is None:
        repository = _new_repository(destination.location, options)
    base = destination.base or _first_snapshot(repository)
    if branch_missing(repository.as_read(), options):
        _create_branch(repository, options.branch, base)
        repository = Repository.open(destination.location)
    return repository, base


def _new_repository(location: Location, options: WriteOptions) -> Repository:
    """Create the repository, or open it if another writer has created it meanwhile."""
    wanted = options.spec_version
    try:
        return Repository.create(location, spec_version=wanted, check_clean_root=False)
    except AlreadyExistsError as error:
        repository = Repository.open(location)
        if repository.spec_version == wanted:
            return repository
        raise AlreadyExistsError(
            f"another writer created a repository of spec version {repository.spec_version} at "
            f"{location} during this write with specVersion={wanted}; nothing was committed, and "
            "the same write can be run again",
            **error.facts,
        ) from None


def _first_snapshot(repository: Repository) -> SnapshotId:
    """Return the oldest snapshot of ``main``, which has no arrays."""
    *_, oldest = repository.ancestry(branch="main")
    return oldest.id


def _create_branch(repository: Repository, name: str, base: SnapshotId) -> None:
    # Another writer may create it first; the commit is rebased on its commits.
    with suppress(AlreadyExistsError):
        try:
            repository.create_branch(name, base)
        except NotFoundError:
            # The base has expired: the write is planned again on the tip of ``main``.
            repository.create_branch(name, repository.resolve(branch="main"))


def _with_containers(
    repository: Repository, destination: Destination, receipts: Iterable[TaskReceipt]
) -> Repository:
    """Add the containers that receipts need; return the repository for the session."""
    prefixes = {prefix for receipt in receipts for prefix in receipt.prefixes}
    if not prefixes:
        return repository.as_read()
    access = destination.chunk_source.access
    add_containers(
        repository, prefixes, authorized=access.authorized, virtual_options=access.options
    )
    return repository


def _manifests_of(
    receipts: Iterable[TaskReceipt], paths: Collection[str]
) -> dict[str, list[ManifestReceipt]]:
    """Return the manifests by path of the array; raise if two tasks wrote the same chunk."""
    manifests: dict[str, list[ManifestReceipt]] = {}
    for receipt in receipts:
        for path in {**receipt.manifests, **receipt.cleared}:
            if path not in paths:
                raise InvalidInputError(
                    f"a receipt has chunks of array {path}, which is not part of this write; pass "
                    "the receipts of its own plan",
                    variable=path,
                )
        for path, stored in receipt.manifests.items():
            if stored:
                manifests.setdefault(path, []).extend(stored)
    # The session checks this again, but only after a new repository is created.
    for found in manifests.values():
        ChunkChanges(len(found[0].extents)).add_receipts(found)
    return manifests


def with_own_attributes(
    base: Snapshot | None, group: str, attributes: Mapping[str, Any], arrays: Iterable[str]
) -> dict[str, Any]:
    """Add attributes to those of an existing group, if a commit writes arrays at some paths.

    The group keeps its values of the same names, unless the commit replaces all of its arrays.
    """
    node = None if base is None else base.node(group)
    if base is None or node is None or node.array is not None:
        return dict(attributes)
    own = parse_group_metadata(node.user_data, node_path=group).attributes
    existing = arrays_of(base, node.path).keys()
    if existing and existing <= set(arrays):
        return {**own, **attributes}
    return {**attributes, **own}


def make_groups(
    session: WriteSession,
    groups: Mapping[str, Mapping[str, Any] | None],
    arrays: Iterable[str] = (),
) -> None:
    """Create groups, and those above them and above arrays, unless they exist.

    ``groups`` are attributes by path. They replace those of an existing group; None keeps them.
    """
    wanted = dict(groups)
    for path in [*groups, *arrays]:
        for above in ancestors(parse_node_path(path)):
            wanted.setdefault(above, None)
    # A group is created after those above it, whose paths are shorter.
    for path in sorted(wanted, key=len):
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
    node = session.node(array.path)
    if array.old_shape is not None:
        if node is None or node.user_data != array.metadata.to_bytes():
            update_array(session, array.path, array.metadata)
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
    create_array(session, array.path, array.metadata, array.node_id)


def create_array(
    session: WriteSession, path: str, metadata: ArrayMetadata, node_id: NodeId | None = None
) -> None:
    """Create an array with a document."""
    session.create_array(
        path,
        metadata.to_bytes(),
        shape=metadata.shape,
        num_chunks=metadata.grid.num_chunks,
        dimension_names=metadata.dimension_names,
        node_id=node_id,
    )


def update_array(session: WriteSession, path: str, metadata: ArrayMetadata) -> None:
    """Give an array a new document and its shape."""
    session.update_metadata(
        path, metadata.to_bytes(), shape=metadata.shape, num_chunks=metadata.grid.num_chunks
    )
