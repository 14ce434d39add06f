"""Decoding and encoding a manifest of a million references.

Limit: zstd alone over the same bytes, which every reader and writer of the format has to do.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from measurement import Row, interleaved, memory_of, row

from icechunk_format.spec.envelope import FileType, unwrap
from icechunk_format.spec.ids import ManifestId, NodeId
from icechunk_format.spec.manifest import ArrayManifest, Manifest, decode
from icechunk_format.spec.manifest_encode import encode
from icechunk_format.spec.ref_columns import native_refs, virtual_refs

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from pyspark.sql import SparkSession

BENCHMARK = "manifest"
_LEVEL = 3  # what the format writes by default


def run(_: SparkSession | None, folder: Path, options: Namespace) -> list[Row]:
    count = max(1_000, round(1_000_000 * options.scale))
    cases: dict[str, Callable[[], Any]] = {}
    sizes: dict[str, int] = {}
    memory: dict[str, int] = {}
    for kind in ("native", "virtual"):
        made = build(kind, count)
        data = encode(made)
        (folder / f"{kind}.manifest").write_bytes(data)
        sizes[kind] = len(data)
        payload = unwrap(data, file_type=FileType.MANIFEST, object_key=kind).payload
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
        back = decode(data).arrays[0].refs
        memory[kind] = back.nbytes
        if len(back) != count or not np.array_equal(back.offset, made.arrays[0].refs.offset):
            raise AssertionError("the manifest did not come back")
        cases[f"decode {kind}"] = partial(decode, data)
        cases[f"decode {kind}: zstd alone"] = partial(
            lambda frame: zstandard.ZstdDecompressor().decompress(frame), frame
        )
        cases[f"encode {kind}"] = partial(encode, made)
        cases[f"encode {kind}: zstd alone"] = partial(
            lambda payload: zstandard.ZstdCompressor(level=_LEVEL).compress(payload), payload
        )
    timings = interleaved(cases, rounds=options.rounds)
    rows = []
    for case, timing in timings.items():
        verb, kind = case.split(":")[0].split()
        if case.endswith("alone"):
            rows.append(row(BENCHMARK, case, timings))
            continue
        file = str(folder / f"{kind}.manifest")
        peak_mb = memory_of(options.memory, do_once, verb, kind, count, file)
        rows.append(
            row(
                BENCHMARK,
                case,
                timings,
                versus=f"{case}: zstd alone",
                goal="<= 0.3 s" if verb == "decode" else "<= 1 s",
                peak_mb=peak_mb,
                figures={
                    "refs": count,
                    "stored_bytes_per_ref": round(sizes[kind] / count, 1),
                    "memory_bytes_per_ref": round(memory[kind] / count, 1),
                    "Mrefs_per_s": round(count / timing.wall_s / 1e6, 2),
                },
            )
        )
    return rows


def build(kind: str, count: int) -> Manifest:
    """Make references of hourly tiles: to this repository's objects, or into NetCDF files."""
    width = 100
    coords = np.stack(np.divmod(np.arange(count), width), axis=-1).astype(np.uint32)
    random = np.random.default_rng(count)
    lengths = random.integers(500_000, 700_000, count)
    if kind == "native":
        ids = random.integers(0, 256, (count, 12), dtype=np.uint8)
        refs = native_refs(coords, ids, lengths)
    else:
        files = [
            f"s3://archive/era5/2m_temperature/{hour:08d}.nc" for hour in range(-(-count // width))
        ]
        refs = virtual_refs(
            coords,
            files,
            20_000 + (coords[:, 1].astype(np.int64) * 700_000),
            lengths,
            location_of_row=coords[:, 0].astype(np.int64),
        )
    return Manifest(
        id=ManifestId(b"manifest...."),
        arrays=(ArrayManifest(node_id=NodeId(b"node-id-"), refs=refs),),
    )


def do_once(verb: str, kind: str, count: int, file: str) -> None:
    """Decode the file, or make a manifest and encode it."""
    if verb == "decode":
        decode(Path(file).read_bytes())
    else:
        encode(build(kind, count))
