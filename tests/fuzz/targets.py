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
from fuzz.seeds import ARRAYS, build_repository, chunk_seeds, shard_index_seeds
from helpers.builder import new_place

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.config.config import decode_flexbuffer_config, decode_yaml_config
from icechunk_format.encoding.envelope import FileType
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_VIRTUAL
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.values.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icechunk_format.encoding.values.metadata_items import decode_msgpack, encode_msgpack
from icechunk_format.errors import IcechunkError
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.zarr.zarr_json import parse_array_metadata, parse_group_metadata

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

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
                found.manifest_files.sizes_of(manifests.ids[row : row + 1])


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


def use_repository(objects: list[tuple[str, bytes]]) -> None:
    """Read everything of a repository as a scan does."""
    url = new_place()
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
                for batch in run_scan(plan.context, task):
                    batch.validate(full=True)
    finally:
        storage.delete_many([key for key, _ in objects])


def use_verify(objects: list[tuple[str, bytes]]) -> None:
    """Verify a repository, which reports damage and refuses none."""
    url = new_place()
    storage = open_storage(Location(url))
    storage.put_many(objects)
    metadata_cache().clear()
    try:
        verify(url, deep=True)
    except IcechunkError as error:
        raise AssertionError("verification refused a repository") from error
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
    repositories = {version: build_repository(new_place(), version) for version in (1, 2)}
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
        Target(
            name="verify",
            seeds=list(repositories.values()),
            mutate=damaged_repository,
            use=use_verify,
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
