"""Writes the batches of a stream: each in one commit, exactly once.

Rules of this file
------------------
1. A batch is identified by the id of the query, which the checkpoint stores, and by its number.
   Commits record them as ``txnAppId`` and ``txnVersion``, so a batch that runs again is skipped.
2. A batch without rows commits nothing.
3. Without the option ``group``, the group is chosen when the stream starts. Each commit of the
   stream records it as ``txnGroup``, and later batches use the recorded group, regardless of groups
   of other writers.
4. If the outcome of a commit is unknown, the history is read until it shows the commit. If storage
   keeps failing, the query fails, and the history is read again when the batch is repeated.
"""

from __future__ import annotations

import posixpath
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    IcechunkError,
    InvalidInputError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.groups.changing import WriteResult
from icechunk_format.groups.changing.result import TXN_QUERY, committed_before, last_committed
from icechunk_format.maintenance.rewriting.rewrite import rewrite_manifests
from icechunk_format.options.location import access_of, location_of
from icechunk_format.options.write import Mode, WriteRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables.writing.prepare import prepare_write
from icechunk_spark.jobs.cancelling import cancellable
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import QUERY_ID, described
from icechunk_spark.schema import write_schema
from icechunk_spark.writing.planned import run_planned_write

#: Key of a commit's metadata that holds the group of its stream, if the stream chose it itself.
TXN_GROUP: Final = "txnGroup"
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 1.0


def mode_of(output_mode: str | None) -> Mode:
    """Return the save mode for an output mode: ``complete`` overwrites."""
    return "overwrite" if (output_mode or "append").strip().lower() == "complete" else "append"


def refuse_checkpoint_inside(request: WriteRequest, checkpoint: str | None) -> None:
    """Raise InvalidInputError if a checkpoint would make the place of a new repository not empty.

    An existing repository ignores other folders at its place.
    """
    if checkpoint is None:
        return
    root, inside = (_folder(string) for string in (request.path, checkpoint))
    is_inside = inside == root or inside.startswith(f"{root}/")
    if is_inside and RepositoryReader.find(location_of(request)) is None:
        raise InvalidInputError(
            f"checkpointLocation={checkpoint!r} is inside of {request.path}, where the stream"
            " creates a repository, which needs an empty folder: choose a folder beside it, such"
            f" as {request.path.rstrip('/')}_checkpoint",
            option="checkpointLocation",
            value=checkpoint,
        )


def checkpoint_in(options: Mapping[str, Any]) -> str | None:
    """Return the option ``checkpointLocation``, in any case."""
    for name, value in options.items():
        if name.lower() == "checkpointlocation":
            return str(value)
    return None


def _folder(string: str) -> str:
    """Return a path or URL in one spelling: without file:, trailing and double slashes."""
    scheme, colon, rest = string.strip().partition("://")
    if not colon:
        scheme, rest = "file", string.strip().removeprefix("file:")
        rest = posixpath.abspath(rest)
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    return f"{scheme}://{posixpath.normpath(rest).lstrip('/')}"


def check_stream(request: WriteRequest, schema: StructType) -> str | None:
    """Check options, columns and repository before a stream starts, and return its group.

    The group is None if it depends on earlier commits of the stream, whose id is not known yet.
    """
    try:
        prepared = prepare_write(
            location_of(request),
            write_schema(schema),
            # The id of the query is not known yet.
            replace(request, txn_app_id=None),
            access_of(request),
        )
    except (InvalidInputError, UnsupportedError):
        if request.group is None and _has_recorded_groups(request):
            return None
        raise
    return None if isinstance(prepared, WriteResult) else str(prepared.group)


def _has_recorded_groups(request: WriteRequest) -> bool:
    repository = RepositoryReader.find(location_of(request))
    if repository is None or request.branch not in repository.branches():
        return False
    history = repository.ancestry(branch=request.branch)
    return any(TXN_GROUP in info.metadata for info in history)


