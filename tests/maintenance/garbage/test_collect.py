"""Collection deletes garbage and nothing else.

A small repository with every kind of garbage is collected: what refs show stays, and so does what
is newer than the cutoff, what others put beside it, and the copies that the log continues in.
"""

import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from helpers.files.maintenance_repositories import (
    FOREIGN,
    PartCollector,
    build_untidy,
    collect,
    keys_of,
    soon,
)
from helpers.raised import raises

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.ids import ChunkId, ManifestId, SnapshotId
from icechunk_format.encoding.repo_info.updates import Availability
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError, ReadOnlyError
from icechunk_format.maintenance import CollectResult, collect_garbage, expire_snapshots
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.maintenance.garbage.marks import (
    OneProcessCollector,
    distinct_manifests,
    referenced_chunks,
)
from icechunk_format.maintenance.garbage.object_listing import is_older
from icechunk_format.repository import Repository
from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.publish import update_repo

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
    assert {value for value in asdict(again).values() if isinstance(value, int)} == {0}


def test_what_killed_writers_staged_on_a_local_disk_goes(tmp_path):
    Repository.create(str(tmp_path))
    (tmp_path / "chunks").mkdir()
    staged = tmp_path / "chunks" / ".storage-staged-0123456789abcdef"
    staged.write_bytes(bytes(1000))
    assert collect_garbage(str(tmp_path), datetime(2020, 1, 1, tzinfo=UTC)).staged_deleted == 0
    planned = collect_garbage(str(tmp_path), soon(), dry_run=True)
    assert (planned.staged_deleted, planned.bytes_deleted) == (1, 1000)
    assert staged.exists()
    assert collect_garbage(str(tmp_path), soon()).staged_deleted == 1
    assert not staged.exists()


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
    with raises(NotFoundError, match="is not among", kind="snapshot"):
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
    with raises(InvalidInputError, match=r"older_than .* no time zone", argument="older_than"):
        collect_garbage(place, datetime(2024, 7, 1))
    with raises(InvalidInputError, argument="trim_overwritten_older_than"):
        collect_garbage(place, soon(), trim_overwritten_older_than=datetime(2024, 7, 1))
    with raises(
        InvalidInputError,
        match="is not a SnapshotId",
        found="main",
        allowed="20 characters of Crockford base 32",
    ):
        collect_garbage(place, soon(), extra_roots=["main"])


@pytest.mark.parametrize("age", ["1d", timedelta(days=1), "2024-07-01T00:00:00+00:00"])
def test_cutoffs_may_be_ages_and_text(age):
    built = build_untidy()
    place = built.repository.location
    assert collect_garbage(place, age) == CollectResult()
    now = timedelta(0) if isinstance(age, timedelta) else "0s"
    # No copy is garbage here.
    collect_garbage(place, age, dry_run=True, trim_overwritten_older_than=now)
    assert not built.repository.expire_snapshots(age).released_snapshots
    assert expire_snapshots(place, now, dry_run=True).released_snapshots
    for wrong in ("30", "yesterday", timedelta(days=-1), 30):
        with raises(InvalidInputError, argument="older_than", found=wrong):
            collect_garbage(place, wrong)
        with raises(InvalidInputError, argument="trim_overwritten_older_than"):
            collect_garbage(place, age, trim_overwritten_older_than=wrong)
        with raises(InvalidInputError, argument="older_than"):
            built.repository.expire_snapshots(wrong)


def test_a_repository_that_is_read_only_is_not_collected():
    built = build_untidy()
    built.repository.set_status(Availability.READ_ONLY, "audit")
    keys = keys_of(built.storage)
    with raises(ReadOnlyError, reason="audit"):
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


@pytest.mark.parametrize("make_collector", [OneProcessCollector, PartCollector])
def test_a_manifest_of_another_size_stops_the_collection_before_it_deletes(make_collector):
    built = build_untidy()
    files = built.repository.snapshot(built.ids["main 1"]).manifest_files
    key = f"manifests/{ManifestId(files.ids[0].tobytes())}"
    stored = built.storage.get(key).data
    payload = unwrap(stored, file_type=FileType.MANIFEST, object_key=key).payload
    other = wrap(payload + bytes(range(64)), file_type=FileType.MANIFEST, spec_version=2)
    assert len(other) != len(stored)
    built.storage.put(key, other)
    keys = keys_of(built.storage)
    is_whole = make_collector is OneProcessCollector
    collector = make_collector(built.storage if is_whole else built.repository.location, soon())
    with raises(FormatError, object_key=key, field="size_bytes"):
        collect_from(built.storage, collector, spec_version=2, older_than=soon())
    assert keys_of(built.storage) == keys


def test_a_manifest_must_hold_as_many_references_as_are_listed():
    built = build_untidy()
    listed = distinct_manifests(built.storage, [SnapshotId.parse(built.ids["main 1"])])
    assert list(referenced_chunks(built.storage, listed))
    listed["refs"][-1] += 1
    with raises(FormatError, field="num_chunk_refs"):
        list(referenced_chunks(built.storage, listed))


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


@pytest.mark.parametrize("spec_version", [1, 2])
def test_what_killed_calls_left_below_staging_goes(spec_version):
    built = build_untidy(spec_version)
    theirs = ("staging/readme.txt", "staging/mine/rows.arrow", f"staging/{'0' * 32}")
    left = tuple(f"staging/{'0123456789abcdef' * 2}/{name}.arrow" for name in "ab")
    for key in (*theirs, *left):
        built.storage.put(key, bytes(100))
    assert collect(built, built.instants["end"]).staged_deleted == 0
    planned = collect(built, soon(), dry_run=True)
    assert planned.staged_deleted == 2
    assert keys_of(built.storage) >= {*theirs, *left}
    assert collect(built, soon()).staged_deleted == 2
    found = {key for key in keys_of(built.storage) if key.startswith("staging/")}
    assert found == set(theirs)
