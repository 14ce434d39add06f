"""Repositories that the reference wrote read the same through us: refs, history, nodes, chunks.

Every state of ``reference_repositories`` is compared version by version: what the reference lists
and returns for each branch, tag and snapshot, down to the bytes of every chunk.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zarr
from helpers.raised import raises
from helpers.reference import repositories as reference_repositories
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.display.plain_text import to_timestamp
from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.errors import NotFoundError, UnauthorizedVirtualChunkError
from icechunk_format.repository import Repository
from icechunk_format.repository.chunks.source import TO_END

pytestmark = pytest.mark.core

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def built_repository(tmp_path_factory):
    """Build each state once, however many tests read it."""
    directory = tmp_path_factory.mktemp("reference")
    built = {}

    def build(name, spec_version):
        case = (name, spec_version)
        if case not in built:
            built[case] = reference_repositories.build(name, spec_version, directory)
        return built[case]

    return build


@pytest.fixture(params=reference_repositories.CASES, ids=lambda case: f"{case[0]}-v{case[1]}")
def reference(request, built_repository):
    """Every state in every spec version."""
    return built_repository(*request.param)


def microseconds(instant):
    return (instant - EPOCH) // timedelta(microseconds=1)


def described(info):
    return (str(info.id), None if info.parent_id is None else str(info.parent_id), info.message)


def reachable(theirs):
    """Return the ids of all snapshots that some branch or tag leads to."""
    ids = {}
    for name in theirs.list_branches():
        ids.update(dict.fromkeys(info.id for info in theirs.ancestry(branch=name)))
    for name in theirs.list_tags():
        ids.update(dict.fromkeys(info.id for info in theirs.ancestry(tag=name)))
    return list(ids)


def reference_contents(session):
    """Return every key of a session's store with its bytes."""

    async def collect():
        keys = [key async for key in session.store.list()]
        prototype = default_buffer_prototype()
        values = await asyncio.gather(*(session.store.get(key, prototype) for key in keys))
        return {key: value.to_bytes() for key, value in zip(keys, values, strict=True)}

    return asyncio.run(collect())


def our_contents(repository, snapshot_id, authorized):
    """Return the same keys and bytes, found by manifests and chunk references."""
    snapshot = repository.snapshot(snapshot_id)
    source = repository.chunk_source(authorized=authorized)
    contents = {}
    for node in snapshot.nodes:
        prefix = node.path.strip("/")
        base = f"{prefix}/" if prefix else ""
        contents[f"{base}zarr.json"] = node.user_data
        if node.array is None:
            continue
        manifests = node.array.manifests
        for row in range(len(manifests)):
            manifest_id = manifests.manifest_id(row)
            manifest = repository.manifest(manifest_id)
            refs = manifest.array(node.id).refs
            lo, hi = manifests.extents[row, :, 0], manifests.extents[row, :, 1]
            rows = refs.select_box(lo.tolist(), hi.tolist())
            for coords, payload in zip(
                refs.coords[rows].tolist(), source.fetch(refs, rows), strict=True
            ):
                key = "/".join(["c", *map(str, coords)])
                assert f"{base}{key}" not in contents
                contents[f"{base}{key}"] = payload
    return contents


