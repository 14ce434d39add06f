"""Upkeep of repositories as Spark jobs: no list of objects is ever held on the driver."""

from __future__ import annotations

from icechunk_spark.maintenance.collect import collect_garbage
from icechunk_spark.maintenance.expire import expire_snapshots
from icechunk_spark.maintenance.rewrite import rewrite_manifests

__all__ = ["collect_garbage", "expire_snapshots", "rewrite_manifests"]
