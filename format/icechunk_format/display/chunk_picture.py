"""Draws an array and its chunks as a small picture: a bar, a rectangle or a box.

The last three dimensions are drawn. Lengths are scaled by a power, so that short edges remain
visible. Lines of many chunks are thinned out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

_LONGEST: Final = 120.0
_SHORTEST: Final = 14.0
_POWER: Final = 0.45
_BAR: Final = 22.0
# Horizontal and vertical part of a unit of length along the third dimension.
_SLANT: Final = 0.42
_NEAREST: Final = 4.5
_MARGIN: Final = 4.0
_TEXT: Final = 46.0
_STROKE: Final = "stroke='currentColor'"

Point = tuple[float, float]


def chunk_picture(
    shape: Sequence[int], chunks: Sequence[int] | None, shards: Sequence[int] | None = None
) -> str:
    """Return the picture as SVG; an empty string for scalars and arrays without elements.

    ``chunks`` and ``shards`` are elements along each dimension; None if they vary or do not exist.
    """
    if not shape or 0 in shape:
        return ""
    lengths = list(shape[-3:])
    longest = max(lengths)
    edges = [max(_SHORTEST, _LONGEST * (n / longest) ** _POWER) for n in lengths]
    depth = edges[0] * _SLANT if len(edges) == 3 else 0.0
    width, height = edges[-1], edges[-2] if len(edges) > 1 else _BAR
    left, top = _MARGIN, _MARGIN + max(depth, 12.0 if depth else 0.0)
    front = (left, top), (width, 0.0), (0.0, height)
    lid = (left, top), (width, 0.0), (depth, -depth)
    side = (left + width, top), (depth, -depth), (0.0, height)
    axes = list(range(len(shape)))[-3:]
    x, y, z = axes[-1], axes[-2] if len(axes) > 1 else None, axes[0] if depth else None
    faces = [(front, x, y)] + ([(lid, x, z), (side, z, y)] if depth else [])
    drawn = []
    for (corner, across, along), first, second in faces:
        drawn.append(_face(corner, across, along))
        for sizes, opacity in ((chunks, 0.3 if shards else 0.55), (shards, 0.8)):
            for axis, one, other in ((first, across, along), (second, along, across)):
                if sizes is not None and axis is not None:
                    for part in _cuts(shape[axis], sizes[axis], math.hypot(*one)):
                        start = (corner[0] + one[0] * part, corner[1] + one[1] * part)
                        drawn.append(_line(start, other, opacity))
    labels = [_label(left + width / 2, top + height + 13, shape[x], "middle")]
    if y is not None:
        labels.append(_label(left + width + depth + 6, top - depth / 2 + height / 2 + 4, shape[y]))
    if z is not None:
        labels.append(_label(left + depth / 2 - 3, top - depth / 2, shape[z], "end"))
    right = width + depth + 2 * _MARGIN + _TEXT
    box = f"{-_TEXT if z is not None else 0:.0f} 0 {right + (_TEXT if z is not None else 0):.0f}"
    tall = top + height + _MARGIN + 14
    wide = right + (_TEXT if z is not None else 0)
    return (
        f"<svg viewBox='{box} {tall:.0f}' width='{wide:.0f}' height='{tall:.0f}' role='img'>"
        f"{''.join(drawn)}{''.join(labels)}</svg>"
    )


def _cuts(length: int, size: int, edge: float) -> Iterator[float]:
    """Yield the ends of chunks along an edge, as fractions of it, thinned out if too dense."""
    count = -(-length // size)
    step = -(-count // max(1, int(edge / _NEAREST)))
    for number in range(step, count, step):
        yield number * size / length


def _face(corner: Point, across: Point, along: Point) -> str:
    points = [corner, _sum(corner, across), _sum(_sum(corner, across), along), _sum(corner, along)]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polygon points='{text}' fill='rgba(230,140,60,.25)' {_STROKE} stroke-width='1.2'/>"


def _line(start: Point, way: Point, opacity: float) -> str:
    end = _sum(start, way)
    return (
        f"<line x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}' "
        f"{_STROKE} stroke-opacity='{opacity}' stroke-width='1'/>"
    )


def _label(x: float, y: float, length: int, anchor: str = "start") -> str:
    text = f"{length:,}" if length < 10**7 else f"{float(min(length, 2**63)):.1e}"
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='10' fill='currentColor' "
        f"text-anchor='{anchor}'>{text}</text>"
    )


def _sum(one: Point, other: Point) -> Point:
    return one[0] + other[0], one[1] + other[1]
