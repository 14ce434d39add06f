"""Plans cost as much as their tasks: a billion chunks in ten thousand manifests take seconds."""

import time
import tracemalloc

import numpy as np
import pytest
from helpers.grids.synthetic_datasets import ArrayToWrite, dataset_of, new_id, write_dataset

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.grid.axes import RegularAxis
from icechunk_format.groups import DimSelection
from icechunk_format.storage.location import Location
from icechunk_format.tables.reading import task_cutting as partitioning
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata


def huge_dataset(*, shape, chunks, manifest_chunks):
    """Describe an array that nobody could store: its manifests are listed, and do not exist."""
    counts = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    edges = [
        np.append(np.arange(0, count, step), count)
        for count, step in zip(counts, manifest_chunks, strict=True)
    ]
    corners = np.stack(
        np.meshgrid(*[np.arange(len(e) - 1) for e in edges], indexing="ij"), axis=-1
    ).reshape(-1, len(shape))
    extents = np.stack(
        [np.stack([e[c], e[c + 1]], -1) for e, c in zip(edges, corners.T, strict=True)], axis=1
    ).astype(np.uint32)
    ids = np.zeros((len(extents), 12), dtype=np.uint8)
    ids[:, :8] = np.arange(1, len(extents) + 1, dtype=">u8").view(np.uint8).reshape(-1, 8)
    volumes = np.prod(extents[:, :, 1] - extents[:, :, 0], axis=1, dtype=np.uint64)
    metadata = build_array_metadata(
        shape=shape,
        data_type=data_type_from_numpy(np.dtype("f4")),
        chunk_shape=chunks,
        dimension_names=["time", "y", "x"],
    )
    array = ArrayNode(
        shape=shape,
        num_chunks=tuple(counts),
        dimension_names=("time", "y", "x"),
        manifests=ManifestRefs(ids=ids, extents=extents),
    )
    snapshot = Snapshot(
        id=new_id(SnapshotId),
        flushed_at=0,
        message="",
        nodes=(
            NodeSnapshot(
                id=new_id(NodeId), path=NodePath("/"), user_data=build_group_metadata().to_bytes()
            ),
            NodeSnapshot(
                id=new_id(NodeId), path=NodePath("/v"), user_data=metadata.to_bytes(), array=array
            ),
        ),
        manifest_files=ManifestFiles.of(
            ids, np.full(len(ids), 10**7, dtype=np.uint64), volumes.astype(np.uint32)
        ),
    )
    return dataset_of(snapshot, Location("memory://nothing-is-here")), int(volumes.sum())


@pytest.mark.parametrize("chunks", [(1, 721, 1440), (1, 1, 1)])
def test_a_billion_chunks_in_ten_thousand_manifests_plan_in_seconds(chunks):
    counts = (1_000_000, 10, 100)
    shape = tuple(n * c for n, c in zip(counts, chunks, strict=True))
    dataset, total = huge_dataset(shape=shape, chunks=chunks, manifest_chunks=(1_000, 10, 10))
    assert total == 10**9
    table = dataset.table()
    started = time.process_time()
    dataset.plan(table)
    elapsed = time.process_time() - started
    tracemalloc.start()
    plan = dataset.plan(table)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{len(plan.tasks)} tasks in {elapsed:.1f} s, {peak / 1e6:.0f} MB")
    assert 250 <= len(plan.tasks) <= partitioning.MAX_DEFAULT_TASKS
    assert plan.rows == np.prod(shape, dtype=object)
    assert elapsed < 15
    assert peak < 400e6
    day = dataset.plan(table, isel=f"time={5 * chunks[0]}:{29 * chunks[0]}")
    assert day.rows == 24 * chunks[0] * shape[1] * shape[2]


def test_tasks_follow_manifests_and_chunk_edges():
    dataset, _ = huge_dataset(shape=(100, 40, 40), chunks=(3, 40, 40), manifest_chunks=(5, 1, 1))
    plan = dataset.plan(dataset.table(), rows_per_partition=3 * 1600)
    edges = {bounds for task in plan.tasks for part in task.parts for bounds in part[1:3]}
    assert edges <= {*range(0, 100, 3), 100}
    plan = dataset.plan(dataset.table(), rows_per_partition=10**9)
    # Far below the wanted size, neighbours join and what touches becomes one box.
    assert [task.parts for task in plan.tasks] == [((0, 0, 100, 0, 40, 0, 40),)]


def test_sparse_indices_leave_out_chunks_between_them():
    cuts = partitioning.cut(
        selections=[DimSelection.of_indices(1000, np.array([5, 6, 500, 999]))],
        extents=np.array([[[0, 1000]]]),
        axes=[RegularAxis(size=1000, step=10)],
        task_rows=1,
    )
    assert cuts.rows.tolist() == [2, 1, 1]
    assert cuts.boxes[:, 0, 0].tolist() == [5, 500, 990]


def test_uncovered_cells_have_tasks_or_none():
    values = np.arange(30, dtype="i4")
    missing = frozenset((n,) for n in range(5, 10))
    dataset = write_dataset(
        "uncovered",
        {
            "v": ArrayToWrite(
                values=values, chunks=(2,), dims=("x",), missing=missing, manifest_chunks=5
            )
        },
    )
    table = dataset.table()
    filled = dataset.plan(table, rows_per_partition=10)
    assert [task.rows for task in filled.tasks] == [10, 10, 10]
    skipped = dataset.plan(table, missing_chunks="skip", rows_per_partition=10)
    assert [task.parts for task in skipped.tasks] == [((0, 0, 10),), ((0, 20, 30),)]


def test_summary_blocks_are_never_divided():
    dataset, _ = huge_dataset(shape=(1000, 40, 40), chunks=(7, 40, 40), manifest_chunks=(5, 1, 1))
    table = dataset.table("summary", block={"time": 24})
    plan = dataset.plan(table, rows_per_partition=1)
    edges = sorted({part[1] for task in plan.tasks for part in task.parts})
    assert edges == list(range(0, 1000, 24))
