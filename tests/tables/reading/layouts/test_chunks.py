"""Rows of the layout ``chunks`` are the chunks of each array, each once, however tasks are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.grids.drawn_arrays import rows_of
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset

SHAPE, CHUNKS = (5, 7, 4), (2, 3, 3)
VALUES = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)


@pytest.mark.parametrize("rows_per_partition", [1, 5, None])
@pytest.mark.parametrize(("isel", "last"), [(None, (0, 1)), ("x=3:4", (1,))])
def test_each_chunk_of_each_array_once(rows_per_partition, isel, last):
    arrays = {
        name: ArrayToWrite(values=values, chunks=CHUNKS, dims=("t", "y", "x"))
        for name, values in (("a", VALUES), ("b", -VALUES))
    }
    dataset = write_dataset("chunks", arrays)
    table = dataset.table("chunks")
    plan = dataset.plan(table, isel=isel, rows_per_partition=rows_per_partition)
    rows = rows_of(plan).to_pylist()
    found = {
        (row["array"], *row["chunk"]): np.frombuffer(row["data"], "<i4").reshape(row["shape"])
        for row in rows
    }
    expected = {
        (f"/{name}", *chunk): values[
            tuple(slice(i * c, (i + 1) * c) for i, c in zip(chunk, CHUNKS, strict=True))
        ]
        for name, values in (("a", VALUES), ("b", -VALUES))
        for chunk in itertools.product(range(3), range(3), last)
    }
    assert len(rows) == len(found)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
