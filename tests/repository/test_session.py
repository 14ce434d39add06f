"""What a session changes is what its version holds, and nothing else is written.

Random changes are compared with a model after every commit, under several ways of splitting
manifests; single properties that a user pays for (what an append costs, what stays as it is) have
tests of their own.
"""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from session_model import (
    Model,
    OurDriver,
    RandomChanges,
    array_document,
    group_document,
    stored_contents,
)

from icechunk_format.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from icechunk_format.repository import manifest_plan
from icechunk_format.repository.chunk_files import store_chunks
from icechunk_format.repository.coord_set import CoordSet
from icechunk_format.repository.manifest_files import ManifestReceipt, store_manifests
from icechunk_format.repository.manifests import manifest_files_of
from icechunk_format.repository.objects import metadata_cache
from icechunk_format.repository.publish import update_repo
from icechunk_format.repository.repo_changes import set_config
from icechunk_format.repository.repository import Repository
from icechunk_format.spec import snapshot as snapshot_file
from icechunk_format.spec.chunk_refs import ChunkRefs
from icechunk_format.spec.ids import ManifestId
from icechunk_format.spec.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.spec.object_keys import snapshot_key
from icechunk_format.spec.ref_columns import native_refs, virtual_refs
from icechunk_format.spec.repo_updates import Availability, CommitAmendedUpdate, NewCommitUpdate
from icechunk_format.spec.values import encode_flexbuffer
from icechunk_format.storage.location import Location

_numbers = itertools.count(1)


def new_repository(spec_version=2):
    return Repository.create(
        Location(f"memory://session-{next(_numbers)}"), spec_version=spec_version
    )


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def repository(request):
    return new_repository(request.param)


@pytest.fixture
def repository_v2():
    return new_repository()


def split_manifests(repository, **sizes):
    """Configure how manifests are split: axis numbers as ``axis0=...``, or ``any=...``."""
    rules = [
        {
            "condition": "Any" if name == "any" else {"Axis": int(name[4:])},
            "num_chunks": count,
        }
        for name, count in sizes.items()
    ]
    config = {"manifest": {"splitting": {"split_sizes": [["any_array", rules]]}}}
    update_repo(repository.storage, lambda info: set_config(info, encode_flexbuffer(config)))


def grid_session(repository, shape, chunks=None):
    """Begin a session, with an array ``/a`` of ``shape`` chunks if there is none."""
    session = repository.writable_session()
    if session.node("/") is None:
        session.create_group("/", group_document())
    if session.node("/a") is None:
        session.create_array(
            "/a", array_document(shape, [1] * len(shape)), shape=shape, num_chunks=shape
        )
    return session


def set_block(session, *ranges, payload=b"x", path="/a"):
    coords = np.array(np.meshgrid(*ranges, indexing="ij")).reshape(len(ranges), -1).T
    session.set_chunks(path, coords, [payload] * len(coords))


def manifest_ids(repository, snapshot_id=None, path="/a"):
    snapshot = repository.snapshot(snapshot_id or repository.resolve())
    refs = snapshot.node(path).array.manifests
    return {refs.manifest_id(row) for row in range(len(refs))}


# -- random changes ----------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [{}, {"any": 2}, {"axis0": 3}, {"axis1": 1}], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_versions_hold_what_the_sessions_changed(splits, seed, monkeypatch):
    monkeypatch.setattr(manifest_plan, "MAX_SMALL_MANIFESTS", 4)
    repository = new_repository()
    if splits:
        split_manifests(repository, **splits)
    model = Model()
    changes = RandomChanges(model, seed)
    versions = {}
    for number in range(12):
        session = repository.writable_session()
        before = session.snapshot_id
        if number % 5 == 4 and changes.move(OurDriver(session)):
            changes.move(OurDriver(session))
        else:
            changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        assert result.parent_id == before
        versions[result.snapshot_id] = model.keys()
    for snapshot_id, keys in versions.items():
        assert stored_contents(repository, snapshot_id) == keys


