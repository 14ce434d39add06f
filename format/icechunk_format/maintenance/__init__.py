"""Upkeep of whole repositories, without Spark: for repositories that one process can walk through.

``icechunk_spark.maintenance`` has the same functions as Spark jobs, for the others.
"""

from __future__ import annotations

from icechunk_format.maintenance.collecting.collect import collect_garbage
from icechunk_format.maintenance.collecting.result import CollectResult
from icechunk_format.maintenance.copying.copy import CopyResult, copy
from icechunk_format.maintenance.expire import expire_snapshots
from icechunk_format.maintenance.rewriting.commit import RewriteResult
from icechunk_format.maintenance.rewriting.rewrite import rewrite_manifests
from icechunk_format.maintenance.verifying.verify import verify
from icechunk_format.repository.lifecycle.expire import ExpireResult

__all__ = [
    "CollectResult",
    "CopyResult",
    "ExpireResult",
    "RewriteResult",
    "collect_garbage",
    "copy",
    "expire_snapshots",
    "rewrite_manifests",
    "verify",
]
