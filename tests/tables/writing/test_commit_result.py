"""A write reports its counts, the message of its commit and the order of labels."""

import time
from datetime import timedelta

from helpers.grids.written_cells import APPEND, DIMS, grid, rows_of, values
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table


def newest_message(place):
    return next(iter(Repository.open(place).ancestry(branch="main"))).message


def objects(place, folder):
    return sum(1 for _ in Repository.open(place).storage.list(f"{folder}/"))


def test_counts_are_those_of_the_objects(place):
    rows = grid(range(300), range(50))
    options = WriteOptions(
        dims=("time", "x"), chunks={"time": 100}, encoding={"t": {"compressors": None}}
    )
    result = write_table(place, rows, options)
    files = result.commit.files_written
    assert result.chunks == 3
    assert files["chunks"] == objects(place, "chunks") == 3  # labels are inline
    assert files["manifests"] == objects(place, "manifests")
    assert result.commit.bytes_written["chunks"] >= 300 * 50 * 8


def test_messages_say_what_was_written(place):
    write_table(place, grid(range(3), [1, 2]), DIMS)
    assert newest_message(place) == "Create t (time=3, x=2): 6 rows"
    write_table(place, grid(range(3, 5), [1, 2]), APPEND)
    assert newest_message(place) == "Append 4 rows to t (time 3 to 5)"
    write_table(place, grid([0], [1]), APPEND)
    assert newest_message(place) == "Write 1 row to t"
    write_table(place, grid([0], [1]), WriteOptions(mode="overwrite", dims=("time", "x")))
    assert newest_message(place) == "Overwrite t (time=1, x=1): 1 row"
    sea = WriteOptions(dims=("time", "x"), group="/sea")
    write_table(place, grid(range(1200), [1]), sea)
    assert newest_message(place) == "Create t in /sea (time=1200, x=1): 1,200 rows"


def test_an_axis_may_descend(place):
    options = WriteOptions(dims=("time", "x"), order={"x": "descending"})
    write_table(place, grid([0], [-90, 0, 90]), options)
    assert values(place, "x").tolist() == [90, 0, -90]
    assert values(place).tolist() == [[90, 0, -90]]
    write_table(place, rows_of(place), WriteOptions(mode="overwrite"))
    assert values(place, "x").tolist() == [90, 0, -90]
    write_table(place, grid([0], [-99, -95]), APPEND)
    assert values(place, "x").tolist() == [90, 0, -90, -95, -99]


def test_the_order_of_an_axis_that_is_there_is_kept(place):
    write_table(place, grid([0], [1, 2]), DIMS)
    options = WriteOptions(mode="append", dims=("time", "x"), order={"x": "descending"})
    with raises(InvalidInputError, dim="x", found="ascending"):
        write_table(place, grid([0], [3]), options)
    options = WriteOptions(mode="append", order={"time": "descending"})
    write_table(place, grid([2, 1], [1]), options)
    assert values(place, "time").tolist() == [2, 1, 0]


def test_orders_are_checked(place):
    with raises(InvalidInputError, option="order", name="xx"):
        write_table(
            place, grid([0], [1]), WriteOptions(dims=("time", "x"), order={"xx": "ascending"})
        )


def versioned(version, app_id="daily"):
    return WriteOptions(mode="append", dims=("time", "x"), txn_app_id=app_id, txn_version=version)


def test_exactly_the_committed_versions_are_skipped(place, caplog):
    written = []
    for version in (1, 3, 2, 3, 1, 2, 5, 4, 5):
        with caplog.at_level("WARNING", "icechunk_format"):
            result = write_table(place, grid([version], [1]), versioned(version))
        if not result.is_skipped:
            written.append(version)
            assert not caplog.records
            continue
        assert f"'daily' has already committed txnVersion {version}" in result.reason
        assert result.reason in caplog.text
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        caplog.clear()
    assert written == [1, 3, 2, 5, 4]
    assert write_table(place, grid([9], [1]), versioned(3, "other")).commit


def test_an_older_version_is_refused_once_snapshots_have_expired(place):
    for version in (1, 3, 5):
        write_table(place, grid([version], [1]), versioned(version))
    time.sleep(0.01)
    Repository.open(place).expire_snapshots(timedelta(0))
    with raises(InvalidInputError, option="txnVersion"):
        write_table(place, grid([2], [1]), versioned(2))
    assert write_table(place, grid([5], [1]), versioned(5)).is_skipped
    assert write_table(place, grid([6], [1]), versioned(6)).commit
