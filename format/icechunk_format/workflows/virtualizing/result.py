"""Defines the result of ``virtualize`` in a module that is cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from icechunk_format.display import shown_by

if TYPE_CHECKING:
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.storage.measures import Measures

Report = TypeVar("Report")
"""An Arrow table, or a DataFrame with Spark."""


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualizeResult(Generic[Report]):
    """The result of ``virtualize``.

    Attributes
    ----------
    snapshot_id
        The tip of the branch after the call; None if the repository does not exist.
    files_added
        Number of files whose references or copies were committed, including changed files.
    files_skipped
        Number of known files and refused files.
    references
        Number of committed references.
    files_copied
        Number of files among `files_added` that were copied, fully or partly.
    chunks
        Number of committed copied chunks; 0 for a dry run.
    places
        URL prefixes that readers must authorize with the option ``virtual.authorize``.
    report
        One row for each file: ``file``, ``status`` (``taken``, ``copied``, ``known``,
        ``refreshed``, ``refused``), ``array``, ``difference``, ``compared_with``, ``note``,
        ``references``.
    dry_run
        True if nothing was stored; the other values are planned ones.
    totals
        Requests, bytes, chunks and codec times of Spark's tasks; None for a call in this process.
    """

    snapshot_id: SnapshotId | None
    files_added: int
    files_skipped: int
    references: int
    places: tuple[str, ...]
    report: Report
    dry_run: bool = False
    totals: Measures | None = None
    files_copied: int = 0
    chunks: int = 0
