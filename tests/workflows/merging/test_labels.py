"""Merges join stored labels: none is rounded, and sides that store labels differently conflict."""

import datetime as dt

import pyarrow as pa
import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import rows_of
from helpers.raised import raises

from icechunk_format import ConflictError, InvalidInputError, Repository
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table

DAY = dt.datetime(2024, 1, 1)
MINUTE = dt.timedelta(minutes=1)
DAYS = {"dtype": "float32", "units": "days since 1858-11-17"}
# Stored labels; others that the array holds, on each side; one that it would round to a stored one;
# and an encoding that holds that one.
CASES = {
    "float32 days": (
        ([DAY], DAYS),
        ([DAY + 360 * MINUTE], [DAY + 720 * MINUTE]),
        (DAY + 2 * MINUTE, {"dtype": "int64", "units": "minutes since 1858-11-17"}),
    ),
    "packed": (
        ([9.0, 10.0], {"dtype": "int16", "scale_factor": 0.5}),
        ([10.5], [11.0]),
        (10.2, {"dtype": "float64"}),
    ),
    "float32": (
        ([16777216.0], {"dtype": "float32"}),
        ([16777218.0], [16777220.0]),
        (16777217.0, {"dtype": "float64"}),
    ),
}
SIDES = pytest.mark.parametrize(("one", "two"), [("main", "dev"), ("dev", "main")])


def rows(labels, value):
    kind = pa.timestamp("us") if isinstance(labels[0], dt.datetime) else pa.float64()
    return pa.table({"x": pa.array(labels, kind), "v": pa.array([value] * len(labels))})


def write(repository, branch, labels, value, **how):
    options = WriteOptions(**{"mode": "append", "branch": branch, "dims": ("x",), **how})
    write_table(repository.location, rows(labels, value), options)


def begun(labels, encoding):
    place = new_place()
    options = WriteOptions(dims=("x",), chunks={"x": 1}, encoding={"x": encoding})
    write_table(place, rows(labels, 0.0), options)
    repository = Repository.open(place)
    repository.create_branch("dev", repository.resolve())
    return repository


@SIDES
@pytest.mark.parametrize("name", CASES)
def test_a_label_that_is_not_held_reaches_no_branch(name, one, two):
    (stored, encoding), (own, others), (moved, _) = CASES[name]
    repository = begun(stored, encoding)
    with raises(InvalidInputError, match="labels are not rounded"):
        write(repository, one, [moved], 1.0)
    write(repository, one, own, 1.0)
    write(repository, two, others, 2.0)
    repository.merge("dev")
    merged = rows_of(repository.location)
    expected = [*((label, 0.0) for label in stored), (own[0], 1.0), (others[0], 2.0)]
    assert list(zip(merged["x"].to_pylist(), merged["v"].to_pylist(), strict=True)) == expected


@SIDES
@pytest.mark.parametrize("resolve", [None, "ours", "theirs"])
@pytest.mark.parametrize("name", CASES)
def test_sides_that_store_labels_differently_conflict(name, resolve, one, two):
    (stored, encoding), (own, _), (moved, wider) = CASES[name]
    repository = begun(stored, encoding)
    write(repository, one, [*stored, moved], 1.0, mode="overwrite", encoding={"x": wider})
    write(repository, two, own, 2.0)
    tip = repository.resolve()
    with raises(ConflictError, kinds=...):
        repository.merge("dev", resolve=resolve)
    assert repository.resolve() == tip
