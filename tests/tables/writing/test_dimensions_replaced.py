"""Rows replace a region, and cells of the region without a row become missing."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import ConflictError, InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing.in_process import write_table


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "repository")


def table(cells, dtype="f8"):
    """Return rows ``(a, b, t)`` of a mapping from labels to values."""
    rows = [(a, b, value) for (a, b), value in cells.items()]
    a, b, t = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64()), "t": np.array(t, dtype)}
    )


def write(place, cells, dtype="f8", **options):
    given = {"dims": ("a", "b"), "mode": "append"} | options
    return write_table(place, table(cells, dtype), WriteOptions(**given))


def read(place):
    repository = Repository.open(place)
    dataset = open_dataset(repository, repository.resolve())
    return dataset.read("a").tolist(), dataset.read("b").tolist(), dataset.read("t")


def stored(place):
    a, b, values = read(place)
    cells = dict(zip(itertools.product(a, b), values.reshape(-1).tolist(), strict=True))
    return {key: value for key, value in cells.items() if not np.isnan(value)}


@pytest.mark.parametrize("seed", range(50))
def test_random_regions(place, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 9, 2)
    labels = [sorted(rng.choice(20, size, replace=False).tolist()) for size in sizes]
    cells = {at: float(rng.random()) for at in itertools.product(*labels) if rng.random() < 0.7}
    chunks = {"a": int(rng.integers(1, 5)), "b": int(rng.integers(1, 5))}
    filled = {"t": {"fill_value": [0.0, float("nan")][seed % 2]}}
    write(place, cells, chunks=chunks, min_density=0, encoding=filled)
    cells = stored(place)
    low, high = sorted(rng.integers(0, 21, 2).tolist())
    where = f"a >= {low} AND a <= {high}"
    inside = [at for at in cells if low <= at[0] <= high]
    if seed % 3:
        where += " AND b < 10"
        inside = [at for at in inside if at[1] < 10]
    a = [x for x in range(low, high + 1) if rng.random() < 0.4]
    b = [x for x in range(10 if seed % 3 else 20) if rng.random() < 0.3]
    rows = {at: 5 + float(rng.random()) for at in itertools.product(a, b) if rng.random() < 0.8}
    # New labels follow those of the base. With a fill value of 0, cells of new chunks without a row
    # are 0, as after an append; then there are no new labels.
    for axis in range(2):
        known, last = {at[axis] for at in cells}, labels[axis][-1] if seed % 2 else 20
        rows = {at: v for at, v in rows.items() if at[axis] in known or at[axis] > last}
    if not rows:
        return
    write(place, rows, mode="overwrite", replace_where=where, min_density=0)
    expected = {at: value for at, value in cells.items() if at not in inside} | rows
    assert stored(place) == expected


def test_rows_outside_are_refused(place):
    write(place, {(a, b): 1.0 for a in range(4) for b in range(4)})
    before = Repository.open(place).resolve()
    with pytest.raises(InvalidInputError) as failure:
        write(place, {(1, 1): 2.0, (2, 1): 2.0}, mode="overwrite", replace_where="a = 1")
    assert failure.value.facts["dim"] == "a"
    assert failure.value.facts["label"] == "2"
    assert "1 label of 'a'" in failure.value.message
    with pytest.raises(InvalidInputError, match="write conditions on a, b"):
        write(place, {(1, 1): 2.0}, mode="overwrite", replace_where="a = 1 AND t > 1")
    for where in ("t > 1", "a = 1 OR b = 1", "c = 1", "1 = 1", "1 = 2"):
        with pytest.raises(InvalidInputError):
            write(place, {(1, 1): 2.0}, mode="overwrite", replace_where=where)
    assert Repository.open(place).resolve() == before


def test_values_without_missing_need_all_rows(place):
    write(place, {(a, b): a for a in range(4) for b in range(4)}, "i4", chunks={"a": 2, "b": 2})
    where = "a BETWEEN 1 AND 2 AND b < 3"
    rows = {(a, b): 9 for a in (1, 2) for b in range(3)}
    for lost in ((1, 0), (2, 2)):
        short = {at: v for at, v in rows.items() if at != lost}
        with raises(InvalidInputError, variable="t"):
            write(place, short, "i4", mode="overwrite", replace_where=where)
    write(place, rows, "i4", mode="overwrite", replace_where=where)
    expected = np.repeat(np.arange(4), 4).reshape(4, 4)
    expected[1:3, :3] = 9
    np.testing.assert_array_equal(read(place)[2], expected)


def test_a_rival_append_is_a_conflict(place, monkeypatch):
    from icechunk_format.tables.writing import in_process

    write(place, {(a, b): 1.0 for a in range(4) for b in range(4)})
    finish = in_process.finish_write

    def late(*given):
        monkeypatch.setattr(in_process, "finish_write", finish)
        write(place, {(4, b): 1.0 for b in range(4)})
        return finish(*given)

    monkeypatch.setattr(in_process, "finish_write", late)
    with pytest.raises(ConflictError):
        write(place, {(1, 1): 2.0}, mode="overwrite", replace_where="a = 1")
    assert read(place)[2].shape == (5, 4)


def test_needs_mode_overwrite():
    with raises(InvalidInputError, option="replaceWhere"):
        parse_write_options({"path": "x", "replaceWhere": "a = 1"}, mode="append")


def test_a_new_repository(place):
    with pytest.raises(InvalidInputError):
        write(place, {(2, 1): 2.0}, mode="overwrite", replace_where="a = 1")
    assert not Repository.exists(place)
    write(place, {(1, 1): 2.0}, mode="overwrite", replace_where="a = 1")
    assert stored(place) == {(1, 1): 2.0}
