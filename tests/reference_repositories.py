"""Repositories built with the reference library, one function for each state worth reading.

Conformance suites call these to get bytes that we did not write. Rules of this file:

1. A function takes an empty target directory and answers with a ``ReferenceRepository``: where
   the repository is, and the ids of the snapshots that matter, under labels.
2. Contents are the same on every run (fixed seeds and names). Ids and times are the reference's
   own, so they differ from run to run; tests use the labels.
3. ``STATES`` lists every function with the spec versions it can be built for, so that a suite can
   run over all of them.

Needs the ``icechunk`` and ``zarr`` wheels, and ``h5py`` for the files behind virtual chunks.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import zarr

SEED = 20240701

# The reference warns about local file systems on every open; in a test run that is only noise.
icechunk.set_logs_filter("off")


@dataclass(frozen=True, kw_only=True)
class ReferenceRepository:
    """A repository on the local file system that the reference library wrote.

    ``snapshots`` maps labels to snapshot ids in the order of their commits. ``virtual_prefixes``
    are the URL prefixes that a reader has to authorise.
    """

    path: Path
    spec_version: int
    snapshots: dict[str, str] = field(default_factory=dict)
    virtual_prefixes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The place of the repository as a URL."""
        return self.path.as_uri()

    def open(self) -> icechunk.Repository:
        """Open with the reference library, with access to the virtual chunks."""
        return icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(self.path)),
            authorize_virtual_chunk_access=_file_access(self.virtual_prefixes),
        )


def _file_access(prefixes: tuple[str, ...]) -> Any:
    if not prefixes:
        return None
    access = icechunk.Credentials.LocalFileSystemAccess()
    return icechunk.containers_credentials(dict.fromkeys(prefixes, access))


def _create(
    directory: Path,
    spec_version: int,
    *,
    config: icechunk.RepositoryConfig | None = None,
    virtual_prefixes: tuple[str, ...] = (),
) -> tuple[icechunk.Repository, ReferenceRepository]:
    directory.mkdir(parents=True, exist_ok=True)
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(directory)),
        config=config,
        authorize_virtual_chunk_access=_file_access(virtual_prefixes),
        spec_version=spec_version,
    )
    built = ReferenceRepository(
        path=directory, spec_version=spec_version, virtual_prefixes=virtual_prefixes
    )
    built.snapshots["initial"] = repository.lookup_branch("main")
    return repository, built


def _numbers(*shape: int, dtype: str = "float32", seed: int = SEED) -> np.ndarray:
    return np.random.default_rng(seed).normal(280, 10, shape).astype(dtype)


def _add_weather(store: Any, *, steps: int = 6) -> None:
    """Write a group with coordinates, one array of native chunks and one of inline chunks."""
    root = zarr.create_group(store, attributes={"title": "weather"})
    for name, values in (
        ("time", np.arange(steps, dtype="int64")),
        ("latitude", np.linspace(80, -80, 12)),
        ("longitude", np.linspace(0, 345, 24)),
    ):
        root.create_array(name, data=values, chunks=values.shape, dimension_names=[name])
    root.create_array(
        "t2m",
        data=_numbers(steps, 12, 24),
        chunks=(2, 12, 24),
        dimension_names=["time", "latitude", "longitude"],
        attributes={"units": "K"},
    )
    root.create_array(
        "rain",
        data=_numbers(steps, 12, 24, dtype="int16"),
        chunks=(1, 4, 8),
        dimension_names=["time", "latitude", "longitude"],
    )


