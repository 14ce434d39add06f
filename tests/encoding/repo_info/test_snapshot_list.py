"""The list of snapshots is a mapping like any other, whatever it was made from."""

from __future__ import annotations

import pickle
import random
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.repo_info import lists
from icechunk_format.encoding.repo_info.file import REPO, RepoInfo, SnapshotInfo
from icechunk_format.encoding.repo_info.snapshot_list import SnapshotList, list_of, with_snapshot
from icechunk_format.encoding.repo_info.updates import RepoStatus
from icechunk_format.encoding.tables.reader import read_root
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import FormatError, InvalidInputError


def drawn(draw, known, **more) -> SnapshotInfo:
    """Make a snapshot on top of one of those that are known."""
    items = {name: draw.random() for name in draw.sample(["a", "b", "jöb", ""], draw.randint(0, 4))}
    return SnapshotInfo(
        id=SnapshotId(draw.randbytes(12)),
        parent_id=draw.choice([*known, None]) if known else None,
        flushed_at=draw.getrandbits(60),
        message=draw.choice(["", "plain", "déjà vu", "x" * 300]),
        metadata_items=more.pop("metadata_items", MetadataItems.of(items)),
        **more,
    )


def history(seed: int, count: int = 40) -> RepoInfo:
    draw = random.Random(seed)
    infos: dict[SnapshotId, SnapshotInfo] = {}
    for _ in range(count):
        pruned = tuple(infos)[:2] if draw.random() < 0.1 else ()
        info = drawn(draw, list(infos), pruned_ancestor_tx_logs=pruned)
        infos[info.id] = info
    by_id = dict(sorted(infos.items(), key=lambda item: item[0].raw))
    return RepoInfo(status=RepoStatus(set_at=1), snapshots=by_id, branches={"main": min(by_id)})


def read_again(repo: RepoInfo) -> RepoInfo:
    found = repo_info.decode(repo_info.encode(repo))
    assert isinstance(found.snapshots, SnapshotList)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_is_found_singly_and_among_all(seed):
    repo = history(seed, 100)
    held = read_again(repo).snapshots
    missing = SnapshotId(bytes(12))
    for _ in range(2):  # first one by one, then from the objects of all
        for snapshot_id, info in repo.snapshots.items():
            assert held[snapshot_id] == info
            assert snapshot_id in held
        assert missing not in held
        assert held.get(missing) is None
    assert list(held) == list(repo.snapshots)
    assert len(held) == 100
    assert "text" not in held


@pytest.mark.parametrize("seed", range(5))
def test_snapshots_are_added_one_after_the_other(seed):
    draw = random.Random(1000 + seed)
    repo = history(seed)
    held, wanted = read_again(repo).snapshots, dict(repo.snapshots)
    kinds = [
        {},
        {"metadata_items": MetadataItems.of({"new": 1, "ä": [2]})},
        {"metadata_items": MetadataItems.of({"a": 1}, spec_version=1)},
        {"pruned_ancestor_tx_logs": tuple(wanted)[:3]},
    ]
    for number in range(40):
        info = drawn(draw, list(wanted), **dict(kinds[number % 4]))
        held = with_snapshot(held, info)
        # A list holds metadata in its own encoding.
        items = info.metadata_items.in_version(2)
        wanted[info.id] = replace(info, metadata_items=items)
        assert isinstance(held, SnapshotList)
    ordered = dict(sorted(wanted.items(), key=lambda item: item[0].raw))
    assert list(held) == list(ordered)
    assert held == ordered
    grown, made = replace(repo, snapshots=held), replace(repo, snapshots=ordered)
    assert read_again(grown) == repo_info.decode(repo_info.encode(made))
    assert read_again(replace(grown, spec_version=1)) == read_again(replace(made, spec_version=1))


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_parents_are_those_of_a_mapping(seed):
    repo = history(seed, 100)
    first, second = random.Random(seed).sample(list(repo.snapshots), 2)
    looped = dict(repo.snapshots)
    for own, above in ((first, second), (second, first)):
        looped[own] = replace(looped[own], parent_id=above)

    def outcome(info, snapshot_id):
        seen = []
        try:
            seen.extend(info.walk(snapshot_id))
        except FormatError as error:
            return len(seen), error.facts
        return seen

    for snapshots in (repo.snapshots, looped):
        plain = replace(repo, snapshots=snapshots)
        listed = read_again(plain)
        for snapshot_id in snapshots:
            wanted = outcome(plain, snapshot_id)
            assert outcome(listed, snapshot_id) == wanted
    assert isinstance(wanted, list) or wanted[1]["field"] == "snapshots.parent_offset"
    assert isinstance(outcome(listed, first), tuple)


@pytest.mark.parametrize("wrong", ["parent", "time"])
def test_what_cannot_be_written_is_refused_as_ever(wrong):
    repo = history(1)
    info = drawn(random.Random(9), [])
    if wrong == "parent":
        info = replace(info, parent_id=SnapshotId(b"p" * 12))
    else:
        info = replace(info, flushed_at=2**64)
    held = read_again(repo).snapshots
    with pytest.raises(InvalidInputError, match="does not list" if wrong == "parent" else "fit"):
        with_snapshot(held, info)


