"""Describes evenly spaced labels as numbers from which Spark computes the chunk of a point.

If labels are evenly spaced numbers or times and chunks are equal, Spark can compute the chunk of a
point without Python. A result that is off by one only makes one more task decode a chunk, since
tasks find positions by the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icechunk_format.groups import chunk_axes

if TYPE_CHECKING:
    from icechunk_format.workflows.sampling.sampled import SamplePlan
    from icechunk_format.workflows.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSteps:
    """Converts the value of a point's column to a chunk number along one axis.

    Parameters
    ----------
    point
        Index of the points' column.
    is_time
        True if labels are microseconds since 1970.
    first, step
        The first label, and the step to the next; negative for descending labels.
    is_rounded
        True for the nearest label, False for the previous one.
    elements, chunks
        The elements of a chunk, and the number of chunks.
    """

    point: int
    is_time: bool
    first: float
    step: float
    period: float | None
    is_rounded: bool
    elements: int
    chunks: int


def chunk_steps(plan: SamplePlan, sampler: Sampler) -> list[ChunkSteps] | None:
    """Return the steps along each axis of the leading array; None if labels are not even.

    Reads and checks the labels of all axes.
    """
    steps: list[ChunkSteps] = []
    found = {axis.dim: (axis, sampler.axis(axis)) for axis in plan.axes if axis.kind != "string"}
    lead = plan.variables[plan.lead]
    is_moved = plan.horizontal is not None and plan.horizontal.points_crs is not None
    axes = chunk_axes(sampler.arrays.variable(str(lead.column.path)))
    for number, dim in sorted(lead.pointed.items()):
        if dim not in found or axes[number].edges is not None or is_moved:
            return None
        choice, axis = found[dim]
        even = axis.even_steps(choice.size)
        if even is None or choice.kind not in ("number", "time"):
            return None
        steps.append(
            ChunkSteps(
                point=choice.point,
                is_time=choice.kind == "time",
                first=even[0],
                step=even[1],
                period=None if axis.circle is None else axis.circle.period,
                is_rounded=choice.method in ("exact", "nearest"),
                elements=axes[number].step,
                chunks=axes[number].count,
            )
        )
    return steps
