"""The reference reads, extends, maintains and rebases over what we wrote, and we over theirs.

Two libraries take turns on one repository, with random changes that a model follows; after each
commit both must show what the model holds. Then the single operations of the reference that read
what readers never look at: differences, amendments, rebases, expiry and collection.
"""

import asyncio
import itertools
import secrets
from datetime import UTC, datetime, timedelta

import icechunk
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_model import (
    Model,
    ModelNode,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.errors import ConflictError
from icechunk_format.repository.chunk_files import store_chunks
from icechunk_format.repository.coord_set import CoordSet
from icechunk_format.repository.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.repository.objects import metadata_cache
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.ids import ManifestId

icechunk.set_logs_filter("off")
PROTOTYPE = default_buffer_prototype()


def open_reference(directory, config=None):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(directory)), config)


class ReferenceDriver:
    """Makes changes in a session of the reference, through its Zarr store."""

    def __init__(self, session):
        self.session = session

    def _key(self, path, name):
        return f"{path[1:]}/{name}" if path != "/" else name

    def _set(self, items):
        async def run():
            for key, data in items:
                await self.session.store.set(key, PROTOTYPE.buffer.from_bytes(data))

        asyncio.run(run())

    def _chunk_key(self, path, coords):
        return self._key(path, "/".join(["c", *map(str, coords)]))

    def create_group(self, path, document):
        self._set([(self._key(path, "zarr.json"), document)])

    def create_array(self, path, node):
        self._set([(self._key(path, "zarr.json"), node.document)])

    def update(self, path, node):
        self._set([(self._key(path, "zarr.json"), node.document)])

    def set_chunks(self, path, coords, payloads):
        keys = [self._chunk_key(path, place) for place in coords]
        self._set(zip(keys, payloads, strict=True))

    def delete_chunks(self, path, coords):
        async def run():
            for place in coords:
                await self.session.store.delete(self._chunk_key(path, place))

        asyncio.run(run())

    def shift(self, path, offset):
        self.session.shift_array(path, offset)

    def delete(self, path):
        asyncio.run(self.session.store.delete_dir(path[1:]))

    def move(self, source, target):
        self.session.move(source, target)


def reference_contents(session):
    """Return every key of a session's store with its bytes."""

    async def collect():
        keys = [key async for key in session.store.list()]
        values = await asyncio.gather(*(session.store.get(key, PROTOTYPE) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


def assert_both_hold(directory, keys, branch="main"):
    ours = Repository.open(str(directory))
    assert stored_contents(ours, ours.resolve(branch=branch)) == keys
    theirs = open_reference(directory)
    assert reference_contents(theirs.readonly_session(branch)) == keys
    return ours, theirs


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
        icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)), config)
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


def start(directory, spec_version=2):
    """Create a repository with a few nodes through us; return it."""
    repository = Repository.create(str(directory), spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    session.create_group("/g", group_document())
    for path in ("/g/a", "/b"):
        session.create_array(path, array_document((6,), (1,)), shape=(6,), num_chunks=(6,))
        session.set_chunks(
            path, [[i] for i in range(6)], [b"base" * (1 + 200 * i) for i in range(6)]
        )
    session.commit("base", metadata={"by": "us"})
    return repository


def put_chunk(store, key, data):
    asyncio.run(store.set(key, PROTOTYPE.buffer.from_bytes(data)))


def get_chunk(session, key):
    return asyncio.run(session.store.get(key, PROTOTYPE)).to_bytes()


def test_the_reference_sees_the_same_differences(tmp_path):
    repository = start(tmp_path)
    base = repository.resolve()
    session = repository.writable_session()
    session.set_chunk("/g/a", [1], b"new")
    session.delete_chunks("/g/a", [[2]])
    session.update_metadata("/b", array_document((9,), (1,)), shape=(9,), num_chunks=(9,))
    session.create_group("/n", group_document())
    session.create_array("/n/c", array_document((2,), (1,)), shape=(2,), num_chunks=(2,))
    session.set_chunk("/n/c", [1], b"c")
    session.update_metadata("/g", group_document(5))
    tip = session.commit("changes").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(base), to_snapshot_id=str(tip))
    assert found.new_groups == {"/n"}
    assert found.new_arrays == {"/n/c"}
    assert found.updated_groups == {"/g"}
    assert found.updated_arrays == {"/b"}
    assert {path: sorted(map(tuple, coords)) for path, coords in found.updated_chunks.items()} == {
        "/g/a": [(1,), (2,)],
        "/n/c": [(1,)],
    }
    session = repository.writable_session()
    session.delete("/n")
    gone = session.commit("gone").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(tip), to_snapshot_id=str(gone))
    assert found.deleted_groups == {"/n"}
    assert found.deleted_arrays == {"/n/c"}
    session = repository.writable_session()
    session.move("/g", "/b-group")
    moved = session.commit("moved").snapshot_id
    found = open_reference(tmp_path).diff(from_snapshot_id=str(gone), to_snapshot_id=str(moved))
    assert sorted(map(tuple, found.moved_nodes)) == [
        ("/g", "/b-group"),
        ("/g/a", "/b-group/a"),
    ]


