"""Deletions keep the pace of the store, and failed ones are counted and reported."""

import numpy as np
import pytest
from helpers.files.maintenance_repositories import build_untidy, collect, keys_of, soon

from icechunk_format.errors import StorageError
from icechunk_format.maintenance.garbage.parts import SweepTask, part_count, sweep_part
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.maintenance.garbage.sweep import MAX_FAILURES_IN_A_ROW, delete_keys
from icechunk_format.storage.protocol import DeleteFailure


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


def named(rows):
    return [f"k{number}" for number in range(rows.start, rows.stop)]


def throttled():
    return StorageError("slow down", reason="HTTP 503 SlowDown", status=503)


def test_deletions_speed_up_and_slow_down_as_the_store_says():
    pauses = []
    storage = Refusing([[], [], throttled(), throttled()])
    report = delete_keys(storage, named, np.full(20_000, 2, dtype=np.uint64), pause=pauses.append)
    assert report == DeleteReport(
        deleted_objects=20_000, deleted_bytes=40_000, throttled_requests=2
    )
    assert [len(keys) for keys in storage.asked] == [
        1000, 2000, 4000, 2000, 1000, 2000, 4000, 8000, 2000
    ]  # fmt: skip
    assert pauses == [0.5, 1.0]
    done = [key for keys in storage.asked[:2] + storage.asked[4:] for key in keys]
    assert done == named(slice(0, 20_000))


def test_a_store_that_throttles_for_ever_is_given_up():
    pauses = []
    storage = Refusing([throttled() for _ in range(1000)])
    report = delete_keys(storage, named, np.ones(50, dtype=np.uint64), pause=pauses.append)
    assert report.gave_up or report.failed_objects == 50
    assert max(pauses) == 60.0
    assert len(storage.asked) < 2 * MAX_FAILURES_IN_A_ROW


def test_too_many_failures_in_a_row_end_the_deletions():
    denied = StorageError("denied", reason="HTTP 403 AccessDenied", status=403)
    storage = Refusing([[], denied, [], *[denied] * 100])
    count = 1_000_000
    report = delete_keys(storage, named, np.ones(count, dtype=np.uint64))
    assert report.gave_up
    assert len(storage.asked) == 3 + MAX_FAILURES_IN_A_ROW
    assert report.deleted_objects + report.failed_objects == count
    assert report.errors == ("HTTP 403 AccessDenied",)


def test_single_failures_are_counted_and_told():
    failures = [DeleteFailure(key="k3", reason="locked"), DeleteFailure(key="k7", reason="locked")]
    report = delete_keys(Refusing([failures]), named, np.arange(10, dtype=np.uint64))
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


def test_lost_ids_end_a_sweep_before_it_deletes():
    built = build_untidy()
    keys = keys_of(built.storage)
    task = SweepTask(
        location=built.repository.location,
        phase=Phase.CHUNKS,
        older_than=soon(),
        depth=1,
        dry_run=False,
    )
    for part in range(part_count(1)):
        with pytest.raises(StorageError) as error:
            sweep_part(task, part, [b"\x19" * 24], expected=3)
        facts = error.value.facts
        assert (facts["part"], facts["received"], facts["expected"]) == (part, 2, 3)
    assert keys_of(built.storage) == keys
