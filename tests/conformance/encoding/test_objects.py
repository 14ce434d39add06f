"""Files of the reference library are read, and it reads the same files written again by us.

For each state that a repository can be in: every snapshot file, the repo info file and all its
backups decode; the values agree with what the reference says about the same repository; and after
each of these files was replaced by our own encoding of its value, the reference opens the
repository, finds the same history and the same cells, and can commit on top.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from helpers.reference import repositories as reference_repositories

from icechunk_format.encoding import object_keys
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.updates import UpdateKind
from icechunk_format.encoding.snapshot import file as snapshot

pytestmark = pytest.mark.core

if TYPE_CHECKING:
    from pathlib import Path

    import icechunk

    from icechunk_format.encoding.repo_info.file import RepoInfo
    from icechunk_format.encoding.snapshot.file import Snapshot

# Fetching virtual chunks depends on the place of other files, not on the files under test.
VIRTUAL = {"virtual_chunks", "named_container", "compressed_locations"}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def build(name: str, spec_version: int) -> reference_repositories.ReferenceRepository:
        directory = tmp_path_factory.mktemp(name)
        return reference_repositories.build(name, spec_version, directory)

    return build


def snapshot_files(path: Path) -> list[Path]:
    return sorted((path / "snapshots").iterdir())


def read_snapshot(file: Path) -> Snapshot:
    return snapshot.decode(file.read_bytes(), object_key=f"snapshots/{file.name}")


def contents(repository: icechunk.Repository, snapshot_id: str, *, cells: bool) -> dict[str, Any]:
    """Path to zarr.json, and to cells where asked, as the reference and zarr see a snapshot."""
    store = repository.readonly_session(snapshot_id=snapshot_id).store
    try:
        root = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    found: dict[str, Any] = {"/": dict(root.attrs)}
    for path, node in root.members(max_depth=None):
        found["/" + path] = dict(node.attrs)
        if cells and isinstance(node, zarr.Array):
            found["/" + path + "#cells"] = np.asarray(node[...]).tobytes()
    return found


def history(repository: icechunk.Repository, snapshot_id: str) -> list[Any]:
    return [
        (info.id, info.parent_id, info.message, info.written_at, info.metadata)
        for info in repository.ancestry(snapshot_id=snapshot_id)
    ]


def assert_agrees(repo: RepoInfo, repository: icechunk.Repository) -> None:
    """Compare the value with every answer of the reference."""
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    assert {name: str(i) for name, i in repo.branches.items()} == branches
    assert {name: str(i) for name, i in repo.tags.items()} == tags
    assert repo.metadata == repository.get_metadata()
    for snapshot_id in (*branches.values(), *tags.values()):
        ours = repo.ancestry(SnapshotId.parse(snapshot_id))
        assert [
            (
                str(info.id),
                None if info.parent_id is None else str(info.parent_id),
                info.message,
                info.flushed_at,
                info.metadata,
            )
            for info in ours
        ] == [
            (i, parent, message, microseconds(at), metadata)
            for i, parent, message, at, metadata in history(repository, snapshot_id)
        ]
    log = list(repository.ops_log())
    newest = repo.latest_updates
    assert [update.updated_at for update in newest] == [
        microseconds(entry.updated_at) for entry in log[: len(newest)]
    ]
    assert UpdateKind.UNKNOWN not in {update.kind for update in newest}
    if repo.repo_before_updates is None:
        assert len(log) == len(newest)


def microseconds(instant: Any) -> int:
    return round(instant.timestamp() * 1_000_000)


def write_again(built: reference_repositories.ReferenceRepository) -> None:
    """Replace the repo info file, its backups and all snapshot files by our encoding."""
    for file in snapshot_files(built.path):
        value = read_snapshot(file)
        data = snapshot.encode(value)
        assert snapshot.decode(data, object_key=file.name) == value
        file.write_bytes(data)
    if built.spec_version == 1:
        return
    backups = sorted((built.path / "overwritten").glob("repo.*"))
    for file in (built.path / object_keys.REPO, *backups):
        repo = repo_info.decode(file.read_bytes(), object_key=file.name)
        data = repo_info.encode(repo)
        assert repo_info.decode(data) == repo
        file.write_bytes(data)


@pytest.mark.parametrize(("name", "spec_version"), reference_repositories.CASES)
def test_written_again_nothing_changes_for_the_reference(
    build: Any, name: str, spec_version: int
) -> None:
    built = build(name, spec_version)
    has_cells = name not in VIRTUAL
    before = built.open()
    if built.spec_version == 2:
        repo = repo_info.decode((built.path / object_keys.REPO).read_bytes())
        assert repo.spec_version == 2
        assert_agrees(repo, before)
        readable = [str(snapshot_id) for snapshot_id in repo.snapshots]
    else:
        readable = [file.name for file in snapshot_files(built.path)]
    tip = before.lookup_branch("main")
    log = [] if built.spec_version == 1 else [str(entry) for entry in before.ops_log()]
    expected = {i: contents(before, i, cells=has_cells) for i in readable}
    expected_history = history(before, tip)

    write_again(built)

    after = built.open()
    assert {i: contents(after, i, cells=has_cells) for i in readable} == expected
    assert history(after, tip) == expected_history
    if built.spec_version == 2:
        assert [str(entry) for entry in after.ops_log()] == log
    session = after.writable_session("main")
    zarr.create_group(session.store, path="added/afterwards")
    added = session.commit("on top", metadata={"by": "the reference"})
    assert [info.id for info in after.ancestry(branch="main")][:2] == [added, tip]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_nodes_agree_with_the_store(build: Any, spec_version: int) -> None:
    built = build("nested_groups", spec_version)
    tip = built.snapshots["nested"]
    store = built.open().readonly_session(snapshot_id=tip).store
    value = read_snapshot(built.path / "snapshots" / tip)
    assert str(value.id) == tip
    assert value.spec_version == spec_version
    assert value.duplicate_paths == ()
    root = zarr.open_group(store, mode="r")
    members = {f"/{path}": node for path, node in root.members(max_depth=None)}
    assert {node.path for node in value.nodes} == {"/", *members}
    assert [node.path for node in value.nodes] == sorted(
        (node.path for node in value.nodes), key=str.encode
    )
    for path, member in members.items():
        node = value.node(path)
        assert node is not None
        assert json.loads(node.user_data)["attributes"] == dict(member.attrs)
        assert (node.array is not None) == isinstance(member, zarr.Array)
        if node.array is not None:
            assert node.array.shape == member.shape
            assert node.array.num_chunks == member.cdata_shape
            for row in range(len(node.array.manifests)):
                manifest_id = node.array.manifests.manifest_id(row)
                listed = node.array.manifests.ids[row : row + 1]
                [size] = value.manifest_files.sizes_of(listed)
                [count] = value.manifest_files.counts_of(listed)
                assert size == (built.path / object_keys.manifest_key(manifest_id)).stat().st_size
                assert count > 0
    children = {child.path for child in value.children("/foo")}
    assert children == {"/foo/bar", "/foo/values"}


def test_split_manifests_have_tight_disjoint_extents(build: Any) -> None:
    built = build("split_manifests", 2)
    value = read_snapshot(built.path / "snapshots" / built.snapshots["split"])
    refs = value.node("/t2m").array.manifests
    assert refs.extents[:, 0].tolist() == [[0, 2], [2, 4], [4, 5]]


def test_metadata_of_every_json_kind(build: Any) -> None:
    for spec_version in (1, 2):
        built = build("linear_history", spec_version)
        value = read_snapshot(built.path / "snapshots" / built.snapshots["overwritten"])
        assert value.metadata == {
            "text": "grün",
            "count": 3,
            "negative": -70000,
            "ratio": 0.25,
            "flag": True,
            "nothing": None,
            "list": [1, "two", [3.5]],
            "map": {"b": 1, "a": {"deep": [True, False]}},
            "large": 2**40,
        }
        assert value.message == "overwrite two steps"


def test_version_1_parents_form_the_history(build: Any) -> None:
    built = build("linear_history", 1)
    expected = [info.id for info in built.open().ancestry(branch="main")]
    found = []
    next_id: SnapshotId | None = SnapshotId.parse(expected[0])
    while next_id is not None:
        found.append(str(next_id))
        next_id = read_snapshot(built.path / object_keys.snapshot_key(next_id)).parent_id
    assert found == expected


def test_refs_of_version_1(build: Any) -> None:
    built = build("branches_and_tags", 1)
    repository = built.open()
    found: dict[str, dict[str, str]] = {"branch": {}, "tag": {}}
    tombstones = set()
    for file in (built.path / "refs").rglob("ref.json*"):
        key = file.relative_to(built.path).as_posix()
        parsed = v1_refs.parse_ref_key(key)
        assert parsed is not None
        if parsed.is_tombstone:
            assert file.read_bytes() == b""
            tombstones.add(parsed.name)
        else:
            target = v1_refs.decode_ref_json(file.read_bytes(), key)
            assert v1_refs.encode_ref_json(target) == file.read_bytes()
            found[parsed.kind][parsed.name] = str(target)
    assert tombstones == {"withdrawn"}
    live = {name: i for name, i in found["tag"].items() if name not in tombstones}
    assert live == {name: repository.lookup_tag(name) for name in repository.list_tags()}
    assert found["branch"]["main"] == repository.lookup_branch("main")
    assert len(found["branch"]) == len(repository.list_branches())


def test_pruned_transaction_logs_after_expiration(build: Any) -> None:
    built = build("expired_history", 2)
    repo = repo_info.decode((built.path / object_keys.REPO).read_bytes())
    labels = {i: label for label, i in built.snapshots.items()}
    pruned = {
        labels[str(i)]: [labels[str(p)] for p in info.pruned_ancestor_tx_logs]
        for i, info in repo.snapshots.items()
        if info.pruned_ancestor_tx_logs
    }
    assert "four" in pruned
    assert pruned["four"] == ["one", "two", "three"]


def test_the_log_continues_in_backups(build: Any) -> None:
    built = build("long_operations_log", 2)
    repo = repo_info.decode((built.path / object_keys.REPO).read_bytes())
    seen = [update.updated_at for update in repo.latest_updates]
    while repo.repo_before_updates is not None:
        key = object_keys.overwritten_key(repo.repo_before_updates)
        repo = repo_info.decode((built.path / key).read_bytes(), object_key=key)
        seen += [update.updated_at for update in repo.latest_updates]
    expected = [microseconds(entry.updated_at) for entry in built.open().ops_log()]
    assert seen == expected
    assert len(seen) == 33
