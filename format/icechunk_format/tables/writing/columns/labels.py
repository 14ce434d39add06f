"""Finds the index of each value of a dimension column among old and new labels.

Rules of this file
------------------
1. Labels are compared in their stored form. A label that the array would hold as another value is
   an error, and so are two labels that it would hold as one (``cf.round_trip``).
2. Old labels keep their indices. New labels follow, sorted like the old labels or those of the
   array that the column was read from.
3. A new label closer to an old label than a thousandth of the distance between neighbours is an
   error: most likely the same label, rounded differently.
4. NULL and NaN are not labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.display.plain_text import counted
from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf.round_trip import changed_values, comparable, holding_encoding
from icechunk_format.tables.table.table import direction

if TYPE_CHECKING:
    from icechunk_format.tables.cf.encode import VariableEncoder

NEAR_SHARE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexedLabels:
    """The indices of the distinct values of a dimension column."""

    indices: NDArray[np.int64]
    """``int64 (n,)``: of each value."""
    size: int
    """Elements of the dimension after the write."""
    old_size: int
    """Elements of the dimension before the write; 0 if it is new."""
    labels: NDArray[Any] | None
    """All stored labels after the write; None for a dimension without labels."""
    moved: NDArray[np.int64] | None = None
    """``int64 (old_size,)``: the new index of each old label; None if all stay."""

    @property
    def distinct(self) -> int:
        """Number of indices that are used."""
        return len(np.unique(self.indices))


def check_labels(values: pa.Array, *, dim: str) -> None:
    """Raise InvalidInputError for NULL and NaN."""
    is_nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    if values.null_count or is_nan:
        found, kept = "NULL", f"{dim} IS NOT NULL"
        if not values.null_count:
            found, kept = "NaN", f"NOT isnan({dim})"
        raise InvalidInputError(
            f"column {dim!r} is a dimension and must not be {found}; leave out the rows in which "
            f"it is: df.where('{kept}')",
            dim=dim,
        )


def given_indices(values: pa.Array, *, dim: str, old_size: int) -> IndexedLabels:
    """Return the indices of a dimension without labels: the values themselves, from 0."""
    check_labels(values, dim=dim)
    indices = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(indices) and int(indices.min()) < 0:
        raise InvalidInputError(
            f"the dimension {dim!r} has no labels, so its values are indices from 0; found "
            f"{int(indices.min())}",
            dim=dim,
            found=int(indices.min()),
        )
    size = max(old_size, int(indices.max()) + 1 if len(indices) else 0)
    return IndexedLabels(indices=indices, size=size, old_size=old_size, labels=None)


def index_labels(
    values: pa.Array | NDArray[Any],
    encoder: VariableEncoder,
    existing: NDArray[Any] | None,
    *,
    dim: str,
    is_descending: bool = False,
    order: NDArray[Any] | None = None,
) -> IndexedLabels:
    """Return the indices of distinct values; new labels follow the ``existing`` ones.

    ``existing``, ``order`` and NumPy ``values`` are stored values. ``order`` sorts the labels of a
    new array; ``is_descending`` sorts new labels if there are fewer than two old ones.
    """
    stored = values
    if isinstance(values, pa.Array):
        check_labels(values, dim=dim)
        stored = _stored_labels(values, encoder, dim=dim)
    wanted, inverse = np.unique(stored, return_inverse=True)
    if isinstance(values, pa.Array) and len(wanted) < len(values):
        _check_distinct(values, stored, inverse.reshape(-1), encoder, dim=dim)
    old = np.empty(0, wanted.dtype) if existing is None else existing
    if len(old) > 1 and direction(old) < 0:
        is_descending = True
    elif len(old) > 1:
        is_descending = False
    sorter = np.argsort(old, kind="stable")
    sorted_old = old[sorter]
    at = np.searchsorted(sorted_old, wanted)
    times = np.searchsorted(sorted_old, wanted, side="right") - at
    if (times > 1).any():
        label = _shown(wanted[times > 1][:1], encoder)
        raise InvalidInputError(
            f"the dimension {dim!r} has the stored label {label} more than once ({stored.dtype} in "
            "the array), so rows with it match several cells; repair the labels, or write with "
            "mode=overwrite",
            dim=dim,
        )
    known = times > 0
    fresh = wanted[~known]
    if wanted.dtype.kind in "iufMm":
        _check_near(sorted_old, fresh, dim, encoder)
    if is_descending:
        fresh = fresh[::-1]
    if order is not None and existing is None:
        fresh = _reordered(fresh, order)
    indices = np.empty(len(wanted), np.int64)
    indices[known] = sorter[at[known]]
    # New values are in ascending order here.
    indices[~known] = len(old) + np.argsort(fresh, kind="stable")
    return IndexedLabels(
        indices=indices[inverse.reshape(-1)],
        size=len(old) + len(fresh),
        old_size=len(old),
        labels=np.concatenate([old, fresh]),
    )


def _stored_labels(values: pa.Array, encoder: VariableEncoder, *, dim: str) -> NDArray[Any]:
    """Encode labels; raise InvalidInputError if the array would hold one as another value."""
    try:
        stored = encoder.encode(values)
    except InvalidInputError as error:
        if "step" not in error.facts:
            raise
        given = json.dumps({encoder.name: holding_encoding(values, encoder)})
        raise InvalidInputError(
            f"{error.message}: encoding={given} (with mode=overwrite if the array exists)",
            **error.facts,
        ) from error
    changed = changed_values(values, stored, encoder)
    if changed.any():
        at = int(np.argmax(changed))
        given, held = values[at].as_py(), _shown(stored[at : at + 1], encoder)
        raise InvalidInputError(
            f"column {dim!r} has {counted(int(changed.sum()), 'label')} that its array of"
            f" {_described(encoder)} cannot hold, such as {given}, which would become {held};"
            f" labels are not rounded. {_holding(values, encoder)}",
            dim=dim,
            label=str(given),
            stored=held,
        )
    return stored


def _check_distinct(
    values: pa.Array,
    stored: NDArray[Any],
    inverse: NDArray[np.int64],
    encoder: VariableEncoder,
    *,
    dim: str,
) -> None:
    """Raise InvalidInputError if two labels have one stored form."""
    _, first = np.unique(comparable(values, encoder), return_index=True)
    at = inverse[first]
    repeats = np.flatnonzero(np.bincount(at) > 1)
    if not len(repeats):
        return
    one, other = (str(values[int(n)]) for n in first[at == repeats[0]][:2])
    held = _shown(stored[first[at == repeats[0]][:1]], encoder)
    raise InvalidInputError(
        f"column {dim!r} has the labels {one} and {other}, and its array of {_described(encoder)}"
        f" would hold both as {held}; labels are not rounded. {_holding(values, encoder)}",
        dim=dim,
        labels=(one, other),
        stored=held,
    )


def _described(encoder: VariableEncoder) -> str:
    """Return the data type of an array, its units and its packing, for errors."""
    encoding = encoder.decoder.encoding
    parts = [repr(encoding["units"])] if "units" in encoding else []
    parts += [f"{key}={encoding[key]}" for key in ("scale_factor", "add_offset") if key in encoding]
    return " with ".join(filter(None, (encoder.data_type.name, ", ".join(parts))))


def _holding(values: pa.Array, encoder: VariableEncoder) -> str:
    given = json.dumps({encoder.name: holding_encoding(values, encoder)})
    return (
        "Change the labels (round or cast the column), or write to an array that holds them:"
        f" encoding={given} (with mode=overwrite if the array exists)"
    )


def in_order(indexed: IndexedLabels, first: int) -> IndexedLabels:
    """Sort new labels among the old ones from ``first`` on, if this puts all labels in order."""
    labels, old_size = indexed.labels, indexed.old_size
    has_new = indexed.size > old_size
    if labels is None or not has_new or first >= old_size or not _has_order(labels):
        return indexed
    late = labels[first:]
    known = labels[: first if first > 1 else old_size]
    if len(known) < 2:
        known = labels[old_size:] if indexed.size - old_size > 1 else late
    way = direction(known)
    order = np.argsort(late, kind="stable")[:: way or 1]
    joined = np.concatenate([labels[max(0, first - 1) : first], late[order]])
    if not way or (len(joined) > 1 and direction(joined) != way):
        return indexed
    indices = np.arange(indexed.size, dtype=np.int64)
    indices[first + order] = np.arange(first, indexed.size)
    moved = indices[:old_size]
    if (moved == np.arange(old_size)).all():
        return indexed
    return replace(
        indexed,
        indices=indices[indexed.indices],
        labels=np.concatenate([labels[:first], late[order]]),
        moved=moved,
    )


def _has_order(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "iufMm" or labels.dtype.hasobject or labels.dtype.kind in "TU"


def _reordered(fresh: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """Return labels in a given order, followed by the other labels, sorted."""
    rank = {label: number for number, label in enumerate(order.tolist())}
    last = len(rank)
    keys = [rank.get(label, last) for label in fresh.tolist()]
    found: NDArray[Any] = fresh[np.argsort(np.array(keys, np.int64), kind="stable")]
    return found


def _check_near(
    sorted_old: NDArray[Any], fresh: NDArray[Any], dim: str, encoder: VariableEncoder
) -> None:
    """Raise InvalidInputError if a new label nearly equals an old one."""
    if not len(fresh) or not len(sorted_old):
        return
    is_old = np.concatenate([np.ones(len(sorted_old), np.bool_), np.zeros(len(fresh), np.bool_)])
    labels = np.concatenate([sorted_old, fresh])
    if labels.dtype.kind in "Mm":
        labels = labels.view(np.int64)
    order = np.argsort(labels, kind="stable")
    labels, is_old = labels[order], is_old[order]
    if len(labels) < 3:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.diff(labels.astype(np.float64) - float(labels[0]))
    if labels.dtype.kind in "iu":
        # Subtract integers: a double would round nanoseconds since 1970, which need 61 bits.
        gaps = np.diff(labels).astype(np.float64)
    # The smaller of the gaps before and after each pair.
    before = np.concatenate([[np.inf], gaps[:-1]])
    after = np.concatenate([gaps[1:], [np.inf]])
    around = np.minimum(before, after)
    near = (gaps < NEAR_SHARE * around) & np.isfinite(around) & (is_old[:-1] != is_old[1:])
    if not near.any():
        return
    first = int(np.argmax(near))
    pair = [labels[first : first + 1], labels[first + 1 : first + 2]]
    shown = [_shown(one, encoder) for one in pair]
    old, new = shown if is_old[first] else shown[::-1]
    raise InvalidInputError(
        f"the dimension {dim!r} has the label {old}, and the new labels have {new}: they differ by "
        "less than a thousandth of the distance to their neighbours, so they are probably one "
        "label (as float32 and as float64?); round or cast the column to the existing labels",
        dim=dim,
        labels=tuple(shown),
    )


def _shown(stored: NDArray[Any], encoder: VariableEncoder) -> str:
    dtype = encoder.data_type.numpy
    value = encoder.decoder.decode(stored.astype(dtype, copy=False))[0].as_py()
    return repr(value) if isinstance(value, float | int) else str(value)
