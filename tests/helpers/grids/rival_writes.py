"""Writes whose tasks have stored their chunks before any of them commits, and comparisons."""

import numpy as np
import pyarrow.compute as pc
from helpers.builder import new_place
from helpers.grids.written_cells import APPEND, dataset_at

from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.chunks.plan import plan_layout_write
from icechunk_format.tables.writing.chunks.task import write_layout_table
from icechunk_format.tables.writing.commit import finish_write
from icechunk_format.tables.writing.in_process import write_part, write_table
from icechunk_format.tables.writing.plan import plan_write
from icechunk_format.tables.writing.prepare import prepare_write


def begun(place, table, options=APPEND):
    """Do all of a write but its commit, and return the function that commits."""
    prepared = prepare_write(place, table.schema, options)
    if options.layout == "cells":
        coordinates = {dim: pc.unique(table.column(dim)) for dim in prepared.dims}
        plan = plan_write(prepared, coordinates, table.num_rows)
        receipts = [write_part(plan, part, table) for part in plan.parts]
    else:
        plan = plan_layout_write(prepared)
        receipts = [write_layout_table(plan, table)]
    return lambda: finish_write(plan, receipts)


def created(place, table, **options):
    write_table(place, table, WriteOptions(dims=("time", "x"), **options))


def contents(place, names=None):
    dataset = dataset_at(place)
    return {name: dataset.read(name) for name in names or dataset.variables}


def assert_equal_contents(place, other):
    """Compare cell by cell; labels that both wrote may lie in another order."""
    mine, theirs = in_order(place), in_order(other)
    assert mine.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_array_equal(mine[name], expected, err_msg=name)


def in_order(place):
    """Return every array with its labels sorted."""
    found = contents(place)
    variables = dataset_at(place).variables
    orders = {dim: np.argsort(found[dim]) for v in variables.values() for dim in v.dims}
    return {n: v[np.ix_(*(orders[d] for d in variables[n].dims))] for n, v in found.items()}


def assert_as_one_after_another(first, tables, options=APPEND, **creation):
    """Write tables at the same time, and one after another; return the place of the former."""
    together, apart = new_place(), new_place()
    for place in (together, apart):
        created(place, first, **creation)
    for finish in [begun(together, table, options) for table in tables]:
        finish()
    for table in tables:
        write_table(apart, table, options)
    assert_equal_contents(together, apart)
    return together
