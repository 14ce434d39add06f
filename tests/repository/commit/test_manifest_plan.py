"""Planned manifests hold the right references and do not overlap, for any base.

Random arrays are laid out over random manifests, changed at random, and rebuilt by the plan in
plain Python; the result must be what a dictionary of chunks says.
"""

import numpy as np
import pytest
from helpers.sessions.model import assert_apart
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs, inline_refs, native_refs
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.grid.boxes import bounds_of
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.changes import ChunkChanges
from icechunk_format.repository.commit.manifest_plan import (
    SMALL_MANIFEST,
    ManifestPlanner,
    grouped_rows,
)
from icechunk_format.repository.files import ManifestReceipt, manifest_files
from icechunk_format.repository.files.manifest_files import limited

GRID = 7


def points(ndim, **limits):
    return st.sets(st.tuples(*[st.integers(0, GRID - 1)] * ndim), **limits)


def sorted_coords(found, ndim):
    return np.array(sorted(found), dtype=np.uint32).reshape(len(found), ndim)


def cells_of(found, size):
    """Cut a set of coordinates into sets of one cell each: boxes that are apart."""
    parts = {}
    for point in found:
        parts.setdefault(tuple(i // size for i in point), set()).add(point)
    return list(parts.values())


def is_below(point, limit):
    return all(i < n for i, n in zip(point, limit, strict=True))


@st.composite
def cases(draw):
    ndim = draw(st.integers(1, 3))
    base = cells_of(draw(points(ndim, max_size=30)), draw(st.integers(1, GRID)))
    receipts = cells_of(draw(points(ndim, max_size=12)), draw(st.integers(1, GRID)))
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from(["set", "delete", "resize"]), points(ndim, max_size=10)),
            max_size=4,
        )
    )
    cells = tuple(draw(st.integers(1, GRID)) for _ in range(ndim))
    return ndim, base, receipts, steps, cells, draw(st.booleans())


@given(cases())
@settings(max_examples=300, deadline=None)
def test_plans_keep_everything_and_overlap_nothing(case):
    ndim, base, receipts, steps, cells, takes_receipts = case
    manifests = ManifestRefs(
        ids=np.arange(12 * len(base), dtype=np.uint8).reshape(-1, 12),
        extents=np.array(
            [bounds_of(sorted_coords(b, ndim)) for b in base], dtype=np.uint32
        ).reshape(len(base), ndim, 2),
    )
    expected = dict.fromkeys({p for part in base for p in part}, "base")
    changes = ChunkChanges(ndim)
    made = []
    if takes_receipts:
        for number, part in enumerate(receipts):
            coords = CoordSet.of(sorted_coords(part, ndim))
            made.append(
                ManifestReceipt(
                    manifest_id=ManifestId(bytes([number]) * 12),
                    size_bytes=1,
                    num_chunk_refs=len(part),
                    extents=tuple(map(tuple, coords.bounds().tolist())),
                    coords=coords,
                )
            )
        changes.add_receipts(made)
        expected.update(dict.fromkeys({p for part in receipts for p in part}, "receipt"))
    for verb, found in steps:
        coords = sorted_coords(found, ndim)
        if verb == "set" and found:
            changes.set_refs(inline_refs(coords, [b"x"] * len(coords)))
            expected.update(dict.fromkeys(found, "set"))
        elif verb == "delete":
            changes.delete(coords)
            for point in found:
                expected.pop(point, None)
        elif verb == "resize" and found:
            limit = min(found)
            before = changes.clip or (GRID,) * ndim
            comes_back = {
                p for part in base for p in part if is_below(p, limit) and not is_below(p, before)
            }
            changes.resize(limit, sorted_coords(comes_back, ndim))
            expected = {
                p: v
                for p, v in expected.items()
                if all(i < n for i, n in zip(p, limit, strict=True))
            }
    counts = np.array([len(part) for part in base], dtype=np.int64)
    plan = ManifestPlanner(manifests, changes, cells=cells, counts=counts).plan()

    pending, deleted = changes.pending()
    gone = set(map(tuple, deleted.tolist()))
    clip = changes.clip or (2**32,) * ndim
    found = {}
    extents = [manifests.extents[row] for row in plan.kept_rows]
    # A resize may leave receipts out, so rows are those of the list that is left.
    left = changes.receipts
    extents += [np.array(left[row].extents) for row in plan.taken_rows]
    for row in plan.kept_rows:
        found.update(dict.fromkeys(base[row], "base"))
    for row in plan.taken_rows:
        found.update(dict.fromkeys(map(tuple, left[row].coords.coords().tolist()), "receipt"))
    for group in plan.groups:
        mine = {}
        for row in group.base_rows:
            mine.update(dict.fromkeys((p for p in base[row] if is_below(p, clip)), "base"))
        for row in group.receipt_rows:
            mine.update(dict.fromkeys(map(tuple, left[row].coords.coords().tolist()), "receipt"))
        mine = {p: v for p, v in mine.items() if p not in gone}
        mine.update(dict.fromkeys(map(tuple, pending.coords[group.pending_rows].tolist()), "set"))
        assert not mine.keys() & found.keys()
        found.update(mine)
        if mine:
            extents.append(bounds_of(sorted_coords(mine, ndim)))
    assert found == expected
    assert_apart(np.array(extents).reshape(len(extents), ndim, 2))


