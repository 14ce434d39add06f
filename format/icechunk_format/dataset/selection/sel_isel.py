"""Reads the options ``isel`` and ``sel`` and resolves them to positions of dimensions.

The grammar is ``<dimension>=<selector>``, separated by semicolons (or by commas where another
``<dimension>=`` follows):

- ``isel``: a position, a NumPy slice ``start:stop:step``, or positions with commas between.
  Negative positions count from the end.
- ``sel``: a value, a range ``low:high`` or ``low..high`` that includes both ends and may be open,
  or values with commas between.

Rules of this file
------------------
1. A range selects by value, in ascending, descending and unordered coordinates:
   - On a descending coordinate the ends may come in either order. On others, reversed ends select
     nothing, as in xarray.
   - An open range on a descending coordinate runs to the end of the axis: ``latitude=45:`` is 45
     and everything south of it.
   - Unsorted texts are names: a range runs from the position of one to that of the other, as in
     xarray, and both must exist.
2. A range outside of the coordinate selects nothing. A single value or position that does not exist
   is an error.
3. A range of times is cut at the colon where both sides read as times.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

import numpy as np

from icechunk_format.dataset.selection.labels import Labels, Period, nearest_label_error
from icechunk_format.dataset.selection.positions import DimSelection
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

_NEXT_DIMENSION = re.compile(r";|\n|,(?=\s*[^=,;:\s]+\s*=)")
_POSITION = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def resolve_isel(text: str, sizes: Mapping[str, int]) -> dict[str, DimSelection]:
    """Read the option ``isel``.

    Parameters
    ----------
    text
        Such as ``"time=0:24; latitude=10; longitude=0:100:2"``.
    sizes
        Length of each dimension.

    Returns
    -------
    dict
        A selection for each dimension that is named.

    Raises
    ------
    InvalidInputError
        If the text cannot be read, a dimension does not exist, or a position is out of bounds.
    """
    return {
        name: _positions(name, selector, sizes[name])
        for name, selector in _assignments("isel", text, sizes)
    }


def resolve_sel(
    text: str,
    sizes: Mapping[str, int],
    coordinate: Callable[[str], pa.Array],
    *,
    method: str | None = None,
) -> dict[str, DimSelection]:
    """Read the option ``sel``.

    Parameters
    ----------
    text
        Such as ``"time=2024-07-01:2024-07-07; latitude=35:45"``.
    sizes
        Length of each dimension.
    coordinate
        Gives the decoded values of a dimension; called for the dimensions that are named.
    method
        The option ``sel.method``: None for exact values, ``"nearest"`` for the closest ones.

    Raises
    ------
    InvalidInputError
        If the text cannot be read, a dimension does not exist, or a single value does not.
    UnsupportedError
        If a coordinate is of a type that labels cannot name.
    """
    if method not in (None, "nearest"):
        raise InvalidInputError(f"sel.method={method!r} is unknown; the only method is 'nearest'")
    return {
        name: DimSelection.of_mask(_label_mask(name, selector, coordinate(name), method))
        for name, selector in _assignments("sel", text, sizes)
    }


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name does not exist, with the existing ones, nearest first."""
    names = list(known)
    folded = {other.casefold(): other for other in names}
    wanted = name.casefold()
    close = [other for other in folded if other.startswith(wanted)]
    close += difflib.get_close_matches(wanted, folded, n=3, cutoff=0.5)
    ordered = [folded[other] for other in dict.fromkeys(close)]
    ordered += [other for other in names if other not in ordered]
    shown = ", ".join(ordered[:20]) + (", …" if len(ordered) > 20 else "")
    return f"there is no {what} {name!r}; there are: {shown}" if names else f"there is no {what}"


