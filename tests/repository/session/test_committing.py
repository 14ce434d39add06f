"""Commits report what they do, store files anew after a lost race, and clean up when they fail."""

import pytest
from helpers.grids.sessions import grid_session, manifest_ids, set_block
from helpers.raised import raises
from helpers.sessions.model import group_document, stored_contents
from helpers.storage.faulty_repositories import begin, faulty_repository

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.repository.commit import manifest_plan
from icechunk_format.repository.commit.commit import Written
from icechunk_format.repository.files import metadata_cache

pytestmark = pytest.mark.usefixtures("no_pauses")


def rival(repository, *names):
    """Commit groups of these names, one by one; return the ids."""
    found = []
    for name in names:
        session = repository.writable_session()
        session.create_group(f"/{name}", group_document())
        found.append(session.commit(f"group {name}").snapshot_id)
    return found


def lose_races(session, repository, *names):
    """Let another writer commit a group just before each of the first attempts of a session."""
    left = iter(names)
    advance = session._tip.advance

    def advance_late(info):
        rival(repository, *[name for name in [next(left, None)] if name])
        return advance(info)

    session._tip.advance = advance_late


def lines_of(caplog):
    """Return the log of commits and rebases."""
    return [record.getMessage() for record in caplog.records if record.name.endswith("committing")]


# -- what a commit tells -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "newer", "races"),
    [
        ("g", "1 newer commit of", " (1 lost race before)"),
        ("gh", "1 newer commit of", " (2 lost races before)"),
    ],
)
def test_the_log_tells_what_a_commit_lost_and_followed(repository, caplog, names, newer, races):
    grid_session(repository, (4,)).commit("base")
    session = repository.writable_session()
    set_block(session, [0])
    lose_races(session, repository, *names)
    caplog.set_level("INFO", "icechunk_format.repository.session.committing")
    result = session.commit("ours")
    lines = lines_of(caplog)
    assert sum(newer in line and "with no conflicts" in line for line in lines) == len(names)
    url = repository.storage.root_url
    assert lines[-1] == f"committed {result.snapshot_id} to branch main of {url}: ours{races}"
    assert result.rebased == len(names)


def test_the_log_counts_the_commits_of_others_and_tells_no_race_if_none_was_lost(
    repository, caplog
):
    grid_session(repository, (4,)).commit("base")
    session = repository.writable_session()
    set_block(session, [0])
    ids = rival(repository, "g", "h")
    caplog.set_level("INFO", "icechunk_format.repository.session.committing")
    result = session.commit("ours")
    rebased, committed = lines_of(caplog)
    url = repository.storage.root_url
    assert rebased == (
        f"rebased on 2 newer commits of other writers to branch main of {url}, with no conflicts; "
        f"the newest is {ids[-1]}: group h"
    )
    assert committed == f"committed {result.snapshot_id} to branch main of {url}: ours"


def test_the_log_tells_resolved_conflicts_and_amendments(repository_v2, caplog):
    grid_session(repository_v2, (4,)).commit("base")
    session = repository_v2.writable_session()
    set_block(session, [0])
    other = repository_v2.writable_session()
    set_block(other, [0], payload=b"y")
    other.commit("theirs")
    caplog.set_level("INFO", "icechunk_format.repository.session.committing")
    assert session.rebase(resolve="ours") == 1
    amended = session.amend("better").snapshot_id
    rebased, committed = lines_of(caplog)
    assert "with 1 resolved conflicts" in rebased
    url = repository_v2.storage.root_url
    assert committed == f"committed {amended} to branch main of {url}: better"


# -- commits of others -------------------------------------------------------------------------


