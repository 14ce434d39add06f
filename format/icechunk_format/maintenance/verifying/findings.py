"""Defines ``Report``: a bounded number of findings, which can be merged.

Each task of a verification fills a ``Report``; reports are sent as Arrow batches and merged.

Rules of this file
------------------
1. A problem of many snapshots is one row, of the newest affected snapshot (``rank`` 0 is the newest
   snapshot): rows of equal identity are merged.
2. Memory is bounded: at most ``max_findings`` rows of each severity are kept, and others are
   counted by kind. ``Report.add_many`` makes only rows that are kept.
3. A report also has totals of the checked objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import pyarrow as pa

from icechunk_format.errors import InvalidInputError
from icechunk_format.maintenance.verifying.finding_kinds import KINDS, SEVERITIES
from icechunk_format.storage.measures import Measures

_FINDING: Final = (
    pa.field("kind", pa.string()),
    pa.field("object_key", pa.string()),
    pa.field("snapshot_id", pa.string()),
    pa.field("node_path", pa.string()),
    pa.field("chunk", pa.list_(pa.int64())),
    pa.field("problem", pa.string()),
)
FINDINGS_SCHEMA: Final = pa.schema(
    [pa.field("severity", pa.string()), *_FINDING, pa.field("advice", pa.string())]
)
"""The columns of the result of ``verify``."""

REPORT_SCHEMA: Final = pa.schema(
    [
        pa.field("part", pa.string()),
        *_FINDING,
        pa.field("subject", pa.string()),
        pa.field("rank", pa.int64()),
        pa.field("amount", pa.int64()),
        pa.field("nbytes", pa.int64()),
    ]
)
"""The columns of serialized reports; ``part`` is ``FINDING``, ``LEFT_OUT`` or ``TOTAL``."""

FINDING: Final = "finding"
LEFT_OUT: Final = "left out"
TOTAL: Final = "total"

DEFAULT_MAX_FINDINGS: Final = 10_000
_OF_TASKS: Final = "tasks: "
# Seconds are stored in integer totals, in this fraction.
_PARTS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding: a row of the report.

    Parameters
    ----------
    object_key, snapshot_id, node_path, chunk
        The object, snapshot, node and chunk of the finding, if any.
    subject
        Identifies the problem, together with kind, node, chunk and problem, when rows are merged;
        by default the object.
    rank
        The rank of the snapshot; 0 is the newest.
    """

    kind: str
    problem: str
    object_key: str | None = None
    snapshot_id: str | None = None
    node_path: str | None = None
    chunk: tuple[int, ...] | None = None
    subject: str | None = None
    rank: int = 0

    @property
    def identity(self) -> tuple[object, ...]:
        """The key by which rows are merged."""
        subject = self.object_key if self.subject is None else self.subject
        return (self.kind, subject, self.node_path, self.chunk, self.problem)


_FIELDS: Final = tuple(one.name for one in fields(Finding))


