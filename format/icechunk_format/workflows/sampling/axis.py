"""Finds the positions of numbers along one axis: the matching label, or the two around it.

Rules of this file
------------------
1. ``nearest`` and ``exact`` compare in the type of the labels, as xarray does, so that 35.1 matches
   the float32 35.1; of two labels at equal distance, the higher is chosen. ``linear`` compares in
   float64.
2. ``pad`` takes the previous label in array order: on a descending axis the next higher label.
3. A number is outside if it is more than half a step from the first or last label (``nearest``),
   before the first label (``pad``), beyond either (``linear``), or further away than the tolerance,
   which replaces the half step.
4. A number on a circle is shifted by multiples of the period into the range of the labels. Numbers
   beyond 2**53, where floats are coarser than labels, are outside. On a closed circle the first
   label follows the last one, and a last label that repeats the first is never found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.horizontal.axes import without_jump

if TYPE_CHECKING:
    from icechunk_format.workflows.horizontal.axes import Circle

Method = Literal["exact", "nearest", "linear", "pad"]
# Tolerance of evenly spaced labels, as a fraction of a step.
_UNEVEN: Final = 0.02
_COARSE: Final = 2.0**53
METHODS: tuple[Method, ...] = ("exact", "nearest", "linear", "pad")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """Positions of numbers along one axis.

    Parameters
    ----------
    lower
        ``int64 (n,)``: positions along the dimension; 0 for a number outside.
    upper, weight
        For ``linear``: the second position, and its ``float64`` weight from 0 to 1.
    """

    lower: NDArray[np.int64]
    inside: NDArray[np.bool_]
    upper: NDArray[np.int64] | None = None
    weight: NDArray[np.float64] | None = None

    def only(self, kept: NDArray[np.bool_]) -> Positions:
        """Mark the positions outside of ``kept`` as outside of the axis."""
        upper, weight = self.upper, self.weight
        return Positions(
            lower=np.where(kept, self.lower, 0),
            inside=self.inside & kept,
            upper=None if upper is None else np.where(kept, upper, 0),
            weight=None if weight is None else np.where(kept, weight, 0.0),
        )


class Axis:
    """Searches the labels of one axis. Raises InvalidInputError if they cannot be searched.

    Parameters
    ----------
    labels
        Decoded labels: floats, or ``int64`` (microseconds for times).
    valid
        A mask of the labels that are not NULL; None if all are. NULL labels are never found.
    tolerance
        Maximum distance from the label, in units of the labels; None for the default of rule 3.
    """

    def __init__(
        self,
        labels: NDArray[Any],
        valid: NDArray[np.bool_] | None,
        *,
        name: str,
        method: Method,
        tolerance: float | None = None,
        circle: Circle | None = None,
    ) -> None:
        present = np.ones(len(labels), np.bool_) if valid is None else valid.copy()
        if labels.dtype.kind == "f":
            present &= np.isfinite(labels)
        positions = np.flatnonzero(present).astype(np.int64)
        numbers = labels[positions]
        if circle is not None and circle.is_repeated:
            again = max(int(np.argmin(numbers)), int(np.argmax(numbers)))
            positions, numbers = np.delete(positions, again), np.delete(numbers, again)
        if circle is not None and not circle.is_closed:
            numbers = without_jump(numbers, circle.period)
        self._descends = len(numbers) > 1 and bool((np.diff(numbers) < 0).all())
        order = np.argsort(numbers, kind="stable")
        is_sorted = self._descends or bool((order == np.arange(len(order))).all())
        numbers, positions = numbers[order], positions[order]
        self._check(numbers, name, method, is_sorted=is_sorted)
        self.method = method
        self.circle = circle
        self._tolerance = tolerance
        self._count = len(numbers)
        if circle is not None and circle.is_closed and self._count > 1:
            again = numbers[0] + numbers.dtype.type(circle.period)
            if again > numbers[-1]:
                numbers = np.append(numbers, again)
                positions = np.append(positions, positions[0])
        self._numbers, self._positions = numbers, positions
        self._in_order = bool((positions == np.arange(len(positions))).all())

    @staticmethod
    def _check(numbers: NDArray[Any], name: str, method: Method, *, is_sorted: bool) -> None:
        twice = np.flatnonzero(numbers[1:] == numbers[:-1])
        if len(twice):
            raise InvalidInputError(
                f"coordinate {name!r} has the label {numbers[twice[0]].item()!r} more than once, so"
                " points cannot be matched against it; select one of them with option isel, or"
                " repair the array",
                coordinate=name,
            )
        if method == "pad" and not is_sorted:
            raise InvalidInputError(
                f"method='pad' needs labels in order, but those of coordinate {name!r} are not"
                " sorted; choose nearest or exact",
                coordinate=name,
            )

    @property
    def step(self) -> float:
        """The narrowest step between labels; 0 if there are fewer than two."""
        return float(np.diff(self._numbers).min()) if len(self._numbers) > 1 else 0.0

    def even_steps(self, size: int) -> tuple[float, float] | None:
        """Return the first label and the step of evenly spaced labels; None if they are uneven.

        All `size` positions must have labels. The last label may repeat the first.
        """
        numbers = self._numbers[: self._count].astype(np.float64)
        size -= self.circle is not None and self.circle.is_repeated
        if self._count != size or size < 2:
            return (0.0, 1.0) if size == 1 else None
        if self._descends:
            numbers = numbers[::-1]
        elif not self._in_order and not (self._positions[:size] == np.arange(size)).all():
            return None
        step = (numbers[-1] - numbers[0]) / (size - 1)
        uneven = np.abs(numbers - (numbers[0] + step * np.arange(size))).max()
        if not step or uneven > _UNEVEN * abs(step):
            return None  # a step of 0: labels beyond 2^53 that are one double
        return float(numbers[0]), float(step)

    def find(self, values: NDArray[Any]) -> Positions:
        """Find the positions of numbers that are not NaN; times are ``int64`` microseconds."""
        if not self._count:
            return Positions(
                lower=np.zeros(len(values), np.int64), inside=np.zeros(len(values), np.bool_)
            )
        finite = np.isfinite(values) if values.dtype.kind == "f" else None
        if finite is not None and self.circle is not None:
            finite &= np.abs(values) < _COARSE
        if finite is not None and not finite.all():
            values = np.where(finite, values, 0)
        numbers = self._numbers
        values = self._in_period(values)
        if self.method != "linear" and numbers.dtype.kind == "f":
            values = values.astype(numbers.dtype, copy=False)
        found: Positions = getattr(self, f"_{self.method}")(values)
        return found if finite is None else found.only(finite)

    def _in_period(self, values: NDArray[Any]) -> NDArray[Any]:
        """Shift numbers by multiples of the period into the range of the labels (rule 4)."""
        if self.circle is None:
            return values
        low, high = float(self._numbers[0]), float(self._numbers[-1])
        away = np.flatnonzero((values < low) | (values > high))
        if not len(away):
            return values
        period = self.circle.period
        moved = values[away].astype(np.float64)
        moved -= period * np.floor((moved - low) / period)
        # In the gap of an open circle, shift to the nearer end.
        nearer_low = (moved > high) & (low + period - moved < moved - high)
        moved = np.where(nearer_low, moved - period, moved)
        values = values.astype(np.float64)
        values[away] = moved
        return values

    def _at(self, found: NDArray[np.int64], inside: NDArray[np.bool_]) -> Positions:
        lower = found if self._in_order else self._positions[found]
        return Positions(lower=lower if inside.all() else np.where(inside, lower, 0), inside=inside)

    def _exact(self, values: NDArray[Any]) -> Positions:
        numbers = self._numbers
        found = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        return self._at(found, numbers[found] == values)

    def _nearest(self, values: NDArray[Any]) -> Positions:
        numbers = self._numbers
        after = np.searchsorted(numbers, values)
        before = np.maximum(after - 1, 0)
        np.minimum(after, len(numbers) - 1, out=after)
        is_before = values - numbers[before] < numbers[after] - values
        found = np.where(is_before, before, after)
        if self._tolerance is not None:
            inside = np.abs(values - numbers[found]) <= self._tolerance
        elif self._count == 1:
            inside = np.ones(len(values), np.bool_)
        else:
            low = float(numbers[0]) - (float(numbers[1]) - float(numbers[0])) / 2
            high = float(numbers[-1]) + (float(numbers[-1]) - float(numbers[-2])) / 2
            inside = (values >= low) & (values <= high)
        return self._at(found, inside)

    def _pad(self, values: NDArray[Any]) -> Positions:
        numbers = self._numbers
        if self._descends:
            found = np.searchsorted(numbers, values)
            inside = found < len(numbers)
            np.minimum(found, len(numbers) - 1, out=found)
        else:
            found = np.searchsorted(numbers, values, side="right") - 1
            inside = found >= 0
            np.maximum(found, 0, out=found)
        if self._tolerance is not None:
            inside &= np.abs(values - numbers[found]) <= self._tolerance
        return self._at(found, inside)

    def _linear(self, values: NDArray[Any]) -> Positions:
        numbers = self._numbers
        if len(numbers) == 1:
            found = self._exact(values)
            return replace(found, upper=found.lower, weight=np.zeros(len(values)))
        if numbers.dtype.kind == "f":
            numbers, values = numbers.astype(np.float64), values.astype(np.float64)
        upper = np.clip(np.searchsorted(numbers, values, side="right"), 1, len(numbers) - 1)
        lower = upper - 1
        below, above = values - numbers[lower], numbers[upper] - values
        inside = (below >= 0) & (above >= 0)
        if self._tolerance is not None:
            inside &= np.minimum(below, above) <= self._tolerance
        weight = below / (numbers[upper] - numbers[lower])
        upper = self._at(upper, inside).lower
        return replace(self._at(lower, inside), upper=upper, weight=np.where(inside, weight, 0.0))
