"""Implements ``icechunk_spark.rechunk``: Spark runs the tasks and shuffles blocks of values.

Rules of this file
------------------
1. Plans show rows, so the functions contain locations and credentials.
2. The import is cheap, because `icechunk_spark` imports this module: the first call imports Arrow
   and the layer of tables.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import own_options
from icechunk_format.options.values import parse_byte_size
from icechunk_spark.jobs.session_options import session_change, workflow_target

if TYPE_CHECKING:
    import pyarrow as pa

    from icechunk_format.groups.changing import TaskReceipt
    from icechunk_format.storage.measures import Measures
    from icechunk_format.workflows.rechunking import RechunkResult
    from icechunk_format.workflows.rechunking.run import Rechunking

_PIECES = StructType(
    [
        StructField("group", LongType()),
        StructField("box", BinaryType()),
        StructField("data", BinaryType()),
    ]
)
_BATCH_BYTES = 8 * 2**20
_BATCH_PIECES = 10_000


@checked_call("rechunk")
def rechunk(
    spark: SparkSession,
    path: str,
    *,
    chunks: Mapping[str, int] | Literal["auto"],
    to: str | None = None,
    to_group: str | None = None,
    to_branch: str | None = None,
    to_options: Mapping[str, str] | None = None,
    shards: Mapping[str, int] | None = None,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    variables: Sequence[str] | None = None,
    sel: str | Mapping[str, Any] | None = None,
    isel: str | Mapping[str, Any] | None = None,
    memory: str | int = "512m",
    dry_run: bool = False,
    group: str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: Any = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    create_branch: bool = False,
    on_conflict: Literal["rebase", "fail"] = "rebase",
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    **options: Any,
) -> RechunkResult:
    """Store arrays in other chunks, bit for bit, in one commit.

    For example, a time series at a point, which requires a chunk of every map if each chunk holds
    one map, can be read in one request afterwards. Without ``to`` and ``to_group``, the arrays of
    the group are replaced, and older snapshots keep the old chunks. Attributes, dimension names,
    data types and fill values do not change. Chunks that contain only fill values are not stored.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    chunks
        Elements of a chunk by dimension; -1 is the whole dimension, and other dimensions keep their
        chunks. ``"auto"`` chooses chunks of at most 100 MB, or of 1 MB in shards. Each coordinate
        of a dimension becomes one chunk.
    to, to_group, to_branch
        Repository, group and branch of the new arrays; by default those of the source. A repository
        that does not exist is created. In another repository or group, all arrays of the group are
        stored, and none of them may exist there.
    to_options
        Options ``storage.*`` of the repository `to`; by default those of the source.
    shards
        Elements of a shard by dimension, rounded up to chunks; by default no shards.
    encoding
        Codecs of chunks by variable, as JSON of Zarr v3: ``{"t2m": {"codecs": [...]}}``.
    variables
        Names of arrays; by default all with a dimension of `chunks`.
    sel, isel
        With `to` or `to_group`, the region to store, by labels or positions as in reading: one
        range along each dimension, without a step. A single value gives a dimension of length 1.
    memory
        Maximum bytes of decoded values in a task, such as ``"512m"``. A Python worker needs about
        three times as much.
    dry_run
        If True, only the plan is returned; nothing is stored.
    group, branch, tag, snapshot, as_of
        Group and snapshot to read, as in reading.
    message, metadata, create_branch, on_conflict, txn_app_id, txn_version
        Options of the commit, as in writing.
    **options
        ``storage_*`` and ``virtual_*``, as in reading. Virtual chunks become chunks of the
        repository.

    Returns
    -------
    RechunkResult
        Numbers of tasks, bytes and shuffled blocks; ``commit`` is the result of the write.

    Raises
    ------
    ConflictError
        Other writers changed the same arrays meanwhile; nothing was committed. If they only
        appended, the whole job runs again with the new data, unless ``on_conflict="fail"``.
    InvalidInputError
        A size, name or option cannot be used.
    AlreadyExistsError
        An array already exists at the path of a new one.
    UnsupportedError
        A codec does not support encoding.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.rechunk(  # doctest: +SKIP
    ...     spark, "s3://bucket/era5", chunks={"time": -1, "latitude": 20, "longitude": 20}
    ... )
    """
    given = own_options("rechunk", locals())
    read, commit = session_change(spark, path, given, "rechunk")
    from icechunk_format.options.location import location_of
    from icechunk_format.workflows.rechunking import RechunkRequest, rechunk_arrays
    from icechunk_spark.jobs.errors import raised_in_jobs
    from icechunk_spark.jobs.session import cores_of
    from icechunk_spark.jobs.totals import in_commit, totalled

    target = location_of(read) if to is None else workflow_target(spark, to, to_options, options)
    work = RechunkRequest(
        read=read,
        target=target,
        options=replace(
            commit,
            branch=to_branch or (read.branch if to is None else None) or "main",
            group=to_group if to_group is not None else read.group,
        ),
        chunks=chunks,
        shards=shards,
        encoding=encoding or {},
        memory=parse_byte_size("memory", str(memory)),
    )
    with totalled() as totals, raised_in_jobs(f"rechunking into {target}"):
        done = rechunk_arrays(
            work, partial(_on_spark, spark), cores=cores_of(spark), dry_run=dry_run
        )
    return in_commit(done, totals)


def _on_spark(spark: SparkSession, work: Rechunking) -> Iterable[TaskReceipt]:
    """Run all tasks: one job for direct arrays, and one for each array with a shuffle."""
    from icechunk_format.workflows.rechunking.run import copy_group
    from icechunk_spark.jobs.task_rows import on_executors

    direct = [
        (path, number)
        for path, plan in work.arrays.items()
        if plan.kind == "direct"
        for number in range(len(plan.groups))
    ]
    receipts: list[TaskReceipt] = on_executors(spark, partial(copy_group, work), direct)
    for path, plan in work.arrays.items():
        if plan.kind == "shuffled":
            receipts += _shuffled(spark, work, path)
    return receipts


def _shuffled(spark: SparkSession, work: Rechunking, path: str) -> list[TaskReceipt]:
    from icechunk_format.storage.measures import Measures, measured
    from icechunk_format.workflows.rechunking.run import Piece, cut_again, cut_group, write_groups
    from icechunk_spark.jobs.errors import errors_on_one_line
    from icechunk_spark.jobs.session import dealt_out, together
    from icechunk_spark.jobs.task_rows import (
        MAX_PARTITIONS,
        collected,
        grouped_rows,
        rows_of,
        tasks_in,
        work_rows,
    )
    from icechunk_spark.reading.metrics import accumulator_of

    plan = work.arrays[path]
    groups = max(len(plan.groups), len(plan.middle or ()))

    # Only the last tasks send receipts. An accumulator sends the counts of the others. Connect has
    # none, so there they are sent as a piece whose group is beyond those of the plan: without
    # requests and times, since Spark fails the job if a repeated task returns different rows.
    accumulator = accumulator_of(spark)
    job = (f"rechunk {secrets.token_hex(8)}", -1)

    def sent(counts: Measures, group: int) -> Iterator[pa.RecordBatch]:
        if accumulator is not None:
            accumulator.add({job: replace(counts, tasks=1)})
            return
        kept = Measures(tasks=1, chunks_decoded=counts.chunks_decoded)
        yield from _batches([Piece(group, b"", pickle.dumps(kept))])

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            for number in tasks_in(batches):
                before = measured()
                yield from _batches(cut_group(work, (path, number)))
                yield from sent(measured() - before, groups + number)

    def split(batches: Iterator[pa.RecordBatch], counts: list[Piece]) -> Iterator[Piece]:
        for piece in starmap(Piece, rows_of(batches)):
            if piece.group < groups:
                yield piece
            else:
                counts.append(piece)

    def again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with errors_on_one_line():
            before, counts = measured(), list[Piece]()
            yield from _batches(cut_again(work, path, split(batches, counts)))
            yield from _batches(counts)
            yield from sent(measured() - before, groups)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[TaskReceipt | Measures]:
        counts: list[Piece] = []
        yield write_groups(work, path, split(batches, counts))
        yield sum((pickle.loads(piece.values) for piece in counts), Measures())

    def dealt(rows: DataFrame, groups: int) -> DataFrame:
        # A partition of one group is not sorted, since sorting would copy every piece again.
        if groups <= MAX_PARTITIONS and dealt_out(rows, F.col("group"), groups) is not None:
            return together(rows, F.col("group"), groups)
        return grouped_rows(rows, "group", min(groups, MAX_PARTITIONS))

    rows = work_rows(spark, list(range(len(plan.source)))).mapInArrow(cut, _PIECES)
    if plan.middle is not None:
        rows = dealt(rows, len(plan.middle)).mapInArrow(again, _PIECES)

    def earlier() -> Measures:
        return Measures() if accumulator is None else accumulator.value.pop(job, Measures())

    found: list[TaskReceipt] = collected(dealt(rows, len(plan.groups)), write, earlier)
    return found


def _batches(pieces: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield pieces in batches of bounded size."""
    from icechunk_format.storage.batches import sized_batches
    from icechunk_spark.jobs.task_rows import batches_of
    from icechunk_spark.schema import arrow_target

    schema = arrow_target(_PIECES)
    sized = ((piece, len(piece.values)) for piece in pieces)
    for held in sized_batches(sized, _BATCH_PIECES, _BATCH_BYTES):
        yield from batches_of(held, schema, _BATCH_PIECES)
