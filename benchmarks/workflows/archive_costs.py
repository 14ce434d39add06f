"""Estimates the cost of `virtualize` for a large archive: requests, processor time and manifests.

A few full-size files are virtualized in one process, on a local disk, while requests, time and
bytes are counted. The figures for one file are then multiplied. Network time is not measured: it is
calculated from the number of requests and an assumed delay.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import xarray as xr
from measurement import RequestLog, in_fresh_process

from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.workflows.virtualizing import Archive, virtualize, virtualize_files
from icechunk_format.workflows.virtualizing.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES, NEW_FILES = 100_000, 10
_SAMPLE = 40
_HOURS, _VARIABLES, _CHUNKS = 24, 10, 100
_GET_USD, _PUT_USD = 0.4e-6, 5e-6
_DELAY_S, _OPEN_AT_ONCE, _LISTED = 0.1, 16, 1_000


def make_files(folder: Path, count: int) -> None:
    """Write compressed files of one day each, whose data hardly compress, like most real data."""
    folder.mkdir(exist_ok=True)
    side = 10 * round(_CHUNKS**0.5)
    values = np.random.default_rng(0).normal(size=(_HOURS, side, side)).astype("float32")
    how = {"chunksizes": (_HOURS, 10, 10), "zlib": True, "complevel": 1, "shuffle": True}
    for day in range(count):
        path = folder / f"{day:06d}.nc"
        if path.exists():
            continue
        names = [f"v{number}" for number in range(_VARIABLES)]
        hours = ("time", np.arange(_HOURS) + _HOURS * day, {"units": "hours since 1990-01-01"})
        data = xr.Dataset(
            {name: (("time", "y", "x"), values, {"units": "K"}) for name in names},
            {"time": hours, "y": np.arange(side) * 0.1, "x": np.arange(side) * 0.1},
        )
        data.to_netcdf(path, engine="h5netcdf", encoding=dict.fromkeys(names, how))


def counted(folder: str, repository: str) -> dict[str, float]:
    """Virtualize the new files of a folder, and return seconds, requests and bytes."""
    spent: dict[str, float] = {}
    answers: list[bytes] = []

    def run(function: Any, tasks: Sequence[Any]) -> list[Any]:
        started = time.process_time()
        found = [function(task) for task in tasks]
        name = "scan" if function.func.__name__ == "run_scan" else "place"
        spent[name] = time.process_time() - started
        answers.append(pickle.dumps(found))
        return found

    archive = Archive(
        location=Location(repository),
        names=[f"{folder}/*.nc"],
        options=WriteOptions(mode="append", layout="refs"),
        dims=("time",),
    )
    # The files are on a local disk, and are read as if they were in an object store.
    with (
        RequestLog() as log,
        patch.object(scan, "is_near", lambda url: False),
        patch.object(virtualize, "_SCANS_PER_CORE", 1),
    ):
        done = virtualize_files(archive, run, cores=1)
    reads = [(key, size) for key, size in log.reads if key.endswith(".nc")]
    stored = [file for file in Path(repository).rglob("*") if file.is_file()]
    return {
        **spent,
        "added": done.files_added,
        "references": done.references,
        "file_requests": len(reads),
        "file_bytes": sum(size for _, size in reads),
        "answers": sum(map(len, answers)),
        "stored": sum(file.stat().st_size for file in stored if file.parent.name == "manifests"),
    }


def estimate(folder: Path) -> list[tuple[str, str]]:
    """Return the lines of the table."""
    files, repository = folder / "files", str(folder / "repository")
    make_files(files, _SAMPLE)
    first = in_fresh_process(counted, str(files), repository)
    make_files(files, _SAMPLE + NEW_FILES)
    next_day = in_fresh_process(counted, str(files), repository).value
    found = first.value

    def each(name: str) -> float:
        return float(found[name] / found["added"])

    gets = each("file_requests") * FILES
    core_s = (each("scan") + each("place")) * FILES
    waiting = gets * _DELAY_S / _OPEN_AT_ONCE
    refs = each("references") * FILES
    return [
        ("files; references", f"{FILES:,}; {refs:,.0f}"),
        (
            "requests for files",
            f"{gets:,.0f} GET ({each('file_requests'):.1f} a file, "
            f"{each('file_bytes') / 1e6:.1f} MB), {FILES // _LISTED:,} LIST: "
            f"{gets * _GET_USD + FILES / _LISTED * _PUT_USD:.2f} USD, "
            f"{each('file_bytes') * FILES / 1e9:,.0f} GB",
        ),
        (
            "processor time",
            f"{1e3 * core_s / FILES:.0f} ms a file: {core_s / 60:,.0f} minutes on one core, "
            f"{core_s / 64:,.0f} s on 64",
        ),
        (
            "time of requests",
            f"{waiting / 60:,.0f} minutes in one task, {waiting / 64:,.0f} s in 64, at "
            f"{_DELAY_S:.1f} s each and {_OPEN_AT_ONCE} at once",
        ),
        (
            "receipts of tasks on the driver",
            f"{each('answers') * FILES / 1e6:,.0f} MB",
        ),
        (
            "manifests",
            f"{found['stored'] / found['references']:.1f} bytes a reference: "
            f"{found['stored'] / found['references'] * refs / 1e9:.1f} GB",
        ),
        (
            f"{NEW_FILES} new files the next day",
            f"{FILES // _LISTED:,} LIST, {next_day['file_requests']:.0f} GET, "
            f"{next_day['scan'] + next_day['place']:.1f} s of processor time",
        ),
    ]
