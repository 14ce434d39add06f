"""Matches the labels of two sources along one dimension.

==========  ======================================================================================
method      the element of the further source is
==========  ======================================================================================
``exact``   that with the same label
``nearest`` that with the nearest label, the higher of two; without a tolerance, labels more than
            half a step beyond its ends match none
==========  ======================================================================================

Rules of this file
------------------
1. Labels are compared decoded: units, packing, reference dates and data types may differ. Numbers
   are equal as short floats if one side has short floats, up to two units in the last place, which
   computed grids differ by.
2. Times of two calendars match only if both calendars are Gregorian.
3. Labels may be in any order. A label that a further source has twice is ambiguous, and refused.
4. Longitudes are not shifted by 360 degrees, since the neighbours of a cell would change; the error
   gives the call that shifts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.groups import Variable
from icechunk_format.tables import Dataset, Labels
from icechunk_format.tables.cf import attribute_decoder, canonical_calendar
from icechunk_format.workflows.horizontal.axes import period_of

Method = Literal["exact", "nearest", "whole"]
METHODS: Final = ("exact", "nearest", "whole")

# Computed float32 labels of one grid differ by up to this number of units in the last place, which
# must be a small share of a step.
_MOST_ULPS: Final = 2
_SHARE_OF_STEP: Final = 1e-3
_SLACK: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceLabels:
    """The decoded labels of a source along one dimension.

    Parameters
    ----------
    source
        Name of the source, for messages.
    """

    source: str
    variable: Variable
    labels: Labels

    @classmethod
    def of(cls, dataset: Dataset, dim: str, source: str) -> SourceLabels | None:
        """Read the labels of a dimension; None if it has none."""
        variable = dataset.variables.get(dim)
        if variable is None or variable.dims != (dim,):
            return None
        metadata = variable.metadata
        decoder = attribute_decoder(metadata.attributes, metadata.data_type, name=dim)
        try:
            labels = Labels(decoder.decode(dataset.read(dim)), dim)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"others: the labels {dim!r} of {source!r} are {decoder.arrow_type}, which cannot"
                f" be compared; read the dimension as a whole with method={{{dim!r}: 'whole'}}",
                option="others",
                dimension=dim,
            ) from error
        return cls(source=source, variable=variable, labels=labels)

    def within(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return a mask of the valid labels in ``[start, stop)``."""
        valid = self.labels.valid.copy()
        valid[:start] = valid[stop:] = False
        return valid

    @property
    def kind(self) -> str:
        """The kind of labels, with the calendar of times that are not Gregorian."""
        if self.labels.is_time:
            return "times"
        units = self.variable.attributes.get("units")
        if self.labels.is_string and isinstance(units, str) and "since" in units:
            calendar = str(self.variable.attributes.get("calendar", "standard"))
            return f"times of the calendar {canonical_calendar(calendar) or calendar!r}"
        if self.labels.is_string:
            return "strings"
        return "durations" if self.labels.is_duration else "numbers"

    def span(self, selected: tuple[int, int]) -> str:
        """Return the smallest and the largest selected label, for messages."""
        valid = np.flatnonzero(self.within(*selected))
        if not len(valid):
            return "no labels"
        order = np.argsort(self.labels.values[valid], kind="stable")
        low, high = (self.labels.show(int(valid[order[end]])) for end in (0, -1))
        return f"{low} to {high}"


def match(
    first: SourceLabels,
    other: SourceLabels,
    mine: tuple[int, int],
    own: tuple[int, int],
    method: Method,
    tolerance: float | None,
) -> NDArray[np.int64]:
    """Return the position in `other` of each label of `first`; -1 if none matches.

    Parameters
    ----------
    mine, own
        The selected elements of the two sources.
    tolerance
        Largest distance to the nearest label, in microseconds for times.
    """
    found = np.full(mine[1] - mine[0], -1, dtype=np.int64)
    usable = np.flatnonzero(other.within(*own))
    if first.kind != other.kind or not len(usable):
        return found
    wanted, held = _comparable(first.labels.values, other.labels.values)
    wanted, held = wanted[mine[0] : mine[1]], held[usable]
    sorter = np.argsort(held, kind="stable")
    held = held[sorter]
    above = np.searchsorted(held, wanted)
    low, high = np.clip(above - 1, 0, None), np.clip(above, None, len(held) - 1)
    if held.dtype.hasobject:
        chosen, is_found = high, held[high] == wanted
    else:
        distances = [np.abs(wanted - held[low]), np.abs(held[high] - wanted)]
        chosen = np.where(distances[1] <= distances[0], high, low)
        away = np.minimum(*distances)
        limit = _limit(first, other, held, method, tolerance)
        is_found = away <= limit[np.clip(above, 0, len(held))]
    is_found = np.asarray(is_found, np.bool_) & first.labels.valid[mine[0] : mine[1]]
    found[is_found] = usable[sorter[chosen[is_found]]]
    _check_distinct(other, usable[sorter], held, chosen[is_found])
    return found


