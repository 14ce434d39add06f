"""Manifests, transaction logs and configurations mean the same to us and to the reference.

What the reference wrote is decoded and compared with what it says about it. Then every manifest
and transaction log is replaced by our own encoding, and the reference reads the same cells, gives
the same differences, and rewrites and extends what it finds. At last it reads manifests that only
we write: all kinds of references mixed, several arrays in one file, chunks packed in one object.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import zarr
from helpers.reference import repositories as reference_repositories

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.config.config import decode_flexbuffer_config, decode_yaml_config
from icechunk_format.encoding.ids import ChunkId, ManifestId, SnapshotId
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.snapshot import file as snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles, ManifestRefs
from icechunk_format.encoding.splitting import split_cells
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer

if TYPE_CHECKING:
    from pathlib import Path

NODE_LISTS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)


def inspected_counts(found: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {
        entry["node_id"]: (entry["num_native"], entry["num_inline"], entry["num_virtual"])
        for entry in found["arrays"]
    }


def counts(whole: Manifest) -> dict[str, tuple[int, int, int]]:
    kinds = (KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL)
    return {
        str(entry.node_id): tuple(int((entry.refs.kind == kind).sum()) for kind in kinds)
        for entry in whole.arrays
    }


def described_log(log: transaction_log.TransactionLog) -> dict[str, Any]:
    """Return a transaction log in the form in which the reference prints it."""
    return {name: [str(i) for i in getattr(log, name)] for name in NODE_LISTS} | {
        "updated_chunks": [
            {"node_id": str(node_id), "chunks": coords.tolist()}
            for node_id, coords in log.updated_chunks.items()
        ],
        "moves": [(m.from_path, m.to_path) for m in log.moved_nodes],
    }


def inspected_log(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in (*NODE_LISTS, "updated_chunks")} | {
        "moves": [(move["from"], move["to"]) for move in found.get("moved_nodes") or []]
    }


def contents(repository: icechunk.Repository, snapshot_id: str) -> dict[str, bytes]:
    """Path to cells of every array of a snapshot, as the reference and zarr see them."""
    store = repository.readonly_session(snapshot_id=snapshot_id).store
    try:
        root = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    return {
        path: np.asarray(node[...]).tobytes()
        for path, node in root.members(max_depth=None)
        if isinstance(node, zarr.Array)
    }


def decode_all(path: Path, kind: str) -> dict[str, Any]:
    folder = path / kind
    module = manifest if kind == "manifests" else transaction_log
    if not folder.is_dir():
        return {}
    return {
        file.name: module.decode(file.read_bytes(), object_key=f"{kind}/{file.name}")
        for file in sorted(folder.iterdir())
    }


def update_sizes(path: Path, sizes: dict[str, int]) -> None:
    """Give the snapshots the sizes of the manifests that were replaced."""
    for file in sorted((path / "snapshots").iterdir()):
        value = snapshot.decode(file.read_bytes(), object_key=file.name)
        files = value.manifest_files
        new_sizes = [
            sizes.get(str(ManifestId(raw.tobytes())), int(size))
            for raw, size in zip(files.ids, files.size_bytes, strict=True)
        ]
        new_files = ManifestFiles.of(
            files.ids, np.array(new_sizes, dtype=np.uint64), files.num_chunk_refs
        )
        file.write_bytes(snapshot.encode(dataclasses.replace(value, manifest_files=new_files)))


@pytest.mark.parametrize(("name", "spec_version"), reference_repositories.CASES)
def test_written_again_nothing_changes_for_the_reference(
    tmp_path: Path, name: str, spec_version: int
) -> None:
    built = reference_repositories.build(name, spec_version, tmp_path)
    before = built.open()
    manifests = decode_all(built.path, "manifests")
    logs = decode_all(built.path, "transactions")
    with_pruned_logs: set[str] = set()
    if built.spec_version == 2:
        repo = repo_info.decode((built.path / "repo").read_bytes())
        with_pruned_logs = {
            str(info.id) for info in repo.snapshots.values() if info.pruned_ancestor_tx_logs
        }
    for manifest_id, whole in manifests.items():
        assert str(whole.id) == manifest_id
        assert counts(whole) == inspected_counts(before.inspect_manifest(manifest_id))
    for snapshot_id, log in logs.items():
        assert str(log.id) == snapshot_id
        if snapshot_id in with_pruned_logs:
            continue  # the reference shows the union with the logs of expired ancestors
        assert described_log(log) == inspected_log(before.inspect_transaction_log(snapshot_id))
    ancestry = [info.id for info in before.ancestry(branch="main")]
    expected = {snapshot_id: contents(before, snapshot_id) for snapshot_id in ancestry}
    differences = [
        repr(before.diff(from_snapshot_id=older, to_snapshot_id=newer))
        for newer, older in pairwise(ancestry)
        if newer in logs
    ]

    sizes = {}
    for manifest_id, whole in manifests.items():
        data = encode(whole, spec_version=spec_version)
        sizes[manifest_id] = len(data)
        (built.path / "manifests" / manifest_id).write_bytes(data)
    for snapshot_id, log in logs.items():
        data = transaction_log.encode(log, spec_version=spec_version)
        (built.path / "transactions" / snapshot_id).write_bytes(data)
    update_sizes(built.path, sizes)

    after = built.open()
    assert {snapshot_id: contents(after, snapshot_id) for snapshot_id in ancestry} == expected
    assert differences == [
        repr(after.diff(from_snapshot_id=older, to_snapshot_id=newer))
        for newer, older in pairwise(ancestry)
        if newer in logs
    ]
    for manifest_id, whole in manifests.items():
        assert inspected_counts(after.inspect_manifest(manifest_id)) == counts(whole)
    if any(expected[ancestry[0]].values()):
        after.rewrite_manifests("rewrite what was written again", branch="main")
        assert contents(after, after.lookup_branch("main")) == expected[ancestry[0]]


@pytest.mark.parametrize("policy", [None, LocationCompression(min_num_chunks=1)])
def test_the_reference_reads_what_only_we_write(
    tmp_path: Path, policy: LocationCompression | None
) -> None:
    """One manifest for three arrays, all kinds mixed, native chunks packed into one object."""
    count = 1200
    source = tmp_path / "source"
    source.mkdir()
    values = np.arange(count * 2, dtype="<i4")
    for part in range(3):
        (source / f"part-{part}.bin").write_bytes(values.tobytes())
    prefix = source.as_uri() + "/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(source)))
    )
    access = icechunk.containers_credentials({prefix: icechunk.credentials.LocalFileSystemAccess})
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    theirs = icechunk.Repository.create(
        storage, config=config, authorize_virtual_chunk_access=access
    )
    theirs.save_config()
    session = theirs.writable_session("main")
    root = zarr.create_group(session.store)
    for name, shape, chunks in (("line", (count,), (1,)), ("grid", (40, 30), (1, 1))):
        root.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype="<i4",
            filters=None,
            compressors=None,
            fill_value=-1,
        )
    root.create_array(
        "scalar", shape=(), dtype="<i4", filters=None, compressors=None, fill_value=-1
    )
    snapshot_id = session.commit("arrays without chunks")

    packed = ChunkId(b"packed-chunk")
    chunks_folder = tmp_path / "repository" / "chunks"
    chunks_folder.mkdir(exist_ok=True)
    (chunks_folder / str(packed)).write_bytes(b"skip" + values.tobytes())
    line = mixed_refs(np.arange(count)[:, None], packed, prefix, missing=7)
    rows, columns = np.divmod(np.arange(count), 30)
    grid = mixed_refs(np.stack([rows, columns], axis=1), packed, prefix, missing=11)
    scalar = inline_refs(np.zeros((1, 0), dtype=np.int64), [np.int32(42).tobytes()])

    file = tmp_path / "repository" / "snapshots" / snapshot_id
    value = snapshot.decode(file.read_bytes(), object_key=file.name)
    by_path = {"/line": line, "/grid": grid, "/scalar": scalar}
    whole = Manifest(
        id=ManifestId(b"our-manifest"),
        arrays=tuple(
            ArrayManifest(node_id=node.id, refs=by_path[node.path])
            for node in value.nodes
            if node.path in by_path
        ),
    )
    data = encode(whole, location_compression=policy)
    manifests_folder = tmp_path / "repository" / "manifests"
    manifests_folder.mkdir(exist_ok=True)
    (manifests_folder / str(whole.id)).write_bytes(data)
    raw_id = np.frombuffer(whole.id.raw, dtype=np.uint8)[None, :]
    nodes = tuple(
        node
        if node.array is None
        else dataclasses.replace(
            node,
            array=dataclasses.replace(
                node.array,
                manifests=ManifestRefs(ids=raw_id, extents=by_path[node.path].extents()[None]),
            ),
        )
        for node in value.nodes
    )
    files = ManifestFiles.of(
        raw_id,
        np.array([len(data)], dtype=np.uint64),
        np.array([whole.num_chunk_refs], dtype=np.uint32),
    )
    file.write_bytes(snapshot.encode(dataclasses.replace(value, nodes=nodes, manifest_files=files)))

    reader = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    group = zarr.open_group(reader.readonly_session("main").store, mode="r")
    expected = np.arange(count) + 1
    assert group["line"][:].tolist() == np.where(np.arange(count) % 7 == 6, -1, expected).tolist()
    assert (
        group["grid"][:].ravel().tolist()
        == np.where(np.arange(count) % 11 == 10, -1, expected).tolist()
    )
    assert group["scalar"][()] == 42
    inspected = reader.inspect_manifest(str(whole.id))
    assert inspected_counts(inspected) == counts(whole)
    assert inspected["compression"]["uses_location_compression"] == (policy is not None)
    reader.rewrite_manifests("the reference takes over", branch="main")
    group = zarr.open_group(reader.readonly_session("main").store, mode="r")
    assert group["line"][::7].tolist() == expected[::7].tolist()


def mixed_refs(coords: np.ndarray, packed: ChunkId, prefix: str, *, missing: int) -> ChunkRefs:
    """Refer to chunk i, the number i + 1, in four ways by turns; leave out some chunks."""
    number = np.arange(len(coords))
    is_there = number % missing != missing - 1
    native, inline, plain, checked = (
        np.flatnonzero(is_there & (number % 4 == k)) for k in range(4)
    )
    fours = np.full(len(coords), 4)
    return ChunkRefs.concat(
        [
            native_refs(
                coords[native],
                np.tile(np.frombuffer(packed.raw, dtype=np.uint8), (len(native), 1)),
                fours[native],
                4 + (native + 1) * 4,
            ),
            inline_refs(coords[inline], [np.int32(i + 1).tobytes() for i in inline.tolist()]),
            virtual_refs(
                coords[plain],
                [f"{prefix}part-{i % 3}.bin" for i in plain.tolist()],
                (plain + 1) * 4,
                fours[plain],
            ),
            virtual_refs(
                coords[checked],
                [f"{prefix}part-{i % 3}.bin" for i in checked.tolist()],
                (checked + 1) * 4,
                fours[checked],
                last_modified=np.full(len(checked), 2**32 - 1),
            ),
        ]
    )


def full_config() -> icechunk.RepositoryConfig:
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 100
    config.compression = icechunk.CompressionConfig(level=5)
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(
            "s3://bucket/prefix/", icechunk.s3_store(region="eu-north-1"), name="named"
        )
    )
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer("file:///data/", icechunk.local_filesystem_store("/data"))
    )
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer("gs://other/", icechunk.gcs_store({"k": "v"}))
    )
    return config


@pytest.mark.parametrize("spec_version", [1, 2])
def test_configurations_agree(tmp_path: Path, spec_version: int) -> None:
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    repository = icechunk.Repository.create(storage, full_config(), spec_version=spec_version)
    repository.save_config()
    if spec_version == 1:
        found = decode_yaml_config((tmp_path / "config.yaml").read_bytes())
    else:
        raw = repo_info.decode((tmp_path / "repo").read_bytes()).config
        assert raw is not None
        found = decode_flexbuffer_config(raw)
    assert found.inline_chunk_threshold_bytes == 100
    assert found.compression_level == 5
    assert [
        (c.name, c.url_prefix, c.store_kind, c.store_options.get("region"))
        for c in found.virtual_chunk_containers
    ] == [
        (None, "file:///data/", "local_file_system", None),
        (None, "gs://other/", "gcs", None),
        ("named", "s3://bucket/prefix/", "s3", "eu-north-1"),
    ]
    assert found.num_updates_per_repo_info_file == 1000
    assert found.location_compression == LocationCompression()


def test_the_reference_reads_our_flexbuffers(tmp_path: Path) -> None:
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    repository = icechunk.Repository.create(storage, full_config())
    repository.save_config()
    file = tmp_path / "repo"
    repo = repo_info.decode(file.read_bytes())
    assert repo.config is not None
    tree = dict(decode_flexbuffer_config(repo.config).raw)
    changed = encode_flexbuffer(tree | {"inline_chunk_threshold_bytes": 300})
    file.write_bytes(repo_info.encode(dataclasses.replace(repo, config=changed)))
    config = icechunk.Repository.fetch_config(storage)
    assert config is not None
    assert config.inline_chunk_threshold_bytes == 300
    assert config.compression is not None
    assert config.compression.level == 5
    assert set(config.virtual_chunk_containers or {}) == set(tree["virtual_chunk_containers"])


Condition = icechunk.ManifestSplitCondition
Dimension = icechunk.ManifestSplitDimCondition


@pytest.mark.parametrize(
    "rules",
    [
        {Condition.AnyArray(): {Dimension.Any(): 3}},
        {Condition.AnyArray(): {Dimension.Axis(1): 4}},
        {Condition.AnyArray(): {Dimension.DimensionName("time"): 2, Dimension.Any(): 5}},
        {Condition.AnyArray(): {Dimension.DimensionName("tim"): 2}},
        {Condition.name_matches("a"): {Dimension.Axis(0): 2}},
        {Condition.name_matches("^x"): {Dimension.Axis(0): 2}},
        {Condition.path_matches("group/data"): {Dimension.Any(): 4}},
        {Condition.path_matches("^data"): {Dimension.Any(): 4}},
        {Condition.name_matches("("): {Dimension.Any(): 4}},
        {
            Condition.name_matches("data"): {Dimension.Axis(0): 2},
            Condition.AnyArray(): {Dimension.Any(): 4},
        },
        {
            Condition.or_conditions([Condition.name_matches("q"), Condition.AnyArray()]): {
                Dimension.Any(): 4
            },
        },
        {
            Condition.and_conditions([Condition.name_matches("q"), Condition.AnyArray()]): {
                Dimension.Any(): 4
            },
        },
    ],
    ids=str,
)
def test_splitting_rules_cut_the_same_cells(tmp_path: Path, rules: Any) -> None:
    config = icechunk.RepositoryConfig.default()
    config.manifest = icechunk.ManifestConfig(
        splitting=icechunk.ManifestSplittingConfig.from_dict(rules)
    )
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    repository = icechunk.Repository.create(storage, config)
    repository.save_config()
    session = repository.writable_session("main")
    array = zarr.create_group(session.store).create_array(
        "group/data", shape=(7, 9), chunks=(1, 1), dtype="i1", dimension_names=("time", "x")
    )
    array[:] = 1
    snapshot_id = session.commit("data")
    raw = repo_info.decode((tmp_path / "repo").read_bytes()).config
    assert raw is not None
    cells = split_cells(
        decode_flexbuffer_config(raw).splitting, "/group/data", ("time", "x"), (7, 9)
    )
    expected = sorted(
        [[i, min(i + cells[0], 7)], [j, min(j + cells[1], 9)]]
        for i in range(0, 7, cells[0])
        for j in range(0, 9, cells[1])
    )
    found = snapshot.decode(
        (tmp_path / "snapshots" / str(SnapshotId.parse(snapshot_id))).read_bytes(), object_key="s"
    )
    (node,) = (node for node in found.nodes if node.array is not None)
    assert node.array is not None
    assert sorted(node.array.manifests.extents.tolist()) == expected
