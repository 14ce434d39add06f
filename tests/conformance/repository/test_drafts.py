"""Imported drafts are read, compared and written to by the reference as the draft said."""

import icechunk
import numpy as np
import pytest
import zarr
from helpers.files.draft_repositories import (
    Array,
    crockford,
    pack,
    some_history,
    write_numbered,
    write_state_file,
)

from icechunk_format.drafts import import_draft, open_draft
from icechunk_format.maintenance import verify
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage

WRITERS = {
    "numbered json": lambda *a: write_numbered(*a),
    "numbered json, hex names": lambda *a: write_numbered(
        *a, name_of=bytes.hex, ending=".json", keys="({0}, [{1}])"
    ),
    "numbered msgpack": lambda *a: write_numbered(
        *a, encode=pack, name_of=crockford, ending=".msgpack", keys="{0}.{1}"
    ),
    "state file": lambda *a: write_state_file(*a),
    "state file, wide coordinates": lambda *a: write_state_file(*a, width=8),
}


@pytest.fixture(params=WRITERS)
def imported(request, tmp_path):
    history = some_history()
    source, target, outside = tmp_path / "draft", tmp_path / "new", tmp_path / "outside"
    outside.mkdir()
    WRITERS[request.param](open_storage(Location(str(source))), history, outside)
    dry = import_draft(str(source), str(target), dry_run=True)
    assert not target.exists() or not any(target.iterdir())
    report = import_draft(str(source), str(target))
    for name in ("snapshots", "branches", "native_chunks", "virtual_chunks", "bytes_copied"):
        assert getattr(dry, name) == getattr(report, name)
    ours = Repository.open(str(target))
    ours.update_config(
        {
            "virtual_chunk_containers": {
                f"{outside.as_uri()}/": {"store": {"local_file_system": str(outside)}}
            }
        }
    )
    access = icechunk.containers_credentials(
        {f"{outside.as_uri()}/": icechunk.Credentials.LocalFileSystemAccess()}
    )
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(target)), authorize_virtual_chunk_access=access
    )
    return history, open_draft(str(source)), report, ours, theirs


def test_every_version_is_read_as_the_draft_has_it(imported):
    history, draft, report, _, theirs = imported
    by_name = {}
    for version in draft.snapshots():
        (name,) = [v.name for v in history.versions if v.time == version.written_at]
        by_name[name] = report.snapshot_ids[version.id]
    assert {b: by_name[tip] for b, tip in history.branches.items()} == {
        b: theirs.lookup_branch(b) for b in theirs.list_branches()
    }
    assert theirs.lookup_tag("v1") == by_name["first"]
    for version in history.versions:
        line = list(theirs.ancestry(snapshot_id=by_name[version.name]))
        names = [*history.line(version.name)]
        assert [found.id for found in line[:-1]] == [by_name[name] for name in names]
        assert [found.message for found in line[:-1]] == [history.of(n).message for n in names]
        assert line[0].metadata.items() >= version.properties.items()
        assert line[0].metadata["draft_snapshot_id"] in report.snapshot_ids
        store = theirs.readonly_session(snapshot_id=by_name[version.name]).store
        root = zarr.open_group(store, mode="r")
        found = {"/": root} | {f"/{path}": node for path, node in root.members(max_depth=None)}
        assert set(found) == {*version.nodes} | ({"/g/new"} if version.name == "third" else set())
        for path, node in version.nodes.items():
            assert dict(found[path].attrs) == node.attributes
            if isinstance(node, Array):
                np.testing.assert_array_equal(found[path][...], node.values, strict=True)
                names = node.dimension_names
                stored = found[path].metadata.dimension_names
                assert stored == (None if names is None else tuple(names))
                np.testing.assert_array_equal(found[path].fill_value, node.fill)


def test_changes_between_versions_and_a_commit_on_top(imported):
    _, draft, _, ours, theirs = imported
    branch = theirs.ancestry(branch="main")
    second, first, root = [found.id for found in branch]
    changed = theirs.diff(from_snapshot_id=first, to_snapshot_id=second)
    assert changed.updated_groups == {"/"}
    # The writers store every chunk anew; the inline one has the same bytes.
    assert [tuple(at) for at in changed.updated_chunks["/g/t2m"]] == [(0, 0), (0, 1), (1, 1)]
    assert not changed.new_arrays
    assert not changed.deleted_arrays
    assert theirs.diff(from_snapshot_id=root, to_snapshot_id=first).new_arrays == {
        "/g/t2m",
        "/scalar",
        "/flags",
    }
    third = theirs.lookup_branch("development")
    changed = theirs.diff(from_snapshot_id=first, to_snapshot_id=third)
    assert changed.deleted_arrays == {"/scalar", "/flags"}
    assert changed.new_groups == {"/g/new"}
    assert changed.updated_arrays == {"/g/t2m"}
    session = theirs.writable_session("main")
    array = zarr.open_array(session.store, path="g/t2m")
    array[3, 4] = 55
    session.commit("on top")
    assert next(ours.ancestry()).message == "on top"
    assert ours.metadata["imported_draft"]["kind"] == draft.kind
    findings = verify(ours.location)
    assert [row for row in findings.to_pylist() if row["severity"] == "error"] == []
