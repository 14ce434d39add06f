"""Repositories of the reference whose history is worth reading: refs, moves, amendments, expiry."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import icechunk
import zarr
from helpers.reference.building import ReferenceRepository, add_weather, create, numbers

if TYPE_CHECKING:
    from pathlib import Path


def empty_repository(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Build the initial snapshot and nothing else: not even a root group."""
    return create(directory, spec_version)[1]


def linear_history(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Make four commits on ``main``: create, overwrite part, change attributes, delete an array.

    The second commit carries metadata of every JSON kind.
    """
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    add_weather(session.store)
    built.snapshots["created"] = session.commit("create the arrays")

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[2:4] = 1.5
    built.snapshots["overwritten"] = session.commit(
        "overwrite two steps",
        metadata={
            "text": "grün",
            "count": 3,
            "negative": -70000,
            "ratio": 0.25,
            "flag": True,
            "nothing": None,
            "list": [1, "two", [3.5]],
            "map": {"b": 1, "a": {"deep": [True, False]}},
            "large": 2**40,
        },
    )

    session = repository.writable_session("main")
    zarr.open_group(session.store).attrs["history"] = "attributes only"
    built.snapshots["attributes"] = session.commit("change attributes")

    session = repository.writable_session("main")
    del zarr.open_group(session.store)["rain"]
    built.snapshots["deleted"] = session.commit("delete rain")
    return built


def branches_and_tags(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Make two branches that parted, others on older snapshots, and delete a tag."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    add_weather(session.store)
    built.snapshots["base"] = session.commit("base")
    repository.create_branch("experiment", built.snapshots["base"])
    repository.create_branch("archive", built.snapshots["initial"])
    # Slashes and non-ASCII letters exist in version 2 only (the reference mangles them in 1).
    unusual = "unusual name!" if spec_version == 1 else "ünusual/name!"
    repository.create_branch(unusual, built.snapshots["initial"])
    repository.create_tag("v1.0", built.snapshots["base"])

    session = repository.writable_session("experiment")
    zarr.open_array(session.store, path="rain")[...] = 7
    built.snapshots["experiment"] = session.commit("rain is seven")

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0] = 0
    built.snapshots["main"] = session.commit("first step is zero")
    repository.create_tag("v2.0", built.snapshots["main"])
    repository.create_tag("withdrawn", built.snapshots["base"])
    repository.delete_tag("withdrawn")
    return built


def moved_nodes(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Move an array, and a group with children (spec version 2 only)."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for path in ("old", "old/inner", "target"):
        root.create_group(path)
    root.create_array("old/inner/values", data=numbers(6, 300), chunks=(2, 300))
    root.create_array("single", data=numbers(300), chunks=(100,))
    built.snapshots["before"] = session.commit("before the move")

    session = repository.rearrange_session("main")
    session.move("/old", "/target/new")
    session.move("/single", "/target/renamed")
    built.snapshots["moved"] = session.commit("move")
    return built


def amended_commit(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Amend a commit, so that the first try hangs outside every branch."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    add_weather(session.store)
    built.snapshots["base"] = session.commit("base")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0] = 1
    built.snapshots["first_try"] = session.commit("first try")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[1] = 2
    built.snapshots["amended"] = session.amend("second try")
    return built


def detached_snapshot(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Flush a snapshot without moving a branch."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    add_weather(session.store)
    built.snapshots["base"] = session.commit("base")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0] = 1
    built.snapshots["detached"] = session.flush("detached")
    return built


def _five_commits(repository: icechunk.Repository, built: ReferenceRepository) -> datetime.datetime:
    """Commit five times and return an instant between the third and the fourth."""
    session = repository.writable_session("main")
    add_weather(session.store)
    built.snapshots["one"] = session.commit("one")
    between = datetime.datetime.now(datetime.UTC)
    for number, label in enumerate(("two", "three", "four", "five"), start=2):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="t2m")[0] = number
        built.snapshots[label] = session.commit(label)
        if label == "three":
            # The store keeps times of files in whole milliseconds on some systems.
            time.sleep(0.05)
            between = datetime.datetime.now(datetime.UTC)
            time.sleep(0.05)
    repository.create_tag("keep", built.snapshots["two"])
    return between


def expired_history(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Expire the first three of five commits; a tag keeps the second reachable."""
    repository, built = create(directory, spec_version)
    between = _five_commits(repository, built)
    repository.expire_snapshots(between)
    return built


def expired_and_collected(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Collect garbage after ``expired_history``: some snapshot and manifest files are gone."""
    repository, built = create(directory, spec_version)
    between = _five_commits(repository, built)
    repository.expire_snapshots(between)
    repository.garbage_collect(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5))
    return built


def long_operations_log(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Do thirty operations with three per repository file: the log runs through backups."""
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 3
    repository, built = create(directory, spec_version, config=config)
    repository.save_config()
    for number in range(14):
        repository.create_tag(f"tag-{number:02d}", built.snapshots["initial"])
    for number in range(14):
        repository.create_branch(f"branch-{number:02d}", built.snapshots["initial"])
    repository.delete_branch("branch-03")
    repository.delete_tag("tag-05")
    repository.set_metadata({"owner": "weather office", "numbers": [1, 2.5, None]})
    return built


def migrated_from_v1(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Upgrade a spec version 1 repository to 2, and commit once after the upgrade."""
    assert spec_version == 2, "a migrated repository has spec version 2"
    version_1 = branches_and_tags(directory, 1)
    repository = icechunk.upgrade_icechunk_repository(version_1.open(), dry_run=False)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[3] = 3
    after = session.commit("after the upgrade", metadata={"note": "new"})
    return ReferenceRepository(
        path=directory, spec_version=2, snapshots=version_1.snapshots | {"after": after}
    )
