"""The reference reads and extends what we rewrote, restored and copied, and we what it rewrote.

Every kind of repository that the reference writes goes through a rewrite, a restoration and a copy
of ours; both libraries must show the same bytes before and after, and go on working on the result.
"""

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import icechunk
import numpy as np
import pytest
import zarr
from helpers.builder import add_array, reference_repository
from helpers.reference.repositories import build
from helpers.reference.sessions import put_chunk, start
from helpers.sessions.model import group_document, stored_contents
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.maintenance import copy, rewrite_manifests
from icechunk_format.repository import Repository

icechunk.set_logs_filter("off")
_numbers = itertools.count()

PROTOTYPE = default_buffer_prototype()

# What a rewrite, a copy or a restoration could treat in another way than a plain repository.
WITH_HISTORY = [
    ("linear_history", 2),
    ("resized_arrays", 1),
    ("split_manifests", 2),
    ("moved_nodes", 2),
    ("expired_and_collected", 2),
    ("migrated_from_v1", 2),
]
CHOSEN = [*WITH_HISTORY, ("inline_and_native_chunks", 1), ("compressed_locations", 2)]
SPLITTING = [["any_array", [{"condition": "Any", "num_chunks": 2}]]]


@pytest.fixture
def built(request, tmp_path):
    return build(*request.param, tmp_path / "built")


def of_each(cases):
    return pytest.mark.parametrize(
        "built", cases, indirect=True, ids=[f"{name}-{version}" for name, version in cases]
    )


def open_reference(directory, config=None):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(directory)), config)


