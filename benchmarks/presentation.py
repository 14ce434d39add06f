"""Shows reports as a Markdown table and as a picture for each benchmark, from the same rows.

Rules of this file
------------------
1. Only values of the report are shown, so that stored reports can be shown again
   (``run.py --from``).
2. A row is judged by its own goal: ``ratio >= 0.9`` by its ratio, ``<= 3 s`` by its seconds and
   ``<= 300 MB`` by its peak; every condition that the goal names must hold.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from measurement import Row

_RATIO = re.compile(r"ratio >= ([\d.]+)")
_SECONDS = re.compile(r"<= ([\d.]+) s\b")
_MEGABYTES = re.compile(r"<= ([\d.]+) MB")
_MEMORY = re.compile("MB|memory")
_OPENING, _CLOSING = "<!-- benchmarks -->", "<!-- /benchmarks -->"
_BLUE, _ORANGE, _GREY = "#2a6f97", "#d1660f", "#8a8f94"


def is_met(row: Row) -> bool | None:
    """Return whether a row keeps its goal; None where it has none that numbers decide."""
    answers = []
    for pattern, value in ((_RATIO, row.ratio), (_SECONDS, row.wall_s), (_MEGABYTES, row.peak_mb)):
        limit = pattern.search(row.goal)
        if limit and value is not None:
            # As exact as the table shows it.
            shown, bound = round(value, 2), float(limit[1])
            answers.append(shown >= bound if pattern is _RATIO else shown <= bound)
    return all(answers) if answers else None


def as_markdown(rows: Sequence[Row], heading: str) -> str:
    """Return a table of the rows that have a goal, below a line about the run."""
    seconds = {(row.benchmark, row.case): row.wall_s for row in rows}
    lines = [heading, "", "| what | ours | peer or limit | ratio | goal |", "|---|---|---|---|---|"]
    for row in rows:
        if not row.goal:
            continue
        other = seconds.get((row.benchmark, row.versus))
        versus = row.versus if other is None else f"{row.versus}: {other:.3g} s"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        has_peak = row.peak_mb is not None and _MEMORY.search(row.goal)
        peak = f", {row.peak_mb:.0f} MB" if has_peak else ""
        missed = " – **missed**" if is_met(row) is False else ""
        cells = (
            f"{row.benchmark}: {row.case}",
            f"{row.wall_s:.3g} s{peak}",
            versus,
            ratio,
            row.goal.replace(">=", "≥").replace("<=", "≤") + missed,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_table(document: str, table: str) -> str:
    """Return a document with the table between the marks that it has, or only the table.

    Raises
    ------
    ValueError
        The document ends before the closing mark.
    """
    before, mark, rest = document.partition(_OPENING)
    if not mark:
        return table
    _, end, after = rest.partition(_CLOSING)
    if not end:
        raise ValueError(f"{_OPENING} without {_CLOSING}")
    return f"{before}{mark}\n{table}{end}{after}"


def plot(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a PNG for each benchmark: ratios with their goals, and seconds where those are judged.

    Bars that miss their goal are orange; grey ones have none.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        own = [row for row in rows if row.benchmark == benchmark]
        timed = [row for row in own if _SECONDS.search(row.goal)]
        compared = [row for row in own if row.ratio is not None and row not in timed]
        panels = [
            (chosen, name)
            for chosen, name in (
                (compared, "times as fast as what is named (logarithmic)"),
                (timed or ([] if compared else own), "seconds"),
            )
            if chosen
        ]
        figure, axes = plt.subplots(
            len(panels),
            1,
            figsize=(10, 0.9 * len(panels) + 0.55 * sum(len(chosen) for chosen, _ in panels)),
            height_ratios=[len(chosen) + 1 for chosen, _ in panels],
            layout="constrained",
            squeeze=False,
        )
        figure.suptitle(benchmark, fontweight="bold")
        for axis, (chosen, name) in zip(axes[:, 0], panels, strict=True):
            _bars(axis, chosen, name)
        written.append(folder / f"{benchmark}.png")
        figure.savefig(written[-1], dpi=110)
        plt.close(figure)
    return written


def _bars(axis: object, rows: Sequence[Row], name: str) -> None:
    """Draw one panel: a bar a row, its value beside it, its goal as a black line across it."""
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    in_seconds = name == "seconds"
    values = [row.wall_s if in_seconds else row.ratio or 0.0 for row in rows]
    colours = {True: _BLUE, False: _ORANGE, None: _GREY}
    places = range(len(rows))
    labels = [
        row.case if in_seconds or not row.versus else f"{row.case}\nbeside {row.versus}"
        for row in rows
    ]
    pattern = _SECONDS if in_seconds else _RATIO
    goals = [pattern.search(row.goal) for row in rows]
    if not in_seconds:
        axis.set_xscale("log")
    least = min([*values, *(float(goal[1]) for goal in goals if goal)])
    left = 0.0 if in_seconds else min(0.5, least * 0.8)
    # Seconds grow from nothing, ratios from "as fast".
    origin = 0.0 if in_seconds else 1.0
    axis.barh(
        list(places),
        [value - origin for value in values],
        left=origin,
        height=0.6,
        color=[colours[is_met(row)] for row in rows],
    )
    for place, value, goal in zip(places, values, goals, strict=True):
        # At the edge, where neither a bar nor a goal is in the way.
        text = f"{value:.3g}" if in_seconds else f"{value:.2f}"
        axis.text(1.01, place, text, transform=axis.get_yaxis_transform(), va="center")
        if goal:
            limit = float(goal[1])
            axis.plot([limit, limit], [place - 0.42, place + 0.42], color="black", linewidth=2)
    axis.set_yticks(list(places), labels, fontsize=8)
    axis.invert_yaxis()
    top = max(
        [1.0 if not in_seconds else 0.0, *values, *(float(goal[1]) for goal in goals if goal)]
    )
    axis.set_xlim(left, top * (1.15 if in_seconds else 1.5))
    if not in_seconds:
        axis.axvline(1.0, color=_GREY, linewidth=0.8, linestyle=":")
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if left <= t <= top * 1.5]
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.set_xticks([], minor=True)
    axis.set_xlabel(f"{name}; black: goal; orange: missed; grey: no goal", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
