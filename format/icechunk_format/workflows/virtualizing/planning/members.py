"""Holds the files of a call with their rows of the report, and the spans of accepted files."""

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
    """A scanned file, its row of the report, and its span."""

    row: Row
    scanned: ScannedFile
    span: FileSpan | None = None
    """None for a file that is refused or empty."""
    is_changed: bool = False
    """True if the repository has another state of the file with the same span."""
    has_grown: bool = False
    """True if the repository has a shorter state of the file with the same start."""
    copied: dict[str, str] = field(default_factory=dict)
    """Arrays that are copied instead of referenced, with the reasons; see ``copies``."""
    is_empty: bool = False
    """True if it has no element along a concatenated dimension."""

    def copy(self, path: str, reason: str) -> None:
        """Note that an array of the file is copied; the first reason is kept."""
        if self.copied.setdefault(path, reason) is not reason:
            return
        if self.row.status == TAKEN:
            self.row.status = COPIED
        self.row.is_copied = self.row.status in (COPIED, REFRESHED)
        if reason:
            self.row.add_note(f"{path} is copied: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """The files that are taken, and the spans of all files."""

    layout: Layout
    rows: list[Row]
    taken: list[Member]
    """New and changed files."""
    files: list[FileSpan]
    """All files, those of the repository included."""
    sizes: Along
    """Length of each concatenated dimension."""
    old_starts: Mapping[str, Along]
    """By URL: the starts of files that the repository has."""

    @property
    def is_refused(self) -> bool:
        """Return True if a file was refused."""
        return any(row.status == REFUSED for row in self.rows)
