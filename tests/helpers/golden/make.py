"""Makes the golden repositories of this version, in ``tests/golden/<version>/``.

``PYTHONPATH=tests python tests/helpers/golden/make.py [FOLDER]`` makes those that the folder lacks:
what a release wrote is never replaced. Ids, times and contents are the same in every run, since
clocks and random numbers are those of this module. What each repository must hold is recorded
beside it, as the reference library and zarr-python read it, not as we do.

Needs the reference, zarr, xarray, virtualizarr and deltalake.
"""

from __future__ import annotations

import datetime
import json
import random
import secrets
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import xarray as xr
import zarr
from helpers.arrays.every_data_type import fill_zoo
from helpers.builder import add_array, new_place
from helpers.golden import peer
from helpers.golden.contents import objects_of, packed, rows
from helpers.golden.records import (
    FOLLOWED,
    MIRRORED,
    REDUCED,
    SOURCE,
    follow,
    mirror,
    mirrored_rows,
    reduce,
    write_source,
)
from helpers.golden.virtual import PREFIX, put_sources, sources
from helpers.golden.virtualized import (
    FILES,
    REPOSITORY,
    VIRTUALIZED,
    add_files,
    make_files,
    put_files,
)
from helpers.grids.zarr_arrays import read_all, stored, write_all
from helpers.sessions.model import array_document, group_document
from zarr.storage import MemoryStore

from icechunk_format import maintenance
from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.encoding.splitting import ArrayCondition, DimensionRule, SplittingRule
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository.state.transitions import FeatureFlag
from icechunk_format.storage import memory
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.version import __version__
from icechunk_format.workflows.changes.steps import offset_of
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.merging.repository import Repository
from icechunk_format.workflows.running import in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).parents[2] / "golden" / __version__
START = 1_750_000_000
SPEC_VERSIONS = (1, 2)
# Bytes of a chunk: some are stored in manifests, some in objects.
SIZES = {"a": 50, "b": 50, "c": 1, "d": 1}


@contextmanager
def fixed(seed: str) -> Iterator[None]:
    """Let clocks go a second further whenever they are read, and draw the same random numbers."""
    chance, seconds = random.Random(seed), START

    def time_ns() -> int:
        nonlocal seconds
        seconds += 1
        return seconds * 10**9

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return cls.fromtimestamp(seconds, tz)

    with (
        mock.patch.object(time, "time_ns", time_ns),
        mock.patch.object(time, "time", side_effect=lambda: float(seconds)),
        mock.patch.object(memory, "datetime", Clock),
        mock.patch.object(secrets, "token_bytes", chance.randbytes),
        mock.patch.object(secrets, "token_hex", lambda n: chance.randbytes(n).hex()),
        mock.patch.object(secrets, "choice", chance.choice),
    ):
        yield


def types(place: str, spec_version: int) -> None:
    """Write every data type, plain and in shards, and every codec."""
    store = MemoryStore()
    zarr.config.set({"array.rectilinear_chunks": True})
    fill_zoo(zarr.create_group(store), numbers=("int16", "float64"))
    session = Repository.create(place, spec_version=spec_version).writable_session()
    objects = stored(store)
    for key, document in sorted(objects.items(), key=lambda item: item[0].count("/")):
        path = key.removesuffix("zarr.json").rstrip("/")
        if not key.endswith("zarr.json"):
            continue
        if json.loads(document)["node_type"] == "group":
            session.create_group(f"/{path}", document)
            continue
        metadata, values = read_all(objects, path)
        ours = write_all(metadata, values, path)
        session.create_array(
            f"/{path}",
            ours.pop(f"{path}/zarr.json"),
            shape=metadata.shape,
            num_chunks=metadata.grid.num_chunks,
            dimension_names=metadata.dimension_names,
        )
        for chunk, data in ours.items():
            coords = [int(index) for index in chunk.removeprefix(f"{path}/c/").split("/")]
            session.set_chunk(f"/{path}", coords, data)
    session.commit("every data type and every codec")


