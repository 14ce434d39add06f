"""Yields the layout ``refs``: one row for each chunk reference, from the manifests alone.

No chunk is fetched, so virtual references can be listed without authorization. Everything is
computed on whole columns, except for the strings of virtual references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.errors import FormatError
from icechunk_format.groups import DimSelection, SnapshotArrays, chunk_selections
from icechunk_format.tables.cf.arrow_values import scattered
from icechunk_format.tables.reading.layouts.batches import BATCH_ROWS
from icechunk_format.tables.reading.scan import ScanContext, ScanTask

_KIND_NAMES = np.array(["native", "inline", "virtual"], dtype=object)


def ref_batches(context: ScanContext, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task of the layout ``refs``; raises the errors of ``run_scan``."""
    arrays = context.open_arrays()
    schema = context.arrow_schema
    for part in task.parts:
        for path, refs, wanted in refs_of_part(context, arrays, part):
            for first in range(0, len(wanted), BATCH_ROWS):
                columns = RefColumns(path, refs, wanted[first : first + BATCH_ROWS])
                yield pa.RecordBatch.from_arrays(
                    [columns.column(c.source) for c in context.table.columns], schema=schema
                )


def refs_of_part(
    context: ScanContext, arrays: SnapshotArrays, part: tuple[int, ...]
) -> Iterator[tuple[str, ChunkRefs, NDArray[np.int64]]]:
    """Yield the array, the references of a manifest, and the selected rows among them."""
    path = context.table.arrays[part[0]]
    variable = arrays.variable(path)
    bounds = np.array(part[1:], dtype=np.int64).reshape(-1, 2)
    axes = variable.metadata.grid.axes
    chosen = chunk_selections(variable, context.selections, axes, context.chunks)
    for refs, rows in arrays.lookup(path).in_box(bounds[:, 0].tolist(), bounds[:, 1].tolist()):
        yield path, refs, rows[_selected(refs.coords, rows, chosen)]


def _selected(
    coords: NDArray[np.uint32], rows: NDArray[np.int64], chosen: Sequence[DimSelection]
) -> NDArray[np.bool_]:
    keep = np.ones(len(rows), dtype=bool)
    for axis, selection in enumerate(chosen):
        if selection.is_whole:
            continue
        column = coords[rows, axis].astype(np.int64)
        if selection.indices is None:
            keep &= (column >= selection.start) & (column < selection.stop)
        else:
            keep &= np.isin(column, selection.indices)
    return keep


class RefColumns:
    """Builds the columns of one batch of references on demand.

    ``rows`` selects rows of ``refs``; ``path`` is the array.
    """

    def __init__(self, path: str, refs: ChunkRefs, rows: NDArray[np.int64]) -> None:
        self._path = path
        self._refs = refs
        self._rows = rows
        self._kind = refs.kind[rows]

    def column(self, name: str) -> pa.Array:
        """Return one column by its name in the layout."""
        builders: dict[str, Callable[[], pa.Array]] = {
            "array": lambda: pa.repeat(pa.scalar(self._path, pa.string()), len(self._rows)),
            "chunk": lambda: coordinate_lists(self._refs.coords[self._rows]),
            "kind": lambda: pa.array(_KIND_NAMES[self._kind], pa.string()),
            "chunk_id": self._chunk_id,
            "location": lambda: self._strings(self._refs.locations),
            # Inline chunks are in the manifest and have no offset.
            "offset": lambda: pa.array(
                self._signed(self._refs.offset, "offset"), mask=self._kind == KIND_INLINE
            ),
            "length": lambda: pa.array(self._signed(self._refs.length, "length")),
            "etag": lambda: self._strings(self._refs.etags),
            "last_modified": self._last_modified,
        }
        return builders[name]()

    def _chunk_id(self) -> pa.Array:
        where = np.flatnonzero(self._kind == KIND_NATIVE)
        ids = encode_many(self._refs.chunk_id[self._rows[where]])
        return scattered(pa.array(ids, pa.string()), where, len(self._rows))

    def _strings(self, strings: Callable[[NDArray[np.int64]], Sequence[str | None]]) -> pa.Array:
        where = np.flatnonzero(self._kind == KIND_VIRTUAL)
        values = pa.array(strings(self._rows[where]), pa.string())
        return scattered(values, where, len(self._rows))

    def _signed(self, column: NDArray[np.uint64], field: str) -> NDArray[np.int64]:
        values = column[self._rows]
        wrong = np.flatnonzero(values > np.uint64(2**63 - 1))
        if len(wrong):
            first = int(wrong[0])
            raise FormatError(
                f"the reference of chunk {self._refs.coords[self._rows[first]].tolist()} of "
                f"{self._path} has the {field} {int(values[first])}; at most 2**63 - 1 is possible",
                file_type="manifest",
                field=field,
            )
        return values.astype(np.int64)

    def _last_modified(self) -> pa.Array:
        seconds = self._refs.last_modified[self._rows].astype(np.int64)
        absent = (seconds == 0) | (self._kind != KIND_VIRTUAL)
        return pa.array(seconds * 1_000_000, mask=absent).cast(pa.timestamp("us", tz="UTC"))


def coordinate_lists(values: NDArray[np.integer]) -> pa.Array:
    """Return rows of numbers, ``(n, ndim)``, as a column of lists."""
    count, ndim = values.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(ndim)
    flat = pa.array(values.reshape(-1).astype(np.int64))
    return pa.ListArray.from_arrays(pa.array(offsets), flat)