def test_items_out_of_order_and_lists_out_of_order(monkeypatch):
    """Other writers may sort neither; of two items with one name the first counts."""
    repo = history(3)
    first = next(iter(repo.snapshots))
    items = MetadataItems(items=(("b", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")))
    odd = replace(repo.snapshots[first], metadata_items=items, pruned_ancestor_tx_logs=())
    data = repo_info.encode(replace(repo, snapshots={**repo.snapshots, first: odd}))
    data = arranged(data, random.Random(5).sample(range(40), 40))
    with monkeypatch.context() as singly:
        singly.setattr(lists, "MIN_ROWS", 10**9)
        wanted = repo_info.decode(data)
    found = repo_info.decode(data)
    assert isinstance(found.snapshots, SnapshotList)
    assert not isinstance(wanted.snapshots, SnapshotList)
    assert found == wanted
    assert list(found.snapshots) == sorted(wanted.snapshots)
    assert found.snapshots[first].metadata_items.items in [
        (("a", b"2"), ("b", b"1")),
        wanted.snapshots[first].metadata_items.items,
    ]


def test_an_id_that_is_listed_twice(monkeypatch):
    data = arranged(repo_info.encode(history(2)), [0, 0, *range(2, 40)])
    with raises(
        FormatError, match="1 ids are listed twice", object_key="repo", field="snapshots"
    ) as in_bulk:
        repo_info.decode(data)
    monkeypatch.setattr(lists, "MIN_ROWS", 10**9)
    with pytest.raises(FormatError) as singly:
        repo_info.decode(data)
    assert str(in_bulk.value) == str(singly.value)


def arranged(data: bytes, order: list[int]) -> bytes:
    """Return a file with the list of snapshots in another order."""
    payload = bytearray(unwrap(data, file_type=FileType.REPO_INFO, object_key="repo").payload)
    root = read_root(bytes(payload), REPO, object_key="repo", file_type="repo info")
    start, count = root.vector("snapshots", 4)
    cells = np.frombuffer(payload, dtype="<u4", offset=start, count=count)
    places = start + 4 * np.arange(count)
    targets = cells + places
    cells[:] = targets[order] - places
    return wrap(bytes(payload), file_type=FileType.REPO_INFO, spec_version=2)


@pytest.mark.parametrize("act", [pickle.dumps, deepcopy, repr, hash, replace])
def test_metadata_that_is_not_cut_out_yet_is_a_value_like_any_other(act):
    """Items are cut out of the list's bytes when they are first read, by whichever operation."""
    repo = history(4, 100)
    for found in read_again(repo).walk(repo.branches["main"]):
        wanted, items = repo.snapshots[found.id], found.metadata_items
        done = act(items)
        if act is pickle.dumps:
            done = pickle.loads(done)
        if act in (repr, hash):
            assert done == act(replace(wanted.metadata_items, origin=items.origin))
        else:
            assert done == wanted.metadata_items
        assert (items, type(items)) == (wanted.metadata_items, MetadataItems)
        assert found == wanted
        assert hash(found) == hash(wanted)
        assert pickle.loads(pickle.dumps(found)) == wanted
        assert not hasattr(items, "item")
    assert any(info.metadata_items.items for info in repo.snapshots.values())


@pytest.mark.parametrize("read", [lambda held, own: held[own], SnapshotList.get])
def test_a_snapshot_that_is_not_listed_has_no_summary(read):
    held, missing = read_again(history(5, 20)).snapshots, SnapshotId(bytes(12))
    if read is SnapshotList.get:
        assert read(held, missing) is None
    else:
        with pytest.raises(KeyError):
            read(held, missing)


def test_a_list_that_is_made_names_no_object():
    infos = list(history(6, 20).snapshots.values())
    held = list_of(infos, 2)
    damaged = MetadataItems(items=(("a", b"\xff"),))
    held = with_snapshot(held, drawn(random.Random(1), [], metadata_items=damaged))
    (found,) = [info for info in held.values() if info.metadata_items.items == damaged.items]
    with raises(FormatError, object_key="<bytes>", field="metadata['a']"):
        found.metadata_items.decode()


def test_of_neighbours_with_one_name_the_first_counts():
    repo = history(7, 20)
    first = next(iter(repo.snapshots))
    items = MetadataItems(items=(("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")))
    for names in ((items.items), items.items[:2], items.items[1:]):
        odd = replace(repo.snapshots[first], metadata_items=MetadataItems(items=tuple(names)))
        found = read_again(replace(repo, snapshots={**repo.snapshots, first: odd}))
        kept = dict(reversed(names))
        assert dict(found.snapshots[first].metadata_items.items) == kept
        assert len(found.snapshots[first].metadata_items.items) == len(kept)