def history(place: str, spec_version: int) -> None:
    """Make branches, tags, merges, moves, amendments, settings, and an expired history."""
    repository = Repository.create(place, spec_version=spec_version)
    rule = SplittingRule(
        condition=ArrayCondition(kind="any_array"),
        dimensions=(DimensionRule(by="any", num_chunks=3),),
    )
    repository.update_config(
        {"inline_chunk_threshold_bytes": 40, "manifest": {"splitting": [rule]}}
    )

    def commit(message: str, *, branch: str = "main", **chunks: list[int]) -> str:
        session = repository.writable_session(branch)
        for name, at in chunks.items():
            size = SIZES[name]
            if session.node(f"/{name}") is None:
                document = array_document((10 * size,), (size,))
                if session.node("/") is None:
                    session.create_group("/", group_document())
                session.create_array(f"/{name}", document, shape=(10 * size,), num_chunks=(10,))
            payloads = [bytes([index]) * size for index in at]
            session.set_chunks(f"/{name}", [[index] for index in at], payloads)
        return str(session.commit(message, metadata={"of": [branch, None, 1.5]}).snapshot_id)

    commit("expires 1", a=[0, 1, 2])
    commit("expires 2", a=[2, 3])
    old = commit("oldest that stays", b=list(range(10)))
    cutoff = datetime.datetime.fromtimestamp(
        repository.snapshot_info(old).flushed_at / 1e6, datetime.UTC
    )
    repository.expire_snapshots(cutoff)
    maintenance.collect_garbage(place, cutoff)
    repository.create_tag("v1", old)
    repository.create_tag("gone", old)
    repository.delete_tag("gone")
    feature = "feature/ä" if spec_version > 1 else "feature-1.x"
    for branch in ("dev", feature, "gone"):
        repository.create_branch(branch, old)
    repository.delete_branch("gone")
    commit("of dev", branch="dev", a=[5], c=[1])
    commit("of main", a=[6])
    repository.merge("dev", into="main")
    picked = commit("picked", branch=feature, d=[0])
    repository.cherry_pick(picked, onto="main")
    repository.set_attributes("/a", {"units": "K", "list": [1, None, "ü"]})
    session = repository.writable_session()
    session.shift("/b", (2,))
    session.delete_chunks("/a", [[0]])
    session.commit("shift and delete")
    lost = commit("reset", a=[9])
    repository.create_tag("lost", lost)
    repository.reset_branch("main", repository.snapshot_info(lost).parent_id)
    repository.drop("/d")
    repository.restore("main", repository.resolve(tag="v1"))
    commit("after restoring", a=[7])
    maintenance.rewrite_manifests(place)
    if spec_version == 1:
        return
    session = repository.writable_session()
    session.set_chunk("/a", [8], b"8" * 50)
    session.commit("to be amended")
    session = repository.writable_session()
    session.set_chunk("/a", [9], b"9" * 50)
    session.amend("amended")
    session = repository.writable_session()
    session.create_group("/deep", group_document())
    session.commit("group")
    repository.rename("/b", "/deep/b")
    repository.set_metadata({"owner": "golden", "numbers": [1, 2.5, None]})
    repository.set_feature_flag(FeatureFlag.DELETE_TAG, False)


def tables(place: str, spec_version: int) -> None:
    """Write labels, CF times, packed and missing values, shards; append, replace and delete."""

    def write(first: int, last: int, offset: float = 0.0, **options: Any) -> None:
        day, y = np.meshgrid(np.arange(first, last), np.arange(3) * 1.5, indexing="ij")
        times = np.datetime64("2024-02-27", "us") + day.ravel() * np.timedelta64(1, "D")
        t2m = [None if n % 7 == 3 else 270 + n + offset for n in range(day.size)]
        table = pa.table(
            {
                "time": pa.array(times),
                "y": y.ravel(),
                "t2m": pa.array(t2m, pa.float64()),
                "station": pa.array([f"ß{n}" for n in day.ravel().tolist()]),
                "count": pa.array(day.ravel(), pa.int64()),
            }
        )
        write_table(place, table, WriteOptions(dims=("time", "y"), **options))

    encoding: dict[str, Any] = {
        "time": {"units": "hours since 1990-01-01", "dtype": "int32"},
        "t2m": {"dtype": "int16", "scale_factor": 0.5, "add_offset": 270.0, "_FillValue": -999},
        "count": {"shards": {"time": 4, "y": 4}, "chunks": {"time": 2, "y": 2}, "_FillValue": -1},
        "station": {"missing_value": "none"},
    }
    # As Spark's option: JSON.
    write(
        0, 4, mode="errorifexists", chunks={"time": 2, "y": 2}, encoding=encoding,
        spec_version=spec_version,
    )  # fmt: skip
    write(4, 9, mode="append", txn_app_id="nightly", txn_version=7, metadata={"job": [1, None]})
    write(
        3, 5, 0.5, mode="overwrite", txn_app_id="nightly", txn_version=8,
        replace_where="time >= TIMESTAMP_NTZ '2024-03-01' AND time < TIMESTAMP_NTZ '2024-03-03'",
    )  # fmt: skip
    Repository.open(place).create_tag("before-deletions", Repository.open(place).resolve())
    for where in ("time = TIMESTAMP_NTZ '2024-02-28'", "t2m > 290"):
        read = ReadRequest(path=place, where=where)
        delete_selected(DeleteRequest(read=read, options=WriteOptions(mode="append")), in_process)


