"""We and the reference take turns on one repository, and both always show the same.

Random changes, that a model follows, go through one library and then the other; after each commit
both must show what the model holds.
"""

from datetime import UTC, datetime, timedelta

import icechunk
import pytest
from helpers.builder import reference_repository
from helpers.reference.sessions import ReferenceDriver, assert_both_hold, open_reference
from helpers.sessions.model import Model, ModelNode, OurDriver, RandomChanges
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache


def our_commit(directory, changes, message, steps):
    session = Repository.open(str(directory)).writable_session()
    changes.session(OurDriver(session), steps)
    session.commit(message, allow_empty=True)


def reference_commit(directory, changes, message, steps):
    session = open_reference(directory).writable_session("main")
    changes.session(ReferenceDriver(session), steps)
    session.commit(message, allow_empty=True)


def our_moves(directory, changes, message):
    session = Repository.open(str(directory)).writable_session()
    if changes.move(OurDriver(session)):
        # The second move may undo the first.
        changes.move(OurDriver(session))
        session.commit(message, allow_empty=True)


def reference_moves(directory, changes, message):
    session = open_reference(directory).rearrange_session("main")
    if changes.move(ReferenceDriver(session)):
        changes.move(ReferenceDriver(session))
        session.commit(message, allow_empty=True)


@pytest.mark.parametrize("splits", [None, 2], ids=["whole", "split"])
@pytest.mark.parametrize("seed", range(3))
def test_both_take_turns(tmp_path, seed, splits):
    config = None
    if splits:
        config = icechunk.RepositoryConfig.default()
        any_dimension = icechunk.ManifestSplitDimCondition.Any()
        config.manifest = icechunk.ManifestConfig(
            splitting=icechunk.ManifestSplittingConfig.from_dict(
                {icechunk.ManifestSplitCondition.AnyArray(): {any_dimension: splits}}
            )
        )
        reference_repository(tmp_path, config=config)
    else:
        Repository.create(str(tmp_path))
    model = Model()
    changes = RandomChanges(model, seed)
    for number in range(5):
        our_commit(tmp_path, changes, f"ours {number}", steps=10)
        assert_both_hold(tmp_path, model.keys())
        reference_commit(tmp_path, changes, f"theirs {number}", steps=10)
        assert_both_hold(tmp_path, model.keys())
        if number == 1:
            our_moves(tmp_path, changes, "our moves")
        elif number == 2:
            reference_moves(tmp_path, changes, "their moves")
        elif number == 3:
            open_reference(tmp_path).rewrite_manifests("rewritten", branch="main")
    ours, theirs = assert_both_hold(tmp_path, model.keys())
    assert [str(info.id) for info in ours.ancestry()] == [
        info.id for info in theirs.ancestry(branch="main")
    ]


def our_amendment(directory, changes):
    session = Repository.open(str(directory)).writable_session()
    changes.session(OurDriver(session), 6)
    session.amend("amended by us", allow_empty=True)


def reference_amendment(directory, changes):
    session = open_reference(directory).writable_session("main")
    changes.session(ReferenceDriver(session), 6)
    session.amend("amended by the reference", allow_empty=True)


def own_array(model, path, version):
    """Tell the model of an array of one chunk, which others know nothing of."""
    model.nodes[path] = ModelNode(version=version, shape=(1,), chunk_shape=(1,))
    model.nodes[path].chunks[(0,)] = path.encode()
    return model.nodes[path]


def add_array(driver, path, node):
    driver.create_array(path, node)
    driver.set_chunks(path, [(0,)], [node.chunks[(0,)]])


def our_rebase(directory, changes):
    """Begin, let the reference commit random changes, and commit over them."""
    ours = Repository.open(str(directory)).writable_session()
    reference_commit(directory, changes, "theirs first", steps=6)
    path = f"/ours{changes.random.randrange(10**6)}"
    add_array(OurDriver(ours), path, own_array(changes.model, path, 1))
    assert ours.commit("ours over theirs").rebased == 1


def reference_rebase(directory, changes):
    """Let the reference begin and us commit random changes; then it commits over them."""
    theirs = open_reference(directory).writable_session("main")
    our_commit(directory, changes, "ours first", steps=6)
    path = f"/theirs{changes.random.randrange(10**6)}"
    add_array(ReferenceDriver(theirs), path, own_array(changes.model, path, 2))
    theirs.commit("theirs over ours", rebase_with=icechunk.ConflictDetector())


def reference_rewrite(directory, changes):
    open_reference(directory).rewrite_manifests("rewritten", branch="main")


def reference_cleaning(directory, changes):
    """Let the reference forget all but the newest versions and delete what only they had."""
    later = datetime.now(UTC) + timedelta(seconds=5)
    theirs = open_reference(directory)
    theirs.expire_snapshots(later)
    theirs.garbage_collect(later)
    # Nothing of what was deleted may come from memory.
    metadata_cache().clear()


TURNS = {
    "our commit": lambda d, c: our_commit(d, c, "ours", steps=6),
    "their commit": lambda d, c: reference_commit(d, c, "theirs", steps=6),
    "our amendment": our_amendment,
    "their amendment": reference_amendment,
    "our rebase": our_rebase,
    "their rebase": reference_rebase,
    "our moves": lambda d, c: our_moves(d, c, "our moves"),
    "their moves": lambda d, c: reference_moves(d, c, "their moves"),
    "their rewrite": reference_rewrite,
    "their cleaning": reference_cleaning,
}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**16), turns=st.lists(st.sampled_from(sorted(TURNS)), max_size=8))
def test_all_operations_in_any_order(tmp_path_factory, seed, turns):
    """Whatever one library does on top of whatever the other one did, both read the same."""
    directory = tmp_path_factory.mktemp("turns")
    Repository.create(str(directory))
    model = Model()
    changes = RandomChanges(model, seed)
    our_commit(directory, changes, "first", steps=8)
    moved = False
    for turn in turns:
        # A version that moves nodes cannot be amended with changes, nor the other way round.
        if moved and "amendment" in turn:
            continue
        TURNS[turn](directory, changes)
        moved = "moves" in turn or (moved and turn == "their cleaning")
        ours, theirs = assert_both_hold(directory, model.keys())
        assert [str(info.id) for info in ours.ancestry()] == [
            info.id for info in theirs.ancestry(branch="main")
        ]


@pytest.mark.parametrize("seed", range(2))
def test_both_take_turns_in_spec_version_1(tmp_path, seed):
    Repository.create(str(tmp_path), spec_version=1)
    model = Model()
    changes = RandomChanges(model, seed)
    for number in range(3):
        our_commit(tmp_path, changes, f"ours {number}", steps=10)
        assert_both_hold(tmp_path, model.keys())
        reference_commit(tmp_path, changes, f"theirs {number}", steps=10)
        ours, theirs = assert_both_hold(tmp_path, model.keys())
    assert [(str(i.id), i.message) for i in ours.ancestry()] == [
        (i.id, i.message) for i in theirs.ancestry(branch="main")
    ]
