"""A write is one commit of all of its tasks, on its branch and by its mode, or no commit.

Receipts of many tasks become one version; what stands in the way of that is refused before or
without a trace, and writes at the same time rebase or conflict, and never mix.
"""

import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.written_cells import APPEND, DIMS, dataset_at, grid, values
from helpers.raised import raises

from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing.cells.task import write_batches
from icechunk_format.tables.writing.commit import finish_write
from icechunk_format.tables.writing.in_process import numbered_batches, write_part, write_table
from icechunk_format.tables.writing.plan import plan_write
from icechunk_format.tables.writing.prepare import prepare_write


def test_receipts_of_many_tasks_make_manifests_that_do_not_overlap(place):
    table = grid(range(20), range(6))
    options = WriteOptions(dims=("time", "x"), chunks={"time": 2, "x": 3}, rows_per_unit=10)
    prepared = prepare_write(place, table.schema, options)
    coordinates = {d: pa.array(sorted(set(table.column(d).to_pylist()))) for d in prepared.dims}
    plan = plan_write(prepared, coordinates, table.num_rows)
    [part] = plan.parts
    whole = pa.Table.from_batches(numbered_batches(plan, part, table))
    assert whole.schema.equals(part.input_schema)
    units = whole.column("_cell").to_numpy() // part.numbers.cells_per_unit
    assert set(units) == set(range(part.units))
    assert part.units > 5
    context = pickle.loads(pickle.dumps(part))
    receipts = [
        pickle.loads(
            pickle.dumps(
                write_batches(context, whole.filter(pa.array(units == unit)).to_batches(7))
            )
        )
        for unit in range(part.units)
    ]
    result = finish_write(pickle.loads(pickle.dumps(plan)), receipts)
    assert result.manifests == part.units
    assert result.chunks == 20
    node = dataset_at(place).variables["t"].array
    assert len(node.manifests) == part.units
    np.testing.assert_array_equal(values(place), np.arange(20)[:, None] * 100 + np.arange(6))


def test_two_tasks_that_wrote_one_chunk_are_refused(place):
    table = grid(range(2), [1, 2])
    prepared = prepare_write(place, table.schema, DIMS)
    plan = plan_write(prepared, {"time": pa.array([0, 1]), "x": pa.array([1.0, 2.0])}, 4)
    [part] = plan.parts
    receipts = [write_part(plan, part, table) for _ in range(2)]
    with pytest.raises(InvalidInputError, match="1 chunks were written twice"):
        finish_write(plan, receipts)
    assert not Repository.exists(place)
    # What the tasks stored is no obstacle to another attempt.
    finish_write(plan, receipts[:1])
    assert values(place).shape == (2, 2)


def test_fewer_rows_than_the_plan_was_made_for_are_refused(place):
    table = grid(range(2), [1, 2])
    plan = plan_write(
        prepare_write(place, table.schema, DIMS),
        {"time": pa.array([0, 1]), "x": pa.array([1.0, 2.0])},
        4,
    )
    [part] = plan.parts
    with pytest.raises(InvalidInputError, match=r"had 4 rows .* and 3 when they were written"):
        finish_write(plan, [write_part(plan, part, table.slice(1))])
    assert not Repository.exists(place)


def test_a_place_with_other_things_is_refused_before_anything_is_stored(place):
    storage = open_storage(Location(place))
    storage.put("chunks/0123456789ABCDEF0000", b"of a failed write")
    storage.put("table.parquet", b"of somebody else")
    with raises(AlreadyExistsError, found=("table.parquet",)):
        prepare_write(place, grid(range(2), [1, 2]).schema, DIMS)
    storage.delete_many(["table.parquet"])
    write_table(place, grid(range(2), [1, 2]), DIMS)
    assert values(place).shape == (2, 2)


def test_a_branch_of_no_repository_is_refused_before_anything_is_stored(place):
    options = WriteOptions(dims=("time", "x"), branch="audit")
    with pytest.raises(NotFoundError, match="no branch 'audit'"):
        prepare_write(place, grid(range(2), [1, 2]).schema, options)
    made = write_table(place, grid(range(2), [1, 2]), replace(options, create_branch=True))
    assert Repository.open(place).branches()["audit"] == made.snapshot_id


