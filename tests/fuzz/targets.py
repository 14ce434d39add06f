"""Lists every decoder with valid files for it, and a use of its result.

A use goes as far as a reader goes: texts and inline bytes are looked at, histories walked, codecs
built and run. It may return a value or raise an ``IcechunkError``; anything else is a finding.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from fuzz.mutations import damaged, damaged_file, damaged_json, damaged_tree

from icechunk_format.arrays.zarr_json import parse_array_metadata, parse_group_metadata
from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.dataset.reading.run import run_task
from icechunk_format.repository.files.metadata_files import metadata_cache
from icechunk_format.repository.repository import Repository
from icechunk_format.spec import transaction_log
from icechunk_format.spec.config.config import decode_flexbuffer_config, decode_yaml_config
from icechunk_format.spec.envelope import FileType
from icechunk_format.spec.manifest import decode as manifest
from icechunk_format.spec.manifest.chunk_refs import KIND_INLINE, KIND_VIRTUAL
from icechunk_format.spec.manifest.new_chunk_refs import virtual_refs
from icechunk_format.spec.repo_info import file as repo_info
from icechunk_format.spec.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.spec.snapshot import file as snapshot
from icechunk_format.spec.values.msgpack import (
    decode_flexbuffer,
    decode_msgpack,
    encode_flexbuffer,
    encode_msgpack,
)
from icechunk_format.storage.location import Location, open_storage

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_numbers = itertools.count()
LARGEST_DECODED = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Target:
    """A decoder to be fuzzed.

    Parameters
    ----------
    name
        For reports and for choosing one.
    seeds
        What it reads.
    mutate
        Makes a hostile case from a seed.
    use
        Decodes a case and looks at all of it.
    """

    name: str
    seeds: Sequence[Any]
    mutate: Callable[[Any, random.Random], Any]
    use: Callable[[Any], object]


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


def use_repo_info(data: bytes) -> None:
    info = repo_info.decode(data)
    for found in info.snapshots.values():
        assert found.metadata is not None
        assert len(info.ancestry(found.id)) > 0
    for update in info.latest_updates:
        repr(update)
    if info.config is not None:
        decode_flexbuffer_config(info.config)


def use_snapshot(data: bytes) -> None:
    found = snapshot.decode(data, object_key="snapshots/X")
    assert found.metadata is not None
    for node in found.nodes:
        found.node(node.path)
        list(found.children(node.path))
        if node.array is not None:
            manifests = node.array.manifests
            for row in range(min(len(manifests), 50)):
                found.manifest_files.find(manifests.manifest_id(row))
            manifests.intersecting([0] * len(node.array.shape), [1] * len(node.array.shape))


def use_manifest(data: bytes) -> None:
    found = manifest.decode(data, object_key="manifests/X")
    for array in found.arrays:
        refs = array.refs
        rows = np.arange(min(len(refs), 50))
        refs.select_box([0] * refs.ndim, [2**32 - 1] * refs.ndim)
        refs.find(refs.coords[:5])
        for row in rows.tolist():
            if refs.kind[row] == KIND_INLINE:
                refs.inline(row)
            elif refs.kind[row] == KIND_VIRTUAL:
                refs.location(row)
        refs.etags(rows[refs.kind[rows] == KIND_VIRTUAL])
        refs.take(rows)


def use_transaction_log(data: bytes) -> None:
    found = transaction_log.decode(data, object_key="transactions/X")
    for coords in found.updated_chunks.values():
        assert coords.ndim == 2


def use_array_document(data: bytes) -> None:
    for parse in (parse_array_metadata, parse_group_metadata):
        try:
            found = parse(data, node_path="/a")
        except Exception as error:
            _only_ours(error)
            continue
        json.dumps(found.attributes)
        if parse is parse_group_metadata:
            continue
        for part in ("data_type", "grid", "fill_value"):
            try:
                repr(getattr(found, part))
            except Exception as error:
                _only_ours(error)
        _use_codecs(found)


def _use_codecs(found: Any) -> None:
    codecs = found.chunk_codecs()
    grid = found.grid
    assert len(grid.num_chunks) == found.ndim
    if codecs.sharding is not None and found.ndim:
        codecs.sharding.inner_grid(grid.full_chunk_shape((0,) * found.ndim))
    shape = grid.full_chunk_shape((0,) * found.ndim)
    for payload in (b"", bytes(96), bytes(100_000)):
        try:
            codecs.decode(payload, shape)
        except Exception as error:
            _only_ours(error)


def _only_ours(error: Exception) -> None:
    from icechunk_format.errors import IcechunkError

    if not isinstance(error, IcechunkError):
        raise error


def use_chunk(case: tuple[str, bytes]) -> None:
    name, data = case
    found = parse_array_metadata(ARRAYS[name], node_path="/a")
    decoded = found.chunk_codecs().decode(data, found.grid.full_chunk_shape((0,) * found.ndim))
    assert decoded.nbytes < LARGEST_DECODED


def use_shard_index(case: tuple[str, bytes]) -> None:
    name, data = case
    sharding = parse_array_metadata(ARRAYS[name], node_path="/a").chunk_codecs().sharding
    index = sharding.decode_index(data, (4, 6), shard_nbytes=1000)
    assert index.shape == (2, 2, 2)


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


def use_repository(objects: list[tuple[str, bytes]]) -> None:
    """Read everything of a repository as a scan does."""
    url = f"memory://fuzzed-{next(_numbers)}"
    storage = open_storage(Location(url))
    storage.put_many(objects)
    metadata_cache().clear()
    try:
        repository = Repository.open(url)
        repository.branches(), repository.tags(), repository.deleted_tags()
        tip = repository.resolve(branch="main")
        for info in itertools.islice(repository.ancestry(branch="main"), 50):
            repr(info.metadata)
        dataset = open_dataset(repository, tip)
        for names in (["t"], ["s"]):
            plan = dataset.plan(dataset.table(variables=names))
            if plan.rows > 100_000:
                continue
            for task in plan.tasks[:20]:
                for batch in run_task(plan.context, task):
                    batch.validate(full=True)
    finally:
        storage.delete_many([key for key, _ in objects])


def damaged_repository(objects: Any, chance: random.Random) -> Any:
    number = chance.randrange(len(objects))
    key, data = objects[number]
    kinds = {
        "repo": FileType.REPO_INFO,
        "snapshots": FileType.SNAPSHOT,
        "manifests": FileType.MANIFEST,
        "transactions": FileType.TRANSACTION_LOG,
    }
    kind = kinds.get(key.partition("/")[0])
    if chance.random() < 0.05:
        # A file under the name of another of its kind.
        data = chance.choice(objects)[1]
    else:
        data = damaged_file(data, chance, kind) if kind else damaged(data, chance)
    return [*objects[:number], (key, data), *objects[number + 1 :]]


def make_targets() -> list[Target]:
    """Return every target."""
    repositories = {
        version: build_repository(f"memory://fuzz-seed-{version}-{next(_numbers)}", version)
        for version in (1, 2)
    }
    objects = [item for found in repositories.values() for item in found]

    def files(prefix: str) -> list[bytes]:
        return [data for key, data in objects if key.startswith(prefix)]

    def of(kind: FileType) -> Callable[[bytes, random.Random], bytes]:
        return lambda data, chance: damaged_file(data, chance, kind)

    config = {
        "inline_chunk_threshold_bytes": 512,
        "compression": {"algorithm": "zstd", "level": 3},
        "manifest": {
            "preload": {"max_total_refs": 1000},
            "splitting": {
                "split_sizes": [
                    [
                        {"path_matches": {"regex": "a.*"}},
                        [{"condition": "Any", "num_chunks": 10}],
                    ]
                ]
            },
        },
        "virtual_chunk_containers": {
            "a": {"name": "a", "url_prefix": "s3://b/", "store": {"s3": {"region": "x"}}}
        },
    }
    values = [config, {"a": [1, -1, 2.5, None, True, "text", b"bytes".hex()]}, [], "x"]
    return [
        Target(name="repo", seeds=files("repo"), mutate=of(FileType.REPO_INFO), use=use_repo_info),
        Target(
            name="snapshot",
            seeds=files("snapshots/"),
            mutate=of(FileType.SNAPSHOT),
            use=use_snapshot,
        ),
        Target(
            name="manifest",
            seeds=files("manifests/"),
            mutate=of(FileType.MANIFEST),
            use=use_manifest,
        ),
        Target(
            name="transaction log",
            seeds=files("transactions/"),
            mutate=of(FileType.TRANSACTION_LOG),
            use=use_transaction_log,
        ),
        Target(
            name="flexbuffers",
            seeds=[encode_flexbuffer(value) for value in values],
            mutate=damaged,
            use=lambda data: decode_flexbuffer(data, object_key="repo", field="metadata"),
        ),
        Target(
            name="msgpack",
            seeds=[encode_msgpack(value) for value in values],
            mutate=damaged,
            use=lambda data: decode_msgpack(data, object_key="snapshots/X", field="metadata"),
        ),
        Target(
            name="flexbuffers config",
            seeds=[config],
            mutate=lambda tree, chance: _encoded(damaged_tree(tree, chance)),
            use=lambda data: data and decode_flexbuffer_config(data),
        ),
        Target(
            name="yaml config",
            seeds=[config],
            mutate=_damaged_yaml,
            use=decode_yaml_config,
        ),
        Target(
            name="v1 ref",
            seeds=[b'{"snapshot": "0123456789ABCDEFGHJK"}'],
            mutate=damaged_json,
            use=lambda data: v1_refs.decode_ref_json(data, "refs/branch.main/ref.json"),
        ),
        Target(
            name="zarr.json",
            seeds=list(ARRAYS.values()),
            mutate=damaged_json,
            use=use_array_document,
        ),
        Target(
            name="chunk",
            seeds=chunk_seeds(),
            mutate=lambda case, chance: (case[0], damaged(case[1], chance)),
            use=use_chunk,
        ),
        Target(
            name="shard index",
            seeds=shard_index_seeds(),
            mutate=lambda case, chance: (case[0], damaged(case[1], chance)),
            use=use_shard_index,
        ),
        Target(
            name="repository",
            seeds=list(repositories.values()),
            mutate=damaged_repository,
            use=use_repository,
        ),
    ]


def _encoded(tree: Any) -> bytes:
    try:
        return encode_flexbuffer(tree)
    except RecursionError:
        return b""
    except Exception as error:
        # What our own encoder refuses, another one might write: that is what "flexbuffers" is for.
        _only_ours(error)
        return b""


def _damaged_yaml(tree: Any, chance: random.Random) -> bytes:
    try:
        text = yaml.safe_dump(damaged_tree(tree, chance), allow_unicode=True)
    except RecursionError:
        text = "[" * 20_000 + "]" * 20_000
    data = text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        return damaged(data, chance)
    if chance.random() < 0.05:
        # A few lines that would unfold to billions.
        levels = b"".join(
            b"l%d: &l%d [%s]\n" % (i, i, b", ".join([b"*l%d" % (i - 1)] * 9)) for i in range(1, 10)
        )
        return b"l0: &l0 [x, x, x, x]\n" + levels
    return data
