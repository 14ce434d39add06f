"""Reads and writes transaction logs, which list the nodes and chunks that a commit changed.

Rebase, diff and amend read them; reading data does not. A commit may change millions of chunks, so
their coordinates are read and written as columns (`tables.bulk_reader`, `tables.bulk_writer`).

Long because one module holds one file of the format: its reader, its writer and their checks.

Rules of this file
------------------
1. Lists of node ids are sorted by bytes, ``updated_chunks`` by node id, coordinates
   lexicographically; lists in another order are sorted when read.
2. ``moved_nodes`` is sorted *by path component* of ``to``, unlike the nodes of a snapshot. Files of
   spec version 1 do not have the list.
3. ``updated_chunks`` also lists chunks of new arrays and deleted chunks.
4. Tables are made and compressed block by block: writing needs memory for a few blocks and the
   compressed file.

Spec: "Transaction Log Files", schema ``transaction_log.fbs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.envelope import (
    DEFAULT_LEVEL,
    SPEC_V1,
    SPEC_V2,
    FileType,
    unwrap,
    wrap_blocks,
)
from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath, component_order, stored_node_path
from icechunk_format.encoding.tables.bulk_reader import Tables, VectorReader
from icechunk_format.encoding.tables.bulk_writer import Assembly, TableLayout
from icechunk_format.encoding.tables.byte_ranges import joined
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.coordinates import is_sorted, sorting_rows

# The lists of node ids, in the order of their slots.
NODE_LISTS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)
TRANSACTION_LOG: Final = TableSchema(
    "TransactionLog",
    id="id12",
    **dict.fromkeys(NODE_LISTS, "offset"),
    updated_chunks="offset",
    moved_nodes="offset",
    extra="offset",
)
UPDATED_CHUNKS: Final = TableSchema("ArrayUpdatedChunks", node_id="id8", chunks="offset")
_CHUNK_INDICES: Final = TableSchema("ChunkIndices", coords="offset")
_MOVE: Final = TableSchema(
    "MoveOperation", **{"from": "offset", "to": "offset"}, node_id="id8", node_type="u8"
)
_ARRAY_NODE: Final = 1  # a group is 0, the default
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOperation:
    """The move of one node, from its path in the parent snapshot to its new path."""

    from_path: NodePath
    to_path: NodePath
    node_id: NodeId
    is_array: bool


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class TransactionLog:
    """The changes of one commit.

    Parameters
    ----------
    id
        The id of the snapshot of the commit.
    updated_arrays, updated_groups
        Existing nodes whose metadata document changed.
    updated_chunks
        Node id to coordinates, uint32 of shape (n, ndim), of references that were added, replaced
        or deleted. Sorted and distinct after decoding; ``encode`` sorts them as well.
    moved_nodes
        One entry per moved node, children of moved groups included.
    """

    id: SnapshotId
    new_groups: tuple[NodeId, ...] = ()
    new_arrays: tuple[NodeId, ...] = ()
    deleted_groups: tuple[NodeId, ...] = ()
    deleted_arrays: tuple[NodeId, ...] = ()
    updated_arrays: tuple[NodeId, ...] = ()
    updated_groups: tuple[NodeId, ...] = ()
    updated_chunks: Mapping[NodeId, NDArray[np.uint32]] = field(default_factory=dict)
    moved_nodes: tuple[MoveOperation, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the commit changed nothing."""
        lists = (getattr(self, name) for name in NODE_LISTS)
        return not (any(lists) or self.updated_chunks or self.moved_nodes)

    @property
    def relocated_nodes(self) -> frozenset[NodeId]:
        """Nodes that changed their path in a commit with other changes.

        They are listed as deleted and as created, since only commits without other changes have
        moves.
        """
        gone = frozenset(self.deleted_groups + self.deleted_arrays)
        return gone.intersection(self.new_groups + self.new_arrays)


def decode(data: bytes, *, object_key: str = "<bytes>") -> TransactionLog:
    """Read a transaction log file."""
    envelope = unwrap(data, file_type=FileType.TRANSACTION_LOG, object_key=object_key)
    return decode_payload(envelope.payload, object_key=object_key)


def decode_payload(payload: bytes, *, object_key: str = "<bytes>") -> TransactionLog:
    """Read the decompressed flatbuffer of a transaction log file; see ``decode``."""
    reader = VectorReader(payload, object_key=object_key, file_type="transaction log")
    root = reader.root(TRANSACTION_LOG, "transaction_log")
    root.require("id")
    return TransactionLog(
        id=SnapshotId(root.column("id").tobytes()),
        updated_chunks=_read_chunks(reader, root),
        moved_nodes=_read_moves(reader, root),
        **{name: tuple(sorted(read_node_list(reader, root, name))) for name in NODE_LISTS},
    )