def test_branches_and_tags_are_the_same(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    assert ours.spec_version == reference.spec_version
    assert {name: str(tip) for name, tip in ours.branches().items()} == {
        name: theirs.lookup_branch(name) for name in theirs.list_branches()
    }
    assert {name: str(tip) for name, tip in ours.tags().items()} == {
        name: theirs.lookup_tag(name) for name in theirs.list_tags()
    }
    for name, tip in ours.branches().items():
        assert ours.resolve(branch=name) == tip
    for name, tip in ours.tags().items():
        assert ours.resolve(tag=name) == tip


def test_history_is_the_same(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    for selection in (
        *({"branch": name} for name in theirs.list_branches()),
        *({"tag": name} for name in theirs.list_tags()),
    ):
        our_history = list(ours.ancestry(**selection))
        their_history = list(theirs.ancestry(**selection))
        assert [described(info) for info in our_history] == [
            described(info) for info in their_history
        ]
        for our_info, their_info in zip(our_history, their_history, strict=True):
            assert our_info.flushed_at == microseconds(their_info.written_at)
            assert our_info.metadata == their_info.metadata


def test_every_version_has_the_same_nodes_and_chunk_bytes(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    for snapshot_id in reachable(theirs):
        session = theirs.readonly_session(snapshot_id=snapshot_id)
        expected = reference_contents(session)
        found = our_contents(ours, snapshot_id, reference.virtual_prefixes)
        assert found.keys() == expected.keys()
        assert found == expected
        for node in ours.snapshot(snapshot_id).nodes:
            assert str(node.id) == session.get_node_id(node.path)


def test_every_instant_leads_to_the_same_version(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    for info in theirs.ancestry(branch="main"):
        for instant in (info.written_at, info.written_at + timedelta(microseconds=1)):
            expected = theirs.readonly_session("main", as_of=instant).snapshot_id
            assert str(ours.resolve(as_of=instant)) == expected
    with raises(NotFoundError, branch="main", earliest=...):
        ours.resolve(as_of=info.written_at - timedelta(microseconds=1))


@pytest.mark.parametrize("name", [n for n, version in reference_repositories.CASES if version == 2])
def test_the_operations_log_is_the_same(built_repository, name):
    built = built_repository(name, 2)
    ours = list(Repository.open(built.url).operations())
    theirs = list(built.open().ops_log())
    assert [
        (update.kind.name.replace("_", "").lower(), update.updated_at, update.backup_path)
        for update in ours
    ] == [
        (type(update.kind).__name__.lower(), microseconds(update.updated_at), update.backup_path)
        for update in theirs
    ]


def test_the_operations_log_runs_through_backups_and_ends_where_one_is_missing(tmp_path):
    built = reference_repositories.long_operations_log(tmp_path / "log", 2)
    ours = Repository.open(built.url)
    complete = list(ours.operations())
    assert len(complete) == 33
    for backup in (built.path / "overwritten").iterdir():
        backup.unlink()
    assert list(ours.operations()) == complete[:3]


def test_settings_of_the_repository_are_read(built_repository):
    built = built_repository("long_operations_log", 2)
    ours, theirs = Repository.open(built.url), built.open()
    assert ours.metadata == theirs.get_metadata()
    assert ours.status.availability == 0
    assert ours.config.num_updates_per_repo_info_file == 3
    assert ours.deleted_tags() == ("tag-05",)
    assert ours.feature_flags() == {}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_deleted_tag_is_gone_and_named_as_deleted(built_repository, spec_version):
    ours = Repository.open(built_repository("branches_and_tags", spec_version).url)
    assert ours.deleted_tags() == ("withdrawn",)
    with raises(NotFoundError, name="withdrawn", kind="tag", deleted=True) as caught:
        ours.resolve(tag="withdrawn")
    assert caught.value.facts["deleted"]
    assert "v1.0" in str(caught.value)


def test_the_difference_of_versions_is_the_same(reference):
    ours, theirs = Repository.open(reference.url), reference.open()
    history = [info.id for info in theirs.ancestry(branch="main")]
    for newer in range(len(history)):
        for older in range(newer + 1, len(history)):
            found = ours.diff(history[older], history[newer])
            expected = theirs.diff(from_snapshot_id=history[older], to_snapshot_id=history[newer])
            assert set(found.new_groups) == expected.new_groups
            assert set(found.new_arrays) == expected.new_arrays
            assert set(found.deleted_groups) == expected.deleted_groups
            assert set(found.deleted_arrays) == expected.deleted_arrays
            assert set(found.updated_groups) == expected.updated_groups
            assert set(found.updated_arrays) == expected.updated_arrays
            assert {path: chunks.tolist() for path, chunks in found.updated_chunks.items()} == {
                path: chunks for path, chunks in expected.updated_chunks.items() if chunks
            }
            assert [(move.from_path, move.to_path) for move in found.moved_nodes] == (
                expected.moved_nodes
            )


def test_all_kinds_of_chunks_were_compared(built_repository):
    kinds = set()
    for name in ("inline_and_native_chunks", "virtual_chunks"):
        built = built_repository(name, 2)
        repository = Repository.open(built.url)
        snapshot = repository.snapshot(repository.resolve())
        for node in snapshot.nodes:
            if node.array is not None:
                manifest = repository.manifest(node.array.manifests.manifest_id(0))
                kinds.update(manifest.array(node.id).refs.kind.tolist())
    assert kinds == {KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_split_manifests_were_split_and_rewritten(built_repository, spec_version):
    built = built_repository("split_manifests", spec_version)
    repository = Repository.open(built.url)
    counts = {
        (label, path): len(repository.snapshot(snapshot_id).node(path).array.manifests)
        for label, snapshot_id in built.snapshots.items()
        for path in ("/t2m", "/rain")
        if label != "initial"
    }
    assert counts == {
        ("split", "/t2m"): 3,
        ("split", "/rain"): 6,
        ("touched", "/t2m"): 3,
        ("touched", "/rain"): 6,
        ("rewritten", "/t2m"): 1,
        ("rewritten", "/rain"): 1,
    }


def test_compressed_locations_were_compressed_in_version_2_only(built_repository):
    for spec_version in (1, 2):
        built = built_repository("compressed_locations", spec_version)
        repository = Repository.open(built.url)
        node = repository.snapshot(repository.resolve()).node("/data")
        object_key = manifest_key(node.array.manifests.manifest_id(0))
        data = (built.path / object_key).read_bytes()
        payload = unwrap(data, file_type=FileType.MANIFEST, object_key=object_key).payload
        assert (payload.count(b"daily-mean-temperature") == 1200) == (spec_version == 1)


def refs_of(repository, path):
    snapshot = repository.snapshot(repository.resolve())
    node = snapshot.node(path)
    return repository.manifest(node.array.manifests.manifest_id(0)).array(node.id).refs


def test_ranges_of_shards_are_cut_from_the_whole(built_repository):
    repository = Repository.open(built_repository("sharded_arrays", 2).url)
    refs = refs_of(repository, "/index_at_end")
    source = repository.chunk_source()
    rows = np.zeros(4, dtype=np.int64)
    [whole] = source.fetch(refs, rows[:1])
    ranges = np.array([[0, 10], [-16, TO_END], [5, 5], [100, 200]])
    assert source.fetch(refs, rows, ranges) == [whole[:10], whole[-16:], b"", whole[100:200]]


@pytest.mark.parametrize("name", ["virtual_chunks", "named_container", "compressed_locations"])
def test_virtual_chunks_need_the_word_of_the_user(built_repository, name):
    built = built_repository(name, 2)
    repository = Repository.open(built.url)
    refs = refs_of(repository, "/data")
    with pytest.raises(UnauthorizedVirtualChunkError, match=r"virtual\.authorize=") as caught:
        repository.chunk_source().fetch(refs, np.arange(2))
    [prefix] = built.virtual_prefixes
    assert caught.value.facts["url_prefix"] == prefix
    beside = prefix.rstrip("/") + "-other/"
    with pytest.raises(UnauthorizedVirtualChunkError):
        repository.chunk_source(authorized=[beside]).fetch(refs, np.arange(2))


def test_unusual_names_of_version_1_are_found_under_both_spellings(tmp_path):
    built = reference_repositories.branches_and_tags(tmp_path / "names", 1)
    theirs = built.open()
    names = ["ünïcode", "what?", "half%20way", 'a"b<c>', "tilde~"]
    for name in names:
        theirs.create_branch(name, built.snapshots["base"])
        theirs.create_tag(name, built.snapshots["base"])
    ours = Repository.open(built.url)
    assert set(names) <= ours.branches().keys()
    assert set(names) <= ours.tags().keys()
    for name in names:
        assert str(ours.resolve(branch=name)) == theirs.lookup_branch(name)
        assert str(ours.resolve(tag=name)) == theirs.lookup_tag(name)


def test_a_snapshot_outside_of_the_history_is_refused_in_version_2(built_repository):
    built = built_repository("expired_history", 2)
    ours, theirs = Repository.open(built.url), built.open()
    listed = set(reachable(theirs))
    assert built.snapshots["one"] not in listed
    with raises(NotFoundError, kind="snapshot", name=...):
        ours.snapshot(built.snapshots["one"])


def test_a_plain_zarr_store_is_told_apart(tmp_path):
    zarr.create_group(str(tmp_path / "plain.zarr"), zarr_format=3)
    with pytest.raises(NotFoundError, match="plain Zarr version 3 store"):
        Repository.open(str(tmp_path / "plain.zarr"))
    zarr.create_group(str(tmp_path / "plain2.zarr"), zarr_format=2)
    with pytest.raises(NotFoundError, match="plain Zarr version 2 store"):
        Repository.open(str(tmp_path / "plain2.zarr"))


def test_a_branch_that_moves_is_seen_by_an_open_handle(tmp_path):
    built = reference_repositories.linear_history(tmp_path / "moving", 2)
    ours = Repository.open(built.url)
    before = ours.branches()["main"]
    theirs = built.open()
    session = theirs.writable_session("main")
    zarr.open_group(session.store).attrs["more"] = 1
    after = session.commit("one more")
    assert str(before) == built.snapshots["deleted"]
    assert str(ours.branches()["main"]) == after
    assert str(ours.snapshot(after).id) == after
    assert (
        to_timestamp(ours.snapshot_info(after).flushed_at)
        == next(iter(theirs.ancestry(branch="main"))).written_at
    )