@pytest.mark.parametrize("seed", range(3))
def test_versions_of_spec_version_1_hold_what_the_sessions_changed(seed):
    repository = new_repository(spec_version=1)
    model = Model()
    changes = RandomChanges(model, seed)
    for number in range(8):
        session = repository.writable_session()
        changes.session(OurDriver(session), steps=8)
        result = session.commit(f"commit {number}", allow_empty=True)
        assert stored_contents(repository, result.snapshot_id) == model.keys()
    assert [info.message for info in repository.ancestry()] == [
        *(f"commit {n}" for n in reversed(range(8))),
        "Repository initialized",
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_session_sees_its_own_changes(seed):
    repository = new_repository()
    model = Model()
    changes = RandomChanges(model, seed)
    source = repository.chunk_source()
    for _ in range(4):
        session = repository.writable_session()
        for _ in range(4):
            changes.session(OurDriver(session), steps=3)
            assert [node.path for node in session.nodes()] == sorted(model.nodes)
            for path in model.arrays():
                node = model.nodes[path]
                grid = [max(n, 1) for n in node.num_chunks]
                refs = session.chunk_refs(path, [0] * len(grid), grid)
                payloads = source.fetch(refs, np.arange(len(refs)))
                places = map(tuple, refs.coords.tolist())
                assert dict(zip(places, payloads, strict=True)) == node.chunks
        session.commit("more", allow_empty=True)


# -- what a commit costs -----------------------------------------------------------------------


def test_an_append_writes_only_what_is_appended(repository):
    session = grid_session(repository, (100, 10))
    set_block(session, range(50), range(10))
    session.commit("first")
    before = manifest_ids(repository)
    session = grid_session(repository, None)
    set_block(session, range(50, 52), range(10))
    result = session.commit("append")
    assert result.files_written["manifests"] == 1
    assert before < manifest_ids(repository)
    assert result.bytes_written["manifests"] < 500


def test_many_small_appends_do_not_leave_many_manifests(repository):
    for step in range(40):
        session = grid_session(repository, (40, 2))
        set_block(session, [step], range(2))
        session.commit("append")
    assert len(manifest_ids(repository)) <= manifest_plan.MAX_SMALL_MANIFESTS + 1
    assert len(stored_contents(repository, repository.resolve())) == 82


def test_only_touched_cells_are_rewritten(repository_v2):
    split_manifests(repository_v2, axis0=10)
    session = grid_session(repository_v2, (100, 2))
    set_block(session, range(100), range(2))
    assert session.commit("first").files_written["manifests"] == 10
    before = manifest_ids(repository_v2)
    session = grid_session(repository_v2, None)
    set_block(session, [5, 95], [0], payload=b"changed")
    assert session.commit("second").files_written["manifests"] == 2
    assert len(before & manifest_ids(repository_v2)) == 8


def test_overwriting_everything_reads_nothing(repository):
    session = grid_session(repository, (20, 5))
    set_block(session, range(20), range(5))
    first = session.commit("first").snapshot_id
    old = manifest_ids(repository, first)
    repository.storage.delete_many([f"manifests/{manifest_id}" for manifest_id in old])
    session = grid_session(repository, None)
    set_block(session, range(20), range(5), payload=b"new")
    session.commit("second")
    assert not old & manifest_ids(repository)
    contents = stored_contents(repository, repository.resolve())
    assert contents["a/c/19/4"] == b"new"


def test_attributes_and_growth_keep_manifests(repository):
    session = grid_session(repository, (20, 5))
    set_block(session, range(20), range(5))
    session.commit("first")
    before = manifest_ids(repository)
    session = repository.writable_session()
    session.update_metadata(
        "/a", array_document((40, 5), (1, 1)), shape=(40, 5), num_chunks=(40, 5)
    )
    result = session.commit("grow")
    assert "manifests" not in result.files_written or result.files_written["manifests"] == 0
    assert manifest_ids(repository) == before
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.updated_arrays) == 1
    assert not log.updated_chunks


