"""Results are one line in a terminal and a table in a notebook; what is long is counted."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from helpers.pages import Page

from icechunk_format.display import shown_by
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.groups.changing import WriteResult
from icechunk_format.maintenance import CollectResult, ExpireResult
from icechunk_format.repository.commit import CommitResult
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mirroring import MirrorResult
from icechunk_format.workflows.virtualizing import VirtualizeResult
from icechunk_format.workflows.virtualizing.report import REPORT_SCHEMA

ID = SnapshotId(bytes(12))


@shown_by("records.record")
@dataclass(frozen=True, slots=True)
class Held:
    """A result of any value."""

    value: Any


@dataclass(frozen=True)
class Login:
    """A value with a field that it does not show."""

    name: str = "me"
    password: str = field(default="the SECRET", repr=False)


def test_a_write():
    commit = CommitResult(
        snapshot_id=ID, parent_id=None, branch="main", bytes_written={"chunks": 12_345_678}
    )
    result = WriteResult(branch="main", snapshot_id=ID, rows=1_000_000, chunks=12, commit=commit)
    assert repr(result) == (
        "WriteResult(branch='main', snapshot_id='00000000000000000000', rows=1000000, chunks=12, "
        "commit=CommitResult(snapshot_id='00000000000000000000', parent_id=None, branch='main', "
        "bytes_written={'chunks': 12345678}))"
    )
    page = Page(result._repr_html_())
    for text in ("WriteResult", "1,000,000", str(ID), "CommitResult", "12.3 MB (12,345,678)"):
        assert text in page.texts


def test_counts_are_shown_when_they_are_zero():
    assert repr(ExpireResult()) == (
        "ExpireResult(released_snapshots=(), edited_snapshots=(), deleted_branches=(), "
        "deleted_tags=())"
    )
    assert Page(ExpireResult()._repr_html_()).texts.count("none") == 4
    shown = repr(CollectResult(dry_run=True))
    assert "chunks_deleted=0" in shown
    assert "dry_run=True" in shown
    assert "rows=0, chunks=0" in repr(WriteResult(branch="main", snapshot_id=None))
    assert "files_added=0" in repr(MirrorResult(snapshot_id=str(ID), version=0))


def test_what_is_long_is_counted():
    released = ExpireResult(released_snapshots=tuple(str(n) for n in range(1000)))
    assert repr(released) == "ExpireResult(released_snapshots=<tuple of 1,000>)"
    assert "and 995 more" in Page(released._repr_html_()).text
    report = pa.table({name: [None] * 9 for name in REPORT_SCHEMA.names}, schema=REPORT_SCHEMA)
    done = VirtualizeResult(
        snapshot_id=ID, files_added=9, files_skipped=0, references=9, places=(), report=report
    )
    assert "report=<Table of 9>" in repr(done)
    assert "9" in Page(done._repr_html_()).texts


def test_values_that_work_are_named_only():
    class Frame:
        rdd = None

        def __len__(self):
            raise AssertionError("a DataFrame was asked")

        __repr__ = __str__ = None

    assert repr(Held(Frame())) == "Held(value=<Frame>)"
    assert "Frame" in Page(Held(Frame())._repr_html_()).text


def test_places_have_no_credentials():
    place = Location(
        "s3://bucket/x", options={"access_key_id": "me", "secret_access_key": "SECRET"}
    )
    assert repr(Held(place)) == "Held(value='s3://bucket/x')"
    for value in (place, place.options, Login(), {"login": Login()}):
        assert "SECRET" not in repr(Held(value))
        assert "SECRET" not in Held(value)._repr_html_()


def test_instants_are_readable():
    assert repr(Held(datetime(2026, 1, 2, tzinfo=UTC))) == "Held(value=2026-01-02 00:00:00+00:00)"


def test_small_results():
    assert repr(CollectResult(dry_run=True, bytes_deleted=7)) == (
        "CollectResult(bytes_deleted=7, dry_run=True)"
    )
    done = MirrorResult(version=3, snapshot_id=str(ID), rows=5_000, bytes=2_000_000)
    assert "2.0 MB (2,000,000)" in Page(done._repr_html_()).texts


def test_a_tuple_of_one_value_has_its_comma():
    assert repr(Held(("/t",))) == "Held(value=('/t',))"
