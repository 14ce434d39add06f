"""Copies of a small repository follow it, cell by cell, and rewrite no more than they must."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from helpers.mirroring.grid import DIMS, Grid
from helpers.raised import raises

from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.mirroring import DeltaTarget, find_files, freshness
from icechunk_format.workflows.rechunking import RechunkRequest, one_process, rechunk_arrays
from icechunk_format.workflows.running import in_process
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata

# Two chunks of four: files of two chunks.
ROWS = 16


def counts(result):
    return result.files_added, result.files_removed, result.rows


def test_a_first_run_copies_and_a_second_does_nothing(grid):
    done = grid.mirror(rowsPerPartition=ROWS)
    assert done.full_copy == "there was no copy yet"
    assert counts(done) == (3, 0, 48)
    grid.assert_copied()
    again = grid.mirror()
    assert counts(again) == (0, 0, 0)
    assert (again.version, again.snapshot_id) == (done.version, grid.first)


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(grid):
    rows = 0
    for step in range(3):
        before = tree(grid.target)
        files = [one for one in Path(str(grid.target)).rglob("*.parquet") if one.is_file()]
        planned = grid.mirror(rowsPerPartition=ROWS, dry_run=True)
        assert planned.dry_run
        assert tree(grid.target) == before
        if step == 1:  # no file was removed yet
            in_table = sum(one.stat().st_size for one in files)
            assert planned.bytes == round(planned.rows * in_table / rows)
        done = grid.mirror(rowsPerPartition=ROWS)
        assert counts(planned) == counts(done)
        assert (planned.version, planned.snapshot_id) == (done.version, done.snapshot_id)
        assert planned.full_copy == done.full_copy
        assert planned.bytes_removed == done.bytes_removed
        assert planned.bytes > 0
        rows = done.rows
        grid.append(1 + step)


def tree(folder):
    found = Path(str(folder)).rglob("*")
    return {str(one): one.stat().st_mtime_ns for one in found if one.is_file()}


def test_an_append_rewrites_nothing(grid):
    grid.mirror(rowsPerPartition=ROWS)
    grid.append(2)
    done = grid.mirror()
    assert counts(done) == (1, 0, 16)
    assert done.full_copy is None
    grid.assert_copied()
    # Time 8 begins a chunk, and time 9 is written into it: its file is written anew.
    grid.append(1)
    assert counts(grid.mirror()) == (1, 0, 8)
    grid.append(1)
    assert counts(grid.mirror()) == (1, 1, 16)
    grid.assert_copied()


def test_files_grow_with_the_array_where_a_file_holds_several_chunks(tmp_path):
    grid = Grid(tmp_path, shape=(2, 8))
    grid.mirror(rowsPerPartition=64)
    for _ in range(5):
        grid.append(2)
        assert counts(grid.mirror()) == (1, 0, 16)
    grid.append(40)
    done = grid.mirror()
    assert done.rows == 320
    # Files of eight times, of which the group of times 8 to 16 had six already.
    assert done.files_added == 6
    grid.assert_copied()


def test_a_changed_chunk_rewrites_its_file_alone(grid):
    grid.mirror(rowsPerPartition=ROWS)
    grid.change("wind", (1, 1))
    assert counts(grid.mirror()) == (1, 1, 16)
    grid.assert_copied()


def test_several_snapshots_become_one_version_or_one_each(grid):
    first = grid.mirror(rowsPerPartition=ROWS)
    grid.change("wind", (1, 1))
    grid.append(2)
    assert grid.mirror().version == first.version + 1
    ids = [grid.change("t2m", (0, 0)), grid.append(2), grid.change("t2m", (0, 1))]
    done = grid.mirror(every_snapshot=True)
    assert done.version == first.version + 4
    assert counts(done) == (3, 2, 48)
    grid.assert_copied()
    target = DeltaTarget.of(grid.target)
    versions = [find_files(target, snapshot=snapshot).version for snapshot in ids]
    assert versions == [2, 3, 4]
    assert grid.copied(2).num_rows == 64


def test_a_snapshot_that_lacks_a_variable_gets_no_version_of_its_own(grid):
    first = grid.mirror(variables=("t2m", "wind"))
    session = grid.repository.writable_session()
    session.delete("/wind")
    lacking = str(session.commit("without wind").snapshot_id)
    with pytest.raises(NotFoundError):
        grid.mirror(every_snapshot=True)
    with grid.edited("another wind") as session:
        grid.add(session, "wind")
    grid.change("t2m", (0, 0))
    with pytest.warns(UserWarning, match=lacking):
        done = grid.mirror(every_snapshot=True)
    assert done.version == first.version + 2
    grid.assert_copied()
    with pytest.raises(NotFoundError):
        find_files(DeltaTarget.of(grid.target), snapshot=lacking)


@pytest.mark.parametrize("names", [("level",), ("t2m", "level")])
def test_a_scalar_variable_is_copied_and_changes(grid, names):
    with grid.edited("a scalar") as session:
        document = build_array_metadata(
            shape=(),
            data_type=parse_data_type("int8", node_path="/level"),
            chunk_shape=(),
            fill_value=0,
            codecs=[{"name": "bytes"}],
            dimension_names=(),
            node_path="/level",
        )
        session.create_array("/level", document.to_bytes(), shape=(), num_chunks=())
    chosen = {"variables": names[:1], "coords": names[1:], "rowsPerPartition": ROWS}
    grid.mirror(**chosen)
    for value in (5, 6):
        with grid.edited("written") as session:
            session.set_chunk("/level", (), bytes([value]))
        done = grid.mirror()
        assert done.full_copy is None
        table = DeltaTarget.of(grid.target).open()
        assert set(table.to_pyarrow_table()["level"].to_pylist()) == {value}


def test_deleted_labels_rewrite_the_files_from_the_first_of_them_on(grid):
    grid.mirror(rowsPerPartition=ROWS)
    read = ReadRequest(path=grid.place, isel={"time": [3]})
    request = DeleteRequest(read=read, options=WriteOptions(mode="append"))
    delete_selected(request, in_process)
    for name in ("time", "t2m", "wind"):
        grid.values[name] = np.delete(grid.values[name], 3, 0)
    done = grid.mirror()
    assert done.full_copy is None
    # The first file, with times 0 and 1, stays.
    assert counts(done) == (2, 2, 24)
    grid.assert_copied()


def insert(grid, dim, labels):
    """Write rows with new labels of a dimension, which the commit puts in order."""
    values = {name: grid.values[name] for name in DIMS} | {dim: np.array(labels)}
    time, y = (one.reshape(-1) for one in np.meshgrid(values["time"], values["y"], indexing="ij"))
    hours = time.astype("timedelta64[h]") + np.datetime64("2024-01-01")
    cells = np.random.default_rng(5).random((2, len(time)), dtype="f4")
    columns = dict(zip(("t2m", "wind"), cells, strict=True))
    rows = pa.table({"time": hours.astype("datetime64[us]"), "y": y, **columns})
    write_table(grid.place, rows, WriteOptions(mode="append"))
    axis = DIMS.index(dim)
    joined = np.append(grid.values[dim], labels)
    order = np.argsort(joined)
    shape = tuple(len(values[name]) for name in DIMS)
    for name, new in columns.items():
        both = np.append(grid.values[name], new.reshape(shape), axis)
        grid.values[name] = both.take(order, axis)
    grid.values[dim] = joined[order]


@pytest.mark.parametrize(
    ("dim", "labels", "expected"),
    [
        # The file of times 0 to 3 stays; the last file, and one that did not exist, have the rest.
        pytest.param("time", [5, 6], (2, 1, 32), id="whole chunks in the middle"),
        pytest.param("time", [5], (2, 1, 24), id="a part of a chunk in the middle"),
        pytest.param("time", [4, 9], (2, 1, 32), id="in the middle and at the end"),
        pytest.param("time", [9, 10], (1, 0, 16), id="at the end"),
        pytest.param("time", [-1], (4, 3, 56), id="at the beginning"),
        # Each file has all positions of y.
        pytest.param("y", [45], (6, 3, 54), id="along a dimension that is not cut"),
    ],
)
def test_inserted_labels_rewrite_the_files_from_the_first_of_them_on(grid, dim, labels, expected):
    with grid.edited("a gap") as session:
        grid.values["time"][4:] = 7, 8
        grid.store(session, "time")
    grid.mirror(rowsPerPartition=ROWS)
    insert(grid, dim, labels)
    done = grid.mirror()
    assert done.full_copy is None
    assert counts(done) == expected
    grid.assert_copied()


def test_a_smaller_array_loses_its_rows_and_gets_others_back(grid):
    grid.mirror(rowsPerPartition=ROWS)
    with grid.edited("smaller") as session:
        grid.resize(session, 3)
    assert counts(grid.mirror()) == (1, 2, 8)
    grid.assert_copied()
    # Smaller and larger again between two runs: the cells in between are lost.
    with grid.edited("smaller still") as session:
        grid.resize(session, 1)
    grid.append(5)
    grid.mirror()
    grid.assert_copied()


def test_changed_labels_rewrite_what_they_touch(grid):
    grid.mirror(rowsPerPartition=ROWS)
    with grid.edited("another label") as session:
        grid.values["time"][3] = 300
        grid.store(session, "time")
    assert counts(grid.mirror()) == (1, 1, 16)
    grid.assert_copied()


def test_a_label_that_enters_the_selection_rewrites_its_file(grid):
    assert grid.mirror(rowsPerPartition=ROWS, where="time != '2024-01-01 03:00:00'").rows == 40
    with grid.edited("another label") as session:
        grid.values["time"][3] = 300
        grid.store(session, "time")
    assert counts(grid.mirror()) == (1, 1, 16)
    grid.assert_copied()


def test_shifted_and_deleted_chunks(grid):
    grid.mirror(rowsPerPartition=ROWS)
    with grid.edited("shift") as session:
        session.shift("/wind", (1, 0))
        session.delete_chunks("/t2m", [(2, 0)])
    grid.values["wind"] = np.concatenate([np.zeros((2, 8), "f4"), grid.values["wind"][:4]])
    grid.values["t2m"][4:, :4] = 0
    grid.mirror()
    grid.assert_copied()


def test_attributes_alone_rewrite_nothing(grid):
    grid.mirror()
    with grid.edited("describe") as session:
        session.update_metadata("/t2m", grid.document("t2m", long_name="air temperature"))
    done = grid.mirror()
    assert counts(done) == (0, 0, 0)
    record = find_files(DeltaTarget.of(grid.target)).record
    assert record.snapshot_id == done.snapshot_id
    assert record.columns["t2m"]["attributes"]["long_name"] == "air temperature"


def test_other_encodings_copy_all_anew(grid):
    grid.mirror(rowsPerPartition=ROWS)
    with grid.edited("scale") as session:
        session.update_metadata("/t2m", grid.document("t2m", scale_factor=2.0))
    done = grid.mirror()
    assert "t2m" in done.full_copy
    assert done.rows == 48
    expected = (grid.values["t2m"].astype("f8") * 2).reshape(-1)
    np.testing.assert_allclose(grid.copied().column("t2m").to_numpy(), expected, rtol=1e-6)
    # The older version keeps its schema and its values.
    assert (
        grid.copied(0).column("t2m").to_numpy().tolist() == grid.values["t2m"].reshape(-1).tolist()
    )


def test_new_deleted_and_renamed_variables_change_the_schema(grid):
    grid.mirror()
    with grid.edited("rain") as session:
        grid.add(session, "rain")
    assert "columns were" in grid.mirror().full_copy
    grid.assert_copied("rain", "t2m", "wind")
    with grid.edited("delete") as session:
        session.delete("/rain")
    with grid.edited("rename") as session:
        session.move("/wind", "/gust")
    grid.mirror()
    del grid.values["rain"]
    grid.values["gust"] = grid.values.pop("wind")
    grid.assert_copied("gust", "t2m")
    assert grid.copied(0).column_names == ["time", "y", "t2m", "wind"]
    # A new array of that name is another one, whatever chunks its log lists.
    with grid.edited("another gust") as session:
        session.delete("/gust")
        grid.add(session, "gust")
    assert grid.mirror().full_copy is not None
    grid.assert_copied("gust", "t2m")


def test_a_named_variable_that_goes_is_refused_and_nothing_changes(grid):
    before = grid.mirror(variables=["wind"])
    grid.assert_copied("wind")
    with grid.edited("delete") as session:
        session.delete("/wind")
    with raises(NotFoundError, kind="variable", name="wind"):
        grid.mirror()
    assert DeltaTable(grid.target).version() == before.version


def test_other_variables_cost_nothing(grid):
    grid.mirror(variables=["wind"], rowsPerPartition=ROWS)
    grid.change("t2m", (0, 0))
    assert counts(grid.mirror()) == (0, 0, 0)
    grid.assert_copied("wind")


@pytest.mark.parametrize(
    ("option", "later", "words"),
    [
        ({"variables": ["wind"]}, {"variables": ["t2m"]}, "variables=wind.*variables=t2m"),
        ({}, {"isel": "time=0:2"}, "no isel.*isel='time=0:2'"),
        ({"missingChunks": "skip"}, {"missingChunks": "fill"}, "'skip'.*'fill'"),
    ],
)
def test_other_selections_are_refused_with_both(grid, option, later, words):
    grid.mirror(**option)
    with pytest.raises(InvalidInputError, match=words):
        grid.mirror(**later)
    assert grid.mirror(**later, full=True).full_copy == "full=True was given"
    assert grid.mirror(**later).rows == 0


def test_selections_follow_the_array(grid):
    grid.mirror(isel="time=-2:", rowsPerPartition=ROWS)
    assert grid.copied().equals(grid.rows().slice(32, 16))
    grid.append(1)
    grid.mirror()
    assert grid.copied().equals(grid.rows().slice(40, 16))
    grid.append(2)
    grid.mirror()
    assert grid.copied().equals(grid.rows().slice(56, 16))


def test_conditions_on_values(grid):
    grid.mirror(where="t2m > 0.5 and y < 60", rowsPerPartition=ROWS)

    def expected():
        rows = grid.rows()
        keep = (rows.column("t2m").to_numpy() > 0.5) & (rows.column("y").to_numpy() < 60)
        return rows.filter(pa.array(keep))

    assert grid.copied().equals(expected())
    with grid.edited("no row left there") as session:
        grid.values["t2m"][2:4] = 0.0
        grid.store(session, "t2m", [(1, 0), (1, 1)])
    assert counts(grid.mirror())[:2] == (1, 1)
    assert grid.copied().equals(expected())
    grid.change("wind", (0, 0))
    # The empty file stands for its cells, so they are not read again.
    assert counts(grid.mirror())[:2] == (1, 1)
    assert grid.copied().equals(expected())


def test_missing_chunks_are_left_out_where_asked(grid):
    with grid.edited("delete") as session:
        for name in ("t2m", "wind"):
            session.delete_chunks(f"/{name}", [(1, 0), (1, 1), (2, 0)])
            grid.values[name][2:4] = 0
            grid.values[name][4:, :4] = 0
    grid.mirror(missingChunks="skip", rowsPerPartition=ROWS)
    rows = grid.rows()
    stored = rows.filter(pa.array(rows.column("t2m").to_numpy() != 0))
    assert stored.num_rows == 24
    assert grid.copied().equals(stored)
    grid.change("wind", (1, 1))
    grid.mirror()
    assert grid.copied().num_rows == 32


def test_another_repository_or_branch_is_refused(grid, tmp_path):
    grid.mirror()
    grid.repository.create_branch("dev", grid.first)
    with raises(InvalidInputError, remembered="main", given="dev"):
        grid.mirror(branch="dev")
    (tmp_path / "other").mkdir()
    other = Grid(tmp_path / "other")
    other.target = grid.target
    with raises(InvalidInputError, remembered=grid.place, given=other.place):
        other.mirror()


@pytest.mark.parametrize("below", ["", "/copy"])
def test_a_target_in_the_repository_is_refused(grid, below):
    grid.target = grid.place + below
    with pytest.raises(InvalidInputError, match="choose a folder outside of it"):
        grid.mirror()


def test_what_is_no_copy_is_left_alone(grid, tmp_path):
    write_deltalake(grid.target, pa.table({"a": [1]}))
    with pytest.raises(AlreadyExistsError, match="another program wrote"):
        grid.mirror()
    with pytest.raises(AlreadyExistsError, match="another program wrote"):
        grid.mirror(full=True)
    grid.target = str(tmp_path / "file")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(AlreadyExistsError, match="is a file"):
        grid.mirror()
    grid.target = str(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("all of it")
    with raises(AlreadyExistsError, found="thesis.txt"):
        grid.mirror()


def test_rows_that_another_program_wrote_are_refused(grid):
    grid.mirror(rowsPerPartition=ROWS)
    rows = grid.copied().slice(0, 1)
    write_deltalake(grid.target, rows, mode="append")
    with raises(ConflictError, match=r"another program changed .* \(WRITE\)", operation="WRITE"):
        grid.mirror()
    # Reading takes the version that is a whole snapshot.
    assert find_files(DeltaTarget.of(grid.target)).version == 0
    assert grid.mirror(full=True).rows == 48
    grid.assert_copied()


def test_a_branch_that_was_reset_is_refused_with_the_way_out(grid):
    grid.append(2)
    grid.mirror()
    grid.repository.reset_branch("main", grid.first)
    with raises(ConflictError, mirrored=...):
        grid.mirror()
    assert freshness(DeltaTarget.of(grid.target)).snapshots_behind is None
    grid.mirror(full=True)
    assert grid.copied().num_rows == 48


def test_an_expired_source_gives_a_full_copy_that_says_so(grid):
    grid.append(2)
    grid.mirror()
    expired = find_files(DeltaTarget.of(grid.target)).record.snapshot_id
    grid.append(2)
    grid.append(2)
    cutoff = grid.repository.snapshot_info(grid.repository.resolve()).flushed_at
    grid.repository.expire_snapshots(datetime.fromtimestamp(cutoff / 1e6, UTC))
    done = grid.mirror()
    assert done.full_copy == f"snapshot {expired}, which the copy holds, expired"
    assert done.rows == 96
    grid.assert_copied()


def test_an_array_that_changed_in_a_snapshot_that_expired_is_copied_anew(grid):
    grid.mirror()
    grid.repository.create_tag("copied", grid.repository.resolve())
    grid.append(2)
    expired = grid.repository.resolve()
    grid.append(2)
    cutoff = grid.repository.snapshot_info(grid.repository.resolve()).flushed_at
    grid.repository.expire_snapshots(datetime.fromtimestamp(cutoff / 1e6, UTC))
    grid.repository.storage.delete_many([f"snapshots/{expired}"])
    metadata_cache().clear()
    assert "expired" in grid.mirror().full_copy
    grid.assert_copied()


def test_freshness_and_versions(grid):
    target = DeltaTarget.of(grid.target)
    with pytest.raises(NotFoundError, match="there is no copy at"):
        freshness(target)
    grid.mirror()
    assert freshness(target).is_fresh
    tip = grid.append(2)
    grid.repository.create_tag("v2", grid.append(2))
    found = freshness(target)
    assert (found.snapshots_behind, found.snapshot_id) == (2, grid.first)
    with raises(
        NotFoundError, match=f"snapshot {tip} is not in the copy.*{grid.first}", kind="snapshot"
    ):
        find_files(target, snapshot=tip)
    grid.mirror()
    assert find_files(target, tag="v2").version == 1
    assert find_files(target, snapshot=grid.first).version == 0
    assert find_files(target, as_of=datetime.now(UTC)).version == 1
    with raises(NotFoundError, kind="snapshot", existing=...):
        find_files(target, as_of=datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidInputError, match="exclude one another"):
        find_files(target, tag="v2", snapshot=tip)


def test_versions_that_a_vacuum_emptied_are_refused(grid):
    grid.mirror(rowsPerPartition=ROWS)
    grid.change("wind", (1, 1))
    grid.mirror()
    target = DeltaTarget.of(grid.target)
    assert find_files(target, snapshot=grid.first).version == 0
    orphan = grid.target + "/cells-0_2-0_8-0123456789abcdef.parquet"
    with open(orphan, "wb") as file:
        file.write(b"killed")
    gone = DeltaTable(grid.target).vacuum(
        0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert len(gone) == 2
    grid.assert_copied()
    with raises(NotFoundError, match="lost 1 of its 3 files to a vacuum", kind="snapshot"):
        find_files(target, snapshot=grid.first)
    grid.change("wind", (0, 0))
    assert counts(grid.mirror()) == (1, 1, 16)
    grid.assert_copied()


def test_columns_that_delta_does_not_have(grid):
    with grid.edited("a blank") as session:
        grid.add(session, "air temperature")
    with raises(
        UnsupportedError,
        match="'air temperature' cannot be in a Delta table",
        column="air temperature",
    ):
        grid.mirror()
    assert DeltaTarget.of(grid.target).open() is None


def test_a_replaced_array_of_the_same_labels_rewrites_nothing(grid):
    grid.mirror(rowsPerPartition=ROWS)
    work = RechunkRequest(
        read=ReadRequest(path=grid.place, variables=("time",)),
        target=Location(grid.place),
        options=WriteOptions(mode="append"),
        chunks={"time": 1},
        shards=None,
        encoding={},
        memory=2**20,
    )
    assert rechunk_arrays(work, one_process, cores=None, dry_run=False).commit is not None
    assert counts(grid.mirror()) == (0, 0, 0)
    grid.assert_copied()
