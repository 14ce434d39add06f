"""Writes a DataFrame in parallel: each task writes whole chunks, and one commit publishes them all.

Algorithm
---------
1. Check schema, options and repository, before Spark runs anything.
2. Collect the coordinates in one job (:mod:`icechunk_spark.writing.coordinates`), and plan the grid
   on the driver.
3. Number the cells: join the dimension columns with small tables from label to term, and add the
   terms. Integer division of the number yields the unit (the chunks of one task) and the block (the
   chunks that are encoded together). All of this runs in the JVM.
4. Move the rows of a unit to one partition and sort them by number. Tasks write chunks and
   manifests, and each returns a receipt.
5. Commit once, with the receipts.

Rules of this file
------------------
1. Only receipts that Spark returns are committed. Writing is the job's last stage, of which Spark
   accepts exactly one attempt per partition; chunks of lost or speculative attempts have other
   names, which no commit references.
2. The rows are read twice: for their coordinates, and to be written (``computed_once``). If they
   change in between, the write fails; rows are never dropped silently.
3. Nothing is deleted after a failure, since a commit whose outcome is unknown may have succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import TaskReceipt, WriteResult
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.write import WriteRequest
from icechunk_format.tables.writing import WritePart, WritePlan
from icechunk_format.tables.writing.cell_numbers import CELL
from icechunk_format.tables.writing.cells.regions import clear_region
from icechunk_format.tables.writing.cells.task import write_batches
from icechunk_format.tables.writing.chunks.plan import plan_layout_write
from icechunk_format.tables.writing.chunks.task import write_layout_batches
from icechunk_format.tables.writing.commit import finish_write, planned_result
from icechunk_format.tables.writing.part import BLOCK, UNIT
from icechunk_format.tables.writing.plan import plan_write
from icechunk_format.tables.writing.prepare import PreparedWrite, prepare_write
from icechunk_format.tables.writing.replanning.plan import check_order
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import raised_in_tasks
from icechunk_spark.jobs.session import (
    bounded_by_rows,
    cores_of,
    described,
    session_time_zone,
    together,
)
from icechunk_spark.jobs.task_rows import collected, on_executors
from icechunk_spark.jobs.totals import totalled, with_totals
from icechunk_spark.schema import fitted, quoted, write_schema
from icechunk_spark.writing.computed_once import computed_once
from icechunk_spark.writing.coordinates import (
    collect_coordinates,
    label_column,
    label_type,
)

Write = Callable[[WritePart, Iterable[pa.RecordBatch]], TaskReceipt]

# A mode in the description of a job, before the branch.
_VERBS: Final = {
    "append": "append to",
    "overwrite": "overwrite arrays of",
    "errorifexists": "create arrays in",
    "ignore": "create arrays in",
}

#: Maximum number of tasks of a write; with more units, a task writes several.
MAX_TASKS: Final = 10_000

# A table from labels to indices is sent to every executor up to this many labels.
_BROADCAST_LABELS: Final = 4_000_000


def run_planned_write(
    frame: DataFrame, request: WriteRequest, *, dry_run: bool = False
) -> WriteResult:
    """Write a DataFrame, in one commit; ``dry_run`` stops before the tasks that store chunks."""
    schema = write_schema(frame.schema)
    _refuse_our_names(schema.names)
    prepared = prepare_write(location_of(request), schema, request, access_of(request))
    if isinstance(prepared, WriteResult):
        return prepared
    with totalled() as totals, raised_in_tasks(prepared.label):
        if dry_run:
            return _planned_write(frame, schema, prepared, request)
        if request.layout == "cells":
            with computed_once(frame, request.compute_once) as kept:
                plan, receipts = _write_cells(kept, schema, prepared, request)
            if request.replace_where is not None:
                with _step(prepared, request, "clearing other cells of the region"):
                    run = partial(on_executors, frame.sparkSession)
                    arrays = plan.arrays.values()
                    receipts += clear_region(arrays, prepared.destination, receipts, run)
        else:
            plan, receipts = _write_layout(frame, prepared, request)
    done = finish_write(plan, receipts)
    return done if done.is_skipped else with_totals(done, totals)


def _planned_write(
    frame: DataFrame, schema: pa.Schema, prepared: PreparedWrite, request: WriteRequest
) -> WriteResult:
    if request.layout == "cells":
        plan, rows = _plan_cells(frame, schema, prepared, request)
        return planned_result(plan, rows)
    plan = plan_layout_write(prepared)
    with _step(prepared, request, "counting rows"):
        return planned_result(plan, cancellable(frame, frame.count))


def _plan_cells(
    frame: DataFrame, schema: pa.Schema, prepared: PreparedWrite, request: WriteRequest
) -> tuple[WritePlan, int]:
    """Plan the cells of the rows, and count the rows."""
    with _step(prepared, request, "collecting coordinates"):
        labels, rows = collect_coordinates(frame, prepared.dims, schema)
    plan = plan_write(
        prepared,
        labels,
        rows,
        time_zone=session_time_zone(frame.sparkSession),
        cores=cores_of(frame.sparkSession),
    )
    check_order(plan)
    return plan, rows


def _write_cells(
    frame: DataFrame, schema: pa.Schema, prepared: PreparedWrite, request: WriteRequest
) -> tuple[WritePlan, list[TaskReceipt]]:
    plan, _ = _plan_cells(frame, schema, prepared, request)
    receipts: list[TaskReceipt] = []
    for part in plan.parts:
        rows = _numbered_rows(frame, plan, part)
        assert part.numbers is not None, "cells are numbered"
        unit = F.expr(f"{CELL} div {part.numbers.cells_per_unit}")
        rows = _distributed(rows, unit, part.units, [CELL], request.distribution)
        with _step(prepared, request, f"writing {', '.join(part.variables)}", part):
            receipts += _receipts(rows, write_batches, part)
    return plan, receipts


def _numbered_rows(frame: DataFrame, plan: WritePlan, part: WritePart) -> DataFrame:
    """Return the rows of a part: the number of the cell instead of labels, then the variables.

    Columns are renamed, since `mapInArrow` does not support every name; tasks use their positions.
    """
    labels = [label_column(frame, name).alias(f"_at_{axis}") for axis, name in enumerate(part.dims)]
    values = [quoted(name).alias(f"_v_{number}") for number, name in enumerate(part.variables)]
    rows = frame.select(*labels, *values)
    if part.is_distinct:
        rows = rows.distinct()
    cells: Column = F.lit(0).cast("bigint")
    for axis, name in enumerate(part.dims):
        terms = _terms(frame, plan.dimension_tables[name], name, axis, part.number)
        # A left join keeps labels that the first pass did not find, so that the task refuses them.
        rows = rows.join(terms, _is_at(axis), "left")
        cells += F.col(f"_term_{axis}")
    return rows.select(
        cells.alias(CELL),
        *[F.col(f"_v_{number}") for number in range(len(part.variables))],
    )


def _is_at(axis: int) -> Column:
    """Return the condition that joins rows with the labels of a dimension.

    Spark looks up a BIGINT several times faster than any other type, so the key is the hash of the
    label. Two inequalities then compare the labels, since Spark would add an equality to the key.
    """
    at, label = F.col(f"_at_{axis}"), F.col(f"_label_{axis}")
    return (F.xxhash64(at) == F.col(f"_hash_{axis}")) & (at >= label) & (at <= label)


def _terms(frame: DataFrame, table: pa.Table, name: str, axis: int, part: int) -> DataFrame:
    """Return the table from a dimension's labels to their terms, broadcast unless it is large."""
    columns = {
        f"_label_{axis}": table.column("value"),
        f"_term_{axis}": table.column(f"cell_{part}"),
    }
    # Without the types, Spark would read a time without a zone in the zone of the session.
    kinds = [label_type(frame, name), LongType()]
    schema = StructType(
        [StructField(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    )
    terms = frame.sparkSession.createDataFrame(pa.table(columns), schema=schema)
    terms = terms.withColumn(f"_hash_{axis}", F.xxhash64(f"_label_{axis}"))
    return F.broadcast(terms) if table.num_rows <= _BROADCAST_LABELS else terms


def _write_layout(
    frame: DataFrame, prepared: PreparedWrite, request: WriteRequest
) -> tuple[WritePlan, list[TaskReceipt]]:
    """Write rows that are chunks or chunk references."""
    plan = plan_layout_write(prepared)
    (part,) = plan.parts
    held = plan.array_table
    assert held is not None, "a plan of chunks or references has a table of arrays"
    arrays = frame.sparkSession.createDataFrame(
        held.rename_columns([f"_{name}" for name in held.column_names])
    )
    columns = [quoted(name).alias(f"_v_{number}") for number, name in enumerate(frame.columns)]
    array, chunk = (F.col(f"_v_{frame.columns.index(name)}") for name in ("array", "chunk"))
    blocks = F.zip_with(chunk, "_per_block", lambda index, size: F.floor(index / size))
    units = F.zip_with(blocks, "_blocks_per_unit", lambda index, size: F.floor(index / size))
    # A task refuses rows that name no array, or have too few or too many indices.
    zero = F.lit(0).cast("bigint")
    rows = (
        frame.select(*columns)
        .join(F.broadcast(arrays), array == F.col("_array"), "left")
        .select(
            F.coalesce(F.col("_base") + _dot(units, "_unit_strides"), zero).alias(UNIT),
            F.coalesce(_dot(blocks, "_block_strides"), zero).alias(BLOCK),
            *[F.col(f"_v_{number}") for number in range(len(columns))],
        )
    )
    order = [UNIT, f"_v_{frame.columns.index('array')}", BLOCK]
    rows = _distributed(rows, F.col(UNIT), part.units, order, request.distribution)
    with _step(prepared, request, "writing chunks", part):
        return plan, _receipts(rows, write_layout_batches, part)


def _dot(values: Column, strides: str) -> Column:
    products = F.zip_with(values, strides, lambda value, stride: value * stride)
    return F.aggregate(products, F.lit(0).cast("bigint"), lambda total, item: total + item)


def _distributed(
    rows: DataFrame, unit: Column, units: int, order: list[str], distribution: str
) -> DataFrame:
    """Return the rows sorted, with each unit in one partition."""
    if distribution == "hash":
        tasks = max(1, min(units, MAX_TASKS))
        rows = together(rows, F.coalesce(unit, F.lit(0)), tasks)
    return rows.sortWithinPartitions(*order)


def _receipts(rows: DataFrame, write: Write, part: WritePart) -> list[TaskReceipt]:
    """Write the rows of a part; return one receipt for each partition, including empty ones.

    Spark's batches may differ from the part's schema in time zone and width of offsets.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[TaskReceipt]:
        yield write(part, (fitted(batch, part.input_schema) for batch in batches))

    with bounded_by_rows(rows):
        return collected(rows, step)


def _step(
    prepared: PreparedWrite, request: WriteRequest, doing: str, part: WritePart | None = None
) -> AbstractContextManager[None]:
    """Describe the jobs of a step; of a part, with the number of its tasks unless rows set it."""
    if part is not None and request.distribution == "hash":
        tasks = max(1, min(part.units, MAX_TASKS))
        doing += f" in {tasks} task{'' if tasks == 1 else 's'}"
    return described(f"{_VERBS[request.mode]} {prepared.label}: {doing}")


def _refuse_our_names(names: list[str]) -> None:
    for name in names:
        if name in (CELL, UNIT, BLOCK):
            raise InvalidInputError(
                f"column '{name}' has a name that the write uses internally: rename it, as in"
                f" df.withColumnRenamed('{name}', '{name.strip('_')}')",
                column=name,
            )
