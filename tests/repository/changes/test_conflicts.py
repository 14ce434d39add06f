"""Two sessions that began at one version commit together, or conflict, by the rules.

The table below is the whole matrix, pair by pair: what one writer does, what another one did
meanwhile, and the conflict, if there is one. Where there is none, the version must hold both.
"""

import itertools
import json

import numpy as np
import pytest
from helpers.builder import add_array, new_repository
from helpers.raised import raises
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.errors import ConflictError
from icechunk_format.repository.changes import ConflictKind
from icechunk_format.repository.files import store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks


def array(session, path, version=0, length=4):
    add_array(session, path, (length,), version=version)


def resize(session, path, length):
    document = array_document((length,), (1,), length)
    session.update_metadata(path, document, shape=(length,), num_chunks=(length,))


def recreate(session, path):
    session.delete(path)
    array(session, path, version=77)


def recreate_group(session, path):
    session.delete(path)
    session.create_group(path, group_document(77))


def set_group(session, path, version):
    session.update_metadata(path, group_document(version))


def new_tree(session, path):
    session.create_group(path, group_document())
    array(session, f"{path}/a")


ACTIONS = {
    "chunk 0": lambda s, who: s.set_chunk("/g/a", [0], who),
    "chunk 1": lambda s, who: s.set_chunk("/g/a", [1], who),
    "delete chunk 0": lambda s, who: s.delete_chunks("/g/a", [[0]]),
    "shift": lambda s, who: s.shift("/g/a", [1]),
    "attributes": lambda s, who: s.update_metadata("/g/a", array_document((4,), (1,), who[0])),
    "grow": lambda s, who: resize(s, "/g/a", 6),
    "shrink": lambda s, who: resize(s, "/g/a", 1),
    "delete array": lambda s, who: s.delete("/g/a"),
    "recreate array": lambda s, who: recreate(s, "/g/a"),
    "group": lambda s, who: set_group(s, "/g", who[0]),
    "delete group": lambda s, who: s.delete("/g"),
    "recreate group": lambda s, who: recreate_group(s, "/g"),
    "new array": lambda s, who: array(s, "/g/new", who[0]),
    "new group": lambda s, who: s.create_group("/g/new", group_document(who[0])),
    "new apart": lambda s, who: array(s, "/new" + who.decode(), 0),
    "new tree apart": lambda s, who: new_tree(s, "/tree" + who.decode()),
    "move array": lambda s, who: s.move("/g/a", "/moved"),
    "move group": lambda s, who: s.move("/g", "/h"),
    "move other": lambda s, who: s.move("/b", "/g/new"),
    "other chunk": lambda s, who: s.set_chunk("/b", [0], who),
}

K = ConflictKind
CHUNK_WRITES = ("chunk 0", "delete chunk 0")
METADATA = ("attributes", "grow", "shrink")
ARRAY_GONE = ("delete array", "recreate array", "delete group", "recreate group")
GROUP_GONE = ("delete group", "recreate group")
MOVES = ("move array", "move group", "move other")
NEW = ("new array", "new group")


