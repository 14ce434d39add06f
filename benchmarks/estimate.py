"""Estimates the cost of very large repositories for a driver, a task and a commit, by simulation.

This project's encoders write full-size snapshots of data that do not exist: one variable of ERA5 on
pressure levels (9.8 million chunks, 41 TB), and a virtual archive of a billion chunks in GRIB
files. Only the last of the manifests in a snapshot is written, and the others are assumed to have
the same size. Plans and commits then run on a local disk. Requests are counted; network time is not
measured.

``python benchmarks/estimate.py`` prints the table of the manual's page "Clusters", and
``python benchmarks/estimate.py archive`` that of the page "Archives".
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from measurement import RequestLog, in_fresh_process

from icechunk_format.encoding.ids import ManifestId, NodeId, SnapshotId
from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode as encode_manifest
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.object_keys import manifest_key, snapshot_key
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.repository import Repository
from icechunk_format.repository.files import load_manifests
from icechunk_format.tables import open_dataset
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

if TYPE_CHECKING:
    from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs

NODE = NodeId(b"variable")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A variable of (time, level or field, y, x), with a chunk for each time and level.

    Parameters
    ----------
    name
        For the table.
    steps, fields, grid
        Its shape.
    steps_per_manifest
        How manifests are split along time.
    new_steps
        Steps along time that one more commit appends.
    is_virtual
        True if the chunks are virtual.
    """

    name: str
    steps: int
    fields: int
    grid: tuple[int, int]
    steps_per_manifest: int
    new_steps: int
    is_virtual: bool

    @property
    def chunks(self) -> int:
        return self.steps * self.fields

    @property
    def manifests(self) -> int:
        return math.ceil(self.steps / self.steps_per_manifest)

    def document(self, steps: int) -> bytes:
        return build_array_metadata(
            shape=(steps, self.fields, *self.grid),
            data_type=data_type_from_numpy(np.dtype("f4")),
            chunk_shape=(1, 1, *self.grid),
            dimension_names=["time", "level", "y", "x"],
        ).to_bytes()

    def refs(self, first: int, stop: int) -> ChunkRefs:
        """Return the references of some steps."""
        count = (stop - first) * self.fields
        coords = np.zeros((count, 4), dtype=np.uint32)
        coords[:, 0] = np.repeat(np.arange(first, stop), self.fields)
        coords[:, 1] = np.tile(np.arange(self.fields), stop - first)
        chance = np.random.default_rng(first)
        lengths = chance.integers(900_000, 2_100_000, count).astype(np.uint64)
        if not self.is_virtual:
            ids = chance.integers(0, 256, (count, 12), dtype=np.uint8)
            return native_refs(coords, chunk_ids=ids, lengths=lengths)
        files = [
            f"s3://archive/model.{step // 24:08d}/model.t{step % 24:02d}z.grib2"
            for step in range(first, stop)
        ]
        offsets = np.cumsum(lengths.reshape(-1, self.fields), axis=1).ravel() - lengths
        return virtual_refs(
            coords,
            locations=[file for file in files for _ in range(self.fields)],
            offsets=offsets,
            lengths=lengths,
        )


ARCHIVES = (
    Archive(
        name="ERA5, one variable on 13 levels, hourly: 41 TB",
        steps=753_888,
        fields=13,
        grid=(721, 1440),
        steps_per_manifest=7_692,
        new_steps=24,
        is_virtual=False,
    ),
    Archive(
        name="a virtual archive of forecasts, 2,000 fields an hour",
        steps=500_000,
        fields=2_000,
        grid=(1059, 1799),
        steps_per_manifest=50,
        new_steps=24,
        is_virtual=True,
    ),
)