def grid_manifests(ranges):
    extents = np.array([[r] for r in ranges], dtype=np.uint32)
    ids = np.arange(12 * len(ranges), dtype=np.int64).astype(np.uint8).reshape(-1, 12)
    return ManifestRefs(ids=ids, extents=extents)


def append_at(place):
    changes = ChunkChanges(1)
    changes.set_refs(inline_refs([[place]], [b"x"]))
    return changes


@pytest.mark.parametrize(
    ("counts", "joined"),
    [
        ([1] * 15, 0),
        ([1] * 16, 16),
        ([1] * 100, 16),
        ([5000] * 100, 0),
        ([SMALL_MANIFEST - 1] * 16, 16),
        ([SMALL_MANIFEST] * 16, 0),
        ([1] * 10 + [5000] + [1] * 10, 8),
        ([1] * 4 + [5000] + [1] * 5 + [5000] + [1] * 7, 0),
    ],
)
def test_a_bounded_number_of_small_manifests_is_joined(counts, joined):
    manifests = grid_manifests([(i, i + 1) for i in range(len(counts))])
    plan = ManifestPlanner(manifests, append_at(200), cells=(1000,), counts=np.array(counts)).plan()
    assert sum(len(group.base_rows) for group in plan.groups) == joined
    again = ManifestPlanner(
        manifests, append_at(200), cells=(1000,), counts=np.array(counts), joins_small=False
    ).plan()
    assert [group.base_rows.tolist() for group in again.groups] == [[]]


def test_small_manifests_of_several_cells_are_joined_within_their_cells():
    manifests = grid_manifests([(i, i + 1) for i in range(40)])
    plan = ManifestPlanner(
        manifests, append_at(45), cells=(20,), counts=np.ones(40, dtype=np.int64)
    ).plan()
    joined = [g.base_rows.tolist() for g in plan.groups if len(g.base_rows)]
    assert joined == [list(range(4, 20)), list(range(24, 40))]


def test_an_append_in_several_directions_leaves_the_base_alone():
    base = ManifestRefs(
        ids=np.zeros((1, 12), dtype=np.uint8), extents=np.array([[[2, 4], [2, 4]]], dtype=np.uint32)
    )
    ring = [(i, j) for i in range(6) for j in range(6) if not (2 <= i < 4 and 2 <= j < 4)]
    changes = ChunkChanges(2)
    changes.set_refs(inline_refs(ring, [b"x"] * len(ring)))
    plan = ManifestPlanner(base, changes, cells=(10, 10), counts=np.array([4])).plan()
    assert plan.kept_rows.tolist() == [0]
    assert len(plan.groups) == 4


