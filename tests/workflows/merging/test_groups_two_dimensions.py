"""Merges of tables with labels along two dimensions, of which one side changes each."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import dataset_at
from helpers.raised import raises

from icechunk_format import ConflictError, Repository
from icechunk_format.groups.changing import ChunkValues
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

SIDES = pytest.mark.parametrize(("one", "two"), [("main", "dev"), ("dev", "main")])


def rows(xs, ys, value=None):
    """Return rows of cells whose values tell their labels, or are all the same."""
    cells = list(itertools.product(xs, ys))
    values = [10.0 * x + y if value is None else value for x, y in cells]
    x, y = zip(*cells, strict=True)
    return pa.table({"x": x, "y": y, "v": pa.array(values, pa.float64())})


def begun(xs=(1, 2, 3), ys=(1, 2)):
    """Return a repository with a table and a branch dev; ``w`` has one dimension."""
    place = new_place()
    write_table(place, rows(xs, ys), WriteOptions(dims=("x", "y"), chunks={"x": 2, "y": 2}))
    one = pa.table({"y": ys, "w": [100.0 + y for y in ys]})
    write_table(place, one, WriteOptions(mode="append", dims=("y",), merge_schema=True))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    return repository


def append(repository, branch, *cells):
    options = WriteOptions(mode="append", branch=branch, dims=("x", "y"), min_density=0)
    write_table(repository.location, rows(*cells), options)


def delete(repository, branch, where):
    read = ReadRequest(path=str(repository.location), branch=branch, where=where)
    options = WriteOptions(mode="append", branch=branch)
    delete_selected(DeleteRequest(read=read, options=options), in_process)


def relabel(repository, branch, dim, labels):
    """Write other labels at the positions of those of an array, and nothing else."""
    found = dataset_at(repository.location, branch=branch).variables[dim].metadata
    session = repository.writable_session(branch)
    ChunkValues(metadata=found, start=0, values=np.array(labels, np.int64)).store(session)
    session.commit("correct labels")


def merged(repository):
    """Merge dev into main; return the labels, and the cells by label."""
    Repository.open(repository.location).merge("dev")
    found = dataset_at(repository.location)
    xs, ys = (found.read(dim).tolist() for dim in "xy")
    v, w = found.read("v"), found.read("w")
    cells = {
        (x, y): v[i, j]
        for (i, x), (j, y) in itertools.product(enumerate(xs), enumerate(ys))
        if v[i, j] == v[i, j]
    }
    return xs, ys, cells, dict(zip(ys, w.tolist(), strict=True))


@SIDES
@pytest.mark.parametrize("corrected", [[7, 2], [1, 7], [2, 1], [8, 9]])
def test_a_label_that_one_side_corrects_keeps_its_cells_beside_an_append(one, two, corrected):
    repository = begun()
    relabel(repository, one, "y", corrected)
    append(repository, two, [4], [2])
    if 2 not in corrected:
        with raises(ConflictError, kinds=("LABELS_NOT_MERGED",)):
            repository.merge("dev")
        return
    xs, ys, cells, w = merged(repository)
    before = dict(zip(corrected, (1, 2), strict=True))
    expected = {(x, y): 10.0 * x + old for x in (1, 2, 3) for y, old in before.items()}
    assert (xs, sorted(ys)) == ([1, 2, 3, 4], sorted(corrected))
    assert cells == expected | {(4, 2): 42.0}
    assert w == {y: 100.0 + old for y, old in before.items()}


@SIDES
def test_a_new_cell_at_a_label_that_the_other_side_deleted_is_a_conflict(one, two):
    repository = begun()
    delete(repository, one, "x = 2")
    append(repository, two, [1, 2, 3], [3])
    tip = repository.resolve()
    with raises(ConflictError, kinds=("LABELS_NOT_MERGED",)):
        repository.merge("dev")
    assert Repository.open(repository.location).resolve() == tip


@SIDES
def test_new_cells_of_other_labels_are_merged_beside_a_deleted_label(one, two):
    repository = begun()
    delete(repository, one, "x = 2")
    append(repository, two, [1, 3], [3])
    xs, ys, cells, _ = merged(repository)
    assert (xs, ys) == ([1, 3], [1, 2, 3])
    assert cells == {(x, y): 10.0 * x + y for x in xs for y in ys}


def test_a_picked_cell_of_a_label_that_the_branch_lacks_is_a_conflict():
    repository = begun()
    append(repository, "dev", [4], [1, 2])
    append(repository, "dev", [1, 4], [3])
    picked = Repository.open(repository.location).resolve(branch="dev")
    append(repository, "main", [5], [1, 2])
    with raises(ConflictError, kinds=("LABELS_NOT_MERGED",)):
        Repository.open(repository.location).cherry_pick(picked, onto="main")


@SIDES
@pytest.mark.parametrize("added", [[], [7], [9, 8]])
def test_a_dimension_that_one_side_emptied_has_the_new_labels_of_the_other(one, two, added):
    repository = begun()
    delete(repository, one, "y > 0")
    if added:
        append(repository, two, [1], added)
    else:
        delete(repository, two, "x = 2")
    xs, ys, cells, _ = merged(repository)
    assert (xs, sorted(ys)) == ([1, 2, 3] if added else [1, 3], sorted(added))
    assert cells == {(1, y): 10.0 + y for y in added}


@SIDES
def test_appends_of_both_sides_are_merged_beside_an_array_that_one_moved(one, two):
    repository = begun()
    more = WriteOptions(dims=("x", "y"), group="/other")
    write_table(repository.location, rows([1], [1]), more)
    repository.reset_branch("dev", repository.resolve())
    repository.rename("/other/v", "/other/z", branch=one)
    append(repository, one, [4], [1])
    append(repository, two, [5], [2])
    xs, ys, cells, _ = merged(repository)
    assert (xs, ys) == ([1, 2, 3, 4, 5], [1, 2])
    assert cells == {(x, y): 10.0 * x + y for x in (1, 2, 3) for y in ys} | {
        (4, 1): 41.0,
        (5, 2): 52.0,
    }
    assert dataset_at(repository.location, group="/other").read("z").tolist() == [[11.0]]


@SIDES
@pytest.mark.parametrize("other", [["d"], ["a", "d"]])
def test_strings_that_are_sorted_on_both_sides_stay_sorted(one, two, other):
    def of(labels, values):
        return pa.table({"t": labels, "v": values})

    place = new_place()
    write_table(place, of(["b", "c"], [2.0, 3.0]), WriteOptions(dims=("t",), chunks={"t": 2}))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    inserted = of(["b", "bb", "c"], [2.0, 2.5, 3.0])
    write_table(place, inserted, WriteOptions(mode="append", branch=one, dims=("t",)))
    # Appended strings follow the others; put them in order, as xarray would.
    session = repository.writable_session(one)
    for name, values in (("t", ["b", "bb", "c"]), ("v", [2.0, 2.5, 3.0])):
        found = dataset_at(place, branch=one).variables[name].metadata
        stored = np.array(values, found.data_type.numpy)
        ChunkValues(metadata=found, start=0, values=stored).store(session)
    session.commit("sort")
    values = [{"a": 1.0, "d": 4.0}[label] for label in other]
    write_table(place, of(other, values), WriteOptions(mode="append", branch=two, dims=("t",)))
    Repository.open(place).merge("dev")
    found = dataset_at(place)
    expected = {"b": 2.0, "bb": 2.5, "c": 3.0} | dict(zip(other, values, strict=True))
    labels = found.read("t").tolist()
    assert dict(zip(labels, found.read("v").tolist(), strict=True)) == expected
    assert (labels == sorted(expected)) == (other == ["d"])
