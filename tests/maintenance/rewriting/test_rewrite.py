"""A rewrite changes how references are stored, and no value that a reader sees.

Random repositories keep every byte through rewrites to random splittings; the result keeps the
rules of the format and fits its own rules; commits of others are kept or left alone, never lost.
"""

import itertools
import json
import random

import numpy as np
import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises
from helpers.sessions.model import Model, OurDriver, RandomChanges, array_document, stored_contents

from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.encoding.repo_info.updates import Availability
from icechunk_format.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from icechunk_format.maintenance import rewrite_manifests
from icechunk_format.maintenance.rewriting import rewrite
from icechunk_format.maintenance.rewriting.boxes import plan_rewrite_of, run_rewrite


def per_axis(*sizes):
    return [
        ["any_array", [{"condition": {"Axis": n}, "num_chunks": s} for n, s in enumerate(sizes)]]
    ]


def appended(repository, steps, width=4, path="/a"):
    """Append one row of chunks at a time."""
    session = repository.writable_session()
    add_array(session, path, (steps, width))
    session.commit("create")
    for step in range(steps):
        append(repository, step, width, path)
    return repository


def append(repository, step, width=4, path="/a"):
    session = repository.writable_session()
    at = np.array([[step, i] for i in range(width)])
    session.set_chunks(path, at, [bytes([step % 251, i + 1]) for i in range(width)])
    return session.commit(f"step {step}")


def manifests_of(repository, path="/a", branch="main"):
    return repository.snapshot(repository.resolve(branch=branch)).node(path).array.manifests


def contents(repository, branch="main"):
    return stored_contents(repository, repository.resolve(branch=branch))


@pytest.mark.parametrize("spec_version", [1, 2])
def test_many_manifests_of_appends_become_one(spec_version):
    repository = appended(new_repository(spec_version), 40)
    before, tip = contents(repository), repository.resolve()
    chunks = {info.key for info in repository.storage.list("chunks/")}
    expected = rewrite_manifests(repository.location, dry_run=True)
    assert repository.resolve() == tip
    done = rewrite_manifests(repository.location, message="Tidy up", metadata={"by": "me"})
    assert done.manifests_before == expected.manifests_before > 1
    assert done.manifests_after == expected.manifests_after == len(manifests_of(repository)) == 1
    assert done.references == expected.references == 160
    assert done.bytes_after < done.bytes_before == expected.bytes_before
    assert done.commit.parent_id == tip
    assert done.commit.files_written == {"manifests": 1, "snapshots": 1, "transactions": 1}
    assert contents(repository) == before
    assert {info.key for info in repository.storage.list("chunks/")} == chunks
    info = next(iter(repository.ancestry()))
    assert info.message == "Tidy up"
    assert info.metadata == {
        "by": "me",
        "__icechunk": {
            "splitting_config": {
                "split_sizes": [["any_array", [{"condition": "Any", "num_chunks": 2**32 - 1}]]]
            }
        },
    }
    assert repository.transaction_log(info.id).is_empty
    assert repository.diff(tip, info.id).updated_chunks == {}


def test_nothing_to_do_makes_no_version():
    repository = appended(new_repository(), 3)
    rewrite_manifests(repository.location)
    tip = repository.resolve()
    again = rewrite_manifests(repository.location)
    assert again.commit is None
    assert (again.manifests_before, again.manifests_after) == (1, 1)
    assert again.bytes_before == again.bytes_after > 0
    assert repository.resolve() == tip
    assert rewrite_manifests(new_repository().location).commit is None


def test_an_amendment_takes_the_place_of_the_tip_and_keeps_its_log():
    repository = appended(new_repository(), 20)
    tip = repository.snapshot_info(repository.resolve())
    before = contents(repository)
    done = rewrite_manifests(repository.location, amend=True)
    assert done.commit.parent_id == tip.parent_id
    changes = repository.diff(tip.parent_id, done.commit.snapshot_id)
    assert changes.updated_chunks["/a"].tolist() == [[19, i] for i in range(4)]
    assert contents(repository) == before
    old = appended(new_repository(1), 20)
    with raises(UnsupportedError, match="version 1", spec_version=1):
        rewrite_manifests(old.location, amend=True)


