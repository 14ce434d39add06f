"""Makes what decoders should read: documents of arrays, repositories, chunks, shard indexes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.zarr.zarr_json import parse_array_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence


def array_json(shape: Sequence[int], chunks: Sequence[int], codecs: Any, **more: Any) -> bytes:
    """Return the document of an array."""
    return json.dumps({
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": codecs,
        "attributes": {"units": "K", "nested": {"a": [1, None, "x"]}},
        "dimension_names": [f"d{i}" for i in range(len(shape))],
        **more,
    }).encode()  # fmt: skip


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 4, "blocksize": 0,
    },
}  # fmt: skip
CRC = {"name": "crc32c"}
SHARDING = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [2, 3],
        "codecs": [LITTLE, ZSTD],
        "index_codecs": [LITTLE, CRC],
        "index_location": "end",
    },
}
AT_START = {
    "name": "sharding_indexed",
    "configuration": {**SHARDING["configuration"], "index_location": "start", "codecs": [LITTLE]},
}

ARRAYS = {
    "plain": array_json([8, 9], [4, 6], [LITTLE]),
    "zstd": array_json([8, 9], [4, 6], [LITTLE, ZSTD]),
    "gzip": array_json([8, 9], [4, 6], [LITTLE, GZIP, CRC]),
    "blosc": array_json([8, 9], [4, 6], [LITTLE, BLOSC]),
    "lz4": array_json([8, 9], [4, 6], [LITTLE, {"name": "numcodecs.lz4", "configuration": {}}]),
    "shuffle": array_json(
        [8, 9], [4, 6],
        [LITTLE, {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}, ZSTD],
    ),
    "transpose": array_json(
        [8, 9], [4, 6], [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE]
    ),
    "sharded": array_json([8, 9], [4, 6], [SHARDING]),
    "index first": array_json([8, 9], [4, 6], [AT_START]),
    "words": array_json([5], [5], [{"name": "vlen-utf8"}], data_type="string", fill_value=""),
    "zlib": array_json([8, 9], [4, 6], [LITTLE, {"name": "numcodecs.zlib", "configuration": {}}]),
}  # fmt: skip


def build_repository(url: str, spec_version: int) -> list[tuple[str, bytes]]:
    """Make a repository with every kind of thing in it; return its objects."""
    repository = Repository.create(Location(url), spec_version=spec_version)
    session = repository.writable_session()
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}).encode()
    session.create_group("/", group)
    session.create_group("/more", group)
    session.create_array("/t", ARRAYS["zstd"], shape=(8, 9), num_chunks=(2, 2))
    session.create_array("/s", ARRAYS["sharded"], shape=(8, 9), num_chunks=(2, 2))
    values = np.arange(24, dtype="f4").reshape(4, 6)
    for path, name in (("/t", "zstd"), ("/s", "sharded")):
        codecs = parse_array_metadata(ARRAYS[name], node_path=path).chunk_codecs()
        session.set_chunks(path, [[0, 0], [1, 1], [0, 1]], [codecs.encode(values)] * 3)
    session.create_array("/v", ARRAYS["plain"], shape=(8, 9), num_chunks=(2, 2))
    session.set_refs(
        "/v",
        virtual_refs(
            np.array([[0, 0], [1, 0]], dtype=np.uint32),
            locations=["s3://somewhere/a/file.nc", "s3://somewhere/a/file2.nc"],
            offsets=np.array([0, 100], dtype=np.uint64),
            lengths=np.array([96, 96], dtype=np.uint64),
        ),
    )
    first = session.commit("first", metadata={"n": [1, {"x": None}], "pi": 3.5}).snapshot_id
    repository.create_tag("v1", first)
    repository.create_branch("dev", first)
    session = repository.writable_session()
    codecs = parse_array_metadata(ARRAYS["zstd"], node_path="/t").chunk_codecs()
    noise = np.random.default_rng(1).random((4, 6), dtype="f4")
    session.set_chunk("/t", [1, 0], codecs.encode(noise))
    session.delete("/more")
    session.commit("second")
    if spec_version == 2:
        session = repository.writable_session()
        session.move("/v", "/w")
        session.commit("third")
    storage = open_storage(Location(url))
    return [(info.key, storage.get(info.key).data) for info in storage.list()]


def chunk_seeds() -> list[tuple[str, bytes]]:
    seeds = []
    for name, document in ARRAYS.items():
        found = parse_array_metadata(document, node_path="/a")
        shape = found.grid.full_chunk_shape((0,) * found.ndim)
        values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
        if name == "words":
            values = np.array(["a", "", "ccc", "é", "long" * 9], dtype=object)
        seeds.append((name, bytes(found.chunk_codecs().encode(values))))
    return seeds


def shard_index_seeds() -> list[tuple[str, bytes]]:
    seeds = []
    for name, data in chunk_seeds():
        if name in ("sharded", "index first"):
            size = 2 * 2 * 16 + 4
            seeds.append((name, data[-size:] if name == "sharded" else data[:size]))
    return seeds
