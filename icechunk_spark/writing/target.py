"""Converts the options of a write to those of the dataset layer, for planned and unplanned writes.

Options that only say how Spark moves the rows have no counterpart there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.dataset.writing.options import WriteOptions

if TYPE_CHECKING:
    from icechunk_spark.options.write import WriteRequest
    from icechunk_spark.options.write_request import Mode


def dataset_options(request: WriteRequest, mode: Mode) -> WriteOptions:
    """Return the options of a write for the dataset layer."""
    return WriteOptions(
        mode=mode,
        group=request.group,
        branch=request.branch or "main",
        create_branch=request.create_branch,
        dims=request.dims,
        chunks=request.chunks,
        shards=request.shards,
        order=request.order,
        encoding=request.encoding or {},
        layout=request.layout,
        decoded=request.decoded,
        on_conflict=request.on_conflict,
        resolve=request.resolve,
        min_density=request.min_density,
        spec_version=request.spec_version,
        message=request.message,
        metadata=request.metadata,
        txn_app_id=request.txn_app_id,
        txn_version=request.txn_version,
    )
