"""A run that dies, stores that throttle, and runs that meet: nothing is lost, nothing is half."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.archives import files as made
from helpers.archives.running import concatenated, statuses, virtualize
from helpers.raised import raises
from helpers.servers.http import Fault, misbehaving_server
from helpers.storage.faulty_storage import FaultyStorage

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage import location as locations
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.workflows.running import in_process
from icechunk_format.workflows.virtualizing.scanning import scan

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference


def values(path, name="t2m"):
    """Return an array of the newest version, as our own reader reads it."""
    repository = Repository.open(str(path))
    places = [c.url_prefix for c in repository.config.virtual_chunk_containers]
    newest = repository.resolve(branch="main")
    return open_dataset(repository, newest, access=VirtualAccess(tuple(places))).read(name)


# -- a run that dies ------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing handles it, and nothing is cleaned up."""


class DyingStorage(FaultyStorage):
    """Dies at a request, before or after the store has done it."""

    last = 10**9
    does_last = False

    def _request(self, verb, key, act, **how):
        number = len(self.requests)
        self.requests.append((verb, key))
        if number > self.last or (number == self.last and not self.does_last):
            raise Killed
        answer = act()
        if number == self.last:
            raise Killed
        return answer


@pytest.fixture
def dying(monkeypatch):
    """Return a function that runs a call whose process dies at a request of the repository."""
    make = locations._make

    def run(path, call, *, last=10**9, does_last=False):
        storage = DyingStorage(make(locations.Location(str(path))))
        storage.last, storage.does_last = last, does_last

        def wrapped(location):
            return storage if location.url == str(path) else make(location)

        with monkeypatch.context() as patch:
            patch.setattr(locations, "_make", wrapped)
            patch.setattr(locations, "_opened", {})
            metadata_cache().clear()
            try:
                call()
            except Killed:
                return None
        return storage.requests

    return run


@pytest.mark.parametrize("is_first", [True, False], ids=["the first run", "the next morning"])
def test_a_run_that_dies_at_any_request_leaves_the_branch_as_it_was_or_whole(
    is_first, dying, tmp_path
):
    files = made.archive(tmp_path / "files")
    expected = concatenated(files)["t2m"].values
    before, target = tmp_path / "before", tmp_path / "repository"
    if not is_first:
        virtualize(files[:2], before)

    def again():
        shutil.rmtree(target, ignore_errors=True)
        if not is_first:
            shutil.copytree(before, target)

    again()
    requests = dying(target, lambda: virtualize(files, target))
    seen = set()
    for last, (verb, _) in enumerate(requests):
        # A run that dies at a read leaves what its last change left.
        is_change = verb in ("put", "delete")
        for does_last in (False, True) if is_change else (False,) * (last % 4 == 0):
            again()
            dying(target, lambda: virtualize(files, target), last=last, does_last=does_last)
            state = "nothing"
            if Repository.exists(str(target)):
                repository = Repository.open(str(target))
                newest = repository.snapshot(repository.resolve(branch="main"))
                state = "empty" if newest.node("/t2m") is None else len(values(target))
            seen.add(state)
            if state == 12:
                np.testing.assert_array_equal(values(target), expected)
            done = virtualize(files, target)
            assert "refused" not in statuses(done).values()
            np.testing.assert_array_equal(values(target), expected)
    assert seen == ({"nothing", "empty", 12} if is_first else {8, 12})


# -- stores that throttle -------------------------------------------------------------------


def test_a_store_that_throttles_for_a_while_is_asked_again(tmp_path):
    files = made.archive(tmp_path / "files", count=6)
    with misbehaving_server() as server:
        for number, file in enumerate(files):
            server.objects[f"/bucket/days/{number}.nc"] = Path(file).read_bytes()
        options = {"anon": "true", "endpoint_url": server.url, "max_retries": "12"}
        server.faults[:] = [Fault(status=503, code="SlowDown")] * 8
        server.chance, server.rate = random.Random(0), 0.1
        done = virtualize("s3://bucket/days/*.nc", tmp_path / "repository", virtual_options=options)
        assert not server.faults
        assert statuses(done) == {f"{number}.nc": "taken" for number in range(6)}
        repository = Repository.open(str(tmp_path / "repository"))
        dataset = open_dataset(
            repository, done.snapshot_id, access=VirtualAccess(done.places, options)
        )
        expected = concatenated(files)["t2m"].values
        np.testing.assert_array_equal(dataset.read("t2m"), expected)


def test_a_file_whose_store_stays_down_is_a_row_and_comes_with_the_next_call(tmp_path):
    files = made.archive(tmp_path / "files")
    with misbehaving_server() as server:
        for number, file in enumerate(files):
            server.objects[f"/bucket/days/{number}.nc"] = Path(file).read_bytes()
        options = {"anon": "true", "endpoint_url": server.url, "max_retries": "1"}
        server.deny = lambda method, path: path.endswith("1.nc")
        how = {"virtual_options": options, "on_mismatch": "skip"}
        done = virtualize("s3://bucket/days/*.nc", tmp_path / "repository", **how)
        assert statuses(done) == {"0.nc": "taken", "1.nc": "refused", "2.nc": "taken"}
        with raises(InvalidInputError, match="call again", refused=1):
            virtualize("s3://bucket/days/*.nc", tmp_path / "x", virtual_options=options)
        server.deny = lambda method, path: False
        done = virtualize("s3://bucket/days/*.nc", tmp_path / "repository", **how)
        assert statuses(done) == {"0.nc": "known", "1.nc": "taken", "2.nc": "known"}


