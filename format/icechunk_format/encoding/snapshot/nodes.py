"""Finds groups and arrays of a snapshot in its columns, and makes an object of each on demand.

Rules of this file
------------------
1. Nodes are sorted by the raw UTF-8 bytes of their paths, so a path is found by binary search.
2. A malformed path raises an error when its node is accessed; other nodes stay readable.

Specification: "Snapshot Files".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.node_path import ROOT, NodePath, stored_node_path
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.encoding.snapshot.node_columns import BytePool, NodeColumns
from icechunk_format.encoding.tables.byte_ranges import joined, starts_of
from icechunk_format.errors import FormatError, InvalidInputError

_NODES_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayNode:
    """Entry of an array in a snapshot, without its ``zarr.json``.

    ``num_chunks`` counts chunks of the (outer) chunk grid along each dimension. ``dimension_names``
    has a name or None per dimension, and is None if the array has no names.
    """

    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: ManifestRefs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """One node: an array, or a group if ``array`` is None.

    ``id`` survives updates and moves; ``user_data`` are the bytes of its ``zarr.json``.
    """

    id: NodeId
    path: NodePath
    user_data: bytes
    array: ArrayNode | None = None


class Nodes(Sequence[NodeSnapshot]):
    """All nodes of a snapshot, sorted by path, paths unique; each access makes a new object."""

    __slots__ = ("_by_id", "_dim_starts", "_extent_starts", "_ref_starts", "columns", "object_key")

    def __init__(self, columns: NodeColumns, *, object_key: str = "<nodes>") -> None:
        self.columns = columns
        self.object_key = object_key
        self._dim_starts = starts_of(columns.ndims)
        self._ref_starts = starts_of(columns.ref_counts)
        self._extent_starts = starts_of(columns.extent_counts)
        self._by_id: tuple[NDArray[np.uint64], NDArray[np.intp]] | None = None

    @classmethod
    def of(cls, nodes: Iterable[NodeSnapshot]) -> Nodes:
        """Return nodes as columns, sorted by path."""
        if isinstance(nodes, Nodes):
            return nodes
        ordered = sorted(nodes, key=lambda node: node.path)
        for left, right in pairwise(ordered):
            if left.path == right.path:
                raise _repeated(left.path)
        return cls(_columns_of(ordered))

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, index: int) -> NodeSnapshot: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[NodeSnapshot, ...]: ...
    def __getitem__(self, index: int | slice) -> NodeSnapshot | tuple[NodeSnapshot, ...]:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        return self._made(range(len(self))[index])

    def __iter__(self) -> Iterator[NodeSnapshot]:
        for start in range(0, len(self), _NODES_AT_ONCE):
            yield from self._block(start, min(start + _NODES_AT_ONCE, len(self)))

    def take(self, numbers: Sequence[int]) -> tuple[NodeSnapshot, ...]:
        """Return the nodes at some indices."""
        if numbers and numbers == range(numbers[0], numbers[0] + len(numbers)):
            return tuple(self._block(numbers[0], numbers[-1] + 1))
        return tuple(map(self._made, numbers))

    def subset(self, rows: NDArray[np.intp]) -> Nodes:
        """Return the nodes at some indices, in their order, as columns."""
        return Nodes(self.columns.take(rows), object_key=self.object_key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other):
            return False
        return all(left == right for left, right in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Nodes({list(self)!r})"

    def _made(self, row: int) -> NodeSnapshot:
        return next(self._block(row, row + 1))

    def _block(self, start: int, stop: int) -> Iterator[NodeSnapshot]:
        """Yield the nodes of consecutive indices."""
        columns, rows = self.columns, slice(start, stop)
        paths = columns.pool.get_many(columns.path_starts[rows], columns.path_lengths[rows])
        documents = columns.pool.get_many(
            columns.user_data_starts[rows], columns.user_data_lengths[rows]
        )
        ids = columns.ids[rows].tobytes()
        is_array, has_names = columns.is_array[rows].tolist(), columns.has_names[rows].tolist()
        ndims, counts = columns.ndims[rows].tolist(), columns.ref_counts[rows].tolist()
        dim, ref = int(self._dim_starts[start]), int(self._ref_starts[start])
        extent = int(self._extent_starts[start])
        dims = slice(dim, dim + sum(ndims))
        lengths, chunks = columns.array_lengths[dims].tolist(), columns.num_chunks[dims].tolist()
        names = columns.pool.get_many(columns.name_starts[dims], columns.name_lengths[dims])
        at = 0
        for number in range(stop - start):
            array, ndim, count = None, ndims[number], counts[number]
            path = self._path(start + number, paths[number])
            if is_array[number]:
                own = slice(at, at + ndim)
                extents = columns.extents[extent : extent + count * ndim]
                array = ArrayNode(
                    shape=tuple(lengths[own]),
                    num_chunks=tuple(chunks[own]),
                    dimension_names=(
                        self._names(start + number, names[own]) if has_names[number] else None
                    ),
                    manifests=ManifestRefs(
                        ids=columns.ref_ids[ref : ref + count],
                        extents=extents.reshape(count, ndim, 2),
                    ),
                )
            yield NodeSnapshot(
                id=NodeId(ids[number * NodeId.SIZE : (number + 1) * NodeId.SIZE]),
                path=path,
                user_data=documents[number],
                array=array,
            )
            at, ref, extent = at + ndim, ref + count, extent + count * ndim

    def _names(self, row: int, names: list[bytes]) -> tuple[str | None, ...]:
        return tuple(self._string(row, "dimension_names", name) or None for name in names)

    def _path(self, row: int, raw: bytes) -> NodePath:
        string = self._string(row, "path", raw)
        try:
            return stored_node_path(string)
        except InvalidInputError as error:
            raise self._error(row, "path", error.message) from error

    def _string(self, row: int, field: str, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"its text is not valid UTF-8 ({error.reason})"
            raise self._error(row, field, problem) from error

    def _error(self, row: int, field: str, problem: str) -> FormatError:
        return FormatError(
            problem, object_key=self.object_key, file_type="snapshot", field=f"nodes[{row}].{field}"
        )

    # -- finding ------------------------------------------------------------------------------

    @property
    def manifest_ids(self) -> NDArray[np.uint8]:
        """Ids of the manifests of all arrays, with repetitions: uint8, shape (m, 12)."""
        return self.columns.ref_ids

    def number_of(self, path: str) -> int | None:
        """Return the index of the node at a path, or None."""
        key = path.encode("utf-8", errors="surrogatepass")
        at = self._first_not_before(key)
        return at if at < len(self) and self.columns.path(at) == key else None

    def at(self, path: str) -> NodeSnapshot | None:
        """Return the node at a path, or None."""
        number = self.number_of(path)
        return None if number is None else self._made(number)

    def with_id(self, node_id: NodeId) -> NodeSnapshot | None:
        """Return the node with an id, or None."""
        number = self._number_of_id(node_id)
        return None if number is None else self._made(number)

    def path_of_id(self, node_id: NodeId) -> NodePath | None:
        """Return the path of the node with an id, or None."""
        number = self._number_of_id(node_id)
        return None if number is None else self._path(number, self.columns.path(number))

    def has_id(self, node_id: NodeId) -> bool:
        """Return True if a node with this id exists."""
        return self._number_of_id(node_id) is not None

    def _number_of_id(self, node_id: NodeId) -> int | None:
        keys, order = self.rows_by_id()
        key = np.frombuffer(node_id.raw, dtype="<u8")[0]
        at = int(np.searchsorted(keys, key))
        return int(order[at]) if at < len(keys) and keys[at] == key else None

    def rows_by_id(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Return integer keys of the ids, ascending, and the index of each node."""
        if self._by_id is None:
            keys = np.ascontiguousarray(self.columns.ids).view("<u8").reshape(-1)
            self._by_id = np.unique(keys, return_index=True)
        return self._by_id

    def descendants(self, path: str) -> range:
        """Return the indices of all nodes inside a group at any depth, without the group."""
        prefix = b"/" if path == ROOT else f"{path}/".encode("utf-8", errors="surrogatepass")
        # "0" is the byte after "/", so exactly the paths with this prefix sort between these keys.
        first = self._first_not_before(prefix)
        last = self._first_not_before(prefix[:-1] + b"0", first)
        if path == ROOT and first < last and self.columns.path(first) == b"/":
            first += 1
        return range(first, last)

    def children(self, path: str) -> Sequence[int]:
        """Return the indices of the nodes directly inside a group."""
        inside = self.descendants(path)
        length = 1 if path == ROOT else len(path.encode("utf-8", errors="surrogatepass")) + 1
        found: list[int] = []
        at = inside.start
        while at < inside.stop:
            key = self.columns.path(at)
            end = key.find(b"/", length)
            if end < 0:
                found.append(at)
                at += 1
            else:
                at = self._first_not_before(key[:end] + b"0", at)
        if found and found[-1] - found[0] == len(found) - 1:
            return range(found[0], found[-1] + 1)
        return found

    def _first_not_before(self, key: bytes, first: int = 0) -> int:
        return bisect_left(range(len(self)), key, lo=first, key=self.columns.path)

    # -- changing -----------------------------------------------------------------------------

    def changed(self, gone: Iterable[str], new: Iterable[NodeSnapshot]) -> Nodes:
        """Return the nodes without the paths ``gone`` and with the nodes ``new``.

        The other nodes are copied as columns.
        """
        stays = np.ones(len(self), dtype=np.bool_)
        for path in gone:
            number = self.number_of(path)
            if number is not None:
                stays[number] = False
        added = Nodes.of(new)
        indices = []
        index = 0
        for key in added.columns.paths():
            index = self._first_not_before(key, index)
            if index < len(self) and stays[index] and self.columns.path(index) == key:
                raise _repeated(key.decode())
            indices.append(index)
        kept = np.flatnonzero(stays)
        at = np.searchsorted(kept, np.array(indices, dtype=np.intp))
        numbers = np.arange(len(self), len(self) + len(added), dtype=np.intp)
        rows = np.insert(kept, at, numbers)
        columns = self.columns.take(rows, added.columns).compacted()
        return Nodes(columns, object_key=self.object_key)


