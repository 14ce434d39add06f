"""The result of ``virtualize``, in a module that is cheap to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from icechunk_format.display.lazily import shown_by

if TYPE_CHECKING:
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.storage.measures import Measures

Report = TypeVar("Report")
"""An Arrow table, or with Spark a DataFrame."""


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualizeResult(Generic[Report]):
    """The result of a call of ``virtualize``.

    Parameters
    ----------
    snapshot_id
        The snapshot of the branch after the call; None if the repository does not exist.
    files_added
        Files whose references were committed, changed ones included.
    files_skipped
        Files that the repository already had, and refused files.
    references
        References that were committed.
    files_copied
        Files of `files_added` that were copied, wholly or in part.
    chunks
        Copied chunks that were committed; 0 for a dry run.
    places
        URL prefixes for the option ``virtual.authorize`` of readers.
    report
        One row for each file: ``file``, ``status`` (``taken``, ``copied``, ``known``,
        ``refreshed``, ``refused``), ``array``, ``difference``, ``compared_with``, ``note``,
        ``references``.
    dry_run
        True if nothing was stored; the other values are those of the planned call.
    totals
        What Spark's tasks have read and written; None for a call in this process.
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
