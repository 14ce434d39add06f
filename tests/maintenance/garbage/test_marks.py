"""Collections keep ids in columns, and mark them in parts of bounded work."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ChunkId, IdSet, decode_many
from icechunk_format.maintenance.garbage.parts import (
    distinct_manifest_rows,
    ids_by_part,
    ids_in,
    part_count,
    part_prefix,
    parts_of,
)
from icechunk_format.storage.batches import sized_batches

# Few distinct bytes, so that first halves are often equal.
CLOSE_IDS = st.lists(
    st.tuples(
        st.sampled_from([b"aaaaaaaa", b"aaaaaaab", b"\xff" * 8]), st.binary(min_size=4, max_size=4)
    ).map(b"".join),
    max_size=30,
)
ANY_IDS = st.lists(st.binary(min_size=12, max_size=12), max_size=30)


def columns(ids):
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 12)


@given(st.lists(CLOSE_IDS | ANY_IDS, max_size=4), CLOSE_IDS | ANY_IDS)
def test_a_set_of_ids_is_a_set(groups, asked):
    found = IdSet()
    for group in groups:
        found.add(columns(group))
    expected = {one for group in groups for one in group}
    asked = asked + sorted(expected)[:5]
    assert found.contains(columns(asked)).tolist() == [one in expected for one in asked]
    assert len(found) == len(expected)
    assert [row.tobytes() for row in found.ids()] == sorted(expected)


def test_a_large_set_merges_as_it_grows():
    random = np.random.default_rng(1)
    everything = random.integers(0, 256, (900_000, 12), dtype=np.uint8)
    found = IdSet()
    for first in range(0, len(everything), 70_000):
        found.add(everything[first : first + 80_000])
    assert len(found) == len(everything)
    assert found.contains(everything[::7]).all()
    assert not found.contains(random.integers(0, 256, (10_000, 12), dtype=np.uint8)).any()


@given(
    st.lists(
        st.binary(min_size=12, max_size=12).map(lambda raw: str(ChunkId(raw)))
        | st.text(alphabet="0123456789ABCDEFGHJKMNPQRSTVWXYZilou~é", min_size=19, max_size=21)
        | st.text(max_size=25),
        max_size=20,
    )
)
def test_names_are_read_together_as_one_by_one(names):
    raw, is_id = decode_many(names)
    one_by_one = [ChunkId.parse_exact(name) for name in names]
    assert is_id.tolist() == [found is not None for found in one_by_one]
    assert [row.tobytes() for row in raw[is_id]] == [f.raw for f in one_by_one if f is not None]


@given(ANY_IDS, st.sampled_from([1, 2]))
def test_parts_are_what_listings_can_ask_for(ids, depth):
    found = IdSet(columns(ids)).ids()
    parts = dict(ids_by_part(found, depth))
    assert sorted(parts) == sorted(set(parts_of(found, depth).tolist()))
    assert all(0 <= part < part_count(depth) for part in parts)
    back = []
    for part, together in parts.items():
        for row in ids_in(together):
            assert str(ChunkId(row.tobytes())).startswith(part_prefix(part, depth))
            back.append(row.tobytes())
    assert sorted(back) == sorted(set(ids))


def test_manifests_of_a_part_come_once_and_in_rows_of_bounded_work():
    listed = np.zeros(1000, dtype=[("id", "u1", (12,)), ("size", "<u8"), ("refs", "<u4")])
    listed["id"] = np.random.default_rng(0).integers(0, 256, (1000, 12), dtype=np.uint8)
    listed["size"] = 200_000
    listed["refs"] = 3
    rows = list(distinct_manifest_rows(4, [listed[:700].tobytes(), listed[300:].tobytes()]))
    assert b"".join(row.ids for row in rows) == IdSet(listed["id"]).ids().tobytes()
    assert sum(row.references for row in rows) == 3000
    assert max(row.size for row in rows) <= 17_000_000
    again = list(distinct_manifest_rows(4, [listed[300:].tobytes(), listed[:700].tobytes()]))
    assert again == rows
    assert list(distinct_manifest_rows(4, [])) == []


@given(st.lists(st.integers(0, 2**27), max_size=300))
def test_manifests_are_fetched_in_bounded_batches(sizes):
    runs = list(sized_batches(enumerate(sizes), 64, 64 * 2**20))
    assert [row for run in runs for row in run] == list(range(len(sizes)))
    for run in runs:
        assert len(run) <= 64
        assert len(run) == 1 or sum(sizes[row] for row in run) <= 64 * 2**20