@pytest.mark.parametrize("seed", range(8))
def test_random_repositories_keep_every_byte_through_random_splittings(seed):
    chooser = random.Random(seed)
    repository = new_repository(chooser.choice([1, 2]))
    model = Model()
    changes = RandomChanges(model, seed)
    for number in range(4):
        session = repository.writable_session()
        changes.session(OurDriver(session), 14)
        session.commit(f"{number}", allow_empty=True)
    for _ in range(4):
        sizes = [chooser.randint(1, 6) for _ in range(3)]
        splitting = chooser.choice([None, per_axis(*sizes), per_axis(*sizes[:1])])
        max_refs = chooser.choice([3, 10, 1_000_000])
        plan, made = planned(
            repository,
            splitting=splitting,
            max_refs=max_refs,
            refs_per_task=chooser.choice([1, 20]),
        )
        done = rewrite.finish_rewrite(plan, made)
        assert contents(repository) == model.keys()
        assert (done.commit is None) <= (done.manifests_before == done.manifests_after)
        snapshot = repository.snapshot(repository.resolve())
        assert len(snapshot.manifest_files) == done.manifests_after
        assert (snapshot.manifest_files.num_chunk_refs <= max_refs).all()
        again = rewrite_manifests(repository.location, splitting=splitting)
        assert again.commit is None or max_refs < 1_000_000
        session = repository.writable_session()
        changes.session(OurDriver(session), 4)
        session.commit("on top", allow_empty=True)
        assert contents(repository) == model.keys()


def test_the_splitting_decides_the_extents():
    repository = appended(new_repository(), 10, width=6)
    before = contents(repository)
    rules = [
        [
            "any_array",
            [{"condition": {"Axis": 0}, "num_chunks": 4}, {"condition": "Any", "num_chunks": 3}],
        ]
    ]
    rewrite_manifests(repository.location, splitting=rules)
    found = {tuple(map(tuple, e)) for e in manifests_of(repository).extents.tolist()}
    rows, columns = [(0, 4), (4, 8), (8, 10)], [(0, 3), (3, 6)]
    assert found == set(itertools.product(rows, columns))
    assert contents(repository) == before
    # The same rules as a map of the configuration and as tuples: nothing is left to do.
    assert rewrite_manifests(repository.location, splitting={"split_sizes": rules}).commit is None
    assert rewrite_manifests(repository.location, splitting=[tuple(rules[0])]).commit is None


def test_only_chosen_arrays_are_touched():
    repository = appended(new_repository(), 12)
    session = repository.writable_session()
    session.create_group("/g", b'{"zarr_format":3,"node_type":"group"}')
    add_array(session, "/g/b", (12, 4))
    session.commit("another")
    for step in range(12):
        append(repository, step, path="/g/b")
    before = manifests_of(repository)
    splitting = per_axis(5)
    rewrite_manifests(repository.location, paths=["/g"], splitting=splitting)
    assert manifests_of(repository) == before
    assert len(manifests_of(repository, "/g/b")) == 3
    rewrite_manifests(repository.location, paths="/a", splitting=splitting)
    assert len(manifests_of(repository)) == 3
    with raises(NotFoundError, kind="node", name="/nowhere"):
        rewrite_manifests(repository.location, paths=["/nowhere"])


def test_manifests_that_fit_are_carried_over():
    repository = appended(new_repository(), 8)
    rewrite_manifests(repository.location, splitting=per_axis(4))
    kept = {raw.tobytes() for raw in manifests_of(repository).ids}
    session = repository.writable_session()
    session.update_metadata(
        "/a", array_document((16, 4), (1, 1)), shape=(16, 4), num_chunks=(16, 4)
    )
    session.commit("grow")
    for step in range(8, 12):
        append(repository, step)
    done = rewrite_manifests(repository.location, splitting=per_axis(4))
    assert done.references == 16
    assert kept < {raw.tobytes() for raw in manifests_of(repository).ids}


