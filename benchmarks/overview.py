"""Draws the picture of the page Performance from the figures of its tables.

A bar is a ratio of times, longest first, labelled in the words of a newcomer: what is done, and
what it is compared with. Run ``python benchmarks/overview.py`` after the tables have changed.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explanations" / "speed.md"
PICTURE: Final = ROOT / "docs" / "pictures" / "speed.png"
# Beginning of a row of a table (`*` is any cell), what is done, what it is compared with.
SHOWN: Final = (
    ("tiny-chunks: 100,000 inline", "Read 100,000 tiny chunks", "zarr-python"),
    (
        "tiny-chunks: 10,000 native at 50 ms",
        "Read 10,000 small objects, 50 ms away",
        "zarr-python",
    ),
    (
        "points: 10 million in 249 million cells",
        "Values at 10 million points",
        "a join of points and cells in Spark",
    ),
    ("mirror: box of 1 %", "Average over a box, in the Parquet copy", "the repository itself"),
    ("large: 100,000 nodes: commit", "Commit to a repository of 100,000 arrays", "icechunk"),
    ("real-data: ostia_monthly", "Real model output as a table", "xarray's to_dataframe"),
    (
        "archives: the same by Spark",
        "One dataset of 600 NetCDF files",
        "VirtualiZarr in one process",
    ),
    ("selective: tiles", "A box of 1 % of an array", "xarray"),
    ("rival-writers: 0 ms", "16 jobs that commit to one branch", "icechunk"),
    ("analyses: mean of all cells, tasks", "Mean of 25 million cells", "xarray"),
    (
        "scan: noop: planes | * | noop: planes, reference",
        "All of 25 million cells into Spark",
        "icechunk in mapInArrow",
    ),
    ("large: 100,000 nodes: open", "Open a repository of 100,000 arrays", "icechunk"),
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
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(10, 7.6))
    axes = figure.add_axes((0.42, 0.09, 0.42, 0.77))
    for place, (ratio, words, peer, ours, theirs) in enumerate(rows):
        color = "#2f7d5b" if ratio >= 1 else "#c98a2b"
        axes.barh(place, ratio - 1, left=1, height=0.56, color=color)
        axes.text(
            max(ratio, 1) * 1.06, place, f"{ratio:.1f} ×", va="center", fontsize=13, color="0.2"
        )
        edge = axes.get_yaxis_transform()
        axes.text(-0.03, place - 0.17, words, transform=edge, ha="right", va="center", fontsize=12)
        about = f"{ours}; {peer}: {theirs}"
        axes.text(
            -0.03,
            place + 0.22,
            about,
            transform=edge,
            ha="right",
            va="center",
            fontsize=9.5,
            color="0.45",
        )
    axes.axvline(1, color="0.3", linewidth=1)
    axes.set(xscale="log", xlim=(0.6, 30), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.set_xticks([1, 2, 5, 10, 20], ["as fast", "2 ×", "5 ×", "10 ×", "20 ×"], fontsize=11.5)
    axes.set_xticks([], minor=True)
    axes.tick_params(length=0, labelcolor="0.35")
    axes.spines[:].set_visible(False)
    title = "How many times as fast, on two cores"
    figure.text(0.03, 0.945, title, fontsize=19, fontweight="bold", color="0.15")
    about = "Each job beside the usual way to do it, on the same data; below: the two times"
    figure.text(0.03, 0.905, about, fontsize=12.5, color="0.35")
    figure.savefig(file, dpi=100, facecolor="white")


if __name__ == "__main__":
    draw(figures(), PICTURE)
