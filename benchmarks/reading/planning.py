"""Plans scans of up to a billion chunks in ten thousand manifests, without opening a manifest.

This project's encoders write the snapshot. The manifests that it lists do not exist, so a plan that
opened one would fail, and a log of requests shows that none was opened.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import RequestLog, Row, in_fresh_process

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.object_keys import REPO, snapshot_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info.updates import RepoInitializedUpdate, RepoStatus, Update
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pyspark.sql import SparkSession

BENCHMARK = "plan"
CHUNK = (1, 721, 1440)
CHUNKS_PER_MANIFEST = 100_000
DIMS = ["time", "latitude", "longitude"]


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    largest = max(2, round(10_000 * options.scale)) * CHUNKS_PER_MANIFEST
    sizes = [chunks for chunks in (10**3, 10**5, 10**7) if chunks < largest]
    return [measure(str(folder / f"{n}"), n, options.rounds) for n in (*sizes, largest)]


def measure(path: str, chunks: int, rounds: int) -> Row:
    per_manifest = min(chunks, CHUNKS_PER_MANIFEST)
    manifests = chunks // per_manifest
    write_snapshot(path, manifests, per_manifest)
    runs = [in_fresh_process(plan, path) for _ in range(rounds)]
    traced = in_fresh_process(plan_traced, path)
    value = runs[0].value
    if value["chunks"] != chunks:
        raise AssertionError(f"planned {value['chunks']} chunks")
    if value["manifest_requests"]:
        raise AssertionError(f"the plan opened {value['manifest_requests']} manifests")
    median = sorted(run.value["seconds"] for run in runs)[len(runs) // 2]
    return Row(
        benchmark=BENCHMARK,
        case=f"{chunks:,} chunks in {manifests:,} manifest{'s' if manifests > 1 else ''}",
        wall_s=median,
        cpu_s=sorted(run.value["cpu_seconds"] for run in runs)[len(runs) // 2],
        peak_mb=max(run.peak_mb for run in runs),
        goal="<= 3 s, <= 300 MB, no manifest opened",
        figures={**value, "allocated_mb": round(traced.value, 1)},
    )


def write_snapshot(path: str, manifests: int, per_manifest: int) -> None:
    """Write a repository of two snapshots, the second with one enormous array."""
    extents = np.zeros((manifests, 3, 2), dtype=np.uint32)
    extents[:, 0, 0] = np.arange(manifests) * per_manifest
    extents[:, 0, 1] = extents[:, 0, 0] + per_manifest
    extents[:, 1:, 1] = 1
    ids = np.zeros((manifests, 12), dtype=np.uint8)
    ids[:, :8] = np.arange(1, manifests + 1, dtype=">u8").view(np.uint8).reshape(-1, 8)
    steps = manifests * per_manifest
    metadata = build_array_metadata(
        shape=(steps, *CHUNK[1:]),
        data_type=data_type_from_numpy(np.dtype("f4")),
        chunk_shape=CHUNK,
        dimension_names=DIMS,
    )
    array = snapshot.ArrayNode(
        shape=(steps, *CHUNK[1:]),
        num_chunks=(steps, 1, 1),
        dimension_names=tuple(DIMS),
        manifests=ManifestRefs(ids=ids, extents=extents),
    )
    root = build_group_metadata().to_bytes()
    nodes = (
        snapshot.NodeSnapshot(id=NodeId(b"group..."), path=NodePath("/"), user_data=root),
        snapshot.NodeSnapshot(
            id=NodeId(b"array..."),
            path=NodePath("/t2m"),
            user_data=metadata.to_bytes(),
            array=array,
        ),
    )
    snapshot_id = SnapshotId(b"billion.....")
    storage = open_storage(Location(path))
    storage.put(
        snapshot_key(snapshot_id),
        snapshot.encode(
            snapshot.Snapshot(
                id=snapshot_id,
                flushed_at=0,
                message="an enormous array",
                nodes=nodes,
                manifest_files=ManifestFiles.of(
                    ids,
                    np.full(manifests, 4_000_000, dtype=np.uint64),
                    np.full(manifests, per_manifest, dtype=np.uint32),
                ),
            )
        ),
    )
    info = repo_info.SnapshotInfo(
        id=snapshot_id,
        parent_id=None,
        flushed_at=0,
        message="an enormous array",
        metadata_items=MetadataItems.of({}),
    )
    described = repo_info.RepoInfo(
        branches={"main": snapshot_id},
        tags={},
        snapshots={snapshot_id: info},
        status=RepoStatus(set_at=0),
        latest_updates=(Update(details=RepoInitializedUpdate(), updated_at=0),),
    )
    storage.put(REPO, repo_info.encode(described))


def plan(path: str) -> dict[str, Any]:
    """Open the repository, plan a scan of all of it and one of a day."""
    from icechunk_format.repository import Repository
    from icechunk_format.tables import open_dataset

    with RequestLog() as log:
        started, cpu = time.perf_counter(), time.process_time()
        repository = Repository.open(path)
        dataset = open_dataset(repository, repository.resolve(branch="main"))
        made = dataset.plan(dataset.table())
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        started = time.perf_counter()
        day = dataset.plan(dataset.table(), isel="time=500:524")
        day_seconds = time.perf_counter() - started
    plane = CHUNK[1] * CHUNK[2]
    if day.rows != 24 * plane:
        raise AssertionError(f"a day has {day.rows} rows")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "chunks": made.rows // plane,
        "tasks": len(made.tasks),
        "plan_of_a_day_s": round(day_seconds, 3),
        "requests": len(log.reads),
        "manifest_requests": log.keys_below("manifests/"),
    }


def plan_traced(path: str) -> float:
    """Return the most memory that planning allocated, in MB."""
    tracemalloc.start()
    plan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6