def test_blocks_that_files_have_alike_are_fetched_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("icechunk_format.workflows.virtualizing.scanning.scan._OPEN_AT_ONCE", 2)

    def large(path, number):
        data = made.dataset(number)
        for name in "abc":  # the index of each variable lies behind the values of the last
            noise = np.random.default_rng(0).normal(size=(4, 400, 200))
            data[name] = (("time", "v", "w"), noise)
        how = {name: {"chunksizes": (1, 40, 200)} for name in "abc"}
        data.to_netcdf(path, engine="h5netcdf", encoding=how)

    files = made.archive(tmp_path / "files", large, count=6)
    with misbehaving_server() as server:
        for number, file in enumerate(files):
            server.objects[f"/bucket/days/{number}.nc"] = Path(file).read_bytes()
        options = {"anon": "true", "endpoint_url": server.url}
        how = {"virtual_options": options, "run": in_process}
        names = [f"s3://bucket/days/{number}.nc" for number in range(6)]
        monkeypatch.setattr("icechunk_format.workflows.virtualizing.virtualize._SCANS_PER_CORE", 1)
        late = []
        direct = scan.FileStore.get_range

        def counted(store, path, **span):
            before = server.count("GET")
            data = direct(store, path, **span)
            late.append((store._key, server.count("GET") - before))
            return data

        monkeypatch.setattr(scan.FileStore, "get_range", counted)
        done = virtualize(names, tmp_path / "repository", **how)
    assert set(statuses(done).values()) == {"taken"}
    asked = {key: sum(n for k, n in late if k == key) for key in {k for k, _ in late}}
    first, last = (max(n for k, n in asked.items() if k.endswith(e)) for e in ("0.nc", "2.nc"))
    assert first > 1  # nothing is known of the first file
    assert last == 0  # all of it was fetched before


# -- runs that meet -------------------------------------------------------------------------


def meeting(other):
    """Return a ``Run`` that lets another call commit before references are placed."""
    waiting = [other]

    def run(function, tasks):
        if function.func.__name__ == "run_references" and waiting:
            waiting.pop()()
        return in_process(function, tasks)

    return run


@pytest.mark.parametrize("known", [0, 1], ids=["the first runs", "later runs"])
def test_two_runs_that_meet_both_land(known, tmp_path):
    files = made.archive(tmp_path / "files", count=5)
    if known:
        virtualize(files[:1], tmp_path / "repository")
    others = [files[3], files[1]]
    run = meeting(lambda: virtualize(others, tmp_path / "repository"))
    mine = [*files[:known], files[1], files[2], files[4]]
    done = virtualize(mine, tmp_path / "repository", run=run)
    assert statuses(done)["1.nc"] == "known"
    assert (statuses(done)["2.nc"], statuses(done)["4.nc"]) == ("taken", "taken")
    all_files = files if known else files[1:]
    np.testing.assert_array_equal(
        values(tmp_path / "repository"), concatenated(all_files)["t2m"].values
    )


def test_nothing_is_parsed_again_after_a_lost_race(tmp_path, monkeypatch):
    files = made.archive(tmp_path / "files", count=4)
    virtualize(files[:1], tmp_path / "repository")
    parsed, parse = [], scan.parse_file
    monkeypatch.setattr(
        scan, "parse_file", lambda file, *more: parsed.append(file.url) or parse(file, *more)
    )
    run = meeting(lambda: virtualize(files[1:2], tmp_path / "repository"))
    virtualize(files[2:], tmp_path / "repository", run=run)
    assert sorted(url[-4:] for url in parsed) == ["1.nc", "2.nc", "3.nc"]


def test_of_two_runs_with_the_same_hours_the_later_is_refused_by_name(tmp_path):
    files = made.archive(tmp_path / "files")
    virtualize(files[:1], tmp_path / "repository")
    twin = tmp_path / "files" / "twin.nc"
    shutil.copy(files[1], twin)
    run = meeting(lambda: virtualize(files[1:2], tmp_path / "repository"))
    with pytest.raises(InvalidInputError, match=r"twin.nc: .*same keys .*with file.*/1.nc"):
        virtualize([str(twin), files[2]], tmp_path / "repository", run=run)
    expected = concatenated(files[:2])["t2m"].values
    np.testing.assert_array_equal(values(tmp_path / "repository"), expected)
    run = meeting(lambda: virtualize(files[2:], tmp_path / "repository"))
    done = virtualize([str(twin)], tmp_path / "repository", run=run, on_mismatch="skip")
    assert (statuses(done), done.files_added) == ({"twin.nc": "refused"}, 0)


def test_a_run_that_asks_for_it_fails_at_a_conflict(tmp_path):
    files = made.archive(tmp_path / "files")
    virtualize(files[:1], tmp_path / "repository")
    run = meeting(lambda: virtualize(files[1:2], tmp_path / "repository"))
    with pytest.raises(ConflictError):
        virtualize(files[2:], tmp_path / "repository", run=run, options={"on_conflict": "fail"})
    assert len(values(tmp_path / "repository")) == 8
    assert not list((tmp_path / "repository").glob("staging/**/*.arrow"))
