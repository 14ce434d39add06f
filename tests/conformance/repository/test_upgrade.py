"""An upgraded repository is the one that the reference library would have made of it.

Each repository of spec version 1 is upgraded twice, by the reference and by us, and the two
``repo`` objects are compared field by field; then the reference reads, diffs and commits to ours.
"""

import shutil
from datetime import UTC, datetime, timedelta

import icechunk
import pytest
import zarr
from helpers.reference import repositories as reference_repositories

from icechunk_format.encoding.repo_info.updates import UpdateKind
from icechunk_format.repository import Repository

GROUP = b'{"zarr_format":3,"node_type":"group"}'
VERSION_1 = [name for name, version in reference_repositories.CASES if version == 1]


def reference(path):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def upgraded_by_reference(path, copy):
    shutil.copytree(path, copy)
    icechunk.upgrade_icechunk_repository(reference(copy), dry_run=False)
    return Repository.open(str(copy))


def state(repository):
    """Return all of a ``repo`` object but the time of its upgrade and the bytes of its config."""
    info = repository._state().info
    return {
        "branches": dict(info.branches),
        "tags": dict(info.tags),
        "deleted_tags": info.deleted_tags,
        # Both encode metadata anew, and not all values have one form only.
        "snapshots": {
            key: (found.parent_id, found.flushed_at, found.message, found.metadata)
            for key, found in info.snapshots.items()
        },
        "status": info.status,
        "metadata": info.metadata,
        "config": repository.config.raw,
        "has_config": info.config is not None,
        "flags": (info.enabled_feature_flags, info.disabled_feature_flags),
        "log": [
            (update.details, update.backup_path)
            if update.kind is UpdateKind.REPO_MIGRATED
            else update
            for update in info.latest_updates
        ],
        "before": info.repo_before_updates,
    }


