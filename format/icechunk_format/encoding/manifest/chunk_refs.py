"""Holds the chunk references of one array as columns; selects, joins and replaces references.

A manifest can hold millions of references, so a reference is a row of these columns, not an object.

================  ==========  ==========================================================
column            dtype       meaning
================  ==========  ==========================================================
``coords``        uint32      (n, ndim), sorted; the index in the array's chunk grid
``kind``          uint8       ``KIND_NATIVE``, ``KIND_INLINE`` or ``KIND_VIRTUAL``
``chunk_id``      uint8       (n, 12); native rows, else zeros
``offset``        uint64      bytes into the object; native and virtual rows, else zero
``length``        uint64      bytes of the chunk, in rows of all kinds
``last_modified`` uint32      seconds since 1970 of a virtual chunk's object; 0 = unknown
================  ==========  ==========================================================

Inline bytes, locations and etags are in ``strings``.

Rules of this file
------------------
1. Rows are sorted by distinct coordinates, which the caller of the constructor ensures.
2. Values never change; operations return new ones, which may share buffers. Pickling drops bytes
   that the rows do not use, so a task holds only its own references.
3. Writers make columns with `native_refs`, `inline_refs` and `virtual_refs`; rows are in any order.
   Wrong shapes, ranges, repeats and empty chunks raise ``InvalidInputError``, so that the result
   can be stored without further checks.

Spec: "ChunkRef".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icechunk_format.encoding.manifest.strings import RefStrings, join_strings
from icechunk_format.encoding.tables.byte_ranges import ByteRanges, joined
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.coordinate_set import checked_coords
from icechunk_format.grid.coordinates import CoordinateOrder, is_sorted, sorting_rows

KIND_NATIVE: Final = 0
KIND_INLINE: Final = 1
KIND_VIRTUAL: Final = 2
CHUNK_ID_SIZE: Final = 12

_KIND_NAMES: Final = {KIND_NATIVE: "native", KIND_INLINE: "inline", KIND_VIRTUAL: "virtual"}
_COLUMNS: Final = ("coords", "kind", "chunk_id", "offset", "length", "last_modified")
# If fewer than one in this many rows is selected, their share of a large buffer is copied.
_SPARSE_SHARE: Final = 4
_LARGE_BUFFER: Final = 1 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class ChunkRefs:
    """References of one array, sorted by coordinate; the columns become read-only.

    ``strings`` has inline bytes, locations and etags; it is None if all rows are native.
    """

    coords: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    chunk_id: NDArray[np.uint8]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint64]
    last_modified: NDArray[np.uint32]
    strings: RefStrings | None = None
    _order: CoordinateOrder | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.coords = np.asfortranarray(self.coords)
        for name in _COLUMNS:
            getattr(self, name).flags.writeable = False

    @classmethod
    def blank(cls, coords: NDArray[np.uint32], kind: int) -> ChunkRefs:
        """Return rows of one kind whose other columns are zero."""
        n = len(coords)
        return cls(
            coords=coords,
            kind=np.full(n, kind, dtype=np.uint8),
            chunk_id=np.zeros((n, CHUNK_ID_SIZE), dtype=np.uint8),
            offset=np.zeros(n, dtype=np.uint64),
            length=np.zeros(n, dtype=np.uint64),
            last_modified=np.zeros(n, dtype=np.uint32),
        )

    @classmethod
    def empty(cls, ndim: int) -> ChunkRefs:
        """Return an empty list of references of an array with ``ndim`` dimensions."""
        return cls.blank(np.empty((0, ndim), dtype=np.uint32), KIND_NATIVE)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{name}={int((self.kind == kind).sum())}" for kind, name in _KIND_NAMES.items()
        )
        return f"ChunkRefs(ndim={self.ndim}, {counts})"

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array; 0 for a scalar."""
        return int(self.coords.shape[1])

    @property
    def nbytes(self) -> int:
        """Memory of the references, shared buffers included."""
        total = sum(int(getattr(self, name).nbytes) for name in _COLUMNS)
        total += 0 if self.strings is None else self.strings.nbytes
        return total + (0 if self._order is None else self._order.nbytes)

    @property
    def order(self) -> CoordinateOrder:
        """The index of coordinates, made when first used."""
        if self._order is None:
            self._order = CoordinateOrder(self.coords)
        return self._order

    def extents(self) -> NDArray[np.uint32]:
        """Return the tight range of coordinates per axis, end exclusive: uint32, (ndim, 2)."""
        bounds = np.array(self.order.bounds(), dtype=np.int64)
        return bounds.astype(np.uint32).reshape(self.ndim, 2)

    def find(self, coords: NDArray[Any]) -> NDArray[np.int64]:
        """Return the row of each coordinate, shape (m, ndim); -1 if it is absent."""
        return self.order.find(coords)

    def select_box(self, lo: Sequence[int], hi: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows whose coordinates are in [lo, hi) on every axis, ascending."""
        return self.order.select_box(lo, hi)

    def _strings_of(self, rows: NDArray[Any], kind: int) -> RefStrings:
        """Return the strings after checking that these rows are of one kind."""
        is_odd = self.kind[rows] != kind
        if is_odd.any():
            row = int(np.asarray(rows)[is_odd][0])
            raise InvalidInputError(
                f"row {row} is a {_KIND_NAMES[int(self.kind[row])]} chunk, "
                f"expected a {_KIND_NAMES[kind]} one"
            )
        return RefStrings.none(len(self)) if self.strings is None else self.strings

    def inline(self, row: int) -> bytes:
        """Return the bytes of an inline chunk."""
        return self._strings_of(np.array([row]), KIND_INLINE).raw(row)

    def location(self, row: int) -> str:
        """Return the location of a virtual chunk; see ``locations``."""
        return self.locations(np.array([row]))[0]

    def locations(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        """Return the locations of virtual chunks."""
        return self._strings_of(rows, KIND_VIRTUAL).strings(rows)

    def location_ranges(self, rows: NDArray[np.integer[Any]]) -> ByteRanges:
        """Return locations as bytes.

        For callers that build a string column without a Python string per row. The bytes are not
        checked to be UTF-8.
        """
        return self._strings_of(rows, KIND_VIRTUAL).located(rows)

    def etag(self, row: int) -> str | None:
        """Return the expected etag of a virtual chunk's object; None if unknown."""
        return self.etags(np.array([row]))[0]

    def etags(self, rows: NDArray[np.integer[Any]]) -> list[str | None]:
        """Return etags, None if unknown."""
        return [None] * len(rows) if self.strings is None else self.strings.etags(rows)

    def take(self, rows: NDArray[Any]) -> ChunkRefs:
        """Return the rows at ascending row numbers, or those that a mask of shape (n,) selects."""
        taken = self._rows(rows)
        if not is_sorted(taken.coords):
            raise InvalidInputError("row numbers must be distinct and ascending")
        if taken.strings is None or taken.strings.buffer.size < _LARGE_BUFFER:
            return taken
        return taken.compact() if len(taken) * _SPARSE_SHARE < len(self) else taken

    def _rows(self, rows: NDArray[Any]) -> ChunkRefs:
        return ChunkRefs(
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
            strings=None if self.strings is None else self.strings.take(rows),
        )

    def moved(self, coords: NDArray[Any]) -> ChunkRefs:
        """Return the references at other coordinates, distinct integers of shape (n, ndim)."""
        return replace(self, coords=coords.astype(np.uint32)).sorted()

    def sorted(self) -> ChunkRefs:
        """Return rows in ascending order of coordinate, the first row of each coordinate only."""
        return self if is_sorted(self.coords) else self._rows(sorting_rows(self.coords))

    def compact(self) -> ChunkRefs:
        """Return the same rows without bytes that they do not use."""
        if self.strings is None:
            return self
        has_strings = (self.kind != KIND_NATIVE).any()
        return self.with_strings(self.strings.compact() if has_strings else None)

    def with_plain_locations(self) -> ChunkRefs:
        """Return the references without compressed locations."""
        return self if self.strings is None else self.with_strings(self.strings.plain())

    def with_strings(self, strings: RefStrings | None) -> ChunkRefs:
        """Return the references with other strings of the same rows."""
        return replace(self, strings=strings)

    @classmethod
    def concat(cls, parts: Sequence[ChunkRefs]) -> ChunkRefs:
        """Join references of one array whose coordinates are distinct; the result is sorted."""
        if not parts:
            raise InvalidInputError("at least one part is needed to join references")
        if len({part.ndim for part in parts}) > 1:
            raise InvalidInputError(
                f"references of {sorted({part.ndim for part in parts})} dimensions cannot be "
                "joined; all parts must belong to one array"
            )
        parts = [part for part in parts if len(part)] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        return cls(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS},
            strings=join_strings([(part.strings, len(part)) for part in parts]),
        ).distinct()

    def distinct(self) -> ChunkRefs:
        """Return rows in ascending order of coordinate, which must not repeat."""
        ordered = self.sorted()
        if len(ordered) != len(self):
            raise InvalidInputError(
                f"{len(self) - len(ordered)} chunk coordinates repeat; each chunk has one reference"
            )
        return ordered

    @classmethod
    def overlay(
        cls, base: ChunkRefs, changes: ChunkRefs | None = None, deleted: NDArray[Any] | None = None
    ) -> ChunkRefs:
        """Return ``base`` after a transaction.

        ``deleted`` are coordinates, shape (m, ndim), that were deleted *before* ``changes`` were
        set; those absent from ``base`` are ignored. ``changes`` replace references at the same
        coordinates.
        """
        is_kept = np.ones(len(base), dtype=np.bool_)
        for gone in (deleted, None if changes is None else changes.coords):
            if gone is not None and len(gone):
                rows = base.find(gone)
                is_kept[rows[rows >= 0]] = False
        kept = base if is_kept.all() else base.take(is_kept)
        return kept if changes is None else cls.concat([kept, changes])

    def __reduce__(self) -> tuple[Any, ...]:
        small = self.compact()
        columns = {name: getattr(small, name) for name in (*_COLUMNS, "strings")}
        return (partial(ChunkRefs, **columns), ())


