"""Collects garbage in Spark jobs, for repositories whose ids do not fit into one process.

How the work is divided
-----------------------
1. The driver reads only ``repo`` (in spec version 1, the chain of snapshots).
2. Executors read the kept snapshots, and group the manifests in them by the first character of
   their ids.
3. Executors read each manifest once, and group its chunks by the first one or two characters of
   their ids.
4. A task for each group of ids lists the objects of the group, and deletes those that are old and
   not referenced.

The marks are the ids of referenced objects, and a part is a group of ids. A row contains all ids of
a part that one task found, as bytes, so that the shuffle is cheap.

Rules of this file
------------------
1. The driver holds no ids except the snapshots in ``repo``. Jobs return counts and the deleted ones
   of these snapshots.
2. All marks are complete and stored before ``repo`` changes, and ``repo`` changes before a file is
   deleted. If Spark loses marks, the same files yield the same marks again.
3. A task may run twice, since its objects are then already deleted. Reported counts are those of
   the attempt that Spark accepts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import partial, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from icechunk_format.maintenance.garbage import parts as collect_parts
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.maintenance.garbage.parts import SweepTask
from icechunk_format.maintenance.garbage.result import CollectResult, DeleteReport, Phase
from icechunk_format.options.arguments import checked_call
from icechunk_format.repository import Repository
from icechunk_format.repository.history import parse_cutoff
from icechunk_format.repository.history.resolve import Cutoff
from icechunk_format.storage.location import Location
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import raised_in_jobs
from icechunk_spark.jobs.session import cores_of, described
from icechunk_spark.jobs.session_options import session_location
from icechunk_spark.jobs.task_rows import COUNTS, Step, collected, counted, grouped_rows, noted
from icechunk_spark.jobs.totals import totalled, with_totals
from icechunk_spark.maintenance import collect_tasks
from icechunk_spark.schema import spark_struct

_PART_IDS: Final = spark_struct(collect_tasks.PART_IDS)
_MANIFESTS: Final = spark_struct(collect_tasks.MANIFESTS)
_ID_SIZE: Final = 12
_HAS_IDS: Final = f"part <> {COUNTS}"
_AFTER_FAILURE: Final = (
    "Only garbage was deleted, and every snapshot is complete; collect again to finish the work"
)

# Approximate number of ids in a part of chunks, which one task holds at once; see _depth.
_REFS_PER_PART: Final = 4_000_000
# Bytes of compressed manifests that one task reads: a few million references.
_MANIFEST_BYTES_PER_TASK: Final = 32 * 2**20
_MAX_TASKS: Final = 10_000
# Ids that one task compares, and snapshots that one task reads. There is at least one task for each
# core, since the amount of garbage is not known beforehand.
_IDS_PER_TASK: Final = 1_000_000
_SNAPSHOTS_PER_TASK: Final = 16
# Maximum number of tasks for each core.
_WAVES: Final = 4


@checked_call("maintenance")
def collect_garbage(
    spark: SparkSession,
    path: str,
    older_than: Cutoff,
    *,
    dry_run: bool = False,
    trim_overwritten_older_than: Cutoff | None = None,
    extra_roots: Iterable[str] = (),
    **options: Any,
) -> CollectResult:
    """Delete objects that no branch, tag or recent snapshot references, with Spark.

    Objects stored after the cutoff are kept, so a cutoff before the start of the oldest open write
    protects that write. ``icechunk_format.maintenance.collect_garbage`` deletes the same objects in
    one process.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    path
        Root of the repository.
    older_than, dry_run, trim_overwritten_older_than, extra_roots
        As in ``icechunk_format.maintenance.collect_garbage``.
    **options
        ``storage.*`` options, as in ``spark.read.option``: ``**{"storage.region": "us-west-2"}``.

    Returns
    -------
    CollectResult
        The counts of deleted objects and bytes.

    Raises
    ------
    IcechunkError
        The repository does not exist, the cutoff is in the future, or a kept file is missing or
        damaged; nothing referenced is deleted.

    Notes
    -----
    The driver holds the object ``repo``. For each running task, an executor holds 12 to 80 bytes
    for each kept chunk of a part (up to four million), 20 bytes for each deleted object of the
    part, and 64 MiB of manifests. A part holds the ids that begin with the same one or two
    characters, 1/32 or 1/1024 of all ids.

    Examples
    --------
    >>> from datetime import timedelta
    >>> collect_garbage(spark, "s3://bucket/weather", timedelta(days=7))  # doctest: +SKIP
    """
    older_than = parse_cutoff(older_than, argument="older_than")
    location = session_location(spark, path, options)
    repository = Repository.open(location)
    collector = SparkCollector(spark, location, older_than, dry_run=dry_run)
    try:
        with (
            totalled() as totals,
            raised_in_jobs(f"collecting garbage of {location}", _AFTER_FAILURE),
        ):
            done = collect_from(
                repository.storage,
                collector,
                spec_version=repository.spec_version,
                older_than=older_than,
                dry_run=dry_run,
                trim_overwritten_older_than=trim_overwritten_older_than,
                extra_roots=extra_roots,
            )
        return with_totals(done, totals)
    finally:
        collector.close()


@dataclass(eq=False)
class SparkCollector:
    """A ``Collector`` of ``icechunk_format.maintenance.garbage.marks`` on executors."""

    spark: SparkSession
    location: Location
    older_than: datetime
    _: KW_ONLY
    dry_run: bool
    _marks: dict[Phase, list[DataFrame]] = field(default_factory=dict, init=False)
    # Number of ids of each part in the marks; a task that receives fewer refuses to delete.
    _sent: dict[Phase, dict[int, int]] = field(default_factory=dict, init=False)
    _depth: int = field(default=1, init=False)

    def close(self) -> None:
        """Release the marks that Spark keeps."""
        for marks in self._marks.values():
            for stored in marks:
                stored.unpersist()
        self._marks, self._sent = {}, {}

    def old_snapshots(self, candidates: frozenset[Any]) -> frozenset[Any]:
        """Return the candidates whose files exist and are older than the cutoff."""
        raw = collect_parts.snapshot_rows(candidates, 1)[0]
        parts = sorted(set(collect_parts.parts_of(collect_parts.ids_in(raw), 1).tolist()))
        task = partial(collect_tasks.old_snapshots, self.location, self.older_than, raw)
        rows = self._frame([(part, b"") for part in parts])
        tasks = min(len(parts), cores_of(self.spark))
        found = rows.repartition(tasks, "part").mapInArrow(_counted(task), _PART_IDS)
        with self._doing("ages of snapshots"):
            ids = cancellable(found, found.collect)
            noted(row["ids"] for row in ids if row["part"] == COUNTS)
        old = b"".join(bytes(row["ids"]) for row in ids if row["part"] != COUNTS)
        by_raw = {snapshot_id.raw: snapshot_id for snapshot_id in candidates}
        return frozenset(by_raw[old[i : i + _ID_SIZE]] for i in range(0, len(old), _ID_SIZE))

    def mark(self, kept: frozenset[Any]) -> None:
        """Read kept snapshots and their manifests, and store their ids as marks."""
        self.close()
        self.mark_also(kept)

    def mark_also(self, added: frozenset[Any]) -> None:
        """Read more snapshots and their manifests, and add their ids to the marks."""
        cores = cores_of(self.spark)
        tasks = min(_WAVES * cores, -(-len(added) // _SNAPSHOTS_PER_TASK))
        rows = collect_parts.snapshot_rows(added, tasks)
        snapshots = self._frame(list(enumerate(rows))).repartition(len(rows), "part")
        listed = snapshots.mapInArrow(
            _counted(partial(collect_tasks.listed_manifests, self.location)), _PART_IDS
        )
        manifests = self._stored(
            Phase.MANIFESTS,
            self._by_part(listed, collect_parts.part_count(1), 0).mapInArrow(
                collect_tasks.distinct_manifests, _MANIFESTS
            ),
        )
        sums = manifests.groupBy("part").agg(
            F.sum(F.length("ids")), F.count("*"), F.sum("size"), F.sum("refs"), _receipts()
        )
        with self._doing("finding manifests of kept snapshots"):
            numbers = [tuple(map(int, row[:-1])) for row in _parts_of(sums)]
        self._count(Phase.MANIFESTS, ((part, ids) for part, ids, *_ in numbers))
        count, size, references = (sum(row[column] for row in numbers) for column in (2, 3, 4))
        if Phase.CHUNKS not in self._marks:
            self._depth = _depth(references)
        depth = self._depth
        tasks = max(min(count, cores), size // _MANIFEST_BYTES_PER_TASK, 1)
        # Distributed by content and sorted, so that a repeated task receives and returns the same
        # rows.
        spread = manifests.where(_HAS_IDS).repartition(min(tasks, _MAX_TASKS), "ids")
        spread = spread.sortWithinPartitions("ids")
        read = _counted(partial(collect_tasks.referenced_chunks, self.location, depth))
        chunks = self._stored(Phase.CHUNKS, spread.mapInArrow(read, _PART_IDS))
        with self._doing("finding chunks in kept manifests"):
            found = _parts_of(chunks.groupBy("part").agg(F.sum(F.length("ids")), _receipts()))
        self._count(Phase.CHUNKS, ((int(part), int(ids)) for part, ids, _ in found))

    def sweep(self, phase: Phase, kept: frozenset[Any] | None) -> DeleteReport:
        """Delete the objects of a phase that are older than the cutoff and not marked."""
        depth = self._depth if phase is Phase.CHUNKS else 1
        if kept is None:
            marked = self._marks[phase]
            stored = [marks.where(_HAS_IDS).select("part", "ids") for marks in marked]
            marks, sent = reduce(lambda one, more: one.unionByName(more), stored), self._sent[phase]
        else:
            raw = collect_parts.ids_in(collect_parts.snapshot_rows(kept, 1)[0])
            by_part = list(collect_parts.ids_by_part(raw, depth))
            marks = self._frame(by_part)
            sent = {part: len(ids) // _ID_SIZE for part, ids in by_part}
        count = collect_parts.part_count(depth)
        expected = self._frame([(part, b"") for part in range(count)], number=sent)
        rows = marks.withColumn("number", F.lit(0).cast("bigint")).unionByName(expected)
        task = SweepTask(
            location=self.location,
            phase=phase,
            older_than=self.older_than,
            depth=depth,
            dry_run=self.dry_run,
        )
        grouped = self._by_part(rows, count, sum(sent.values()))
        verb = "counting" if self.dry_run else "deleting"
        with self._doing(f"{verb} old {phase.value}".replace("_", " ")):
            return sum(collected(grouped, partial(collect_tasks.sweep, task)), DeleteReport())

    def _doing(self, step: str) -> AbstractContextManager[None]:
        return described(f"collecting garbage of {self.location}: {step}")

    def _by_part(self, rows: DataFrame, count: int, ids: int) -> DataFrame:
        """Return the rows grouped by part."""
        cores = cores_of(self.spark)
        tasks = min(count, max(cores, min(_WAVES * cores, ids // _IDS_PER_TASK)))
        return grouped_rows(rows, "part", tasks)

    def _stored(self, phase: Phase, marks: DataFrame) -> DataFrame:
        stored = marks.persist(StorageLevel.MEMORY_AND_DISK)
        self._marks.setdefault(phase, []).append(stored)
        return stored

    def _count(self, phase: Phase, found: Iterable[tuple[int, int]]) -> None:
        """Add to the number of ids of each part, given as bytes."""
        sent = self._sent.setdefault(phase, {})
        for part, size in found:
            sent[part] = sent.get(part, 0) + size // _ID_SIZE

    def _frame(
        self, rows: list[tuple[int, bytes]], number: dict[int, int] | None = None
    ) -> DataFrame:
        """Return a DataFrame of a few rows of serialized ids."""
        columns = {
            "part": pa.array([part for part, _ in rows], pa.int64()),
            "ids": pa.array([ids for _, ids in rows], pa.binary()),
        }
        fields = list(_PART_IDS.fields)
        if number is not None:
            columns["number"] = pa.array([number.get(part, 0) for part, _ in rows], pa.int64())
            fields.append(StructField("number", LongType()))
        return self.spark.createDataFrame(pa.table(columns), schema=StructType(fields))


def _counted(step: Step) -> Step:
    return counted(step, collect_tasks.PART_IDS, "ids")


def _receipts() -> Column:
    return F.collect_list(F.when(F.col("part") == COUNTS, F.col("ids")))


def _parts_of(sums: DataFrame) -> list[Row]:
    """Collect the sums of parts; add the counts of tasks, in the last column, to the totals."""
    rows = cancellable(sums, sums.collect)
    noted(receipt for row in rows for receipt in row[-1])
    return [row for row in rows if row["part"] != COUNTS]


def _depth(references: int) -> int:
    """Return the number of characters of an id that determine its part."""
    return 1 if references <= _REFS_PER_PART * collect_parts.part_count(1) else 2