def test_what_shrinking_dropped_stays_dropped(repository):
    session = grid_session(repository, (20,))
    set_block(session, range(20))
    session.commit("first")
    session = repository.writable_session()
    for length in (5, 20):
        document = array_document((length,), (1,), version=length)
        session.update_metadata("/a", document, shape=(length,), num_chunks=(length,))
    session.set_chunk("/a", [19], b"late")
    result = session.commit("shrink and grow")
    kept = stored_contents(repository, result.snapshot_id)
    assert sorted(kept) == sorted(
        ["zarr.json", "a/zarr.json", "a/c/19", *(f"a/c/{i}" for i in range(5))]
    )


def test_large_commits_are_cut_into_manifests_of_bounded_size(repository_v2):
    session = grid_session(repository_v2, (30, 30))
    session._assembler._format = type(session.format)(spec_version=2, max_refs=100)
    set_block(session, range(30), range(30))
    session.commit("first")
    snapshot = repository_v2.snapshot(repository_v2.resolve())
    assert snapshot.manifest_files.num_chunk_refs.tolist() == [90] * 10
    assert len(stored_contents(repository_v2, snapshot.id)) == 902


def test_deleting_all_chunks_leaves_no_manifest(repository):
    session = grid_session(repository, (4, 4))
    set_block(session, range(4), range(4))
    session.commit("first")
    session = repository.writable_session()
    coords = np.argwhere(np.ones((4, 4)))
    session.delete_chunks("/a", coords)
    result = session.commit("empty")
    snapshot = repository.snapshot(result.snapshot_id)
    assert len(snapshot.node("/a").array.manifests) == 0
    assert len(snapshot.manifest_files) == 0
    log = repository.transaction_log(result.snapshot_id)
    assert len(log.updated_chunks[snapshot.node("/a").id]) == 16


def test_overlapping_manifests_of_others_are_put_in_order(repository):
    """Of two manifests that hold one place the first counts, before a rebuild and after it."""
    session = grid_session(repository, (6,))
    set_block(session, range(6), payload=b"first")
    result = session.commit("first")
    snapshot = repository.snapshot(result.snapshot_id)
    node = snapshot.node("/a")
    refs = store_chunks(repository.storage, [[2], [3]], [b"hidden"] * 2, inline_threshold=512)
    [[receipt]] = store_manifests(repository.storage, session.format, [(node.id, refs)])
    new_id = [list(receipt.manifest_id.raw)]
    manifests = ManifestRefs(
        ids=np.concatenate([node.array.manifests.ids, new_id]).astype("u1"),
        extents=np.concatenate([node.array.manifests.extents, [[[2, 4]]]]).astype("u4"),
    )
    files = manifest_files_of([node], snapshot.manifest_files, [receipt], object_key="x")
    files = ManifestFiles.of(
        np.concatenate([files.ids, new_id]).astype("u1"),
        np.append(files.size_bytes, receipt.size_bytes),
        np.append(files.num_chunk_refs, 2),
    )
    damaged = replace(
        snapshot,
        nodes=tuple(
            replace(n, array=replace(n.array, manifests=manifests)) if n.id == node.id else n
            for n in snapshot.nodes
        ),
        manifest_files=files,
    )
    repository.storage.put(snapshot_key(snapshot.id), snapshot_file.encode(damaged))
    metadata_cache().clear()
    session = repository.writable_session()
    session.set_chunk("/a", [3], b"new")
    result = session.commit("in order")
    contents = stored_contents(repository, result.snapshot_id)
    found = [contents[f"a/c/{i}"] for i in range(6)]
    assert found == [b"first"] * 3 + [b"new"] + [b"first"] * 2


def test_a_manifest_that_the_base_does_not_list_is_damage(repository):
    session = grid_session(repository, (6,))
    set_block(session, range(6))
    result = session.commit("first")
    snapshot = repository.snapshot(result.snapshot_id)
    damaged = replace(snapshot, manifest_files=ManifestFiles.empty())
    repository.storage.put(snapshot_key(snapshot.id), snapshot_file.encode(damaged))
    metadata_cache().clear()
    session = repository.writable_session()
    session.create_group("/g", group_document())
    with pytest.raises(FormatError, match="the list of manifest files lacks"):
        session.commit("second")