def read_node_list(reader: VectorReader, root: Tables, name: str) -> list[NodeId]:
    """Read a list of node ids in its stored order."""
    root.require(name)
    found = root.ranges(name, NodeId.SIZE)
    rows = reader.struct_rows(int(found.starts[0]), int(found.lengths[0]), NodeId.SIZE, name)
    return NodeId.many(rows.tobytes())


def _read_chunks(reader: VectorReader, root: Tables) -> dict[NodeId, NDArray[np.uint32]]:
    (arrays,) = root.table_vectors("updated_chunks", UPDATED_CHUNKS)
    arrays.require("node_id")
    lists = arrays.table_vectors("chunks", _CHUNK_INDICES)
    found: dict[NodeId, NDArray[np.uint32]] = {}
    bytes_left = reader.data.size
    for raw_id, tables in zip(arrays.column("node_id"), lists, strict=True):
        coords = tables.coordinates("coords")
        bytes_left -= coords.nbytes
        if bytes_left < 0:
            reader.fail("chunk coordinates take more bytes than the file has", "updated_chunks")
        node_id = NodeId(raw_id.tobytes())
        if node_id in found:
            reader.fail(f"node {node_id} is listed twice", "updated_chunks", node=str(node_id))
        found[node_id] = _ordered(coords)
    return dict(sorted(found.items()))


