"""Long work in one process tells how far it is; what listens can end it, and nothing is half done.

Each kind of work is watched, then ended at each of its reports and done again.
"""

import itertools
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from helpers.builder import add_array, new_location, new_repository
from helpers.files.draft_repositories import some_history, write_numbered
from helpers.mirroring.grid import Grid
from helpers.sessions.model import stored_contents

from icechunk_format import drafts, maintenance
from icechunk_format import progress as progress_module
from icechunk_format.errors import UnsupportedError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.progress import counted, phase
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.running import in_process
from icechunk_format.workflows.virtualizing import Archive, virtualize_files


class Enough(Exception):
    """What a listener raises to end the work."""


class Listener:
    """Notes every report, and ends the work at the one with the number ``last``."""

    def __init__(self, last=None):
        self.reports = []
        self._last = last

    def __call__(self, done, total, what):
        self.reports.append((done, total, what))
        if len(self.reports) - 1 == self._last:
            raise Enough

    def check(self):
        """Fail where a phase does not begin at 0, falls, or does not end at its total."""
        phases = [list(found) for _, found in itertools.groupby(self.reports, lambda r: r[2])]
        for found in phases:
            counts = [done for done, _, _ in found]
            assert counts[0] == 0
            assert counts == sorted(counts)
            totals = {total for _, total, _ in found[:-1]}
            assert len(totals) == 1
            assert found[-1][0] == found[-1][1]
            assert totals in ({None}, {found[-1][1]})
        return [found[0][2] for found in phases]


@pytest.fixture
def every_step(monkeypatch):
    """Let every step be reported, however short."""
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN", 0)


def repository_of(count, spec_version=2):
    """Return a repository with that many versions, and a manifest for each."""
    repository = new_repository(spec_version)
    for number in range(count):
        session = repository.writable_session()
        if number == 0:
            add_array(session, "/a", (99,))
        session.set_chunks("/a", [[number]], [bytes([number]) * 700])
        session.commit(f"number {number}")
    return repository


def objects_of(location):
    storage = open_storage(Location.of(location))
    return {found.key: storage.get(found.key).data for found in storage.list("")}


def visible(location):
    """Return the objects that decide what readers see."""
    kinds = ("repo", "refs/", "_delta_log/")
    return {key: data for key, data in objects_of(location).items() if key.startswith(kinds)}


class Collecting:
    phases = (
        "Reading snapshots", "Reading manifests", "Listing snapshots/", "Deleting from snapshots/",
        "Listing transactions/", "Deleting from transactions/", "Listing manifests/",
        "Deleting from manifests/", "Listing chunks/", "Deleting from chunks/",
    )  # fmt: skip

    def __init__(self, tmp_path):
        self.repository = repository_of(4)
        first = [info.id for info in self.repository.ancestry(branch="main")][2]
        self.kept = first
        self.repository.reset_branch("main", first)
        self.cutoff = datetime.now(UTC) + timedelta(hours=1)

    def run(self, progress=None):
        place = self.repository.location
        return maintenance.collect_garbage(place, self.cutoff, progress=progress)

    def check_interrupted(self):
        # Some of the garbage may be gone, and nothing else.
        assert len(stored_contents(self.repository, self.kept)) == 4
        found = maintenance.verify(self.repository.location).to_pylist()
        assert not [row for row in found if row["severity"] == "error"]

    def check_done(self):
        kinds = [key.partition("/")[0] for key in objects_of(self.repository.location)]
        assert (kinds.count("snapshots"), kinds.count("chunks")) == (3, 2)


class Verifying:
    phases = ("Checking versions", "Listing chunks/", "Checking manifests")

    def __init__(self, tmp_path):
        self.repository = repository_of(3)

    def run(self, progress=None):
        self.found = maintenance.verify(self.repository.location, progress=progress)

    def check_interrupted(self):
        assert not hasattr(self, "found")

    def check_done(self):
        assert set(self.found["severity"].to_pylist()) == {"info"}


class Rewriting:
    phases = ("Rewriting references",)

    def __init__(self, tmp_path):
        self.repository = repository_of(3)
        self.before = visible(self.repository.location)

    def run(self, progress=None):
        rules = [["any_array", [{"condition": "Any", "num_chunks": 2}]]]
        place = self.repository.location
        return maintenance.rewrite_manifests(place, splitting=rules, progress=progress)

    def check_interrupted(self):
        assert visible(self.repository.location) == self.before

    def check_done(self):
        assert next(self.repository.ancestry()).message == "Rewrite manifests"


class Copying:
    phases = ("Reading snapshots", "Copying manifests", "Copying chunks", "Copying snapshots")

    def __init__(self, tmp_path):
        self.repository, self.target = repository_of(3), new_location()

    def run(self, progress=None):
        return maintenance.copy(self.repository.location, self.target, progress=progress)

    def check_interrupted(self):
        assert not Repository.exists(self.target)

    def check_done(self):
        copied, tip = Repository.open(self.target), self.repository.resolve()
        assert stored_contents(copied, tip) == stored_contents(self.repository, tip)