class Report:
    """Findings and totals of a task or of all tasks; ``max_findings`` limits each severity."""

    def __init__(self, max_findings: int = DEFAULT_MAX_FINDINGS) -> None:
        if max_findings < 1:
            raise InvalidInputError(
                f"max_findings is {max_findings}; it must be at least 1", found=max_findings
            )
        self.max_findings = max_findings
        self.totals: Counter[str] = Counter()
        self.total_bytes: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._rows: dict[str, dict[tuple[object, ...], Finding]] = {s: {} for s in SEVERITIES}

    def add(self, kind: str, problem: str, **where: Any) -> None:
        """Add a finding; ``where`` are the other fields of ``Finding``."""
        self._add(Finding(kind=kind, problem=problem, **where))

    def add_many(self, kind: str, count: int, make: Callable[[int], Finding]) -> None:
        """Add ``count`` findings of a kind; ``make`` is called for the rows that are kept."""
        room = self.max_findings - len(self._rows[KINDS[kind].severity])
        # One more than there is room for, since some may be known.
        kept = min(count, max(room, 0) + 1)
        for position in range(kept):
            self._add(make(position))
        if count > kept:
            self.left_out[kind] += count - kept

    def at(self, **where: Any) -> Spot:
        """Return a ``Spot``, which adds findings with these common fields."""
        return Spot(self, where)

    def count(self, name: str, amount: int = 1, nbytes: int = 0) -> None:
        """Add to a total."""
        self.totals[name] += int(amount)
        self.total_bytes[name] += int(nbytes)

    def _add(self, finding: Finding) -> None:
        rows = self._rows[KINDS[finding.kind].severity]
        known = rows.get(finding.identity)
        if known is not None:
            if finding.rank < known.rank:
                rows[finding.identity] = finding
        elif len(rows) < self.max_findings:
            rows[finding.identity] = finding
        else:
            self.left_out[finding.kind] += 1

    def findings(self) -> list[Finding]:
        """Return the kept rows: most severe first, then by kind and object."""
        return [
            row
            for severity in SEVERITIES
            for row in sorted(
                self._rows[severity].values(),
                key=lambda f: (
                    f.kind,
                    f.object_key or "",
                    f.node_path or "",
                    f.chunk or (),
                    f.problem,
                ),
            )
        ]

    # -- travelling ---------------------------------------------------------------------------

    def to_batch(self) -> pa.RecordBatch:
        """Serialize the report to rows of ``REPORT_SCHEMA``."""
        rows = [{"part": FINDING, **asdict(row)} for row in self.findings()]
        rows += [
            {"part": LEFT_OUT, "kind": kind, "amount": amount}
            for kind, amount in sorted(self.left_out.items())
        ]
        rows += [
            {"part": TOTAL, "kind": name, "amount": amount, "nbytes": self.total_bytes[name]}
            for name, amount in sorted(self.totals.items())
        ]
        return pa.RecordBatch.from_pylist(rows, schema=REPORT_SCHEMA)

    def absorb(self, rows: Iterable[dict[str, Any]]) -> None:
        """Merge the rows of another report, made by ``to_batch``."""
        for row in rows:
            if row["part"] == FINDING:
                finding = Finding(**{name: row[name] for name in _FIELDS})
                chunk = finding.chunk
                self._add(finding if chunk is None else replace(finding, chunk=tuple(chunk)))
            elif row["part"] == LEFT_OUT:
                self.left_out[row["kind"]] += row["amount"]
            else:
                self.count(row["kind"], row["amount"], row["nbytes"])

    def count_task(self, measures: Measures) -> None:
        """Add the counts of a task to the totals."""
        for name, value in asdict(measures).items():
            self.count(_OF_TASKS + name, round(value * _PARTS))

    @property
    def measures(self) -> Measures:
        """The sum of the counts added by `count_task`."""
        none = asdict(Measures()).items()
        return Measures(
            **{name: type(zero)(self.totals[_OF_TASKS + name] / _PARTS) for name, zero in none}
        )

    def to_table(self) -> pa.Table:
        """Return at most ``max_findings`` rows for users, and a row that counts the others."""
        found = self.findings()
        left_out = self.left_out + Counter(row.kind for row in found[self.max_findings :])
        found = found[: self.max_findings]
        if left_out.total():
            kinds = ", ".join(f"{amount} {kind}" for kind, amount in left_out.most_common())
            found.append(
                Finding(
                    kind="left-out",
                    problem=f"{left_out.total()} more findings are not listed: {kinds}",
                )
            )
        return pa.Table.from_pylist(
            [{**asdict(row), **asdict(KINDS[row.kind])} for row in found], schema=FINDINGS_SCHEMA
        )


@dataclass(frozen=True, slots=True)
class Spot:
    """A report, with common fields of findings about one object."""

    report: Report
    where: dict[str, Any]

    def add(self, kind: str, problem: str, **more: Any) -> None:
        """Add a finding; fields in ``more`` replace the common fields."""
        self.report.add(kind, problem, **(self.where | more))