def _repeated(path: str) -> InvalidInputError:
    return InvalidInputError(
        f"two nodes have the path {path!r}; paths must be unique",
        found=path,
        allowed="unique paths",
    )


def _columns_of(nodes: Sequence[NodeSnapshot]) -> NodeColumns:
    """Return nodes as columns, in their order."""
    strings = [stored_node_path(node.path).encode("utf-8") for node in nodes]
    strings += [node.user_data for node in nodes]
    arrays = [node.array for node in nodes]
    ndims = [
        0 if array is None else _checked_ndim(node, array)
        for node, array in zip(nodes, arrays, strict=True)
    ]
    known = [array for array in arrays if array is not None]
    for array in known:
        names = array.dimension_names or (None,) * len(array.shape)
        strings += [(name or "").encode("utf-8") for name in names]
    content, starts, lengths = joined(strings)
    n = len(nodes)
    return NodeColumns(
        pool=BytePool([content]),
        ids=NodeId.rows(node.id for node in nodes),
        path_starts=starts[:n],
        path_lengths=lengths[:n],
        user_data_starts=starts[n : 2 * n],
        user_data_lengths=lengths[n : 2 * n],
        is_array=np.array([array is not None for array in arrays], dtype=np.bool_),
        has_names=np.array(
            [array is not None and array.dimension_names is not None for array in arrays],
            dtype=np.bool_,
        ),
        ndims=np.array(ndims, dtype=np.int64),
        ref_counts=np.array(
            [0 if array is None else len(array.manifests) for array in arrays], dtype=np.int64
        ),
        array_lengths=_numbers([n for array in known for n in array.shape], "<u8"),
        num_chunks=_numbers([n for array in known for n in array.num_chunks], "<u4"),
        name_starts=starts[2 * n :],
        name_lengths=lengths[2 * n :],
        ref_ids=np.concatenate(
            [np.empty((0, 12), dtype=np.uint8), *(array.manifests.ids for array in known)]
        ),
        extents=np.concatenate(
            [
                np.empty((0, 2), dtype=np.uint32),
                *(array.manifests.extents.reshape(-1, 2) for array in known),
            ]
        ),
    )


def _checked_ndim(node: NodeSnapshot, array: ArrayNode) -> int:
    names = array.dimension_names
    ndims = {len(array.shape), len(array.num_chunks), array.manifests.ndim}
    if names is not None:
        ndims.add(len(names))
    if len(ndims) != 1:
        raise InvalidInputError(
            f"array {node.path!r} has {len(array.shape)} dimensions in its shape, "
            f"{len(array.num_chunks)} in its chunk grid, {array.manifests.ndim} in its manifests "
            f"and {'none' if names is None else len(names)} in its names; they must agree",
            found=sorted(ndims),
            allowed=len(array.shape),
        )
    return len(array.shape)


def _numbers(values: list[int], dtype: str) -> NDArray[Any]:
    try:
        return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise InvalidInputError(
            f"an array has {min(values)} to {max(values)} elements or chunks along an axis, which "
            f"{np.dtype(dtype).itemsize} bytes cannot hold",
            found=(min(values), max(values)),
        ) from error