def test_virtual_references_keep_their_checksums_and_places():
    repository = appended(new_repository(), 2)
    session = repository.writable_session()
    add_array(session, "/v", (3_000,))
    session.commit("virtual array")
    for begin in (0, 1_500):
        coords = np.arange(begin, begin + 1_500, dtype=np.uint32)[:, None]
        session = repository.writable_session()
        session.set_refs(
            "/v",
            virtual_refs(
                coords,
                [f"s3://bucket/archive/file-{i}.nc" for i in coords[:, 0]],
                coords[:, 0].astype(np.uint64) * 10,
                np.full(1_500, 77, dtype=np.uint64),
                etags=[f"etag-{i}" if i % 3 else None for i in coords[:, 0]],
                last_modified=np.arange(1_500, dtype=np.uint32) % 5,
            ),
        )
        session.commit("refs")

    def described():
        listed = manifests_of(repository, "/v")
        node = repository.snapshot(repository.resolve()).node("/v")
        found = {}
        for row in range(len(listed)):
            refs = repository.manifest(listed.manifest_id(row)).array(node.id).refs
            rows = np.arange(len(refs))
            columns = zip(
                refs.coords[:, 0].tolist(),
                refs.locations(rows),
                refs.etags(rows),
                refs.offset.tolist(),
                refs.length.tolist(),
                refs.last_modified.tolist(),
                strict=True,
            )
            found.update((place, rest) for place, *rest in columns)
        return found

    before = described()
    assert len(before) == 3_000
    rewrite_manifests(repository.location, paths=["/v"], splitting=per_axis(700))
    assert len(manifests_of(repository, "/v")) == 5
    assert described() == before
    rewrite_manifests(repository.location)
    assert len(manifests_of(repository, "/v")) == 1
    assert described() == before


# -- others ----------------------------------------------------------------------------------


def planned(repository, **options):
    plan = rewrite.plan_rewrite(repository.location, **options)
    return plan, [run_rewrite(plan.context, task) for task in plan.tasks]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_appends_that_came_in_between_stay(spec_version):
    repository = appended(new_repository(spec_version), 12)
    session = repository.writable_session()
    session.update_metadata(
        "/a", array_document((20, 4), (1, 1)), shape=(20, 4), num_chunks=(20, 4)
    )
    session.commit("grow")
    plan, made = planned(repository)
    session = repository.writable_session()
    session.set_chunks("/a", [[15, 0]], [b"late"])
    late = session.commit("late")
    done = rewrite.finish_rewrite(plan, made)
    assert done.commit.parent_id == late.snapshot_id
    assert done.commit.rebased == 1
    assert done.left_out == ()
    found = contents(repository)
    assert found["a/c/15/0"] == b"late"
    assert found["a/c/3/2"] == bytes([3, 3])
    assert len(manifests_of(repository)) == 2
    info = next(iter(repository.ancestry()))
    assert info.metadata["__icechunk"]["rebase_attempts"] == 1


def test_an_array_that_others_changed_is_left_as_they_made_it():
    repository = appended(new_repository(), 12)
    session = repository.writable_session()
    add_array(session, "/b", (12, 4))
    session.commit("another")
    for step in range(12):
        append(repository, step, path="/b")
    plan, made = planned(repository, splitting=per_axis(5))
    session = repository.writable_session()
    session.set_chunks("/a", [[3, 3]], [b"changed"])
    session.commit("theirs")
    theirs = manifests_of(repository)
    done = rewrite.finish_rewrite(plan, made)
    assert done.left_out == ("/a",)
    assert manifests_of(repository) == theirs
    assert len(manifests_of(repository, "/b")) == 3
    assert contents(repository)["a/c/3/3"] == b"changed"


def test_with_nothing_left_to_replace_it_is_a_conflict():
    repository = appended(new_repository(), 12)
    plan, made = planned(repository)
    session = repository.writable_session()
    session.delete_chunks("/a", [[i, 0] for i in range(12)])
    tip = session.commit("theirs").snapshot_id
    with raises(ConflictError, match="Rewrite again", branch="main", paths=("/a",)):
        rewrite.finish_rewrite(plan, made)
    assert repository.resolve() == tip


@pytest.mark.parametrize("late", ["deleted", "between"])
def test_manifests_that_no_longer_fit_are_not_committed(late):
    """Deleted chunks would come back, and added ones would have two manifests."""
    repository = new_repository()
    session = repository.writable_session()
    session.create_group("/", b'{"zarr_format":3,"node_type":"group"}')
    add_array(session, "/a", (12, 4))
    session.commit("create")
    for step in (1, 3, 5):
        append(repository, step)
    plan, made = planned(repository)
    session = repository.writable_session()
    if late == "deleted":
        session.delete_chunks("/a", [[3, i] for i in range(4)])
    else:
        session.set_chunks("/a", [[2, 0]], [b"late"])
    tip = session.commit(late).snapshot_id
    before = contents(repository)
    with raises(ConflictError, paths=("/a",)):
        rewrite.finish_rewrite(plan, made)
    assert repository.resolve() == tip
    assert contents(repository) == before


