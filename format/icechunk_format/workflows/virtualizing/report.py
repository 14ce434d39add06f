"""Builds the report of a call: a row for each file, with status and reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pyarrow as pa

from icechunk_format.errors import InvalidInputError

TAKEN: Final = "taken"
COPIED: Final = "copied"
KNOWN: Final = "known"
REFRESHED: Final = "refreshed"
REFUSED: Final = "refused"

REPORT_SCHEMA: Final = pa.schema(
    [
        ("file", pa.string()),
        ("status", pa.string()),
        ("array", pa.string()),
        ("difference", pa.string()),
        ("compared_with", pa.string()),
        ("note", pa.string()),
        ("references", pa.int64()),
    ]
)
_MOST_SHOWN: Final = 10


@dataclass(slots=True, kw_only=True)
class Row:
    """The report row of one file."""

    file: str
    status: str = TAKEN
    """``taken``, ``copied``, ``known`` (in the repository), ``refreshed`` (changed since) or
    ``refused``."""
    array: str | None = None
    """The array that caused the refusal."""
    difference: str | None = None
    """The reason of the refusal."""
    compared_with: str | None = None
    note: str | None = None
    """Differences that do not cause a refusal, and gaps."""
    references: int = 0
    is_copied: bool = False
    """True if arrays of the file are copied; not a column of the report."""

    def refuse(
        self, difference: str, *, array: str | None = None, other: str | None = None
    ) -> None:
        """Refuse the file; keep the first reason."""
        if self.status != REFUSED:
            self.status, self.array, self.difference = REFUSED, array, difference
            self.compared_with, self.references, self.is_copied = other, 0, False

    def add_note(self, string: str) -> None:
        """Add a note without refusing the file."""
        self.note = string if self.note is None else f"{self.note}; {string}"


def report_table(rows: Iterable[Row]) -> pa.Table:
    """Return the report with a row for each file."""
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=REPORT_SCHEMA)


def refusal(rows: Sequence[Row]) -> InvalidInputError:
    """Return the error for refused files with ``on_mismatch="fail"``."""
    refused = [row for row in rows if row.status == REFUSED]
    lines = [_line(row) for row in refused[:_MOST_SHOWN]]
    if len(refused) > _MOST_SHOWN:
        lines.append(f"  and {len(refused) - _MOST_SHOWN:,} more")
    return InvalidInputError(
        "\n".join(
            [
                f"{len(refused):,} of {len(rows):,} files cannot be part of the dataset, and "
                "nothing was committed:",
                *lines,
                "repair or remove these files, or call again if a storage failed; or "
                "leave them out with on_mismatch='skip'. "
                'error.facts["report"] has a row for each file',
            ]
        ),
        report=report_table(rows),
        refused=len(refused),
    )


def _line(row: Row) -> str:
    array = "" if row.array is None else f" array {row.array!r}:"
    other = "" if row.compared_with is None else f" (compared with {row.compared_with})"
    return f"  {row.file}:{array} {row.difference}{other}"
