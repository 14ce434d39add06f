"""Scans files on executors: parses them, stages their references, and returns what is small.

A piece of work is a few hundred files. The references of its files go into one staged object, one
Arrow stream for each array, from which other tasks make manifests (``place``). The driver gets a
``ScannedPiece``: headers, each distinct one once, counts, and values of small coordinates.

Rules of this file
------------------
1. A file that cannot be used is an answer, whatever its parser raises; a task fails only where the
   repository cannot be written.
2. Values of variables without the concatenated dimension are read, and compared by a digest.
3. Staged objects have random names below ``staging/``, outside the prefixes of the format.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icechunk_format.errors import IcechunkError, UnsupportedError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.workflows.virtualizing.scanning.headers import (
    Header,
    coordinate_paths,
    header_of,
    loaded_paths,
    metadata_of,
)
from icechunk_format.workflows.virtualizing.scanning.parse import ParsedArray, Parser, parse_file
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    FileAccess,
    FileOpener,
    FileStore,
    SourceFile,
    is_folder,
    looked_at,
)
from icechunk_format.workflows.virtualizing.scanning.values import digest_of, read_values

# Larger variables without the concatenated dimension are not read for a comparison.
_MOST_COMPARED: Final = 64 * 2**20
_MOST_LOADED: Final = 64 * 2**20
_OPEN_AT_ONCE: Final = 16
# Blocks of 1 MiB that a task holds, and those of one file that are fetched before it is parsed.
_MOST_BLOCKS: Final = 128
_MOST_BLOCKS_OF_A_FILE: Final = 32
# References that a task holds before it stages them.
_MOST_ROWS: Final = 1_000_000


@dataclass(slots=True, kw_only=True)
class ScannedFile:
    """What the driver knows of a file."""

    file: SourceFile
    problem: str | None = None
    array: str | None = None
    """The array that the problem is about."""
    is_known: bool = False
    header: int = -1
    """Place in ``ScannedPiece.headers``."""
    counts: list[int] = field(default_factory=list)
    """References of each array of the header."""
    starts: list[int] = field(default_factory=list)
    """First row of each array in its staged stream."""
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Values of loaded arrays that belong to this file alone."""
    digests: dict[str, bytes] = field(default_factory=dict)
    """Of the values of arrays that files have in common; keys of ``ScannedPiece.constants``."""
    uncompared: dict[str, int] = field(default_factory=dict)
    """Arrays too large to be read for a comparison, and their bytes."""


@dataclass(slots=True, kw_only=True)
class ScannedPiece:
    """The answer of one task."""

    files: list[ScannedFile]
    headers: list[Header]
    constants: dict[bytes, NDArray[Any]]
    key: str | None = None
    """The staged object; None where no file had references."""
    streams: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By array: the bytes of its stream in the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """What all tasks of a scan share.

    Parameters
    ----------
    dims
        The concatenated dimensions.
    loadable
        Names of arrays whose values are stored in the repository; see ``loaded_paths``.
    """

    location: Location
    access: FileAccess
    parser: str | Parser | None
    dims: tuple[str, ...]
    loadable: tuple[str, ...] | None
    folder: str


