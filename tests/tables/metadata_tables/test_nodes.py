"""The tables of groups and variables say what nodes hold, also where one cannot be read."""

import json

import pytest
from helpers.builder import new_location, new_repository
from helpers.spark.inspected_repositories import (
    GROUP,
    add_array,
    array_document,
    rows_of,
)

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.options.metadata_tables import METADATA_TABLES, STORED_COLUMNS
from icechunk_format.storage.location import open_storage
from icechunk_format.tables.metadata_tables.nodes import group_rows, variable_rows


def test_groups(weather):
    repository, first, second = weather
    rows = rows_of(repository, "groups", snapshot_id=second)
    assert [(row["path"], row["name"], row["array_count"], row["group_count"]) for row in rows] == [
        ("/", "", 3, 1),
        ("/sea", "sea", 1, 0),
    ]
    assert rows[0]["attributes"] == '{"title": "é"}'
    assert rows[1]["attributes"] == '{"new": 1}'
    assert rows_of(repository, "groups", snapshot_id=first)[1]["attributes"] == "{}"
    assert [
        row["path"] for row in rows_of(repository, "groups", snapshot_id=second, group="sea")
    ] == ["/sea"]


def test_variables(weather):
    repository, _, second = weather
    rows = {row["name"]: row for row in rows_of(repository, "variables", snapshot_id=second)}
    counts = {
        name: [row[column] for column in sorted(STORED_COLUMNS)] for name, row in rows.items()
    }
    assert sorted(STORED_COLUMNS) == [
        "missing_chunks",
        "stored_bytes",
        "stored_chunks",
        "virtual_bytes",
        "virtual_chunks",
    ]
    assert counts == {
        "height": [1, 0, 0, 0, 0],
        "ice": [0, 0, 2, 3000, 2],
        "lat": [0, 9, 1, 0, 0],
        "t": [1, 305, 3, 0, 0],
    }
    t, ice = rows["t"], rows["ice"]
    assert (t["group"], t["dims"], t["shape"], t["chunks"]) == ("/", ["lat", "lon"], [4, 6], [2, 3])
    assert (t["units"], t["standard_name"], t["long_name"]) == ("K", "air_temperature", None)
    assert (t["dtype"], t["fill_value"], t["shards"]) == ("float32", "0.0", None)
    assert (t["total_chunks"], t["manifest_count"], t["problem"]) == (4, 1, None)
    assert (ice["group"], ice["dims"]) == ("/sea", ["dim_0", "x"])
    assert (ice["chunks"], ice["shards"], ice["total_chunks"]) == ([2, 2], [4, 8], 2)
    assert json.loads(ice["codecs"])[0]["name"] == "sharding_indexed"
    assert {name for name, row in rows.items() if row["is_coordinate"]} == {"lat", "height"}


def test_variables_without_stored_columns_open_no_manifest(weather, monkeypatch):
    repository, _, second = weather

    def refuse(*_):
        raise AssertionError("a manifest was opened")

    monkeypatch.setattr("icechunk_format.repository.files.chunk_lookup.load_manifests", refuse)
    rows = rows_of(repository, "variables", snapshot_id=second, columns=["shape", "path"])
    assert rows[-1] == {"shape": [4, 6], "path": "/t"}
    with pytest.raises(AssertionError, match="was opened"):
        rows_of(repository, "variables", snapshot_id=second, columns=["path", "stored_bytes"])


def test_nodes_that_cannot_be_read_are_rows_that_say_so():
    good = array_document((4,), (2,), attributes={"units": "m"})
    unknown = json.loads(good) | {"codecs": [*json.loads(good)["codecs"], {"name": "made-up"}]}
    odd_type = json.loads(good) | {"data_type": {"name": "made-up", "configuration": {"n": 1}}}
    documents = {
        "/": b"not json",
        "/broken": b'{"zarr_format": 3, "node_type": "array"}',
        "/codec": json.dumps(unknown).encode(),
        "/dtype": json.dumps(odd_type).encode(),
        "/good": good,
        "/old": json.dumps(json.loads(good) | {"zarr_format": 2}).encode(),
    }
    nodes = tuple(
        NodeSnapshot(
            id=NodeId(bytes([number] * 8)),
            path=path,
            user_data=data,
            array=None
            if path == "/"
            else ArrayNode(shape=(4,), num_chunks=(2,), manifests=ManifestRefs.empty(1)),
        )
        for number, (path, data) in enumerate(documents.items())
    )
    snapshot = Snapshot(id=SnapshotId(bytes(12)), flushed_at=0, message="", nodes=nodes)
    (group,) = group_rows(snapshot, range(len(nodes)))
    assert "attributes" not in group
    assert "/" in group["problem"]
    storage = open_storage(new_location())
    parts = [(number, 0, 0) for number in range(1, len(nodes))]
    columns = METADATA_TABLES["variables"].names
    rows = {row["name"]: row for row in variable_rows(storage, snapshot, parts, columns)}
    assert rows["good"]["problem"] is None
    assert "dtype" not in rows["broken"]
    assert rows["broken"]["missing_chunks"] == 2
    assert "made-up" in rows["codec"]["problem"]
    assert rows["codec"]["chunks"] == [2]
    assert json.loads(rows["dtype"]["dtype"]) == {"name": "made-up", "configuration": {"n": 1}}
    assert "made-up" in rows["dtype"]["problem"]
    assert rows["old"]["problem"]
    assert all("\n" not in (row["problem"] or "") for row in rows.values())


def test_attributes_that_utf8_cannot_hold():
    repository = new_repository()
    session = repository.writable_session()
    half = {"units": "\ud800m", "é": "\ud800"}
    session.create_group("/", json.dumps(json.loads(GROUP) | {"attributes": half}).encode())
    document = json.loads(array_document((1,), (1,))) | {"attributes": half}
    session.create_array("/x", json.dumps(document).encode(), shape=(1,), num_chunks=(1,))
    tip = session.commit("half a pair").snapshot_id
    (group,) = rows_of(repository, "groups", snapshot_id=tip)
    (variable,) = rows_of(repository, "variables", snapshot_id=tip)
    assert json.loads(group["attributes"]) == json.loads(variable["attributes"]) == half
    assert variable["units"] == "?m"


def test_variables_say_which_are_columns(weather):
    repository, *_ = weather
    session = repository.writable_session()
    add_array(session, "/mask", (4,), (4,), dims=("lat",))
    add_array(session, "/sea/fish", (8,), (8,), dims=("y",))
    add_array(session, "/sea/salt", (8,), (8,), dims=("x",))
    third = session.commit("more").snapshot_id
    rows = rows_of(repository, "variables", snapshot_id=third, columns=["path", "is_column"])
    assert [(row["path"], row["is_column"]) for row in rows] == [
        ("/height", False),
        ("/lat", True),
        ("/mask", False),
        # Without names, the group is no table: its variables lie on several sets of dimensions.
        ("/sea/fish", None),
        ("/sea/ice", None),
        ("/sea/salt", None),
        ("/t", True),
    ]