def test_an_amendment_never_replaces_what_it_has_not_seen():
    repository = appended(new_repository(), 12)
    plan, made = planned(repository)
    session = repository.writable_session()
    session.create_group("/new", b'{"zarr_format":3,"node_type":"group"}')
    tip = session.commit("theirs").snapshot_id
    with pytest.raises(ConflictError):
        rewrite.finish_rewrite(plan, made, amend=True)
    assert repository.resolve() == tip


def test_a_deleted_branch_is_a_conflict():
    repository = appended(new_repository(), 6)
    repository.create_branch("work", repository.resolve())
    plan, made = planned(repository, branch="work", splitting=per_axis(2))
    repository.delete_branch("work")
    with raises(ConflictError, branch="work", found=None):
        rewrite.finish_rewrite(plan, made)


def test_what_cannot_be_done_is_said():
    repository = appended(new_repository(), 2)
    with raises(
        InvalidInputError,
        match="splitting cannot be used",
        found=[["any_array", [{"num_chunks": 0}]]],
    ):
        rewrite_manifests(repository.location, splitting=[["any_array", [{"num_chunks": 0}]]])
    with raises(InvalidInputError, found={"wrong": 1}):
        rewrite_manifests(repository.location, splitting={"wrong": 1})
    with raises(InvalidInputError, match="__icechunk", found=3):
        rewrite_manifests(repository.location, splitting=per_axis(2), metadata={"__icechunk": 3})
    with raises(NotFoundError, kind="branch", name="nowhere"):
        rewrite_manifests(repository.location, branch="nowhere")
    repository.set_status(Availability.READ_ONLY, "closed")
    with raises(ReadOnlyError, reason="closed"):
        rewrite_manifests(repository.location, splitting=per_axis(1))


# -- planning --------------------------------------------------------------------------------


def boxes(*found):
    return np.array(found, dtype=np.uint32)


def test_manifests_that_reach_into_a_cell_take_its_own_along():
    extents = boxes([(0, 4)], [(4, 6)], [(6, 9)], [(12, 16)])
    plan = plan_rewrite_of(extents, np.array([4, 2, 3, 4]), (4,), 1000)
    assert plan.replaced_rows.tolist() == [1, 2]


def test_overlapping_and_empty_manifests_go():
    extents = boxes([(0, 4)], [(2, 4)], [(7, 7)])
    plan = plan_rewrite_of(extents, np.array([4, 2, 0]), (4,), 1000)
    assert plan.replaced_rows.tolist() == [0, 1, 2]
    assert [box.rows.tolist() for box in plan.boxes] == [[0, 1]]


def test_a_cell_stays_or_goes_as_a_whole():
    extents = boxes([(0, 2)], [(1, 3)], [(3, 4)])
    plan = plan_rewrite_of(extents, np.array([2, 2, 1]), (4,), 4)
    assert plan.replaced_rows.tolist() == [0, 1, 2]


def test_large_cells_are_cut_between_manifests_and_stay_so():
    extents = boxes(*[[(10 * i, 10 * i + 10)] for i in range(100)])
    counts = np.full(100, 10)
    plan = plan_rewrite_of(extents, counts, (100_000,), 100)
    sizes = [len(box.rows) for box in plan.boxes]
    assert sum(sizes) == 100
    assert max(sizes) <= 10
    merged = boxes(*[[tuple(box.box[0])] for box in plan.boxes])
    counts = np.array([10 * len(box.rows) for box in plan.boxes])
    assert len(plan_rewrite_of(merged, counts, (100_000,), 100).replaced_rows) == 0


def test_a_grid_of_more_cells_than_anything_is_planned_at_once():
    extents = boxes([(0, 2**31), (0, 2**31)])
    plan = plan_rewrite_of(extents, np.array([1000]), (1, 1), 100)
    assert 10 <= len(plan.boxes) <= 32
    assert all(box.references <= 101 for box in plan.boxes)


def test_scalars_have_one_manifest():
    plan = plan_rewrite_of(np.empty((1, 0, 2), dtype=np.uint32), np.array([1]), (), 1000)
    assert json.dumps(plan.replaced_rows.tolist()) == "[]"
