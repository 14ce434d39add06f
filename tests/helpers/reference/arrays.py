"""Repositories of the reference whose groups, arrays and manifests are worth reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import icechunk
import numpy as np
import zarr
from helpers.reference.building import ReferenceRepository, add_weather, create, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def nested_groups(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Nest groups four deep, with siblings that sort differently by bytes and by component."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for path in ("foo", "foo/bar", "foo-x", "foo/bar/deep", "foo.y", "ünïcode"):
        group = root.create_group(path)
        group.create_array("values", data=numbers(10, seed=len(path)), chunks=(4,))
    root.create_array("scalar", data=np.array(42.0))
    root.create_array("no_chunks", shape=(8, 8), chunks=(2, 2), dtype="int32", fill_value=-1)
    root.create_array("no_cells", shape=(0, 4), chunks=(2, 2), dtype="int32")
    built.snapshots["nested"] = session.commit("nested groups")
    return built


def inline_and_native_chunks(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write one array whose chunks lie on both sides of the inline threshold; some are missing."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    array = root.create_array(
        "mixed", shape=(64, 64), chunks=(16, 16), dtype="float64", fill_value=np.nan
    )
    # Constant chunks compress to a few bytes and go inline; noise does not compress.
    array[:16, :32] = 3.0
    array[16:32] = numbers(16, 64, dtype="float64")
    array[48:, 48:] = numbers(16, 16, dtype="float64", seed=1)
    built.snapshots["mixed"] = session.commit("mixed chunks")
    return built


def resized_arrays(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Grow an array by an append, shrink it, then grow it again over the cut-off part."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("series", data=numbers(20, 400), chunks=(4, 400))
    built.snapshots["twenty"] = session.commit("20 rows")
    for label, rows in (("thirty", 30), ("ten", 10), ("twenty_five", 25)):
        session = repository.writable_session("main")
        array = zarr.open_array(session.store, path="series")
        if rows > array.shape[0] and label == "thirty":
            array.append(numbers(rows - array.shape[0], 400, seed=rows))
        else:
            array.resize((rows, 400))
        built.snapshots[label] = session.commit(f"{rows} rows")
    return built


def _reverse_first_axis(coords: Iterable[int]) -> list[int]:
    first, second = coords
    return [5 - first, second]


def shifted_array(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Shift the chunks of an array by one along the first axis, then reverse them."""
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    root.create_array("window", data=numbers(12, 300), chunks=(2, 300))
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
    repository, built = create(directory, spec_version, config=config)
    repository.save_config()
    session = repository.writable_session("main")
    add_weather(session.store, steps=10)
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
    repository, built = create(directory, spec_version)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    values = numbers(64, 96)
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
