"""Draws the picture of the page Performance from the figures of its tables.

A bar compares what users of Spark wait for, the fixed cost of Spark's jobs included, with what they
would use instead: its time divided by ours, the longest bar first. Rows beyond fixed cost, or of
tasks in the process of the benchmark, are not shown, and losses are. Run
``python benchmarks/overview.py`` after the tables have changed.
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
    ("queries: average by latitude, Spark", "Average by latitude, in SQL", "xarray-sql"),
    ("queries: average, Spark", "Average all cells, in SQL", "xarray-sql"),
    ("queries: average of a box of 1 %, Spark", "Average a box of 1 %, in SQL", "xarray-sql"),
    (
        "queries: average of a box of 1 % at 50 ms, Spark",
        "A box of 1 %, storage 50 ms away",
        "xarray-sql",
    ),
    ("queries: cells above 320 K by hour, Spark", "Count hot cells by hour, in SQL", "xarray-sql"),
    ("queries: average of one hour, Spark", "Average one hour, in SQL", "xarray-sql"),
    ("queries: count(*), Spark", "Count all cells, in SQL", "xarray-sql"),
    (
        "analyses: cells above the 99.9th percentile, Spark",
        "List the hottest 0.1 % of cells",
        "xarray, one process",
    ),
    (
        "analyses: series of 6-hour means, Spark",
        "A series of 6-hour means",
        "xarray, one process",
    ),
    (
        "points: 10 million in 249 million cells, nearest",
        "Look up 10 million points",
        "xarray, one process",
    ),
    ("rechunk: the same, with empty jobs", "Rechunk 0.5 GB", "dask, two threads"),
    ("rechunk: 8 GB, with empty jobs", "Rechunk 8 GB", "dask, two processes"),
    (
        "tiny-chunks: 10,000 native on S3, Spark",
        "Read 10,000 tiny chunks on S3",
        "icechunk and zarr in Spark",
    ),
    (
        "scan: noop: planes | * | noop: planes, reference",
        "Send 25 million cells to Spark",
        "icechunk and zarr in Spark",
    ),
)
# The peer's time where it is in another row: beginning of that row.
PEERS: Final = {
    "points: 10 million in 249 million cells, nearest": (
        "points: the same, beyond the shuffle of the same rows"
    ),
    "rechunk: the same, with empty jobs": "rechunk: 0.5 GB from maps to series",
}


def figures() -> list[tuple[float, str, str, str, str]]:
    """Return ratio, words, peer and the two times of each row that is shown, longest bars first."""
    lines = PAGE.read_text("utf-8").splitlines()

    def cells(row: str) -> list[str]:
        line = next(line for line in lines if fnmatch(line, f"| {row}*"))
        return [cell.strip() for cell in line.split("|")]

    found = []
    for row, words, peer in SHOWN:
        ours = cells(row)[2].partition(",")[0]
        theirs = cells(PEERS.get(row, row))[3].rpartition(":")[2].strip()
        times = [float(text.removesuffix(" s")) for text in (ours, theirs)]
        found.append((times[1] / times[0], words, peer, ours, theirs))
    return sorted(found, reverse=True)


def draw(rows: list[tuple[float, str, str, str, str]], file: Path) -> None:
    """Draw the ratios on a logarithmic axis, with both times beside each bar."""
    sys.path.append(str(ROOT / "examples"))
    import drawing

    figure = drawing.figure(
        "In Spark, against what you would use instead",
        "Times as fast, the fixed cost of Spark's jobs included; two cores, the same data",
        height=9.2,
        source="benchmarks/run.py, medians; to the right is faster; without the start of a session",
    )
    axes = drawing.plain(figure.add_axes((0.5, 0.065, 0.4, 0.845)), labelsize=11)
    edge = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    for place, (ratio, words, peer, ours, theirs) in enumerate(rows):
        color = drawing.GREEN if ratio >= 1 else drawing.ORANGE
        axes.barh(place, ratio - 1, left=1, height=0.56, color=color)
        digits = 1 if ratio >= 0.95 else 2
        axes.text(max(ratio, 1) * 1.12, place, f"{ratio:.{digits}f} ×", va="center", fontsize=13)
        axes.text(-0.03, place - 0.19, words, fontsize=12, **edge)
        about = f"{ours}; {peer}: {theirs}"
        axes.text(-0.03, place + 0.21, about, fontsize=9.5, color="0.4", **edge)
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set(xscale="log", xlim=(0.045, 8), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.set_xticks([0.05, 0.2, 1, 5], ["0.05 ×", "0.2 ×", "1 ×", "5 ×"])
    axes.set_xticks([], minor=True)
    drawing.save(figure, file)


if __name__ == "__main__":
    draw(figures(), PICTURE)
