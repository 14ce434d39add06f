"""Tasks store the chunks of blocks, and delete those of an existing array that become empty."""

import pickle

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.node_path import parse_node_path
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import (
    ArraysCommit,
    ArrayTarget,
    TaskFiles,
    TaskReceipt,
    commit_arrays,
    open_destination,
)
from icechunk_format.groups.changing.targets import path_in
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

VALUES = np.arange(1, 29, dtype="i4").reshape(7, 4)
VALUES[:3, 2:] = 0  # the chunk (0, 1) is not stored


def commit(place, target, receipts):
    destination, _ = open_destination(place, WriteOptions())
    change = ArraysCommit(
        destination=destination, options=WriteOptions(), arrays=[target], message="Change t"
    )
    return commit_arrays(change, receipts)


@pytest.fixture
def grown(place):
    """Give an array of seven rows in chunks of three, as it is when it gets two more."""
    metadata = build_array_metadata(
        shape=(7, 4),
        data_type=data_type_from_numpy(np.dtype("i4")),
        chunk_shape=(3, 2),
        dimension_names=["y", "x"],
        node_path="/t",
    )
    new = ArrayTarget.of_new(metadata)
    files = TaskFiles(open_destination(place, WriteOptions())[0])
    stored = files.write(new, (0, 0), VALUES)
    assert sum(map(len, stored)) == 5
    receipt = files.receipt()
    assert not receipt.cleared
    assert (receipt.part, receipt.rows, receipt.chunks) == (0, 0, 5)
    commit(place, new, [receipt])
    [variable] = opened(place).variables.values()
    return ArrayTarget.of_existing(variable, metadata.with_shape((9, 4)))


def opened(place):
    repository = Repository.open(place)
    return open_dataset(repository, repository.resolve(branch="main"))


def rows_of(receipt):
    return {path: coords.tolist() for path, coords in receipt.cleared.items()}


def test_empty_chunks_of_a_block_are_deleted_if_they_exist(place, grown):
    files = TaskFiles(open_destination(place, WriteOptions())[0])
    files.write(grown, (0, 0), np.zeros((3, 4), "i4"))
    assert rows_of(files.receipt()) == {"/t": [[0, 0]]}


def test_new_chunks_are_not_deleted(place, grown):
    files = TaskFiles(open_destination(place, WriteOptions())[0])
    values = np.zeros((6, 4), "i4")
    values[0, 0] = 5
    files.write(grown, (3, 0), values)
    receipt = pickle.loads(pickle.dumps(files.receipt()))
    assert rows_of(receipt) == {"/t": [[1, 1], [2, 0], [2, 1]]}
    commit(place, grown, [receipt])
    expected = np.concatenate([VALUES[:3], values])
    np.testing.assert_array_equal(opened(place).read("t"), expected)


def test_a_chunk_that_one_task_deletes_and_another_stores_is_kept(place, grown):
    destination = open_destination(place, WriteOptions())[0]
    one, other = TaskFiles(destination), TaskFiles(destination)
    one.clear(grown, np.array([[0, 0], [2, 0]]))
    other.write(grown, (0, 0), np.full((3, 4), 7, "i4"))
    commit(place, grown, [other.receipt(), one.receipt()])
    found = opened(place).read("t")
    assert (found[:3] == 7).all()
    assert (found[6:, :2] == 0).all()


def test_deleted_chunks_of_another_array_are_refused(place, grown):
    files = TaskFiles(open_destination(place, WriteOptions())[0])
    files.clear(grown, np.array([[0, 0]]))
    with raises(InvalidInputError, match="not part of this write", variable="/t"):
        commit_arrays(
            ArraysCommit(
                destination=open_destination(place, WriteOptions())[0],
                options=WriteOptions(),
                arrays=[],
                message="",
            ),
            [files.receipt()],
        )


def test_old_values_are_read_up_to_the_end_of_the_old_array(place, grown):
    files = TaskFiles(open_destination(place, WriteOptions())[0])
    values = np.full((3, 2), -1, "i4")
    files.read_into(values, grown, (6, 0), (9, 2))
    assert values.tolist() == [VALUES[6, :2].tolist(), [-1, -1], [-1, -1]]
    files.read_into(values, grown, (7, 0), (9, 2))
    files.read_into(values, ArrayTarget.of_new(grown.metadata), (0, 0), (3, 2))
    assert values[1:].tolist() == [[-1, -1], [-1, -1]]


def test_a_box_from_the_end_of_the_old_array_on_has_no_old_values(grown):
    assert grown.old_end((6, 0), (9, 4)) == [7, 4]
    assert grown.old_end((0, 0), (3, 2)) == [3, 2]
    for lower in ((7, 0), (8, 0), (0, 4)):
        assert grown.old_end(lower, (9, 6)) is None


def test_objects_of_chunks_are_counted_and_inline_chunks_are_not(place, grown):
    def written(threshold):
        repository = Repository.open(place)
        repository.update_config({"inline_chunk_threshold_bytes": threshold})
        before = {found.key for found in repository.storage.list("chunks/")}
        files = TaskFiles(open_destination(place, WriteOptions())[0], 4)
        for start in (0, 3, 6):
            files.write(grown, (start, 0), np.ones((3, 4), "i4"))
        receipt = files.receipt(rows=36)
        new = [f for f in repository.storage.list("chunks/") if f.key not in before]
        assert (receipt.part, receipt.rows, receipt.chunks) == (4, 36, 6)
        assert not receipt.cleared
        assert (receipt.files, receipt.nbytes) == (len(new), sum(found.size for found in new))
        return receipt.files

    assert (written(0), written(512)) == (6, 0)


def test_a_receipt_without_files_counts_none(place, grown):
    receipt = TaskFiles(open_destination(place, WriteOptions())[0]).receipt()
    assert receipt == TaskReceipt(manifests={})
    counts = (receipt.part, receipt.rows, receipt.files, receipt.nbytes, receipt.chunks)
    assert counts == (0, 0, 0, 0, 0)
    assert commit(place, grown, [TaskReceipt(manifests={"/t": ()})]).chunks == 0
    np.testing.assert_array_equal(opened(place).read("t")[:7], VALUES)


def test_the_prefixes_of_a_receipt_become_containers(place, grown):
    receipt = TaskFiles(open_destination(place, WriteOptions())[0]).receipt(prefixes=["s3://b/"])
    assert receipt.prefixes == ("s3://b/",)
    commit(place, grown, [receipt])
    [container] = Repository.open(place).config.virtual_chunk_containers
    assert container.url_prefix == "s3://b/"


def test_paths_of_arrays_of_the_root_and_of_groups():
    assert path_in(parse_node_path("/"), "t") == "/t"
    assert path_in(parse_node_path("/g/h"), "t") == "/g/h/t"