def build(archive: Archive, path: str) -> dict[str, Any]:
    """Write the repository; return the sizes of its files."""
    repository = Repository.create(path)
    rule = [{"condition": {"DimensionName": "time"}, "num_chunks": archive.steps_per_manifest}]
    repository.update_config({"manifest": {"splitting": {"split_sizes": [["any_array", rule]]}}})
    count = archive.manifests
    extents = np.zeros((count, 4, 2), dtype=np.uint32)
    extents[:, 0, 0] = np.arange(count) * archive.steps_per_manifest
    extents[:, 0, 1] = np.minimum(extents[:, 0, 0] + archive.steps_per_manifest, archive.steps)
    extents[:, 1, 1] = archive.fields
    extents[:, 2:, 1] = 1
    ids = np.zeros((count, 12), dtype=np.uint8)
    ids[:, :8] = np.arange(1, count + 1, dtype=">u8").view(np.uint8).reshape(-1, 8)
    last = ManifestId(ids[-1].tobytes())
    sizes = {}
    for name, first, stop in (
        ("whole", 0, archive.steps_per_manifest),
        ("last", int(extents[-1, 0, 0]), archive.steps),
    ):
        refs = archive.refs(first, stop)
        made = Manifest(id=last, arrays=(ArrayManifest(node_id=NODE, refs=refs),))
        data = encode_manifest(made)
        sizes[name] = len(data)
        repository.storage.put(manifest_key(last), data)
    counts = (extents[:, 0, 1] - extents[:, 0, 0]).astype(np.uint32) * np.uint32(archive.fields)
    file_sizes = np.full(count, sizes["whole"], dtype=np.uint64)
    file_sizes[-1] = sizes["last"]
    array = snapshot_file.ArrayNode(
        shape=(archive.steps, archive.fields, *archive.grid),
        num_chunks=(archive.steps, archive.fields, 1, 1),
        dimension_names=("time", "level", "y", "x"),
        manifests=ManifestRefs(ids=ids, extents=extents),
    )
    nodes = (
        snapshot_file.NodeSnapshot(
            id=NodeId(b"group..."),
            path=NodePath("/"),
            user_data=build_group_metadata().to_bytes(),
        ),
        snapshot_file.NodeSnapshot(
            id=NODE,
            path=NodePath("/t"),
            user_data=archive.document(archive.steps),
            array=array,
        ),
    )
    flushed_at = time.time_ns() // 1000
    made = snapshot_file.Snapshot(
        id=SnapshotId(b"simulated..."),
        flushed_at=flushed_at,
        message="simulated",
        nodes=nodes,
        manifest_files=ManifestFiles.of(ids, file_sizes, counts),
    )
    data = snapshot_file.encode(made)
    repository.storage.put(snapshot_key(made.id), data)
    info = SnapshotInfo(
        id=made.id,
        parent_id=repository.resolve(branch="main"),
        flushed_at=flushed_at,
        message="simulated",
        metadata_items=MetadataItems.of({}),
    )
    if repository.writable_tip("main").advance(info) is not None:
        raise AssertionError("another writer has committed")
    return {"snapshot_bytes": len(data), "manifest_bytes": sizes["whole"], "last": str(last)}


def plan(path: str, isel: str | None) -> dict[str, Any]:
    """Open the repository and plan a scan, as the driver does."""
    with RequestLog() as log:
        started = time.perf_counter()
        repository = Repository.open(path)
        dataset = open_dataset(repository, repository.resolve(branch="main"))
        made = dataset.plan(dataset.table(), isel=isel)
        seconds = time.perf_counter() - started
    return {
        "tasks": len(made.tasks),
        "rows": made.rows,
        "seconds": seconds,
        "requests": len(log.reads),
        "manifest_requests": log.keys_below("manifests/"),
    }


def load_one(path: str, manifest_id: str) -> int:
    """Load a manifest, as a task does."""
    repository = Repository.open(path)
    [found] = load_manifests(repository.storage, [ManifestId.parse(manifest_id)])
    return found.num_chunk_refs


