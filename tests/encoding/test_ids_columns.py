"""Ids are found in columns, also beside ids that differ in the last bytes only."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.encoding.ids import IdSet, SnapshotId, SortedIds, id_columns, rows_of_ids

# Few first halves, and zeros at the end, which NumPy hides in byte strings.
RAW_IDS = st.lists(
    st.tuples(st.sampled_from([bytes(8), b"\xff" * 8, b"abcdefgh"]), st.integers(0, 3)).map(
        lambda parts: parts[0] + (parts[1] << 24).to_bytes(4, "big")
    )
)


def columns_of(raw):
    return np.frombuffer(b"".join(raw), dtype=np.uint8).reshape(-1, 12)


@given(st.sets(RAW_IDS.filter(bool).map(lambda raw: raw[0])).map(sorted), RAW_IDS)
def test_each_id_is_found_in_its_row(known, wanted):
    rows = [known.index(raw) if raw in known else -1 for raw in wanted]
    ids = columns_of(known)
    assert rows_of_ids(ids, columns_of(wanted)).tolist() == rows
    assert SortedIds(*id_columns(ids)).find(columns_of(wanted)).tolist() == rows
    assert IdSet(ids).contains(columns_of(wanted)).tolist() == [row >= 0 for row in rows]
    assert IdSet(ids).ids().tobytes() == b"".join(known)


@given(st.lists(st.tuples(st.booleans(), RAW_IDS), max_size=6))
def test_a_set_that_grows_is_a_set(steps):
    found, expected = IdSet(), set()
    for is_looked_at, raw in steps:
        found.add(columns_of(raw))
        expected |= set(raw)
        assert found.approximate_size >= len(expected)
        if is_looked_at:
            assert len(found) == len(expected)
            assert found.contains(columns_of(raw)).all()
    assert found.ids().tobytes() == b"".join(sorted(expected))
    assert len(found) == len(expected)
    assert found.approximate_size == len(expected)
    assert IdSet.of(SnapshotId(raw) for raw in expected).ids().tobytes() == found.ids().tobytes()
    assert SnapshotId.rows([]).shape == (0, 12)


def test_ids_that_share_half_are_sorted_by_the_rest():
    raw = [bytes([first]) * 8 + bytes([0, 0, 0, last]) for first in (2, 1) for last in (3, 1, 2, 1)]
    found = IdSet(columns_of(raw))
    assert found.ids().tobytes() == b"".join(sorted(set(raw)))
    assert len(found) == 6


def test_two_ids_are_a_set():
    one, two = b"a" * 12, b"a" * 8 + b"b" * 4
    for raw in ([one], [one, one], [one, two], [two, one], [two, b"b" * 12], [b"b" * 12, two]):
        found = IdSet(columns_of(raw))
        assert found.ids().tobytes() == b"".join(sorted(set(raw)))


def test_pairs_that_share_half_are_sorted_wherever_they_are():
    for number in range(4):
        raw = [bytes([first]) * 12 for first in range(4)]
        pair = [bytes([number]) * 8 + bytes([number, 0, 0, last]) for last in (2, 1)]
        raw = [*raw[:number], *pair, *raw[number + 1 :]]
        found = IdSet(columns_of(raw))
        assert found.ids().tobytes() == b"".join(sorted(raw))
        assert found.contains(columns_of(raw)).all()