def _ordered(coords: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return coords if is_sorted(coords) else coords[sorting_rows(coords)]


def _read_moves(reader: VectorReader, root: Tables) -> tuple[MoveOperation, ...]:
    if not root.has_all("moved_nodes"):
        return ()
    (moves,) = root.table_vectors("moved_nodes", _MOVE)
    moves.require("from", "to", "node_id")
    types = moves.column("node_type")
    if (types > _ARRAY_NODE).any():
        reader.fail(f"node type {int(types.max())} is neither 0 nor 1", "moved_nodes.node_type")
    return tuple(
        MoveOperation(
            from_path=from_path,
            to_path=to_path,
            node_id=NodeId(node_id.tobytes()),
            is_array=bool(node_type),
        )
        for from_path, to_path, node_id, node_type in zip(
            _read_paths(reader, moves, "from"),
            _read_paths(reader, moves, "to"),
            moves.column("node_id"),
            types.tolist(),
            strict=True,
        )
    )


def _read_paths(reader: VectorReader, moves: Tables, name: str) -> list[NodePath]:
    found = moves.ranges(name)
    if int(found.lengths.sum()) > reader.data.size:
        reader.fail("paths take more bytes than the file has", f"moved_nodes.{name}")
    paths = []
    for start, length in zip(found.starts.tolist(), found.lengths.tolist(), strict=True):
        raw = reader.data[start : start + length].tobytes()
        try:
            paths.append(stored_node_path(raw.decode("utf-8")))
        except (UnicodeDecodeError, InvalidInputError) as error:
            reader.fail(f"{raw!r} is not a node path ({error})", f"moved_nodes.{name}")
    return paths


class CoordinateBlocks(Protocol):
    """Chunk coordinates of one array, in blocks."""

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        ...

    @property
    def count(self) -> int:
        """Number of coordinates."""
        ...

    def blocks(self) -> Iterable[NDArray[np.uint32]]:
        """Return all coordinates, sorted and distinct, in arrays of shape (n, ndim)."""
        ...


@dataclass(frozen=True, slots=True)
class _WholeCoordinates:
    """Coordinates in memory."""

    coords: NDArray[np.uint32]

    @property
    def ndim(self) -> int:
        return int(self.coords.shape[1])

    @property
    def count(self) -> int:
        return len(self.coords)

    def blocks(self) -> Iterator[NDArray[np.uint32]]:
        for begin in range(0, len(self.coords), _ROWS_AT_ONCE):
            yield self.coords[begin : begin + _ROWS_AT_ONCE]


def encode(
    log: TransactionLog, *, spec_version: int = SPEC_V2, level: int = DEFAULT_LEVEL
) -> bytes:
    """Return a transaction log file; equal input gives equal bytes."""
    return EncodedLog(log, spec_version=spec_version).file(level=level)


class EncodedLog:
    """A transaction log to write; its size is checked before the file is made.

    ``chunks`` replaces ``log.updated_chunks``: coordinates by node, generated when the file is
    made.
    """

    def __init__(
        self,
        log: TransactionLog,
        *,
        chunks: Mapping[NodeId, CoordinateBlocks] | None = None,
        spec_version: int = SPEC_V2,
    ) -> None:
        if chunks is None:
            chunks = {
                node_id: _WholeCoordinates(_checked(coords, node_id))
                for node_id, coords in log.updated_chunks.items()
            }
        self.id = log.id
        self._spec_version = spec_version
        self._made = Assembly(
            f"the transaction log of {sum(c.count for c in chunks.values())} changed chunks",
            remedy="commit them in several parts, each of at most 40 million chunks",
        )
        _assemble(self._made, log, chunks, spec_version)

    def file(self, *, level: int = DEFAULT_LEVEL) -> bytes:
        """Return the file, compressed while it is made."""
        return wrap_blocks(
            self._made.blocks(),
            self._made.size,
            file_type=FileType.TRANSACTION_LOG,
            spec_version=self._spec_version,
            level=level,
        )


def _assemble(
    made: Assembly,
    log: TransactionLog,
    updated: Mapping[NodeId, CoordinateBlocks],
    spec_version: int,
) -> None:
    has_moves = spec_version != SPEC_V1
    if log.moved_nodes and not has_moves:
        raise InvalidInputError(
            f"{len(log.moved_nodes)} nodes were moved, which spec version 1 cannot record; "
            "upgrade the repository to version 2 first",
            spec_version=spec_version,
        )
    fields = ["id", *NODE_LISTS, "updated_chunks", *(["moved_nodes"] if has_moves else [])]
    root = made.root(TableLayout(TRANSACTION_LOG, fields))
    root.rows["id"] = np.frombuffer(log.id.raw, dtype=np.uint8)
    for name in NODE_LISTS:
        ids = sorted(getattr(log, name))
        root.point(name, made.struct_vector(NodeId.rows(ids)))
    root.point("updated_chunks", _write_chunks(made, updated))
    if has_moves:
        root.point("moved_nodes", _write_moves(made, log))


def _write_chunks(made: Assembly, updated: Mapping[NodeId, CoordinateBlocks]) -> int:
    node_ids = sorted(updated)
    vector_at, tables = made.table_vector(TableLayout(UPDATED_CHUNKS), len(node_ids))
    tables.rows["node_id"] = NodeId.rows(node_ids)
    chunks_at = [_write_coords(made, updated[node_id]) for node_id in node_ids]
    tables.point("chunks", np.array(chunks_at, dtype=np.int64))
    return vector_at


def _write_coords(made: Assembly, chunks: CoordinateBlocks) -> int:
    layout = TableLayout(_CHUNK_INDICES, embedded=chunks.ndim)

    def tables() -> Iterator[NDArray[Any]]:
        rows = np.zeros(0, dtype=layout.dtype)
        for coords in chunks.blocks():
            if len(rows) < len(coords):
                rows = np.zeros(len(coords), dtype=layout.dtype)
                # Each table is followed by its own coordinates.
                rows["coords"] = layout.offsets["embedded_length"] - layout.offsets["coords"]
                rows["embedded_length"] = chunks.ndim
            block = rows[: len(coords)]
            block["embedded"] = coords
            yield block

    return made.streamed_tables(layout, chunks.count, tables)


def _checked(coords: NDArray[np.uint32], node_id: NodeId) -> NDArray[np.uint32]:
    if coords.ndim != 2 or coords.dtype != np.uint32:
        raise InvalidInputError(
            f"updated chunks of node {node_id} must be uint32 of shape (n, dimensions), found "
            f"{coords.dtype} of shape {coords.shape}",
            node=str(node_id),
            found=str(coords.dtype),
        )
    return _ordered(coords)


def _write_moves(made: Assembly, log: TransactionLog) -> int:
    moves = sorted(log.moved_nodes, key=lambda move: component_order(move.to_path))
    vector_at, tables = made.table_vector(TableLayout(_MOVE), len(moves))
    tables.rows["node_id"] = NodeId.rows([move.node_id for move in moves])
    tables.rows["node_type"] = [int(move.is_array) for move in moves]
    for name, paths in (
        ("from", [move.from_path for move in moves]),
        ("to", [move.to_path for move in moves]),
    ):
        strings = joined([path.encode() for path in paths])
        tables.point(name, made.byte_vectors(*strings))
    return vector_at
