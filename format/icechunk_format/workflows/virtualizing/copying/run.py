"""Copies boxes of elements from files to chunks, on executors.

Rules of this file
------------------
1. References are read from staged objects of the scan, so files are not parsed again.
2. Memory is one box of values, the encoded chunks of one request, and a decoded chunk of a file.
3. Errors of files are returned in the receipt, by URL; other errors are raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.errors import InvalidInputError
from icechunk_format.grid.boxes import inside_box
from icechunk_format.groups.changing import (
    ArrayTarget,
    Destination,
    TaskFiles,
    TaskReceipt,
    index_of_box,
)
from icechunk_format.storage.batches import sized_batches
from icechunk_format.tables.cf import VariableDecoder, attribute_decoder, variable_encoder
from icechunk_format.workflows.virtualizing.planning.copies import packing_of
from icechunk_format.workflows.virtualizing.scanning.hdf5 import read_hdf5
from icechunk_format.workflows.virtualizing.scanning.headers import metadata_of
from icechunk_format.workflows.virtualizing.scanning.scan import (
    StagedArray,
    copy_chunk,
    message_of,
    read_stage,
)
from icechunk_format.workflows.virtualizing.scanning.source_files import FileOpener, FileStore
from icechunk_format.zarr.zarr_json import ArrayMetadata

Box = tuple[tuple[int, ...], tuple[int, ...]]

_FETCHED_AT_ONCE: Final = 32 * 2**20
# Tolerance for float errors, as a fraction of a packing step.
_ROUNDED: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """Elements of an array, from a file or from other elements of the base."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    file: StagedArray | None = None
    moved_from: tuple[int, ...] = ()
    """The first element in the base, for a source without a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """Boxes of whole chunks of one array, with their sources."""

    target: ArrayTarget
    decoded_like: ArrayMetadata
    """The document with the attributes that decode the array's values."""
    may_round: bool
    """True if values may be rounded to packing steps."""
    boxes: tuple[Box, ...]
    sources: tuple[CopySource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReceipt:
    """The copied chunks of one array, and files that cannot be copied."""

    task: TaskReceipt
    problems: Mapping[str, tuple[str, str]]
    """The array and the problem, by URL of the file."""


def run_copy(destination: Destination, task: CopyTask) -> CopyReceipt:
    """Copy the boxes of one task."""
    blocks, reader = TaskFiles(destination), _SourceReader(destination, task)
    problems: dict[str, tuple[str, str]] = {}
    for lower, upper in task.boxes:
        sizes = [high - low for low, high in zip(lower, upper, strict=True)]
        values = task.target.metadata.fill_array(sizes)
        for source in task.sources:
            low = np.maximum(lower, source.lower).tolist()
            high = np.minimum(upper, source.upper).tolist()
            if any(b <= a for a, b in zip(low, high, strict=True)):
                continue
            try:
                part = reader.read(source, low, high)
            except Exception as error:  # parsers raise any class of error for broken files
                if source.file is None:
                    raise
                problem = task.target.path, message_of(error)
                problems.setdefault(source.file.file.url, problem)
                continue
            values[index_of_box(lower, low, high)] = part
        if not problems:
            blocks.write(task.target, lower, values)
    return CopyReceipt(task=blocks.receipt(), problems=problems)


class _SourceReader:
    """Reads values of sources, converted to the stored form of the task's array."""

    def __init__(self, destination: Destination, task: CopyTask) -> None:
        self._destination, self._task = destination, task
        self._opener = FileOpener(destination.chunk_source)
        # Cached, since the files of a task share streams.
        self._stream = lru_cache(maxsize=2)(partial(read_stage, destination.open_storage()))

    def read(self, source: CopySource, lower: Sequence[int], upper: Sequence[int]) -> NDArray[Any]:
        """Return the values of a box of the array that is inside one source."""
        shift = np.subtract(source.moved_from or (0,) * len(source.lower), source.lower)
        low, high = np.add(lower, shift).tolist(), np.add(upper, shift).tolist()
        if source.file is None:
            return self._destination.open_base().reader(self._task.target.path).read_box(low, high)
        document = metadata_of(source.file.json_document, self._task.target.path.lstrip("/"))
        # Added dimensions, which files do not have, are first.
        added = len(low) - document.ndim
        values = self._of_file(source.file, document, low[added:], high[added:])
        wanted = self._task.decoded_like
        if packing_of(document) != packing_of(wanted):
            name = self._task.target.path.rpartition("/")[2]
            decoder = attribute_decoder(document.attributes, document.data_type, name=name)
            before, column = values, _as_integers_of(wanted, decoder.decode(values), name)
            encoder = variable_encoder(wanted.data_type, wanted.attributes, column.type, name=name)
            values = encoder.encode(column)
            if not self._task.may_round:
                _check_exact(decoder, before, encoder.decoder, values)
        return values.reshape([b - a for a, b in zip(low, high, strict=True)])

    def _of_file(
        self, file: StagedArray, document: ArrayMetadata, lower: list[int], upper: list[int]
    ) -> NDArray[Any]:
        """Return the stored values of a box of an array in a file."""
        if file.dataset is not None:
            storage, key = self._opener.open(file.file.url)
            return read_hdf5(FileStore(storage, key, file.file), file.dataset, lower, upper)
        sizes = [b - a for a, b in zip(lower, upper, strict=True)]
        values, codecs = document.fill_array(sizes), document.chunk_codecs()
        if not file.count:
            return values
        rows = self._stream(file.key, file.span).slice(file.first, file.count)
        columns = [rows.column(f"c{axis}").to_numpy() for axis in range(document.ndim)]
        coords = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)
        chunks = np.array(document.grid.chunks_of_box(lower, upper), np.int64).reshape(2, -1).T
        wanted = np.flatnonzero(inside_box(coords, chunks))
        coords, rows = coords[wanted], rows.take(pa.array(wanted))
        for index, data in zip(coords.tolist(), self._fetched(file, coords, rows), strict=True):
            copy_chunk(values, lower, document, codecs, index, data)
        return values

    def _fetched(
        self, file: StagedArray, coords: NDArray[np.int64], rows: pa.Table
    ) -> Iterator[bytes]:
        """Yield the encoded chunks of references, with bounded memory."""
        columns: dict[str, list[Any]] = rows.to_pydict()
        inline, urls = (columns.get(name) or [None] * len(rows) for name in ("data", "location"))
        refs = virtual_refs(
            coords,
            [url or file.file.url for url in urls],
            columns["offset"],
            columns["length"],
            last_modified=[0 if url else file.file.modified or 0 for url in urls],
        )
        sized = enumerate(columns["length"])
        for batch in sized_batches(sized, len(rows), _FETCHED_AT_ONCE):
            outside = np.array([row for row in batch if inline[row] is None], np.int64)
            found = iter(self._destination.chunk_source.fetch(refs, outside))
            yield from (next(found) if inline[row] is None else inline[row] for row in batch)