def expected(ours, theirs):
    """Return the kinds of conflict of a pair; empty where both fit."""
    kinds = set()
    if theirs in MOVES:
        kinds.add(K.MOVED_THERE)
    if ours in (*CHUNK_WRITES, "chunk 1", "shift"):
        if theirs in ARRAY_GONE:
            kinds.add(K.CHUNKS_OF_DELETED_ARRAY)
        if theirs in METADATA:
            kinds.add(K.CHUNKS_OF_UPDATED_ARRAY)
    touched = {"chunk 0": {0}, "delete chunk 0": {0}, "chunk 1": {1}, "shift": {0, 1}}
    if ours == "shift" and theirs in touched:
        kinds.add(K.CHUNKS_OF_SHIFTED_ARRAY)
    elif touched.get(ours, set()) & touched.get(theirs, set()):
        kinds.add(K.CHUNKS_WRITTEN_TWICE)
    if ours == theirs == "other chunk":
        kinds.add(K.CHUNKS_WRITTEN_TWICE)
    if ours == "shrink" and theirs in ("chunk 1", "shift"):
        kinds.add(K.CHUNKS_OF_SMALLER_ARRAY)
    if ours in METADATA:
        if theirs in METADATA:
            kinds.add(K.METADATA_UPDATED_TWICE)
        if theirs in ARRAY_GONE:
            kinds.add(K.METADATA_OF_DELETED_NODE)
    if ours == "group":
        if theirs == "group":
            kinds.add(K.METADATA_UPDATED_TWICE)
        if theirs in GROUP_GONE:
            kinds.add(K.METADATA_OF_DELETED_NODE)
    if ours in ARRAY_GONE and theirs in (*touched, *METADATA):
        kinds.add(K.DELETED_NODE_CHANGED)
    if ours in ARRAY_GONE and theirs == "recreate array":
        kinds.add(K.DELETED_NODE_RECREATED)
    if ours in GROUP_GONE and theirs == "recreate group":
        kinds.add(K.DELETED_NODE_RECREATED)
    if ours == "recreate array" and theirs in ("delete array", *GROUP_GONE):
        kinds.add(K.REPLACED_NODE_DELETED)
    if (ours, theirs) == ("recreate group", "delete group"):
        kinds.add(K.REPLACED_NODE_DELETED)
    if ours in GROUP_GONE:
        if theirs == "group":
            kinds.add(K.DELETED_NODE_CHANGED)
        if theirs in (*NEW, "recreate array"):
            kinds.add(K.NODE_IN_DELETED_GROUP)
    if ours in NEW:
        if theirs in NEW or theirs == "move other":
            kinds.add(K.NODE_EXISTS)
        if theirs in ("delete group", "move group"):
            kinds.add(K.NO_GROUP_FOR_NODE)
    if ours == "recreate array":
        if theirs == "recreate array":
            kinds.add(K.NODE_EXISTS)
        if theirs in ("delete group", "move group"):
            kinds.add(K.NO_GROUP_FOR_NODE)
    if (ours, theirs) == ("recreate group", "recreate group"):
        kinds.add(K.NODE_EXISTS)
    if ours == "move other":
        if theirs in NEW:
            kinds.add(K.NODE_EXISTS)
        if theirs in ("delete group", "move group"):
            kinds.add(K.NO_GROUP_FOR_NODE)
        if theirs == "move other":
            kinds.add(K.NODE_EXISTS)
    if ours == "move array":
        if theirs in ARRAY_GONE:
            kinds.add(K.MOVED_NODE_GONE)
        if theirs == "move array":
            kinds.add(K.NODE_EXISTS)
    if ours == "move group":
        if theirs in (*NEW, "recreate array"):
            kinds.add(K.NODE_IN_DELETED_GROUP)
        if theirs in ARRAY_GONE:
            kinds.add(K.MOVED_NODE_GONE)
        if theirs == "move group":
            kinds.add(K.NODE_EXISTS)
    return kinds


