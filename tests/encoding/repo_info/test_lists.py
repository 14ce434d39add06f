"""Long lists of ``repo`` are the same state, read and written in bulk or one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import backup_name
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import lists as repo_lists
from icechunk_format.encoding.repo_info import updates as repo_updates
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.updates import (
    GCRanUpdate,
    NewCommitUpdate,
    RepoStatus,
    TagCreatedUpdate,
    Update,
)
from icechunk_format.encoding.tables.bulk_reader import Ranges, VectorReader
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.repository.state import repo_file


def state(seed: int, snapshots: int = 60, updates: int = 50) -> RepoInfo:
    """Make a state in which a few rows of each list are out of the ordinary."""
    draw = random.Random(seed)
    ids = [SnapshotId(draw.randbytes(12)) for _ in range(snapshots)]
    infos = {}
    for number, snapshot_id in enumerate(ids):
        is_odd = draw.random() < 0.2
        infos[snapshot_id] = SnapshotInfo(
            id=snapshot_id,
            parent_id=None if draw.random() < 0.1 else draw.choice(ids),
            flushed_at=draw.choice([0, 2**64 - 1, draw.getrandbits(50)]),
            message=draw.choice(["", "plain", "déjà vu \U0001f9ca", f"number {number}" * 40]),
            metadata_items=MetadataItems.of({"n": number} if is_odd else {}),
            pruned_ancestor_tx_logs=tuple(ids[:2]) if draw.random() < 0.1 else (),
        )
    log = [
        Update(
            details=draw.choice(
                [
                    NewCommitUpdate(branch="main", new_snap_id=draw.choice(ids)),
                    NewCommitUpdate(branch="ünï", new_snap_id=draw.choice(ids)),
                    NewCommitUpdate(branch="main", new_snap_id=draw.choice(ids)),
                    GCRanUpdate(),
                    TagCreatedUpdate(name="t"),
                ]
            ),
            updated_at=draw.getrandbits(60),
            backup_path=None if number == 0 else backup_name(number, draw.randbytes(12)),
        )
        for number in range(updates)
    ]
    return RepoInfo(
        status=RepoStatus(set_at=1),
        snapshots=dict(sorted(infos.items(), key=lambda item: item[0].raw)),
        branches={"main": ids[0], **{f"b-{n}é": draw.choice(ids) for n in range(snapshots // 2)}},
        tags={f"v{n}": draw.choice(ids) for n in range(3)},
        latest_updates=tuple(log),
    )


@pytest.fixture
def one_by_one(monkeypatch):
    """Return a function that switches reading and writing in bulk off."""

    def switch() -> None:
        for module in (repo_lists, repo_updates):
            monkeypatch.setattr(module, "MIN_ROWS", 10**9)

    return switch


def outcome(data: bytes) -> object:
    """Return the state, or what is said of the damage."""
    try:
        return repo_info.decode(data)
    except (FormatError, UnsupportedError) as error:
        return str(error)


@pytest.mark.parametrize("seed", range(8))
def test_both_ways_say_the_same(seed, one_by_one):
    repo = state(seed)
    in_bulk = repo_info.encode(repo)
    assert repo_info.decode(in_bulk) == repo
    assert list(repo_info.decode(in_bulk).snapshots) == list(repo.snapshots)
    one_by_one()
    assert repo_info.decode(in_bulk) == repo
    singly = repo_info.encode(repo)
    assert repo_info.decode(singly) == repo


def test_files_of_single_tables_are_read_in_bulk(monkeypatch):
    repo = state(99)
    with monkeypatch.context() as patched:
        patched.setattr(repo_updates, "MIN_ROWS", 10**9)
        singly = repo_info.encode(repo)
    assert repo_info.decode(singly) == repo


def test_numbers_that_do_not_fit_are_refused_as_ever():
    repo = state(1)
    first = next(iter(repo.snapshots))
    wrong = replace(repo.snapshots[first], flushed_at=2**64, metadata_items=MetadataItems())
    with pytest.raises(InvalidInputError, match="SnapshotInfo"):
        repo_info.encode(replace(repo, snapshots={**repo.snapshots, first: wrong}))


def test_damage_is_named_as_in_single_tables(one_by_one):
    """Whatever byte is changed: the same error, or a state, and never anything else."""
    good = repo_info.encode(state(3, snapshots=20, updates=20))
    payload = unwrap(good, file_type=FileType.REPO_INFO, object_key="repo").payload
    draw = random.Random(4)
    damaged = []
    for _ in range(250):
        raw = bytearray(payload)
        for _ in range(draw.choice([1, 1, 3])):
            raw[draw.randrange(len(raw))] = draw.choice([0, 1, 127, 255, draw.randrange(256)])
        damaged.append(wrap(bytes(raw), file_type=FileType.REPO_INFO, spec_version=2))
    in_bulk = [outcome(data) for data in damaged]
    one_by_one()
    singly = [outcome(data) for data in damaged]
    assert in_bulk == singly
    assert sum(isinstance(found, str) for found in singly) > 25


@pytest.mark.parametrize("seed", range(3))
def test_a_state_that_was_written_is_remembered_as_it_would_be_read(seed):
    repo = state(seed)
    data = repo_info.encode(repo)
    shuffled = dict(sorted(repo.snapshots.items(), key=lambda item: item[1].message))
    repo_file.remember_state(data, replace(repo, snapshots=shuffled))
    found = repo_file.decode_state(data)
    assert found == repo_info.decode(data)
    assert list(found.snapshots) == list(repo_info.decode(data).snapshots)


def test_ranges_may_take_four_times_the_size_of_the_file():
    reader = VectorReader(bytes(120), object_key="repo", file_type="repo info")
    starts = np.zeros(2, dtype=np.int64)
    for size in (1, 12):
        largest = Ranges(starts=starts, lengths=np.array([240 // size, 240 // size]))
        repo_lists.check_sharing(reader, largest, size)
        larger = Ranges(starts=starts, lengths=largest.lengths + np.array([0, 1]))
        with raises(FormatError, object_key="repo", field="repo"):
            repo_lists.check_sharing(reader, larger, size)


def test_times_of_commits_have_64_bits():
    repo = state(2)
    commits = [
        Update(
            details=NewCommitUpdate(branch="main", new_snap_id=own),
            updated_at=time,
            backup_path=backup_name(number, own.raw) if number else None,
        )
        for number, (own, time) in enumerate(
            zip(repo.snapshots, [2**64 - 1, 2**53 + 1, *range(40)], strict=False)
        )
    ]
    kept = replace(repo, latest_updates=tuple(commits))
    assert repo_info.decode(repo_info.encode(kept)) == kept
    for time in (2**64, -1):
        wrong = [*commits[:-1], replace(commits[-1], updated_at=time)]
        with pytest.raises(InvalidInputError):
            repo_info.encode(replace(repo, latest_updates=tuple(wrong)))
