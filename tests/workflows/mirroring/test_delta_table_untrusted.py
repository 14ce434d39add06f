"""What a stranger wrote into a Delta table neither chooses a host nor names a file elsewhere."""

import json

import pytest
from deltalake import CommitProperties, write_deltalake
from helpers.raised import raises

from icechunk_format.errors import (
    FormatError,
    InvalidInputError,
)
from icechunk_format.workflows.mirroring import DeltaTarget, find_files, freshness


def test_a_damaged_record_is_refused(grid):
    grid.mirror()
    rows = grid.copied().slice(0, 0)
    for text in ("", "[]", '{"format": 2}', '{"format": 1, "repository": 3}'):
        write_deltalake(
            grid.target,
            rows,
            mode="append",
            commit_properties=CommitProperties(custom_metadata={"icechunk_spark_mirror": text}),
        )
        with raises(FormatError, file_type="record of a copy"):
            grid.mirror()


def with_record(grid, **changes):
    """Commit a record that somebody else wrote to the table."""
    found = grid.request().target.open()
    entry = next(e for e in found.history() if "icechunk_spark_mirror" in e)
    record = {**json.loads(entry["icechunk_spark_mirror"]), **changes}
    write_deltalake(
        grid.target,
        grid.copied().slice(0, 0),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"icechunk_spark_mirror": json.dumps(record)}
        ),
    )


def test_a_table_does_not_choose_what_is_contacted(grid):
    grid.mirror()
    with_record(grid, repository="http://169.254.169.254/latest")
    with raises(
        InvalidInputError,
        match=r"not contacted by default: give storage\.client",
        found="http://169.254.169.254/latest",
    ):
        freshness(DeltaTarget.of(grid.target))
    with raises(InvalidInputError, found="http://169.254.169.254/latest"):
        find_files(DeltaTarget.of(grid.target), tag="v1")


def test_an_instant_that_no_calendar_has_is_refused(grid):
    grid.mirror()
    with_record(grid, committed_at=10**18)
    with pytest.raises(FormatError, match="committed_at is 1000000000000000000"):
        freshness(DeltaTarget.of(grid.target))


def test_files_outside_of_the_table_are_not_read(grid, tmp_path):
    grid.mirror()
    log = tmp_path / "copy" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = "../secret.parquet"
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(FormatError, match=r"'\.\./secret\.parquet' is not in the folder"):
        find_files(DeltaTarget.of(grid.target))