def begun(spec_version=2):
    repository = new_repository(spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    array(session, "/g/a")
    array(session, "/b")
    session.set_chunk("/g/a", [0], b"base")
    session.commit("base")
    return repository


def commit_theirs(repository, theirs, branch="main"):
    session = repository.writable_session(branch)
    ACTIONS[theirs](session, b"T")
    return session.commit("theirs").snapshot_id


def kinds_of(error):
    return {ConflictKind[name] for name in error.facts["kinds"]}


@pytest.mark.parametrize("ours", ACTIONS)
def test_every_pair(ours):
    repository = begun()
    base = repository.resolve()
    for number, theirs in enumerate(ACTIONS):
        branch = f"pair-{number}"
        repository.create_branch(branch, base)
        session = repository.writable_session(branch)
        ACTIONS[ours](session, b"O")
        their_snapshot = commit_theirs(repository, theirs, branch)
        kinds = expected(ours, theirs)
        # Moves of theirs may bring further conflicts along; that they are refused is what counts.
        if kinds:
            with pytest.raises(ConflictError) as caught:
                session.commit("ours")
            found = kinds_of(caught.value)
            assert found == kinds or (K.MOVED_THERE in found & kinds), (ours, theirs)
            assert repository.resolve(branch=branch) == their_snapshot
            assert session.has_changes
            continue
        result = session.commit("ours")
        assert result.rebased == 1, (ours, theirs)
        assert result.parent_id == their_snapshot
        stored_contents(repository, result.snapshot_id)


def outcome(ours, theirs, **how):
    """Return the contents after both commits, and the result."""
    repository = begun()
    session = repository.writable_session()
    ACTIONS[ours](session, b"O")
    commit_theirs(repository, theirs)
    result = session.commit("ours", **how)
    return stored_contents(repository, result.snapshot_id), repository, result


def test_changes_that_fit_are_both_there():
    contents, repository, result = outcome("chunk 1", "chunk 0")
    assert (contents["g/a/c/0"], contents["g/a/c/1"]) == (b"T", b"O")
    info = repository.snapshot_info(result.snapshot_id)
    assert info.metadata == {"__icechunk": {"rebase_attempts": 1}}
    contents, _, _ = outcome("grow", "chunk 1")
    assert contents["g/a/c/1"] == b"T"
    assert contents["g/a/zarr.json"] == array_document((6,), (1,), 6)
    contents, _, _ = outcome("shrink", "chunk 0")
    assert contents["g/a/c/0"] == b"T"
    contents, _, _ = outcome("group", "chunk 0")
    assert contents["g/zarr.json"] == group_document(ord("O"))


@pytest.mark.parametrize(
    ("key", "conflicts"), [("scale_factor", True), ("units", True), ("long_name", False)]
)
def test_another_meaning_conflicts_with_chunks_of_other_writers(key, conflicts):
    repository = new_repository()
    session = repository.writable_session()
    array(session, "/a")
    session.commit("base")
    late = repository.writable_session()
    late.set_attributes("/a", {key: 2})
    winner = repository.writable_session()
    winner.set_chunk("/a", [1], b"under the old meaning")
    winner.commit("a chunk")
    if conflicts:
        with raises(ConflictError, kinds=("CHUNKS_OF_OTHER_MEANING",), paths=("/a",)):
            late.commit("another meaning")
    else:
        late.commit("a description")


def test_what_both_deleted_is_deleted_once():
    contents, repository, result = outcome("delete group", "delete array")
    assert sorted(contents) == ["b/zarr.json", "zarr.json"]
    log = repository.transaction_log(result.snapshot_id)
    assert log.deleted_arrays == ()
    assert len(log.deleted_groups) == 1
    contents, repository, result = outcome("delete array", "delete group")
    assert repository.transaction_log(result.snapshot_id).is_empty


@pytest.mark.parametrize(("ours", "theirs"), [("array", "array"), ("group", "group")])
def test_what_others_created_anew_is_not_taken_for_deleted(ours, theirs):
    with raises(ConflictError, branch="main", kinds=("DELETED_NODE_RECREATED",)):
        outcome(f"delete {ours}", f"recreate {theirs}")


@pytest.mark.parametrize(("resolve", "payload"), [("ours", b"O"), ("theirs", b"T")])
def test_chunks_that_both_wrote_can_be_resolved(resolve, payload):
    contents, repository, result = outcome("chunk 0", "chunk 0", resolve=resolve)
    assert contents["g/a/c/0"] == payload
    log = repository.transaction_log(result.snapshot_id)
    assert bool(log.updated_chunks) == (resolve == "ours")


def test_nothing_but_chunks_can_be_resolved():
    with raises(ConflictError, branch="main", kinds=("METADATA_UPDATED_TWICE",), paths=("/g/a",)):
        outcome("attributes", "attributes", resolve="ours")


@pytest.mark.parametrize(("ours", "theirs"), [("array", "array"), ("array", "group")])
def test_what_others_deleted_is_not_created_again(ours, theirs):
    with pytest.raises(ConflictError) as caught:
        outcome(f"recreate {ours}", f"delete {theirs}")
    assert K.REPLACED_NODE_DELETED in kinds_of(caught.value)


def resized_grid(session, shape, chunk_shape, grid=None):
    document = json.loads(array_document(shape, chunk_shape))
    if grid is not None:
        document["chunk_grid"] = grid
    counts = [-(-n // c) for n, c in zip(shape, chunk_shape, strict=True)]
    where = {"shape": shape, "num_chunks": counts}
    if session.node("/a") is None:
        session.create_array("/a", json.dumps(document).encode(), **where)
    else:
        session.update_metadata("/a", json.dumps(document).encode(), **where)


@pytest.mark.parametrize(
    ("chunks", "shape", "written", "conflicts"),
    [
        # One axis: chunks [0, 3), [3, 6), [6, 9).
        ((3,), (8,), (2,), True),
        ((3,), (7,), (2,), True),
        ((3,), (6,), (2,), True),
        ((3,), (7,), (1,), False),
        ((3,), (6,), (1,), False),
        ((3,), (5,), (1,), True),
        ((3,), (3,), (0,), False),
        ((3,), (0,), (0,), True),
        # Only along the second axis.
        ((2, 3), (4, 5), (0, 0), False),
        ((2, 3), (4, 5), (0, 1), True),
        ((2, 3), (4, 5), (1, 1), True),
        ((2, 3), (4, 3), (1, 0), False),
        # The first axis grows.
        ((2, 3), (6, 5), (1, 1), True),
        ((2, 3), (6, 5), (1, 0), False),
    ],
)
@pytest.mark.parametrize("resolve", [None, "ours", "theirs"])
def test_chunks_that_a_smaller_shape_cuts(chunks, shape, written, conflicts, resolve):
    """A cell beyond the new shape would be hidden, and appear when the array grows again."""
    repository = new_repository()
    session = repository.writable_session()
    session.create_group("/", group_document())
    resized_grid(session, (9,) if len(shape) == 1 else (4, 6), chunks)
    session.commit("base")
    session = repository.writable_session()
    resized_grid(session, shape, chunks)
    rival = repository.writable_session()
    rival.set_chunk("/a", written, b"T")
    rival.commit("theirs")
    if not conflicts:
        session.commit("ours", resolve=resolve)
        return
    with raises(ConflictError, kinds=("CHUNKS_OF_SMALLER_ARRAY",)):
        session.commit("ours", resolve=resolve)


def test_an_array_without_conflicts_hides_none_of_the_next_array():
    for ours, written, kind in (
        (("chunk 0", lambda s: resize(s, "/b", 1)), [1], K.CHUNKS_OF_SMALLER_ARRAY),
        (("shrink", lambda s: s.set_chunk("/b", [0], b"O")), [0], K.CHUNKS_WRITTEN_TWICE),
    ):
        repository = begun()
        session = repository.writable_session()
        ACTIONS[ours[0]](session, b"O")
        ours[1](session)
        rival = repository.writable_session()
        rival.set_chunk("/b", written, b"T")
        rival.commit("theirs")
        with raises(ConflictError, kinds=(kind.name,)):
            session.commit("ours")


def test_the_last_chunk_of_an_unknown_grid_counts_as_cut():
    grid = {"name": "rectilinear", "configuration": {"chunk_shapes": [[3, 3, 3]]}}
    for written, conflicts in (((1,), True), ((0,), False)):
        repository = new_repository()
        session = repository.writable_session()
        session.create_group("/", group_document())
        resized_grid(session, (9,), (3,), grid)
        session.commit("base")
        session = repository.writable_session()
        resized_grid(session, (5,), (3,), grid)
        rival = repository.writable_session()
        rival.set_chunk("/a", written, b"T")
        rival.commit("theirs")
        if conflicts:
            with raises(ConflictError, kinds=("CHUNKS_OF_SMALLER_ARRAY",)):
                session.commit("ours")
        else:
            session.commit("ours")


@pytest.mark.parametrize("resolve", ["ours", "theirs"])
def test_manifests_of_executors_can_be_resolved(resolve):
    repository = begun()
    session = repository.writable_session()
    refs = store_chunks(repository.storage, [[0], [1], [2]], [b"O"] * 3, inline_threshold=512)
    [receipts] = store_manifests(
        repository.storage, session.format, [(session.node("/g/a").id, [refs])]
    )
    session.add_manifests("/g/a", receipts)
    other = repository.writable_session()
    other.set_chunks("/g/a", [[1], [3]], [b"T", b"T"])
    other.commit("theirs")
    result = session.commit("ours", resolve=resolve)
    contents = stored_contents(repository, result.snapshot_id)
    middle = b"O" if resolve == "ours" else b"T"
    assert [contents[f"g/a/c/{i}"] for i in range(4)] == [b"O", middle, b"O", b"T"]
    [coords] = repository.transaction_log(result.snapshot_id).updated_chunks.values()
    assert coords[:, 0].tolist() == ([0, 1, 2] if resolve == "ours" else [0, 2])


def test_the_message_names_what_who_and_what_to_do():
    repository = begun()
    session = repository.writable_session()
    session.set_chunks("/g/a", [[i] for i in range(4)], [b"O"] * 4)
    theirs = repository.writable_session()
    theirs.set_chunks("/g/a", [[i] for i in range(1, 4)], [b"T"] * 3)
    their_id = theirs.commit("theirs").snapshot_id
    with pytest.raises(ConflictError) as caught:
        session.commit("ours")
    text = str(caught.value)
    assert f"/g/a: chunks that both wrote ((1,), (2,), (3,)), in snapshot {their_id}" in text
    last_line = text.splitlines()[-1]
    assert "nothing was committed" in last_line
    assert "resolve='ours'" in last_line
    assert caught.value.facts["paths"] == ("/g/a",)
    assert caught.value.facts["snapshots"] == (str(their_id),)


def test_failing_is_an_option():
    repository = begun()
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    tip = commit_theirs(repository, "other chunk")
    with raises(ConflictError, branch="main", found=str(tip)):
        session.commit("ours", on_conflict="fail")
    assert session.rebase() == 1
    assert session.rebase() == 0
    assert session.commit("ours", on_conflict="fail").parent_id == tip


def test_a_lost_race_costs_two_small_files():
    repository = begun()
    session = repository.writable_session()
    session.set_chunks("/b", [[i] for i in range(4)], [b"x" * 600] * 4)
    session.set_chunks("/g/a", [[i] for i in range(1, 4)], [b"x" * 600] * 3)
    commits = iter(["chunk 0", "new array", "new apart"])
    advance = session._tip.advance

    def advance_late(info):
        for theirs in commits:
            commit_theirs(repository, theirs)
        return advance(info)

    session._tip.advance = advance_late
    result = session.commit("ours")
    assert result.rebased == 1
    assert result.files_written == {
        "chunks": 7,
        "manifests": 2,
        "snapshots": 2,
        "transactions": 2,
    }


@pytest.mark.parametrize("spec_version", [1, 2])
def test_many_lost_races_are_passed_one_by_one(spec_version):
    repository = begun(spec_version)
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    commits = iter(range(5))
    advance = session._tip.advance

    def advance_late(info):
        for number in commits:
            other = repository.writable_session()
            array(other, f"/late{number}")
            other.commit("late")
            break
        return advance(info)

    session._tip.advance = advance_late
    result = session.commit("ours")
    assert result.rebased == 5
    messages = [info.message for info in repository.ancestry()]
    assert messages[:7] == ["ours", *["late"] * 5, "base"]


def test_giving_up_after_so_many_tries():
    repository = begun()
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    numbers = itertools.count()
    advance = session._tip.advance

    def advance_late(info):
        other = repository.writable_session()
        array(other, f"/late{next(numbers)}")
        other.commit("late")
        return advance(info)

    session._tip.advance = advance_late
    with raises(ConflictError, attempts=3):
        session.commit("ours", rebase_tries=2)
    session._tip.advance = advance
    session.commit("ours")


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_branch_that_was_reset_is_not_committed_to(spec_version):
    repository = begun(spec_version)
    base = repository.resolve()
    middle = commit_theirs(repository, "new apart")
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    repository.reset_branch("main", base, from_=middle)
    with raises(ConflictError, match="is not in the history of branch 'main'", branch="main"):
        session.commit("ours")
    assert repository.resolve() == base


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_branch_that_was_deleted_is_not_committed_to(spec_version):
    repository = begun(spec_version)
    repository.create_branch("develop", repository.resolve())
    session = repository.writable_session("develop")
    ACTIONS["chunk 1"](session, b"O")
    repository.delete_branch("develop")
    with raises(ConflictError, match=r"'develop' of .* was deleted", branch="develop"):
        session.commit("ours")
    assert "develop" not in repository.branches()


def test_an_amended_parent_is_no_parent_any_more():
    repository = begun()
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    other = repository.writable_session()
    ACTIONS["other chunk"](other, b"T")
    other.amend("better")
    with raises(ConflictError, branch="main", is_ancestor=False):
        session.commit("ours")
    with raises(
        ConflictError, match="is at snapshot .* now, but snapshot", branch="main", found=...
    ):
        session.amend("ours")


def test_without_its_log_a_commit_cannot_be_compared():
    repository = begun()
    session = repository.writable_session()
    ACTIONS["chunk 1"](session, b"O")
    tip = commit_theirs(repository, "new apart")
    repository.storage.delete_many([f"transactions/{tip}"])
    with raises(ConflictError, branch="main", snapshot=str(tip)):
        session.commit("ours")


@pytest.mark.parametrize("seed", range(10))
def test_disjoint_writers_lose_nothing(seed):
    """Several sessions of one beginning write chunks of their own; all must be there."""
    random = np.random.default_rng(seed)
    repository = begun()
    session = repository.writable_session()
    document = array_document((12, 12), (1, 1))
    session.create_array("/w", document, shape=(12, 12), num_chunks=(12, 12))
    session.commit("grid")
    owner = random.integers(0, 4, (12, 12))
    sessions = [repository.writable_session() for _ in range(4)]
    written = {}
    for number, session in enumerate(sessions):
        coords = np.argwhere(owner == number)
        coords = coords[random.random(len(coords)) < 0.7]
        payload = bytes([65 + number])
        session.set_chunks("/w", coords, [payload] * len(coords))
        written.update({f"w/c/{i}/{j}": payload for i, j in coords.tolist()})
    for session in sessions:
        session.commit("mine")
    contents = stored_contents(repository, repository.resolve())
    assert {k: v for k, v in contents.items() if k.startswith("w/c")} == written


def test_messages_of_other_writers_forge_no_lines_of_the_log(caplog):
    caplog.set_level("INFO", logger="icechunk_format")
    repository = begun()
    session = repository.writable_session()
    session.set_chunk("/b", [0], b"O")
    rival = repository.writable_session()
    rival.set_chunk("/g/a", [1], b"T")
    rival.commit("theirs\ncommitted FORGED\x1b[31m\u200f\u2028")
    session.commit("ours\nFORGED")
    lines = [record.getMessage() for record in caplog.records]
    assert sum("FORGED" in line for line in lines) >= 3
    assert all(line.isprintable() for line in lines)