def reference_contents(session):
    """Return every key of a session's store with its bytes."""

    async def collect():
        keys = [key async for key in session.store.list()]
        values = await asyncio.gather(*(session.store.get(key, PROTOTYPE) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


def ours_in(path, prefixes=()):
    repository = Repository.open(str(path))
    return stored_contents(repository, repository.resolve(), list(prefixes))


def references_in(path):
    """Return every chunk reference of the tip without following it, and every document."""
    repository = Repository.open(str(path))
    snapshot = repository.snapshot(repository.resolve())
    found = {}
    for node in snapshot.nodes:
        found[node.path] = node.user_data
        for row in range(0 if node.array is None else len(node.array.manifests)):
            refs = repository.manifest(node.array.manifests.manifest_id(row)).array(node.id).refs
            etags = refs.etags(np.arange(len(refs)))
            for i, place in enumerate(refs.coords.tolist()):
                where = (
                    refs.location(i)
                    if refs.kind[i] == 2
                    else refs.inline(i)
                    if refs.kind[i] == 1
                    else refs.chunk_id[i].tobytes()
                )
                found[node.path, tuple(place)] = (
                    where,
                    int(refs.offset[i]),
                    int(refs.length[i]),
                    int(refs.last_modified[i]),
                    etags[i],
                )
    return found


def extended_by_reference(path):
    """Let the reference commit on top, and return what it shows afterwards."""
    session = open_reference(path).writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.create_group(f"added-{next(_numbers)}")
    session.commit("on top")
    return reference_contents(open_reference(path).readonly_session("main"))


def is_fetchable(built):
    return not built.virtual_prefixes and "compressed" not in str(built.path)


@of_each(CHOSEN)
def test_rewrites_take_turns(built):
    before = references_in(built.path)
    done = rewrite_manifests(str(built.path), splitting=SPLITTING, message="ours")
    assert references_in(built.path) == before
    if done.commit is not None:
        info = next(iter(open_reference(built.path).ancestry(branch="main")))
        assert info.message == "ours"
        assert "splitting_config" in info.metadata["__icechunk"]
    config = icechunk.RepositoryConfig.default()
    config.manifest = icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict(
            {
                icechunk.ManifestSplitCondition.AnyArray(): {
                    icechunk.ManifestSplitDimCondition.Any(): 3
                }
            }
        )
    )
    if before:
        open_reference(built.path, config).rewrite_manifests("theirs", branch="main")
        assert references_in(built.path) == before
    # What the reference wrote fits the same rules for us, and its whole-array rewrite does, too.
    again = rewrite_manifests(
        str(built.path),
        splitting=[["any_array", [{"condition": "Any", "num_chunks": 3}]]],
    )
    assert again.commit is None
    rewrite_manifests(str(built.path))
    assert references_in(built.path) == before
    if is_fetchable(built):
        shown = extended_by_reference(built.path)
        assert ours_in(built.path) == shown


@of_each(CHOSEN)
def test_copies_read_alike_and_live_on(built, tmp_path):
    before = references_in(built.path)
    for history in (True, False):
        target = tmp_path / f"copy-{history}"
        copy(str(built.path), str(target), history=history)
        assert references_in(target) == before
        theirs, source = open_reference(target), Repository.open(str(built.path))
        ids = [info.id for info in theirs.ancestry(branch="main")]
        if history:
            assert ids == [str(info.id) for info in source.ancestry()]
        if len(ids) > 1:
            assert theirs.diff(from_snapshot_id=ids[-1], to_snapshot_id=ids[0]) is not None
        if not is_fetchable(built):
            continue
        shown = reference_contents(theirs.readonly_session("main"))
        assert shown == ours_in(built.path)
        shown = extended_by_reference(target)
        soon = datetime.now(UTC) + timedelta(hours=1)
        open_reference(target).expire_snapshots(soon)
        open_reference(target).garbage_collect(soon)
        assert reference_contents(open_reference(target).readonly_session("main")) == shown
        assert ours_in(target) == shown


@of_each(WITH_HISTORY)
def test_restorations_are_read_compared_and_built_on(built):
    ours = Repository.open(str(built.path))
    line = list(ours.ancestry())
    tip, old = line[0].id, line[-2].id
    done = ours.restore("main", old)
    theirs = open_reference(built.path)
    reference_diff = theirs.diff(from_snapshot_id=str(tip), to_snapshot_id=str(done.snapshot_id))
    our_diff = ours.diff(tip, done.snapshot_id)
    assert set(reference_diff.new_arrays) == set(our_diff.new_arrays)
    assert set(reference_diff.deleted_arrays) == set(our_diff.deleted_arrays)
    assert set(reference_diff.updated_arrays) == set(our_diff.updated_arrays)
    assert {
        path: sorted(map(list, coords)) for path, coords in reference_diff.updated_chunks.items()
    } == {path: coords.tolist() for path, coords in our_diff.updated_chunks.items()}
    if is_fetchable(built):
        contents = stored_contents(ours, old)
        session = theirs.readonly_session(snapshot_id=str(done.snapshot_id))
        assert reference_contents(session) == contents
        shown = extended_by_reference(built.path)
        assert ours_in(built.path) == shown


def test_a_session_of_the_reference_rebases_over_a_rewrite_and_not_over_a_restoration(tmp_path):
    ours = Repository.create(str(tmp_path / "r"))
    session = ours.writable_session()
    add_array(session, "/a", (9,))
    session.set_chunks("/a", [[n] for n in range(9)], [bytes([n + 1]) for n in range(9)])
    first = session.commit("first").snapshot_id
    session = ours.writable_session()
    session.set_chunk("/a", [3], b"b")
    session.commit("bad")

    def writing(place):
        rival = open_reference(tmp_path / "r").writable_session("main")
        zarr.open_group(rival.store, mode="a")["a"][place] = 77
        return rival

    rival = writing(4)
    splitting = [["any_array", [{"condition": "Any", "num_chunks": 4}]]]
    assert rewrite_manifests(str(tmp_path / "r"), splitting=splitting).commit is not None
    rival.commit("over a rewrite", rebase_with=icechunk.ConflictDetector())
    disjoint, same = writing(5), writing(3)
    ours.restore("main", first)
    disjoint.commit("disjoint", rebase_with=icechunk.ConflictDetector())
    with pytest.raises(icechunk.RebaseFailedError):
        same.commit("same", rebase_with=icechunk.ConflictDetector())
    values = zarr.open_array(
        open_reference(tmp_path / "r").readonly_session("main").store, path="a", mode="r"
    )[:]
    assert values.tolist() == [1, 2, 3, 4, 5, 77, 7, 8, 9]


def test_a_restoration_across_a_move_is_rebased_over_and_amended_by_the_reference(tmp_path):
    ours = start(tmp_path)
    first = ours.resolve()
    session = ours.writable_session()
    session.move("/g", "/h")
    session.commit("move")
    session = ours.writable_session()
    session.set_chunk("/h/a", [1], b"bad")
    session.commit("bad")
    rival = open_reference(tmp_path).writable_session("main")
    put_chunk(rival.store, "h/a/c/3", b"rival")
    ours.restore("main", first)
    with pytest.raises(icechunk.RebaseFailedError):
        rival.commit("elsewhere", rebase_with=icechunk.ConflictDetector())
    session = open_reference(tmp_path).writable_session("main")
    put_chunk(session.store, "g/a/c/3", b"more")
    session.amend("amended")
    contents = stored_contents(ours, first) | {"g/a/c/3": b"more"}
    assert stored_contents(ours, ours.resolve()) == contents


def test_a_copy_can_join_a_repository_of_the_reference(tmp_path):
    source = build("linear_history", 1, tmp_path / "v1")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "target"))
    theirs = icechunk.Repository.create(storage)
    session = theirs.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("own")
    own = session.commit("own work")
    copy(str(source.path), str(tmp_path / "target"), target_branch="imported")
    theirs = icechunk.Repository.open(storage)
    assert theirs.lookup_branch("main") == own
    shown = reference_contents(theirs.readonly_session("imported"))
    assert shown == ours_in(source.path)
    soon = datetime.now(UTC) + timedelta(hours=1)
    theirs.expire_snapshots(soon)
    icechunk.Repository.open(storage).garbage_collect(soon)
    theirs = icechunk.Repository.open(storage)
    assert reference_contents(theirs.readonly_session("imported")) == shown
    assert theirs.lookup_branch("main") == own


