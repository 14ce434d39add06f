"""Compares `virtualize` for archives of NetCDF files with the parser alone and with VirtualiZarr.

The limit is VirtualiZarr's parser alone, with its own client, in one process, without keeping
references. The peer is ``open_virtual_mfdataset`` and ``to_icechunk``. Two processes represent two
executors without a JVM; one case runs on Spark.

The memory of the driver is measured in a process that distributes 10 million references of an
archive, which a parser generates instead of reading files of that size.
"""

from __future__ import annotations

import datetime as dt
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import obstore
import xarray as xr
from helpers.servers.s3 import running_s3_server
from measurement import Row, in_fresh_process, interleaved, row

import icechunk_spark
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.workflows.virtualizing import Archive, virtualize_files

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

BENCHMARK = "archives"
_SHAPE, _CHUNK = (24, 73, 144), (12, 73, 72)
_REFS_PER_FILE = 1_000
_CONTEXT = get_context("spawn")


def run(spark: SparkSession, folder: Path, options: Namespace) -> list[Row]:
    count = max(20, round(1_000 * options.scale))
    files = make_files(folder / "archive", count)
    repository = str(folder / "repository")
    with (
        ProcessPoolExecutor(1, mp_context=_CONTEXT) as one,
        ProcessPoolExecutor(2, mp_context=_CONTEXT) as two,
    ):
        parser, ours, twice = "parser alone", "virtualize, one core", "virtualize, two cores"
        rival, by_spark = "open_virtual_mfdataset, to_icechunk", "virtualize, Spark, two cores"
        cases: dict[str, Callable[[], Any]] = {
            parser: lambda: one.submit(parse_all, files).result(),
            ours: partial(virtualize, files, repository, one, 1),
            twice: partial(virtualize, files, repository, two, 2),
            rival: lambda: one.submit(combine, files, repository).result(),
            by_spark: partial(with_spark, spark, str(folder / "archive" / "*.nc"), repository),
        }
        timings = interleaved(cases, rounds=options.rounds)
    goals = {ours: (parser, "≥ 0.9"), twice: (ours, "≥ 1.8"), by_spark: (rival, "≥ 1")}
    rows = []
    for case in cases:
        versus, goal = goals.get(case, ("", ""))
        rate = {"files": count, "files_per_s": round(count / timings[case].wall_s, 1)}
        rows.append(row(BENCHMARK, case, timings, versus=versus, goal=goal, figures=rate))
    rows.append(on_s3(spark, Path(files[0]).read_bytes(), options))
    if options.memory:
        rows.append(driver_memory(folder, options))
    return rows


def on_s3(spark: SparkSession, content: bytes, options: Namespace) -> Row:
    """Virtualize files on the S3 server of the tests, 10,000 of them at scale 2."""
    count = max(20, round(5_000 * options.scale))
    with running_s3_server() as server:
        bucket = server.new_bucket()
        store = server.raw_store(bucket)
        first = dt.date(1990, 1, 1)
        with ThreadPoolExecutor(16) as threads:
            names = [f"archive/{first + dt.timedelta(days=day):%Y%m%d}.nc" for day in range(count)]
            list(threads.map(lambda name: obstore.put(store, name, content), names))
        settings = server.storage_options
        how = {f"{prefix}{k}": v for prefix in ("storage.", "virtual.storage.")
               for k, v in settings.items()}  # fmt: skip
        started = time.perf_counter()
        done = icechunk_spark.virtualize(
            spark,
            f"s3://{bucket}/archive/*.nc",
            f"s3://{bucket}/repository",
            template="{time:%Y%m%d}.nc",
            **how,
        )
        seconds = time.perf_counter() - started
    if done.files_added != count:
        raise AssertionError("not all files were taken")
    return Row(
        benchmark=BENCHMARK,
        case="virtualize, Spark, two cores, S3",
        wall_s=seconds,
        figures={"files": count, "files_per_s": round(count / seconds, 1)},
    )


def driver_memory(folder: Path, options: Namespace) -> Row:
    """Return the memory of the driver for 10 million references (from scale 0.2 on)."""
    # One commit takes 40 million changed chunks at most.
    count = max(20, round(50_000 * min(options.scale, 0.2)))
    large = folder / "large"
    large.mkdir()
    for number in range(count):
        with (large / f"{number:06d}.made").open("wb") as file:
            file.truncate(16_384)
    done = in_fresh_process(virtualize_large, str(large), str(folder / "of-large"))
    return Row(
        benchmark=BENCHMARK,
        case="driver, many references",
        wall_s=done.wall_s,
        peak_mb=done.peak_mb,
        goal="≤ 500 MB for 10 million",
        figures={"files": count, "references": done.value},
    )


