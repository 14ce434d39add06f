"""Applications of a branch are listed with the versions that a write would skip."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from helpers.grids.written_cells import DIMS, grid
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format import maintenance
from icechunk_format.groups.changing import has_expired
from icechunk_format.groups.changing.result import committed_before
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing import applications
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.tables.writing.transaction_versions import _ranges


def write(place, app_id, version, **options):
    given = WriteOptions(mode="append", txn_app_id=app_id, txn_version=version, **options)
    return write_table(place, grid([version], [1]), given)


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_the_versions(versions):
    ranges = list(_ranges(versions))
    assert {number for first, last in ranges for number in range(first, last + 1)} == versions
    assert all(end + 1 < start for (_, end), (start, _) in pairwise(ranges))


def test_a_backfill_lists_what_is_missing(place):
    write_table(place, grid([0], [1]), DIMS)
    for version in (1, 2, 5, 3):
        write(place, "nightly", version)
    write(place, "audit", 0)
    assert write(place, "nightly", 5).is_skipped

    repository = Repository.open(place)
    audit, nightly = applications(repository, "main")
    assert (nightly.app_id, nightly.versions, nightly.commits) == ("nightly", ((1, 3), (5, 5)), 4)
    assert (audit.app_id, audit.versions, audit.query) == ("audit", ((0, 0),), None)
    assert nightly.last_version == 3
    for version in range(7):
        options = WriteOptions(txn_app_id="nightly", txn_version=version)
        is_listed = any(first <= version <= last for first, last in nightly.versions)
        assert (committed_before(repository, options) is not None) == is_listed


def test_a_branch_has_its_own_versions(place):
    write_table(place, grid([0], [1]), DIMS)
    write(place, "nightly", 1)
    write(place, "nightly", 2, branch="redo", create_branch=True)
    repository = Repository.open(place)
    assert [one.versions for one in applications(repository, "main")] == [((1, 1),)]
    assert [one.versions for one in applications(repository, "redo")] == [((1, 2),)]


def test_metadata_of_other_writers_are_left_out(place):
    write_table(place, grid([0], [1]), DIMS)
    repository = Repository.open(place)
    for metadata in ({"txnAppId": 5, "txnVersion": 1}, {"txnAppId": "a", "txnVersion": "1"}):
        session = repository.writable_session()
        session.set_attributes("/t", {"note": str(metadata)})
        session.commit("Other", metadata=metadata)
    assert applications(repository, "main") == []


def test_expired_versions_are_reported_as_unknown(place):
    write_table(place, grid([0], [1]), DIMS)
    write(place, "nightly", 1)
    write(place, "nightly", 2)
    repository = Repository.open(place)
    assert not has_expired(repository, "main")
    maintenance.expire_snapshots(place, datetime.now(UTC))
    repository = Repository.open(place)
    assert [one.versions for one in applications(repository, "main")] == [((2, 2),)]
    assert has_expired(repository, "main")
