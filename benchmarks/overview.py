"""Draws the picture of the page Performance from the figures of its tables.

A bar is a ratio of times, the longest first. Its label describes the job and the library that it is
compared with, without jargon. Run ``python benchmarks/overview.py`` after the tables have changed.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explanations" / "speed.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "speed.png"
# Beginning of a row of a table (`*` is any cell), what is done, what it is compared with.
SHOWN: Final = (
    ("tiny-chunks: 100,000 inline", "Read 100,000 tiny chunks", "zarr-python"),
    ("points: 10 million in 249 million cells", "Look up 10 million points", "a join in Spark"),
    (
        "queries: average of a box of 1 %, Spark",
        "Average a box of 1 %, in SQL",
        "xarray-sql",
    ),
    ("real-data: ostia_monthly", "Turn model output into a table", "xarray"),
    ("archives: the same by Spark", "Combine 600 NetCDF files", "VirtualiZarr, one process"),
    ("large: 100,000 nodes: commit", "Commit beside 100,000 arrays", "icechunk"),
    (
        "queries: average by latitude, Spark | * | average by latitude, rows",
        "Average by latitude, in SQL",
        "all rows in Spark",
    ),
    (
        "scan: noop: planes | * | noop: planes, reference",
        "Send 25 million cells to Spark",
        "icechunk",
    ),
    ("large: 100,000 nodes: open", "Open 100,000 arrays", "icechunk"),
)


def figures() -> list[tuple[float, str, str, str, str]]:
    """Return ratio, words, peer and the two times of each row that is shown, longest bars first."""
    lines = PAGE.read_text("utf-8").splitlines()
    found = []
    for row, words, peer in SHOWN:
        line = next(line for line in lines if fnmatch(line, f"| {row}*"))
        _, _, ours, theirs, ratio, *_ = line.split("|")
        found.append(
            (
                float(ratio.split()[0]),
                words,
                peer,
                ours.partition(",")[0].strip(),
                theirs.rpartition(":")[2].strip(),
            )
        )
    return sorted(found, reverse=True)


def draw(rows: list[tuple[float, str, str, str, str]], file: Path) -> None:
    """Draw the ratios on a logarithmic axis, with both times beside each bar."""
    sys.path.append(str(ROOT / "examples"))
    import drawing

    figure = drawing.figure(
        "How many times as fast as the usual way",
        "The same job on the same data, two cores: this library; the usual way",
        height=6.6,
        source="benchmarks/run.py, medians; longer bars are better",
    )
    axes = drawing.plain(figure.add_axes((0.5, 0.09, 0.37, 0.78)), labelsize=11)
    edge = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    for place, (ratio, words, peer, ours, theirs) in enumerate(rows):
        color = drawing.GREEN if ratio >= 1 else drawing.ORANGE
        axes.barh(place, ratio - 1, left=1, height=0.56, color=color)
        axes.text(max(ratio, 1) * 1.08, place, f"{ratio:.1f} ×", va="center", fontsize=13)
        axes.text(-0.03, place - 0.19, words, fontsize=12, **edge)
        about = f"{ours}; {peer}: {theirs}"
        axes.text(-0.03, place + 0.21, about, fontsize=9.5, color="0.4", **edge)
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set(xscale="log", xlim=(0.65, 22), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.set_xticks([1, 2, 5, 10, 20], ["1 ×", "2 ×", "5 ×", "10 ×", "20 ×"])
    axes.set_xticks([], minor=True)
    drawing.save(figure, file)


if __name__ == "__main__":
    draw(figures(), PICTURE)
