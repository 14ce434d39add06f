"""Object keys are spelled as the format demands, and no stored name leaves its prefix."""

from __future__ import annotations

import pytest
from helpers.raised import raises

from icechunk_format.encoding import object_keys as keys
from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId
from icechunk_format.errors import InvalidInputError

RAW = INITIAL_SNAPSHOT_ID.raw
TEXT = "1CECHNKREP0F1RSTCMT0"


def test_keys_of_all_kinds_of_objects() -> None:
    assert keys.REPO == "repo"
    assert keys.CONFIG_YAML == "config.yaml"
    assert keys.snapshot_key(INITIAL_SNAPSHOT_ID) == f"snapshots/{TEXT}"
    assert keys.transaction_log_key(INITIAL_SNAPSHOT_ID) == f"transactions/{TEXT}"
    assert keys.manifest_key(ManifestId(RAW)) == f"manifests/{TEXT}"
    assert keys.chunk_key(ChunkId(RAW)) == f"chunks/{TEXT}"
    assert keys.branch_ref_key("main") == "refs/branch.main/ref.json"
    assert keys.tag_ref_key("v1.0") == "refs/tag.v1.0/ref.json"
    assert keys.tag_tombstone_key("v1.0") == "refs/tag.v1.0/ref.json.deleted"


def test_backups_list_newest_first() -> None:
    older = keys.backup_name(1_774_384_705_766, RAW)
    newer = keys.backup_name(1_774_384_705_767, RAW)
    assert older == f"repo.30729295294234.{TEXT}"
    assert newer < older
    assert keys.overwritten_key(newer) == f"overwritten/{newer}"
    assert keys.backup_name(0, RAW, of=keys.CONFIG_YAML) == f"config.yaml.32503680000000.{TEXT}"
    assert keys.backup_name(32_503_680_000_000, RAW) == f"repo.00000000000000.{TEXT}"


def test_clocks_beyond_the_name_are_refused() -> None:
    with raises(
        InvalidInputError,
        match="clock",
        found=32503680000001,
        allowed="-67496319999999 to 32503680000000",
    ):
        keys.backup_name(32_503_680_000_001, RAW)
    with raises(
        InvalidInputError, found=-67496320000000, allowed="-67496319999999 to 32503680000000"
    ):
        keys.backup_name(-67_496_320_000_000, RAW)
    assert keys.backup_name(-67_496_319_999_999, RAW) == f"repo.99999999999999.{TEXT}"


@pytest.mark.parametrize("name", ["", "..", "../repo", "/repo", "a//b", "a/./b", "a\0"])
def test_backups_stay_below_their_prefix(name: str) -> None:
    assert not keys.is_backup_name(name)
    with pytest.raises(InvalidInputError, match="not the name of a backup"):
        keys.overwritten_key(name)
