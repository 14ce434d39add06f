"""Tasks of a verification: each takes rows of one stage, and returns rows of the next.

Rules of this file
------------------
1. The functions close over a ``VerifyContext``, which every task unpickles. The work itself is in
   ``icechunk_format.maintenance.verifying.parts``.
2. Executors import this module, so it imports nothing that only a driver needs.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from icechunk_format.maintenance.verifying import parts as verify_parts
from icechunk_format.maintenance.verifying.findings import REPORT_SCHEMA
from icechunk_format.maintenance.verifying.parts import LISTING_SCHEMA, WORK_SCHEMA
from icechunk_spark.session.batches import fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icechunk_format.maintenance.verifying.checks.files import VerifyContext

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_JOINED: Final = pa.schema([*WORK_SCHEMA, *LISTING_SCHEMA])


def pieces_task(context: VerifyContext) -> Task:
    """Return the function from pieces of the first stage to rows of work."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in _pieces(batches):
            yield from verify_parts.check_piece(context, piece)

    return run


def manifests_task(context: VerifyContext) -> Task:
    """Return the function from rows about manifests to rows of references."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from verify_parts.check_manifest_rows(context, _fitted(batches, WORK_SCHEMA))

    return run


def listing_task(context: VerifyContext) -> Task:
    """Return the function from first characters to chunk objects."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _pieces(batches):
            yield from verify_parts.list_chunk_objects(context, part)

    return run


def joined_task(context: VerifyContext) -> Task:
    """Return the function from references joined with objects to findings."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from verify_parts.check_joined_rows(context, _fitted(batches, _JOINED))

    return run


def merge_task(context: VerifyContext) -> Task:
    """Return the function that merges all findings."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from verify_parts.merge_reports(context, _fitted(batches, REPORT_SCHEMA))

    return run


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for piece in batch.column("piece"):
            yield pickle.loads(piece.as_py())


def _fitted(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (fitted(batch, schema) for batch in batches)
