"""Conditions on columns of chunks, references and blocks select all rows that meet them."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from icechunk_format.groups import DimSelection
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables import Selection, requested_dataset, requested_scan, requested_table
from icechunk_format.tables.reading import run_scan
from icechunk_format.tables.row_pruning import blocks_of_tasks, prune_rows, rows_of_selection
from icechunk_format.tables.writing.in_process import write_table


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """Return the path of two arrays of 7 by 10 cells in chunks of 2 by 4, and one of 7 cells."""
    place = str(tmp_path_factory.mktemp("rows") / "repo")
    y, x = (side.reshape(-1) for side in np.meshgrid(np.arange(7), np.arange(10), indexing="ij"))
    table = pa.table({"y": y, "x": x * 1.5, "a": (x + y).astype("f4"), "b": y.astype("i2")})
    write_table(place, table, WriteOptions(dims=("y", "x"), chunks={"y": 2, "x": 4}))
    only_y = pa.table({"y": np.arange(7), "c": np.arange(7.0)})
    write_table(place, only_y, WriteOptions(mode="append", merge_schema=True, dims=("y",)))
    return place


def opened(path: str, **options: str):
    request = parse_read_options({"path": path, **options})
    dataset = requested_dataset(request)
    return request, dataset, requested_table(request, dataset)


def rows_of(path: str, conjuncts: tuple[str, ...], **options: str):
    request, dataset, table = opened(path, **options)
    pruned = prune_rows(conjuncts, Selection(dims={}), dataset, table, "UTC")
    plan = requested_scan(request, dataset, table, selection=pruned.selection)
    rows = [
        row
        for task in plan.tasks
        for batch in run_scan(plan.context, task)
        for row in batch.to_pylist()
    ]
    known = rows_of_selection(dataset, table, pruned.selection, skip_missing=False)
    return pruned, rows, known, plan, table, dataset


CASES = (
    ("chunks", "(`array` = '/a')", lambda r: r["array"] == "/a", True),
    ("chunks", "`dtype` IN ('<f4')", lambda r: r["dtype"] == "<f4", True),
    ("chunks", "(`chunk`[0] = 3L)", lambda r: r["chunk"][0] == 3, True),
    ("chunks", "(`start`[0] >= 2L)", lambda r: r["start"][0] >= 2, True),
    ("chunks", "(`shape`[0] = 1L)", lambda r: r["shape"][0] == 1, True),
    ("chunks", "(`chunk`[0] % 2L = 1L)", lambda r: r["chunk"][0] % 2 == 1, True),
    ("refs", "(`chunk`[0] = 3L)", lambda r: r["chunk"][0] == 3, True),
    ("refs", "(`array` > '/b')", lambda r: r["array"] > "/b", True),
    ("refs", "(`chunk` = ARRAY(3L, 2L))", lambda r: r["chunk"] == [3, 2], False),
    ("refs", "(`kind` = 'virtual')", lambda r: r["kind"] == "virtual", False),
    ("summary", "(`y_first` >= 4L)", lambda r: r["y_first"] >= 4, True),
    ("summary", "(`x_last` < 12.0D)", lambda r: r["x_last"] < 12, True),
    ("summary", "(`a_max` > 8.0D)", lambda r: r["a_max"] > 8, False),
)


@pytest.mark.parametrize(("layout", "sql", "holds", "is_exact"), CASES)
def test_selected_rows_contain_those_that_meet_the_condition(path, layout, sql, holds, is_exact):
    options = {"layout": layout}
    if layout == "chunks":
        options["variables"] = "a,b,c"
    _, every, _, _, _, _ = rows_of(path, (), **options)
    pruned, rows, known, _, _, _ = rows_of(path, (sql,), **options)
    expected = [row for row in every if holds(row)]
    assert [row for row in rows if holds(row)] == expected
    assert pruned.used == (sql,)
    assert (pruned.rows is None) == (pruned.is_exact or not pruned.is_total)
    if is_exact:
        assert rows == expected
        assert pruned.is_exact
        assert known in (None, len(rows))
        assert 0 < len(rows) < len(every)


def test_an_array_with_fewer_axes_is_not_selected_by_a_missing_element(path):
    pruned, rows, _, _, _, _ = rows_of(path, ("(`chunk`[1] = 0L)",), layout="refs")
    assert not pruned.is_exact
    assert not pruned.is_total
    found = {row["array"] for row in rows}
    assert found == {"/a", "/b", "/c", "/x", "/y"}
    assert all(row["chunk"][1:] in ([], [0]) for row in rows)
    pruned, rows, _, _, _, _ = rows_of(
        path, ("(`array` = '/a')", "(`chunk`[1] = 0L)"), layout="refs"
    )
    assert pruned.is_exact
    assert [row["chunk"] for row in rows] == [[0, 0], [1, 0], [2, 0], [3, 0]]


def test_conditions_that_cannot_be_compiled_select_nothing(path):
    for sql in ("size(`chunk`) = 2", "upper(`array`) = '/A'", "`nothing` = 1"):
        pruned, rows, _, _, _, _ = rows_of(path, (sql, "`array` = '/a'"), layout="refs")
        assert [one for one, _ in pruned.left] == [sql]
        assert not pruned.is_total
        assert {row["array"] for row in rows} == {"/a"}


def test_never(path):
    for layout in ("chunks", "refs", "summary"):
        options = {"variables": "a"} if layout == "chunks" else {}
        _, rows, known, plan, _, _ = rows_of(path, ("FALSE",), layout=layout, **options)
        assert (rows, plan.tasks) == ([], [])
        assert known in (None, 0)


def test_blocks_of_tasks(path):
    _, rows, known, plan, table, dataset = rows_of(
        path, ("`y_last` > 3",), layout="summary", rowsPerPartition="10"
    )
    counts = list(
        blocks_of_tasks(dataset, table, Selection(dims=plan.context.selections), plan.tasks)
    )
    assert len(counts) > 1
    assert sum(counts) == known == len(rows) == 6


def test_blocks_of_a_long_dimension_are_counted_without_their_positions(path):
    _, dataset, table = opened(path, layout="summary", block="y=2,x=3")
    assert rows_of_selection(dataset, table, Selection(dims={}), skip_missing=False) == 4 * 4
    some = Selection(dims={"x": DimSelection.of_indices(10, np.array([0, 2, 9]))})
    assert rows_of_selection(dataset, table, some, skip_missing=False) == 4 * 2
    assert rows_of_selection(dataset, table, some, skip_missing=True) is None
    long = replace(table, dims=("y", "x"), sizes=(10**12, 10), block=(10, 10))
    tracemalloc.start()
    count = rows_of_selection(dataset, long, Selection(dims={}), skip_missing=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10**11
    assert peak < 1e6
