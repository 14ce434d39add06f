"""Writes that were planned on one version all land, one after another, and none mixes.

Every write here is planned, and its tasks have stored their chunks, before the first of them
commits. The outcome is compared with that of the same writes run one after another.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.builder import new_place
from helpers.examples import by_day
from helpers.grids.rival_writes import (
    assert_as_one_after_another,
    assert_equal_contents,
    begun,
    created,
    in_order,
)
from helpers.grids.written_cells import APPEND, dataset_at, grid, values
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import AlreadyExistsError, ConflictError, InvalidInputError
from icechunk_format.maintenance.garbage.collect import collect_garbage
from icechunk_format.maintenance.rewriting.boxes import run_rewrite
from icechunk_format.maintenance.rewriting.rewrite import finish_rewrite, plan_rewrite
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables.writing.in_process import write_table

# Jobs append early labels late here, on purpose.


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_days_appended_at_the_same_time_all_go_in(chunk, spec_version):
    days = [grid([4 + day], [1, 2], offset=day / 10) for day in range(3)]
    place = assert_as_one_after_another(
        grid(range(4), [1, 2]), days, chunks={"time": chunk}, spec_version=spec_version
    )
    assert values(place, "time").tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.needs_reference
def test_eight_writers_at_once_make_what_xarray_reads_in_order(tmp_path):
    place = str(tmp_path / "days")
    created(place, grid(range(2), [1, 2]), chunks={"time": 3})

    def append(day):
        return write_table(place, grid([day], [1, 2]), APPEND)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(append, range(2, 10)))
    assert len({result.snapshot_id for result in done}) == 8
    found = open_with_xarray(place)
    assert found.sizes["time"] == 10
    assert found["t"].sel(x=1).values.tolist() == [1 + 100 * day for day in found["time"].values]


def open_with_xarray(place):
    import icechunk
    import xarray

    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(place))
    return xarray.open_zarr(repository.readonly_session("main").store, consolidated=False)


def test_chunks_that_move_by_whole_chunks_are_not_stored_again():
    place = new_place()
    created(place, grid(range(4), [1, 2]), chunks={"time": 1, "x": 1})
    storage = open_storage(Location(place))
    first, second = (begun(place, grid([day], [1, 2]), APPEND) for day in (4, 5))
    first()
    before = {found.key for found in storage.list("chunks/")}
    result = second()
    assert {found.key for found in storage.list("chunks/")} == before
    assert result.chunks == 2
    assert result.commit.rebased == 1
    assert values(place)[:, 0].tolist() == [1, 101, 201, 301, 401, 501]


def test_days_and_places_appended_at_the_same_time_make_one_grid():
    longer, wider = grid([4, 5], [1, 2]), grid(range(4), [3, 4], offset=0.5)
    place = assert_as_one_after_another(
        grid(range(4), [1, 2]), [longer, wider], chunks={"time": 3, "x": 3}
    )
    assert values(place).shape == (6, 4)
    assert np.isnan(values(place)[4:, 2:]).all()


def test_labels_that_both_add_are_one_label():
    first = grid([4, 5], [1, 2])
    u = grid([5, 6], [1, 2]).rename_columns(["time", "x", "u"])
    place = assert_as_one_after_another(grid(range(4), [1, 2]), [first, u], chunks={"time": 4})
    assert values(place, "time").tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert values(place, "u")[5:, 0].tolist() == [501, 601]
    assert np.isnan(values(place, "t")[6]).all()


def test_variables_added_beside_days_reach_as_far_as_the_days():
    u = grid(range(4), [1, 2]).rename_columns(["time", "x", "u"])
    day = grid([4], [1, 2])
    for tables in ([u, day], [day, u]):
        place = assert_as_one_after_another(grid(range(4), [1, 2]), tables, chunks={"time": 2})
        assert values(place, "u").shape == values(place, "t").shape == (5, 2)


def test_two_variables_added_at_the_same_time_are_both_there():
    u, v = (grid(range(4), [1, 2]).rename_columns(["time", "x", name]) for name in "uv")
    assert_as_one_after_another(grid(range(4), [1, 2]), [u, v])


def test_a_variable_of_a_new_group_meets_another_one():
    together, apart = new_place(), new_place()
    u, v = (grid(range(3), [1, 2]).rename_columns(["time", "x", name]) for name in "uv")
    options = WriteOptions(mode="append", dims=("time", "x"), group="/new/group", merge_schema=True)
    for place in (together, apart):
        write_table(place, u, WriteOptions(dims=("time", "x"), group="/other"))
    for finish in [begun(together, table, options) for table in (u, v)]:
        finish()
    for table in (u, v):
        write_table(apart, table, options)
    for place in (together, apart):
        repository = Repository.open(place)
        snapshot = repository.snapshot(repository.resolve(branch="main"))
        assert {"/new/group/u", "/new/group/v"} <= {str(node.path) for node in snapshot.nodes}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_days_appended_to_a_place_without_a_repository_make_one(place, spec_version):
    options = WriteOptions(mode="append", dims=("time", "x"), spec_version=spec_version)
    for finish in [begun(place, grid([day], [1, 2]), options) for day in range(3)]:
        finish()
    assert values(place)[:, 0].tolist() == [1, 101, 201]


def test_a_create_that_comes_second_is_refused(place):
    options = WriteOptions(dims=("time", "x"))
    finish = begun(place, grid([0], [1, 2]), options)
    write_table(place, grid([1], [1, 2]), options)
    with raises(
        AlreadyExistsError,
        match="mode is errorifexists",
        kind="arrays",
        group="/",
        arrays=("t", "time", "x"),
    ):
        finish()
    ignored = begun(new_place(), grid([0], [1, 2]), options)
    ignored()
    assert values(place, "time").tolist() == [1]


def test_cells_that_both_write_are_a_conflict_that_names_them(place):
    created(place, grid(range(4), [1, 2]), chunks={"time": 3})
    first, second = (begun(place, grid([3, 4, 5], [1, 2], offset=n), APPEND) for n in (1, 2))
    landed = first()
    tip = Repository.open(place).resolve(branch="main")
    with pytest.raises(ConflictError) as caught:
        second()
    message = str(caught.value)
    assert "t: 6 cells at time=3, 4, 5, x=1.0, 2.0" in message
    assert str(landed.snapshot_id) in message
    assert "run the job again" in message.splitlines()[-1]
    assert "session" not in message
    assert caught.value.facts["variables"] == ("t",)
    assert Repository.open(place).resolve(branch="main") == tip
    write_table(place, grid([3, 4, 5], [1, 2], offset=2), APPEND)
    assert values(place)[3:, 0].tolist() == [303, 403, 503]


@pytest.mark.parametrize(("resolve", "expected"), [("ours", 302), ("theirs", 301.5)])
def test_resolve_decides_about_single_cells(place, resolve, expected):
    created(place, grid(range(4), [1, 2]), chunks={"time": 4})
    options = WriteOptions(mode="append", dims=("time", "x"), resolve=resolve)
    second = begun(place, grid([3, 4], [1, 2], offset=1), options)
    write_table(place, grid([2, 3], [1, 2], offset=0.5), APPEND)
    second()
    assert values(place)[:, 0].tolist() == [1, 101, 201.5, expected, 402]


def test_resolve_theirs_keeps_the_cells_that_others_changed_and_no_more(place):
    created(place, grid([1], [1]), chunks={"time": 4, "x": 4})
    options = WriteOptions(mode="append", dims=("time", "x"), resolve="theirs", min_density=0)
    ours = begun(place, grid([8], [1], offset=0.5), options)
    diagonal = grid([1, 8], [1, 2], offset=0.25).take([0, 3])
    write_table(place, diagonal, WriteOptions(mode="append", dims=("time", "x"), min_density=0))
    ours()
    np.testing.assert_array_equal(values(place), [[101.25, np.nan], [801.5, 802.25]])


def test_a_cell_that_others_wrote_with_its_earlier_value_counts_as_not_written(place):
    created(place, grid(range(2), [1, 2]))
    options = WriteOptions(mode="append", dims=("time", "x"), resolve="theirs")
    ours = begun(place, grid(range(2), [1, 2], offset=1), options)
    theirs = grid(range(2), [1, 2], offset=0.5).to_pydict()
    theirs["t"][2] = 101.0
    write_table(place, pa.table(theirs), APPEND)
    ours()
    assert values(place).tolist() == [[1.5, 2.5], [102, 102.5]]


def counts(times, xs, *, value):
    """Rows of a full grid of integers, which have no missing value."""
    table = grid(times, xs)
    return table.set_column(2, "n", pa.array([value] * table.num_rows, pa.int32()))


def test_a_cell_without_a_row_and_a_missing_value_is_refused_as_later(place):
    created(place, counts([0, 1], [1], value=1), chunks={"time": 4, "x": 4})
    longer = begun(place, counts([2], [1], value=2))
    write_table(place, counts([0, 1], [2], value=3), APPEND)
    with pytest.raises(InvalidInputError) as caught:
        longer()
    assert caught.value.facts == {"variable": "n", "cell": "time=2, x=2.0"}
    with pytest.raises(InvalidInputError):
        write_table(place, counts([2], [1], value=2), APPEND)
    assert values(place, "n").tolist() == [[1, 3], [1, 3]]


@pytest.mark.parametrize(("resolve", "expected"), [(None, None), ("ours", 7), ("theirs", 0)])
def test_a_zero_that_others_wrote_to_a_new_cell_is_a_value(place, resolve, expected):
    created(place, counts([0], [1], value=1), chunks={"time": 4})
    options = WriteOptions(mode="append", dims=("time", "x"), resolve=resolve)
    second = begun(place, counts([1], [1], value=7), options)
    write_table(place, counts([1], [1], value=0), APPEND)
    if resolve is None:
        with pytest.raises(ConflictError):
            second()
    else:
        second()
        assert values(place, "n").tolist() == [[1], [expected]]


def test_on_conflict_fail_refuses_what_would_go_in(place):
    created(place, grid(range(4), [1, 2]))
    options = WriteOptions(mode="append", dims=("time", "x"), on_conflict="fail")
    second = begun(place, grid([5], [1, 2]), options)
    write_table(place, grid([4], [1, 2]), APPEND)
    with raises(ConflictError, match=r"onConflict=fail .*Run the job again", branch="main"):
        second()
    assert values(place).shape == (5, 2)


def test_a_version_of_a_writer_that_landed_meanwhile_is_skipped(place):
    created(place, grid(range(4), [1, 2]))
    options = WriteOptions(mode="append", dims=("time", "x"), txn_app_id="stream", txn_version=7)
    finishes = [begun(place, grid([4], [1, 2]), options) for _ in range(2)]
    assert [finish().is_skipped for finish in finishes] == [False, True]


def test_arrays_that_were_replaced_meanwhile_are_a_conflict(place):
    created(place, grid(range(4), [1, 2]))
    append = begun(place, grid([4], [1, 2]), APPEND)
    replace_all = begun(
        place, grid([7], [1, 2]), WriteOptions(mode="overwrite", dims=("time", "x"))
    )
    write_table(place, grid([4], [1, 2]), APPEND)
    with raises(
        ConflictError,
        match=r"group /, which this write replaces, was changed since .* run the job again",
        branch="main",
    ):
        replace_all()
    write_table(place, grid([7], [1, 2]), WriteOptions(mode="overwrite", dims=("time", "x")))
    with raises(
        ConflictError,
        match=r"deleted or replaced .* run the job again",
        branch="main",
        variables=("t",),
    ):
        append()
    assert values(place, "time").tolist() == [7]


def test_rows_with_gaps_go_in_beside_others():
    full = grid(range(6), [1, 2, 3, 4])
    holes = [full.filter(pc.equal(pc.bit_wise_and(full["time"], 1), bit)) for bit in (0, 1)]
    sparse = [part.slice(0, part.num_rows - 1) for part in holes]
    place = assert_as_one_after_another(
        grid([-2, -1], [1, 2, 3]), sparse, chunks={"time": 3, "x": 2}
    )
    assert values(place, "time").tolist() == list(range(-2, 6))


@pytest.mark.parametrize("work", ["rewrite", "rewrite that finishes late", "expire and collect"])
def test_an_append_goes_in_beside_maintenance_and_an_append(place, work):
    created(place, grid(range(4), [1, 2]), chunks={"time": 1})
    write_table(place, grid([4], [1, 2]), APPEND)
    before = datetime.now(UTC)
    write_table(place, grid([5], [1, 2]), APPEND)
    append = begun(place, grid([6], [1, 2]), APPEND)
    plan = plan_rewrite(place)
    made = [run_rewrite(plan.context, task) for task in plan.tasks]
    if work == "rewrite":
        finish_rewrite(plan, made)
    write_table(place, grid([7], [1, 2]), APPEND)
    if work == "rewrite that finishes late":
        assert finish_rewrite(plan, made).commit is not None
    if work == "expire and collect":
        assert Repository.open(place).expire_snapshots(before).released_snapshots
        collect_garbage(place, before)
    append()
    assert values(place)[:, 0].tolist() == [1 + 100 * day for day in range(8)]


@pytest.mark.parametrize("branch", ["main", "new"])
@pytest.mark.parametrize("rival", [[5], [6]])
def test_an_append_goes_in_although_its_base_has_expired(place, rival, branch):
    created(place, grid(range(4), [1, 2]), chunks={"time": 1})
    write_table(place, grid([4], [1, 2]), APPEND)
    options = replace(APPEND, branch=branch, create_branch=branch != "main", resolve="ours")
    append = begun(place, grid([6], [1, 2]), options)
    write_table(place, grid(rival, [1, 2]), APPEND)
    assert Repository.open(place).expire_snapshots(datetime.now(UTC)).released_snapshots
    append()
    expected = [1 + 100 * time for time in sorted({*range(5), *rival, 6})]
    assert dataset_at(place, branch=branch).read("t")[:, 0].tolist() == expected


def chunk_rows(values_by_chunk):
    return pa.table(
        {
            "array": ["a"] * len(values_by_chunk),
            "chunk": pa.array([[at] for at in values_by_chunk], pa.list_(pa.int64())),
            "data": [np.array(v, "<f8").tobytes() for v in values_by_chunk.values()],
        }
    )


def test_chunks_appended_at_the_same_time_are_all_there(place):
    described = {"a": {"shape": [2], "chunks": [2], "dtype": "float64", "dims": ["t"]}}
    write_table(place, chunk_rows({0: [1, 2]}), WriteOptions(layout="chunks", encoding=described))

    def grown(size, **more):
        encoding = {"a": {"shape": [size]}}
        return WriteOptions(mode="append", layout="chunks", encoding=encoding, **more)

    last = begun(place, chunk_rows({2: [5, 6]}), grown(6))
    middle = begun(place, chunk_rows({1: [3, 4]}), grown(4))
    same = begun(place, chunk_rows({1: [7, 8]}), grown(4))
    mine = begun(place, chunk_rows({1: [9, 9]}), grown(4, resolve="ours"))
    theirs = begun(place, chunk_rows({1: [0, 0]}), grown(8, resolve="theirs"))
    last()
    middle()
    assert values(place, "a").tolist() == [1, 2, 3, 4, 5, 6]
    with raises(
        ConflictError, match=r"1 of the chunks of /a .* \[1\]", branch="main", variables=("a",)
    ):
        same()
    mine()
    assert values(place, "a").tolist() == [1, 2, 9, 9, 5, 6]
    theirs()
    assert values(place, "a").tolist() == [1, 2, 9, 9, 5, 6, 0, 0]


@st.composite
def jobs(draw):
    """Draw tables of random cells, no cell in two of them, and chunks."""
    times = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True)
    xs = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)
    first = (sorted(draw(times)), sorted(draw(xs)))
    taken: set[tuple[int, int, str]] = set()
    tables = []
    for number in range(draw(st.integers(2, 4))):
        name = draw(st.sampled_from(["t", "u"]))
        share = draw(st.sampled_from([1, 1, 2]))
        cells = [
            (time, x)
            for position, (time, x) in enumerate(itertools.product(draw(times), draw(xs)))
            if position % share == 0 and (time, x, name) not in taken
        ]
        taken.update((time, x, name) for time, x in cells)
        if cells:
            tables.append(
                pa.table(
                    {
                        "time": pa.array([time for time, _ in cells], pa.int64()),
                        "x": pa.array([float(x) for _, x in cells]),
                        name: pa.array([1000.0 * (number + 1) + n for n in range(len(cells))]),
                    }
                )
            )
    chunks = {"time": draw(st.integers(1, 4)), "x": draw(st.integers(1, 4))}
    return first, tables, chunks


def test_a_chunk_that_the_base_did_not_have_moves_with_its_label():
    def table(times, xs, values):
        return pa.table({"time": times, "x": pa.array(xs, pa.float64()), "t": values})

    place = new_place()
    created(place, grid([0], [1]), chunks={"time": 1, "x": 1})
    options = WriteOptions(mode="append", dims=("time", "x"), min_density=0)
    write_table(place, table([0, 4], [0, 0], [1000.0, 1001.0]), options)
    insert = begun(place, table([1], [0], [2000.0]), options)
    write_table(place, table([4], [1], [3000.0]), options)
    insert()
    found = in_order(place)
    assert found["time"].tolist() == [0, 1, 4]
    expected = [[1000, 1], [2000, np.nan], [1001, 3000]]
    np.testing.assert_array_equal(found["t"], expected)


@settings(max_examples=by_day(12), deadline=None)
@given(jobs(), st.randoms(use_true_random=False))
def test_random_writes_of_different_cells_are_as_one_after_another(drawn, random):
    first, tables, chunks = drawn
    options = WriteOptions(mode="append", dims=("time", "x"), min_density=0, merge_schema=True)
    together, apart = new_place(), new_place()
    for place in (together, apart):
        created(place, grid(*first), chunks=chunks)
    under_way = []
    for table in tables:
        under_way.append(begun(together, table, options))
        if random.random() < 0.3:
            under_way.pop(random.randrange(len(under_way)))()
    random.shuffle(under_way)
    for finish in under_way:
        finish()
    for table in tables:
        write_table(apart, table, options)
    assert_equal_contents(together, apart)