def _assignments(option: str, text: str, sizes: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    """Split an option into dimensions and their selectors, checking the dimensions."""
    seen: set[str] = set()
    folded = {name.casefold(): name for name in sizes}
    for part in _NEXT_DIMENSION.split(text):
        if not part.strip():
            continue
        name, equals, selector = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not selector:
            raise InvalidInputError(
                f"{option}: {part.strip()!r} is not <dimension>=<selector>; "
                f"write it like {option}='{next(iter(sizes), 'x')}=0:10; ...'"
            )
        name = name.strip("`")
        found = name if name in sizes else folded.get(name.casefold())
        if found is None:
            raise InvalidInputError(f"{option}: {unknown_name('dimension', name, sizes)}")
        if found in seen:
            raise InvalidInputError(f"{option}: dimension {found!r} is given twice; give it once")
        seen.add(found)
        yield found, selector


def _positions(name: str, selector: str, size: int) -> DimSelection:
    if ":" not in selector:
        positions = [_position(name, word, size) for word in selector.split(",")]
        return DimSelection.of_indices(size, np.array(positions, np.int64))
    words = [word.strip() for word in selector.split(":")]
    if len(words) > 3 or not all(not word or _POSITION.fullmatch(word) for word in words):
        raise InvalidInputError(
            f"isel: {name}={selector!r} is not a slice; write start:stop or start:stop:step "
            f"with whole numbers, each of which may be left out"
        )
    numbers = [int(word) if word else None for word in words]
    if len(numbers) == 3 and numbers[2] == 0:
        raise InvalidInputError(f"isel: {name}={selector!r} has step 0; any other step will do")
    chosen = range(size)[slice(*numbers)]
    if abs(chosen.step) == 1:
        return DimSelection.span(size, min(chosen, default=0), max(chosen, default=-1) + 1)
    return DimSelection.of_indices(size, np.arange(chosen.start, chosen.stop, chosen.step))


def _position(name: str, word: str, size: int) -> int:
    word = word.strip()
    if not _POSITION.fullmatch(word):
        raise InvalidInputError(
            f"isel: {name}={word!r} is not a position; write a whole number, or use sel for values"
        )
    position = int(word)
    if not -size <= position < size:
        raise InvalidInputError(
            f"isel: {name}={position} is out of bounds; dimension {name!r} has {size} positions"
            + (f", {-size} to {size - 1}" if size else "")
        )
    return position % size


def _label_mask(
    name: str, selector: str, values: pa.Array, method: str | None
) -> NDArray[np.bool_]:
    labels = Labels(values, name)
    if method == "nearest" and labels.is_text:
        raise InvalidInputError(
            f"sel.method=nearest has no meaning for dimension {name!r}, whose values are text"
        )
    if labels.is_text and (labels.values == selector).any():
        return _value_mask(name, selector, labels, None)
    bounds = _range_bounds(name, selector, labels)
    if bounds is not None:
        if labels.is_text and not labels.is_iso_text and not labels.is_sorted:
            return _name_range(name, labels, *bounds)
        return _range_mask(labels, *bounds)
    mask = np.zeros(len(values), np.bool_)
    for word in selector.split(","):
        mask |= _value_mask(name, word.strip(), labels, method)
    return mask


def _value_mask(name: str, text: str, labels: Labels, method: str | None) -> NDArray[np.bool_]:
    period = labels.read(text)
    if period is None:
        raise InvalidInputError(f"sel: {name}={text!r} is not {labels.expected()}")
    if method == "nearest":
        mask = np.zeros(len(labels.values), np.bool_)
        position = labels.nearest(period)
        if position is not None:
            mask[position] = True
            return mask
    else:
        mask = labels.matches(period)
    if not mask.any():
        raise nearest_label_error(text, labels, name)
    return mask


def _range_bounds(
    name: str, selector: str, labels: Labels
) -> tuple[Period | None, Period | None] | None:
    """Return the ends of a range, or None where the selector is not a range."""
    if ".." in selector:
        low, _, high = selector.partition("..")
        return _ends(name, low, high, labels)
    if ":" not in selector or "," in selector:
        return None
    if labels.is_time and labels.read(selector) is not None:
        return None
    cuts = [at for at, letter in enumerate(selector) if letter == ":"]
    readable = [
        (selector[:at], selector[at + 1 :])
        for at in cuts
        if _reads(selector[:at], labels) and _reads(selector[at + 1 :], labels)
    ]
    if len(readable) == 1 or (readable and labels.is_text and len(cuts) == 1):
        return _ends(name, *readable[0], labels)
    raise InvalidInputError(
        f"sel: {name}={selector!r} is not a range low:high of which each end is "
        f"{'text' if labels.is_text else labels.expected()}; "
        f"'low..high' says where it is cut, and isel takes steps"
    )


def _reads(text: str, labels: Labels) -> bool:
    if labels.is_iso_text and text.strip():
        return (
            re.fullmatch(
                r"\d{4}(-\d{2}(-\d{2}(T\d{2}(:\d{2}(:\d{2}(\.\d+)?)?)?)?)?)?", text.strip()
            )
            is not None
        )
    return not text.strip() or labels.read(text) is not None


def _ends(name: str, low: str, high: str, labels: Labels) -> tuple[Period | None, Period | None]:
    ends = []
    for text in (low.strip(), high.strip()):
        period = labels.read(text) if text else None
        if text and period is None:
            raise InvalidInputError(f"sel: {name}={text!r} is not {labels.expected()}")
        ends.append(period)
    return ends[0], ends[1]


def _range_mask(labels: Labels, low: Period | None, high: Period | None) -> NDArray[np.bool_]:
    is_upward = low is not None and high is not None and bool(low.first <= high.last)
    if not is_upward and _descends(labels):
        low, high = high, low
    return labels.between(low, high)


def _name_range(
    name: str, labels: Labels, low: Period | None, high: Period | None
) -> NDArray[np.bool_]:
    """Return the positions from one text to another, where texts are in no order."""
    ends = [0, len(labels.values) - 1]
    for number, period in enumerate((low, high)):
        if period is None:
            continue
        found = np.flatnonzero(labels.matches(period))
        if not len(found):
            raise nearest_label_error(period.first, labels, name)
        if found[-1] - found[0] >= len(found):
            raise InvalidInputError(
                f"sel: dimension {name!r} has the value {period.first!r} at {len(found)} positions "
                f"apart from one another, so no range can begin or end there; use isel={name}=...",
                dimension=name,
                value=period.first,
            )
        ends[number] = int(found[-number])
    mask = np.zeros(len(labels.values), np.bool_)
    mask[ends[0] : ends[1] + 1] = True
    return mask


def _descends(labels: Labels) -> bool:
    values = labels.values[labels.valid]
    return len(values) > 1 and bool((values[1:] < values[:-1]).all())