# -- new references ------------------------------------------------------------------------------


def native_refs(
    coords: ArrayLike,
    chunk_ids: NDArray[np.uint8],
    lengths: ArrayLike,
    offsets: ArrayLike | None = None,
) -> ChunkRefs:
    """Make references to chunks in the repository's own objects.

    ``coords`` are integers, shape (n, ndim), in any order; ``chunk_ids`` uint8, shape (n, 12);
    ``lengths`` and ``offsets`` bytes, shape (n,).
    """
    at = checked_coords(coords)
    sizes = _column("lengths", lengths, np.uint64, (len(at),))
    if (sizes == 0).any():
        raise InvalidInputError(
            "a native chunk of 0 bytes cannot be referenced; omit chunks that hold only fill values"
        )
    return replace(
        ChunkRefs.blank(at, KIND_NATIVE),
        chunk_id=_column("chunk_ids", chunk_ids, np.uint8, (len(at), CHUNK_ID_SIZE)),
        length=sizes,
        offset=_column("offsets", offsets, np.uint64, (len(at),)),
    ).distinct()


def inline_refs(coords: ArrayLike, chunks: Sequence[bytes]) -> ChunkRefs:
    """Make references that hold the encoded bytes of their chunks."""
    at = checked_coords(coords)
    _check_count(len(at), len(chunks), "inline chunks")
    if not all(chunks):
        raise InvalidInputError(
            "an inline chunk of 0 bytes cannot be stored; omit chunks that hold only fill values"
        )
    buffer, starts, sizes = joined(chunks)
    return replace(
        ChunkRefs.blank(at, KIND_INLINE),
        length=sizes.astype(np.uint64),
        strings=RefStrings(buffer=buffer, starts=starts, lengths=sizes.astype(np.uint32)),
    ).distinct()


