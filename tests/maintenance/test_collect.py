"""Collection deletes garbage and nothing else, whatever happens while it runs.

A small repository with every kind of garbage is collected whole, with requests failing one by one,
with others changing it meanwhile, and with stores that throttle or refuse. What refs show never
changes, and a collection that is run again finishes what another one began.
"""

import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from faulty_storage import Fault, FaultyStorage
from hypothesis import given
from hypothesis import strategies as st
from upkeep_repositories import FOREIGN, PartCollector, build_untidy, commit, keys_of

from icechunk_format.errors import (
    ConflictError,
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
)
from icechunk_format.maintenance import CollectResult, collect_garbage
from icechunk_format.maintenance.collect import OneProcessCollector, collect_from
from icechunk_format.maintenance.collect_marks import _batches
from icechunk_format.maintenance.collect_parts import (
    distinct_manifest_rows,
    packed,
    part_count,
    part_prefix,
    parts_of,
    unpacked,
)
from icechunk_format.maintenance.collect_result import DeleteReport
from icechunk_format.maintenance.collect_roots import is_older
from icechunk_format.maintenance.collect_sweep import MAX_FAILURES_IN_A_ROW, delete_keys
from icechunk_format.maintenance.id_set import IdSet
from icechunk_format.repository import repo_changes
from icechunk_format.repository.publish import update_repo
from icechunk_format.spec.flexbuffers import encode_flexbuffer
from icechunk_format.spec.ids import ChunkId, ManifestId, SnapshotId, decode_many
from icechunk_format.spec.repo_updates import Availability
from icechunk_format.storage.protocol import DeleteFailure


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


def collect(built, older_than, storage=None, **options):
    storage = built.storage if storage is None else storage
    dry_run = options.get("dry_run", False)
    return collect_from(
        storage,
        OneProcessCollector(storage, older_than, dry_run=dry_run),
        spec_version=built.repository.spec_version,
        older_than=older_than,
        **options,
    )


# -- ids as columns ----------------------------------------------------------------------------

# Few distinct bytes, so that first halves are often equal.
CLOSE_IDS = st.lists(
    st.tuples(
        st.sampled_from([b"aaaaaaaa", b"aaaaaaab", b"\xff" * 8]), st.binary(min_size=4, max_size=4)
    ).map(b"".join),
    max_size=30,
)
ANY_IDS = st.lists(st.binary(min_size=12, max_size=12), max_size=30)


def columns(ids):
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 12)


@given(st.lists(CLOSE_IDS | ANY_IDS, max_size=4), CLOSE_IDS | ANY_IDS)
def test_a_set_of_ids_is_a_set(groups, asked):
    found = IdSet()
    for group in groups:
        found.add(columns(group))
    expected = {one for group in groups for one in group}
    asked = asked + sorted(expected)[:5]
    assert found.contains(columns(asked)).tolist() == [one in expected for one in asked]
    assert len(found) == len(expected)
    assert [row.tobytes() for row in found.ids()] == sorted(expected)


def test_a_large_set_merges_as_it_grows():
    random = np.random.default_rng(1)
    everything = random.integers(0, 256, (900_000, 12), dtype=np.uint8)
    found = IdSet()
    for first in range(0, len(everything), 70_000):
        found.add(everything[first : first + 80_000])
    assert len(found) == len(everything)
    assert found.contains(everything[::7]).all()
    assert not found.contains(random.integers(0, 256, (10_000, 12), dtype=np.uint8)).any()


@given(
    st.lists(
        st.binary(min_size=12, max_size=12).map(lambda raw: str(ChunkId(raw)))
        | st.text(alphabet="0123456789ABCDEFGHJKMNPQRSTVWXYZilou~é", min_size=19, max_size=21)
        | st.text(max_size=25),
        max_size=20,
    )
)
def test_names_are_read_together_as_one_by_one(names):
    raw, is_id = decode_many(names)
    one_by_one = [ChunkId.parse_exact(name) for name in names]
    assert is_id.tolist() == [found is not None for found in one_by_one]
    assert [row.tobytes() for row in raw[is_id]] == [f.raw for f in one_by_one if f is not None]