# -- manifests of executors --------------------------------------------------------------------


def store_block(session, ranges, payload=b"z" * 600, path="/a"):
    """Store a block of chunks and their manifest, as an executor does."""
    storage = session._storage
    coords = np.array(np.meshgrid(*ranges, indexing="ij")).reshape(len(ranges), -1).T
    refs = store_chunks(storage, coords, [payload] * len(coords), inline_threshold=512)
    [receipts] = store_manifests(storage, session.format, [(session.node(path).id, refs)])
    return pickle.loads(pickle.dumps(receipts))


def test_manifests_of_executors_are_used_as_they_are(repository):
    session = grid_session(repository, (40, 10))
    receipts = [
        r for i in range(4) for r in store_block(session, (range(i * 10, i * 10 + 10), range(10)))
    ]
    session.add_manifests("/a", receipts)
    result = session.commit("parallel")
    assert result.files_written.get("manifests", 0) == 0
    assert manifest_ids(repository) == {receipt.manifest_id for receipt in receipts}
    assert len(stored_contents(repository, result.snapshot_id)) == 402
    log = repository.transaction_log(result.snapshot_id)
    [coords] = log.updated_chunks.values()
    assert len(coords) == 400


def test_only_what_overlaps_is_merged(repository):
    for rows in (range(10), range(20, 30)):
        session = grid_session(repository, (40, 10))
        set_block(session, rows, range(10), payload=b"old")
        session.commit("old")
    session = repository.writable_session()
    whole = store_block(session, (range(20, 30), range(10)), b"new")
    part = store_block(session, (range(8, 12), range(5)), b"new")
    apart = store_block(session, (range(35, 40), range(10)), b"new")
    session.add_manifests("/a", [*whole, *part, *apart])
    result = session.commit("second")
    assert result.files_written["manifests"] == 1
    ids = manifest_ids(repository)
    assert {whole[0].manifest_id, apart[0].manifest_id} < ids
    assert part[0].manifest_id not in ids
    contents = stored_contents(repository, result.snapshot_id)
    assert [contents[f"a/c/{i}/0"] for i in (7, 8, 11, 25, 39)] == [b"old"] + [b"new"] * 4
    assert contents["a/c/8/9"] == b"old"


def test_later_changes_win_over_manifests_of_executors_and_the_other_way_round(repository):
    session = grid_session(repository, (10,))
    set_block(session, range(10), payload=b"1")
    session.add_manifests("/a", store_block(session, (range(5),), b"2"))
    session.set_chunk("/a", [0], b"3")
    session.delete_chunks("/a", [[1]])
    refs = session.chunk_refs("/a", [0], [10])
    assert refs.coords[:, 0].tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    result = session.commit("layers")
    contents = stored_contents(repository, result.snapshot_id)
    found = [contents.get(f"a/c/{i}", b"-") for i in range(10)]
    assert b"".join(found) == b"3-22211111"


def test_shrinking_cuts_manifests_of_executors(repository):
    session = grid_session(repository, (10,))
    session.add_manifests("/a", store_block(session, (range(3, 8),), b"2"))
    session.add_manifests("/a", store_block(session, (range(8, 10),), b"3"))
    session.update_metadata("/a", array_document((5,), (1,)), shape=(5,), num_chunks=(5,))
    result = session.commit("cut")
    contents = stored_contents(repository, result.snapshot_id)
    assert sorted(contents) == ["a/c/3", "a/c/4", "a/zarr.json", "zarr.json"]


def test_a_chunk_written_by_two_tasks_is_an_error(repository):
    session = grid_session(repository, (10, 2))
    session.add_manifests("/a", store_block(session, (range(5), range(2))))
    with pytest.raises(InvalidInputError, match=r"2 chunks were written twice, such as \(4, 0\)"):
        session.add_manifests("/a", store_block(session, (range(4, 6), range(2))))
    assert len(session.changes.chunks[session.node("/a").id].receipts) == 1