def virtual(place: str, spec_version: int) -> None:
    """Refer to files by absolute and named locations, with checksums, and many of one array."""
    repository = Repository.create(place, spec_version=spec_version)
    container = {"store": {"local_file_system": PREFIX.removeprefix("file://")}}
    if spec_version > 1:
        container["name"] = "sources"
    repository.update_config({"virtual_chunk_containers": {PREFIX: container}})
    session = repository.writable_session()
    files = sources()
    for path, many in (("/few", 6), ("/many", 1200)):
        add_array(session, path, (many,))
        index = np.arange(many)
        places = [f"{PREFIX}{name}" for name in files]
        if spec_version > 1:
            places[0] = f"vcc://sources/{next(iter(files))}"
        refs = virtual_refs(
            index[:, None],
            places,
            index % 90,
            np.ones(many, int),
            location_of_row=index % len(files),
            last_modified=np.where(index % 2, START, 0),
        )
        session.set_refs(path, refs)
    session.set_chunk("/few", [5], b"\5")
    session.commit("virtual chunks")


STATES: dict[str, Callable[[str, int], None]] = {
    "history": history, "types": types, "tables": tables, "virtual": virtual,
}  # fmt: skip


def repositories() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each repository by its name, with its objects."""
    for name, build in STATES.items():
        for spec_version in SPEC_VERSIONS:
            with fixed(name):
                place = new_place()
                build(place, spec_version)
                yield f"{name}-v{spec_version}", objects_of(place)


def expected(objects: dict[str, bytes]) -> dict[str, Any]:
    """Return what a repository contains, as the reference library reads it."""
    put_sources()
    with tempfile.TemporaryDirectory() as folder:
        for key, data in objects.items():
            (Path(folder) / key).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / key).write_bytes(data)
        repository = peer.open_repository(folder, [PREFIX])
        found = peer.contents(repository)
        found["cells"] = {
            ref: cells_of(repository.readonly_session(snapshot_id=ref).store)
            for ref, version in found["versions"].items()
            if "/t2m" in version["values"]
        }
        return found


def cells_of(store: Any) -> list[Any]:
    """Return the decoded rows of a version as xarray reads it, without missing cells."""
    dataset = xr.open_zarr(store, consolidated=False, chunks=None).load()
    table = dataset[["t2m", "count"]].to_dataframe().reset_index()
    return [
        [
            str(row.time),
            str(row.y),
            *(None if np.isnan(n) else float(n) for n in (row.t2m, row.count_)),
        ]
        for row in table.rename(columns={"count": "count_"}).sort_values(["time", "y"]).itertuples()
    ]


def records() -> tuple[dict[str, bytes], dict[str, Any]]:
    """Make results and copies that follow a source; return all files, and what these recorded."""
    with fixed("records"), tempfile.TemporaryDirectory() as folder:
        write_source(0, 5)
        copy = Path(folder) / "copy"
        follow(), reduce(), mirror(copy)
        files = {
            f"{place.removeprefix('memory://')}/{key}": data
            for place in (SOURCE, FOLLOWED, REDUCED)
            for key, data in objects_of(place).items()
        }
        for file in sorted(copy.rglob("*")):
            if file.is_file():
                files[f"{MIRRORED}/{file.relative_to(copy).as_posix()}"] = file.read_bytes()
        source = Repository.open(SOURCE)
        found = {
            "offset": offset_of(source, source.resolve()).as_json(),
            "rows": mirrored_rows(copy),
            "source": rows(source, str(source.resolve())),
        }
        return files, found


def virtualized() -> tuple[dict[str, bytes], dict[str, Any]]:
    """Virtualize two of three files; return all files, and the cells of each file."""
    files = make_files()
    with fixed("virtualized"):
        paths = put_files(files)
        add_files(paths[:2])
        found = {
            **{f"{REPOSITORY}/{key}": data for key, data in objects_of(VIRTUALIZED).items()},
            **{f"{FILES}/{name}": data for name, data in files.items()},
        }
    cells = {
        Path(path).name: xr.open_dataset(path, engine="h5netcdf")["t2m"].values.tolist()
        for path in paths
    }
    return found, {"cells": cells}


def main(folder: Path) -> None:
    """Make what a folder lacks."""
    folder.mkdir(parents=True, exist_ok=True)

    def keep(name: str, files: dict[str, bytes], found: dict[str, Any]) -> None:
        archive = folder / f"{name}.tar.xz"
        if archive.exists():
            print(f"{archive} exists and stays")
            return
        found_text = json.dumps(found, indent=0, sort_keys=True, ensure_ascii=False)
        archive.write_bytes(packed({**files, "expected.json": found_text.encode()}))
        print(f"{archive}: {len(files)} objects, {archive.stat().st_size:,} bytes")

    for name, objects in repositories():
        keep(name, objects, expected(objects))
    keep("records", *records())
    keep("virtualized", *virtualized())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
