"""Maintains repositories in one process: expiration, garbage collection, verification, copies.

``icechunk_spark.maintenance`` has the same functions as Spark jobs, for large repositories.
"""

from __future__ import annotations

from icechunk_format.maintenance.copying.copy import CopyResult, copy
from icechunk_format.maintenance.garbage.collect import collect_garbage
from icechunk_format.maintenance.garbage.result import CollectResult
from icechunk_format.maintenance.rewriting.commit import RewriteResult
from icechunk_format.maintenance.rewriting.rewrite import rewrite_manifests
from icechunk_format.maintenance.verifying.verify import verify
from icechunk_format.repository import Repository
from icechunk_format.repository.history.resolve import Cutoff
from icechunk_format.repository.lifecycle.expire import ExpireResult
from icechunk_format.storage.location import Place

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


def expire_snapshots(
    location: Place,
    older_than: Cutoff,
    *,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    dry_run: bool = False,
) -> ExpireResult:
    """Remove snapshots that were committed before a cutoff from history.

    No file is deleted; run ``collect_garbage`` afterwards. Tips of branches and tags are kept, and
    so is the first snapshot of a history.

    Parameters
    ----------
    location
        The repository.
    older_than
        A timestamp with a time zone, or an age such as ``"30d"`` or a `timedelta`.
    delete_expired_branches, delete_expired_tags
        Also delete branches (except ``main``) and tags that point to an expired snapshot.
    dry_run
        Return what would be removed, but change nothing.

    Returns
    -------
    ExpireResult
        The expired snapshots, and the deleted branches and tags.

    Raises
    ------
    NotFoundError
        The repository does not exist.
    InvalidInputError
        ``older_than`` is invalid.
    ReadOnlyError
        The repository is read-only, or a feature flag forbids deleting a tag.

    Examples
    --------
    >>> expire_snapshots("weather", "30d").released_snapshots  # doctest: +SKIP
    """
    return Repository.open(location).expire_snapshots(
        older_than,
        delete_expired_branches=delete_expired_branches,
        delete_expired_tags=delete_expired_tags,
        dry_run=dry_run,
    )