def _as_integers_of(wanted: ArrayMetadata, column: pa.Array, name: str) -> pa.Array:
    """Return integers as the type of an array of integers, if it holds all of them."""
    target = attribute_decoder(wanted.attributes, wanted.data_type, name=name).arrow_type
    if not (pa.types.is_integer(column.type) and pa.types.is_integer(target)):
        return column
    try:
        return column.cast(target)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"its values do not fit into {wanted.data_type.name} of the other files ({error}); copy"
            f" all files with copy='all' and encoding={{{name!r}: {{'dtype': 'float64'}}}}",
            variable=name,
        ) from error


def _check_exact(
    decoder: VariableDecoder, before: NDArray[Any], other: VariableDecoder, after: NDArray[Any]
) -> None:
    """Raise InvalidInputError if repacking changes values."""
    if not decoder.is_numeric or not other.is_numeric:
        return
    was, valid = decoder.decode_numeric(before)
    now, _ = other.decode_numeric(after.reshape(before.shape))
    step = abs(float(other.encoding.get("scale_factor") or 0))
    differs = ~((np.abs(now - was) <= _ROUNDED * step) | (np.isnan(was) & np.isnan(now)))
    differs &= True if valid is None else valid
    if differs.any():
        at = np.unravel_index(int(np.argmax(differs)), differs.shape)
        raise InvalidInputError(
            f"{was[at]} would be rounded to {now[at]} in {after.dtype} with scale_factor={step:g};"
            " allow it by naming dtype, scale_factor and add_offset in encoding=, or copy all files"
            " to another group as floats"
        )
