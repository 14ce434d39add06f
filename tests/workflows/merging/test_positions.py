"""Merges of sides whose positions have other labels, lengths or meanings."""

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import dataset_at
from helpers.raised import raises

from icechunk_format import ConflictError, Repository
from icechunk_format.maintenance import verify
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

SIDES = pytest.mark.parametrize(("one", "two"), [("main", "dev"), ("dev", "main")])


def write(repository, branch, labels, **columns):
    rows = {"t": labels} | {name: pa.array(v, pa.float64()) for name, v in columns.items()}
    options = WriteOptions(mode="append", branch=branch, dims=("t",), merge_schema=True)
    write_table(repository.location, pa.table(rows), options)


def delete(repository, branch, label):
    read = ReadRequest(path=str(repository.location), branch=branch, where=f"t = {label}")
    options = WriteOptions(mode="append", branch=branch)
    delete_selected(DeleteRequest(read=read, options=options), in_process)


def begun(labels=(0, 1, 2, 3), chunk=1):
    """Return a repository with an array of the labels as values, and a branch dev."""
    place = new_place()
    rows = pa.table({"t": list(labels), "v": [float(label) for label in labels]})
    write_table(place, rows, WriteOptions(dims=("t",), chunks={"t": chunk}))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    return repository


def cells(repository, name="v"):
    """Return the cells by label that have a value."""
    dataset = dataset_at(repository.location)
    values = zip(dataset.read("t").tolist(), dataset.read(name).tolist(), strict=True)
    return {label: value for label, value in values if value == value}


@SIDES
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("gone", range(4))
@pytest.mark.parametrize("written", [(2,), (3, 4), (4,), (5,)])
def test_cells_of_other_labels_are_merged_beside_a_deleted_label(one, two, chunk, gone, written):
    repository = begun(chunk=chunk)
    delete(repository, one, gone)
    written = [label for label in written if label != gone] or [4]
    write(repository, two, written, v=[label + 0.5 for label in written])
    Repository.open(repository.location).merge("dev", into="main")
    expected = {label: float(label) for label in range(4) if label != gone}
    expected |= {label: label + 0.5 for label in written}
    assert cells(repository) == expected
    verify(repository.location)
    # An array that grows later does not show the cell of the deleted label again.
    write(repository, "main", [8, 9], u=[8.0, 9.0])
    assert cells(repository) == expected


@SIDES
def test_a_chunk_that_the_source_cut_is_kept_beside_cells_of_another_chunk(one, two):
    repository = begun(range(6), chunk=3)
    delete(repository, one, 5)
    write(repository, one, [4], v=[44.0])
    write(repository, two, [1], v=[11.0])
    Repository.open(repository.location).merge("dev", into="main")
    assert cells(repository) == {0: 0.0, 1: 11.0, 2: 2.0, 3: 3.0, 4: 44.0}


@SIDES
@pytest.mark.parametrize("gone", [0, 3])
def test_a_label_that_one_side_replaced_is_replaced_beside_cells_of_others(one, two, gone):
    repository = begun()
    delete(repository, one, gone)
    write(repository, one, [7], v=[70.0])
    write(repository, two, [2, 5], v=[22.0, 55.0])
    Repository.open(repository.location).merge("dev", into="main")
    expected = {0: 0.0, 1: 1.0, 2: 22.0, 3: 3.0, 5: 55.0, 7: 70.0}
    del expected[gone]
    assert cells(repository) == expected


@SIDES
def test_labels_that_both_sides_deleted_are_gone(one, two):
    repository = begun()
    for label in (0, 2):
        delete(repository, one, label)
    for label in (2, 3):
        delete(repository, two, label)
    write(repository, two, [6], v=[6.0])
    Repository.open(repository.location).merge("dev", into="main")
    assert cells(repository) == {1: 1.0, 6: 6.0}


def test_a_picked_deletion_keeps_labels_of_the_branch():
    repository = begun()
    write(repository, "dev", [4, 5], v=[4.0, 5.0])
    delete(repository, "dev", 1)
    picked = Repository.open(repository.location).resolve(branch="dev")
    write(repository, "main", [4, 6], v=[44.0, 66.0])
    repository = Repository.open(repository.location)
    repository.cherry_pick(picked, onto="main")
    assert cells(repository) == {0: 0.0, 2: 2.0, 3: 3.0, 4: 44.0, 6: 66.0}


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
@SIDES
def test_arrays_without_a_missing_value_lose_a_label_beside_new_ones(one, two, kind):
    place = new_place()

    def rows(labels):
        return pa.table({"t": labels, "v": pa.array(labels).cast(kind)})

    write_table(place, rows([0, 1, 2, 3]), WriteOptions(dims=("t",), chunks={"t": 2}))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    delete(repository, one, 1)
    options = WriteOptions(mode="append", branch=two, dims=("t",))
    write_table(place, rows([4, 5]), options)
    Repository.open(place).merge("dev", into="main")
    found = dataset_at(place)
    assert found.read("t").tolist() == [0, 2, 3, 4, 5]
    assert pa.array(found.read("v")).cast(pa.int64()).to_pylist() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("gone", [2, 3])
