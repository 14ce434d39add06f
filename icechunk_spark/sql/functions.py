"""Defines the table functions of views: one plans a read, one runs the tasks of the plan.

Spark pickles them with the options of their view. They run in Python workers of executors.

Rules of this file
------------------
1. A plan is bytes: a signature, then the pickled reader with its tasks, compressed.
2. Workers import this module, so it imports nothing that only a driver needs.
3. Spark 4.0 has no Arrow table functions; there, rows are tuples.
4. If planning fails, the result is the error instead of the plan, and the tasks raise it. Spark
   reports errors of tasks with Python's message, but errors of subqueries with pages of JVM output.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.read import ReadRequest
from icechunk_format.storage.credentials import Profiles, Source
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.profiles import sendable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql.udtf import UserDefinedTableFunction as Function

_SIGNATURE_BYTES: Final = 32


def register_view_functions(
    spark: SparkSession,
    prefix: str,
    request: ReadRequest,
    schema: StructType,
    *,
    parts: int,
    key: bytes,
    counts: Accumulator[Any] | None,
) -> None:
    """Register the functions ``<prefix>_plan`` and ``<prefix>_rows`` with a session.

    `request` and `schema` are those of the view, `parts` is the number of partitions that share the
    tasks of a plan, and `key` signs plans.
    """
    name = f"{prefix}_rows"
    profiles = sent_profiles(request)
    named = str(request.credentials or ""), str(request.virtual_credentials or "")
    request = replace(request, credentials=None, virtual_credentials=None)

    class Plan:
        def eval(self) -> Iterator[tuple[bytes]]:
            # A function of credentials is called for each query.
            one, two = (profiles.named(name) if name else None for name in named)
            current = replace(request, credentials=one, virtual_credentials=two)
            yield (serialized_plan(current, schema, key),)

    class Rows:
        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
            for part, plan in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from run_part(plan, part, parts, key, counts, name)

    class Tuples:
        def eval(self, row: Any) -> Iterator[tuple[Any, ...]]:
            plan = bytes(row["plan"])
            for batch in run_part(plan, row["part"], parts, key, counts, name):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    # pyspark's annotations do not distinguish functions from the decorators that make them.
    plan = cast("Function", functions.udtf(Plan, returnType="plan binary"))
    if hasattr(functions, "arrow_udtf"):
        rows = functions.arrow_udtf(Rows, returnType=schema)
    else:
        rows = functions.udtf(Tuples, returnType=schema, useArrow=True)
    spark.udtf.register(f"{prefix}_plan", plan.asDeterministic())
    spark.udtf.register(name, cast("Function", rows))


def sent_profiles(request: ReadRequest) -> Profiles:
    """Return the credentials of a request with their functions, which Spark pickles."""
    found: dict[str, Source] = {}
    for one in filter(None, (request.credentials, request.virtual_credentials)):
        # The server has another environment.
        found[one.name] = dict(one.settings()) if one.source is None else one.source
    return sendable(Profiles(found))


def serialized_plan(request: ReadRequest, schema: StructType, key: bytes) -> bytes:
    """Plan a read of the columns at the current snapshot, and return the signed plan.

    The plan is an error if an object that the options name does not exist, or a column no longer
    exists or has another type.
    """
    from icechunk_spark.reading.plan import open_read
    from icechunk_spark.schema import changed_column

    planned: tuple[DataSourceReader, list[Any]] | IcechunkError
    try:
        with errors_on_one_line():
            opened = open_read(request)
            try:
                reader = opened.reader(schema, since=None)
            except InvalidInputError as error:
                raise changed_column(schema, opened.schema) or error from None
        planned = reader, [partition.value for partition in reader.partitions()]
    except IcechunkError as error:
        planned = error
    serialized = zlib.compress(pickle.dumps(planned))
    return hmac.digest(key, serialized, hashlib.sha256) + serialized


def run_part(
    plan: bytes,
    part: int,
    parts: int,
    key: bytes,
    counts: Accumulator[Any] | None = None,
    name: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of every task of a signed plan whose number is `part` modulo `parts`.

    Raises
    ------
    InvalidInputError
        The plan was not made by the view with this key.
    """
    signature, serialized = plan[:_SIGNATURE_BYTES], plan[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(key, serialized, hashlib.sha256)):
        raise InvalidInputError("functions of icechunk views only accept plans of their view")
    planned = pickle.loads(zlib.decompress(serialized))
    if isinstance(planned, IcechunkError):
        raise planned
    reader, tasks = planned
    for task in tasks[part::parts]:
        yield from reader.read(InputPartition(task), counts, name)