def with_group(request: WriteRequest, chosen: str | None) -> WriteRequest:
    """Return the request of a batch with the group of its stream, which its commit will record.

    A group that earlier commits of the stream record takes precedence over `chosen`, the result of
    `check_stream`.
    """
    if request.group is not None:
        return request
    repository = RepositoryReader.find(location_of(request))
    last = repository and last_committed(repository, request)
    group = last.metadata.get(TXN_GROUP, chosen) if last else chosen
    if not isinstance(group, str):
        return request
    return replace(request, group=group, metadata={**(request.metadata or {}), TXN_GROUP: group})


class PlannedBatches:
    """A function for ``foreachBatch`` that runs a planned write of each batch.

    The class defines no `repr`, since the request may contain credentials.
    """

    def __init__(self, request: WriteRequest, group: str | None) -> None:
        self._request = request
        self._group = group

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write one batch."""
        query = self._request.txn_app_id or _required(_query_id(batch))
        with errors_on_one_line():
            request = replace(self._request, txn_app_id=query, txn_version=number)
            request = of_query(with_group(request, self._group), _query_id(batch))
            # The rows are used several times, and may be expensive to compute.
            batch.persist()
            try:
                target = f"branch '{request.branch}' of {location_of(request)}"
                with described(f"stream into {target}: computing batch {number}"):
                    if cancellable(batch, batch.isEmpty):
                        return
                write_once(request, lambda: run_planned_write(batch, request))
            finally:
                batch.unpersist()
            run_maintenance(request, number)


def of_query(request: WriteRequest, query: str | None) -> WriteRequest:
    """Return the request of a batch, whose commit will record the id of the streaming query.

    Raises InvalidInputError if another query has committed the batch: its rows would be skipped.
    """
    if query is None:
        return request
    repository = RepositoryReader.find(location_of(request))
    done = repository and committed_before(repository, request)
    other = done.metadata.get(TXN_QUERY, query) if done else query
    if other != query:
        raise InvalidInputError(
            f"batch {request.txn_version} of {request.txn_app_id!r} has already been committed, in"
            f" snapshot {done and done.id} by the query {other}, but this query is {query}: its"
            " checkpoint was deleted or changed, and batches are numbered from 0 again. Choose a"
            " new txnAppId, so that their rows are not skipped",
            option="txnAppId",
        )
    return replace(request, metadata={**(request.metadata or {}), TXN_QUERY: query})


def _query_id(batch: DataFrame) -> str | None:
    return batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or None


def _required(query: str | None) -> str:
    if not query:
        raise UnsupportedError(
            "Spark does not pass the id of the query of this batch (spark.python.usePinThread or"
            " PYSPARK_PIN_THREAD is off): set option 'txnAppId' to a name that no other stream has"
        )
    return query


def write_once(request: WriteRequest, write: Callable[[], WriteResult | None]) -> None:
    """Run a write; if its outcome is unknown, look for its commit in the history."""
    try:
        write()
    except CommitOutcomeUnknownError:
        if not _is_in_history(request):
            raise


def _is_in_history(request: WriteRequest) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            repository = RepositoryReader.open(location_of(request))
            if committed_before(repository, request) is not None:
                return True
        except StorageError:
            pass
        if attempt + 1 < _ATTEMPTS:
            time.sleep(_PAUSE_SECONDS)
    return False


def run_maintenance(request: WriteRequest, number: int) -> None:
    """Rewrite manifests after every n-th batch; warn if that fails, since rows are committed."""
    every = request.rewrite_manifests_every
    if every is None or (number + 1) % every:
        return
    try:
        rewrite_manifests(location_of(request), branch=request.branch)
    except IcechunkError as error:
        warnings.warn(
            f"the manifests were not rewritten after batch {number}: {error.message}; the stream"
            " continues, and tries again later",
            UserWarning,
            stacklevel=1,
        )