def test_the_reference_amends_what_we_committed_and_we_amend_theirs(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path)
    session = theirs.writable_session("main")
    put_chunk(session.store, "b/c/0", b"amended")
    amended = session.amend("amended by the reference")
    infos = list(Repository.open(str(tmp_path)).ancestry())
    assert str(infos[0].id) == amended
    assert len(infos) == 2
    ours = repository.writable_session()
    ours.set_chunk("/b", [1], b"again")
    result = ours.amend("amended by us")
    contents = reference_contents(open_reference(tmp_path).readonly_session("main"))
    assert (contents["b/c/0"], contents["b/c/1"]) == (b"amended", b"again")
    history = list(open_reference(tmp_path).ancestry(branch="main"))
    assert [info.message for info in history] == ["amended by us", "Repository initialized"]
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.new_arrays) == 2
    assert log.updated_arrays == ()
    assert [len(coords) for coords in log.updated_chunks.values()] == [6, 6]
    diff = open_reference(tmp_path).diff(
        from_snapshot_id=history[1].id, to_snapshot_id=history[0].id
    )
    assert diff.new_arrays == {"/b", "/g/a"}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_reference_rebases_over_us_and_we_over_them(tmp_path, spec_version):
    repository = start(tmp_path, spec_version)
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/0", b"theirs")
    ours = repository.writable_session()
    ours.set_chunk("/b", [1], b"ours")
    ours.commit("ours first")
    theirs.commit("theirs over ours", rebase_with=icechunk.ConflictDetector())

    ours = repository.writable_session()
    ours.set_chunk("/b", [2], b"ours")
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/3", b"theirs")
    theirs.commit("theirs first")
    assert ours.commit("ours over theirs").rebased == 1
    contents = stored_contents(repository, repository.resolve())
    assert [contents[f"b/c/{i}"] for i in range(4)] == [b"theirs", b"ours", b"ours", b"theirs"]
    assert reference_contents(open_reference(tmp_path).readonly_session("main")) == contents


def test_both_find_the_same_conflicts(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path).writable_session("main")
    put_chunk(theirs.store, "b/c/0", b"theirs")
    ours = repository.writable_session()
    late = repository.writable_session()
    ours.set_chunk("/b", [0], b"ours")
    late.set_chunk("/b", [0], b"late")
    ours.commit("ours first")
    with pytest.raises(icechunk.RebaseFailedError) as caught:
        theirs.commit("theirs", rebase_with=icechunk.ConflictDetector())
    [conflict] = caught.value.conflicts
    assert conflict.conflict_type == icechunk.ConflictType.ChunkDoubleUpdate
    assert conflict.conflicted_chunks == [[0]]
    with pytest.raises(ConflictError, match=r"chunks that both wrote \(\(0,\)\)"):
        late.commit("late")


def test_the_reference_reads_and_extends_manifests_of_executors(tmp_path):
    repository = start(tmp_path)
    session = repository.writable_session()
    session.create_array("/w", array_document((40, 8), (1, 1)), shape=(40, 8), num_chunks=(40, 8))
    node_id = session.node("/w").id
    receipts = []
    expected = {}
    for block in range(4):
        coords = list(itertools.product(range(block * 10, block * 10 + 10), range(8)))
        payloads = [bytes([block, j]) * 400 for _, j in coords]
        expected.update(
            (f"w/c/{i}/{j}", payload) for (i, j), payload in zip(coords, payloads, strict=True)
        )
        refs = store_chunks(repository.storage, coords, payloads, inline_threshold=512)
        [written] = store_manifests(repository.storage, session.format, [(node_id, refs)])
        receipts += written
    session.add_manifests("/w", receipts)
    session.commit("parallel")
    theirs = open_reference(tmp_path)
    assert len(theirs.list_manifest_files(theirs.lookup_branch("main"))) == 6
    found = reference_contents(theirs.readonly_session("main"))
    assert {k: v for k, v in found.items() if k.startswith("w/c")} == expected
    session = theirs.writable_session("main")
    put_chunk(session.store, "w/c/15/3", b"theirs")
    session.commit("theirs on top")
    expected["w/c/15/3"] = b"theirs"
    theirs.rewrite_manifests("one manifest", branch="main")
    contents = stored_contents(repository, repository.resolve())
    assert {k: v for k, v in contents.items() if k.startswith("w/c")} == expected


