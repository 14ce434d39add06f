"""Feeds of changes, copies and other writers follow a deletion of labels."""

import itertools

import icechunk
import numpy as np
import pytest
import zarr
from helpers.builder import new_place
from helpers.examples import by_day
from helpers.sessions.model import group_document
from hypothesis import given, settings
from hypothesis import strategies as st
from workflows.changes.test_changes_law import assert_law
from workflows.deleting.test_delete import beside, delete, made, put, read

from icechunk_format import Repository
from icechunk_format.errors import ConflictError
from icechunk_format.grid.axes import RunAxis
from icechunk_format.zarr.zarr_json import parse_array_metadata


def node_of(place, path="/t"):
    repository = Repository.open(place)
    return repository.snapshot(repository.resolve()).node(path)


def set_chunk(session, at, values, path="/t"):
    document = parse_array_metadata(session.node(path).user_data, node_path=path)
    session.set_chunk(path, at, document.chunk_codecs().encode(values))


def grown(place, count, first):
    """Append cells and labels, the first of them `first`, to the arrays over time."""
    session = Repository.open(place).writable_session()
    for path in ("/time", "/t"):
        node = session.node(path)
        old = parse_array_metadata(node.user_data, node_path=path)
        size = old.shape[0] + count
        new = old.with_shape((size, *old.shape[1:]))
        session.update_metadata(
            path, new.to_bytes(), shape=new.shape, num_chunks=new.grid.num_chunks
        )
        if path == "/time":
            labels = np.append(read(place, "time"), np.arange(first, first + count))
            padded = np.zeros(100, "i8")
            padded[:size] = labels
            set_chunk(session, (0,), padded, path)
    session.commit("grown")