def test_receipts_that_do_not_fit_are_refused(repository):
    session = grid_session(repository, (10, 2))
    [good] = store_block(session, (range(5), range(2)))

    def altered(**fields):
        values = {name: getattr(good, name) for name in ManifestReceipt.__dataclass_fields__}
        return ManifestReceipt(**(values | fields))

    with pytest.raises(InvalidInputError, match="are not those of its chunks"):
        session.add_manifests("/a", [altered(extents=((0, 5), (0, 1)))])
    with pytest.raises(InvalidInputError, match="is said to hold"):
        session.add_manifests("/a", [altered(num_chunk_refs=9)])
    far = CoordSet.of([[10, 0]])
    with pytest.raises(InvalidInputError, match="outside of array"):
        session.add_manifests(
            "/a", [altered(coords=far, extents=((10, 11), (0, 1)), num_chunk_refs=1)]
        )
    with pytest.raises(NotFoundError):
        session.add_manifests("/b", [good])


# -- nodes -------------------------------------------------------------------------------------


def test_changes_that_cancel_out_leave_nothing(repository):
    session = grid_session(repository, (2,))
    session.create_group("/g", group_document())
    session.commit("first")
    session = repository.writable_session()
    session.update_metadata("/a", array_document((2,), (1,), version=9))
    session.update_metadata("/a", array_document((2,), (1,)))
    session.create_array("/g/b", array_document((2,), (1,)), shape=(2,), num_chunks=(2,))
    session.set_chunk("/g/b", [0], b"gone")
    session.delete("/g/b")
    assert not session.has_changes
    with pytest.raises(InvalidInputError, match="nothing to commit"):
        session.commit("nothing")
    result = session.commit("nothing", allow_empty=True)
    assert repository.transaction_log(result.snapshot_id).is_empty


def test_ids_outlive_updates_and_moves_but_not_recreation(repository_v2):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    node_id = session.node("/a").id
    session.commit("first")
    session = repository_v2.writable_session()
    session.update_metadata("/a", array_document((2,), (1,), version=1))
    session.commit("second")
    session = repository_v2.writable_session()
    session.move("/a", "/g/b")
    moved = session.commit("third")
    assert repository_v2.snapshot(moved.snapshot_id).node("/g/b").id == node_id
    log = repository_v2.transaction_log(moved.snapshot_id)
    assert [(m.from_path, m.to_path, m.is_array) for m in log.moved_nodes] == [("/a", "/g/b", True)]
    assert (log.new_arrays, log.updated_arrays, log.deleted_arrays) == ((), (), ())
    session = repository_v2.writable_session()
    session.delete("/g")
    session.create_group("/g", group_document())
    session.create_array("/g/b", array_document((2,), (1,)), shape=(2,), num_chunks=(2,))
    assert session.node("/g/b").id != node_id
    last = session.commit("fourth")
    log = repository_v2.transaction_log(last.snapshot_id)
    assert node_id in log.deleted_arrays
    assert len(log.deleted_groups) == len(log.new_groups) == len(log.new_arrays) == 1


