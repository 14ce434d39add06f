"""A run that is killed, fails or meets another one leaves the copy at a whole snapshot."""

import threading

import pytest
from deltalake import DeltaTable
from helpers.raised import raises

from icechunk_format.errors import ConflictError, StorageError
from icechunk_format.repository.state import races
from icechunk_format.workflows.mirroring import DeltaTarget
from icechunk_format.workflows.mirroring import mirror as mirror_module
from icechunk_format.workflows.running import in_process

# Two chunks of four: files of two chunks.
ROWS = 16


class Killed(BaseException):
    """What a killed process would do: nothing more."""


def stops(monkeypatch, module, name, *, after):
    """Let a function end the run, before or after it did its work."""
    real = getattr(module, name)

    def stop(*arguments, **keywords):
        if after:
            real(*arguments, **keywords)
        raise Killed

    monkeypatch.setattr(module, name, stop)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["read_state", "plan_mirror", "commit"])
def test_a_run_that_is_killed_leaves_a_whole_snapshot(grid, monkeypatch, name, after, first):
    if not first:
        grid.mirror(rowsPerPartition=ROWS)
        grid.change("wind", (1, 1))
        grid.append(2)
    before = None if first else grid.copied()
    with monkeypatch.context() as patch:
        stops(patch, mirror_module, name, after=after)
        with pytest.raises(Killed):
            grid.mirror()
    if name == "commit" and after:
        grid.assert_copied()
    elif first:
        assert DeltaTarget.of(grid.target).open() is None
    else:
        assert grid.copied().equals(before)
    done = grid.mirror()
    assert (done.rows == 0) is (name == "commit" and after)
    grid.assert_copied()


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_run_that_is_killed_while_it_writes_files(grid, files):
    def run(function, tasks):
        list(in_process(function, tasks[:files]))
        raise Killed

    with pytest.raises(Killed):
        grid.mirror(run, rowsPerPartition=ROWS)
    assert DeltaTarget.of(grid.target).open() is None
    assert grid.mirror(rowsPerPartition=ROWS).rows == 48
    grid.assert_copied()


def test_a_full_disk_says_so_and_leaves_no_file(grid, monkeypatch, tmp_path):
    from icechunk_format.workflows.mirroring import parquet

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    grid.mirror(rowsPerPartition=ROWS)
    grid.append(2)
    before = sorted(path.name for path in (tmp_path / "copy").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(parquet.pq.ParquetWriter, "write_table", full)
        with pytest.raises(StorageError, match="disk is full"):
            grid.mirror()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == before
    assert grid.mirror().rows == 16


def test_of_two_at_once_one_wins_and_the_other_finds_its_work_done(grid):
    both = threading.Barrier(2)

    def run(function, tasks):
        written = list(in_process(function, tasks))
        both.wait(30)
        return written

    for work in ("first", "refresh"):
        results = []

        def copy(results=results):
            results.append(grid.mirror(run, rowsPerPartition=ROWS))

        threads = [threading.Thread(target=copy) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(bool(result.rows) for result in results) == [False, True], work
        assert len({result.version for result in results}) == 1
        grid.assert_copied()
        # The loser took its files away.
        files = DeltaTable(grid.target).file_uris()
        gone = 0 if work == "first" else 1
        assert len(list_parquet(grid.target)) == len(files) + gone
        grid.change("wind", (0, 0))


def test_a_run_that_always_comes_second_gives_up(grid, monkeypatch):
    monkeypatch.setattr(mirror_module, "finish_mirror", lambda *_: None)
    monkeypatch.setattr(races, "MOST_LOST_RACES", 2)
    with raises(ConflictError, match="the Delta table of .* mirror again later", attempts=3):
        grid.mirror()


def list_parquet(folder):
    import os

    return [name for name in os.listdir(folder) if name.endswith(".parquet")]


def test_a_commit_without_an_answer_is_found_by_the_next_run(grid, monkeypatch):
    grid.mirror(rowsPerPartition=ROWS)
    grid.change("wind", (0, 0))
    real = mirror_module.commit
    with monkeypatch.context() as patch:
        # The store carried it out, and told the client's repetition that the version exists.
        patch.setattr(mirror_module, "commit", lambda *given: real(*given) and None)
        done = grid.mirror()
    assert (done.files_added, done.files_removed, done.rows) == (1, 1, 16)
    grid.assert_copied()
    assert grid.mirror().rows == 0
