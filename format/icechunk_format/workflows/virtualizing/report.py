"""The report of a call: one row for each file, with its status and the reason."""

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
    """The status of one file."""

    file: str
    status: str = TAKEN
    """``taken``, ``copied``, ``known`` (the repository has it), ``refreshed`` (it has changed) or
    ``refused``."""
    array: str | None = None
    """The array that caused the refusal."""
    difference: str | None = None
    """The reason of the refusal."""
    compared_with: str | None = None
    note: str | None = None
    """Harmless differences, and gaps."""
    references: int = 0
    is_copied: bool = False
    """True if arrays of the file are copied; not a column."""

    def refuse(
        self, difference: str, *, array: str | None = None, other: str | None = None
    ) -> None:
        """Refuse the file; the first reason is kept."""
        if self.status != REFUSED:
            self.status, self.array, self.difference = REFUSED, array, difference
            self.compared_with, self.references, self.is_copied = other, 0, False

    def add_note(self, text: str) -> None:
        """Add a note that does not refuse the file."""
        self.note = text if self.note is None else f"{self.note}; {text}"


def report_table(rows: Iterable[Row]) -> pa.Table:
    """Return the report, one row for each file."""
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=REPORT_SCHEMA)


def refusal(rows: Sequence[Row], table: pa.Table) -> InvalidInputError:
    """Return the error of a call with ``on_mismatch="fail"`` and refused files."""
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
        report=table,
        refused=len(refused),
    )


def _line(row: Row) -> str:
    array = "" if row.array is None else f" array {row.array!r}:"
    other = "" if row.compared_with is None else f" (compared with {row.compared_with})"
    return f"  {row.file}:{array} {row.difference}{other}"