def test_a_move_to_and_fro_is_no_change(repository_v2):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    session.create_group("/g/h", group_document())
    session.commit("first")
    session = repository_v2.writable_session()
    session.move("/g", "/k")
    session.move("/a", "/k/h/a")
    session.move("/k/h/a", "/a")
    session.move("/k", "/g")
    assert not session.has_changes
    assert [node.path for node in session.nodes()] == ["/", "/a", "/g", "/g/h"]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda s: s.create_group("/a", b""), AlreadyExistsError, "a node at '/a' already"),
        (lambda s: s.create_group("/x/y", b""), NotFoundError, "needs the group '/x'"),
        (lambda s: s.create_group("/a/y", b""), InvalidInputError, "'/a' is an array"),
        (lambda s: s.create_group("y", b""), InvalidInputError, "not a node path"),
        (lambda s: s.delete("/x"), NotFoundError, "no group or array at '/x'"),
        (lambda s: s.set_chunk("/", [0], b"x"), InvalidInputError, "is a group"),
        (lambda s: s.set_chunk("/x", [0], b"x"), NotFoundError, "no group or array"),
        (lambda s: s.set_chunk("/a", [2], b"x"), InvalidInputError, r"\(2,\) is outside"),
        (lambda s: s.set_chunk("/a", [-1], b"x"), InvalidInputError, "between 0 and"),
        (lambda s: s.set_chunk("/a", [0, 0], b"x"), InvalidInputError, "2 dimensions"),
        (lambda s: s.set_chunk("/a", [0], b""), InvalidInputError, "has no bytes"),
        (lambda s: s.set_chunks("/a", [[0]], []), InvalidInputError, "0 chunks were given for 1"),
        (
            lambda s: s.set_chunks("/a", [[0], [0]], [b"x", b"x" * 600]),
            InvalidInputError,
            "more than once",
        ),
        (lambda s: s.delete_chunks("/a", [[7]]), InvalidInputError, "is outside"),
        (lambda s: s.shift("/a", [1, 1]), InvalidInputError, "offset of 2 axes"),
        (lambda s: s.chunk_refs("/a", [0], [1, 1]), InvalidInputError, "a box of 1 and 2"),
        (lambda s: s.update_metadata("/a", b"", shape=[1]), InvalidInputError, "give both"),
        (
            lambda s: s.update_metadata("/a", b"", shape=[1, 1], num_chunks=[1, 1]),
            InvalidInputError,
            "1 dimensions and cannot become one of 2",
        ),
        (
            lambda s: s.update_metadata("/", b"", shape=[1], num_chunks=[1]),
            InvalidInputError,
            "no shape",
        ),
        (
            lambda s: s.create_array("/b", b"", shape=[1], num_chunks=[1, 1]),
            InvalidInputError,
            "must agree",
        ),
        (
            lambda s: s.create_array("/b", b"", shape=[2**64], num_chunks=[1]),
            InvalidInputError,
            "cannot have",
        ),
        (lambda s: s.commit("x", on_conflict="retry"), InvalidInputError, "on_conflict is"),
        (lambda s: s.commit("x", resolve="mine"), InvalidInputError, "resolve is"),
        (lambda s: s.commit("x", metadata={"a": object()}), InvalidInputError, "object"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(repository, act, error, message):
    session = grid_session(repository, (2,))
    before = session.nodes()
    with pytest.raises(error, match=message):
        act(session)
    assert session.nodes() == before
    assert len(session.chunk_refs("/a", [0], [2])) == 0
    session.commit("still usable")


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/", "/x", InvalidInputError),
        ("/g", "/g/x", InvalidInputError),
        ("/g", "/g", InvalidInputError),
        ("/g", "/a", AlreadyExistsError),
        ("/x", "/y", NotFoundError),
        ("/g", "/x/y", NotFoundError),
        ("/g", "/a/y", InvalidInputError),
    ],
)
def test_moves_that_cannot_be(repository_v2, source, target, error):
    session = grid_session(repository_v2, (2,))
    session.create_group("/g", group_document())
    session.commit("first")
    session = repository_v2.writable_session()
    with pytest.raises(error):
        session.move(source, target)
    assert not session.has_changes


def test_one_session_moves_or_edits(repository_v2):
    session = grid_session(repository_v2, (2,))
    with pytest.raises(InvalidInputError, match="commit the changes first"):
        session.move("/a", "/b")
    session.commit("first")
    session = repository_v2.writable_session()
    session.move("/a", "/b")
    for act in (
        lambda: session.set_chunk("/b", [0], b"x"),
        lambda: session.create_group("/g", b""),
        lambda: session.update_metadata("/b", b""),
        lambda: session.delete("/b"),
    ):
        with pytest.raises(InvalidInputError, match="commit the moves first"):
            act()
    assert [node.path for node in session.nodes()] == ["/", "/b"]


