"""Converts zones to rows of cover: the first step of zonal statistics, run in tasks.

A row has the covered cells of one zone in one column of the grid. It is repeated for each split,
since each split is read by a different task. A zone that covers no cell has rows without cells, so
that it is in the result.

Rules of this file
------------------
1. A zone is identified by the hash of its geometry, the partition, and a counter of equal
   geometries. If Spark recomputes a partition in another order of rows, a hash still identifies the
   same geometry.
2. Cells are numbered within the column, as ``int32``. Partly covered cells are first; ``fractions``
   has one ``float64`` for each of them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.zonal.cover import Cover, cover_cells
from icechunk_format.workflows.zonal.geometries import (
    Problems,
    Projector,
    across_antimeridian,
    in_every_period,
    invalid,
    read_geometries,
    shapely,
    unusable,
)

if TYPE_CHECKING:
    from icechunk_format.workflows.zonal.plan import ZonalContext

#: The columns of a row of cover, before the keys of the zone.
COVER_SCHEMA: Final = pa.schema(
    [
        ("zone", pa.binary()),
        ("task", pa.int64()),
        ("cells", pa.binary()),
        ("fractions", pa.binary()),
    ]
)
# The column number of rows without cells: the zone is outside of the grid, or has no geometry.
OUTSIDE: Final = -1
NO_GEOMETRY: Final = -2
_MOST_SHOWN: Final = 3


class Covering:
    """Computes the cover of the zones in one partition; `names` of keys are for messages."""

    def __init__(self, context: ZonalContext, names: Sequence[str], partition: int) -> None:
        self._context = context
        self._names = names
        self._partition = partition
        self._seen: Counter[bytes] = Counter()
        self._move = None if context.projection is None else Projector(*context.projection)
        self._rows, self._columns = (
            np.isin(np.arange(chosen.size), chosen.positions())
            for chosen in map(context.selection, context.horizontal)
        )
        # If a column of cells repeats another, the selected column counts.
        is_repeated = context.x.size < len(self._columns)
        self._first_column = context.x.size if is_repeated and not self._columns[0] else 0

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield rows of cover for a batch with columns of keys, followed by geometries."""
        if not self._context.split_count:
            return
        keys, geometry = batch.columns[:-1], batch.columns[-1]
        zones = self._identities(geometry)
        geometries = self._usable(geometry, keys)
        is_covered = np.zeros(len(geometries), dtype=bool)
        context = self._context
        moved, numbers = in_every_period(geometries, context.x.low, context.x.high, context.period)
        for cover in cover_cells(moved, context.y, context.x, context.request.coverage):
            owners, *found = self._by_column(cover)
            owners = numbers[owners]
            is_covered[owners] = True
            yield from self._for_splits(owners, found, zones, keys)
        rest = np.flatnonzero(~is_covered)
        columns = np.where(shapely().is_missing(geometries[rest]), NO_GEOMETRY, OUTSIDE)
        none = pa.array([b""] * len(rest), pa.binary())
        yield from self._for_splits(rest, [columns, none, none], zones, keys)

    def _identities(self, geometry: pa.Array) -> pa.Array:
        found = []
        for value in geometry.to_pylist():
            data = b"" if value is None else value.encode() if isinstance(value, str) else value
            digest = hashlib.blake2b(data, digest_size=12).digest()
            self._seen[digest] += 1
            own = self._partition.to_bytes(4, "big") + self._seen[digest].to_bytes(4, "big")
            found.append(digest + own)
        return pa.array(found, pa.binary())

    def _usable(self, column: pa.Array, keys: Sequence[pa.Array]) -> NDArray[Any]:
        """Return the geometries in coordinates of the grid; None without a usable geometry."""
        context = self._context
        geometries, problems = read_geometries(column)
        self._drop(geometries, problems, keys)
        if self._move is None:
            # Checked before far edges, which coordinates in metres also have.
            found = unusable(geometries, is_geographic=context.is_geographic)
            self._drop(geometries, found, keys)
            if context.period is not None:
                how = context.request.antimeridian
                geometries, problems = across_antimeridian(geometries, how)
                self._drop(geometries, problems, keys)
        self._drop(geometries, invalid(geometries), keys)
        if self._move is not None:
            geometries = self._move(geometries)
            found = unusable(geometries, is_geographic=context.is_geographic)
            self._drop(geometries, found, keys)
            if context.period is not None:
                # Edges of transformed zones are short, so a far edge must cross the antimeridian.
                geometries, _ = across_antimeridian(geometries, "split")
        return geometries

    def _drop(self, geometries: NDArray[Any], problems: Problems, keys: Sequence[pa.Array]) -> None:
        """Raise for geometries with a problem, or replace them by None."""
        if problems and self._context.request.on_invalid == "error":
            number, problem = min(problems.items())
            shown = ", ".join(
                f"{name}={key[number].as_py()!r}"
                for name, key in zip(self._names[:_MOST_SHOWN], keys, strict=False)
            )
            raise InvalidInputError(
                f"the geometry of zone {shown or number} {problem}; or give on_invalid='null' for"
                " NULL as its statistics",
                zone=shown,
            )
        geometries[list(problems)] = None

    def _by_column(self, cover: Cover) -> tuple[NDArray[np.int64], NDArray[np.int64], Any, Any]:
        """Return owner, column, cells and fractions of rows: one row per zone and column."""
        columns = np.where(cover.columns == 0, self._first_column, cover.columns)
        some = self._rows[cover.rows] & self._columns[columns] & (cover.fractions > 0)
        rows, columns, zones = cover.rows[some], columns[some], cover.zones[some]
        fractions = cover.fractions[some]
        y_axis, x_axis = self._context.columns
        y_chunk, x_chunk = y_axis.chunk_of(rows), x_axis.chunk_of(columns)
        left = x_axis.start_of(x_chunk)
        width = x_axis.start_of(x_chunk + 1) - left
        cells = (rows - y_axis.start_of(y_chunk)) * width + columns - left
        column = y_chunk * x_axis.count + x_chunk
        is_whole = fractions >= 1.0
        order = np.lexsort((cells, is_whole, column, zones))
        column, zones, is_whole = column[order], zones[order], is_whole[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (column[1:] != column[:-1]) | (zones[1:] != zones[:-1])
        firsts = np.flatnonzero(is_first)
        starts = np.append(firsts, len(order))
        in_part = np.concatenate([[0], np.cumsum(~is_whole)])[starts]
        return (
            zones[firsts],
            column[firsts],
            binaries(cells[order].astype(np.int32), starts),
            binaries(fractions[order][~is_whole], in_part),
        )

    def _for_splits(
        self,
        owners: NDArray[np.int64],
        found: Sequence[Any],
        zones: pa.Array,
        keys: Sequence[pa.Array],
    ) -> Iterator[pa.RecordBatch]:
        if not len(owners):
            return
        column, cells, fractions = found
        index = pa.array(owners)
        held = [key.take(index) for key in keys]
        count = self._context.split_count
        for split in range(count):
            # Zones without cells get the task numbers before those of the first column.
            task = column * count + split
            arrays = [zones.take(index), pa.array(task), cells, fractions, *held]
            names = [*COVER_SCHEMA.names, *(f"key{number}" for number in range(len(keys)))]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def binaries(values: NDArray[Any], starts: NDArray[np.int64]) -> pa.Array:
    """Return slices of an array as a column of bytes; ``starts`` has one number more than rows."""
    offsets = (starts * values.itemsize).astype(np.int32)
    data = np.ascontiguousarray(values)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(starts) - 1, buffers)