def virtual_refs(
    coords: ArrayLike,
    locations: Sequence[str],
    offsets: ArrayLike,
    lengths: ArrayLike,
    *,
    location_of_row: NDArray[np.integer[Any]] | None = None,
    etags: Sequence[str | None] | None = None,
    last_modified: ArrayLike | None = None,
) -> ChunkRefs:
    """Make references to byte ranges of objects outside the repository.

    Parameters
    ----------
    locations
        Absolute URLs, one per row; or the distinct ones, with ``location_of_row``.
    location_of_row
        Integers, shape (n,): the index in ``locations`` for each row.
    last_modified
        Seconds since 1970, shape (n,), 0 if unknown.
    """
    at = checked_coords(coords)
    if not all(locations):
        raise InvalidInputError("the location of a virtual chunk must not be empty")
    buffer, starts, sizes = joined([location.encode("utf-8") for location in locations])
    if location_of_row is not None:
        _check_count(len(at), len(location_of_row), "location numbers")
        number = np.asarray(location_of_row)
        if number.size and not 0 <= int(np.min(number)) <= int(np.max(number)) < len(locations):
            raise InvalidInputError(f"location numbers must be below {len(locations)}")
        starts, sizes = starts[number], sizes[number]
    _check_count(len(at), len(starts), "locations")
    strings = RefStrings(buffer=buffer, starts=starts, lengths=sizes.astype(np.uint32))
    if etags is not None:
        _check_count(len(at), len(etags), "etags")
        raw, etag_starts, etag_sizes = joined([(etag or "").encode("utf-8") for etag in etags])
        has_etag = np.array([etag is not None for etag in etags], dtype=np.bool_)
        if has_etag.any():
            strings = replace(
                strings,
                buffer=np.concatenate([buffer, raw]),
                etag_starts=np.where(has_etag, etag_starts + buffer.size, -1),
                etag_lengths=etag_sizes.astype(np.uint32),
            )
    return replace(
        ChunkRefs.blank(at, KIND_VIRTUAL),
        offset=_column("offsets", offsets, np.uint64, (len(at),)),
        length=_column("lengths", lengths, np.uint64, (len(at),)),
        last_modified=_column("last_modified", last_modified, np.uint32, (len(at),)),
        strings=strings,
    ).distinct()


def _column(
    name: str, values: ArrayLike | None, dtype: type, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return values as ``dtype``, zeros for None, refusing other shapes and lossy conversions."""
    given = np.zeros(shape, dtype=dtype) if values is None else np.asarray(values)
    if given.shape != shape:
        raise InvalidInputError(f"{name} must have shape {shape}, found {given.shape}")
    limits = np.iinfo(dtype)
    if given.size and given.dtype.kind not in "iu":
        raise InvalidInputError(f"{name} must be integers, found {given.dtype}")
    if given.size and not limits.min <= int(np.min(given)) <= int(np.max(given)) <= limits.max:
        raise InvalidInputError(f"{name} must be from {limits.min} to {limits.max}")
    return np.array(given, dtype=dtype)


def _check_count(expected: int, found: int, what: str) -> None:
    if expected != found:
        raise InvalidInputError(f"expected {expected} {what}, one per coordinate, found {found}")
