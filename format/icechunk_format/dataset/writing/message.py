"""Makes the default commit message: which arrays were written, and their sizes.

``Create t2m (time=48, latitude=4): 192 rows``, ``Append 96 rows to t2m (time 48 to 72)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icechunk_format.spec.node_path import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from icechunk_format.dataset.writing.plan import WritePlan

_MOST_NAMES: Final = 4
_UNITS: Final = {"cells": "row", "chunks": "chunk", "refs": "chunk reference"}


def commit_message(plan: WritePlan, rows: int) -> str:
    """Return a message that says what a write has done."""
    prepared = plan.prepared
    arrays = [array for part in plan.parts for array in part.context.arrays]
    names = _listed([array.name for array in arrays])
    if prepared.group != ROOT:
        names += f" in {prepared.group}"
    unit = _UNITS[prepared.options.layout]
    count = f"{rows:,} {unit}{'' if rows == 1 else 's'}"
    sizes: dict[str, int] = {}
    before: dict[str, int] = {}
    for array in arrays:
        sizes |= zip(array.dims, array.metadata.shape, strict=True)
        before |= zip(array.dims, array.old_shape or (), strict=False)
    if prepared.replaced or not before:
        verb = "Overwrite" if prepared.replaced else "Create"
        return f"{verb} {names}{_bracketed(f'{dim}={n}' for dim, n in sizes.items())}: {count}"
    grown = [f"{dim} {before[dim]} to {n}" for dim, n in sizes.items() if before.get(dim, n) != n]
    if not grown:
        return f"Write {count} to {names}"
    return f"Append {count} to {names}{_bracketed(grown)}"


def _bracketed(parts: Iterable[str]) -> str:
    text = ", ".join(parts)
    return f" ({text})" if text else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
