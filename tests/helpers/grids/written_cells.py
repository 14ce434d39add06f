"""Rows to write as cells of a grid, and what was written, read back with our own reader."""

import numpy as np
import pyarrow as pa

from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan


def grid(times, xs, *, offset=0.0, **columns):
    """Rows of a full grid: t = 100 * time + x."""
    time, x = np.meshgrid(np.asarray(times, int), np.asarray(xs, float), indexing="ij")
    data = {
        "time": pa.array(time.ravel()),
        "x": pa.array(x.ravel()),
        "t": pa.array((time * 100 + x + offset).ravel().astype("f8")),
    }
    return pa.table({**data, **columns})


def dataset_at(place, *, group=None, **choice):
    """Open what a branch, ``main`` unless another version is named, holds now."""
    repository = Repository.open(place)
    return open_dataset(repository, repository.resolve(**(choice or {"branch": "main"})), group)


def values(place, name="t"):
    """Return the values of an array as they are on ``main``."""
    return dataset_at(place).read(name)


def rows_of(place, *, group=None, **options):
    """Return the cells on ``main`` as rows."""
    dataset = dataset_at(place, group=group)
    table = dataset.table(**options)
    plan = dataset.plan(table)
    batches = [b for task in plan.tasks for b in run_scan(plan.context, task)]
    plain = pa.Table.from_batches(batches, schema=plan.arrow_schema)
    return pa.Table.from_arrays(plain.columns, schema=table.arrow_schema)


DIMS = WriteOptions(dims=("time", "x"))
APPEND = WriteOptions(mode="append", dims=("time", "x"), merge_schema=True)
