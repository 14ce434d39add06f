"""Maintains repositories with Spark jobs; executors, not the driver, list and read objects."""

from __future__ import annotations

from icechunk_spark.maintenance.collect import collect_garbage
from icechunk_spark.maintenance.copy import copy
from icechunk_spark.maintenance.expire import expire_snapshots
from icechunk_spark.maintenance.rewrite import rewrite_manifests
from icechunk_spark.maintenance.verify import verify

__all__ = ["collect_garbage", "copy", "expire_snapshots", "rewrite_manifests", "verify"]