def test_the_reference_expires_and_collects_what_we_wrote(tmp_path):
    repository = start(tmp_path)
    for number in range(4):
        session = repository.writable_session()
        session.set_chunk("/b", [number], bytes([number]) * 700)
        session.commit(f"commit {number}")
    repository.create_tag("keep", list(repository.ancestry())[2].id)
    session = repository.writable_session()
    session.set_chunk("/b", [5], b"detached" * 200)
    detached = session.flush("detached")
    expected = stored_contents(repository, repository.resolve())
    theirs = open_reference(tmp_path)
    later = datetime.now(UTC) + timedelta(seconds=5)
    expired = theirs.expire_snapshots(later)
    assert len(expired) >= 2
    summary = theirs.garbage_collect(later)
    assert summary.snapshots_deleted >= 2
    assert summary.chunks_deleted >= 1
    ours, theirs = assert_both_hold(tmp_path, expected)
    assert detached not in {info.id for info in ours.ancestry()}
    assert stored_contents(ours, ours.resolve(tag="keep"))["b/c/1"] == bytes([1]) * 700
    # Both go on after the history was cut, over the pruned logs too.
    session = ours.writable_session()
    session.set_chunk("/b", [4], b"later")
    session.commit("later")
    expected["b/c/4"] = b"later"
    assert_both_hold(tmp_path, expected)


def test_we_rebase_over_history_that_the_reference_pruned(tmp_path):
    repository = Repository.create(str(tmp_path))
    early, conflicting, late = (repository.writable_session() for _ in range(3))
    session = repository.writable_session()
    session.create_group("/", group_document())
    pruned = session.commit("pruned").snapshot_id
    session = repository.writable_session()
    session.create_array("/b", array_document((6,), (1,)), shape=(6,), num_chunks=(6,))
    tip = session.commit("kept").snapshot_id
    open_reference(tmp_path).expire_snapshots(datetime.now(UTC) + timedelta(seconds=5))
    [kept, _] = repository.ancestry()
    assert (kept.id, kept.pruned_ancestor_tx_logs) == (tip, (pruned,))
    assert early.commit("empty", allow_empty=True).parent_id == tip
    conflicting.create_group("/", group_document())
    with pytest.raises(ConflictError, match="created here, but there is such a node now"):
        conflicting.commit("late")
    repository.storage.delete_many([f"transactions/{pruned}"])
    metadata_cache().clear()
    with pytest.raises(ConflictError, match=f"log {pruned} of snapshot {tip} is gone"):
        late.commit("empty", allow_empty=True)


def test_both_continue_one_log(tmp_path):
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 4
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)), config)
    for number in range(6):
        ours = Repository.open(str(tmp_path))
        ours.create_tag(f"ours-{number}", ours.resolve())
        theirs = open_reference(tmp_path)
        theirs.create_tag(f"theirs-{number}", theirs.lookup_branch("main"))
    their_log = list(open_reference(tmp_path).ops_log())
    our_log = list(Repository.open(str(tmp_path)).operations())
    assert len(their_log) == len(our_log) == 13
    names = [f"{who}-{n}" for n in reversed(range(6)) for who in ("theirs", "ours")]
    assert [entry.kind.name for entry in their_log[:-1]] == names
    assert [entry.details.name for entry in our_log[:-1]] == names


def test_our_refs_are_theirs(tmp_path):
    repository = start(tmp_path)
    base = repository.resolve()
    repository.create_branch("dev/x", base)
    repository.create_tag("v/1", base)
    repository.create_tag("gone", base)
    repository.delete_tag("gone")
    session = repository.writable_session("dev/x")
    session.set_chunk("/b", [0], b"dev")
    tip = session.commit("on dev").snapshot_id
    theirs = open_reference(tmp_path)
    assert theirs.list_branches() == {"main", "dev/x"}
    assert theirs.lookup_branch("dev/x") == str(tip)
    assert theirs.list_tags() == {"v/1"}
    with pytest.raises(icechunk.IcechunkError):
        theirs.create_tag("gone", str(base))
    assert repository.fast_forward("main", "dev/x") == tip
    theirs = open_reference(tmp_path)
    assert theirs.lookup_branch("main") == str(tip)
    theirs.reset_branch("main", str(base))
    theirs.create_tag("theirs", str(tip))
    repository.delete_branch("dev/x")
    assert repository.branches() == {"main": base}
    assert repository.tags() == {"theirs": tip, "v/1": base}
    kinds = [type(entry.kind).__name__ for entry in open_reference(tmp_path).ops_log()]
    assert kinds == [
        "BranchDeleted",
        "TagCreated",
        "BranchReset",
        "BranchReset",
        "NewCommit",
        "TagDeleted",
        "TagCreated",
        "TagCreated",
        "BranchCreated",
        "NewCommit",
        "RepoInitialized",
    ]