def test_existing_arrays_are_refused_by_default_and_left_alone_by_ignore(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    with raises(AlreadyExistsError, kind="arrays", group="/"):
        write_table(place, grid(range(2), [1, 2]), DIMS)
    result = write_table(place, grid([7], [1, 2]), WriteOptions(mode="ignore", dims=("time", "x")))
    assert result.is_skipped
    assert values(place).shape == (2, 2)


def test_a_version_of_a_writer_is_committed_once(place):
    def write(version, offset):
        options = WriteOptions(
            mode="append", dims=("time", "x"), txn_app_id="stream", txn_version=version
        )
        return write_table(place, grid(range(2), [1, 2], offset=offset), options)

    assert not write(3, 0.0).is_skipped
    again = write(3, 0.5)
    assert again.is_skipped
    assert "committed txnVersion 3" in again.reason
    assert values(place)[0, 0] == 1.0
    assert not write(2, 0.25).is_skipped
    assert write(2, 0.5).is_skipped
    assert values(place)[0, 0] == 1.25
    assert not write(4, 0.5).is_skipped
    assert values(place)[0, 0] == 1.5


def test_writing_to_a_branch_leaves_main_alone(place):
    write_table(place, grid(range(2), [1, 2]), DIMS)
    audit = {"mode": "append", "branch": "audit"}
    with raises(NotFoundError, kind="branch", name="audit"):
        write_table(place, grid([2], [1, 2]), WriteOptions(**audit))
    write_table(place, grid([2], [1, 2]), WriteOptions(**audit, create_branch=True))
    assert values(place).shape == (2, 2)
    assert dataset_at(place, branch="audit").read("t").shape == (3, 2)


def test_concurrent_writes_rebase_or_conflict_and_never_mix(place):
    write_table(place, grid(range(4), [1, 2]), WriteOptions(dims=("time", "x"), chunks={"time": 2}))

    def planned(times, offset, **options):
        table = grid(times, [1, 2], offset=offset)
        prepared = prepare_write(place, table.schema, WriteOptions(mode="append", **options))
        coordinates = {"time": pa.array(times), "x": pa.array([1.0, 2.0])}
        plan = plan_write(prepared, coordinates, table.num_rows)
        return plan, [write_part(plan, part, table) for part in plan.parts]

    first, second = planned([0], 0.1), planned([0, 1], 0.2)
    beside, apart = planned([1], 0.4), planned([3], 0.3)
    finish_write(*first)
    with pytest.raises(ConflictError):
        finish_write(*second)
    # One chunk holds the first two times; each write lands with its own cells.
    finish_write(*beside)
    assert finish_write(*apart).commit.rebased == 1
    assert values(place)[:, 0].tolist() == [1.1, 101.4, 201, 301.3]
    strict = planned([2], 0.5, on_conflict="fail")
    write_table(place, grid([0], [1, 2]), WriteOptions(mode="append"))
    with pytest.raises(ConflictError):
        finish_write(*strict)


def test_spec_version_1_can_be_written(place):
    write_table(place, grid(range(2), [1, 2]), WriteOptions(dims=("time", "x"), spec_version=1))
    write_table(place, grid([2], [1, 2]), WriteOptions(mode="append"))
    assert Repository.open(place).spec_version == 1
    assert values(place).shape == (3, 2)


def test_groups_are_made_as_needed(place):
    write_table(place, grid(range(2), [1]), WriteOptions(dims=("time", "x"), group="/a/b"))
    write_table(place, grid(range(2), [1]), WriteOptions(dims=("time", "x"), group="c"))
    repository = Repository.open(place)
    dataset = open_dataset(repository, repository.resolve(branch="main"), "a/b")
    assert dataset.read("t").shape == (2, 1)
    with raises(InvalidInputError, group="/a/b/t"):
        write_table(place, grid([0], [1]), WriteOptions(dims=("time", "x"), group="a/b/t"))


def test_no_rows_append_nothing_and_create_empty_arrays(place):
    empty = grid([], [])
    write_table(place, empty, DIMS)
    assert values(place).shape == (0, 0)
    assert write_table(place, empty, APPEND).is_skipped
    write_table(place, grid(range(2), [1]), APPEND)
    assert values(place).tolist() == [[1.0], [101.0]]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_write_reads_the_state_of_the_repository_twice(tmp_path, monkeypatch, mode):
    """One round trip each to a store far away: to plan, and to commit."""
    write_table(str(tmp_path), grid(range(3), range(4)), DIMS)
    asked = []
    for verb in ("get", "head", "list"):
        original = getattr(LocalStorage, verb)

        def call(store, key="", *arguments, original=original, verb=verb, **keywords):
            if key in ("repo", ""):
                asked.append(verb)
            return original(store, key, *arguments, **keywords)

        monkeypatch.setattr(LocalStorage, verb, call)
    options = replace(APPEND, mode=mode, txn_app_id="app", txn_version=1)
    write_table(str(tmp_path), grid([3], range(4)), options)
    assert asked == ["get", "get"]
