"""Verifies a repository of a million references, half of them native and half virtual.

Five native chunks share an object, so the work includes a listing of 100,000 objects. Limit:
reading and decoding the same manifests alone. Peer: the reference's statistics of stored
chunks, its only function that reads all references, which checks none of them.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
from measurement import Row, interleaved, memory_of, row

from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.encoding.manifest.decode import decode
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

BENCHMARK = "verify"
_REFS_PER_OBJECT = 5
_LENGTH = 20
_WIDTH = 100
_ARCHIVE = "s3://archive/era5/"


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    count = max(10_000, round(1_000_000 * options.scale))
    path = str(folder / "repository")
    build(Path(path), count // 2)
    found = {row["kind"] for row in verify(path).to_pylist()}
    if found != {"verified", "virtual-unchecked"}:
        raise AssertionError(f"the repository is not sound: {sorted(found)}")
    ours, manifests, theirs = "verify", "decode the manifests", "reference, chunk_storage_stats"
    cases = {
        ours: partial(verify_once, path),
        manifests: partial(decode_manifests, path),
        theirs: partial(reference_stats, path),
    }
    timings = interleaved(cases, rounds=options.rounds)
    figures = {"refs": count, "objects": count // 2 // _REFS_PER_OBJECT}
    return [
        row(
            BENCHMARK,
            ours,
            timings,
            versus=manifests,
            peak_mb=memory_of(options.memory, verify_once, path),
            goal="a few seconds",
            figures=figures | {"Mrefs_per_s": round(count / timings[ours].wall_s / 1e6, 2)},
        ),
        row(
            BENCHMARK,
            manifests,
            timings,
            peak_mb=memory_of(options.memory, decode_manifests, path),
        ),
        row(
            BENCHMARK,
            theirs,
            timings,
            peak_mb=memory_of(options.memory, reference_stats, path),
        ),
    ]


def verify_once(path: str) -> int:
    """Verify, and return the number of findings."""
    return verify(path).num_rows


def decode_manifests(path: str) -> int:
    """Read every manifest and decode it, and return the number of references."""
    files = sorted((Path(path) / "manifests").iterdir())
    return sum(decode(file.read_bytes()).num_chunk_refs for file in files)


def reference_stats(path: str) -> Any:
    """Read all references with the statistics function of the reference."""
    storage = icechunk.local_filesystem_storage(path)
    return icechunk.Repository.open(storage).chunk_storage_stats().native_bytes


def build(path: Path, count: int) -> None:
    """Write an array of native references and one of virtual references, `count` of each."""
    rows = count // _WIDTH
    repository = Repository.create(str(path))
    container = {"url_prefix": _ARCHIVE, "store": {"s3": {"region": "us-east-1"}}}
    repository.update_config({"virtual_chunk_containers": {_ARCHIVE: container}})
    session = repository.writable_session("main")
    session.create_group("/", json.dumps({"zarr_format": 3, "node_type": "group"}).encode())
    for name in ("stored", "archived"):
        document = _document(rows)
        session.create_array(
            f"/{name}", document, shape=(rows, _WIDTH * _LENGTH), num_chunks=(rows, _WIDTH)
        )
    coords = np.stack(np.divmod(np.arange(rows * _WIDTH), _WIDTH), axis=-1)
    lengths = np.full(len(coords), _LENGTH)
    which, place = np.divmod(np.arange(len(coords)), _REFS_PER_OBJECT)
    random = np.random.default_rng(count)
    objects = random.integers(0, 256, (int(which[-1]) + 1, 12), dtype=np.uint8)
    session.set_refs(
        "/stored", native_refs(coords, objects[which], lengths, offsets=place * _LENGTH)
    )
    files = [f"{_ARCHIVE}2m_temperature/{hour:08d}.nc" for hour in range(rows)]
    offsets = 20_000 + coords[:, 1] * _LENGTH
    session.set_refs(
        "/archived", virtual_refs(coords, files, offsets, lengths, location_of_row=coords[:, 0])
    )
    chunks = path / "chunks"
    chunks.mkdir(exist_ok=True)
    content = bytes(_REFS_PER_OBJECT * _LENGTH)
    for name in encode_many(objects):
        (chunks / name).write_bytes(content)
    session.commit("a million references")


def _document(rows: int) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, _WIDTH * _LENGTH],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, _LENGTH]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()