def test_version_control_is_the_same_in_both_libraries(tmp_path):
    """The same steps through both libraries leave the same refs, history and log."""
    theirs = reference_repository(tmp_path / "b")
    ours = Repository.create(str(tmp_path / "a"))

    def their_commit(number):
        session = open_reference(tmp_path / "b").writable_session("main")
        zarr.open_group(session.store, mode="a").create_group(f"g{number}")
        return session.commit(f"commit {number}")

    def our_commit(number):
        session = ours.writable_session()
        if number == 0:
            session.create_group("/", group_document())
        session.create_group(f"/g{number}", group_document())
        return session.commit(f"commit {number}").snapshot_id

    ids = {"ours": [], "theirs": []}
    for number in range(3):
        ids["ours"].append(our_commit(number))
        ids["theirs"].append(their_commit(number))
    for library, repository in (("ours", ours), ("theirs", theirs)):
        first, second, _ = ids[library]
        repository.create_branch("b", second)
        repository.create_tag("t", first)
        repository.delete_tag("t")
        repository.create_tag("u", second)
        if library == "ours":
            repository.reset_branch("b", first, second)
        else:
            repository.reset_branch("b", first, from_snapshot_id=second)
        repository.delete_branch("b")
        refused = [
            lambda r=repository: r.delete_branch("main"),
            lambda r=repository, s=first: r.create_tag("t", s),
            lambda r=repository, s=first: r.create_tag("u", s),
            lambda r=repository, s=first, t=second: (
                r.reset_branch("main", s, t)
                if r is ours
                else r.reset_branch("main", s, from_snapshot_id=t)
            ),
        ]
        for step in refused:
            with pytest.raises(Exception):  # noqa: B017, PT011
                step()
        repository.set_metadata({"owner": "me"})
    for path in ("a", "b"):
        seen = Repository.open(str(tmp_path / path))
        library = "ours" if path == "a" else "theirs"
        assert [str(seen.tags()["u"])] == [str(ids[library][1])]
        assert seen.deleted_tags() == ("t",)
        assert list(seen.branches()) == ["main"]
        assert seen.metadata == {"owner": "me"}
        reference = open_reference(tmp_path / path)
        assert reference.list_branches() == {"main"}
        assert reference.list_tags() == {"u"}
    kinds = [
        [operation.kind for operation in Repository.open(str(tmp_path / path)).operations()]
        for path in ("a", "b")
    ]
    assert kinds[0] == kinds[1]
