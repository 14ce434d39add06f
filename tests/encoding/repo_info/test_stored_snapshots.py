"""Short lists of `repo` are read table by table, long ones as columns, with the same result."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from encoding.repo_info.test_snapshot_list import history

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import lists
from icechunk_format.encoding.repo_info.file import REPO
from icechunk_format.encoding.repo_info.updates import NewCommitUpdate, Update
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.errors import FormatError

LISTS = ["tags", "branches", "snapshots", "latest_updates"]


@pytest.fixture(scope="module")
def payload() -> bytes:
    repo = history(4, 40)
    ids = list(repo.snapshots)
    updates = tuple(
        Update(
            details=NewCommitUpdate(branch="main", new_snap_id=own),
            updated_at=100 - number,
            backup_path=f"repo.{number}" if number else None,
        )
        for number, own in enumerate(ids)
    )
    refs = {f"r{number}": own for number, own in enumerate(ids)}
    data = repo_info.encode(replace(repo, tags=refs, branches=refs, latest_updates=updates))
    return unwrap(data, file_type=FileType.REPO_INFO, object_key="repo").payload


def outcome(payload: bytes, monkeypatch: pytest.MonkeyPatch, min_rows: int) -> object:
    data = wrap(payload, file_type=FileType.REPO_INFO, spec_version=2, level=1)
    with monkeypatch.context() as patched:
        patched.setattr(lists, "MIN_ROWS", min_rows)
        try:
            return repo_info.decode(data)
        except FormatError as error:
            return error.facts


def is_same(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    return outcome(payload, monkeypatch, 16) == outcome(payload, monkeypatch, 10**9)


@pytest.mark.parametrize("name", LISTS)
def test_vtables_are_judged_alike(payload, name, monkeypatch):
    root = read_root(payload, REPO, object_key="repo", file_type="repo info")
    start, count = root.vector(name, 4)
    refused = 0
    for number in (0, count - 1):
        at = start + 4 * number
        table = at + struct.unpack_from("<I", payload, at)[0]
        vtable = table - struct.unpack_from("<i", payload, table)[0]
        (size,) = struct.unpack_from("<H", payload, vtable)
        for place in range(vtable, vtable + size, 2):
            for value in (0, 1, 3, 4, 6, 200, 2**16 - 1):
                changed = bytearray(payload)
                struct.pack_into("<H", changed, place, value)
                assert is_same(bytes(changed), monkeypatch), (place - vtable, value)
                refused += isinstance(outcome(bytes(changed), monkeypatch, 16), dict)
    assert refused > 10


def test_random_damage_is_judged_alike(payload, monkeypatch):
    chance = random.Random(1)
    for number in range(150):
        changed = bytearray(payload)
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(len(payload) - 4)
            struct.pack_into(
                "<I", changed, at, chance.choice((0, 1, 2**31, chance.getrandbits(16)))
            )
        assert is_same(bytes(changed), monkeypatch), number