@given(ANY_IDS, st.sampled_from([1, 2]))
def test_parts_are_what_listings_can_ask_for(ids, depth):
    found = IdSet(columns(ids)).ids()
    parts = dict(packed(found, depth))
    assert sorted(parts) == sorted(set(parts_of(found, depth).tolist()))
    assert all(0 <= part < part_count(depth) for part in parts)
    back = []
    for part, together in parts.items():
        for row in unpacked(together):
            assert str(ChunkId(row.tobytes())).startswith(part_prefix(part, depth))
            back.append(row.tobytes())
    assert sorted(back) == sorted(set(ids))


def test_manifests_of_a_part_come_once_and_in_rows_of_bounded_work():
    listed = np.zeros(1000, dtype=[("id", "u1", (12,)), ("size", "<u8"), ("refs", "<u4")])
    listed["id"] = np.random.default_rng(0).integers(0, 256, (1000, 12), dtype=np.uint8)
    listed["size"] = 200_000
    listed["refs"] = 3
    rows = list(distinct_manifest_rows(4, [listed[:700].tobytes(), listed[300:].tobytes()]))
    assert b"".join(row.ids for row in rows) == IdSet(listed["id"]).ids().tobytes()
    assert sum(row.references for row in rows) == 3000
    assert max(row.size for row in rows) <= 17_000_000
    again = list(distinct_manifest_rows(4, [listed[300:].tobytes(), listed[:700].tobytes()]))
    assert again == rows
    assert list(distinct_manifest_rows(4, [])) == []


@given(st.lists(st.integers(0, 2**27), max_size=300))
def test_manifests_are_fetched_in_bounded_batches(sizes):
    runs = list(_batches(np.array(sizes, dtype=np.uint64)))
    assert [row for start, stop in runs for row in range(start, stop)] == list(range(len(sizes)))
    for start, stop in runs:
        assert stop - start <= 64
        assert stop - start == 1 or sum(sizes[start:stop]) <= 64 * 2**20


# -- what goes and what stays -------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", [1, 2])
def test_garbage_goes_and_refs_show_what_they_showed(spec_version):
    built = build_untidy(spec_version)
    before, keys = built.contents(), keys_of(built.storage)
    planned = collect(built, soon(), dry_run=True)
    assert keys_of(built.storage) == keys
    result = collect(built, soon())
    assert built.contents() == before
    gone = keys - keys_of(built.storage)
    for kind in ("snapshots", "transactions", "manifests", "chunks"):
        assert f"{kind}/ZZZZZZZZZZZZZZZZZZZG" in gone
    assert set(FOREIGN) <= keys_of(built.storage)
    for label in ("side 4", "side 5", "gone"):
        assert f"snapshots/{built.ids[label]}" in gone
    counted = (
        result.snapshots_deleted
        + result.transaction_logs_deleted
        + result.manifests_deleted
        + result.chunks_deleted
    )
    assert counted == len(gone)
    assert (planned.bytes_deleted, planned.chunks_deleted) == (
        result.bytes_deleted,
        result.chunks_deleted,
    )
    assert planned.dry_run
    assert not result.dry_run
    again = collect(built, soon())
    assert again == CollectResult()


def test_what_is_newer_than_the_cutoff_stays():
    built = build_untidy()
    keys = keys_of(built.storage)
    result = collect(built, built.instants["root"])
    assert result == CollectResult()
    assert keys <= keys_of(built.storage)
    # Detached snapshots that are new are kept with all that they need.
    collect(built, built.instants["gone"])
    snapshots = {str(info.id) for info in built.repository.snapshots()}
    assert {built.ids["amended"], built.ids["flushed"]} <= snapshots
    assert built.ids["side 5"] not in snapshots
    flushed = built.repository.snapshot(built.ids["flushed"])
    for row in flushed.manifest_files.ids:
        built.repository.manifest(ManifestId(row.tobytes()))


def test_a_writer_at_work_is_protected_by_the_cutoff():
    built = build_untidy()
    cutoff = datetime.now(UTC)
    time.sleep(0.002)
    session = built.repository.writable_session()
    session.set_chunks("/values", np.array([[20, 0]]), [b"in flight" * 100])
    collect(built, cutoff)
    session.commit("after the collection")
    shown = built.contents()["branch main"]
    assert shown["values/c/20/0"] == b"in flight" * 100


def test_extra_roots_are_kept_like_tags():
    built = build_untidy()
    collect(built, soon(), extra_roots=[built.ids["side 5"]])
    assert built.ids["side 5"] in {str(info.id) for info in built.repository.snapshots()}
    assert built.ids["gone"] not in {str(info.id) for info in built.repository.snapshots()}
    with pytest.raises(NotFoundError, match="is not among"):
        collect(built, soon(), extra_roots=[str(SnapshotId(b"x" * 12))])


