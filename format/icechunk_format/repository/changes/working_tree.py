"""``WorkingTree``: the nodes of a snapshot with the changes of a session.

Rules of this file
------------------
1. Pure. Every change is checked against the current nodes and recorded in the change set, so the
   tree and the change set never disagree.
2. After each call, every node but the root has a parent group, and no two nodes have one path.
3. The time of a call grows with the changes and the result, not with the size of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import ROOT, NodePath, is_below, parent, parse_node_path
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.snapshot.nodes import Nodes
from icechunk_format.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from icechunk_format.repository.changes.change_set import ChangeSet, metadata_of, move_of
from icechunk_format.repository.changes.chunk_changes import ChunkChanges


class WorkingTree:
    """Nodes of ``base`` after ``changes``, which must fit the base.

    A merge may change nodes beside moves (``allows_both``); a commit then records nodes that moved
    as deleted and created again.
    """

    def __init__(self, base: Snapshot, changes: ChangeSet, *, allows_both: bool = False) -> None:
        self.base = base
        self.changes = changes
        self._allows_both = allows_both
        self._new_paths = {state.path: node_id for node_id, state in changes.created.items()}
        self._new_paths.update((move.to_path, i) for i, move in changes.moved.items())
        self._left_paths = {node.path for node in changes.deleted.values()}
        self._left_paths.update(move.from_path for move in changes.moved.values())

    # -- reading ----------------------------------------------------------------------------

    def node(self, path: NodePath | str) -> NodeSnapshot | None:
        """Return the node at a path; None if it does not exist.

        Manifests of arrays are those of the base, without changed chunks.
        """
        node_id = self._new_paths.get(NodePath(path))
        if node_id is not None:
            return self._by_id(node_id)
        if path in self._left_paths:
            return None
        found = self.base.node(path)
        return None if found is None else self._now(found)

    def existing(self, path: NodePath | str) -> NodeSnapshot:
        """Return the node at a path."""
        # Paths that other writers stored are found even if invalid, to be deleted or moved.
        found = self.node(path)
        if found is None:
            parse_node_path(path)
            raise NotFoundError(
                f"there is no group or array at {path!r} in this session", kind="node", name=path
            )
        return found

    def existing_array(self, path: NodePath | str) -> NodeSnapshot:
        """Return the array at a path."""
        found = self.existing(path)
        if found.array is None:
            raise InvalidInputError(
                f"{path!r} is a group; chunks belong to arrays", kind="node", name=path
            )
        return found

    def nodes(self) -> list[NodeSnapshot]:
        """Return all nodes, sorted by path."""
        return self._now_of(self.base.nodes, self._new_paths.values())

    def changed_nodes(self) -> list[NodeSnapshot]:
        """Return all new, moved and changed nodes, sorted by path."""
        changes = self.changes
        ids = {*changes.created, *changes.updated, *changes.moved, *changes.chunks}
        found = [self._by_id(i) for i in ids if i in changes.created or self.base.nodes.has_id(i)]
        found.sort(key=lambda node: node.path)
        return found

    def with_changed(self, nodes: Sequence[NodeSnapshot]) -> Nodes:
        """Return all nodes, with new values for those of ``changed_nodes``."""
        gone = self._left_paths.union(
            node.path for node in nodes if node.id not in self.changes.created
        )
        return self.base.nodes.changed(gone, nodes)

    def children(self, path: NodePath) -> list[NodeSnapshot]:
        """Return the nodes directly inside a group, sorted by path."""
        new = (node_id for new_path, node_id in self._new_paths.items() if parent(new_path) == path)
        return self._now_of(self.base.children(path), new)

    def descendants(self, path: NodePath) -> list[NodeSnapshot]:
        """Return all nodes inside a group at any depth, sorted by path."""
        new = (node_id for new_path, node_id in self._new_paths.items() if is_below(new_path, path))
        return self._now_of(self.base.descendants(path), new)

    def _now_of(self, stored: Iterable[NodeSnapshot], new: Iterable[NodeId]) -> list[NodeSnapshot]:
        """Return the given nodes of the base that keep their paths, and nodes by id."""
        found = [self._now(node) for node in stored if node.path not in self._left_paths]
        found += map(self._by_id, new)
        found.sort(key=lambda node: node.path)
        return found

    def _by_id(self, node_id: NodeId) -> NodeSnapshot:
        created = self.changes.created.get(node_id)
        if created is not None:
            return created
        stored = self.base.nodes.with_id(node_id)
        if stored is None:
            raise NotFoundError(f"node {node_id} is not in the base of this session", kind="node")
        return self._now(stored)

    def _now(self, stored: NodeSnapshot) -> NodeSnapshot:
        updated = self.changes.updated.get(stored.id)
        moved = self.changes.moved.get(stored.id)
        if updated is None and moved is None:
            return stored
        now = updated or stored
        if now.array is not None and stored.array is not None:
            now = replace(now, array=replace(now.array, manifests=stored.array.manifests))
        return now if moved is None else replace(now, path=moved.to_path)

    # -- changing ---------------------------------------------------------------------------

    def create(
        self, path: str, user_data: bytes, node_id: NodeId, array: ArrayNode | None = None
    ) -> None:
        """Add a group, or an array if its shape is given."""
        self._check_no_moves()
        checked = parse_node_path(path)
        if self.node(checked) is not None:
            raise AlreadyExistsError(
                f"there is a node at {path!r} already; update or delete it", kind="node", name=path
            )
        self._check_parent(checked)
        if checked == ROOT and array is not None and self.descendants(ROOT):
            raise InvalidInputError("the root has nodes below it, so it cannot become an array")
        created = NodeSnapshot(id=node_id, path=checked, user_data=user_data, array=array)
        self.changes.created[node_id] = created
        self._new_paths[checked] = node_id
        if array is not None:
            self.changes.chunks[node_id] = ChunkChanges(len(array.shape))

    def update(
        self,
        path: str,
        user_data: bytes,
        array: ArrayNode | None = None,
        dropped: NDArray[np.uint32] | None = None,
    ) -> None:
        """Replace the metadata document of a node, and the shape of an array.

        Parameters
        ----------
        array
            The new shape; None keeps the old one.
        dropped
            Chunks of the base that this session dropped and that are inside of the new shape; None
            for none.
        """
        self._check_no_moves()
        node = self.existing(path)
        before = node.array
        if array is not None:
            if before is None:
                raise InvalidInputError(f"{path!r} is a group, which has no shape", name=path)
            if len(array.shape) != len(before.shape):
                raise InvalidInputError(
                    f"array {path!r} has {len(before.shape)} dimensions and cannot become one of "
                    f"{len(array.shape)}; delete it and create another",
                    name=path,
                )
            self._resize(node, before.num_chunks, array.num_chunks, dropped)
        state = replace(node, user_data=user_data, array=array or before)
        if node.id in self.changes.created:
            self.changes.created[node.id] = state
            return
        stored = self.base.nodes.with_id(node.id)
        if stored is not None and metadata_of(stored) == metadata_of(state):
            self.changes.updated.pop(node.id, None)
        else:
            self.changes.updated[node.id] = state

    def _resize(
        self,
        node: NodeSnapshot,
        before: tuple[int, ...],
        now: tuple[int, ...],
        dropped: NDArray[np.uint32] | None,
    ) -> None:
        known = self.changes.chunks.get(node.id)
        is_smaller = any(new < old for new, old in zip(now, before, strict=True))
        if not is_smaller and (known is None or known.clip is None):
            return
        changes = self.chunks_of(node)
        changes.resize(now, dropped)
        stored = self.base.nodes.with_id(node.id)
        if stored is not None and stored.array is not None and stored.array.num_chunks == now:
            # The grid equals that of the base again, so chunks that other writers append are kept.
            changes.clip = None

    def delete(self, path: str) -> None:
        """Delete a node and its descendants."""
        self._check_no_moves()
        node = self.existing(path)
        for gone in (node, *self.descendants(node.path)):
            self.changes.chunks.pop(gone.id, None)
            self._new_paths.pop(gone.path, None)
            if self.changes.created.pop(gone.id, None) is None:
                self.changes.updated.pop(gone.id, None)
                self.changes.deleted[gone.id] = gone
                self._left_paths.add(gone.path)

    def move(self, source: str, target: str) -> None:
        """Move a node and its descendants to another path."""
        if self.changes.has_edits:
            raise InvalidInputError(
                "this session has changed nodes or chunks, and one commit either moves nodes or "
                "changes them; commit the changes first",
                moved=False,
            )
        node = self.existing(source)
        checked = parse_node_path(target)
        if node.path == ROOT or checked == node.path or is_below(checked, node.path):
            raise InvalidInputError(
                f"{source!r} cannot move to {target!r}: the root cannot be moved, and a node "
                "cannot be moved into itself",
                found=(source, target),
            )
        if self.node(checked) is not None:
            raise AlreadyExistsError(
                f"there is a node at {target!r} already; moving never replaces anything",
                kind="node",
                name=target,
            )
        self._check_parent(checked)
        movers = (node, *self.descendants(node.path))
        for mover in movers:
            if mover.id in self.changes.moved:
                del self._new_paths[mover.path]
            else:
                self._left_paths.add(mover.path)
        for mover in movers:
            stored = self.base.nodes.with_id(mover.id) or mover
            to_path = NodePath(checked + mover.path[len(node.path) :])
            if to_path == stored.path:
                del self.changes.moved[mover.id]
                self._left_paths.discard(to_path)
                continue
            self.changes.moved[mover.id] = move_of(mover, stored.path, to_path)
            self._new_paths[to_path] = mover.id

    def chunks_of(self, node: NodeSnapshot) -> ChunkChanges:
        """Return the chunk changes of an array, for adding further ones."""
        self._check_no_moves()
        changes = self.changes.chunks.get(node.id)
        if changes is None:
            ndim = 0 if node.array is None else len(node.array.shape)
            changes = self.changes.chunks[node.id] = ChunkChanges(ndim)
        return changes

    def _check_parent(self, path: NodePath) -> None:
        above = parent(path)
        if above is None:
            return
        found = self.node(above)
        if found is None:
            raise NotFoundError(
                f"{path!r} needs the group {above!r}, which does not exist; create it first",
                kind="node",
                name=above,
            )
        if found.array is not None:
            raise InvalidInputError(
                f"{above!r} is an array, and nothing can be below an array", name=above
            )

    def _check_no_moves(self) -> None:
        if self.changes.moved and not self._allows_both:
            raise InvalidInputError(
                "this session has moved nodes, and one commit either moves nodes or changes them; "
                "commit the moves first",
                moved=True,
            )


def changed_shape(
    node: NodeSnapshot,
    path: str,
    shape: Sequence[int] | None,
    num_chunks: Sequence[int] | None,
    dimension_names: Sequence[str | None] | Literal["keep"] | None,
) -> ArrayNode | None:
    """Return the shape of an array after a change of its metadata; None for a group."""
    if (shape is None) != (num_chunks is None):
        raise InvalidInputError("shape and num_chunks of an array change together; give both")
    if node.array is None:
        if shape is not None or dimension_names != "keep":
            raise InvalidInputError(f"{path!r} is a group, which has no shape", name=path)
        return None
    return checked_shape(
        path,
        node.array.shape if shape is None else shape,
        node.array.num_chunks if num_chunks is None else num_chunks,
        node.array.dimension_names if dimension_names == "keep" else dimension_names,
    )


def checked_shape(
    path: str,
    shape: Sequence[int],
    num_chunks: Sequence[int],
    dimension_names: Sequence[str | None] | None,
) -> ArrayNode:
    """Check and return the properties of an array that a snapshot stores."""
    names = None if dimension_names is None else tuple(name or None for name in dimension_names)
    if len({len(shape), len(num_chunks), len(shape if names is None else names)}) != 1:
        raise InvalidInputError(
            f"array {path!r} has {len(shape)} dimensions in its shape, {len(num_chunks)} in its "
            f"chunk grid and {'none' if names is None else len(names)} in its names; they must "
            "agree",
            name=path,
        )
    for length, count in zip(shape, num_chunks, strict=True):
        if not (0 <= length < 2**64 and 0 <= count < 2**32):
            raise InvalidInputError(
                f"array {path!r} cannot have {length} elements in {count} chunks along an axis; "
                "there are at most 2**64 - 1 elements and 2**32 - 1 chunks",
                name=path,
            )
    return ArrayNode(
        shape=tuple(int(n) for n in shape),
        num_chunks=tuple(int(n) for n in num_chunks),
        dimension_names=names,
        manifests=ManifestRefs.empty(len(shape)),
    )