def scan_files(context: ScanContext, piece: Sequence[tuple[SourceFile, Any]]) -> list[ScannedPiece]:
    """Scan files, each with what the repository knows of it (a ``SourceFile``, or None).

    Files of many references make several answers, so that memory is bounded.

    Raises
    ------
    StorageError, ReadOnlyError
        The references could not be staged.
    """
    answers: list[ScannedPiece] = []
    scanner = _Scanner(context)
    opener = FileOpener(context.access)
    with ThreadPoolExecutor(_OPEN_AT_ONCE) as threads:
        waiting, blocks, count = list(piece), [0], 1
        while waiting:
            group, waiting = waiting[:count], waiting[count:]
            opened: Iterable[tuple[FileStore | None, ScannedFile]]
            if all(is_near(file.url) for file, _ in group):
                opened = map(partial(_opened, opener, [0]), group)
            else:
                opened = threads.map(partial(_opened, opener, blocks), group)
            for store, answer in opened:
                done = answer if store is None else scanner.scan(answer.file, store, opener)
                scanner.answers.append(done)
                if store is not None and done.problem is None:
                    blocks = [0, *sorted(store.touched - {0})][:_MOST_BLOCKS_OF_A_FILE]
                    count = min(_OPEN_AT_ONCE, _MOST_BLOCKS // len(blocks))
                if scanner.rows >= _MOST_ROWS:
                    answers.append(scanner.finish())
                    scanner = _Scanner(context)
    return [*answers, scanner.finish()]


def is_near(url: str) -> bool:
    """Whether a file is answered for at once, so that threads would only cost time."""
    return url.startswith("file:")


def _opened(
    opener: FileOpener, blocks: Sequence[int], item: tuple[SourceFile, SourceFile | None]
) -> tuple[FileStore | None, ScannedFile]:
    """Look at a file and fetch blocks of it, unless the repository has this state of it."""
    file, known = item
    try:
        storage, key = opener.open(file.url)
        if file.size is None:
            file = looked_at(file, storage, key)
        if known is not None and known.is_same(file):
            return None, ScannedFile(file=file, is_known=True)
        store = FileStore(storage, key, file)
        if not is_folder(file.url):
            store.fetch(blocks)
    except Exception as error:  # a file that cannot be opened is a row of the report
        return None, ScannedFile(file=file, problem=text_of(error))
    return store, ScannedFile(file=file)


def text_of(error: BaseException) -> str:
    """Return an error on one line, with its class where that says more."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines) or "no reason was given"
    if isinstance(error, IcechunkError):
        return text
    if "truncated file" in text:  # what the HDF5 library says among other things
        return f"the file is truncated: {text}"[:600]
    return f"{type(error).__name__}: {text}"[:600]


class _Scanner:
    def __init__(self, context: ScanContext) -> None:
        self._context = context
        self.answers: list[ScannedFile] = []
        self._headers: dict[Header, int] = {}
        self._constants: dict[bytes, NDArray[Any]] = {}
        self._rows: dict[str, list[pa.RecordBatch]] = {}
        self._totals: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """How many references wait to be staged."""
        return sum(self._totals.values())

    def scan(self, file: SourceFile, store: FileStore, opener: FileOpener) -> ScannedFile:
        """Parse one file and note its references."""
        answer = ScannedFile(file=file)
        try:
            arrays, groups = parse_file(file, store, self._context.parser, opener)
            for array in arrays:
                answer.array = array.path
                self._check_extent(array, file)
            header = header_of(arrays, groups)
            self._values(answer, arrays, store, opener)
            answer.array = None
            answer.header = self._headers.setdefault(header, len(self._headers))
        except UnsupportedError as error:
            if error.facts.get("package"):
                raise
            answer.problem = text_of(error)
            return answer
        except Exception as error:  # parsers are of others, and raise anything on broken files
            answer.problem = text_of(error)
            return answer
        answer.counts = [len(array.coords) for array in arrays]
        answer.starts = [self._totals.get(array.path, 0) for array in arrays]
        for array in arrays:
            if len(array.coords):
                self._rows.setdefault(array.path, []).append(_batch(array))
                self._totals[array.path] = self._totals.get(array.path, 0) + len(array.coords)
        return answer

    def finish(self) -> ScannedPiece:
        """Stage the references."""
        streams: dict[str, tuple[int, int]] = {}
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        for path, batches in self._rows.items():
            start = sink.tell()
            table = pa.Table.from_batches(_unified(batches))
            with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
                stream.write_table(table.combine_chunks())
            streams[path] = (start, sink.tell())
        key = None
        if streams:
            key = f"{self._context.folder}/{secrets.token_hex(16)}.arrow"
            data = sink.getvalue().to_pybytes()
            open_storage(self._context.location).put_many([(key, data)])
        return ScannedPiece(
            files=self.answers,
            headers=list(self._headers),
            constants=self._constants,
            key=key,
            streams=streams,
        )

    def _check_extent(self, array: ParsedArray, file: SourceFile) -> None:
        if array.locations is not None or file.size is None or not len(array.coords):
            return
        ends = array.offsets + array.lengths
        if array.inline is not None:
            ends = ends[np.array([data is None for data in array.inline])]
        last = int(np.max(ends, initial=0))
        if last > file.size:
            raise UnsupportedError(
                f"the file is truncated: it ends after {file.size:,} bytes, and chunks reach to "
                f"byte {last:,}"
            )

    def _values(
        self,
        answer: ScannedFile,
        arrays: Sequence[ParsedArray],
        store: FileStore,
        opener: FileOpener,
    ) -> None:
        """Read what is loaded, and what files must have in common."""
        documents = {a.path: metadata_of(a.text, a.path) for a in arrays}
        inside = {dim for document in documents.values() for dim in document.dimension_names or ()}
        dims = inside & set(self._context.dims)
        coordinates = coordinate_paths(documents)
        loaded = loaded_paths(documents, self._context.loadable)
        for array in arrays:
            answer.array = array.path
            metadata = documents[array.path]
            own = set(metadata.dimension_names or ()) & dims
            is_loaded = array.path in loaded
            is_shared = bool(dims - own) or not self._context.dims or metadata.ndim == 0
            is_shared |= not own and (is_loaded or array.path in coordinates)
            is_key = metadata.ndim == 1 and set(own) == {array.path.rpartition("/")[2]}
            if not is_loaded and not is_shared and not is_key:
                continue
            nbytes = math.prod(metadata.shape) * (metadata.data_type.itemsize or 16)
            if nbytes > (_MOST_LOADED if is_loaded else _MOST_COMPARED):
                if is_loaded:
                    raise UnsupportedError(
                        f"it has {nbytes:,} bytes, and at most {_MOST_LOADED:,} of a file are "
                        "stored in the repository; leave it out of loadable="
                    )
                answer.uncompared[array.path] = nbytes
                continue
            if not is_loaded and not self._context.dims:
                continue
            values = read_values(array, metadata, store, opener)
            if own:
                answer.values[array.path] = values
            digest = digest_of(values)
            answer.digests[array.path] = digest
            if (is_loaded or metadata.ndim == 0) and not own:
                self._constants.setdefault(digest, values)


def _batch(array: ParsedArray) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {
        f"c{axis}": pa.array(array.coords[:, axis]) for axis in range(array.coords.shape[1])
    }
    columns |= {"offset": pa.array(array.offsets), "length": pa.array(array.lengths)}
    if array.locations is not None:
        columns["location"] = pa.array(array.locations, pa.string())
    if array.inline is not None:
        columns["data"] = pa.array(array.inline, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def _unified(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return batches with the same columns: what a batch lacks is NULL."""
    schema = pa.unify_schemas([batch.schema for batch in batches])
    if all(batch.schema.equals(schema) for batch in batches):
        return batches
    return [
        pa.RecordBatch.from_arrays(
            [
                batch.column(f.name)
                if f.name in batch.schema.names
                else pa.nulls(len(batch), f.type)
                for f in schema
            ],
            schema=schema,
        )
        for batch in batches
    ]


def merged(pieces: Sequence[ScannedPiece]) -> list[Header]:
    """Give the headers of all pieces one numbering, and return them; changes the pieces."""
    numbers: dict[Header, int] = {}
    for piece in pieces:
        places = [numbers.setdefault(header, len(numbers)) for header in piece.headers]
        for file in piece.files:
            if file.header >= 0:
                file.header = places[file.header]
        piece.headers = []
    return list(numbers)