@pytest.mark.parametrize("appended", [(), (6,), (6, 7)])
def test_a_chunk_of_a_deleted_label_that_the_source_moved_is_left_out(chunk, gone, appended):
    repository = begun(labels=(0, 2, 3), chunk=chunk)
    delete(repository, "main", gone)
    labels = [1, *appended]
    write(repository, "dev", labels, v=[label + 0.5 for label in labels])
    Repository.open(repository.location).merge("dev", into="main")
    expected = {0: 0.0, 2: 2.0, 3: 3.0} | {label: label + 0.5 for label in labels}
    del expected[gone]
    assert cells(repository) == expected
    # An array that grows later does not show the cell of the deleted label again.
    write(repository, "main", [9], u=[9.0])
    assert cells(repository) == expected


@SIDES
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("name", ["v", "u"])
@pytest.mark.parametrize("more", [(), (6,)])
def test_a_cell_of_a_deleted_label_is_a_conflict(one, two, chunk, name, more):
    repository = begun(chunk=chunk)
    write(repository, two, [1], **{name: [11.0]})
    delete(repository, one, 1)
    if more:
        write(repository, one, more, v=[66.0])
    tip = Repository.open(repository.location).resolve()
    for resolve in (None, "ours", "theirs"):
        with pytest.raises(ConflictError):
            Repository.open(repository.location).merge("dev", into="main", resolve=resolve)
    assert Repository.open(repository.location).resolve() == tip


@SIDES
def test_a_cell_is_not_merged_into_another_label(one, two):
    repository = begun()
    delete(repository, one, 3)
    write(repository, one, [7], v=[7.0])
    write(repository, two, [3], v=[-1.0])
    with raises(ConflictError, kinds=...):
        repository.merge("dev")


def test_cells_of_other_labels_are_merged_beside_a_label_that_the_target_replaced():
    repository = begun()
    delete(repository, "main", 3)
    write(repository, "main", [7], v=[7.0])
    write(repository, "dev", [1], v=[-1.0])
    repository.merge("dev")
    assert cells(repository) == {0: 0.0, 1: -1.0, 2: 2.0, 7: 7.0}


def test_a_new_variable_with_a_label_that_the_target_replaced_is_a_conflict():
    repository = begun()
    delete(repository, "main", 3)
    write(repository, "main", [7], v=[7.0])
    write(repository, "dev", [0, 1, 2, 3], u=[30.0, 31.0, 32.0, 33.0])
    with raises(ConflictError, kinds=("LABELS_NOT_MERGED",)):
        repository.merge("dev")


@pytest.mark.parametrize("renamed", [True, False])
def test_a_cell_of_a_renamed_array_does_not_take_an_inserted_label(renamed):
    repository = begun((0, 2, 4, 6))
    write(repository, "main", [0], u=[0.0])
    repository.reset_branch("dev", repository.resolve())
    name = "z" if renamed else "u"
    if renamed:
        repository.rename("/u", "/z", branch="dev")
    write(repository, "dev", [4], **{name: [44.0]})
    write(repository, "main", [3], v=[3.0])
    if renamed:
        with raises(ConflictError, kinds=...):
            repository.merge("dev")
        return
    repository.merge("dev")
    assert cells(repository, "u") == {0: 0.0, 4: 44.0}


@SIDES
@pytest.mark.parametrize("change", ["append", 4, 2])
def test_a_new_variable_has_the_length_of_the_group(one, two, change):
    repository = begun(range(5), chunk=2)
    write(repository, one, list(range(5)), u=[30.0 + i for i in range(5)])
    if change == "append":
        write(repository, two, [5], v=[5.0])
        repository.merge("dev")
        dataset = dataset_at(repository.location)
        assert {variable.shape for variable in dataset.variables.values()} == {(6,)}
        assert cells(repository, "u") == {i: 30.0 + i for i in range(5)}
        return
    delete(repository, two, change)
    with raises(ConflictError, kinds=...):
        repository.merge("dev")


@SIDES
@pytest.mark.parametrize(
    "attribute",
    [
        {"scale_factor": 0.1},
        {"add_offset": 1.0},
        {"_FillValue": 5.0},
        {"missing_value": 5.0},
        {"units": "K"},
        {"calendar": "noleap"},
        {"dtype": "datetime64[ns]"},
    ],
    ids=lambda attribute: next(iter(attribute)),
)
def test_another_meaning_conflicts_with_cells_of_the_other_side(one, two, attribute):
    repository = begun()
    repository.set_attributes("/v", attribute, branch=one)
    session = repository.writable_session(two)
    session.set_chunk("/v", [2], np.float64(5.0).tobytes())
    session.commit("a cell")
    with raises(ConflictError, kinds=...):
        repository.merge("dev")


@SIDES
def test_another_meaning_of_labels_conflicts_with_cells_of_the_other_side(one, two):
    repository = begun()
    repository.set_attributes("/t", {"units": "days since 2000-01-01"}, branch=one)
    session = repository.writable_session(two)
    session.set_chunk("/v", [2], np.float64(5.0).tobytes())
    session.commit("a cell")
    with raises(ConflictError, kinds=("LABELS_NOT_MERGED",)):
        repository.merge("dev")


@SIDES
def test_another_attribute_is_merged_beside_cells(one, two):
    repository = begun()
    repository.set_attributes("/v", {"long_name": "count"}, branch=one)
    write(repository, two, [2], v=[5.0])
    repository.merge("dev")
    assert cells(repository) == {0: 0.0, 1: 1.0, 2: 5.0, 3: 3.0}
