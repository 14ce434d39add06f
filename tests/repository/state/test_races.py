"""Changes whose every attempt loses a race: each ends with the same error, and changes nothing."""

import itertools
import logging

import pyarrow as pa
import pytest
from helpers.grids.written_cells import APPEND, dataset_at
from helpers.raised import raises

from icechunk_format import Repository
from icechunk_format.errors import CommitOutcomeUnknownError, ConflictError
from icechunk_format.maintenance import collect_garbage, expire_snapshots, rewrite_manifests
from icechunk_format.maintenance.garbage import collect
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.state import publish, races
from icechunk_format.repository.state.branch_tip import RepoBranchTip
from icechunk_format.repository.state.transitions import set_metadata
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.rechunking import (
    RechunkRequest,
    one_process,
    rechunk_arrays,
)
from icechunk_format.workflows.running import in_process

LOST = 3


def days(*numbers):
    return pa.table({"time": numbers, "x": [0.0] * len(numbers), "t": [float(n) for n in numbers]})


def attributes(place):
    session = Repository.open(place).writable_session()
    document = session.node("/").user_data.replace(b"{", b'{"attributes":{"a":1},', 1)
    session.update_metadata("/", document)
    session.commit("attributes", rebase_tries=races.MOST_LOST_RACES)


def delete(place):
    request = DeleteRequest(
        read=ReadRequest(path=place, where="time = 1"), options=APPEND, dry_run=False
    )
    return delete_selected(request, in_process)


def rechunk(place):
    request = RechunkRequest(
        read=ReadRequest(path=place),
        target=Location.of(place),
        options=WriteOptions(mode="append"),
        chunks={"time": 4},
        shards=None,
        encoding={},
        memory=1 << 29,
    )
    return rechunk_arrays(request, one_process, cores=None, dry_run=False)


COMMITS = {
    "session": attributes,
    "write": lambda place: write_table(place, days(20), APPEND),
    "delete": delete,
    "merge": lambda place: Repository.open(place).merge("dev"),
    "rechunk": rechunk,
    "rewrite": rewrite_manifests,
}
STATES = {
    "tag": lambda place: Repository.open(place).create_tag("mine", dataset_at(place).snapshot_id),
    "expire": lambda place: expire_snapshots(place, "2100-01-01T00:00:00Z"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(races, "MOST_LOST_RACES", LOST - 1)
    monkeypatch.setattr(publish, "MAX_ATTEMPTS", LOST)
    monkeypatch.setattr(races, "_LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    place = str(tmp_path / "repository")
    for day in (1, 2, 3):
        write_table(place, days(day), WriteOptions(mode="append", dims=("time", "x")))
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    write_table(place, days(10), WriteOptions(mode="append", branch="dev"))
    return place


@pytest.fixture
def rivals(place, monkeypatch):
    """Let a rival append a day before each attempt to move the branch, three times."""
    advance, appended = RepoBranchTip.advance, []

    def late(tip, snapshot):
        if len(appended) < LOST:
            with monkeypatch.context() as patch:
                patch.setattr(RepoBranchTip, "advance", advance)
                appended.append(4 + len(appended))
                write_table(place, days(appended[-1]), APPEND)
        return advance(tip, snapshot)

    monkeypatch.setattr(RepoBranchTip, "advance", late)
    return appended


@pytest.mark.parametrize("door", COMMITS)
def test_a_commit_that_always_loses_ends_with_one_error(place, rivals, door):
    url = Repository.open(place).storage.root_url
    with raises(ConflictError, attempts=LOST, branch="main", location=url) as caught:
        COMMITS[door](place)
    assert caught.value.message == (
        f"branch 'main' of {url} was changed by other writers {LOST} times during this change; "
        "nothing was committed. Let fewer writers commit at once, or try again"
    )
    assert len(rivals) == LOST
    assert dataset_at(place).read("time").tolist() == [1, 2, 3, *rivals]


@pytest.mark.parametrize("door", COMMITS)
def test_a_commit_that_loses_less_often_lands(place, rivals, door, monkeypatch):
    monkeypatch.setattr(races, "MOST_LOST_RACES", LOST)
    COMMITS[door](place)
    assert len(rivals) == LOST
    assert {*rivals} <= {*dataset_at(place).read("time").tolist()}


@pytest.mark.parametrize("door", STATES)
def test_a_change_of_the_state_that_always_loses_ends_with_the_same_error(place, door, monkeypatch):
    put_if, numbers = publish.put_if, itertools.count()

    def late(storage, key, *more):
        with monkeypatch.context() as patch:
            patch.setattr(publish, "put_if", put_if)
            publish.update_repo(storage, lambda info: set_metadata(info, {"n": next(numbers)}))
        return put_if(storage, key, *more)

    monkeypatch.setattr(publish, "put_if", late)
    with raises(ConflictError, match="was changed by other writers 3 times", attempts=LOST):
        STATES[door](place)


def test_a_collection_that_always_loses_ends_with_the_same_error(place, monkeypatch):
    declined = publish.Published(info=None, declined=collect.RootsMoved(why="a rival"))
    monkeypatch.setattr(collect, "update_repo", lambda *_: declined)
    with raises(ConflictError, match="a ref of .* 3 times .*nothing was deleted", attempts=LOST):
        collect_garbage(place, older_than="2100-01-01T00:00:00Z")


def test_an_unknown_outcome_and_the_limit_of_an_inner_loop_are_not_repeated():
    calls = []

    def unknown(lost):
        calls.append(lost)
        raise CommitOutcomeUnknownError("no response")

    with raises(CommitOutcomeUnknownError):
        races.until_won(unknown, "file:///x", branch="main")
    inner = publish.race_lost("file:///x", "the 'repo' object")

    def exhausted(lost):
        calls.append(lost)
        return races.RaceLost(error=inner)

    with pytest.raises(ConflictError) as caught:
        races.until_won(exhausted, "file:///x", branch="main")
    assert caught.value is inner
    assert calls == [0, 0]


def test_each_lost_race_is_logged_and_the_last_error_is_the_cause(caplog, monkeypatch):
    monkeypatch.setattr(races, "_LONGEST_PAUSE", 0.0)
    caplog.set_level(logging.INFO, races.__name__)
    error = ConflictError("a rival")
    with raises(ConflictError, attempts=3) as caught:
        races.until_won(lambda _: races.RaceLost(error=error), "file:///x", branch="dev", most=2)
    assert caught.value.__cause__ is error
    lost = [record.getMessage() for record in caplog.records]
    assert [line.partition(" lost a race: ")[0] for line in lost] == [
        f"attempt {n} to change branch 'dev' of file:///x" for n in (1, 2, 3)
    ]


def test_pauses_after_lost_races_do_not_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr(races, "_LONGEST_PAUSE", 5.0)
    monkeypatch.setattr(races.random, "uniform", lambda shortest, longest: longest)
    monkeypatch.setattr(races.time, "sleep", pauses.append)
    for attempt in range(1, 30):
        races.pause_after_lost_race(attempt, 0.05)
    assert set(pauses) == {0.2}
    # A first attempt of a minute was slow for a reason of its own.
    races.pause_after_lost_race(1, 60.0)
    assert pauses[-1] == 0.5