def test_our_refs_of_spec_version_1_are_theirs(tmp_path):
    repository = start(tmp_path, spec_version=1)
    base = repository.resolve()
    repository.create_branch("dev", base)
    repository.create_tag("v1", base)
    repository.create_tag("gone", base)
    repository.delete_tag("gone")
    session = repository.writable_session("dev")
    session.set_chunk("/b", [0], b"dev")
    tip = session.commit("on dev").snapshot_id
    theirs = open_reference(tmp_path)
    assert theirs.list_branches() == {"main", "dev"}
    assert theirs.lookup_branch("dev") == str(tip)
    assert theirs.list_tags() == {"v1"}
    with pytest.raises(icechunk.IcechunkError):
        theirs.create_tag("gone", str(base))
    assert repository.fast_forward("main", "dev") == tip
    assert open_reference(tmp_path).lookup_branch("main") == str(tip)
    repository.reset_branch("main", base, from_=tip)
    repository.delete_branch("dev")
    assert open_reference(tmp_path).list_branches() == {"main"}


def test_the_reference_migrates_what_we_wrote_in_spec_version_1(tmp_path):
    repository = start(tmp_path, spec_version=1)
    expected = stored_contents(repository, repository.resolve())
    theirs = open_reference(tmp_path)
    icechunk.upgrade_icechunk_repository(theirs, dry_run=False)
    ours, _ = assert_both_hold(tmp_path, expected)
    assert ours.spec_version == 2
    session = ours.writable_session()
    session.set_chunk("/b", [0], b"after")
    session.commit("after the migration")
    expected["b/c/0"] = b"after"
    assert_both_hold(tmp_path, expected)


def test_status_and_flags_are_honoured_by_both(tmp_path):
    repository = start(tmp_path)
    theirs = open_reference(tmp_path)
    theirs.set_feature_flag("move_node", False)
    session = repository.writable_session()
    with pytest.raises(Exception, match="feature flag 3"):
        session.move("/b", "/c")
    repository.set_feature_flag(3, None)
    open_reference(tmp_path).rearrange_session("main")


def test_a_large_commit_cut_into_manifests_is_readable(tmp_path):
    """Bulk references, cut into several manifests, through the reference's eyes."""
    repository = start(tmp_path)
    session = repository.writable_session()
    session.create_array(
        "/big", array_document((300, 300), (1, 1)), shape=(300, 300), num_chunks=(300, 300)
    )
    coords = np.argwhere(np.ones((300, 300), dtype=bool))
    session.set_chunks("/big", coords, [b"%d" % n for n in range(len(coords))])
    session._assembler._format = type(session.format)(spec_version=2, max_refs=20_000)
    session.commit("big")
    theirs = open_reference(tmp_path)
    assert len(theirs.list_manifest_files(theirs.lookup_branch("main"))) == 7
    opened = theirs.readonly_session("main")
    for i, j in ((0, 0), (66, 299), (150, 7), (299, 299)):
        assert get_chunk(opened, f"big/c/{i}/{j}") == b"%d" % (i * 300 + j)


def test_a_log_of_a_million_chunks_is_readable(tmp_path):
    """Boxes, gaps and single chunks of many tasks, generated block by block while it is written."""
    repository = start(tmp_path)
    session = repository.writable_session()
    shape = (400, 50, 50)
    session.create_array("/big", array_document(shape, (1, 1, 1)), shape=shape, num_chunks=shape)
    is_there = np.ones(shape, dtype=bool)
    is_there[::7, ::3, 5] = False
    is_there[300:] = False
    receipts = []
    for low, high in itertools.product(range(0, 300, 100), (0, 25)):
        part = np.zeros(shape, dtype=bool)
        part[low : low + 100, high : high + 25] = is_there[low : low + 100, high : high + 25]
        coords = CoordSet.of(np.argwhere(part))
        extents = tuple(map(tuple, coords.bounds().tolist()))
        receipts.append(
            ManifestReceipt(
                manifest_id=ManifestId.from_random(secrets.token_bytes(12)),
                size_bytes=1,
                num_chunk_refs=coords.count,
                extents=extents,
                coords=coords,
            )
        )
    # Nobody reads these manifests here; what counts is the log.
    session.add_manifests("/big", receipts)
    session.set_chunk("/big", [350, 1, 2], b"x")
    is_there[350, 1, 2] = True
    result = session.commit("big")
    log = repository.transaction_log(result.snapshot_id)
    expected = np.argwhere(is_there)
    assert log.num_updated_chunks == len(expected) > 700_000
    theirs = open_reference(tmp_path)
    found = theirs.diff(
        from_snapshot_id=str(result.parent_id), to_snapshot_id=str(result.snapshot_id)
    )
    assert (np.array(sorted(found.updated_chunks["/big"])) == expected).all()
    [coords] = log.updated_chunks.values()
    assert (coords == expected).all()
