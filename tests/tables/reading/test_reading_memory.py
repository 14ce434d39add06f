"""The memory of a task has a bound that does not depend on how much the task reads or writes.

Resident memory of processes that do nothing else: 4 GB shards, manifests of a million references,
a million rows for one block. The bounds are those of the README.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from icechunk_format.encoding.manifest.chunk_refs import native_refs
from icechunk_format.repository import Repository
from icechunk_format.zarr.codecs.bytes import crc32c
from icechunk_format.zarr.zarr_json import parse_array_metadata

MEASURED = """
import json, re, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.repository import Repository

def resident(name):
    status = Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+(\\d+) kB", status)[1]) // 1024

def answer(**found):
    print(json.dumps({"used_mb": resident("VmHWM") - before, **found}))

path = sys.argv[1]
before = resident("VmRSS")
"""

SHARD = (1024, 1024, 1024)
INNER = (64, 128, 128)


def measured(script, path):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED + script, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    return json.loads(done.stdout)


def document(shape, chunks, codecs, data_type="float32"):
    return json.dumps({
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": ["x", "y", "z"][: len(shape)],
    }).encode()  # fmt: skip


@pytest.fixture(scope="module")
def large_shard(tmp_path_factory):
    """One shard of 4 GB whose inner chunks hold their own number, so that it is small on disk."""
    path = tmp_path_factory.mktemp("shard")
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    inner = parse_array_metadata(document(INNER, INNER, [little, zstd]), node_path="/a")
    codecs = inner.chunk_codecs()
    counts = tuple(n // c for n, c in zip(SHARD, INNER, strict=True))
    body, index = bytearray(), np.zeros((*counts, 2), dtype="<u8")
    for number, place in enumerate(np.ndindex(*counts)):
        data = codecs.encode(np.full(INNER, number, dtype="f4"))
        index[place] = len(body), len(data)
        body += data
    raw_index = index.tobytes()
    shard = bytes(body) + raw_index + crc32c(raw_index).to_bytes(4, "little")
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(INNER),
            "codecs": [little, zstd],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        },
    }
    session = Repository.create(str(path)).writable_session()
    session.create_group("/", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    session.create_array(
        "/a",
        document(SHARD, SHARD, [sharding]),
        shape=SHARD,
        num_chunks=(1,) * 3,
        dimension_names=["x", "y", "z"],
    )
    session.set_chunk("/a", (0, 0, 0), shard)
    session.commit("a shard of 4 GB")
    assert len(shard) < 5e6
    return path


def test_a_box_of_a_shard_of_4_gb(large_shard):
    found = measured(
        """
repository = Repository.open(path)
dataset = open_dataset(repository, repository.resolve())
plan = dataset.plan(dataset.table(), isel="x=100:164; y=500:756; z=0:64")
total = rows = 0
for task in plan.tasks:
    for batch in run_scan(plan.context, task):
        rows += batch.num_rows
        total += pa.compute.sum(batch.column("a")).as_py()
answer(rows=rows, mean=total / rows)
""",
        large_shard,
    )
    assert found["rows"] == 64 * 256 * 64
    assert 64 < found["mean"] < 192
    assert found["used_mb"] < 400


def test_every_cell_of_a_shard_of_4_gb(large_shard):
    """All of it is a minute of a processor: for ``make torture``; ``make test`` reads an eighth."""
    planes = SHARD[0] if "TORTURE_SECONDS" in os.environ else SHARD[0] // 8
    found = measured(
        f"planes = {planes}"
        """
repository = Repository.open(path)
dataset = open_dataset(repository, repository.resolve())
plan = dataset.plan(dataset.table(layout="summary"), isel=f"x=0:{planes}")
cells = 0
for task in plan.tasks:
    for batch in run_scan(plan.context, task):
        cells += pa.compute.sum(batch.column("a_count")).as_py()
# As rows, a task at a time: what one task takes does not grow with the number of tasks.
plan = dataset.plan(dataset.table())
for task in plan.tasks[:2]:
    for batch in run_scan(plan.context, task):
        pass
answer(cells=cells, tasks=len(plan.tasks))
""",
        large_shard,
    )
    assert found["cells"] == planes * SHARD[1] * SHARD[2]
    assert found["tasks"] > 100
    assert found["used_mb"] < 500


def test_a_manifest_of_a_million_references(tmp_path):
    count = 1_000_000
    repository = Repository.create(str(tmp_path))
    session = repository.writable_session()
    session.create_group("/", b'{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    made = document((count,), (1,), [little])
    session.create_array("/a", made, shape=(count,), num_chunks=(count,))
    ids = np.random.default_rng(1).integers(0, 256, (count, 12), dtype=np.uint8)
    coords = np.arange(count, dtype=np.uint32)[:, None]
    lengths = np.full(count, 4, dtype=np.uint64)
    session.set_refs("/a", native_refs(coords, chunk_ids=ids, lengths=lengths))
    session.commit("a million references")
    found = measured(
        """
repository = Repository.open(path)
dataset = open_dataset(repository, repository.resolve())
plan = dataset.plan(dataset.table(layout="refs"))
rows = 0
for task in plan.tasks:
    for batch in run_scan(plan.context, task):
        rows += batch.num_rows
answer(rows=rows)
""",
        tmp_path,
    )
    assert found["rows"] == count
    assert found["used_mb"] < 500


def test_a_million_rows_for_one_block(tmp_path):
    """One chunk of 1000 x 1000 cells gets every cell, and all others one row each."""
    found = measured(
        """
from icechunk_format.tables.writing.cell_numbers import CELL
from icechunk_format.tables.writing.commit import finish_write
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.plan import plan_write
from icechunk_format.tables.writing.prepare import prepare_write
from icechunk_format.tables.writing.cells.task import write_batches

names = ["v0", "v1", "v2", "v3"]
schema = pa.schema([("y", pa.int64()), ("x", pa.int64()), *((n, pa.float64()) for n in names)])
options = WriteOptions(dims=("y", "x"), chunks={"y": 1000, "x": 1000}, min_density=0.0)
prepared = prepare_write(path, schema, options)
labels = pa.array(np.arange(2000))
plan = plan_write(prepared, {"y": labels, "x": labels}, 1_000_003)
part = max(plan.parts, key=lambda part: len(part.variables) if len(part.dims) == 2 else -1)
terms = {
    dim: plan.dimension_tables[dim].column(f"cell_{part.number}").to_numpy() for dim in part.dims
}

def rows():
    for first in range(0, 1000, 10):
        cells = (terms["y"][first : first + 10, None] + terms["x"][None, :1000]).ravel()
        values = [pa.array(cells.astype("f8") + n) for n in range(len(part.variables))]
        yield pa.record_batch([pa.array(cells), *values], names=[CELL, *part.variables])
    places = ((0, 1000), (1000, 0), (1999, 1999))
    lonely = np.sort([terms["y"][y] + terms["x"][x] for y, x in places])
    values = [pa.array(lonely.astype("f8"))] * len(part.variables)
    yield pa.record_batch([pa.array(lonely), *values], names=[CELL, *part.variables])

before = resident("VmRSS")
receipt = write_batches(part, rows())
answer(rows=receipt.rows, block_mb=8 * len(part.variables))
""",
        tmp_path / "repository",
    )
    assert found["rows"] == 1_000_003
    # The block of all variables, once as an array and once encoded, and what a batch takes.
    assert found["used_mb"] < 3 * found["block_mb"] + 150
