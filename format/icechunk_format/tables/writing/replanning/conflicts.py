"""Builds the errors of a write that conflicts with commits of other writers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import ConflictError
from icechunk_format.names import shortened
from icechunk_format.tables.writing.part import WritePart
from icechunk_format.tables.writing.plan import WritePlan
from icechunk_format.tables.writing.prepare import PreparedWrite

_SHOWN: Final = 4
_AGAIN: Final = "run the job again: it is then planned on top of their commits"


def refused(
    prepared: PreparedWrite, problem: str, *, snapshots: Iterable[SnapshotId] = (), **facts: Any
) -> ConflictError:
    """Return the error of a write; ``problem`` describes the commits of other writers."""
    ids = [str(snapshot) for snapshot in snapshots]
    return ConflictError(
        f"{problem}{_in_snapshots(ids)}; nothing was committed to {prepared.label}. "
        f"To continue, {_AGAIN}",
        branch=prepared.options.branch,
        snapshots=tuple(ids),
        **facts,
    )


def cells_written_twice(
    plan: WritePlan,
    lost: Mapping[str, tuple[tuple[str, ...], Sequence[set[int]], int]],
    snapshots: Iterable[SnapshotId],
) -> ConflictError:
    """Return the error for cells that this write and another writer wrote."""
    ids = [str(snapshot) for snapshot in snapshots]
    lines, labels = [], {}
    for name, found in list(lost.items())[:_SHOWN]:
        labels[name], shown = shown_cells(plan, *found)
        lines.append(f"  {name}: {shown}")
    if len(lost) > _SHOWN:
        lines.append(f"  and {len(lost) - _SHOWN} more variables")
    listed = "\n".join(lines)
    return ConflictError(
        f"other writers wrote cells of this write since it was planned{_in_snapshots(ids)}:\n"
        f"{listed}\n"
        f"nothing was committed to {plan.label}, "
        f"since other writers wrote the same cells of {', '.join(list(lost)[:_SHOWN])}: {_AGAIN}, "
        "or set the option resolve=ours or resolve=theirs",
        branch=plan.options.branch,
        snapshots=tuple(ids),
        variables=tuple(lost),
        labels=labels,
    )


def shown_cells(
    plan: WritePlan, dims: Sequence[str], indices: Sequence[set[int]], cells: int
) -> tuple[dict[str, str], str]:
    """Return the labels of cells by dimension, and a string that describes the cells."""
    part = max(plan.parts, key=lambda part: len(part.labels))
    at = {d: _labels(part, d, sorted(i)) for d, i in zip(dims, indices, strict=True)}
    shown = ", ".join(f"{dim}={string}" for dim, string in at.items()) or "its only index"
    return at, f"{cells:,} cell{'s' if cells > 1 else ''} at {shown}"


def of_session(prepared: PreparedWrite, error: ConflictError) -> ConflictError:
    """Convert the error of a session to the error of a job."""
    if "attempts" in error.facts:
        return error
    facts = {name: fact for name, fact in error.facts.items() if name != "branch"}
    if prepared.options.on_conflict == "fail" and facts.get("found") is not None:
        return ConflictError(
            f"other writers committed to {prepared.label} "
            f"since this write was planned on snapshot {prepared.destination.base}, and "
            "onConflict=fail forbids a rebase; nothing was committed. Run the job "
            "again, or leave onConflict out",
            branch=prepared.options.branch,
            **facts,
        )
    conflicts = facts.get("conflicts")
    problem = "the branch was reset, amended or deleted since this write was planned"
    if conflicts:
        listed = "; ".join(str(conflict) for conflict in conflicts[:_SHOWN])
        problem = f"other writers changed the same nodes ({listed})"
    elif "snapshot" in facts:
        problem = "the log of another writer's commit is missing, so its changes are unknown"
    facts.pop("snapshots", None)
    return refused(prepared, problem, **facts)


def _in_snapshots(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    return f", in snapshot{'s' if len(ids) > 1 else ''} {shortened(ids, _SHOWN)}"


def _labels(part: WritePart, dim: str, indices: Sequence[int]) -> str:
    strings = [part.cell({dim: index}).removeprefix(f"{dim}=") for index in indices[:_SHOWN]]
    if len(indices) > _SHOWN:
        last = part.cell({dim: indices[-1]}).removeprefix(f"{dim}=")
        return f"{strings[0]} to {last}"
    return ", ".join(strings)
