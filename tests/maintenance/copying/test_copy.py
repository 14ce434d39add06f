"""A copy has every version of a branch; random repositories are copied between kinds of stores."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from helpers.builder import new_location, new_repository
from helpers.files.copied_repositories import assert_same, commit, history, repository_of
from helpers.raised import raises
from helpers.sessions.model import (
    Model,
    OurDriver,
    RandomChanges,
    stored_contents,
)

from icechunk_format.encoding.ids import ChunkId
from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.encoding.object_keys import chunk_key
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.maintenance import collect_garbage, copy, expire_snapshots
from icechunk_format.maintenance.copying import objects as copy_objects
from icechunk_format.maintenance.copying import publish as copy_publish
from icechunk_format.maintenance.copying.copy import finish_copy
from icechunk_format.maintenance.copying.objects import (
    CHUNK_ROW,
    Copied,
    CopyContext,
    copy_chunks,
    copy_manifests,
    distinct_chunks,
)
from icechunk_format.maintenance.copying.plan import plan_copy
from icechunk_format.maintenance.copying.publish import hold_copy
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage


def keys_of(location):
    return {info.key: info.size for info in open_storage(location).list("")}


@pytest.mark.parametrize("seed", range(6))
def test_random_repositories_come_across_with_all_their_versions(seed, tmp_path):
    chooser = random.Random(seed)
    source = new_repository(chooser.choice([1, 2]))
    changes = RandomChanges(Model(), seed)
    target = Location(str(tmp_path / "target"))
    for number in range(5):
        session = source.writable_session()
        changes.session(OurDriver(session), 8)
        session.commit(f"{number}", allow_empty=True)
        if number in (2, 4):
            copied = copy(source.location, target)
            assert copied.snapshot_id == source.resolve()
            assert copied.snapshots == (4 if number == 2 else 2)
    copy_of = Repository.open(target)
    assert copy_of.spec_version == 2
    assert_same(source, copy_of)
    first, last = list(source.ancestry())[-2].id, source.resolve()
    ours, theirs = source.diff(first, last), copy_of.diff(first, last)
    assert ours.new_arrays == theirs.new_arrays
    assert ours.updated_chunks.keys() == theirs.updated_chunks.keys()
    whole = copy(source.location, str(tmp_path / "squashed"), history=False)
    squashed = Repository.open(str(tmp_path / "squashed"))
    assert stored_contents(squashed, whole.snapshot_id) == changes.model.keys()
    tip, root = squashed.ancestry()
    assert (tip.parent_id, tip.message) == (root.id, next(iter(source.ancestry())).message)
    difference = squashed.diff(root.id, tip.id)
    assert set(difference.new_arrays) == set(changes.model.arrays())
    assert set(difference.new_groups) == set(changes.model.groups())
    logged = sum(len(coords) for coords in difference.updated_chunks.values())
    assert logged == sum(len(changes.model.nodes[p].chunks) for p in changes.model.arrays())
    again = copy(source.location, str(tmp_path / "squashed"), history=False)
    assert (again.snapshot_id, again.snapshots, again.chunks) == (whole.snapshot_id, 0, 0)


def test_only_the_line_is_copied_and_the_target_can_be_worked_on():
    source = repository_of(3)
    source.create_branch("side", source.resolve())
    side = commit(source, 5, "side")
    source.create_tag("v1", side)
    main_only = commit(source, 6)
    target = new_location()
    copied = copy(source.location, target, tag="v1", target_branch="published")
    repository = Repository.open(target)
    assert repository.branches() == {
        "main": list(source.ancestry())[-1].id,
        "published": side,
    }
    assert copied.chunks == 4
    assert main_only not in {info.id for info in repository.snapshots()}
    assert_same(source, repository, "side", "published")
    commit(repository, 7, "published")
    with raises(ConflictError, branch="published"):
        copy(source.location, target, tag="v1", target_branch="published")
    # A branch keeps its name, and main stays where it is.
    copy(source.location, target, branch="side", history=True)
    assert repository.branches()["side"] == side
    assert repository.branches()["main"] == list(source.ancestry())[-1].id
    # Another branch of the same line: only what is new is moved.
    more = copy(source.location, target, target_branch="again")
    assert (more.snapshots, more.chunks) == (1, 1)
    assert_same(source, repository, "main", "again")
    operations = [type(update.details).__name__ for update in repository.operations()]
    assert operations == [
        "BranchDeletedUpdate",  # of the branch that kept the copy's chunks
        "BranchCreatedUpdate",
        "BranchCreatedUpdate",
        "BranchCreatedUpdate",
        "NewCommitUpdate",
        "RepoInitializedUpdate",
    ]


def test_a_branch_of_the_target_moves_forward_with_the_line():
    source, target = repository_of(2), new_location()
    copy(source.location, target)
    repository = Repository.open(target)
    before = repository.resolve()
    commit(source, 3)
    done = copy(source.location, target)
    assert (done.snapshots, done.chunks, done.skipped_chunks) == (1, 1, 2)
    assert_same(source, repository)
    newest = list(repository.operations())[1].details
    assert (newest.name, newest.previous_snap_id) == ("main", before)
    # A source that went back cannot take versions away.
    source.reset_branch("main", before)
    with pytest.raises(ConflictError):
        copy(source.location, target)


def test_expired_versions_of_the_source_are_known_by_their_logs():
    source, target = repository_of(2), new_location()
    copy(source.location, target)
    commit(source, 3)
    commit(source, 4)
    newest = source.snapshot_info(source.resolve())
    expire_snapshots(source.location, datetime.fromtimestamp(newest.flushed_at / 1e6, UTC))
    pruned = source.snapshot_info(newest.id).pruned_ancestor_tx_logs
    assert pruned
    copy(source.location, target)
    repository = Repository.open(target)
    assert stored_contents(repository, repository.resolve()) == stored_contents(source, newest.id)
    assert repository.snapshot_info(newest.id).pruned_ancestor_tx_logs == pruned
    root = list(repository.ancestry())[-1].id
    assert repository.diff(root, newest.id).updated_chunks["/a"][:, 0].tolist() == [0, 1, 3, 4]
    assert repository.diff(root, newest.id).missing_logs == ()


def test_settings_metadata_and_containers_come_along(tmp_path):
    source = repository_of(1)
    source.update_config(
        {
            "inline_chunk_threshold_bytes": 9,
            "virtual_chunk_containers": {
                "s3://bucket/": {"name": "archive", "store": {"s3": {"region": "eu-central-1"}}}
            },
            "storage": {"unsafe_use_conditional_update": False},
        }
    )
    source.set_metadata({"owner": "me"})
    source.set_feature_flag(3, False)
    copy(source.location, str(tmp_path / "new"))
    copy(source.location, other := new_location())
    for repository in (Repository.open(str(tmp_path / "new")), Repository.open(other)):
        assert repository.metadata == {"owner": "me"}
        assert repository.feature_flags() == {3: False}
        assert repository.config.inline_chunk_threshold_bytes == 9
        assert repository.config.virtual_chunk_containers == source.config.virtual_chunk_containers
    # Settings of one kind of store mean nothing to another kind, and can do harm there.
    assert "storage" not in Repository.open(str(tmp_path / "new")).config.raw
    assert "storage" in Repository.open(other).config.raw
    # A repository that is there keeps its own, and learns of containers that it does not know.
    existing = repository_of(1)
    existing.set_metadata({"owner": "you"})
    copy(source.location, existing.location, target_branch="theirs")
    assert existing.metadata == {"owner": "you"}
    assert existing.config.inline_chunk_threshold_bytes == 512
    [container] = existing.config.virtual_chunk_containers
    assert (container.name, container.url_prefix) == ("archive", "s3://bucket/")
    assert container.store_options["region"] == "eu-central-1"
    clash = repository_of(1)
    clash.update_config(
        {"virtual_chunk_containers": {"s3://elsewhere/": {"name": "archive", "store": {"s3": {}}}}}
    )
    with raises(InvalidInputError, match="wrong place", name="archive"):
        copy(source.location, clash.location, target_branch="theirs")


def test_virtual_references_stay_virtual():
    source = repository_of(1)
    session = source.writable_session()
    session.set_refs(
        "/a",
        virtual_refs(
            [[3], [4]], ["s3://b/x.nc", "vcc://archive/y.nc"], [1, 2], [7, 8], etags=["e", None]
        ),
    )
    session.commit("virtual")
    target = new_location()
    done = copy(source.location, target)
    assert done.chunks == 1
    node = Repository.open(target).snapshot(done.snapshot_id).node("/a")
    found = []
    for row in range(len(node.array.manifests)):
        manifest_id = node.array.manifests.manifest_id(row)
        refs = Repository.open(target).manifest(manifest_id).array(node.id).refs
        virtual = np.flatnonzero(refs.kind == 2)
        found += refs.locations(virtual)
    assert sorted(found) == ["s3://b/x.nc", "vcc://archive/y.nc"]


def test_a_copy_finds_only_what_is_missing():
    source, target = repository_of(8), new_location()
    copy(source.location, target)
    storage = open_storage(target)
    chunks = sorted(info.key for info in storage.list("chunks/"))
    storage.delete_many(["repo", *chunks[:2]])
    storage.put(chunks[5], b"cut off")
    done = copy(source.location, target)
    assert (done.chunks, done.skipped_chunks) == (3, 5)
    assert_same(source, Repository.open(target))


def test_the_copy_stays_whole_when_it_is_tidied():
    source, target = repository_of(4), new_location()
    copy(source.location, target)
    repository = Repository.open(target)
    before = stored_contents(repository, repository.resolve())
    soon = datetime.now(UTC) + timedelta(hours=1)
    expire_snapshots(target, soon)
    collect_garbage(target, soon)
    repository = Repository.open(target)
    assert stored_contents(repository, repository.resolve()) == before
    with raises(NotFoundError, kind="branch", name="nowhere"):
        copy(target, new_location(), branch="nowhere")


def test_places_that_cannot_take_a_copy_are_refused():
    source = repository_of(1)
    foreign = new_location()
    open_storage(foreign).put("data/important.csv", b"1,2")
    with raises(AlreadyExistsError, match=r"important\.csv", found=("data/important.csv",)):
        copy(source.location, foreign)
    assert list(keys_of(foreign)) == ["data/important.csv"]
    with raises(UnsupportedError, match="upgrade it first", spec_version=1):
        copy(source.location, repository_of(1, spec_version=1).location)
    with raises(InvalidInputError, target=...):
        copy(source.location, source.location)
    with pytest.raises(InvalidInputError):
        copy(source.location, new_location(), branch="main", tag="v1")
    with pytest.raises(NotFoundError):
        copy(new_location(), new_location())


def test_a_rival_that_creates_the_target_first_wins(monkeypatch):
    source, target = repository_of(2), new_location()
    store_files = copy_publish._copy_files

    def slowly(*given, **options):
        if not Repository.exists(target):
            Repository.create(target, check_clean_root=False)
        return store_files(*given, **options)

    monkeypatch.setattr(copy_publish, "_copy_files", slowly)
    with pytest.raises(AlreadyExistsError, match="copy again"):
        copy(source.location, target)
    monkeypatch.undo()
    assert len(list(Repository.open(target).ancestry())) == 1
    copy(source.location, target)
    # The first version is that of the rival, which has the same id and holds as little.
    assert history(Repository.open(target))[:-1] == history(source)[:-1]


# -- objects ---------------------------------------------------------------------------------


def rows_of(chunks):
    rows = np.zeros(len(chunks), dtype=CHUNK_ROW)
    for row, (raw, end) in zip(rows, chunks, strict=True):
        row["id"], row["end"] = np.frombuffer(raw, dtype=np.uint8), end
    return rows


def test_chunks_are_known_by_all_of_their_bytes():
    ids = [bytes([0] * 8) + bytes([0, 0, 0, n]) for n in range(5)] + [bytes([255] * 12)]
    rows = rows_of([(raw, n) for n, raw in enumerate(ids)] + [(ids[2], 100), (ids[2], 1)])
    found = distinct_chunks([rows[::-1]])
    assert [row["id"].tobytes() for row in found] == ids
    assert found["end"].tolist() == [0, 1, 100, 3, 4, 5]


def test_objects_that_hold_several_chunks_are_compared_with_the_source(monkeypatch):
    source, target = new_location(), new_location()
    raw = [bytes([n]) * 12 for n in (1, 2, 3)]
    keys = [chunk_key(ChunkId(one)) for one in raw]
    for key in keys:
        open_storage(source).put(key, b"0123456789")
    open_storage(target).put(keys[0], b"0123456789")  # whole, though 4 bytes would do
    open_storage(target).put(keys[1], b"01234567")  # more than needed, but cut off
    monkeypatch.setattr(copy_objects, "_BYTES_AT_ONCE", 5)
    context = CopyContext(source=source, target=target)
    done = copy_chunks(context, distinct_chunks([rows_of([(one, 4) for one in raw])]))
    assert (done.objects, done.skipped, done.bytes) == (2, 1, 20)
    assert keys_of(target) == dict.fromkeys(keys, 10)


def test_a_copy_onto_snapshots_that_were_removed_meanwhile_is_a_conflict():
    source = repository_of(2)
    target = new_location()
    copy(source.location, target, target_branch="work")
    commit(source, 5)
    plan = plan_copy(source.location, target, target_branch="other")
    [manifests] = [copy_manifests(plan.context, listed)[0] for listed in plan.manifests]
    hold_copy(plan)
    repository = Repository.open(target)
    repository.delete_branch("work")
    later = datetime.now(UTC) + timedelta(seconds=5)
    repository.expire_snapshots(later)
    collect_garbage(target, later)
    assert plan.new[-1].parent_id not in {info.id for info in repository.snapshots()}
    with pytest.raises(ConflictError) as error:
        finish_copy(plan, manifests, Copied())
    assert error.value.facts == {"snapshot": str(plan.new[-1].parent_id)}


def test_a_missing_chunk_names_itself():
    rows = rows_of([(bytes([7]) * 12, 4)])
    with raises(NotFoundError, kind="object", key=f"chunks/{ChunkId(bytes([7]) * 12)}"):
        copy_chunks(CopyContext(source=new_location(), target=new_location()), rows)
    assert issubclass(NotFoundError, IcechunkError)
