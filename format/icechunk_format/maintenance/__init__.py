"""Upkeep of whole repositories, without Spark: for repositories that one process can walk through.

``icechunk_spark.maintenance`` has the same functions as Spark jobs, for the others.
"""

from __future__ import annotations

from icechunk_format.maintenance.collect import collect_garbage
from icechunk_format.maintenance.collect_result import CollectResult
from icechunk_format.maintenance.copy import CopyResult, copy
from icechunk_format.maintenance.expire import expire_snapshots
from icechunk_format.maintenance.rewrite import rewrite_manifests
from icechunk_format.maintenance.rewrite_commit import RewriteResult
from icechunk_format.maintenance.verify_repository import verify
from icechunk_format.repository.expire import ExpireResult

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