def test_references_are_taken_as_given(repository):
    session = grid_session(repository, (6,))
    ids = np.arange(24, dtype=np.uint8).reshape(2, 12)
    session.set_refs("/a", native_refs([[0], [1]], ids, [5, 6], [100, 200]))
    session.set_refs("/a", virtual_refs([[3]], ["s3://bucket/key"], [7], [8], etags=["tag"]))
    result = session.commit("refs")
    snapshot = repository.snapshot(result.snapshot_id)
    refs = repository.manifest(snapshot.node("/a").array.manifests.manifest_id(0)).arrays[0].refs
    assert refs.offset.tolist() == [100, 200, 7]
    assert refs.location(2) == "s3://bucket/key"
    assert refs.etag(2) == "tag"


# -- the life of a session ---------------------------------------------------------------------


def test_after_a_commit_a_session_can_only_be_read(repository):
    session = grid_session(repository, (2,))
    set_block(session, range(2))
    result = session.commit("first")
    assert session.snapshot_id == result.snapshot_id
    assert len(session.chunk_refs("/a", [0], [2])) == 2
    for act in (
        lambda: session.set_chunk("/a", [0], b"x"),
        lambda: session.commit("again", allow_empty=True),
        lambda: session.rebase(),
        lambda: session.discard(),
    ):
        with pytest.raises(ReadOnlyError, match="committed as snapshot"):
            act()


def test_discarded_changes_are_gone(repository):
    session = grid_session(repository, (2,))
    session.discard()
    assert session.nodes() == []
    assert not session.has_changes


def test_sessions_stay_where_they_are_and_change_sets_travel(repository):
    session = grid_session(repository, (2,))
    set_block(session, range(2))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(session)
    log = session.changes.transaction_log(session.snapshot_id)
    copy = pickle.loads(pickle.dumps(session.changes))
    assert copy.transaction_log(session.snapshot_id).new_arrays == log.new_arrays
    touched = session.changes.touched()
    assert [len(chunks.coords()) for chunks in touched.values()] == [2]
    assert {n: c.coords().tolist() for n, c in copy.touched().items()} == {
        n: c.coords().tolist() for n, c in touched.items()
    }


def test_history_knows_what_was_committed(repository):
    session = grid_session(repository, (2,))
    first = session.commit("first", metadata={"app": "test", "n": [1, 2.5, None]})
    session = repository.writable_session()
    set_block(session, range(2))
    second = session.commit("second")
    infos = list(repository.ancestry())
    assert [info.message for info in infos] == ["second", "first", "Repository initialized"]
    assert infos[1].metadata == {"app": "test", "n": [1, 2.5, None]}
    assert infos[0].parent_id == first.snapshot_id == second.parent_id
    times = [info.flushed_at for info in infos]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 3
    assert repository.diff(first.snapshot_id, second.snapshot_id).updated_chunks["/a"].tolist() == [
        [0],
        [1],
    ]


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
        with pytest.raises(UnsupportedError, match="spec version 1"):
            session.amend("no")
        with pytest.raises(UnsupportedError, match="spec version 1"):
            session.move("/a", "/b")
        return
    with pytest.raises(InvalidInputError, match="is the first one"):
        session.amend("no")
    session.commit("first")
    session = repository.writable_session()
    session.move("/a", "/b")
    with pytest.raises(InvalidInputError, match="cannot be amended with changes"):
        session.amend("no")
    session.commit("moved")
    session = repository.writable_session()
    session.move("/b", "/c")
    amended = session.amend("moved further")
    [move] = repository.transaction_log(amended.snapshot_id).moved_nodes
    assert (move.from_path, move.to_path) == ("/a", "/c")
    session = repository.writable_session()
    session.set_chunk("/c", [0], b"x")
    with pytest.raises(InvalidInputError, match="cannot be amended with changes"):
        session.amend("no")


def test_a_flushed_version_has_no_branch(repository):
    session = grid_session(repository, (4,))
    set_block(session, range(2))
    flushed = session.flush("aside")
    assert flushed not in repository.branches().values()
    assert len(stored_contents(repository, flushed)) == 4
    repository.create_tag("kept", flushed)
    assert repository.resolve(tag="kept") == flushed


