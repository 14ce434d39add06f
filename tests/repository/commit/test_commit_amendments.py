"""An amendment takes the place of the version that it amends, in history and in the log."""

from datetime import UTC, datetime

from helpers.grids.sessions import grid_session, set_block
from helpers.raised import raises
from helpers.sessions.model import group_document, stored_contents

from icechunk_format.encoding.repo_info.updates import CommitAmendedUpdate, NewCommitUpdate
from icechunk_format.errors import InvalidInputError, UnsupportedError


def test_an_amendment_takes_the_place_of_the_tip(repository_v2):
    session = grid_session(repository_v2, (4,))
    session.create_group("/g", group_document())
    set_block(session, range(2))
    first = session.commit("first")
    root = first.parent_id
    session = repository_v2.writable_session()
    set_block(session, range(1, 3), payload=b"y")
    session.delete("/g")
    amended = session.amend("first, better", metadata={"why": "typo"})
    assert amended.parent_id == root
    assert [info.id for info in repository_v2.ancestry()] == [amended.snapshot_id, root]
    log = repository_v2.transaction_log(amended.snapshot_id)
    assert len(log.new_arrays) == 1
    assert len(log.new_groups) == 1
    assert log.deleted_groups == ()
    [coords] = log.updated_chunks.values()
    assert coords.tolist() == [[0], [1], [2]]
    assert repository_v2.snapshot(first.snapshot_id).node("/g") is not None
    contents = stored_contents(repository_v2, amended.snapshot_id)
    assert [contents[f"a/c/{i}"] for i in range(3)] == [b"x", b"y", b"y"]
    kinds = [type(update.details) for update in repository_v2.operations()]
    assert kinds[:2] == [CommitAmendedUpdate, NewCommitUpdate]


def test_an_amendment_that_deletes_what_the_amended_version_made(repository_v2):
    session = grid_session(repository_v2, (4,))
    set_block(session, range(2))
    session.commit("first")
    session = repository_v2.writable_session()
    session.delete("/a")
    amended = session.amend("without it")
    log = repository_v2.transaction_log(amended.snapshot_id)
    assert (log.new_arrays, log.deleted_arrays, dict(log.updated_chunks)) == ((), (), {})


def test_what_cannot_be_amended(repository):
    session = grid_session(repository, (4,))
    if repository.spec_version == 1:
        with raises(UnsupportedError, spec_version=1):
            session.amend("no")
        with raises(UnsupportedError, match="spec version 1", spec_version=1):
            session.move("/a", "/b")
        return
    with raises(InvalidInputError, snapshot=str(repository.resolve()), parent=None):
        session.amend("no")
    session.commit("first")
    session = repository.writable_session()
    session.move("/a", "/b")
    with raises(InvalidInputError, match="cannot be amended with other changes", moved=True):
        session.amend("no")
    session.commit("moved")
    session = repository.writable_session()
    session.move("/b", "/c")
    amended = session.amend("moved further")
    [move] = repository.transaction_log(amended.snapshot_id).moved_nodes
    assert (move.from_path, move.to_path) == ("/a", "/c")
    session = repository.writable_session()
    session.set_chunk("/c", [0], b"x")
    with raises(InvalidInputError, moved=False):
        session.amend("no")


def test_an_amendment_keeps_the_logs_of_expired_ancestors(repository_v2):
    session = grid_session(repository_v2, (4,))
    for step in range(3):
        set_block(session, [step])
        session.commit(f"version {step}")
        session = repository_v2.writable_session()
    repository_v2.expire_snapshots(datetime.now(UTC))
    tip = next(iter(repository_v2.ancestry()))
    assert tip.pruned_ancestor_tx_logs
    set_block(session := repository_v2.writable_session(), [3])
    amended = session.amend("better")
    found = next(iter(repository_v2.ancestry()))
    assert found.id == amended.snapshot_id
    assert found.pruned_ancestor_tx_logs == tip.pruned_ancestor_tx_logs