@pytest.mark.parametrize("label", ["side 4", "main 2"])
def test_a_snapshot_that_is_new_on_an_old_one_that_goes_keeps_its_history(label):
    built = build_untidy()
    logs = history_of(built, built.ids["side 5"])
    # Only the tip of what was left behind is new.
    collect(built, built.instants["side 4"])
    infos = {str(info.id): info for info in built.repository.snapshots()}
    assert built.ids["side 4"] not in infos
    tip = infos[built.ids["side 5"]]
    assert str(tip.parent_id) == built.ids["side 3"]
    assert [str(one) for one in tip.pruned_ancestor_tx_logs] == [built.ids["side 4"]]
    assert history_of(built, built.ids["side 5"]) == logs
    changes = built.repository.diff(built.ids["main 1"], built.ids["side 5"])
    assert changes.missing_logs == () or not changes.missing_logs


def history_of(built, snapshot_id):
    """Return the transaction logs of a history, oldest first."""
    found = []
    for info in built.repository.ancestry(snapshot=snapshot_id):
        found = [*map(str, info.pruned_ancestor_tx_logs), str(info.id), *found]
    return found


def test_times_of_whole_seconds_count_as_the_end_of_their_second():
    cutoff = datetime(2024, 7, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    assert is_older(datetime(2024, 7, 1, 12, 0, 0, 499_999, tzinfo=UTC), cutoff)
    assert not is_older(datetime(2024, 7, 1, 12, 0, 0, tzinfo=UTC), cutoff)
    assert is_older(datetime(2024, 7, 1, 11, 59, 59, tzinfo=UTC), cutoff)
    assert not is_older(cutoff, cutoff)


@pytest.mark.parametrize(("spec_version", "depth"), [(1, 1), (2, 1), (2, 2)])
def test_parts_collect_what_one_process_collects(spec_version, depth):
    built = build_untidy(spec_version)
    alone, location = built.clone(), built.repository.location
    cutoff = built.instants["gone"]
    collector = PartCollector(location, cutoff, depth=depth)
    result = collect_from(built.storage, collector, spec_version=spec_version, older_than=cutoff)
    assert result == collect(alone, cutoff)
    assert result.chunks_deleted > 0
    copies = ["overwritten/"]
    assert keys_of(built.storage, without=copies) == keys_of(alone.storage, without=copies)


# -- refusals -----------------------------------------------------------------------------------


def test_times_need_a_zone_and_ids_must_be_ids():
    built = build_untidy()
    place = built.repository.location
    with pytest.raises(InvalidInputError, match=r"older_than .* no time zone"):
        collect_garbage(place, datetime(2024, 7, 1))
    with pytest.raises(InvalidInputError, match=r"trim_overwritten_older_than .* no time zone"):
        collect_garbage(place, soon(), trim_overwritten_older_than=datetime(2024, 7, 1))
    with pytest.raises(InvalidInputError, match="is not a SnapshotId"):
        collect_garbage(place, soon(), extra_roots=["main"])


def test_a_repository_that_is_read_only_is_not_collected():
    built = build_untidy()
    built.repository.set_status(Availability.READ_ONLY, "audit")
    keys = keys_of(built.storage)
    with pytest.raises(ReadOnlyError, match="audit"):
        collect_garbage(built.repository.location, soon())
    assert keys_of(built.storage) == keys
    assert collect_garbage(built.repository.location, soon(), dry_run=True).chunks_deleted > 0


@pytest.mark.parametrize("kind", ["snapshots", "manifests"])
def test_missing_and_damaged_files_stop_the_collection_before_it_deletes(kind):
    for damage, error in ((None, NotFoundError), (b"damaged", FormatError)):
        built = build_untidy()
        snapshot = built.repository.snapshot(built.ids["main 1"])
        key = (
            f"snapshots/{snapshot.id}"
            if kind == "snapshots"
            else f"manifests/{ChunkId(snapshot.manifest_files.ids[0].tobytes())}"
        )
        if damage is None:
            built.storage.delete_many([key])
        else:
            built.storage.put(key, damage)
        keys = keys_of(built.storage)
        repo = built.storage.get("repo").data
        with pytest.raises(error, match=key):
            collect(built, soon())
        assert keys_of(built.storage) == keys
        assert built.storage.get("repo").data == repo


# -- crashes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.RESPONSE_LOST])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_collection_that_dies_anywhere_leaves_a_whole_repository(
    spec_version, fault, monkeypatch
):
    monkeypatch.setattr("icechunk_format.repository.publish.time.sleep", lambda _: None)
    reference = build_untidy(spec_version)
    counter = FaultyStorage(reference.storage)
    collect(reference, soon(), counter)
    left = shape_of(keys_of(reference.storage, without=["overwritten/"]))
    # A lost answer to a question is a question that was not answered.
    verbs = (
        ("put", "copy") if fault is Fault.RESPONSE_LOST else ("get", "head", "list", "put", "copy")
    )
    requests = [number for number, (verb, _) in enumerate(counter.requests) if verb in verbs]
    deletes = [number for number, (verb, _) in enumerate(counter.requests) if verb == "delete"]
    pristine = build_untidy(spec_version)
    shown = pristine.contents()
    # In version 1, history is walked snapshot by snapshot: one question of three is enough.
    for number in (*requests[:: 3 if spec_version == 1 else 1], *deletes[::8]):
        built = pristine.clone()
        faulty = FaultyStorage(built.storage, fault, {number})
        try:
            result = collect(built, soon(), faulty)
        except IcechunkError:
            pass
        else:
            # A single deletion that fails is reported, and later kinds wait for the next run.
            assert number not in deletes or result.objects_failed_to_delete
        assert built.contents() == shown, counter.requests[number]
        collect(built, soon())
        assert shape_of(keys_of(built.storage, without=["overwritten/"])) == left
    assert built.contents() == shown


