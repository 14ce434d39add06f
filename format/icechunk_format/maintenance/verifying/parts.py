"""Runs the stages of a verification on Arrow rows, which a cluster can shuffle.

=====  =======================================  ================================================
stage  rows in                                  rows out
=====  =======================================  ================================================
1      a task: snapshots, backups, or a prefix  claims about manifests; existing manifests;
       of the listing of ``manifests/``         findings
2      those, with rows of one manifest         references to chunk objects; findings
       together
3      references joined with the listing of    findings
       ``chunks/``, all rows of both sides
4      findings                                 findings, merged and bounded
=====  =======================================  ================================================

Rules of this file
------------------
1. Rows of stages 1 and 2 have one schema, ``WORK_SCHEMA``: findings are passed through the stages
   with the rows to process, so each file is read once.
2. References stay columnar from the manifest to the finding.
3. A task returns at most ``max_findings`` findings of each severity, and the number of others.
"""

from __future__ import annotations

import pickle
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.encoding.ids import ALPHABET, ChunkId, ManifestId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE
from icechunk_format.encoding.object_keys import CHUNKS, MANIFESTS
from icechunk_format.maintenance.garbage.object_listing import list_ids
from icechunk_format.maintenance.verifying.checks.files import (
    VerifyContext,
    check_backups,
    check_manifests,
    check_snapshots,
)
from icechunk_format.maintenance.verifying.checks.manifests import UsedRefs, needed_bytes
from icechunk_format.maintenance.verifying.checks.state import RankedSnapshot, VerifyState
from icechunk_format.maintenance.verifying.checks.uses import ManifestClaims, gather
from icechunk_format.maintenance.verifying.findings import (
    FINDING,
    LEFT_OUT,
    REPORT_SCHEMA,
    TOTAL,
    Finding,
    Report,
)
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.storage.batches import batches

CLAIMS: Final = "claims"
LISTED: Final = "listed"
REFERENCE: Final = "reference"

WORK_SCHEMA: Final = pa.schema(
    [
        *REPORT_SCHEMA,
        pa.field("id", pa.binary()),
        pa.field("claims", pa.binary()),
        pa.field("size", pa.int64()),
    ]
)
"""``id`` is that of a manifest (``CLAIMS``, ``LISTED``) or a chunk object (``REFERENCE``); ``size``
is the size of a listed manifest, or the minimum size of a chunk object."""

LISTING_SCHEMA: Final = pa.schema(
    [pa.field("listed_id", pa.binary()), pa.field("listed_nbytes", pa.int64())]
)
"""Chunk objects. A row without an id has the number of foreign objects as a negative size."""

# The size of a reference that no array uses; its object counts as referenced but is not checked.
_MARK_ONLY: Final = -1
_REPORT_PARTS: Final = (FINDING, LEFT_OUT, TOTAL)
_ROWS_AT_ONCE: Final = 50_000
_ROWS_OF_MANIFESTS: Final = 1_000
_FOREIGN: Final = string.ascii_lowercase + "ILOU._-~"


class VerifyTask(NamedTuple):
    """A task of the first stage.

    ``manifests`` are first characters of manifest ids to list: empty for all, None to list nothing.
    """

    snapshots: tuple[RankedSnapshot, ...] = ()
    backups: tuple[str, ...] = ()
    manifests: str | None = None


def verify_tasks(state: VerifyState, count: int) -> list[VerifyTask]:
    """Divide the first stage into about ``count`` tasks of each kind.

    Consecutive snapshots share a task, since they share most of their nodes.
    """
    tasks = [
        VerifyTask(snapshots=state.snapshots[first:last])
        for first, last in _cuts(len(state.snapshots), count)
    ]
    tasks += [
        VerifyTask(backups=state.backups[first:last])
        for first, last in _cuts(len(state.backups), count)
    ]
    if state.is_whole:
        tasks += [VerifyTask(manifests=character) for character in id_prefixes()]
    return tasks


def id_prefixes() -> list[str]:
    """Return the first characters by which a listing is divided into tasks.

    Foreign objects that begin with other characters are not counted.
    """
    return list(ALPHABET.decode("ascii") + _FOREIGN)


