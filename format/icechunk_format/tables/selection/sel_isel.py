"""Parses the options ``isel`` and ``sel`` and resolves them to positions of dimensions.

The grammar is ``<dimension>=<selector>``, separated by semicolons (or by commas if another
``<dimension>=`` follows):

- ``isel``: a position, a NumPy slice ``start:stop:step``, or positions separated by commas.
  Negative positions count from the end. A mask, one boolean for each position, selects by True.
- ``sel``: a value, a range ``low:high`` or ``low..high`` that includes both ends and may be open,
  or values separated by commas.

Both may also be a mapping from dimensions to Python values, as in xarray: a value, a slice, a list
or an array. A string value is parsed as a selector of the grammar.

Rules of this file
------------------
1. A range selects by value, in ascending, descending and unordered coordinates:
   - On a descending coordinate the ends may be in either order. On other coordinates reversed ends
     select nothing, as in xarray.
   - An open range on a descending coordinate runs to the end of the axis: ``latitude=45:`` is 45
     and everything south of it.
   - In unsorted strings a range runs from the position of one end to that of the other, as in
     xarray, and both ends must exist.
2. A range outside of the coordinate selects nothing. A single value or position that does not exist
   is an error.
3. A range of times is split at the colon at which both sides are valid times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups import DimSelection
from icechunk_format.names import unknown
from icechunk_format.options.keywords import items_of, single
from icechunk_format.tables.selection.labels import Labels, Period, nearest_label_error
from icechunk_format.tables.selection.near import is_range, positions_near

Given = str | Mapping[str, Any]
"""The option as a string, or the Python values of each dimension."""

_NEXT_DIMENSION = re.compile(r";|\n|,(?=\s*[^=,;:\s]+\s*=)")
_POSITION = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_ISO_START = re.compile(r"\d{4}(-\d{2}(-\d{2}(T\d{2}(:\d{2}(:\d{2}(\.\d+)?)?)?)?)?)?")


def combined_selection(
    sizes: Mapping[str, int],
    coordinate: Callable[[str], pa.Array],
    *,
    sel: Given | None,
    isel: Given | None,
    method: str | None = None,
    exactly: bool = False,
) -> dict[str, DimSelection]:
    """Return the positions that both ``sel`` and ``isel`` select, by named dimension."""
    found = {} if isel is None else resolve_isel(isel, sizes)
    labelled: dict[str, DimSelection] = {}
    if sel is not None:
        method = None if method == "exact" else method
        labelled = resolve_sel(sel, sizes, coordinate, method=method, exactly=exactly)
    for dim, own in labelled.items():
        found[dim] = own.intersect(found[dim]) if dim in found else own
    return found


def resolve_isel(given: Given, sizes: Mapping[str, int]) -> dict[str, DimSelection]:
    """Resolve the option ``isel`` to a selection for each dimension that it names.

    ``given`` is a string such as ``"time=0:24; latitude=10; longitude=0:100:2"``, or a mapping such
    as ``{"time": slice(0, 24)}``.
    """
    return {
        name: _positions(name, selector, sizes[name])
        for name, selector in _assignments("isel", given, sizes)
    }


def resolve_sel(
    given: Given,
    sizes: Mapping[str, int],
    coordinate: Callable[[str], pa.Array | range],
    *,
    method: str | None = None,
    exactly: bool = False,
) -> dict[str, DimSelection]:
    """Resolve the option ``sel`` to a selection for each dimension that it names.

    ``given`` is a string such as ``"time=2024-07-01:2024-07-07; latitude=35:45"``, or a mapping
    such as ``{"latitude": [35, 45]}``. ``coordinate`` returns the decoded values of a named
    dimension. ``method`` is the option ``sel.method``: None for exact matches, ``"nearest"`` for
    the nearest values.
    """
    if method not in (None, "nearest"):
        raise InvalidInputError(
            f"sel.method={method!r} is unknown; the only method is 'nearest'",
            option="sel.method",
            found=method,
        )
    return {
        name: _labelled(name, selector, coordinate(name), method, exactly)
        for name, selector in _assignments("sel", given, sizes)
    }


def single_selectors(option: str, given: Given | None, sizes: Mapping[str, int]) -> dict[str, bool]:
    """Return the dimensions that are selected by one value, and whether the value is a string."""
    pairs = [] if given is None else [*_assignments(option, given, sizes)]
    pairs = [one for one in pairs if not isinstance(one[1], slice) and items_of(one[1]) is None]
    found = {name: isinstance(own, str) for name, own in pairs}
    return {n: found[n] for n, own in pairs if not found[n] or not re.search(r":|,|\.\.", own)}


def _assignments(option: str, given: Given, sizes: Mapping[str, int]) -> Iterable[tuple[str, Any]]:
    """Yield each named dimension with its selector: a string or a Python value."""
    seen: set[str] = set()
    folded = {name.casefold(): name for name in sizes}
    pairs = given.items() if isinstance(given, Mapping) else _parts(option, given, sizes)
    for name, selector in pairs:
        found = name if name in sizes else folded.get(name.casefold())
        if found is None:
            raise InvalidInputError(
                f"{option}: {unknown('dimension', name, sizes)}", option=option, dimension=name
            )
        if found in seen:
            raise InvalidInputError(
                f"{option}: dimension {found!r} is given twice; give it once",
                option=option,
                dimension=found,
            )
        seen.add(found)
        yield found, single(selector)


def _parts(option: str, string: str, sizes: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    for part in _NEXT_DIMENSION.split(string):
        if not part.strip():
            continue
        name, equals, selector = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not selector:
            raise InvalidInputError(
                f"{option}: {part.strip()!r} is not <dimension>=<selector>; "
                f"write it like {option}='{next(iter(sizes), 'x')}=0:10; ...'",
                option=option,
                found=part.strip(),
            )
        yield name.strip("`"), selector


def _is_boolean(value: Any) -> bool:
    return isinstance(single(value), bool | np.bool_)


def _no_mask(option: str, name: str, size: int) -> InvalidInputError:
    return InvalidInputError(
        f"{option}: {name} is given by booleans; a mask belongs to isel, as a list or array of one"
        f" boolean for each of the {size} positions of {name!r}",
        option=option,
        dimension=name,
    )


def _listed(option: str, name: str, value: Any) -> list[Any]:
    """Return the items of a list or an array, or a single value as a list of one item."""
    items = items_of(value)
    if items is None:
        return [value]
    if not items:
        raise InvalidInputError(
            f"{option}: {name} has an empty list; name a value, or leave the dimension out",
            option=option,
            dimension=name,
        )
    return items


def _positions(name: str, selector: Any, size: int) -> DimSelection:
    if isinstance(selector, str) and ":" in selector:
        words = [word.strip() for word in selector.split(":")]
        if len(words) > 3 or not all(not word or _POSITION.fullmatch(word) for word in words):
            raise _no_slice(name, selector)
        chosen = slice(*(int(word) if word else None for word in words))
    elif isinstance(selector, slice):
        if any(map(_is_boolean, (selector.start, selector.stop, selector.step))):
            raise _no_slice(name, selector)
        chosen = selector
    else:
        words = selector.split(",") if isinstance(selector, str) else selector
        listed = _listed("isel", name, words)
        if any(map(_is_boolean, listed)):
            if items_of(words) is None or len(listed) != size or not all(map(_is_boolean, listed)):
                raise _no_mask("isel", name, size)
            return DimSelection.of_mask(np.array(listed, np.bool_))
        positions = [_position(name, word, size) for word in listed]
        return DimSelection.of_indices(size, np.array(positions, np.int64))
    if chosen.step == 0:
        raise InvalidInputError(
            f"isel: {name}={selector!r} has step 0; give another step",
            option="isel",
            dimension=name,
        )
    try:
        indices = range(size)[chosen]
    except TypeError:
        raise _no_slice(name, selector) from None
    if abs(indices.step) == 1:
        return DimSelection.span(size, min(indices, default=0), max(indices, default=-1) + 1)
    return DimSelection.of_indices(size, np.arange(indices.start, indices.stop, indices.step))


def _no_slice(name: str, selector: Any) -> InvalidInputError:
    return InvalidInputError(
        f"isel: {name}={selector!r} is not a slice; write start:stop or start:stop:step "
        f"with whole numbers, each of which may be left out",
        option="isel",
        dimension=name,
    )


def _position(name: str, word: Any, size: int) -> int:
    if isinstance(word, str):
        word = word.strip()
        position = int(word) if _POSITION.fullmatch(word) else None
    else:
        is_whole = isinstance(word, int | np.integer) and not isinstance(word, np.timedelta64)
        position = int(word) if is_whole else None
    if position is None:
        raise InvalidInputError(
            f"isel: {name}={word!r} is not a position; write a whole number, or use sel for values",
            option="isel",
            dimension=name,
        )
    if not -size <= position < size:
        raise InvalidInputError(
            f"isel: {name}={position} is out of bounds; dimension {name!r} has {size} positions"
            + (f", {-size} to {size - 1}" if size else ""),
            option="isel",
            dimension=name,
        )
    return position % size


def _labelled(
    name: str, selector: Any, values: pa.Array | range, method: str | None, exactly: bool
) -> DimSelection:
    if not isinstance(values, range):
        return DimSelection.of_mask(_label_mask(name, selector, values, method, exactly))
    # Only the positions at and beside the given numbers can be selected, or be ends of a range.
    near = positions_near(selector, len(values))
    found = near[_label_mask(name, selector, pa.array(near), method, exactly)]
    if is_range(selector) and len(found):
        return DimSelection.span(len(values), int(found[0]), int(found[-1]) + 1)
    return DimSelection.of_indices(len(values), found)


def _label_mask(
    name: str, selector: Any, values: pa.Array, method: str | None, exactly: bool
) -> NDArray[np.bool_]:
    labels = Labels(values, name, exactly=exactly)
    if method == "nearest" and labels.is_string:
        raise InvalidInputError(
            f"sel.method=nearest does not apply to dimension {name!r}, whose values are strings",
            option="sel.method",
            dimension=name,
        )
    if isinstance(selector, str):
        if labels.is_string and (labels.values == selector).any():
            return _value_mask(name, selector, labels, None)
        bounds = _range_bounds(name, selector, labels)
        items: list[Any] = selector.split(",")
    else:
        bounds = _slice_bounds(name, selector, labels) if isinstance(selector, slice) else None
        items = _listed("sel", name, selector) if bounds is None else []
        if any(map(_is_boolean, items)) and labels.values.dtype.kind != "b":
            raise _no_mask("sel", name, len(values))
    if bounds is not None:
        if labels.is_string and not labels.is_iso_string and not labels.is_sorted:
            return _name_range(name, labels, *bounds)
        return _range_mask(labels, *bounds)
    mask = np.zeros(len(values), np.bool_)
    for item in items:
        mask |= _value_mask(name, item, labels, method)
    return mask


def _value_mask(name: str, value: Any, labels: Labels, method: str | None) -> NDArray[np.bool_]:
    period = _read(name, value, labels)
    if method == "nearest":
        mask = np.zeros(len(labels.values), np.bool_)
        position = labels.nearest(period)
        if position is not None:
            mask[position] = True
            return mask
    else:
        mask = labels.between(period, period)
    if not mask.any():
        raise nearest_label_error(period, value, labels, name)
    return mask


def _range_bounds(
    name: str, selector: str, labels: Labels
) -> tuple[Period | None, Period | None] | None:
    """Return the ends of a range, or None if the selector is not a range."""
    if ".." in selector:
        low, _, high = selector.partition("..")
        return _ends(name, [low.strip(), high.strip()], labels)
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
    if len(readable) == 1 or (readable and labels.is_string and len(cuts) == 1):
        return _ends(name, [string.strip() for string in readable[0]], labels)
    raise InvalidInputError(
        f"sel: {name}={selector!r} is not a range low:high whose ends are each "
        f"{'a string' if labels.is_string else labels.expected()}; "
        f"write low..high if the ends hold colons, and use isel for steps",
        option="sel",
        dimension=name,
    )


def _reads(string: str, labels: Labels) -> bool:
    if labels.is_iso_string and string.strip():
        return _ISO_START.fullmatch(string.strip()) is not None
    return not string.strip() or labels.read(string) is not None


def _slice_bounds(name: str, chosen: slice, labels: Labels) -> tuple[Period | None, Period | None]:
    if chosen.step is not None:
        raise InvalidInputError(
            f"sel: {name}={chosen!r} has a step; use isel for steps", option="sel", dimension=name
        )
    return _ends(name, [chosen.start, chosen.stop], labels)


def _ends(name: str, given: Sequence[Any], labels: Labels) -> tuple[Period | None, Period | None]:
    is_open = [end is None or (isinstance(end, str) and not end) for end in given]
    low, high = (
        None if no_end else _read(name, end, labels)
        for no_end, end in zip(is_open, given, strict=True)
    )
    return low, high


def _read(name: str, value: Any, labels: Labels) -> Period:
    value = value.strip() if isinstance(value, str) else single(value)
    if (period := labels.read(value)) is None:
        hint = f"; write labels without brackets: {name}=a,b" if str(value)[:1] == "[" else ""
        says = f"sel: {name}={value!r} is not {labels.expected()}{hint}"
        raise InvalidInputError(says, dimension=name)
    return period


def _range_mask(labels: Labels, low: Period | None, high: Period | None) -> NDArray[np.bool_]:
    is_upward = low is not None and high is not None and bool(low.first <= high.last)
    if not is_upward and _descends(labels):
        low, high = high, low
    return labels.between(low, high)


def _name_range(
    name: str, labels: Labels, low: Period | None, high: Period | None
) -> NDArray[np.bool_]:
    """Return a mask of the positions from one unsorted string to another."""
    ends = [0, len(labels.values) - 1]
    for number, period in enumerate((low, high)):
        if period is None:
            continue
        found = np.flatnonzero(labels.between(period, period))
        if not len(found):
            raise nearest_label_error(period, period.first, labels, name)
        if found[-1] - found[0] >= len(found):
            raise InvalidInputError(
                f"sel: dimension {name!r} has the value {period.first!r} at {len(found)} separate "
                f"positions, so no range can begin or end there; use isel={name}=...",
                dimension=name,
                value=period.first,
            )
        ends[number] = int(found[-number])
    mask = np.zeros(len(labels.values), np.bool_)
    mask[ends[0] : ends[1] + 1] = True
    return mask


def _descends(labels: Labels) -> bool:
    values = labels.values[labels.valid]
    return bool((values[1:] <= values[:-1]).all() and (values[1:] < values[:-1]).any())