def shape_of(keys):
    """Count objects by kind: ids differ from one repository to the next."""
    kinds = [key.partition("/")[0] for key in keys]
    return {kind: kinds.count(kind) for kind in kinds}


# -- others at the same time --------------------------------------------------------------------


class Interrupted:
    """A storage at which something happens once, just before `repo` is replaced."""

    def __init__(self, inner, action, *, every=False):
        self.inner, self.action, self.every = inner, action, every
        self.times = 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def put(self, key, data, **kwargs):
        if key == "repo" and (self.every or not self.times):
            self.times += 1
            self.action()
        return self.inner.put(key, data, **kwargs)


def test_a_commit_during_a_collection_is_kept():
    built = build_untidy()
    storage = Interrupted(built.storage, lambda: built.note("late", commit(built.repository, 9)))
    collect(built, soon(), storage)
    assert str(built.repository.resolve(branch="main")) == built.ids["late"]
    # Its snapshot and log are older than this reckless cutoff, and stay all the same.
    assert built.storage.head(f"snapshots/{built.ids['late']}") is not None
    assert built.storage.head(f"transactions/{built.ids['late']}") is not None


def test_a_branch_put_on_garbage_during_a_collection_saves_it():
    built = build_untidy()
    reset = lambda: built.repository.reset_branch("side", built.ids["side 5"])  # noqa: E731
    collect(built, soon(), Interrupted(built.storage, reset))
    shown = built.contents()["branch side"]
    assert shown["values/c/5/0"] == bytes([5]) * 700


def test_a_commit_on_garbage_during_a_collection_saves_its_history():
    built = build_untidy()

    def revive():
        built.repository.create_branch("revived", built.ids["side 5"])
        commit(built.repository, 10, "revived")

    collect(built, soon(), Interrupted(built.storage, revive))
    ancestors = [str(info.id) for info in built.repository.ancestry(branch="revived")]
    assert built.ids["side 4"] in ancestors
    assert built.contents()["branch revived"]["values/c/10/0"] == bytes([10]) * 700


class Meanwhile(OneProcessCollector):
    """A collector during whose first marking something happens."""

    def __init__(self, storage, older_than, action):
        super().__init__(storage, older_than)
        self.action = action

    def mark(self, kept):
        super().mark(kept)
        action, self.action = self.action, lambda: None
        action()


def test_a_branch_put_on_garbage_saves_it_in_version_1_as_well():
    built = build_untidy(1)
    collector = Meanwhile(
        built.storage,
        soon(),
        lambda: built.repository.create_branch("revived", built.ids["side 5"]),
    )
    collect_from(built.storage, collector, spec_version=1, older_than=soon())
    shown = built.contents()["branch revived"]
    assert shown["values/c/5/0"] == bytes([5]) * 700