def make_files(folder: Path, count: int) -> list[str]:
    """Write compressed NetCDF4 files of one day each, with two variables."""
    folder.mkdir()
    latitude, longitude = np.linspace(90, -90, _SHAPE[1]), np.arange(_SHAPE[2]) * 2.5
    values = np.random.default_rng(0).normal(288, 10, _SHAPE).astype("float32").round(0)
    dims = ("time", "latitude", "longitude")
    how = {"chunksizes": _CHUNK, "zlib": True, "complevel": 1, "shuffle": True}
    files = []
    for day in range(count):
        data = xr.Dataset(
            {name: (dims, values + day, {"units": "K"}) for name in ("t2m", "d2m")},
            {
                "time": ("time", np.arange(24) + 24 * day, {"units": "hours since 2000-01-01"}),
                "latitude": latitude,
                "longitude": longitude,
            },
            attrs={"title": "made", "history": f"day {day}"},
        )
        files.append(str(folder / f"{day:06d}.nc"))
        data.to_netcdf(files[-1], engine="h5netcdf", encoding=dict.fromkeys(("t2m", "d2m"), how))
    return files


def parse_all(files: Sequence[str]) -> int:
    """Parse every file and keep nothing."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry, parser = ObjectStoreRegistry({"file://": LocalStore()}), HDFParser()
    return sum(len(parser(f"file://{file}", registry)._group.arrays) for file in files)


def combine(files: Sequence[str], path: str) -> None:
    """Create the repository as described in VirtualiZarr's manual, in one process."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    shutil.rmtree(path, ignore_errors=True)
    folder = str(Path(files[0]).parent)
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(folder)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{folder}/", store))
    combined = open_virtual_mfdataset(
        [f"file://{file}" for file in files],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=HDFParser(),
        combine="nested",
        concat_dim="time",
        coords="minimal",
        data_vars="minimal",
        compat="override",
        combine_attrs="override",
    )
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(path), config=config)
    session = made.writable_session("main")
    combined.vz.to_icechunk(session.store)
    session.commit("all files")


def archive_of(names: Sequence[str], path: str, parser: Any = None) -> Archive:
    return Archive(
        location=Location(path),
        names=list(names),
        options=WriteOptions(mode="append", layout="refs"),
        dims=("time",),
        parser=parser,
    )


def virtualize(files: Sequence[str], path: str, pool: ProcessPoolExecutor, cores: int) -> int:
    shutil.rmtree(path, ignore_errors=True)
    done = virtualize_files(archive_of(files, path), pool.map, cores=cores)
    if done.files_added != len(files):
        raise AssertionError("not all files were taken")
    return done.references


def with_spark(spark: SparkSession, pattern: str, path: str) -> int:
    shutil.rmtree(path, ignore_errors=True)
    return icechunk_spark.virtualize(spark, pattern, path, concat_dim="time").references


def virtualize_large(folder: str, path: str) -> int:
    """Virtualize synthetic files with many references, in separate worker processes."""
    files = sorted(map(str, Path(folder).iterdir()))
    with ProcessPoolExecutor(2, mp_context=_CONTEXT) as pool:
        archive = archive_of(files, path, made_up)
        return virtualize_files(archive, pool.map, cores=2).references


def made_up(url: str, registry: Any) -> Any:
    """Return the result of a parser for a file of a thousand chunks, without reading a file."""
    shape = (1, 25, 40)
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "data_type": "float32",
        "shape": shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (1, 1, 1)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": ["time", "y", "x"],
        "attributes": {},
    }
    manifest = SimpleNamespace(
        shape_chunk_grid=shape,
        _paths=np.full(shape, url, np.dtypes.StringDType()),
        _offsets=np.arange(_REFS_PER_FILE, dtype=np.uint64).reshape(shape) * np.uint64(8),
        _lengths=np.full(shape, 4, np.uint64),
    )
    array = SimpleNamespace(metadata=SimpleNamespace(to_dict=lambda: document), manifest=manifest)
    group = SimpleNamespace(
        metadata=SimpleNamespace(attributes={}), arrays={"field": array}, groups={}
    )
    return SimpleNamespace(_group=group)
