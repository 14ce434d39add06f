"""Defines the files of a call with their report rows and spans, and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from icechunk_format.workflows.virtualizing.report import COPIED, REFRESHED, REFUSED, TAKEN, Row

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.arrange import Along, FileSpan
    from icechunk_format.workflows.virtualizing.planning.record import Layout
    from icechunk_format.workflows.virtualizing.scanning.scan import ScannedFile


@dataclass(slots=True, kw_only=True)
class Member:
    """A scanned file with its report row and span."""

    row: Row
    scanned: ScannedFile
    span: FileSpan | None = None
    """None for a refused or empty file."""
    is_changed: bool = False
    """True if the record has another state of the file with the same span."""
    copied: set[str] = field(default_factory=set)
    """Arrays that are copied instead of referenced; see ``copies``."""

    def copy(self, path: str, reason: str) -> None:
        """Mark an array of the file as copied; keep the first reason."""
        if path in self.copied:
            return
        self.copied.add(path)
        if self.row.status == TAKEN:
            self.row.status = COPIED
        self.row.is_copied = self.row.status in (COPIED, REFRESHED)
        if reason:
            self.row.add_note(f"{path} is copied: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """The accepted new files, and the spans of all files."""

    layout: Layout
    rows: list[Row]
    taken: list[Member]
    """New and changed files."""
    files: list[FileSpan]
    """All files, including known ones."""
    sizes: Along
    """Length of each concatenated dimension."""
    old_starts: Mapping[str, Along]
    """Starts of known files in the record, by URL."""

    @property
    def is_refused(self) -> bool:
        """Return True if a file was refused."""
        return any(row.status == REFUSED for row in self.rows)