class Importing:
    phases = ("Importing snapshots",)

    def __init__(self, tmp_path):
        self.source, self.target = new_location(), new_location()
        (tmp_path / "outside").mkdir()
        write_numbered(open_storage(self.source), some_history(), tmp_path / "outside")

    def run(self, progress=None):
        return drafts.import_draft(self.source, self.target, progress=progress)

    def check_interrupted(self):
        assert not Repository.exists(self.target)

    def check_done(self):
        assert "main" in Repository.open(self.target).branches()


class Upgrading:
    phases = ("Reading snapshots",)

    def __init__(self, tmp_path):
        self.repository = repository_of(3, spec_version=1)
        self.before = objects_of(self.repository.location)

    def run(self, progress=None):
        return Repository.open(self.repository.location).upgrade(progress=progress)

    def check_interrupted(self):
        assert objects_of(self.repository.location) == self.before

    def check_done(self):
        assert Repository.open(self.repository.location).spec_version == 2


class Mirroring:
    phases = ("Writing files",)

    def __init__(self, tmp_path):
        self.grid = Grid(tmp_path)

    def run(self, progress=None):
        target = DeltaTarget.of(self.grid.target, None)
        selection = Selection.of({"rowsPerPartition": 16})
        request = MirrorRequest(
            read=ReadRequest(path=self.grid.place), target=target, selection=selection
        )
        return bring_up_to_date(request, in_process, progress)

    def check_interrupted(self):
        assert not visible(self.grid.target)

    def check_done(self):
        self.grid.assert_copied()


class Virtualizing:
    phases = ("Scanning files", "Placing references")

    def __init__(self, tmp_path):
        pytest.importorskip("virtualizarr")
        from helpers.archives import files

        self.files = files.archive(tmp_path / "files", files.KINDS["compressed"])
        self.place = Location(str(tmp_path / "repository"))

    def run(self, progress=None):
        archive = Archive(
            location=self.place,
            names=self.files,
            options=WriteOptions(mode="append", layout="refs"),
            dims=("time",),
        )
        return virtualize_files(archive, in_process, cores=2, progress=progress)

    def check_interrupted(self):
        assert not Repository.exists(self.place)

    def check_done(self):
        assert next(Repository.open(self.place).ancestry()).message == "Virtualize 3 files"


WORK = [
    Collecting, Verifying, Rewriting, Copying, Importing, Upgrading, Mirroring, Virtualizing,
]  # fmt: skip


@pytest.mark.parametrize("kind", WORK)
def test_each_phase_goes_from_nothing_to_all(kind, tmp_path, every_step):
    work, listener = kind(tmp_path), Listener()
    work.run(listener)
    assert listener.check() == [*kind.phases]
    work.check_done()


@pytest.mark.parametrize("kind", WORK)
def test_a_listener_that_raises_ends_the_work_and_nothing_is_half_done(kind, tmp_path, every_step):
    for last in itertools.count():
        folder = tmp_path / str(last)
        folder.mkdir()
        work = kind(folder)
        try:
            work.run(Listener(last))
        except Enough:
            work.check_interrupted()
            work.run()
            work.check_done()
        else:
            break
    assert last >= 2 * len(kind.phases)


@pytest.mark.parametrize("kind", WORK)
def test_work_is_silent_unless_asked(kind, tmp_path, capfd):
    work = kind(tmp_path)
    work.run()
    assert capfd.readouterr() == ("", "")
    work.check_done()


def test_a_listener_is_called_ten_times_a_second_at_most(monkeypatch):
    now = itertools.count(step=0.001)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    listener = Listener()
    for _ in counted(range(2_000), listener, "Counting", 2_000):
        pass
    assert listener.check() == ["Counting"]
    assert 15 <= len(listener.reports) <= 22


def test_a_phase_that_is_left_early_does_not_end(every_step):
    listener = Listener()
    for number in counted(range(3), listener, "Trying", 3):
        if number == 1:
            break
    assert listener.reports == [(0, 3, "Trying"), (1, 3, "Trying")]


def test_nothing_to_do_is_not_reported():
    listener = Listener()
    assert list(counted([], listener, "Nothing", 0)) == []
    assert listener.reports == []


def test_true_shows_a_bar_for_each_phase(capsys, every_step):
    work = Copying(None)
    work.run(True)
    shown = capsys.readouterr().err
    for what in Copying.phases:
        assert f"{what}: 100%" in shown


def test_a_count_without_an_end_is_shown_too(capsys):
    with phase(True, "Listing") as advance:
        advance(7)
    assert "Listing: 100%" in capsys.readouterr().err


def test_a_bar_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(UnsupportedError, match=r"icechunk-spark\[progress\]"):
        Copying(None).run(True)