def test_a_closed_repository_takes_no_changes(repository_v2):
    session = grid_session(repository_v2, (4,))
    repository_v2.set_status(Availability.READ_ONLY, "moving house")
    with pytest.raises(ReadOnlyError, match="moving house"):
        repository_v2.writable_session()
    with pytest.raises(ReadOnlyError, match="moving house"):
        session.commit("late")
    with pytest.raises(ReadOnlyError, match="moving house"):
        repository_v2.create_branch("b", repository_v2.resolve())
    repository_v2.set_status(Availability.ONLINE)
    session.commit("in time")


def test_moves_can_be_switched_off(repository_v2):
    grid_session(repository_v2, (4,)).commit("first")
    repository_v2.set_feature_flag(3, False)
    session = repository_v2.writable_session()
    with pytest.raises(ReadOnlyError, match="feature flag 3"):
        session.move("/a", "/b")
    repository_v2.set_feature_flag(3, None)
    session.move("/a", "/b")
    session.commit("moved")


def test_sessions_need_their_branch(repository):
    with pytest.raises(NotFoundError, match="no branch 'develop'"):
        repository.writable_session("develop")
    repository.create_branch("develop", repository.resolve())
    session = repository.writable_session("develop")
    session.create_group("/", group_document())
    result = session.commit("there")
    assert repository.branches()["develop"] == result.snapshot_id
    assert repository.branches()["main"] != result.snapshot_id


def test_a_receipt_without_its_file_is_found_out_where_it_is_read(repository_v2):
    receipt = ManifestReceipt(
        manifest_id=ManifestId(bytes(12)),
        size_bytes=1,
        num_chunk_refs=1,
        extents=((0, 1),),
        coords=CoordSet.of([[0]]),
    )
    session = grid_session(repository_v2, (4,))
    session.add_manifests("/a", [receipt])
    session.set_chunk("/a", [0], b"x")
    with pytest.raises(NotFoundError, match="manifests/0000"):
        session.commit("broken")


def test_more_chunks_than_a_log_can_list_are_refused_before_anything_is_stored(repository):
    session = grid_session(repository, (1000, 1000, 100))
    receipts = [
        ManifestReceipt(
            manifest_id=ManifestId(bytes([half]) * 12),
            size_bytes=1,
            num_chunk_refs=50_000_000,
            extents=((half * 500, half * 500 + 500), (0, 1000), (0, 100)),
            coords=CoordSet.of_boxes([[[half * 500, half * 500 + 500], [0, 1000], [0, 100]]]),
        )
        for half in (0, 1)
    ]
    session.add_manifests("/a", receipts)
    before = sorted(found.key for found in repository.storage.list(""))
    with pytest.raises(InvalidInputError, match=r"of 100000000 changed chunks .* several parts"):
        session.commit("too much")
    assert sorted(found.key for found in repository.storage.list("")) == before


def test_manifests_whose_chunks_lie_between_one_another_are_taken_over(repository):
    session = grid_session(repository, (9,))
    node_id = session.node("/a").id
    parts = []
    for start in (0, 1):
        coords = [[i] for i in range(start, 8, 2)]
        payloads = [b"%d" % i for [i] in coords]
        refs = store_chunks(repository.storage, coords, payloads, inline_threshold=512)
        parts.append((node_id, refs))
    receipts = [
        r for found in store_manifests(repository.storage, session.format, parts) for r in found
    ]
    session.add_manifests("/a", receipts)
    session.set_refs("/a", ChunkRefs.empty(1))
    session.delete_chunks("/a", [[8]])
    result = session.commit("interleaved")
    [coords] = repository.transaction_log(result.snapshot_id).updated_chunks.values()
    assert coords[:, 0].tolist() == list(range(9))
    contents = stored_contents(repository, result.snapshot_id)
    assert {k: v for k, v in contents.items() if "/c/" in k} == {
        f"a/c/{i}": b"%d" % i for i in range(8)
    }
