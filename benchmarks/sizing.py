"""Measures the memory and the requests of a task for five chunk shapes, without Spark.

``python benchmarks/sizing.py`` prints the figures of the manual's page "Clusters". Each figure is
the peak of a process that does nothing else, less what it has after its imports. The values are
random numbers, which do not compress.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SHAPES = {
    "1 MB": (1, 512, 512),
    "4 MB": (4, 512, 512),
    "16 MB": (16, 512, 512),
    "64 MB": (64, 512, 512),
    "128 MB": (128, 512, 512),
}
CHUNKS = 2

PROCESS = """
import json, re, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.storage.measures import measured

def resident(name):
    status = Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+) kB", status)[1]) / 1024

path, doing, *shape = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
dims = ("z", "y", "x")
base = resident("VmRSS")
if doing == "write":
    planes = shape[0] * 2
    rng = np.random.default_rng(1)
    def rows(first):
        z, y, x = np.meshgrid(np.array([first]), *map(np.arange, shape[1:]), indexing="ij")
        v = rng.random(z.size, dtype="f4")
        return pa.table({"z": z.ravel(), "y": y.ravel(), "x": x.ravel(), "v": v})
    table = pa.concat_tables([rows(plane) for plane in range(planes)])
    base = resident("VmRSS")
    write_table(path, table, WriteOptions(dims=dims, chunks=dict(zip(dims, shape))))
else:
    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve())
    plan = dataset.plan(dataset.table(layout=doing))
    before = measured()
    for task in plan.tasks:
        for batch in run_scan(plan.context, task):
            pass
    found = measured() - before
print(json.dumps({"base": base, "mb": resident("VmHWM") - base,
                  "requests": 0 if doing == "write" else found.requests,
                  "tasks": 0 if doing == "write" else len(plan.tasks)}))
"""


def run(path: Path, doing: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Do one thing in a process of its own; return its figures."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(path), doing, *map(str, shape)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print a row for each shape."""
    print("| chunk | shape | cells | chunks | write of both chunks | requests a chunk |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            path = Path(folder) / name.replace(" ", "")
            written = run(path, "write", shape)
            cells, chunks = run(path, "cells", shape), run(path, "chunks", shape)
            requests = cells["requests"] / CHUNKS
            print(
                f"| {name} | {' × '.join(map(str, shape))} | {cells['mb']:.0f} MB |"
                f" {chunks['mb']:.0f} MB | {written['mb']:.0f} MB | {requests:.1f} |"
                f" (Python and imports {cells['base']:.0f} MB, {cells['tasks']} tasks)",
                flush=True,
            )


if __name__ == "__main__":
    main()