def _comparable(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return labels in one data type."""
    if one.dtype.hasobject or (one.dtype.kind == other.dtype.kind == "i"):
        return one, other
    return one.astype(np.float64), other.astype(np.float64)


def _limit(
    first: SourceLabels,
    other: SourceLabels,
    held: NDArray[Any],
    method: Method,
    tolerance: float | None,
) -> NDArray[np.float64]:
    """Return the largest distance below the first label, between two labels, and above the last."""
    steps = np.diff(held).astype(np.float64)
    if method == "nearest":
        if tolerance is not None:
            return np.full(len(held) + 1, tolerance * _SLACK)
        ends = (steps[0], steps[-1]) if len(steps) else (0.0, 0.0)
        return np.concatenate([[ends[0] / 2], steps, [ends[1] / 2]]) * _SLACK
    # Decoded float16 labels are float32.
    stored = [one.variable.metadata.data_type.numpy for one in (first, other)]
    kinds = [*stored, *(one.labels.values.dtype for one in (first, other))]
    floats = [kind for kind in kinds if kind.kind == "f"]
    if min((kind.itemsize for kind in floats), default=8) == 8:
        return np.zeros(len(held) + 1)
    short = min(floats, key=lambda kind: kind.itemsize)
    with np.errstate(over="ignore"):
        ulp = float(np.spacing(np.abs(held).max(initial=0).astype(short)))
    step = float(np.min(steps[steps > 0], initial=np.inf))
    is_small = _MOST_ULPS * ulp <= _SHARE_OF_STEP * step
    return np.full(len(held) + 1, (_MOST_ULPS if is_small else 0.5) * ulp)


def _check_distinct(
    other: SourceLabels,
    usable: NDArray[np.int64],
    held: NDArray[Any],
    chosen: NDArray[np.int64],
) -> None:
    """Raise InvalidInputError if a matched label occurs twice."""
    repeats = np.flatnonzero(held[1:] == held[:-1])
    same = repeats[np.isin(held[repeats], held[chosen])] if len(repeats) else repeats
    if len(same):
        dim, at = other.variable.name, [int(usable[same[0]]), int(usable[same[0] + 1])]
        label = other.labels.show(at[0])
        raise InvalidInputError(
            f"others: {dim!r} of {other.source!r} has the label {label} twice, at positions"
            f" {at[0]} and {at[1]}, so its cells are not known by their label; select one of them"
            " with isel",
            option="others",
            source=other.source,
            dimension=dim,
            label=label,
        )


def refuse_unmatched(
    first: SourceLabels,
    other: SourceLabels,
    mine: tuple[int, int],
    own: tuple[int, int],
    found: NDArray[np.int64],
    method: Method,
) -> NoReturn:
    """Raise InvalidInputError for labels of `first` that `other` does not have, as selected."""
    dim = first.variable.name
    missing = np.flatnonzero(found < 0)
    at = int(missing[0]) + mine[0]
    label = first.labels.show(at) if first.labels.valid[at] else "a missing value"
    facts = {"option": "others", "source": other.source, "dimension": dim, "label": label}
    if first.kind != other.kind:
        raise InvalidInputError(
            f"others: {dim!r} of {other.source!r} has {other.kind}, and that of {first.source} has"
            f" {first.kind}, so labels cannot be compared; convert one source first (times with"
            " ds.convert_calendar in map_blocks), or read the dimension as a whole with"
            f" method={{{dim!r}: 'whole'}}",
            **facts,
        )
    problem = (
        f"others: {other.source!r} has no label {dim}={label} (the first of {len(missing)} of"
        f" {len(found)} labels of {first.source} that do not match; its own are {other.span(own)})"
    )
    shift = _shift_of(first, other, missing + mine[0])
    if shift is not None:
        raise InvalidInputError(
            f"{problem}: the longitudes of the two have different ranges. Store {other.source!r}"
            f" with the other range first: map_blocks(spark, path, lambda ds: ds.assign_coords("
            f"{dim}={shift}).sortby({dim!r}), to=..., blocks={{{dim!r}: -1}})",
            nearest=None,
            **facts,
        )
    mine_units, units = (one.variable.attributes.get("units") for one in (first, other))
    hint = ""
    if not first.labels.is_time and mine_units != units:
        hint = f" (units {mine_units!r} and {units!r})"
    raise InvalidInputError(
        f"{problem}{hint}; select labels that both have with sel, or"
        + (
            " set a larger tolerance"
            if method == "nearest"
            else f" take the nearest with method='nearest' and tolerance={{{dim!r}: ...}}"
        )
        + f", or read the dimension as a whole in each block with method={{{dim!r}: 'whole'}}",
        **facts,
    )


def _shift_of(first: SourceLabels, other: SourceLabels, missing: NDArray[np.int64]) -> str | None:
    """Return the expression that brings longitudes to the range of `first`, if they then match."""
    period = period_of(first.variable) or period_of(other.variable)
    labels = [one.labels.values for one in (first, other)]
    if period is None or any(values.dtype.kind not in "iuf" for values in labels):
        return None
    wanted, held = (values.astype(np.float64) for values in labels)
    low, high = (float(end) for end in (np.nanmin(held), np.nanmax(held)))
    one = wanted[missing[0]]
    if low <= one <= high or not any(low <= one + by <= high for by in (-period, period)):
        return None
    dim, half = f"ds[{first.variable.name!r}]", f"{period / 2:g}"
    if float(np.nanmin(wanted)) >= 0:
        return f"{dim} % {period:g}"
    return f"({dim} + {half}) % {period:g} - {half}"