def files(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def commit(repository, branch, message, **metadata):
    session = repository.writable_session(branch)
    zarr.open_group(session.store, mode="a").attrs["message"] = message
    return session.commit(message, metadata=metadata or None)


def all_kinds_of_refs(path):
    """Build branches and tags that share commits, at one instant, and that nothing else reaches."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 17
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer("s3://b/x/", icechunk.s3_store(region="us-east-1"))
    )
    split = {
        icechunk.ManifestSplitCondition.name_matches("t.*"): {
            icechunk.ManifestSplitDimCondition.Axis(0): 3,
            icechunk.ManifestSplitDimCondition.Any(): 5,
        }
    }
    splitting = icechunk.ManifestSplittingConfig.from_dict(split)
    config.manifest = icechunk.ManifestConfig(splitting=splitting)
    storage = icechunk.local_filesystem_storage(str(path))
    built = icechunk.Repository.create(storage, config=config, spec_version=1)
    built.save_config()
    one = commit(built, "main", "one", k=1, values=[1, 2.5, None, {"deep": True}], text="ü")
    two = commit(built, "main", "two")
    built.create_branch("zeta", one)
    zeta = commit(built, "zeta", "zeta 1")
    built.create_branch("alpha", zeta)
    commit(built, "alpha", "alpha 1")
    built.create_branch("same", two)
    built.create_branch("Same2", two)
    for name, target in {"t1": one, "t2": one, "T": one, "ztag": zeta, "gone": zeta}.items():
        built.create_tag(name, target)
    built.delete_tag("gone")
    for tag in ("only-tagged", "only-deleted-tag"):
        built.create_branch("short-lived", two)
        built.create_tag(tag, commit(built, "short-lived", tag))
        built.delete_branch("short-lived")
    built.delete_tag("only-deleted-tag")
    built.create_branch("ahead", two)
    commit(built, "ahead", "ahead 1")
    built.reset_branch("main", one)
    built.create_tag("at-the-root", list(built.ancestry(branch="main"))[-1].id)
    return one, two


def test_refs_of_all_kinds_are_upgraded_as_the_reference_does(tmp_path):
    path = tmp_path / "ours"
    one, two = all_kinds_of_refs(path)
    theirs = upgraded_by_reference(path, tmp_path / "theirs")
    before = files(path)
    dry = Repository.open(str(path)).upgrade(dry_run=True)
    assert files(path) == before
    report = Repository.open(str(path)).upgrade()
    ours = Repository.open(str(path))
    assert state(ours) == state(theirs)
    assert files(path) == files(tmp_path / "theirs")
    assert (dry.snapshots, dry.branches, dry.tags, dry.deleted_tags) == (7, 6, 6, 2)
    assert (
        dry.files_deleted
        == report.files_deleted
        == tuple(dict.fromkeys(("refs/branch.main/ref.json", *report.files_deleted)))
    )
    assert set(report.files_deleted) == set(before) - set(files(path))

    other = reference(path)
    assert other.spec_version == icechunk.SpecVersion.v2
    assert other.config.inline_chunk_threshold_bytes == 17
    assert [found.message for found in other.ancestry(branch="alpha")][:2] == ["alpha 1", "zeta 1"]
    assert other.diff(from_snapshot_id=one, to_snapshot_id=two).updated_groups == {"/"}
    commit(other, "main", "after the upgrade")
    with pytest.raises(icechunk.IcechunkError):
        other.create_tag("gone", two)
    assert next(ours.ancestry()).message == "after the upgrade"


@pytest.mark.parametrize("name", VERSION_1)
def test_every_state_is_upgraded_as_the_reference_does(name, tmp_path):
    built = reference_repositories.build(name, 1, tmp_path / "ours")
    theirs = upgraded_by_reference(built.path, tmp_path / "theirs")
    ours = Repository.open(str(built.path))
    report = ours.upgrade()
    assert report.was_needed
    assert not report.was_half_done
    assert state(ours) == state(theirs) == state(Repository.open(str(built.path)))
    opened = built.open()
    for branch in opened.list_branches():
        store = opened.readonly_session(branch).store
        try:
            group = zarr.open_group(store, mode="r")
        except (FileNotFoundError, KeyError):
            continue
        for _, array in group.arrays():
            array[...]
    commit(opened, "main", "more")


def test_an_upgrade_of_the_reference_that_left_old_files_is_finished(tmp_path):
    path = tmp_path / "repository"
    all_kinds_of_refs(path)
    untouched = files(path)
    icechunk.upgrade_icechunk_repository(
        reference(path), dry_run=False, delete_unused_v1_files=False
    )
    assert set(untouched) < set(files(path))
    (path / "refs/branch.main/ref.json").unlink()
    before = state(Repository.open(str(path)))
    assert Repository.open(str(path)).upgrade(dry_run=True).was_half_done
    report = Repository.open(str(path)).upgrade()
    assert report.was_half_done
    assert state(Repository.open(str(path))) == before
    assert not list(path.glob("refs/*/*"))
    assert not (path / "config.yaml").exists()
    commit(reference(path), "main", "after the upgrade")


def test_the_reference_takes_over_before_and_after_the_one_step_that_counts(tmp_path):
    path = tmp_path / "repository"
    all_kinds_of_refs(path)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    # Dead right before `repo` was written nothing has changed, and right after it all is there.
    Repository.open(str(path)).upgrade()
    (copy / "repo").write_bytes((path / "repo").read_bytes())
    assert reference(copy).spec_version == icechunk.SpecVersion.v2
    commit(reference(copy), "main", "before the upgrade was finished")
    Repository.open(str(copy)).upgrade()
    messages = [found.message for found in reference(copy).ancestry(branch="main")]
    assert messages[:2] == ["before the upgrade was finished", "one"]
    assert not list(copy.glob("refs/*/*"))


def test_the_reference_expires_what_we_created_upgraded_and_amended(tmp_path):
    repository = Repository.create(str(tmp_path), spec_version=1)
    store = reference(tmp_path).writable_session("main").store
    assert store.session.snapshot_id == "1CECHNKREP0F1RSTCMT0"
    for number in range(3):
        session = repository.writable_session()
        session.create_group("/" if number == 0 else f"/{number}", GROUP)
        session.commit(f"{number}")
    repository.upgrade()
    session = Repository.open(str(tmp_path)).writable_session()
    session.create_group("/amended", GROUP)
    tip = session.amend("amended").snapshot_id
    theirs = reference(tmp_path)
    assert len(theirs.expire_snapshots(datetime.now(UTC) + timedelta(seconds=5))) == 3
    theirs.garbage_collect(datetime.now(UTC) + timedelta(seconds=5))
    found = [info.id for info in theirs.ancestry(branch="main")]
    assert found == [str(tip), "1CECHNKREP0F1RSTCMT0"]
    names = {node.path for node in Repository.open(str(tmp_path)).snapshot(tip).nodes}
    assert names == {"/", "/1", "/2", "/amended"}
