"""Ref files of spec version 1 round-trip, and keys below refs/ are told apart."""

from __future__ import annotations

import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.encoding import object_keys as keys
from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icechunk_format.encoding.repo_info.v1_branches_and_tags import (
    check_ref_name,
    decode_ref_json,
    encode_ref_json,
    parse_ref_key,
)
from icechunk_format.errors import FormatError, InvalidInputError


@given(st.binary(min_size=12, max_size=12).map(SnapshotId))
def test_ref_files_round_trip(snapshot_id: SnapshotId) -> None:
    data = encode_ref_json(snapshot_id)
    assert len(data) == 35
    assert decode_ref_json(data, "refs/branch.main/ref.json") == snapshot_id


def test_other_layouts_of_the_same_json_are_read() -> None:
    data = b'{ "other": 1,\n "snapshot" : "1CECHNKREP0F1RSTCMT0" }\n'
    assert decode_ref_json(data, "k") == INITIAL_SNAPSHOT_ID
    assert decode_ref_json(data.ljust(64 << 10), "k") == INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"snapshot": 7}',
        b'{"snapshot": "short"}',
        b'{"snapshot": "1CECHNKREP0F1RSTCMT0"',
        b"\xff\xfe\x00",
        b"[" * 20_000,
        b'{"snapshot": "1CECHNKREP0F1RSTCMT0"}'.ljust((64 << 10) + 1),
    ],
)
def test_damaged_ref_files_are_named(data: bytes) -> None:
    with raises(FormatError, object_key="refs/branch.main/ref.json"):
        decode_ref_json(data, "refs/branch.main/ref.json")


def test_keys_are_told_apart() -> None:
    assert parse_ref_key(keys.branch_ref_key("main")) == ("branch", "main", False)
    assert parse_ref_key(keys.tag_ref_key("v1.0")) == ("tag", "v1.0", False)
    assert parse_ref_key(keys.tag_tombstone_key("v1.0")) == ("tag", "v1.0", True)


@pytest.mark.parametrize(
    "key",
    [
        "repo",
        "refs/branch.main/other.json",
        "refs/branch.main/ref.json.deleted",
        "refs/branch/ref.json",
        "refs/branch.main/ref_json",
        "refs/branch.main-and-more",
        "refs/tags.v1/ref.json",
        "refs/branch.a/b/ref.json",
        "refs/ref.json",
    ],
)
def test_foreign_keys_are_left_alone(key: str) -> None:
    assert parse_ref_key(key) is None


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_version_1_cannot_store(name: str) -> None:
    with raises(InvalidInputError, found=name, allowed="a name without '/'"):
        check_ref_name(name)
    assert check_ref_name("release 1.0") == "release 1.0"