def commit(path: str, archive: Archive) -> dict[str, Any]:
    """Append some steps, whose chunks are stored already, and commit."""
    with RequestLog() as log:
        started = time.perf_counter()
        session = Repository.open(path).writable_session()
        steps = archive.steps + archive.new_steps
        session.update_metadata(
            "/t",
            archive.document(steps),
            shape=(steps, archive.fields, *archive.grid),
            num_chunks=(steps, archive.fields, 1, 1),
        )
        session.set_refs("/t", archive.refs(archive.steps, steps))
        done = session.commit("one more day")
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "bytes": sum(done.bytes_written.values()),
        "files": sum(done.files_written.values()),
        "reads": len(log.reads),
        "manifests_read": log.keys_below("manifests/"),
    }


def estimate(archive: Archive, path: str) -> list[tuple[str, str]]:
    """Return the lines of the table for one archive."""
    sizes = in_fresh_process(build, archive, path).value
    whole = in_fresh_process(plan, path, None)
    day = in_fresh_process(plan, path, f"time=0:{archive.new_steps}; level=0")
    if whole.value["manifest_requests"] or day.value["manifest_requests"]:
        raise AssertionError("a plan opened a manifest")
    task = in_fresh_process(load_one, path, sizes["last"])
    new = in_fresh_process(commit, path, archive)
    per_task = archive.chunks / whole.value["tasks"]
    return [
        ("chunks; cells", f"{archive.chunks:,}; {whole.value['rows']:.2g}"),
        (
            "manifests",
            f"{archive.manifests:,} of {sizes['manifest_bytes'] / 1e6:.1f} MB, together "
            f"{archive.manifests * sizes['manifest_bytes'] / 1e9:.1f} GB",
        ),
        ("snapshot file", f"{sizes['snapshot_bytes'] / 1e3:,.0f} kB"),
        (
            "plan of a full scan",
            f"{whole.value['tasks']:,} partitions in {whole.value['seconds']:.1f} s, "
            f"{whole.value['requests']} requests, driver's Python {whole.peak_mb:,.0f} MB",
        ),
        (
            "requests of a partition",
            f"1 manifest ({task.peak_mb:,.0f} MB with Python), then {per_task:,.0f} chunks",
        ),
        (
            "requests of all partitions",
            f"{archive.chunks + whole.value['tasks']:,}, at 0.40 USD a million "
            f"{(archive.chunks + whole.value['tasks']) * 0.4e-6:,.0f} USD",
        ),
        (
            "plan of one level of one day",
            f"{day.value['tasks']:,} partitions in {day.value['seconds']:.1f} s, then "
            f"{archive.new_steps} chunks and 1 manifest",
        ),
        (
            "commit of one more day",
            f"{archive.new_steps * archive.fields:,} chunks: {new.value['bytes'] / 1e3:,.0f} kB in "
            f"{new.value['files']} files in addition to the chunks, {new.value['reads']} reads, "
            f"{new.value['seconds']:.1f} s, {new.peak_mb:,.0f} MB",
        ),
    ]


def main() -> None:
    """Print a table."""
    if sys.argv[1:] == ["archive"]:
        from workflows import archive_costs

        with tempfile.TemporaryDirectory() as folder:
            rows = archive_costs.estimate(Path(folder))
        print("| | 100,000 files of 24 hours, 10 variables and 100 chunks each |\n|---|---|")
        print("\n".join(f"| {name} | {text} |" for name, text in rows))
        return
    columns = []
    with tempfile.TemporaryDirectory() as folder:
        for number, archive in enumerate(ARCHIVES):
            columns.append(estimate(archive, str(Path(folder, str(number)))))
    print("| | " + " | ".join(archive.name for archive in ARCHIVES) + " |")
    print("|---" * (len(ARCHIVES) + 1) + "|")
    for rows in zip(*columns, strict=True):
        print(f"| {rows[0][0]} | " + " | ".join(text for _, text in rows) + " |")


if __name__ == "__main__":
    main()
