"""Labels that others remove, create or move during a write, and its rows and chunks."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.rival_writes import begun
from helpers.grids.written_cells import dataset_at
from helpers.raised import raises

from icechunk_format.errors import ConflictError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

APPEND = WriteOptions(mode="append", dims=("t",), merge_schema=True)
REMOVED = {
    "dropped": lambda repository: repository.drop("/t"),
    "renamed": lambda repository: repository.rename("/t", "/s"),
}


def rows(labels, **columns):
    return pa.table(
        {"t": labels, **{name: pa.array(v, pa.float64()) for name, v in columns.items()}}
    )


@pytest.mark.parametrize("name", ["v", "u"])
@pytest.mark.parametrize("how", REMOVED)
@pytest.mark.parametrize("labels", [[0, 2], [2, 7], ["0", "b"]])
def test_labels_that_others_removed(name, how, labels):
    place = new_place()
    first = ["0", "a", "b"] if isinstance(labels[0], str) else [0, 1, 2]
    write_table(place, rows(first, v=[0, 1, 2]), WriteOptions(dims=("t",)))
    finish = begun(place, rows(labels, **{name: [10, 12]}), APPEND)
    REMOVED[how](Repository.open(place))
    tip = Repository.open(place).resolve()
    with raises(ConflictError, match="/t.*removed", dim="t"):
        finish()
    assert Repository.open(place).resolve() == tip


def test_labels_that_others_created():
    place = new_place()
    write_table(place, rows([0, 1, 2], v=[0, 1, 2]), WriteOptions(dims=("t",)))
    Repository.open(place).drop("/t")
    finish = begun(place, rows([1, 3], v=[10, 30]), APPEND)
    session = Repository.open(place).writable_session()
    other = new_place()
    write_table(other, rows([5, 6, 7], w=[0, 0, 0]), WriteOptions(dims=("t",)))
    labels = Repository.open(other)
    node = labels.snapshot(labels.resolve()).node("/t")
    session.create_array("/t", node.user_data, shape=(3,), num_chunks=(1,), dimension_names=("t",))
    payload = dataset_at(other).variables["t"].metadata.chunk_codecs()
    session.set_chunks("/t", [[0]], [payload.encode(dataset_at(other).read("t"))])
    session.commit("labels")
    with raises(ConflictError, match="/t.*created", dim="t"):
        finish()


def test_a_dimension_that_two_writes_create_gets_the_labels_of_both():
    place = new_place()
    write_table(place, pa.table({"x": [1, 2], "w": [0.0, 1.0]}), WriteOptions(dims=("x",)))
    one = begun(place, rows([0, 2], v=[0, 2]), APPEND)
    two = begun(place, rows([1, 2], u=[1, 2]), APPEND)
    one()
    two()
    found = dataset_at(place)
    assert sorted(found.read("t").tolist()) == [0, 1, 2]


def at_once(place, labels, **columns):
    write_table(place, rows(labels, **columns), APPEND)


RIVALS = {
    "inserted": (lambda place: at_once(place, [5], w=[5]), False),
    "inserted behind": (lambda place: at_once(place, [45], w=[5]), True),
    "appended": (lambda place: at_once(place, [60], w=[6]), True),
    "deleted": (lambda place: delete(place, 10), False),
    "deleted within": (lambda place: delete(place, 30), False),
    "deleted behind": (lambda place: delete(place, 50), True),
}


def delete(place, label):
    read = ReadRequest(path=str(place), where=f"t = {label}")
    delete_selected(DeleteRequest(read=read, options=WriteOptions(mode="append")), in_process)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("rival", RIVALS)
def test_chunks_that_are_written_by_position_stay_at_their_labels(rival, is_stored):
    place = new_place()
    labels = range(0, 60, 10)
    write_table(place, rows(labels, w=labels), WriteOptions(dims=("t",), chunks={"t": 2}))
    first = [0, 10] if is_stored else []
    options = replace(APPEND, chunks={"t": 2})
    write_table(place, rows([0, 10], v=[0, 10]), options)
    if not is_stored:
        session = Repository.open(place).writable_session()
        session.delete_chunks("/v", [[0]])
        session.commit("none")
    data = np.array([20.5, 30.5], "<f8").tobytes()
    chunks = pa.table(
        {"array": ["v"], "chunk": pa.array([[1]], pa.list_(pa.int64())), "data": [data]}
    )
    finish = begun(place, chunks, WriteOptions(mode="append", layout="chunks"))
    change, stays = RIVALS[rival]
    change(place)
    if stays:
        finish()
    else:
        with pytest.raises(ConflictError):
            finish()
    found = dataset_at(place)
    pairs = zip(found.read("t").tolist(), found.read("v").tolist(), strict=True)
    cells = {label: value for label, value in pairs if value == value}
    expected = {label: float(label) for label in first} | ({20: 20.5, 30: 30.5} if stays else {})
    if rival == "deleted":
        expected.pop(10, None)
    assert cells == expected


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("written", [(40,), (20, 40), (40, 50)])
def test_a_cell_that_others_deleted_with_its_label_stays_deleted(chunk, written):
    place = new_place()
    labels = [0, 10, 20, 30]
    write_table(
        place, rows(labels, v=labels, w=labels), WriteOptions(dims=("t",), chunks={"t": chunk})
    )
    finish = begun(place, rows(written, v=[at + 0.5 for at in written]), APPEND)
    delete(place, 30)
    at_once(place, [30], w=[33])
    finish()
    found = dataset_at(place)
    cells = {
        name: {
            label: v for label, v in zip(found.read("t"), found.read(name), strict=True) if v == v
        }
        for name in ("v", "w")
    }
    assert cells["v"] == {0: 0.0, 10: 10.0, 20: 20.0} | {at: at + 0.5 for at in written}
    assert cells["w"] == {0: 0.0, 10: 10.0, 20: 20.0, 30: 33.0}
