"""Decodes and encodes a manifest of a million references.

Limit: zstd alone on the same bytes, which every reader and writer of the format needs. Peer: the
reference commits the same number of virtual references, and opens the committed manifest. Both
libraries make a whole commit, and both read the same repository.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from measurement import Row, interleaved, memory_of, row

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest, decode
from icechunk_format.encoding.manifest.encode import encode
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from pyspark.sql import SparkSession

BENCHMARK = "manifest"
WIDTH = 100
_LEVEL = 3  # the default of the format


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
    if importlib.util.find_spec("icechunk") is None:
        return rows  # The rest needs no reference.
    return rows + beside_the_reference(folder, count, options.rounds)


def beside_the_reference(folder: Path, count: int, rounds: int) -> list[Row]:
    """Commit and open a manifest of virtual references, here and with the reference."""
    refs = build("virtual", count).arrays[0].refs
    path = str(folder / "reference")
    repository = reference_repository(path, count)
    sessions = {
        "this library": [here(repository, path, refs, turn) for turn in range(rounds + 1)],
        "reference": [there(repository, count, turn) for turn in range(rounds + 1)],
    }
    cases: dict[str, Callable[[], Any]] = {}
    for who, pending in sessions.items():
        cases[f"commit virtual, {who}"] = lambda pending=pending: pending.pop().commit("references")
    timings = interleaved(cases, rounds=rounds)
    timings |= interleaved(
        {
            "open virtual, this library": partial(open_here, path, count),
            "open virtual, reference": partial(open_there, path, count),
        },
        rounds=rounds,
    )
    return [
        row(
            BENCHMARK,
            f"{verb} virtual, {who}",
            timings,
            versus=f"{verb} virtual, reference" if who == "this library" else "",
            goal=goal if who == "this library" else "",
            figures={"refs": count},
        )
        for verb, goal in (("commit", "ratio >= 1"), ("open", "ratio >= 1"))
        for who in sessions
    ]


def reference_repository(path: str, count: int) -> Any:
    """Create a repository with an array that has a chunk for every reference."""
    import icechunk
    import zarr

    config = icechunk.RepositoryConfig.default()
    store = icechunk.s3_store(region="us-east-1", anonymous=True)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://archive/", store))
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(path), config=config)
    made.save_config()
    session = made.writable_session("main")
    zarr.create_array(
        session.store,
        name="v",
        shape=(-(-count // WIDTH), WIDTH),
        chunks=(1, 1),
        dtype="f4",
        compressors=None,
    )
    session.commit("an empty array")
    return made


def here(repository: Any, path: str, refs: Any, turn: int) -> Any:
    """Return a session of this library that is ready to commit, on its own branch."""
    branch = f"here-{turn}"
    repository.create_branch(branch, repository.lookup_branch("main"))
    session = Repository.open(path).writable_session(branch)
    session.set_refs("/v", refs)
    return session


def there(repository: Any, count: int, turn: int) -> Any:
    """Return a session of the reference that is ready to commit, on its own branch."""
    branch = f"there-{turn}"
    repository.create_branch(branch, repository.lookup_branch("main"))
    session = repository.writable_session(branch)
    hours = -(-count // WIDTH)
    random = np.random.default_rng(count)
    lengths = np.zeros(hours * WIDTH, dtype=np.uint64)
    lengths[:count] = random.integers(500_000, 700_000, count)
    number = np.arange(hours * WIDTH)
    session.store.set_virtual_refs_arr(
        "v",
        (hours, WIDTH),
        [
            location(hour) if hour * WIDTH + i < count else ""
            for hour in range(hours)
            for i in range(WIDTH)
        ],
        (20_000 + (number % WIDTH) * 700_000).astype(np.uint64),
        lengths,
    )
    return session


def location(hour: int) -> str:
    return f"s3://archive/era5/2m_temperature/{hour:08d}.nc"


def open_here(path: str, count: int) -> None:
    """Open the commit of the reference, and look up one chunk."""
    metadata_cache().clear()
    session = Repository.open(path).writable_session("there-1")
    at = [(count - 1) // WIDTH, (count - 1) % WIDTH]
    if len(session.chunk_refs("/v", at, [i + 1 for i in at])) != 1:
        raise AssertionError("the last reference is not there")


def open_there(path: str, count: int) -> None:
    import icechunk

    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    at = [(count - 1) // WIDTH, (count - 1) % WIDTH]
    if opened.readonly_session("there-1").chunk_type("/v", at) != icechunk.ChunkType.virtual:
        raise AssertionError("the last reference is not there")


def build(kind: str, count: int) -> Manifest:
    """Make references of hourly tiles: to this repository's objects, or into NetCDF files."""
    coords = np.stack(np.divmod(np.arange(count), WIDTH), axis=-1).astype(np.uint32)
    random = np.random.default_rng(count)
    lengths = random.integers(500_000, 700_000, count)
    if kind == "native":
        ids = random.integers(0, 256, (count, 12), dtype=np.uint8)
        refs = native_refs(coords, ids, lengths)
    else:
        files = [location(hour) for hour in range(-(-count // WIDTH))]
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
