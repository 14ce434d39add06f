"""Transaction logs come back as they were written, in the orders that readers search by."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.effort import counted_lines
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import parse_node_path
from icechunk_format.encoding.tables.bulk_writer import Assembly, TableLayout
from icechunk_format.encoding.tables.byte_ranges import joined
from icechunk_format.encoding.transaction_log import EncodedLog, MoveOperation, TransactionLog
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

ids = st.binary(min_size=8, max_size=8).map(NodeId)
id_lists = st.lists(ids, max_size=5, unique=True).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1)
paths = st.lists(names.filter(lambda n: n not in (".", "..")), min_size=1, max_size=3).map(
    lambda parts: parse_node_path("/" + "/".join(parts))
)
moves = st.builds(
    MoveOperation, from_path=paths, to_path=paths, node_id=ids, is_array=st.booleans()
)


@st.composite
def coords(draw: st.DrawFn) -> np.ndarray:
    ndim = draw(st.integers(0, 4))
    rows = draw(st.sets(st.tuples(*[st.integers(0, 2**32 - 1)] * ndim), min_size=1, max_size=8))
    return np.array(sorted(rows), dtype=np.uint32).reshape(len(rows), ndim)


@st.composite
def logs(draw: st.DrawFn) -> TransactionLog:
    return TransactionLog(
        id=SnapshotId(draw(st.binary(min_size=12, max_size=12))),
        new_groups=draw(id_lists),
        new_arrays=draw(id_lists),
        deleted_groups=draw(id_lists),
        deleted_arrays=draw(id_lists),
        updated_arrays=draw(id_lists),
        updated_groups=draw(id_lists),
        updated_chunks=draw(st.dictionaries(ids, coords(), max_size=4)),
        moved_nodes=draw(st.lists(moves, max_size=4).map(tuple)),
    )


LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)


@settings(deadline=None)
@given(logs())
def test_what_was_written_comes_back_in_order(log: TransactionLog) -> None:
    found = transaction_log.decode(transaction_log.encode(log))
    assert found.id == log.id
    for name in LISTS:
        assert getattr(found, name) == tuple(sorted(getattr(log, name)))
    assert list(found.updated_chunks) == sorted(log.updated_chunks)
    for node_id, expected in log.updated_chunks.items():
        assert found.updated_chunks[node_id].dtype == np.uint32
        assert found.updated_chunks[node_id].tolist() == expected.tolist()
        assert found.updated_chunks[node_id].shape == expected.shape
    by_component = sorted(log.moved_nodes, key=lambda move: move.to_path.split("/"))
    assert list(found.moved_nodes) == by_component
    assert found.is_empty == log.is_empty
    assert len(found.updated_chunks) == len(log.updated_chunks)


def test_an_empty_log_has_all_lists() -> None:
    log = TransactionLog(id=SnapshotId(b"s" * 12))
    found = transaction_log.decode(transaction_log.encode(log))
    assert found.is_empty
    assert found.moved_nodes == ()


def test_moves_are_sorted_by_component_not_by_byte() -> None:
    wanted = ["/a", "/a/b", "/a-b"]
    log = TransactionLog(
        id=SnapshotId(b"s" * 12),
        moved_nodes=tuple(
            MoveOperation(
                from_path=parse_node_path(f"/old{i}"),
                to_path=parse_node_path(path),
                node_id=NodeId(bytes([i]) * 8),
                is_array=False,
            )
            for i, path in enumerate(reversed(wanted))
        ),
    )
    found = transaction_log.decode(transaction_log.encode(log))
    assert [move.to_path for move in found.moved_nodes] == wanted


def test_version_1_has_no_moves() -> None:
    log = TransactionLog(id=SnapshotId(b"s" * 12), new_groups=(NodeId(b"g" * 8),))
    data = transaction_log.encode(log, spec_version=1)
    assert data[36] == 1
    found = transaction_log.decode(data)
    assert found.new_groups == log.new_groups
    assert found.moved_nodes == ()
    move = MoveOperation(
        from_path=parse_node_path("/a"),
        to_path=parse_node_path("/b"),
        node_id=NodeId(b"g" * 8),
        is_array=True,
    )
    with raises(InvalidInputError, spec_version=1):
        transaction_log.encode(TransactionLog(id=log.id, moved_nodes=(move,)), spec_version=1)


def test_coordinates_out_of_order_are_sorted_once_each() -> None:
    node = NodeId(b"n" * 8)
    rows = np.array([[3, 1], [0, 9], [3, 0], [0, 9]], dtype=np.uint32)
    log = TransactionLog(id=SnapshotId(b"s" * 12), updated_chunks={node: rows})
    found = transaction_log.decode(transaction_log.encode(log))
    assert found.updated_chunks[node].tolist() == [[0, 9], [3, 0], [3, 1]]


def shared_log(*, chunk_lists: int, moves: int, same_node: bool) -> bytes:
    """Assemble a log whose arrays share one list of chunks, and whose moves share one path."""
    made = Assembly("the test log")
    root = made.root(TableLayout(transaction_log.TRANSACTION_LOG))
    for name in LISTS:
        root.point(name, made.struct_vector(np.zeros((0, 8), dtype=np.uint8)))
    at, arrays = made.table_vector(TableLayout(transaction_log.UPDATED_CHUNKS), chunk_lists)
    root.point("updated_chunks", at)
    arrays.rows["node_id"][:, 0] = 0 if same_node else np.arange(chunk_lists)
    layout = TableLayout(transaction_log._CHUNK_INDICES, embedded=100)
    at, chunks = made.table_vector(layout, 1)
    arrays.point("chunks", np.full(chunk_lists, at))
    chunks.point("coords", chunks.positions + layout.offsets["embedded_length"])
    chunks.rows["embedded_length"] = 100
    at, tables = made.table_vector(TableLayout(transaction_log._MOVE), moves)
    root.point("moved_nodes", at)
    path = int(made.byte_vectors(*joined([b"/" + b"p" * 1000]))[0])
    tables.point("from", np.full(moves, path))
    tables.point("to", np.full(moves, path))
    return made.finish()


def test_lists_shared_to_multiply_memory_are_refused() -> None:
    fine = shared_log(chunk_lists=1, moves=1, same_node=False)
    [coords] = transaction_log.decode_payload(fine).updated_chunks.values()
    assert len(coords) == 1
    with raises(FormatError, match="coordinates take more bytes", field="updated_chunks"):
        transaction_log.decode_payload(shared_log(chunk_lists=50, moves=1, same_node=False))
    with raises(FormatError, field="updated_chunks", node=str(NodeId(bytes(8)))):
        transaction_log.decode_payload(shared_log(chunk_lists=2, moves=1, same_node=True))
    with raises(FormatError, field="moved_nodes.from"):
        transaction_log.decode_payload(shared_log(chunk_lists=1, moves=500, same_node=False))


def test_coordinates_of_another_type_are_refused() -> None:
    log = TransactionLog(
        id=SnapshotId(b"s" * 12), updated_chunks={NodeId(b"n" * 8): np.zeros((2, 2))}
    )
    with raises(InvalidInputError, found="float64"):
        transaction_log.encode(log)


class Claimed:
    """Coordinates that claim to be so many, and are generated as so many."""

    ndim = 3

    def __init__(self, count: int, made: int) -> None:
        self.count, self.made = count, made

    def blocks(self) -> Iterator[np.ndarray]:
        for begin in range(0, self.made, 1000):
            rows = np.arange(begin, min(begin + 1000, self.made), dtype=np.uint32)
            yield np.stack([rows // 2**16, rows % 2**16, rows * 0], axis=1)


def test_coordinates_that_are_generated_are_written_as_others_are() -> None:
    node = NodeId(b"n" * 8)
    log = TransactionLog(id=SnapshotId(b"s" * 12))
    written = EncodedLog(log, chunks={node: Claimed(123_456, 123_456)}).file()
    whole = np.concatenate(list(Claimed(0, 123_456).blocks()))
    same = TransactionLog(id=log.id, updated_chunks={node: whole})
    payloads = [
        unwrap(data, file_type=FileType.TRANSACTION_LOG, object_key="t").payload
        for data in (written, transaction_log.encode(same))
    ]
    assert payloads[0] == payloads[1]
    assert (transaction_log.decode(written).updated_chunks[node] == whole).all()
    with raises(InvalidInputError, expected=140168):
        EncodedLog(log, chunks={node: Claimed(5_000, 4_999)}).file()


def test_a_log_that_no_reader_accepts_is_refused_before_it_is_made() -> None:
    log = TransactionLog(id=SnapshotId(b"s" * 12))
    node = NodeId(b"n" * 8)
    EncodedLog(log, chunks={node: Claimed(46_000_000, 0)})
    with raises(InvalidInputError, found=2300000224, allowed=2147483647):
        EncodedLog(log, chunks={node: Claimed(50_000_000, 0)})


def test_bytes_without_a_key_are_named_so() -> None:
    with raises(FormatError, object_key="<bytes>", file_type="transaction log"):
        transaction_log.decode(b"")


def test_damage_only_gives_typed_errors() -> None:
    named: set[object] = set()
    generator = np.random.default_rng(7)
    node_ids = [NodeId(bytes([i]) * 8) for i in range(9)]
    log = TransactionLog(
        id=SnapshotId(b"s" * 12),
        new_groups=tuple(node_ids[:3]),
        updated_arrays=tuple(node_ids[3:]),
        updated_chunks={
            node_ids[0]: np.arange(12, dtype=np.uint32).reshape(6, 2),
            node_ids[1]: np.zeros((1, 0), dtype=np.uint32),
        },
        moved_nodes=(
            MoveOperation(
                from_path=parse_node_path("/a/b"),
                to_path=parse_node_path("/c"),
                node_id=node_ids[5],
                is_array=True,
            ),
        ),
    )
    whole = transaction_log.encode(log)
    payload = unwrap(whole, file_type=FileType.TRANSACTION_LOG, object_key="t").payload
    refused = 0
    for mutant in range(1000):
        broken = bytearray(payload)
        for at in generator.integers(0, len(broken), 2).tolist():
            broken[at] = int(generator.choice([0, 1, 4, 12, 127, 128, 255]))
        if mutant % 10 == 0:
            del broken[int(generator.integers(0, len(broken))) :]
        try:
            transaction_log.decode_payload(bytes(broken), object_key="transactions/X")
        except FormatError:
            refused += 1
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(generator.integers(0, 8))
        try:
            transaction_log.decode(bytes(flipped), object_key="transactions/X")
        except (FormatError, UnsupportedError) as error:
            named.add(error.facts["object_key"])
            refused += 1
    assert refused > 300
    assert named == {"transactions/X"}


def test_a_million_chunks_need_no_loop() -> None:
    axis = np.arange(100, dtype=np.uint32)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)
    node = NodeId(b"n" * 8)
    log = TransactionLog(id=SnapshotId(b"s" * 12), updated_chunks={node: grid})
    data, encoding = counted_lines(lambda: transaction_log.encode(log))
    found, decoding = counted_lines(lambda: transaction_log.decode(data))
    assert (found.updated_chunks[node] == grid).all()
    assert encoding + decoding < 10_000


@pytest.mark.parametrize(
    ("spec_version", "digest"), [(1, "f38c8fd96e1beaad"), (2, "d8d8048fd8185b9a")]
)
def test_the_bytes_stay_as_they_are(spec_version: int, digest: str) -> None:
    """Bytes that change need a comparison with the files of the reference first."""
    ids = [NodeId(bytes([n]) * NodeId.SIZE) for n in range(9)]
    moves = (
        MoveOperation(from_path="/a", to_path="/b", node_id=ids[7], is_array=True),
        MoveOperation(from_path="/g", to_path="/h", node_id=ids[8], is_array=False),
    )
    chunks = {ids[4]: np.arange(6, dtype=np.uint32).reshape(3, 2), ids[5]: np.empty((1, 0), "u4")}
    log = TransactionLog(
        id=SnapshotId(b"s" * 12),
        new_groups=(ids[1], ids[0]),
        new_arrays=(ids[2],),
        deleted_groups=(ids[3],),
        deleted_arrays=(ids[6],),
        updated_groups=(ids[4],),
        updated_arrays=(ids[5],),
        updated_chunks=chunks,
        moved_nodes=moves if spec_version == 2 else (),
    )
    data = transaction_log.encode(log, spec_version=spec_version)
    payload = unwrap(data, file_type=FileType.TRANSACTION_LOG, object_key="k").payload
    assert hashlib.sha256(payload).hexdigest()[:16] == digest
