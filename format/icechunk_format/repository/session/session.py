"""``WriteSession``: changes to one branch that become one atomic commit.

Long because it is one public class, with its documentation; its methods check and delegate.

Rules of this file
------------------
1. A session reads the branch as of its start, with its own changes. Other readers see the changes
   only after the commit.
2. A session makes one commit; afterwards it can be read, but not changed.
3. A session cannot be pickled. Executors receive a location, node ids and ``session.format``, and
   return receipts.
4. Metadata documents are opaque bytes, except in ``shift`` and ``set_attributes``. Callers provide
   shape, chunk counts and dimension names that agree with the document, because snapshots also
   store them.
5. A call that raises does not change the session.
6. Chunks are stored immediately, references on commit.

Specification: "Snapshot Files", "Chunk Manifest Files", "Chunk Files" (a writable session).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.manifest.chunk_refs import KIND_VIRTUAL, ChunkRefs
from icechunk_format.encoding.object_keys import snapshot_key
from icechunk_format.encoding.snapshot.file import NodeSnapshot
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import inside_box
from icechunk_format.grid.coordinate_set import checked_coords
from icechunk_format.repository.changes.change_set import ChangeSet
from icechunk_format.repository.changes.chunk_changes import ChunkChanges
from icechunk_format.repository.changes.grid_checks import (
    check_grid_of_v1,
    check_receipts,
    check_regular,
    grid_of,
    outside,
)
from icechunk_format.repository.changes.working_tree import (
    WorkingTree,
    changed_shape,
    checked_shape,
)
from icechunk_format.repository.commit.assemble import ManifestAssembler
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.repository.files.manifest_files import ManifestReceipt
from icechunk_format.repository.session.committing import CommittingSession
from icechunk_format.repository.session.editing import with_attributes
from icechunk_format.repository.session.reads import current_refs, dropped_coords, shifted

_GROUP: Final = b'{"zarr_format": 3, "node_type": "group"}'


class WriteSession(CommittingSession):
    """Changes to one branch that become one commit; made by ``Repository.writable_session``.

    Methods raise ``NotFoundError`` if a node or its parent does not exist, ``InvalidInputError`` if
    a path or an argument is malformed, ``ReadOnlyError`` after a commit, ``FormatError`` and
    ``StorageError`` if files cannot be read or written. Methods list further errors.

    Attributes
    ----------
    format
        The spec version and configuration, with which executors write manifests; picklable.

    Examples
    --------
    >>> session.delete("/notes")  # doctest: +SKIP
    >>> session.commit("Delete the notes")  # doctest: +SKIP
    """

    def __repr__(self) -> str:
        url = self._storage.root_url
        return f"WriteSession({url!r}, {self.branch!r}, base={self.snapshot_id})"

    def __reduce__(self) -> Never:
        raise TypeError(
            "a WriteSession cannot be pickled: changes made in a copy would be lost. "
            "Send executors the location, node ids and session.format, and give the receipts "
            "that they send back to add_manifests"
        )

    # -- reading ----------------------------------------------------------------------------

    def nodes(self) -> list[NodeSnapshot]:
        """Return all nodes with the changes of this session, sorted by path.

        Manifests of arrays are those of the base; ``chunk_refs`` includes changed chunks.
        """
        return self._tree.nodes()

    def node(self, path: str) -> NodeSnapshot | None:
        """Return the node at a path with the changes of this session, or None if it does not exist.

        Manifests are those of the base, as for ``nodes``.
        """
        return self._tree.node(path)

    def chunk_refs(self, path: str, lo: Sequence[int], hi: Sequence[int]) -> ChunkRefs:
        """Return the references of an array in a box, with the changes of this session.

        Parameters
        ----------
        path
            Path of the array.
        lo, hi
            First chunk coordinate per axis, and the one after the last.

        Raises
        ------
        InvalidInputError
            The box has another number of dimensions, or the node is a group.

        Examples
        --------
        >>> session.chunk_refs("/t2m", (0, 0), (2, 1)).coords  # doctest: +SKIP
        """
        node = self._tree.existing_array(path)
        changes = self.changes.chunks.get(node.id)
        return current_refs(self._storage, node, changes, self._tree.base.manifest_files, lo, hi)

    # -- nodes ------------------------------------------------------------------------------

    def create_group(self, path: str, user_data: bytes | Mapping[str, Any]) -> NodeId:
        """Create a group, and return its id.

        Parameters
        ----------
        path
            Path of the group; its parent must exist.
        user_data
            Attributes by name, or the bytes of a ``zarr.json``.

        Raises
        ------
        AlreadyExistsError
            A node exists at the path.
        InvalidInputError
            An attribute is not JSON, the parent is an array, or the session has moved nodes.

        Examples
        --------
        >>> session.create_group("/daily", {"title": "Daily means"})  # doctest: +SKIP
        """
        self._check_open()
        if not isinstance(user_data, bytes):
            user_data = with_attributes(_GROUP, user_data, path=path) or _GROUP
        node_id = NodeId(secrets.token_bytes(NodeId.SIZE))
        self._tree.create(path, user_data, node_id)
        return node_id

    def create_array(
        self,
        path: str,
        user_data: bytes,
        *,
        shape: Sequence[int],
        num_chunks: Sequence[int],
        dimension_names: Sequence[str | None] | None = None,
        node_id: NodeId | None = None,
    ) -> NodeId:
        """Create an array without chunks, and return its id.

        Parameters
        ----------
        path
            Path of the array; its parent must exist.
        user_data
            Its ``zarr.json``.
        shape
            Elements per dimension, as in the document.
        num_chunks
            Chunks per dimension of the (outer) chunk grid.
        dimension_names
            One name or None per dimension; None if the document has no names.
        node_id
            Id of the array, if executors have already written its manifests; None for a new id.

        Raises
        ------
        AlreadyExistsError
            A node exists at the path.
        InvalidInputError
            The numbers of dimensions differ, the parent is an array, the session has moved nodes,
            or the chunk grid is not regular in a repository of spec version 1.

        Examples
        --------
        >>> session.create_array(  # doctest: +SKIP
        ...     "/t2m", document, shape=(48, 90), num_chunks=(2, 1), dimension_names=("time", "x")
        ... )
        >>> session.set_chunk("/t2m", (0, 0), payload)  # doctest: +SKIP
        """
        self._check_open()
        array = checked_shape(path, shape, num_chunks, dimension_names)
        if self.format.spec_version == 1:
            check_grid_of_v1(path, user_data)
        if node_id is None:
            node_id = NodeId(secrets.token_bytes(NodeId.SIZE))
        self._tree.create(path, user_data, node_id, array)
        return node_id

    def update_metadata(
        self,
        path: str,
        user_data: bytes,
        *,
        shape: Sequence[int] | None = None,
        num_chunks: Sequence[int] | None = None,
        dimension_names: Sequence[str | None] | Literal["keep"] | None = "keep",
    ) -> None:
        """Replace the metadata document of a node; with a shape, resize the array.

        Chunks outside of a smaller chunk grid are dropped, and do not return if it grows again.

        Parameters
        ----------
        path, user_data
            Path of the node, and its new ``zarr.json``.
        shape, num_chunks
            Elements and chunks per dimension, as in the document; None for both keeps them.
        dimension_names
            As for ``create_array``; ``"keep"`` keeps the names.

        Raises
        ------
        InvalidInputError
            Only one of ``shape`` and ``num_chunks`` is given, a group is given a shape, the number
            of dimensions differs, the session has moved nodes, or the chunk grid is not regular in
            a repository of spec version 1.
        """
        self._check_open()
        node = self._tree.existing(path)
        array = changed_shape(node, path, shape, num_chunks, dimension_names)
        if self.format.spec_version == 1:
            check_grid_of_v1(path, user_data)
        dropped = None
        if array is not None:
            changes = self.changes.chunks.get(node.id)
            files = self._tree.base.manifest_files
            dropped = dropped_coords(self._storage, node, changes, files, array.num_chunks)
        self._tree.update(path, user_data, array, dropped)

    def set_attributes(
        self, path: str, values: Mapping[str, Any], remove: Iterable[str] = ()
    ) -> bool:
        """Set and remove attributes of a node; return True if any changed.

        Parameters
        ----------
        path
            Path of the node.
        values
            JSON values by name; attributes of other names do not change.
        remove
            Names of attributes to remove.

        Raises
        ------
        InvalidInputError
            A value is not JSON, an attribute to remove is missing, or the session has moved nodes.

        Examples
        --------
        >>> session.set_attributes("/t2m", {"units": "K"}, remove=["history"])  # doctest: +SKIP
        """
        document = self._tree.existing(path).user_data
        key = snapshot_key(self.snapshot_id)
        edited = with_attributes(document, values, remove, path=path, object_key=key)
        if edited is not None:
            self.update_metadata(path, edited)
        return edited is not None

    def delete(self, path: str) -> None:
        """Delete a node and its descendants.

        Raises ``InvalidInputError`` (the session has moved nodes).
        """
        self._check_open()
        self._tree.delete(path)

    def move(self, source: str, target: str) -> None:
        """Move a node and its descendants to another path, without copying data.

        One commit either moves nodes or changes them.

        Parameters
        ----------
        source, target
            The current and the new path. The parent of the new path must exist.

        Raises
        ------
        AlreadyExistsError
            A node exists at the new path.
        InvalidInputError
            The session has other changes, or the node is the root or would move into itself.
        ReadOnlyError
            A feature flag of the repository forbids moves.
        UnsupportedError
            The repository has spec version 1.

        Examples
        --------
        >>> session.move("/t2m", "/air_temperature")  # doctest: +SKIP
        """
        self._check_open()
        self._tip.check_moves()
        self._tree.move(source, target)

    # -- chunks -----------------------------------------------------------------------------

    def set_chunk(self, path: str, coords: Sequence[int], payload: bytes) -> None:
        """Store one encoded chunk at its indices in the chunk grid; see ``set_chunks``.

        Examples
        --------
        >>> session.set_chunk("/t2m", (0, 0), payload)  # doctest: +SKIP
        """
        at = np.array([list(coords)]).reshape(1, len(coords))
        self.set_chunks(path, at, [payload])

    def set_chunks(self, path: str, coords: ArrayLike, payloads: Sequence[bytes]) -> None:
        """Store encoded chunks concurrently; small ones are stored in their references.

        Parameters
        ----------
        path
            Path of the array.
        coords
            Integers, shape (n, ndim), distinct: indices in the chunk grid.
        payloads
            n encoded chunks, none empty.

        Raises
        ------
        InvalidInputError
            A chunk is outside of the grid, given twice or empty; none of the chunks was set.
        StorageError
            The storage failed; none of the chunks was set.

        Examples
        --------
        >>> session.set_chunks("/t2m", [(0, 0), (1, 0)], [first, second])  # doctest: +SKIP
        """
        changes, at = self._changes_at(path, coords)
        refs = store_chunks(
            self._storage,
            at,
            payloads,
            inline_threshold=self.format.config.inline_chunk_threshold_bytes,
        )
        self._written.add_chunks(refs)
        changes.set_refs(refs)

    def set_refs(self, path: str, refs: ChunkRefs) -> None:
        """Set references to chunks that are already stored, in the repository or elsewhere.

        Parameters
        ----------
        path
            Path of the array.
        refs
            The references; they replace others at the same coordinates.

        Raises
        ------
        InvalidInputError
            A chunk is outside of the grid, or one in the repository has no bytes.
        """
        changes, _ = self._changes_at(path, refs.coords)
        if ((refs.length == 0) & (refs.kind != KIND_VIRTUAL)).any():
            raise InvalidInputError(
                f"a chunk of {path!r} has no bytes; a chunk that holds nothing but the fill value "
                "is not stored at all"
            )
        changes.set_refs(refs)

    def add_manifests(self, path: str, receipts: Sequence[ManifestReceipt]) -> None:
        """Add manifests that executors have stored for an array, given by their receipts.

        Their chunks replace others at the same coordinates. The commit reads and rewrites only
        manifests that overlap others.

        Parameters
        ----------
        path
            Path of the array.
        receipts
            Results of ``store_manifests`` for the node id of the array.

        Raises
        ------
        InvalidInputError
            Two manifests hold the same chunk, or a chunk is outside of the grid.
        """
        self._check_open()
        node = self._tree.existing_array(path)
        check_receipts(path, receipts, grid_of(node))
        self._tree.chunks_of(node).add_receipts(receipts)

    def count_files(self, written: Written) -> None:
        """Add files that were stored for this session elsewhere to the counts of the commit."""
        self._written.add_all(written)

    def delete_chunks(self, path: str, coords: ArrayLike) -> None:
        """Delete chunks, which then read as the fill value; missing ones are ignored.

        Parameters
        ----------
        path
            Path of the array.
        coords
            Integers, shape (n, ndim): indices in the chunk grid.

        Raises
        ------
        InvalidInputError
            A chunk is outside of the grid.

        Examples
        --------
        >>> session.delete_chunks("/t2m", [(0, 0)])  # doctest: +SKIP
        """
        changes, at = self._changes_at(path, coords)
        changes.delete(at)

    def drop_chunks_beyond(self, path: str, num_chunks: Sequence[int]) -> None:
        """Drop the chunks of the base outside of a smaller chunk grid, and keep the shape.

        The caller sets or deletes each chunk that is dropped, so that the log lists it. Chunks that
        other writers commit there meanwhile conflict.

        Parameters
        ----------
        path
            Path of the array.
        num_chunks
            Chunks per dimension of the smaller grid.
        """
        self._check_open()
        self._tree.chunks_of(self._tree.existing_array(path)).resize(num_chunks)

    def shift(self, path: str, offset: Sequence[int]) -> None:
        """Shift all chunks of an array in the chunk grid.

        Chunks that leave the grid are dropped; the others read as the fill value. All references of
        the array are read.

        Parameters
        ----------
        path
            Path of the array.
        offset
            Chunks per axis, negative towards the start.

        Raises
        ------
        InvalidInputError
            The offset has another number of dimensions, or the chunk grid is not regular.

        Examples
        --------
        >>> session.shift("/t2m", (-1, 0))  # doctest: +SKIP
        """
        self._check_open()
        node = self._tree.existing_array(path)
        check_regular(node)
        grid = grid_of(node)
        if len(offset) != len(grid):
            raise InvalidInputError(
                f"an offset of {len(offset)} axes was given for array {path!r} of {len(grid)}",
                name=path,
            )
        changes = self._tree.chunks_of(node)
        refs = self.chunk_refs(path, grid[:, 0].tolist(), grid[:, 1].tolist())
        changes.replace_all(shifted(refs, offset, grid), left=refs.coords)

    def discard(self) -> None:
        """Discard all changes; stored chunks become garbage."""
        self._check_open()
        self._tree = WorkingTree(self._tree.base, ChangeSet())
        self._assembler = ManifestAssembler(self._storage, self.format)

    def take_over(self, changes: ChangeSet) -> None:
        """Adopt changes relative to the base of this session, which must not have changes.

        They may contain moves, beside which nodes can be changed.

        Raises ``InvalidInputError`` (the session has changes).
        """
        self._check_open()
        if self.has_changes:
            raise InvalidInputError("this session has changes; use a new session for further ones")
        self._tree = WorkingTree(self._tree.base, changes, allows_both=True)

    # -- inside -----------------------------------------------------------------------------

    def _changes_at(self, path: str, coords: ArrayLike) -> tuple[ChunkChanges, NDArray[np.uint32]]:
        """Return the chunk changes of an array, and checked coordinates."""
        self._check_open()
        node = self._tree.existing_array(path)
        grid = grid_of(node)
        at = checked_coords(coords)
        if at.shape[1] != len(grid):
            raise InvalidInputError(
                f"chunk coordinates of {at.shape[1]} dimensions were given for array {path!r} of "
                f"{len(grid)}",
                name=path,
            )
        is_inside = inside_box(at, grid)
        if not is_inside.all():
            raise outside(path, tuple(at[int(np.argmin(is_inside))].tolist()), grid)
        return self._tree.chunks_of(node), at