def test_a_caller_sees_the_commits_of_others_and_can_end_the_commit(repository):
    grid_session(repository, (4,)).commit("base")
    session = repository.writable_session()
    base = session.snapshot_id
    set_block(session, [0])
    seen = []

    def refuse(tip, theirs):
        seen.append((tip.id, [commit.snapshot_id for commit in theirs]))
        raise RuntimeError("not on this")

    ids = rival(repository, "g", "h")
    for act in (
        lambda: session.rebase(when_moved=refuse),
        lambda: session.commit("x", when_moved=refuse),
    ):
        with pytest.raises(RuntimeError, match="not on this"):
            act()
        assert seen.pop() == (ids[-1], ids)
        assert session.snapshot_id == base
        assert repository.resolve() == ids[-1]
    assert session.commit("ours", when_moved=lambda *_: None).parent_id == ids[-1]
    contents = stored_contents(repository, repository.resolve())
    assert contents["a/c/0"] == b"x"


def test_the_commit_whose_log_is_missing_is_named(repository):
    grid_session(repository, (4,)).commit("base")
    session = repository.writable_session()
    set_block(session, [0])
    _, middle, _ = rival(repository, "g", "h", "k")
    repository.storage.delete_many([f"transactions/{middle}"])
    metadata_cache().clear()
    with raises(ConflictError, branch="main", snapshot=str(middle)):
        session.commit("ours")


def test_an_unknown_way_to_resolve_is_refused_even_if_nothing_moved(repository):
    session = grid_session(repository, (4,))
    with pytest.raises(InvalidInputError, match="resolve='mine'"):
        session.rebase(resolve="mine")
    for resolve in (None, "ours", "theirs"):
        assert session.rebase(resolve=resolve) == 0


def test_an_amendment_without_changes_is_made_only_if_allowed(repository_v2):
    first = grid_session(repository_v2, (4,)).commit("first")
    session = repository_v2.writable_session()
    with raises(InvalidInputError, branch="main"):
        session.amend("other words")
    assert repository_v2.resolve() == first.snapshot_id
    session.amend("other words", allow_empty=True)
    assert [info.message for info in repository_v2.ancestry()][:1] == ["other words"]


# -- what is written and read ------------------------------------------------------------------


def test_small_manifests_are_joined_before_a_race_is_lost_and_not_after(repository_v2, monkeypatch):
    monkeypatch.setattr(manifest_plan, "MAX_SMALL_MANIFESTS", 4)
    for step in range(4):
        session = grid_session(repository_v2, (8,))
        set_block(session, [step])
        session.commit("append")
    session = repository_v2.writable_session()
    set_block(session, [4])
    lose_races(session, repository_v2, "g")
    # The first attempt stores the new chunk and the joined ones; the second uses the former again.
    assert session.commit("ours").files_written["manifests"] == 2
    assert len(manifest_ids(repository_v2)) == 5
    session = repository_v2.writable_session()
    set_block(session, [5])
    session.commit("without a race")
    assert len(manifest_ids(repository_v2)) < 5
    assert sorted(stored_contents(repository_v2, repository_v2.resolve())) == sorted(
        [*(f"a/c/{n}" for n in range(6)), "a/zarr.json", "g/zarr.json", "zarr.json"]
    )


def test_files_that_were_stored_elsewhere_are_counted(repository):
    session = grid_session(repository, (8,))
    set_block(session, [4], payload=b"x" * 600)
    elsewhere = Written()
    elsewhere.add("chunks", 3, 30)
    elsewhere.add("manifests", 2, 20)
    session.count_files(elsewhere)
    result = session.commit("ours")
    assert (result.files_written["chunks"], result.bytes_written["chunks"]) == (4, 630)
    assert result.files_written["manifests"] == 3


def test_clocks_are_compared_once_for_all_attempts():
    sound, repository = faulty_repository(2)
    session = begin(repository)
    lose_races(session, sound, "h", "k")
    repository.faulty.requests.clear()
    assert session.commit("ours").rebased == 2
    heads = [key for verb, key in repository.faulty.requests if verb == "head"]
    assert len([key for key in heads if key.startswith("snapshots/")]) == 1


def test_a_session_that_follows_a_commit_need_not_read_its_snapshot():
    _, repository = faulty_repository(2)
    done = begin(repository).commit("ours")
    repository.faulty.requests.clear()
    session = repository.writable_session()
    assert session.node("/g") is not None
    assert session.snapshot_id == done.snapshot_id
    assert ("get", f"snapshots/{done.snapshot_id}") not in repository.faulty.requests
