"""Blocks of stored values become arrays in one commit, or the branch stays as it was."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.ids import NodeId
from icechunk_format.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icechunk_format.groups.changing import (
    ArraysCommit,
    ArrayTarget,
    ChunkValues,
    TaskFiles,
    TaskReceipt,
    check_planned_lengths,
    commit_arrays,
    open_destination,
    with_own_attributes,
)
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import parse_group_metadata

VALUES = np.arange(70, dtype="f4").reshape(7, 10)


def target(path="/t", shape=(7, 10), chunks=(3, 5), **more):
    metadata = build_array_metadata(
        shape=shape,
        data_type=data_type_from_numpy(np.dtype("f4")),
        chunk_shape=chunks,
        dimension_names=["y", "x"],
        node_path=path,
        **more,
    )
    return ArrayTarget(
        name=path.rpartition("/")[2],
        path=path,
        node_id=NodeId(np.random.default_rng().bytes(NodeId.SIZE)),
        dims=("y", "x"),
        metadata=metadata,
    )


def change(place, arrays, options=None, **more):
    options = options or WriteOptions()
    destination, _ = open_destination(place, options)
    return ArraysCommit(
        destination=destination, options=options, arrays=arrays, message="Make arrays", **more
    )


def write(place, array, values=VALUES, options=None, rows=3):
    made = change(place, [array], options)
    receipts = []
    for start in range(0, len(values), rows):
        files = TaskFiles(pickle.loads(pickle.dumps(made.destination)))
        files.write(array, (start, 0), values[start : start + rows])
        receipts.append(pickle.loads(pickle.dumps(files.receipt())))
    return made, receipts


def read(place, name="t", group=None):
    repository = Repository.open(place)
    return open_dataset(repository, repository.resolve(branch="main"), group).read(name)


def test_tasks_make_an_array_of_a_new_repository(place):
    made, receipts = write(place, target())
    assert not Repository.exists(place)
    result = commit_arrays(made, receipts)
    np.testing.assert_array_equal(read(place), VALUES)
    assert (result.chunks, result.manifests) == (6, 3)
    assert Repository.open(place).snapshot(result.snapshot_id).message == "Make arrays"


def test_chunks_of_fill_values_are_left_out_by_their_bits(place):
    values = np.zeros((7, 10), "f4")
    values[0, 0], values[6, 9] = -0.0, 1
    made, receipts = write(place, target("/s"), values)
    assert commit_arrays(made, receipts).chunks == 2
    assert read(place, "s").tobytes() == values.tobytes()


def test_shards_are_written_whole(place):
    array = target(shard_shape=(3, 10))
    made, receipts = write(place, array)
    assert commit_arrays(made, receipts).chunks == 3
    np.testing.assert_array_equal(read(place), VALUES)


def test_blocks_hold_whole_chunks(place):
    made = change(place, [target()])
    with raises(InvalidInputError, chunk=(0, 0)):
        TaskFiles(made.destination).write(made.arrays[0], (0, 0), VALUES[:2])


def test_two_tasks_that_wrote_one_chunk_commit_nothing(place):
    made, receipts = write(place, target())
    with pytest.raises(InvalidInputError):
        commit_arrays(made, [*receipts, receipts[0]])
    assert not Repository.exists(place)


def test_groups_above_are_created_with_attributes(place):
    made, receipts = write(place, target("/a/b/t"))
    made = change(place, made.arrays, groups={"/a/b": {"title": "b"}})
    commit_arrays(made, receipts)
    repository = Repository.open(place)
    found = open_dataset(repository, repository.resolve(branch="main"), "/a/b")
    assert found.attributes == {"title": "b"}
    np.testing.assert_array_equal(found.read("t"), VALUES)


def test_an_array_is_replaced_and_old_snapshots_keep_theirs(place):
    first = commit_arrays(*write(place, target()))
    commit_arrays(*write(place, target(chunks=(7, 2)), VALUES + 1, rows=7))
    np.testing.assert_array_equal(read(place), VALUES + 1)
    repository = Repository.open(place)
    np.testing.assert_array_equal(open_dataset(repository, first.snapshot_id).read("t"), VALUES)


def test_a_group_is_not_replaced_by_an_array(place):
    commit_arrays(*write(place, target("/t/inner")))
    with pytest.raises(AlreadyExistsError):
        commit_arrays(*write(place, target("/t")))
    np.testing.assert_array_equal(read(place, "inner", "/t"), VALUES)


def test_other_writers_conflict_in_the_same_array_and_not_beside_it(place):
    commit_arrays(*write(place, target()))
    commit_arrays(*write(place, target("/u")))
    replacing, beside = write(place, target(), VALUES * 2), write(place, target("/v"))
    # Another writer changes a chunk of /t meanwhile.
    session = Repository.open(place).writable_session("main")
    session.set_chunk("/t", (0, 0), VALUES[:3, :5].tobytes())
    session.commit("rival")
    with pytest.raises(ConflictError):
        commit_arrays(*replacing)
    assert commit_arrays(*beside).commit.rebased == 1
    assert {"t", "u", "v"} <= set(
        open_dataset(
            Repository.open(place), Repository.open(place).resolve(branch="main")
        ).variables
    )


def test_a_transaction_of_an_application_is_committed_once(place):
    options = WriteOptions(txn_app_id="job", txn_version=3)
    made, receipts = write(place, target(), options=options)
    first = commit_arrays(made, receipts)
    again = commit_arrays(made, receipts)
    assert again.is_skipped
    assert again.snapshot_id == first.snapshot_id
    found = open_destination(place, options)
    assert found.is_skipped


def test_existing_arrays_grow_keep_other_chunks_and_lose_cleared_ones(place):
    array = target()
    commit_arrays(*write(place, array))
    grown = ArrayTarget(
        name="t",
        path="/t",
        node_id=array.node_id,
        dims=array.dims,
        metadata=array.metadata.with_shape((9, 10)),
        old_shape=(7, 10),
    )
    made = change(place, [grown], cleared={"/t": np.array([[0, 0]])})
    files = TaskFiles(made.destination)
    files.write(grown, (6, 0), np.full((3, 10), 5, "f4"))
    commit_arrays(made, [files.receipt()])
    expected = np.concatenate([VALUES[:6], np.full((3, 10), 5, "f4")])
    expected[:3, :5] = 0
    np.testing.assert_array_equal(read(place), expected)
    assert commit_arrays(change(place, [grown]), []).is_skipped


def test_files_of_tasks_and_of_the_commit_are_counted(place):
    made, receipts = write(place, target())
    result = commit_arrays(made, receipts)
    assert result.message == "Make arrays"
    assert result.branch == "main"
    assert not result.is_skipped
    assert not result.dry_run
    manifests = [
        one for receipt in receipts for found in receipt.manifests.values() for one in found
    ]
    counts, sizes = result.commit.files_written, result.commit.bytes_written
    assert counts["manifests"] == len(manifests) == 3
    assert sizes["manifests"] == sum(one.size_bytes for one in manifests)
    assert counts["chunks"] == sum(receipt.files for receipt in receipts)
    assert sizes["chunks"] == sum(receipt.nbytes for receipt in receipts)
    assert counts["snapshots"] == 1
    named = WriteOptions(message="Mine")
    assert commit_arrays(*write(place, target(), options=named)).message == "Mine"


def test_a_check_sees_the_base_and_then_the_newest_snapshot(place):
    first = commit_arrays(*write(place, target()))
    made, receipts = write(place, target("/v"))
    seen = []
    made = replace(made, check=lambda session, tip: seen.append((session.has_changes, tip.id)))
    rival = commit_arrays(*write(place, target("/u")))
    result = commit_arrays(made, receipts)
    assert result.commit.rebased == 1
    assert seen == [(True, first.snapshot_id), (True, rival.snapshot_id)]
    refused = change(place, [target("/w")], check=lambda session, tip: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        commit_arrays(refused, [])
    nothing = change(place, [], check=lambda session, tip: 1 / 0)
    assert commit_arrays(nothing, []).is_skipped


def test_arrays_that_are_gone_need_not_be_deleted(place):
    commit_arrays(*write(place, target()))
    commit_arrays(change(place, [target("/v")], deleted=["/t", "/nothing"]), [])
    repository = Repository.open(place)
    found = repository.snapshot(repository.resolve())
    assert {node.path for node in found.nodes} == {"/", "/v"}


def test_attributes_of_groups_are_replaced_or_kept(place):
    commit_arrays(change(place, [target("/g/t")], groups={"/g": {"title": "one"}}), [])

    def attributes(groups):
        result = commit_arrays(change(place, [], groups=groups), [])
        repository = Repository.open(place)
        tip = repository.snapshot(repository.resolve())
        return result.is_skipped, parse_group_metadata(
            tip.node("/g").user_data, node_path="/g"
        ).attributes

    assert attributes({"/g": None}) == (True, {"title": "one"})
    assert attributes({"/g": {"title": "one"}}) == (True, {"title": "one"})
    assert attributes({"/g": {"units": "K"}}) == (False, {"units": "K"})
    assert attributes({"/g": {}}) == (False, {})
    assert attributes({"/g/below/deep": {"a": 1}, "/g": None}) == (False, {})
    repository = Repository.open(place)
    tip = repository.snapshot(repository.resolve())
    assert parse_group_metadata(
        tip.node("/g/below/deep").user_data, node_path="/g/below/deep"
    ).attributes == {"a": 1}
    assert (
        parse_group_metadata(tip.node("/g/below").user_data, node_path="/g/below").attributes == {}
    )


def test_a_group_keeps_its_own_attributes_unless_all_its_arrays_are_replaced(place):
    given = {"title": "new", "more": 1}
    assert with_own_attributes(None, "/g", given, ["/g/t"]) == given
    arrays = [target("/g/t"), target("/g/u")]
    groups = {"/g": {"title": "own", "kept": True}, "/empty": {"title": "own"}}
    commit_arrays(change(place, arrays, groups=groups), [])
    repository = Repository.open(place)
    base = repository.snapshot(repository.resolve())
    for group in ("/nothing", "/g/t"):
        assert with_own_attributes(base, group, given, []) == given
    own = {"title": "own", "kept": True, "more": 1}
    assert with_own_attributes(base, "/g", given, ["/g/t"]) == own
    assert with_own_attributes(base, "/g", given, ["/g/t", "/g/u", "/g/v"]) == {
        **own,
        "title": "new",
    }
    assert with_own_attributes(base, "/empty", given, ["/empty/t"]) == {"title": "own", "more": 1}


def test_lengths_that_a_commit_would_make_are_checked_before_its_tasks(place):
    commit_arrays(change(place, [target("/g/t"), target("/g/u")]), [])
    repository = Repository.open(place)
    base = repository.snapshot(repository.resolve())
    longer = target("/g/v", shape=(9, 10))
    for known in (None, base):
        check_planned_lengths(known, "/g", [target("/g/v")], [])
    check_planned_lengths(base, "/g", [longer], ["/g/t", "/g/u", "/g/nothing"])
    with raises(InvalidInputError, match="y is 9 in /g/v and 7 in /g/"):
        check_planned_lengths(base, "/g", [longer], ["/g/t"])
    with raises(InvalidInputError, match="y is 9 in /g/v and 7 in /g/t"):
        check_planned_lengths(None, "/g", [target("/g/t"), longer], [])


@pytest.mark.parametrize("shape", [(), (7,), (7, 10), (0, 10)])
def test_values_that_the_driver_stores_come_with_the_commit(place, shape):
    metadata = build_array_metadata(
        shape=shape,
        data_type=data_type_from_numpy(np.dtype("f4")),
        chunk_shape=(3, 5)[: len(shape)],
        dimension_names=["y", "x"][: len(shape)],
        node_path="/t",
    )
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape) + 1
    stored = ChunkValues.changed(metadata, values, 0)
    made = change(
        place, [ArrayTarget.of_new(metadata)], values=[stored], metadata={"by": "the driver"}
    )
    result = commit_arrays(made, [])
    np.testing.assert_array_equal(read(place), values)
    assert Repository.open(place).snapshot(result.snapshot_id).metadata == {"by": "the driver"}
    if shape and shape[0]:
        changed = ChunkValues.changed(metadata, values + 1, 4)
        assert changed.start == 3
        variable = opened_variable(place)
        made = change(place, [ArrayTarget.of_existing(variable, metadata)], values=[changed])
        commit_arrays(made, [])
        np.testing.assert_array_equal(read(place)[:3], values[:3])
        np.testing.assert_array_equal(read(place)[3:], values[3:] + 1)


def opened_variable(place):
    repository = Repository.open(place)
    [variable] = open_dataset(repository, repository.resolve()).variables.values()
    return variable


def test_a_repository_that_another_writer_created_has_the_spec_version_that_is_asked_for(place):
    made = change(place, [target()], WriteOptions(spec_version=2))
    Repository.create(place, spec_version=1)
    with raises(AlreadyExistsError, match="spec version 1"):
        commit_arrays(made, [])
    assert Repository.open(place).snapshot(Repository.open(place).resolve()).node("/t") is None


def test_a_task_may_have_stored_nothing(place):
    made, receipts = write(place, target())
    empty = TaskReceipt(manifests={"/t": ()})
    assert (empty.chunks, [receipt.chunks for receipt in receipts]) == (0, [2, 2, 2])
    assert commit_arrays(made, [empty, *receipts]).chunks == 6
    np.testing.assert_array_equal(read(place), VALUES)