def test_an_upgrade_during_a_collection_stops_it():
    built = build_untidy(1)
    keys = keys_of(built.storage)
    collector = Meanwhile(built.storage, soon(), built.repository.upgrade)
    with pytest.raises(ConflictError, match="was upgraded to spec version 2"):
        collect_from(built.storage, collector, spec_version=1, older_than=soon())
    assert {key for key in keys if not key.startswith(("refs/", "config"))} <= keys_of(
        built.storage
    )


def test_a_repository_that_never_rests_is_given_up():
    built = build_untidy()
    snapshots = [built.ids["side 4"], built.ids["side 5"], built.ids["gone"]]

    def move():
        # Always on something that this attempt is going to drop.
        name = f"mover-{storage.times}"
        built.repository.create_branch(name, snapshots[storage.times % 3])
        if storage.times > 1:
            built.repository.delete_branch(f"mover-{storage.times - 1}")

    storage = Interrupted(built.storage, move, every=True)
    with pytest.raises(ConflictError, match="was changed 20 times"):
        collect(built, soon(), storage)
    built.contents()


# -- stores that refuse and throttle ------------------------------------------------------------


class Refusing:
    """A storage that answers deletions as it is told, one answer after the other."""

    def __init__(self, answers):
        self.answers = iter(answers)
        self.asked = []

    def delete_many(self, keys):
        self.asked.append(list(keys))
        answer = next(self.answers, [])
        if isinstance(answer, Exception):
            raise answer
        return answer


def keys_between(start, stop):
    return [f"k{number}" for number in range(start, stop)]


def throttled():
    return StorageError("slow down", reason="HTTP 503 SlowDown", status=503)


def test_deletions_speed_up_and_slow_down_as_the_store_says():
    pauses = []
    storage = Refusing([[], [], throttled(), throttled()])
    report = delete_keys(
        storage, 20_000, keys_between, np.full(20_000, 2, dtype=np.uint64), pause=pauses.append
    )
    assert report == DeleteReport(
        deleted_objects=20_000, deleted_bytes=40_000, throttled_requests=2
    )
    assert [len(keys) for keys in storage.asked] == [
        1000, 2000, 4000, 2000, 1000, 2000, 4000, 8000, 2000
    ]  # fmt: skip
    assert pauses == [0.5, 1.0]
    done = [key for keys in storage.asked[:2] + storage.asked[4:] for key in keys]
    assert done == keys_between(0, 20_000)


def test_a_store_that_throttles_for_ever_is_given_up():
    pauses = []
    storage = Refusing([throttled() for _ in range(1000)])
    report = delete_keys(
        storage, 50, keys_between, np.ones(50, dtype=np.uint64), pause=pauses.append
    )
    assert report.gave_up or report.failed_objects == 50
    assert max(pauses) == 60.0
    assert len(storage.asked) < 2 * MAX_FAILURES_IN_A_ROW


def test_too_many_failures_in_a_row_end_the_deletions():
    denied = StorageError("denied", reason="HTTP 403 AccessDenied", status=403)
    storage = Refusing([[], denied, [], *[denied] * 100])
    count = 1_000_000
    report = delete_keys(storage, count, keys_between, np.ones(count, dtype=np.uint64))
    assert report.gave_up
    assert len(storage.asked) == 3 + MAX_FAILURES_IN_A_ROW
    assert report.deleted_objects + report.failed_objects == count
    assert report.errors == ("HTTP 403 AccessDenied",)


def test_single_failures_are_counted_and_told():
    failures = [DeleteFailure(key="k3", reason="locked"), DeleteFailure(key="k7", reason="locked")]
    report = delete_keys(Refusing([failures]), 10, keys_between, np.arange(10, dtype=np.uint64))
    assert (report.deleted_objects, report.failed_objects) == (8, 2)
    assert report.deleted_bytes == 45 - 3 - 7
    assert report.errors == ("locked",)
    assert not report.gave_up


class Undeletable:
    """A storage in which objects below a prefix cannot be deleted."""

    def __init__(self, inner, prefix):
        self.inner, self.prefix = inner, prefix

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def delete_many(self, keys):
        keys = list(keys)
        locked = [key for key in keys if key.startswith(self.prefix)]
        self.inner.delete_many([key for key in keys if key not in locked])
        return [DeleteFailure(key=key, reason="locked") for key in locked]