@settings(max_examples=by_day(10), deadline=None)
@given(st.data())
def test_feeds_over_deletions(data):
    """The table of a version, with the changes to a later one applied, is that of the later one."""
    place = new_place()
    size, is_unequal = data.draw(st.integers(2, 9)), data.draw(st.booleans())
    step = data.draw(st.integers(1, 4))
    cuts = data.draw(st.sets(st.integers(1, size - 1), max_size=3))
    edges = [[0, *sorted(cuts), size], [0, 2, 3]] if is_unequal else None
    outer = (len(edges[0]) - 1 if is_unequal else -(-size // step), 2)
    drop = [at for at in np.ndindex(*outer) if data.draw(st.booleans())]
    values = np.arange(size * 3.0).reshape(size, 3)
    made(
        place,
        lambda s: put(s, "time", np.arange(size), (100,), ["time"]),
        lambda s: put(s, "t", values, (step, 2), ["time", "x"], fill=np.nan, drop=drop,
                      edges=edges),
    )  # fmt: skip
    repository = Repository.open(place)
    versions = [repository.resolve()]
    node_id = node_of(place).id
    for number in range(data.draw(st.integers(1, 3))):
        count = len(read(place, "time"))
        if data.draw(st.booleans()) and count > 1:
            gone = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
            delete(place, isel={"time": sorted(gone)})
        else:
            grown(place, data.draw(st.integers(1, 3)), 1000 * (number + 1))
        assert node_of(place).id == node_id
        repository = Repository.open(place)
        versions.append(repository.resolve())
    by_snapshot = data.draw(st.booleans())
    assert_law(repository, versions, "cells", {}, {}, by_snapshot)
    assert_law(repository, versions, "cells", {}, {"missing_chunks": "skip"}, by_snapshot)
    assert_law(repository, versions, "refs", {}, {}, by_snapshot)
    assert_law(repository, versions, "chunks", {}, {"missing_chunks": "skip"}, by_snapshot)


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_cell_that_a_rival_writes_follows_its_label(tmp_path, spec_version, stored, at):
    """The labels of the chunk that it names, 2 or 4, move by the deletion."""
    place = str(tmp_path / "repository")
    Repository.create(place, spec_version=spec_version)
    values = np.arange(10.0).reshape(10, 1)
    session = Repository.open(place).writable_session()
    # Without chunks around it, the deletion writes none at its coordinates.
    drop = [] if stored else [(n, 0) for n in range(at, 5)]
    if session.node("/") is None:
        session.create_group("/", group_document())
    put(session, "time", np.arange(10), (10,), ["time"])
    put(session, "t", values, (2, 1), ["time", "x"], fill=np.nan, drop=drop)
    session.commit("made")

    def rival():
        session = Repository.open(place).writable_session()
        set_chunk(session, (at, 0), np.array([[7.0], [8.0]]))
        session.commit("rival")

    for number, _ in drop:
        values[2 * number : 2 * number + 2] = np.nan
    delete(place, isel={"time": [2, 3]}, run=beside(rival))
    values[2 * at : 2 * at + 2, 0] = 7, 8
    np.testing.assert_array_equal(read(place), np.delete(values, [2, 3], 0))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_session_that_began_before_a_deletion_conflicts(tmp_path, at):
    place = str(tmp_path / "repository")
    made(
        place,
        lambda s: put(s, "time", np.arange(6), (6,), ["time"]),
        lambda s: put(s, "t", np.ones((6, 1)), (2, 1), ["time", "x"], fill=np.nan, drop=[(2, 0)]),
    )
    session = Repository.open(place).writable_session()
    set_chunk(session, (at, 0), np.array([[7.0], [8.0]]))
    delete(place, isel={"time": [1]})
    with pytest.raises(ConflictError):
        session.commit("late")


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("late", ["chunk", "missing chunk", "resize", "attributes"])
def test_the_reference_never_lays_a_late_write_over_moved_labels(tmp_path, spec_version, late):
    """Its sessions know positions only, and no solver takes one side of this conflict."""
    place = str(tmp_path / "repository")
    storage = icechunk.local_filesystem_storage(place)
    reference = icechunk.Repository.create(storage, spec_version=spec_version)
    session = reference.writable_session("main")
    group = zarr.group(session.store)
    labels = group.create_array(
        "time", shape=(8,), chunks=(8,), dtype="i8", dimension_names=["time"]
    )
    labels[:] = np.arange(8)
    array = group.create_array(
        "t", shape=(8,), chunks=(2,), dtype="f8", fill_value=np.nan, dimension_names=["time"]
    )
    array[:6] = np.arange(6.0)
    session.commit("made")
    sides = icechunk.VersionSelection
    solvers = [icechunk.ConflictDetector()]
    solvers += [
        icechunk.BasicConflictSolver(on_chunk_conflict=side)
        for side in (sides.Fail, sides.UseOurs, sides.UseTheirs)
    ]
    sessions = [reference.writable_session("main") for _ in solvers]
    for session in sessions:
        array = zarr.open_array(session.store, path="t")
        if late == "chunk":
            array[4:6] = 7
        elif late == "missing chunk":
            array[6:8] = 7
        elif late == "resize":
            array.resize((10,))
        else:
            array.attrs["units"] = "m"
    delete(place, isel={"time": [2, 3]})
    for session, solver in zip(sessions, solvers, strict=True):
        with pytest.raises(icechunk.RebaseFailedError):
            session.rebase(solver)
    found = zarr.open_array(reference.readonly_session("main").store, path="t", mode="r")
    np.testing.assert_array_equal(found[...], [0, 1, 4, 5, np.nan, np.nan])


@pytest.mark.parametrize("times", [None, [0] * 8])
def test_positions_without_distinct_labels_are_other_cells_afterwards(tmp_path, times):
    """Labels do not say where a cell went, so a branch that has written one conflicts."""
    place = str(tmp_path / "repository")
    labels = [] if times is None else [
        lambda s: put(s, "time", np.array(times), (8,), ["time"])
    ]  # fmt: skip
    drop = [(2, 0), (3, 0)]
    made(
        place,
        *labels,
        lambda s: put(s, "t", np.ones((8, 1)), (2, 1), ["time", "x"], fill=np.nan, drop=drop),
    )
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    node_id = node_of(place).id
    delete(place, isel={"time": [7]})
    assert node_of(place).id == node_id
    delete(place, isel={"time": [0, 1]})
    assert node_of(place).id != node_id
    session = Repository.open(place).writable_session("dev")
    set_chunk(session, (2, 0), np.array([[7.0], [8.0]]))
    session.commit("a cell")
    with pytest.raises(ConflictError):
        Repository.open(place).merge("dev", into="main")
    with pytest.raises(ConflictError):
        Repository.open(place).merge("main", into="dev")


def test_only_chunks_from_the_first_deleted_label_on_are_in_the_log(tmp_path):
    place = str(tmp_path / "repository")
    made(
        place,
        lambda s: put(s, "time", np.arange(20), (20,), ["time"]),
        lambda s: put(s, "t", np.ones((20, 2)), (2, 1), ["time", "x"], fill=np.nan),
    )
    reference = icechunk.Repository.open(icechunk.local_filesystem_storage(place))
    before = next(iter(reference.ancestry(branch="main"))).id
    delete(place, isel={"time": [12, 13]})
    found = reference.diff(from_snapshot_id=before, to_branch="main")
    assert {tuple(at) for at in found.updated_chunks["/t"]} == set(
        itertools.product(range(6, 9), range(2))
    )
    assert found.deleted_arrays == found.new_arrays == set()


def test_unequal_chunks_that_stay_whole_keep_their_objects(tmp_path):
    place = str(tmp_path / "repository")
    edges = [[0, 3, 5, 9]]
    made(place, lambda s: put(s, "t", np.arange(9.0), (1,), ["i"], fill=np.nan, edges=edges))
    result = delete(place, isel={"i": [3]})
    assert result.commit.commit.files_written.get("chunks", 0) <= 1
    document = parse_array_metadata(node_of(place).user_data, node_path="/t")
    assert document.grid.axes == (RunAxis.of_edges(np.array([0, 3, 4, 8])),)
    assert read(place).tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