def test_references_are_grouped_by_the_side_of_the_base_and_by_cell():
    base = ManifestRefs(
        ids=np.zeros((2, 12), dtype=np.uint8),
        extents=np.array([[[2, 4], [2, 4]], [[6, 8], [2, 4]]], dtype=np.uint32),
    )
    sides = {
        "between": [(4, 2), (5, 3)],
        "before": [(0, 2), (1, 9)],
        "behind": [(8, 0), (9, 3)],
        "below": [(4, 0), (5, 1)],
        "above": [(4, 4), (5, 9)],
        "another cell": [(12, 2)],
    }
    every = sorted(point for points in sides.values() for point in points)
    changes = ChunkChanges(2)
    changes.set_refs(inline_refs(every, [b"x"] * len(every)))
    planner = ManifestPlanner(base, changes, cells=(10, 10), counts=np.array([4, 4]))
    assert planner.owner.tolist() == [-1] * len(every)
    groups = [[every[row] for row in rows.tolist()] for rows in planner._fresh_groups()]
    assert sorted(groups) == sorted(sides.values())


def test_rows_are_grouped_by_all_parts_of_their_keys_and_ordered_by_the_first():
    keys = np.array([[1, 0], [0, 1], [1, 0], [0, 0], [0, 1], [1, 1]])
    assert [rows.tolist() for rows in grouped_rows(keys)] == [[3], [1, 4], [0, 2], [5]]


def test_only_free_manifests_of_the_base_are_joined():
    """Sixteen small ones beside another that is rebuilt, and receipts that are not of the base."""
    manifests = grid_manifests([(i, i + 1) for i in range(17)])
    changes = append_at(200)
    changes.delete(np.array([[3]], dtype=np.uint32))
    receipts = [(i, i + 1) for i in range(100, 120)]
    changes.add_receipts(
        [
            ManifestReceipt.of(ManifestId(bytes([i]) * 12), 1, np.array([[i]], dtype=np.uint32))
            for i, _ in receipts
        ]
    )
    counts = np.ones(17, dtype=np.int64)
    plan = ManifestPlanner(manifests, changes, cells=(1000,), counts=counts).plan()
    joined = [group.base_rows.tolist() for group in plan.groups if len(group.base_rows) > 1]
    assert all(3 not in rows for rows in joined)
    assert all(not len(group.receipt_rows) for group in plan.groups)
    assert plan.taken_rows.tolist() == list(range(20))
    assert sum([3 in group.base_rows.tolist() for group in plan.groups]) == 1


def test_a_manifest_that_is_rebuilt_does_not_count_as_a_small_one_to_join():
    manifests = grid_manifests([(i, i + 1) for i in range(16)])
    changes = append_at(200)
    changes.delete(np.array([[3]], dtype=np.uint32))
    plan = ManifestPlanner(manifests, changes, cells=(1000,), counts=np.ones(16, dtype=int)).plan()
    assert sorted(group.base_rows.tolist() for group in plan.groups) == [[], [3]]
    assert plan.kept_rows.tolist() == [row for row in range(16) if row != 3]


# -- files of bounded size ---------------------------------------------------------------------


@given(points(2, min_size=1, max_size=40), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_files_are_cut_into_boxes_that_are_apart(found, max_refs):
    coords = sorted_coords(found, 2)
    refs = native_refs(
        coords, np.zeros((len(coords), 12), dtype=np.uint8), np.ones(len(coords), int)
    )
    parts = list(limited(refs, max_refs))
    assert max(map(len, parts)) <= max_refs
    assert np.concatenate([part.coords for part in parts]).tolist() == coords.tolist()
    assert_apart(np.array([part.extents() for part in parts]))


def test_files_are_cut_by_bytes_as_well(monkeypatch):
    monkeypatch.setattr(manifest_files, "_MAX_BYTES_PER_MANIFEST", 1000)
    refs = inline_refs([[i] for i in range(10)], [b"x" * 200] * 10)
    assert [len(part) for part in limited(refs, 100)] == [3, 3, 3, 1]
    assert list(limited(ChunkRefs.empty(2), 100)) == []
    # What cannot be cut is one file, whatever its size.
    large = inline_refs(np.empty((1, 0), dtype=np.int64), [b"x" * 5000])
    assert [len(part) for part in limited(large, 100)] == [1]