def test_what_others_refer_to_waits_while_those_cannot_be_deleted():
    built = build_untidy()
    manifests = {key for key in keys_of(built.storage) if key.startswith("manifests/")}
    result = collect(built, soon(), Undeletable(built.storage, "transactions/"))
    assert result.snapshots_deleted > 0
    assert result.transaction_logs_deleted == 0
    assert result.objects_failed_to_delete > 0
    assert result.delete_errors == ("locked",)
    assert result.skipped_phases == ("manifests", "chunks")
    assert manifests <= keys_of(built.storage)
    finished = collect(built, soon())
    assert finished.transaction_logs_deleted == result.objects_failed_to_delete
    assert finished.chunks_deleted > 0


# -- copies of repo -----------------------------------------------------------------------------


def test_old_copies_go_and_the_operations_log_stays_whole():
    built = build_untidy()
    config = encode_flexbuffer({"num_updates_per_repo_info_file": 3})
    update_repo(built.storage, lambda info: repo_changes.set_config(info, config))
    for number in range(12):
        built.repository.create_tag(f"t{number}", built.ids["main 0"])
    built.storage.put("overwritten/notes.txt", b"foreign")
    built.storage.put("overwritten/repo.29999999999999.ZZZZZZZZZZZZZZZZZZZG", b"of a lost race")
    built.storage.put("overwritten/config.yaml.29999999999999.ZZZZZZZZZZZZZZZZZZZG", b"version 1")
    log = [(update.kind, update.updated_at) for update in built.repository.operations()]
    copies = {key for key in keys_of(built.storage) if key.startswith("overwritten/")}
    kept = collect(built, soon())
    assert kept.overwritten_deleted == 0
    assert copies <= keys_of(built.storage)
    nothing = collect(built, soon(), trim_overwritten_older_than=built.instants["root"])
    assert nothing.overwritten_deleted == 0
    planned = collect(built, soon(), trim_overwritten_older_than=soon(), dry_run=True)
    result = collect(built, soon(), trim_overwritten_older_than=soon())
    assert planned.overwritten_deleted == result.overwritten_deleted == 2
    left = keys_of(built.storage)
    assert "overwritten/notes.txt" in left
    assert not any(key.endswith("ZZZZZZZZZZZZZZZZZZZG") for key in left)
    after = [(update.kind, update.updated_at) for update in built.repository.operations()]
    assert after[-len(log) :] == log
    # As the log grows it is read through other copies; those were left for that.
    for number in range(12, 20):
        built.repository.create_tag(f"t{number}", built.ids["main 0"])
        longer = [(update.kind, update.updated_at) for update in built.repository.operations()]
        assert longer[-len(after) :] == after


def test_copies_behind_a_gap_in_the_log_go():
    built = build_untidy()
    config = encode_flexbuffer({"num_updates_per_repo_info_file": 2})
    update_repo(built.storage, lambda info: repo_changes.set_config(info, config))
    for number in range(8):
        built.repository.create_tag(f"t{number}", built.ids["main 0"])
    log = [update.backup_path for update in built.repository.operations()]
    gap = {f"overwritten/{name}" for name in log[4:8]}
    assert built.storage.delete_many(gap) == []
    result = collect(built, soon(), trim_overwritten_older_than=soon())
    assert result.overwritten_deleted >= len(log) - 12
    named = {update.backup_path for update in built.repository.operations()} - {None}
    left = {key.removeprefix("overwritten/") for key in keys_of(built.storage)}
    assert named - {name.removeprefix("overwritten/") for name in gap} <= left


def test_a_damaged_copy_leaves_all_copies_where_they_are():
    built = build_untidy()
    config = encode_flexbuffer({"num_updates_per_repo_info_file": 2})
    update_repo(built.storage, lambda info: repo_changes.set_config(info, config))
    for number in range(4):
        built.repository.create_tag(f"t{number}", built.ids["main 0"])
    collect(built, soon())
    for found in list(built.storage.list("overwritten/")):
        built.storage.put(found.key, b"damaged")
    copies = {key for key in keys_of(built.storage) if key.startswith("overwritten/")}
    with pytest.raises(FormatError):
        collect(built, soon(), trim_overwritten_older_than=soon())
    assert copies <= keys_of(built.storage)
