"""What can be changed in a session, and what it looks like meanwhile. Commits are in ``session``.

Rules of this file
------------------
1. Metadata documents are opaque bytes here; only ``shift`` looks for the name of the chunk grid.
   Shape, chunk counts and dimension names are given beside them, because snapshots store them too;
   the caller sees to it that they agree.
2. A call that raises has changed nothing in the session.
3. Chunks are stored at once, references when the session is committed.

Specification: "Snapshot Files", "Chunk Manifest Files", "Chunk Files".
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

import numpy as np

from icechunk_format.errors import InvalidInputError, ReadOnlyError
from icechunk_format.grid.boxes import inside_box
from icechunk_format.grid.coordinate_set import checked_coords
from icechunk_format.repository.changes.change_set import ArrayShape, ChangeSet
from icechunk_format.repository.changes.grid_checks import (
    check_receipts,
    check_regular,
    grid_of,
    outside,
)
from icechunk_format.repository.changes.working_tree import WorkingTree, checked_shape
from icechunk_format.repository.commit.assemble import ManifestAssembler
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files.chunk_files import store_chunks
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.session.reads import current_refs, dropped_coords, shifted
from icechunk_format.spec.ids import NodeId
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE, KIND_VIRTUAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from icechunk_format.repository.changes.chunk_changes import ChunkChanges
    from icechunk_format.repository.files.manifest_files import ManifestReceipt
    from icechunk_format.repository.state.branch_tip import BranchTip
    from icechunk_format.spec.config.config import RepositoryConfig
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.spec.manifest.chunk_refs import ChunkRefs
    from icechunk_format.spec.snapshot.file import NodeSnapshot, Snapshot
    from icechunk_format.storage.protocol import Storage


class SessionEdits:
    """The changes of a session; use it as ``WriteSession``.

    Parameters
    ----------
    storage
        Of the repository.
    tip
        The branch, and how it is moved.
    base
        The snapshot that the branch pointed to.
    config
        Of the repository.
    spec_version
        Of the repository.

    Attributes
    ----------
    format
        How manifest files are written here; executors need it.
    """

    def __init__(
        self,
        storage: Storage,
        tip: BranchTip,
        base: Snapshot,
        *,
        config: RepositoryConfig,
        spec_version: int,
    ) -> None:
        self._storage = storage
        self._tip = tip
        self._tree = WorkingTree(base, ChangeSet())
        self.format = ManifestFormat(spec_version=spec_version, config=config)
        self._assembler = ManifestAssembler(storage, self.format)
        self._written = Written()
        self._times_rebased = 0
        self._ended: str | None = None

    # -- looking ----------------------------------------------------------------------------

    @property
    def branch(self) -> str:
        """The branch that a commit moves."""
        return self._tip.branch

    @property
    def snapshot_id(self) -> SnapshotId:
        """The snapshot that the session stands on; after a commit, the new one."""
        return self._tree.base.id

    @property
    def has_changes(self) -> bool:
        """Whether a commit would change anything."""
        return not self._tree.changes.is_empty

    @property
    def changes(self) -> ChangeSet:
        """What was changed so far; for looking, not for changing."""
        return self._tree.changes

    def nodes(self) -> list[NodeSnapshot]:
        """Return all nodes as they are now, sorted by path.

        Manifests of arrays are those of the base; ``chunk_refs`` knows of changed chunks.
        """
        return self._tree.nodes()

    def node(self, path: str) -> NodeSnapshot | None:
        """Return a node as it is now, None where there is none; see ``nodes``."""
        return self._tree.node(path)

    def chunk_refs(self, path: str, lo: Sequence[int], hi: Sequence[int]) -> ChunkRefs:
        """Return the references of an array in a box, with the changes of this session.

        Parameters
        ----------
        path
            The array.
        lo, hi
            First chunk coordinate per axis, and the one after the last.

        Raises
        ------
        NotFoundError, InvalidInputError
            There is no such array, or the box has another number of dimensions.
        FormatError, StorageError
            A manifest cannot be read.
        """
        node = self._tree.existing_array(path)
        changes = self._tree.changes.chunks.get(node.id)
        return current_refs(self._storage, node, changes, self._tree.base.manifest_files, lo, hi)

    # -- nodes ------------------------------------------------------------------------------

    def create_group(self, path: str, user_data: bytes) -> NodeId:
        """Create a group; returns its id.

        Parameters
        ----------
        path
            Where; its parent group must exist.
        user_data
            Its ``zarr.json``.

        Raises
        ------
        AlreadyExistsError
            Something is there.
        NotFoundError
            The parent group is not.
        """
        self._check_open()
        node_id = NodeId.from_random(secrets.token_bytes(NodeId.SIZE))
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
        """Create an array without chunks; returns its id.

        Parameters
        ----------
        path
            Where; its parent group must exist.
        user_data
            Its ``zarr.json``.
        shape
            Elements per dimension, as in the document.
        num_chunks
            Chunks per dimension of the (outer) chunk grid.
        dimension_names
            One name or None per dimension; None when the document names none.
        node_id
            Its id, where executors have written manifests for it before it existed; None draws
            a new one.

        Raises
        ------
        AlreadyExistsError
            Something is there.
        NotFoundError
            The parent group is not.
        InvalidInputError
            The numbers of dimensions differ.
        """
        self._check_open()
        array = checked_shape(path, shape, num_chunks, dimension_names)
        if node_id is None:
            node_id = NodeId.from_random(secrets.token_bytes(NodeId.SIZE))
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

        Chunks outside of a smaller chunk grid are dropped, and stay so if it grows again.

        Raises
        ------
        NotFoundError
            There is no node.
        InvalidInputError
            Only one of ``shape`` and ``num_chunks`` is given, a group is given a shape, or the
            number of dimensions differs.
        """
        self._check_open()
        node = self._tree.existing(path)
        if (shape is None) != (num_chunks is None):
            raise InvalidInputError("shape and num_chunks of an array change together; give both")
        array: ArrayShape | None = None
        if node.array is not None:
            names = node.array.dimension_names if dimension_names == "keep" else dimension_names
            array = checked_shape(
                path,
                node.array.shape if shape is None else shape,
                node.array.num_chunks if num_chunks is None else num_chunks,
                names,
            )
        elif shape is not None or dimension_names != "keep":
            raise InvalidInputError(f"{path!r} is a group, which has no shape", name=path)
        dropped = None
        if array is not None:
            changes, files = self._tree.changes.chunks.get(node.id), self._tree.base.manifest_files
            dropped = dropped_coords(self._storage, node, changes, files, array.num_chunks)
        self._tree.update(path, user_data, array, dropped)

    def delete(self, path: str) -> None:
        """Delete a node, and a group with all that is in it.

        Raises
        ------
        NotFoundError
            There is no node.
        """
        self._check_open()
        self._tree.delete(path)

    def move(self, source: str, target: str) -> None:
        """Give a node another path, a group with all that is in it. Costs no data.

        Raises
        ------
        UnsupportedError
            The repository has spec version 1.
        ReadOnlyError
            The repository has switched moves off.
        NotFoundError, AlreadyExistsError, InvalidInputError
            As for ``WorkingTree.move``; one commit either moves nodes or changes them.
        """
        self._check_open()
        self._tip.check_moves()
        self._tree.move(source, target)

    # -- chunks -----------------------------------------------------------------------------

    def set_chunk(self, path: str, coords: Sequence[int], payload: bytes) -> None:
        """Store one encoded chunk; see ``set_chunks``."""
        at = np.array([list(coords)], dtype=np.int64).reshape(1, len(coords))
        self.set_chunks(path, at, [payload])

    def set_chunks(self, path: str, coords: ArrayLike, payloads: Sequence[bytes]) -> None:
        """Store encoded chunks, concurrently; small ones within their references.

        Parameters
        ----------
        path
            The array.
        coords
            Integers, shape (n, ndim): places in the chunk grid, distinct.
        payloads
            n encoded chunks, none empty.

        Raises
        ------
        NotFoundError
            There is no such array.
        InvalidInputError
            A place is outside of the grid or given twice, or a chunk is empty.
        StorageError
            The store failed; then none of the chunks was set.
        """
        changes, at = self._changes_at(path, coords)
        refs = store_chunks(
            self._storage,
            at,
            payloads,
            inline_threshold=self.format.config.inline_chunk_threshold_bytes,
        )
        own = refs.kind == KIND_NATIVE
        self._written.add("chunks", int(own.sum()), int(refs.length[own].sum()))
        changes.set_refs(refs)

    def set_refs(self, path: str, refs: ChunkRefs) -> None:
        """Set references to chunks that are stored already, here or elsewhere.

        Raises
        ------
        NotFoundError
            There is no such array.
        InvalidInputError
            A place is outside of the grid, or a chunk in the repository has no bytes.
        """
        changes, _ = self._changes_at(path, refs.coords)
        if ((refs.length == 0) & (refs.kind != KIND_VIRTUAL)).any():
            raise InvalidInputError(
                f"a chunk of {path!r} has no bytes; a chunk that holds nothing but the fill value "
                "is not stored at all"
            )
        changes.set_refs(refs)

    def add_manifests(self, path: str, receipts: Sequence[ManifestReceipt]) -> None:
        """Take over manifests that executors have stored for an array, by their receipts.

        Their chunks replace what is at the same places. Files whose chunks lie apart from all
        others are used as they are; only what overlaps is read and rewritten by the commit.

        Parameters
        ----------
        path
            The array whose node id the manifests were written for.
        receipts
            What ``store_manifests`` returned.

        Raises
        ------
        NotFoundError
            There is no such array.
        InvalidInputError
            Two manifests hold the same chunk, or a chunk is outside of the grid.
        """
        self._check_open()
        node = self._tree.existing_array(path)
        check_receipts(path, receipts, grid_of(node))
        self._tree.chunks_of(node).add_receipts(receipts)

    def delete_chunks(self, path: str, coords: ArrayLike) -> None:
        """Delete chunks; their places read as the fill value. Missing ones are no error.

        Raises
        ------
        NotFoundError
            There is no such array.
        InvalidInputError
            A place is outside of the grid.
        """
        changes, at = self._changes_at(path, coords)
        changes.delete(at)

    def shift(self, path: str, offset: Sequence[int]) -> None:
        """Move all chunks of an array by so many places in the chunk grid.

        Chunks that leave the grid are dropped, places that become free read as the fill value.
        All references of the array are read.

        Raises
        ------
        NotFoundError
            There is no such array.
        InvalidInputError
            The offset has another number of dimensions, or the chunk grid is not regular.
        FormatError, StorageError
            A manifest cannot be read.
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
        """Forget all changes. Chunks that were stored are garbage for the collector."""
        self._check_open()
        self._tree = WorkingTree(self._tree.base, ChangeSet())
        self._assembler = ManifestAssembler(self._storage, self.format)

    # -- inside -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ReadOnlyError(
                f"this session has been {self._ended}; open another session to change more"
            )

    def _changes_at(self, path: str, coords: ArrayLike) -> tuple[ChunkChanges, NDArray[np.uint32]]:
        """Return the noted changes of an array, and coordinates that were checked."""
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
