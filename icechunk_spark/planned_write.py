"""Writing a DataFrame as planned: each task owns whole chunks, and one commit joins their work.

Algorithm
---------
1. Prepare: everything that the schema, the options and the repository can tell is checked before
   Spark runs anything.
2. Ask for the coordinates: one job (:mod:`icechunk_spark.coordinate_job`), then the grid is
   planned on the driver.
3. Give every row its place: the dimension columns are joined with small tables from label to
   index. Units (what one task owns) and blocks (chunks that are encoded together) are integer
   sums over those tables, so all of this happens inside the JVM.
4. Bring the rows of a unit together, sort them by block, and let the tasks write chunks and
   manifests. Each answers with a receipt.
5. Commit once, with the receipts.

Rules of this file
------------------
1. Only receipts that Spark hands back count. The stage that writes is the job's last one, of which
   Spark takes exactly one attempt per partition; what a lost or speculative attempt wrote has
   names of its own that no commit mentions.
2. The rows are read twice, first for their coordinates and then to be written. Where they changed
   in between, the write fails; it never drops rows in silence.
3. Nothing is ever deleted here, whatever fails: a commit whose outcome is unknown may have landed.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_format.dataset.write_commit import finish_write
from icechunk_format.dataset.write_layouts import plan_layout_write
from icechunk_format.dataset.write_plan import plan_write
from icechunk_format.dataset.write_prepare import prepare_write
from icechunk_format.errors import InvalidInputError
from icechunk_spark.coordinate_job import collect_coordinates, quoted
from icechunk_spark.schema import write_schema
from icechunk_spark.task_errors import raised_in_tasks
from icechunk_spark.write_options import option_texts, parse_mode, parse_write_options
from icechunk_spark.write_target import dataset_options, location_of
from icechunk_spark.write_tasks import cell_task, layout_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame

    from icechunk_format.dataset.write_commit import WriteResult
    from icechunk_format.dataset.write_plan import WritePart, WritePlan
    from icechunk_format.dataset.write_prepare import PreparedWrite
    from icechunk_spark.write_options import Mode, WriteRequest

#: A unit is a task as long as there are not more of them than this; then tasks own several.
MAX_TASKS: Final = 10_000

# A table from labels to indices is sent to every executor up to this many labels.
_BROADCAST_LABELS: Final = 4_000_000

# Names of our own columns, which no column of the DataFrame may have.
UNIT: Final = "_unit"
BLOCK: Final = "_block"
_INDEX: Final = "_index_"
_OURS: Final = (UNIT, BLOCK, _INDEX, "_label_", "_unit_", "_block_")

_RECEIPTS: Final = StructType([StructField("receipt", BinaryType())])


def write(
    df: DataFrame, path: str, *, mode: str = "errorifexists", **options: Any
) -> WriteResult:
    """Write a DataFrame into an Icechunk repository, in one commit.

    Parameters
    ----------
    df
        One row per cell (or per chunk, or per chunk reference; see option ``layout``).
    path
        Root of the repository; it is created where there is none.
    mode
        ``append`` writes cells at their coordinates; ``overwrite`` makes the group's arrays
        exactly the DataFrame's; ``errorifexists`` (default) and ``ignore`` only create.
    **options
        Options of writing, as in ``df.write.option``. Values may be Python's: ``chunks={"time":
        24}``, ``dims=["time", "latitude"]``. Names with a dot go in as
        ``**{"storage.region": "us-west-2"}``.

    Returns
    -------
    WriteResult
        The snapshot, and what was written; ``is_skipped`` where there was nothing to do.

    Raises
    ------
    IcechunkError
        The options, the columns or the rows cannot be written; nothing was committed then.
    CommitOutcomeUnknownError
        The store did not say whether the commit landed.
    """
    if "path" in {name.lower() for name in options}:
        raise InvalidInputError("option 'path' is given twice: leave it out of the options")
    request = parse_write_options({"path": str(path), **option_texts(options)})
    return run_planned_write(df, request, parse_mode(mode))


def run_planned_write(frame: DataFrame, request: WriteRequest, mode: Mode) -> WriteResult:
    """Write as `write` does, with options that are parsed already."""
    schema = write_schema(frame.schema)
    _refuse_our_names(schema.names)
    prepared = prepare_write(
        location_of(request),
        schema,
        dataset_options(request, mode),
        authorize=request.virtual_authorize,
        virtual_options=request.virtual_storage_options,
    )
    if prepared.skipped is not None:
        return prepared.skipped
    with raised_in_tasks():
        if request.layout == "cells":
            plan, receipts = _write_cells(frame, schema, prepared, request)
        else:
            plan, receipts = _write_layout(frame, prepared, request)
    return finish_write(plan, receipts)


def _write_cells(
    frame: DataFrame, schema: pa.Schema, prepared: PreparedWrite, request: WriteRequest
) -> tuple[WritePlan, list[Any]]:
    found = collect_coordinates(frame, prepared.dims, schema)
    plan = plan_write(prepared, found.labels, found.row_count)
    receipts: list[Any] = []
    for part in plan.parts:
        rows = _placed_rows(frame, plan, part)
        rows = _distributed(rows, part.units, [UNIT, BLOCK], request.distribution)
        receipts += _receipts(rows, cell_task(part.context, part.input_schema))
    return plan, receipts


def _placed_rows(frame: DataFrame, plan: WritePlan, part: WritePart) -> DataFrame:
    """Return the rows of a part with their unit, block and indices instead of their labels."""
    rows = frame.select(*[quoted(name) for name in (*part.dims, *part.variables)])
    if part.is_distinct:
        rows = rows.distinct()
    units: Column = F.lit(0).cast("bigint")
    blocks: Column = F.lit(0).cast("bigint")
    for axis, name in enumerate(part.dims):
        table = plan.dimension_tables[name]
        label, unit, block = f"_label_{axis}", f"_unit_{axis}", f"_block_{axis}"
        columns = {
            label: table.column("value"),
            f"{_INDEX}{axis}": table.column("index"),
            unit: table.column(f"unit_{part.number}"),
            block: table.column(f"block_{part.number}"),
        }
        kinds = StructType(
            [StructField(label, frame.schema[name].dataType)]
            + [StructField(other, LongType()) for other in columns if other != label]
        )
        places = frame.sparkSession.createDataFrame(pa.table(columns), schema=kinds)
        if table.num_rows <= _BROADCAST_LABELS:
            places = F.broadcast(places)
        # Left, so that a label that the first pass did not see is noticed by the task.
        rows = rows.join(places, quoted(name) == F.col(label), "left")
        units, blocks = units + F.col(unit), blocks + F.col(block)
    values = part.input_schema.names[2:]
    return rows.select(
        units.alias(UNIT), blocks.alias(BLOCK), *[quoted(name) for name in values]
    )


def _write_layout(
    frame: DataFrame, prepared: PreparedWrite, request: WriteRequest
) -> tuple[WritePlan, list[Any]]:
    """Write rows that are chunks or chunk references."""
    plan = plan_layout_write(prepared)
    (part,) = plan.parts
    table = plan.array_table.rename_columns(
        ["_label_array" if name == "array" else f"_{name}" for name in plan.array_table.column_names]
    )
    places = frame.sparkSession.createDataFrame(table)
    rows = frame.join(F.broadcast(places), F.col("array") == F.col("_label_array"), "left")
    blocks = F.zip_with("chunk", "_per_block", lambda chunk, size: F.floor(chunk / size))
    units = F.zip_with(blocks, "_blocks_per_unit", lambda block, size: F.floor(block / size))
    rows = rows.select(
        F.coalesce(F.col("_base") + _dot(units, "_unit_strides"), F.lit(0)).alias(UNIT),
        F.coalesce(_dot(blocks, "_block_strides"), F.lit(0)).alias(BLOCK),
        *[quoted(name) for name in frame.columns],
    )
    rows = _distributed(rows, part.units, [UNIT, "array", BLOCK], request.distribution)
    return plan, _receipts(rows, layout_task(part.context))


def _dot(values: Column, strides: str) -> Column:
    products = F.zip_with(values, strides, lambda value, stride: value * stride)
    return F.aggregate(products, F.lit(0).cast("bigint"), lambda total, item: total + item)


def _distributed(
    rows: DataFrame, units: int, order: list[str], distribution: str
) -> DataFrame:
    """Return the rows with those of a unit in one partition, in the order of their blocks."""
    if distribution == "hash":
        tasks = max(1, min(units, MAX_TASKS))
        by_id = getattr(rows, "repartitionById", None)
        if by_id is not None:  # Spark 4.1: no two units share a partition while another is empty
            rows = by_id(tasks, (F.col(UNIT) % tasks).cast("int"))
        else:
            rows = rows.repartition(tasks, UNIT)
    return rows.sortWithinPartitions(*order)


def _receipts(
    rows: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> list[Any]:
    answers = rows.mapInArrow(task, _RECEIPTS).collect()
    return [pickle.loads(bytes(answer[0])) for answer in answers]


def _refuse_our_names(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInputError(
            f"the DataFrame has more than one column '{twice[0]}': rename or drop one of them",
            column=twice[0],
        )
    for name in names:
        if name in (UNIT, BLOCK) or name.startswith((_INDEX, "_label_", "_unit_", "_block_")):
            raise InvalidInputError(
                f"column '{name}' has a name that the write uses itself: rename it, as in"
                f" df.withColumnRenamed('{name}', '{name.strip('_')}')",
                column=name,
            )


__all__ = ["MAX_TASKS", "run_planned_write", "write"]
