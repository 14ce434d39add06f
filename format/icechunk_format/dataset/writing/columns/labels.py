"""Finds the index of each value along a dimension, among old labels and new ones.

Rules of this file
------------------
1. Labels are compared as they are stored, after the cast: a ``double`` that the array rounds to
   ``float32`` is the label that it rounds to.
2. Old labels keep their indices. New labels follow, sorted: descending if the old labels, or those
   of the array that the column was read from, are descending.
3. A new label that is closer to an old one than a thousandth of the distance between neighbours is
   an error: most likely the same label with other digits.
4. NULL and NaN are no labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.dataset.table.label_order import direction
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.dataset.cf.encode import VariableEncoder

NEAR_SHARE: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedValues:
    """The distinct values of a dimension column, and their indices.

    Parameters
    ----------
    places
        ``int64 (n,)``: the index along the dimension of each value.
    size
        Elements of the dimension afterwards.
    old_size
        Elements before; 0 for a new dimension.
    new_labels
        Stored values of the labels from ``old_size`` on; None for a dimension without labels.
    moved
        ``int64 (old_size,)``: where each old label goes; None where all stay.
    """

    places: NDArray[np.int64]
    size: int
    old_size: int
    new_labels: NDArray[Any] | None
    moved: NDArray[np.int64] | None = None

    @property
    def distinct(self) -> int:
        """Number of places that are used."""
        return len(np.unique(self.places))


def check_labels(values: pa.Array, *, dim: str) -> None:
    """Refuse values that cannot be labels."""
    if values.null_count:
        raise InvalidInputError(
            f"the dimension {dim!r} is NULL in some rows, so they have no place in the grid; "
            f"leave them out: df.where('{dim} IS NOT NULL')",
            dim=dim,
        )
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        raise InvalidInputError(
            f"the dimension {dim!r} is NaN in some rows, so they have no place in the grid; "
            f"leave them out: df.where('NOT isnan({dim})')",
            dim=dim,
        )


def place_indices(values: pa.Array, *, dim: str, old_size: int) -> PlacedValues:
    """Place the values of a dimension without labels: they are 0-based indices."""
    check_labels(values, dim=dim)
    places = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if len(places) and int(places.min()) < 0:
        raise InvalidInputError(
            f"the dimension {dim!r} has no labels, so its values are indices from 0; found "
            f"{int(places.min())}",
            dim=dim,
        )
    size = max(old_size, int(places.max()) + 1 if len(places) else 0)
    return PlacedValues(places=places, size=size, old_size=old_size, new_labels=None)


def place_labels(
    values: pa.Array,
    encoder: VariableEncoder,
    existing: NDArray[Any] | None,
    *,
    dim: str,
    is_descending: bool = False,
    order: NDArray[Any] | None = None,
) -> PlacedValues:
    """Match the values of a dimension with the labels that it has, and place those that are new."""
    check_labels(values, dim=dim)
    wanted, inverse = np.unique(encoder.encode(values), return_inverse=True)
    old = np.empty(0, wanted.dtype) if existing is None else existing
    if len(old) > 1 and direction(old) < 0:
        is_descending = True
    elif len(old) > 1:
        is_descending = False
    sorter = np.argsort(old, kind="stable")
    sorted_old = old[sorter]
    at = np.searchsorted(sorted_old, wanted)
    inside = at < len(old)
    known = np.zeros(len(wanted), np.bool_)
    known[inside] = np.asarray(sorted_old[at[inside]] == wanted[inside], np.bool_)
    _check_unique(sorted_old, wanted[known], at[known], values, dim, encoder)
    fresh = wanted[~known]
    if wanted.dtype.kind in "iufMm":
        _check_near(sorted_old, fresh, dim, encoder)
    if is_descending:
        fresh = fresh[::-1]
    if order is not None and existing is None:
        fresh = _reordered(fresh, order)
    places = np.empty(len(wanted), np.int64)
    places[known] = sorter[at[known]]
    # New values are in ascending order here; each goes to where its label went.
    places[~known] = len(old) + np.argsort(fresh, kind="stable")
    return PlacedValues(
        places=places[inverse.reshape(-1)],
        size=len(old) + len(fresh),
        old_size=len(old),
        new_labels=fresh,
    )


def in_order(
    placed: PlacedValues, old: NDArray[Any], first: int
) -> tuple[PlacedValues, NDArray[Any]]:
    """Merge new labels with the old ones from ``first`` on, where all come to lie in order.

    Returns
    -------
    tuple
        Where values go, and the labels of the places that are there already.
    """
    fresh = placed.new_labels
    if fresh is None or not len(fresh) or first >= len(old) or not _has_order(old):
        return placed, old
    late = np.concatenate([old[first:], fresh])
    known = old[:first] if first > 1 else old if len(old) > 1 else late
    way = direction(known)
    order = np.argsort(late, kind="stable")[:: way or 1]
    joined = np.concatenate([old[max(0, first - 1) : first], late[order]])
    if not way or (len(joined) > 1 and direction(joined) != way):
        return placed, old
    places = np.empty(len(late), np.int64)
    places[order] = first + np.arange(len(late))
    moved = np.arange(len(old), dtype=np.int64)
    moved[first:] = places[: len(old) - first]
    if (moved == np.arange(len(old))).all():
        return placed, old
    final = np.concatenate([old[:first], late[order]])
    merged = PlacedValues(
        places=np.concatenate([moved, places[len(old) - first :]])[placed.places],
        size=placed.size,
        old_size=placed.old_size,
        new_labels=final[len(old) :],
        moved=moved,
    )
    return merged, final[: len(old)]


def _has_order(labels: NDArray[Any]) -> bool:
    return labels.dtype.kind in "iufMm" or labels.dtype.hasobject or labels.dtype.kind in "TU"


def _reordered(fresh: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """Put labels into a wished order; those that it does not know follow, sorted."""
    rank = {label: number for number, label in enumerate(order.tolist())}
    last = len(rank)
    keys = [rank.get(label, last) for label in fresh.tolist()]
    found: NDArray[Any] = fresh[np.argsort(np.array(keys, np.int64), kind="stable")]
    return found


def _check_unique(
    sorted_old: NDArray[Any],
    wanted: NDArray[Any],
    at: NDArray[np.int64],
    values: pa.Array,
    dim: str,
    encoder: VariableEncoder,
) -> None:
    after = at + 1
    twice = np.zeros(len(wanted), np.bool_)
    inside = after < len(sorted_old)
    twice[inside] = np.asarray(sorted_old[after[inside]] == wanted[inside], np.bool_)
    if twice.any():
        label = _shown(wanted[twice][:1], encoder)
        raise InvalidInputError(
            f"the dimension {dim!r} has the stored label {label} more than once, so rows with it "
            f"have no single place; repair the labels, or write with mode=overwrite (the type of "
            f"the column is {values.type})",
            dim=dim,
        )


def _check_near(
    sorted_old: NDArray[Any], fresh: NDArray[Any], dim: str, encoder: VariableEncoder
) -> None:
    """Refuse new labels that are nearly old ones."""
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
        # Exact, where a double would round: nanoseconds since 1970 need 61 bits.
        gaps = np.diff(labels).astype(np.float64)
    # The smaller of the gaps on either side of each pair.
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
        f"the dimension {dim!r} has the label {old}, and the DataFrame has {new}: they differ by "
        f"less than a thousandth of the distance to their neighbours, so they are one place "
        f"spelled with other digits (a float32 that met a float64?). Round or cast the column to "
        f"the labels that are there before writing",
        dim=dim,
        labels=tuple(shown),
    )


def _shown(stored: NDArray[Any], encoder: VariableEncoder) -> str:
    dtype = encoder.data_type.numpy
    value = encoder.decoder.decode(stored.astype(dtype, copy=False))[0].as_py()
    return repr(value) if isinstance(value, float | int) else str(value)