def _cuts(length: int, count: int) -> list[tuple[int, int]]:
    bounds = [length * part // count for part in range(count + 1)]
    return [(a, b) for a, b in pairwise(bounds) if a < b]


# -- stage 1 --------------------------------------------------------------------------------------


def run_verify(
    context: VerifyContext, task: VerifyTask, progress: ProgressOption = None
) -> Iterator[pa.RecordBatch]:
    """Run a task of the first stage; yield rows of ``WORK_SCHEMA``."""
    report = context.new_report()
    with phase(progress, "Checking versions", len(task.snapshots)) as advance:
        claims = gather(check_snapshots(context, task.snapshots, report, advance))
    check_backups(context, task.backups, report)
    rows = (
        {
            "part": CLAIMS,
            "id": one.manifest_id.raw,
            "claims": pickle.dumps([*one.uses, *one.entries]),
        }
        for one in claims.values()
    )
    for held in batches(rows, _ROWS_OF_MANIFESTS):
        yield pa.RecordBatch.from_pylist(held, schema=WORK_SCHEMA)
    if task.manifests is not None:
        for page in list_ids(context.storage, MANIFESTS, task.manifests):
            report.count(f"foreign {MANIFESTS}", page.foreign)
            yield _columns(
                len(page.ids),
                part=pa.repeat(LISTED, len(page.ids)),
                id=_binary(page.ids),
                size=pa.array(page.sizes),
            )
    yield as_work(report)


# -- stage 2 --------------------------------------------------------------------------------------


def check_manifest_rows(
    context: VerifyContext,
    batches: Iterable[pa.RecordBatch],
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Check manifests, given the rows of each together; yield rows of ``WORK_SCHEMA``.

    ``advance`` is called with the number of manifests finished since its last call.

    Memory: the claims about some manifests, and one decoded manifest.
    """
    report = context.new_report()

    def claims() -> Iterator[ManifestClaims]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for raw, group in groupby(rows, key=lambda row: row["id"]):
            if raw is None:
                report.absorb(group)
                continue
            one = ManifestClaims(ManifestId(raw))
            listed_size = None
            for row in group:
                if row["part"] == LISTED:
                    listed_size = row["size"]
                else:
                    # Safe to unpickle: serialized by a task of the same job.
                    for claim in pickle.loads(row["claims"]):
                        one.add(claim)
            if one.is_empty:
                report.count(f"unreferenced {MANIFESTS}", 1, listed_size or 0)
            else:
                yield one
            advance(1)

    for used in check_manifests(context, claims(), report):
        yield from _reference_rows(used)
    yield as_work(report)


def _reference_rows(used: UsedRefs) -> Iterator[pa.RecordBatch]:
    """Yield the references of an array to chunk objects, with the minimum sizes of the objects."""
    refs, ndim = used.refs, used.refs.ndim
    native = np.flatnonzero(refs.kind == KIND_NATIVE)
    for first in range(0, len(native), _ROWS_AT_ONCE):
        rows = native[first : first + _ROWS_AT_ONCE]
        count = len(rows)
        ends = np.full(count, _MARK_ONLY, dtype=np.int64)
        if used.uses:
            # Invalid large ends are clamped; ``ref-range`` reports them.
            ends = needed_bytes(refs, rows)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * ndim)
        coords = np.ascontiguousarray(refs.coords[rows]).astype(np.int64).reshape(-1)
        path = pa.scalar(used.node_path, pa.string())
        yield _columns(
            count,
            part=pa.repeat(REFERENCE, count),
            snapshot_id=pa.repeat(used.mark.snapshot_id, count),
            node_path=pa.repeat(path, count),
            chunk=pa.ListArray.from_arrays(offsets, pa.array(coords)),
            rank=pa.repeat(pa.scalar(used.mark.rank, pa.int64()), count),
            id=_binary(refs.chunk_id[rows]),
            size=pa.array(ends),
        )


# -- stage 3 --------------------------------------------------------------------------------------


def list_chunk_objects(context: VerifyContext, starts_with: str) -> Iterator[pa.RecordBatch]:
    """List chunk objects by first characters; yield rows of ``LISTING_SCHEMA``."""
    for page in list_ids(context.storage, CHUNKS, starts_with):
        yield pa.RecordBatch.from_arrays(
            [_binary(page.ids), pa.array(page.sizes)], schema=LISTING_SCHEMA
        )
        if page.foreign:
            foreign: list[Any] = [pa.nulls(1, pa.binary()), pa.array([-page.foreign], pa.int64())]
            yield pa.RecordBatch.from_arrays(foreign, schema=LISTING_SCHEMA)


def check_joined_rows(
    context: VerifyContext, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Check rows of the full outer join of work and listing; yield rows of ``REPORT_SCHEMA``.

    Columns are those of ``WORK_SCHEMA``, and ``listed_nbytes`` of ``LISTING_SCHEMA``.
    """
    report = context.new_report()
    for batch in batches:
        table = pa.Table.from_batches([batch])
        part, listed = table["part"], table["listed_nbytes"]
        report.absorb(table.filter(pc.is_in(part, pa.array(_REPORT_PARTS))).to_pylist())
        # Objects without a reference.
        alone = listed.filter(pc.and_(pc.is_null(part), pc.greater_equal(listed, 0)))
        report.count(f"unreferenced {CHUNKS}", len(alone), pc.sum(alone).as_py() or 0)
        foreign = listed.filter(pc.less(listed, 0))
        report.count(f"foreign {CHUNKS}", -(pc.sum(foreign).as_py() or 0))
        wanted = pc.and_(
            pc.fill_null(pc.equal(part, REFERENCE), False),
            pc.fill_null(pc.not_equal(table["size"], _MARK_ONLY), False),
        )
        is_missing = pc.and_(wanted, pc.is_null(listed))
        is_short = pc.and_(wanted, pc.fill_null(pc.less(listed, table["size"]), False))
        for kind, mask in (("chunk-missing", is_missing), ("chunk-too-short", is_short)):
            _report_chunks(report, kind, table.filter(mask))
    yield report.to_batch()


def _report_chunks(report: Report, kind: str, table: pa.Table) -> None:
    def make(position: int) -> Finding:
        [row] = table.slice(position, 1).to_pylist()
        problem = "the chunk object does not exist"
        if row["listed_nbytes"] is not None:
            found, needed = row["listed_nbytes"], row["size"]
            problem = f"the chunk object has {found} bytes, but its reference needs {needed}"
        return Finding(
            kind=kind,
            problem=problem,
            object_key=f"{CHUNKS}{ChunkId(row['id'])}",
            snapshot_id=row["snapshot_id"],
            node_path=row["node_path"],
            chunk=tuple(row["chunk"]),
            rank=row["rank"],
        )

    report.add_many(kind, table.num_rows, make)


# -- stage 4 --------------------------------------------------------------------------------------


def merge_reports(
    context: VerifyContext, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merge rows of ``REPORT_SCHEMA`` to the rows of one report."""
    report = context.new_report()
    for batch in batches:
        report.absorb(batch.to_pylist())
    yield report.to_batch()


# -- rows -----------------------------------------------------------------------------------------


def as_work(report: Report) -> pa.RecordBatch:
    """Convert a report to rows of ``WORK_SCHEMA``."""
    batch = report.to_batch()
    return _columns(batch.num_rows, **{name: batch.column(name) for name in REPORT_SCHEMA.names})


def _columns(count: int, **columns: Any) -> pa.RecordBatch:
    """Return rows of ``WORK_SCHEMA`` with these columns, and nulls in other columns."""
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in WORK_SCHEMA],
        schema=WORK_SCHEMA,
    )


def _binary(ids: np.ndarray[Any, np.dtype[np.uint8]]) -> pa.Array:
    """Convert ids ``uint8 (n, 12)`` to a column of bytes."""
    raw = np.ascontiguousarray(ids)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(ChunkId.SIZE), len(raw), [None, pa.py_buffer(raw.tobytes())]
    )
    return fixed.cast(pa.binary())
