"""Shows reports as a Markdown table and as a picture for each benchmark, from the same rows.

Rules of this file
------------------
1. Only values of the report are shown, so that stored reports can be shown again
   (``run.py --from``).
2. A row is compared with its own goal: its ratio with ``ratio >= 0.9``, its seconds with ``<= 3 s``
   and its peak with ``<= 300 MB``. All conditions of the goal must hold.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from measurement import Row

_RATIO = re.compile(r"ratio >= ([\d.]+)")
_SECONDS = re.compile(r"<= ([\d.]+) s\b")
_MEGABYTES = re.compile(r"<= ([\d.]+) MB")
_MEMORY = re.compile("MB|memory")
_OPENING, _CLOSING = "<!-- benchmarks -->", "<!-- /benchmarks -->"
_GREEN, _ORANGE, _GREY = "#2f7d5b", "#d1660f", "#8a8f94"


def is_met(row: Row) -> bool | None:
    """Return True if a row meets its goal, and None if the goal has no numeric condition."""
    met = []
    for pattern, value in ((_RATIO, row.ratio), (_SECONDS, row.wall_s), (_MEGABYTES, row.peak_mb)):
        limit = pattern.search(row.goal)
        if limit and value is not None:
            # Rounded as in the table.
            shown, bound = round(value, 2), float(limit[1])
            met.append(shown >= bound if pattern is _RATIO else shown <= bound)
    return all(met) if met else None


def as_markdown(rows: Sequence[Row], heading: str) -> str:
    """Return a table of the rows that have a goal, below a line that describes the run."""
    seconds = {(row.benchmark, row.case): row.wall_s for row in rows}
    columns = "| what | this library | peer or limit | ratio | goal |"
    lines = [heading, "", columns, "|---|---|---|---|---|"]
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
    """Return a document with the table between its marks, or only the table if it has no marks.

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
    """Write a PNG for each benchmark: ratios, or seconds where no ratio is measured; longest first.

    Bars that miss their goal are orange; grey ones have none. A black line is a goal.
    """
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    import drawing

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        own = [row for row in rows if row.benchmark == benchmark]
        judged = [row for row in own if row.goal] or own
        compared = [row for row in judged if row.ratio is not None]
        chosen = sorted(compared or judged, key=lambda row: -(row.ratio or row.wall_s))
        height = 1.6 + 0.62 * len(chosen)
        figure = drawing.figure(
            f"Benchmark {benchmark}: " + ("times as fast" if compared else "seconds"),
            "Small letters: the peer or limit. Black: goal, orange: missed",
            height=height,
            source="benchmarks/run.py, medians",
        )
        axes = figure.add_axes((0.5, 0.65 / height, 0.38, 1 - 1.5 / height))
        _bars(drawing.plain(axes, labelsize=11), chosen, is_ratio=bool(compared))
        written.append(folder / f"{benchmark}.png")
        drawing.save(figure, written[-1])
    return written


def _bars(axes: Axes, rows: Sequence[Row], *, is_ratio: bool) -> None:
    """Draw a bar for each row, with its name on the left, its value beside it, and its goal."""
    edge = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    colors = {True: _GREEN, False: _ORANGE, None: _GREY}
    origin, tops = (1.0 if is_ratio else 0.0), [1.0]
    for place, row in enumerate(rows):
        value = (row.ratio or 0.01) if is_ratio else row.wall_s
        axes.barh(place, value - origin, left=origin, height=0.5, color=colors[is_met(row)])
        goal = (_RATIO if is_ratio else _SECONDS).search(row.goal)
        limits = [float(goal[1])] if goal else []
        axes.vlines(limits, place - 0.36, place + 0.36, color="black", linewidth=2)
        end = max(value, origin, *limits)
        text = f"{value:.3g} ×" if is_ratio else f"{value:.3g} s"
        axes.text(end * 1.06, place, text, va="center", fontsize=12)
        tops.append(end)
        axes.text(-0.03, place - (0.17 if row.versus else 0), row.case, fontsize=10.5, **edge)
        axes.text(-0.03, place + 0.2, row.versus, fontsize=8.5, color="0.4", **edge)
    axes.set(ylim=(len(rows) - 0.4, -0.6), yticks=[])
    if is_ratio:
        least = min(row.ratio or 0.01 for row in rows)
        axes.set(xscale="log", xlim=(min(0.6, least * 0.8), max(tops) * 1.15))
        left, right = axes.get_xlim()
        ticks = [
            tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if left <= tick <= right
        ]
        axes.set_xticks(ticks, [f"{tick:g} ×" for tick in ticks])
        axes.set_xticks([], minor=True)
    axes.axvline(origin, color="0.3", linewidth=1)