def empty_repository(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Build the initial snapshot and nothing else: not even a root group."""
    return _create(directory, spec_version)[1]


def linear_history(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Make four commits on ``main``: create, overwrite part, change attributes, delete an array.

    The second commit carries metadata of every JSON kind.
    """
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    _add_weather(session.store)
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
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    _add_weather(session.store)
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


def nested_groups(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Nest groups four deep, with siblings that sort differently by bytes and by component."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for path in ("foo", "foo/bar", "foo-x", "foo/bar/deep", "foo.y", "ünïcode"):
        group = root.create_group(path)
        group.create_array("values", data=_numbers(10, seed=len(path)), chunks=(4,))
    root.create_array("scalar", data=np.array(42.0))
    root.create_array("no_chunks", shape=(8, 8), chunks=(2, 2), dtype="int32", fill_value=-1)
    root.create_array("no_cells", shape=(0, 4), chunks=(2, 2), dtype="int32")
    built.snapshots["nested"] = session.commit("nested groups")
    return built


def inline_and_native_chunks(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write one array whose chunks lie on both sides of the inline threshold; some are missing."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    array = root.create_array(
        "mixed", shape=(64, 64), chunks=(16, 16), dtype="float64", fill_value=np.nan
    )
    # Constant chunks compress to a few bytes and go inline; noise does not compress.
    array[:16, :32] = 3.0
    array[16:32] = _numbers(16, 64, dtype="float64")
    array[48:, 48:] = _numbers(16, 16, dtype="float64", seed=1)
    built.snapshots["mixed"] = session.commit("mixed chunks")
    return built


def resized_arrays(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Grow an array by an append, shrink it, then grow it again over the cut-off part."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("series", data=_numbers(20, 400), chunks=(4, 400))
    built.snapshots["twenty"] = session.commit("20 rows")
    for label, rows in (("thirty", 30), ("ten", 10), ("twenty_five", 25)):
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="series")
        if rows > array.shape[0] and label == "thirty":
            array.append(_numbers(rows - array.shape[0], 400, seed=rows))
        else:
            array.resize((rows, 400))
        built.snapshots[label] = session.commit(f"{rows} rows")
    return built


def _reverse_first_axis(coords: Iterable[int]) -> list[int]:
    first, second = coords
    return [5 - first, second]


def shifted_array(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Shift the chunks of an array by one along the first axis, then reverse them."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("window", data=_numbers(12, 300), chunks=(2, 300))
    built.snapshots["written"] = session.commit("write the window")

    session = repository.writable_session("main")
    session.shift_array("/window", (-1, 0))
    built.snapshots["shifted"] = session.commit("shift by one chunk")

    session = repository.writable_session("main")
    session.reindex_array(
        "/window",
        forward=_reverse_first_axis,
        backward=_reverse_first_axis,
    )
    built.snapshots["reversed"] = session.commit("reverse the chunks")
    return built


def split_manifests(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Split manifests by configuration, touch one of them, then rewrite them unsplit."""
    condition = icechunk.ManifestSplitCondition
    dimension = icechunk.ManifestSplitDimCondition
    config = icechunk.RepositoryConfig.default()
    config.manifest = icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict(
            {
                condition.name_matches("^t2m$"): {dimension.DimensionName("time"): 2},
                condition.path_matches("^/rain$"): {dimension.Axis(0): 4, dimension.Axis(2): 2},
            }
        )
    )
    repository, built = _create(directory, spec_version, config=config)
    repository.save_config()
    session = repository.writable_session("main")
    _add_weather(session.store, steps=10)
    built.snapshots["split"] = session.commit("split manifests")

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0:2] = 4
    built.snapshots["touched"] = session.commit("touch one split cell")

    plain = icechunk.RepositoryConfig.default()
    plain.manifest = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig(()))
    repository = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(directory)), config=plain
    )
    built.snapshots["rewritten"] = repository.rewrite_manifests("one manifest each", branch="main")
    return built


def sharded_arrays(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write shards with the index at either end, some inner chunks missing, one shard missing."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    values = _numbers(64, 96)
    for name, location in (("index_at_end", "end"), ("index_at_start", "start")):
        array = root.create_array(
            name,
            shape=(64, 96),
            dtype="float32",
            fill_value=0,
            chunks=(8, 8),
            shards={"shape": (32, 32), "index_location": location},
        )
        array[:, :64] = values[:, :64]
        array[8:16, 8:16] = 0
    built.snapshots["sharded"] = session.commit("sharded arrays")
    return built


def _write_hdf5(path: Path, values: np.ndarray) -> int:
    """Write ``values`` contiguously under ``data`` and return the offset of its first byte."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("data", data=values)
        file.flush()
        return int(dataset.id.get_offset())


def _virtual_config(container: icechunk.VirtualChunkContainer) -> icechunk.RepositoryConfig:
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(container)
    return config


def _virtual_source(directory: Path) -> tuple[Path, str]:
    source = directory.parent / f"{directory.name}-source"
    source.mkdir(parents=True, exist_ok=True)
    # The reference validates locations encoded and reads them decoded, so that it can use a
    # container only where both are the same.
    return source, source.as_uri() + "/"


def _virtual_array(
    root: zarr.Group, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    root.create_array(
        name, shape=shape, chunks=chunks, dtype="float64", compressors=None, fill_value=np.nan
    )


def virtual_chunks(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Refer to HDF5 files by absolute locations, one of them with a time as checksum.

    The files have a space in their names, so locations are percent-encoded.
    """
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store)
    repository, built = _create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = _numbers(40, 25, dtype="float64")
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (50, 25), (10, 25))
    specs = []
    written = datetime.datetime.now(datetime.UTC)
    for block in range(4):
        file = source / f"part {block}.h5"
        offset = _write_hdf5(file, values[block * 10 : block * 10 + 10])
        checksum: dict[str, Any] = {}
        if block == 2:
            checksum["last_updated_at_checksum"] = written + datetime.timedelta(seconds=3)
        specs.append(
            icechunk.VirtualChunkSpec(
                index=[block, 0], location=file.as_uri(), offset=offset, length=2000, **checksum
            )
        )
    assert not session.store.set_virtual_refs("data", specs)
    root["data"][40:] = _numbers(10, 25, dtype="float64", seed=4)
    built.snapshots["virtual"] = session.commit("virtual chunks")
    return built


def named_container(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write locations of the form ``vcc://NAME/path`` beside absolute ones of one container."""
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store, name="sources")
    repository, built = _create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = _numbers(20, 25, dtype="float64")
    offset = _write_hdf5(source / "all.h5", values)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (20, 25), (10, 25))
    session.store.set_virtual_ref("data/c/0/0", "vcc://sources/all.h5", offset=offset, length=2000)
    session.store.set_virtual_ref(
        "data/c/1/0", prefix + "all.h5", offset=offset + 2000, length=2000
    )
    built.snapshots["named"] = session.commit("named container")
    return built


def compressed_locations(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write 1,200 virtual references over 60 files: enough for a dictionary of locations."""
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store)
    repository, built = _create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = _numbers(1200, 4, dtype="float64")
    locations = []
    offsets = []
    for block in range(60):
        file = source / f"station-{block:04d}-daily-mean-temperature.h5"
        start = _write_hdf5(file, values[block * 20 : block * 20 + 20])
        locations += [file.as_uri()] * 20
        offsets += [start + 32 * row for row in range(20)]
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (1200, 4), (1, 4))
    assert not session.store.set_virtual_refs_arr(
        "data",
        (1200, 1),
        locations,
        np.array(offsets, dtype=np.uint64),
        np.full(1200, 32, dtype=np.uint64),
    )
    built.snapshots["compressed"] = session.commit("compressed locations")
    return built


def moved_nodes(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Move an array, and a group with children (spec version 2 only)."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for path in ("old", "old/inner", "target"):
        root.create_group(path)
    root.create_array("old/inner/values", data=_numbers(6, 300), chunks=(2, 300))
    root.create_array("single", data=_numbers(300), chunks=(100,))
    built.snapshots["before"] = session.commit("before the move")

    session = repository.rearrange_session("main")
    session.move("/old", "/target/new")
    session.move("/single", "/target/renamed")
    built.snapshots["moved"] = session.commit("move")
    return built


def amended_commit(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Amend a commit, so that the first try hangs outside every branch."""
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    _add_weather(session.store)
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
    repository, built = _create(directory, spec_version)
    session = repository.writable_session("main")
    _add_weather(session.store)
    built.snapshots["base"] = session.commit("base")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m")[0] = 1
    built.snapshots["detached"] = session.flush("detached")
    return built


def _five_commits(repository: icechunk.Repository, built: ReferenceRepository) -> datetime.datetime:
    """Commit five times and return an instant between the third and the fourth."""
    session = repository.writable_session("main")
    _add_weather(session.store)
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
    repository, built = _create(directory, spec_version)
    between = _five_commits(repository, built)
    repository.expire_snapshots(between)
    return built


def expired_and_collected(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Collect garbage after ``expired_history``: some snapshot and manifest files are gone."""
    repository, built = _create(directory, spec_version)
    between = _five_commits(repository, built)
    repository.expire_snapshots(between)
    repository.garbage_collect(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5))
    return built


def long_operations_log(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Do thirty operations with three per repository file: the log runs through backups."""
    config = icechunk.RepositoryConfig.default()
    config.num_updates_per_repo_info_file = 3
    repository, built = _create(directory, spec_version, config=config)
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


State = Callable[[Path, int], ReferenceRepository]

STATES: dict[str, tuple[State, tuple[int, ...]]] = {
    state.__name__: (state, versions)
    for state, versions in (
        (empty_repository, (1, 2)),
        (linear_history, (1, 2)),
        (branches_and_tags, (1, 2)),
        (nested_groups, (1, 2)),
        (inline_and_native_chunks, (1, 2)),
        (resized_arrays, (1, 2)),
        (shifted_array, (1, 2)),
        (split_manifests, (1, 2)),
        (sharded_arrays, (1, 2)),
        (virtual_chunks, (1, 2)),
        (named_container, (2,)),
        (compressed_locations, (1, 2)),
        (moved_nodes, (2,)),
        (amended_commit, (2,)),
        (detached_snapshot, (1, 2)),
        (expired_history, (1, 2)),
        (expired_and_collected, (1, 2)),
        (long_operations_log, (2,)),
        (migrated_from_v1, (2,)),
    )
}

CASES: list[tuple[str, int]] = [
    (name, version) for name, (_, versions) in STATES.items() for version in versions
]


def build(name: str, spec_version: int, directory: Path) -> ReferenceRepository:
    """Build the state called ``name`` below ``directory``, which must not hold one yet."""
    state, versions = STATES[name]
    if spec_version not in versions:
        raise ValueError(f"{name} exists for spec versions {versions}, not {spec_version}")
    return state(directory / f"{name}-v{spec_version}", spec_version)
