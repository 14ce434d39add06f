"""Scans files on executors: parses them, stages their references, and returns small receipts.

A task has a few hundred files. Their references are staged in one object, with one Arrow stream for
each array, from which other tasks make manifests (``references``). The driver receives headers,
counts, and values of small coordinates.

Long because receipts, their values and the checks of references are made in one pass of a file.

Rules of this file
------------------
1. Any error of a parser is returned in the file's receipt; a task fails only if the repository
   cannot be written.
2. Values of variables without a concatenated dimension are read and compared by digests.
3. Staged objects have random names below ``staging/``, which is not a prefix of the format.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.errors import (
    IcechunkError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.groups.changing import Destination, index_of_box
from icechunk_format.repository.chunks import shown
from icechunk_format.storage.protocol import ReadRequest, Storage
from icechunk_format.workflows.virtualizing.scanning.hdf5 import read_hdf5
from icechunk_format.workflows.virtualizing.scanning.headers import (
    Header,
    bounds_of_scalars,
    coordinate_paths,
    header_of,
    loaded_paths,
    metadata_of,
)
from icechunk_format.workflows.virtualizing.scanning.inherited import with_inherited
from icechunk_format.workflows.virtualizing.scanning.parse import Parser, parse_file
from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray, Unreferable
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    FileOpener,
    FileStore,
    SourceFile,
    is_folder,
    with_state,
)
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.zarr_json import ArrayMetadata

# Larger variables without a concatenated dimension are not compared.
_MOST_COMPARED: Final = 64 * 2**20
_MOST_LOADED: Final = 64 * 2**20
_OPEN_AT_ONCE: Final = 16
# Blocks of 1 MiB in memory of a task, and blocks of one file that are prefetched before parsing.
_MOST_BLOCKS: Final = 128
_MOST_BLOCKS_OF_A_FILE: Final = 32
# References in memory of a task before they are staged.
_MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """A staged object with the references of many files."""

    key: str
    streams: dict[str, tuple[int, int]]
    """Byte range of each array's stream in the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedArray:
    """An array of a file: its document, and its rows in a staged stream."""

    file: SourceFile
    json_document: str
    key: str
    """The staged object; empty if nothing is staged."""
    span: tuple[int, int]
    """The byte range of the stream in the object."""
    first: int
    """The first row."""
    count: int
    last: int
    """Number of references to the last chunks along the first axis."""
    dataset: str | None
    """The name of a dataset that is read with h5py, since it has no references."""


@dataclass(slots=True, kw_only=True)
class ScannedFile:
    """The receipt of one file; small, except for values of coordinates."""

    number: int
    """Index of the file in the listing."""
    file: SourceFile
    problem: str | None = None
    array: str | None = None
    """The array with the problem."""
    is_known: bool = False
    """True if the record has this state of the file."""
    header: Header = field(default_factory=Header)
    stage: Stage | None = None
    """The staged object with the references of the file."""
    counts: list[int] = field(default_factory=list)
    """Number of references of each array in the header."""
    starts: list[int] = field(default_factory=list)
    """First row of each array in the staged stream."""
    lasts: list[int] = field(default_factory=list)
    """Number of references to the last chunks of each array along its first axis."""
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Values of loaded arrays, keys and scalars."""
    digests: dict[str, bytes] = field(default_factory=dict)
    """Digests of read values by path."""
    uncompared: dict[str, int] = field(default_factory=dict)
    """Bytes of arrays that are too large to compare, by path."""
    unreferable: dict[str, Unreferable] = field(default_factory=dict)
    """Datasets that must be copied, by path."""

    def staged(self, path: str) -> StagedArray:
        """Return the staged references of an array."""
        index = [p for p, _ in self.header.arrays].index(path)
        time = self.header.times().get(path)
        unreferable = self.unreferable.get(path)
        return StagedArray(
            file=self.file,
            json_document=self.header.arrays[index][1]
            if time is None
            else json.dumps(time.raw, sort_keys=True),
            key="" if self.stage is None else self.stage.key,
            span=(0, 0) if self.stage is None else self.stage.streams.get(path, (0, 0)),
            first=self.starts[index],
            count=self.counts[index],
            last=self.lasts[index],
            dataset=None if unreferable is None else unreferable.dataset,
        )


def read_stage(storage: Storage, key: str, span: tuple[int, int]) -> pa.Table:
    """Read one staged stream."""
    [data] = storage.get_many([ReadRequest(key=key, start=span[0], end=span[1])])
    return pa.ipc.open_stream(data).read_all().combine_chunks()


ScanTask = Sequence[tuple[int, SourceFile, SourceFile | None]]
"""Number, file and recorded state of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """The arguments that all tasks of a scan share."""

    destination: Destination
    """Its chunk source opens the files."""
    parser: str | Parser | None
    dims: tuple[str, ...]
    """The concatenated dimensions."""
    loadable: tuple[str, ...] | None
    """Names of arrays whose values are stored; see ``loaded_paths``."""
    folder: str | None
    """Prefix of staged references; None for a scan that only compares files."""


def run_scan(context: ScanContext, task: ScanTask) -> list[ScannedFile]:
    """Scan files on an executor.

    Many references are staged in several objects, so that memory is bounded.
    """
    receipts: list[ScannedFile] = []
    scanner = _Scanner(context)
    opener = FileOpener(context.destination.chunk_source)
    with ThreadPoolExecutor(_OPEN_AT_ONCE) as threads:
        waiting, blocks, count = list(task), [0], 1
        while waiting:
            group, waiting = waiting[:count], waiting[count:]
            opened: Iterable[tuple[FileStore | None, ScannedFile]]
            # Threads do not speed up reads of local files.
            if all(file.url.startswith("file:") for _, file, _ in group):
                opened = map(partial(_opened, opener, [0]), group)
            else:
                opened = threads.map(partial(_opened, opener, blocks), group)
            for store, scanned in opened:
                scanner.scanned.append(scanned)
                if store is not None:
                    scanner.scan(scanned, store, opener)
                    if scanned.problem is None:
                        blocks = [0, *sorted(store.touched - {0})][:_MOST_BLOCKS_OF_A_FILE]
                        count = min(_OPEN_AT_ONCE, _MOST_BLOCKS // len(blocks))
                if scanner.rows >= _MOST_ROWS:
                    receipts += scanner.finish()
                    scanner = _Scanner(context)
    return receipts + scanner.finish()


def finish_scan(receipts: Iterable[list[ScannedFile]]) -> list[ScannedFile]:
    """Return all files in listing order; equal headers and values share one object."""
    headers: dict[Header, Header] = {}
    values: dict[bytes, NDArray[Any]] = {}
    files = sorted((file for receipt in receipts for file in receipt), key=lambda f: f.number)
    for file in files:
        file.header = headers.setdefault(file.header, file.header)
        for path, own in file.values.items():
            file.values[path] = values.setdefault(file.digests[path], own)
    return files


def _opened(
    opener: FileOpener, blocks: Sequence[int], item: tuple[int, SourceFile, SourceFile | None]
) -> tuple[FileStore | None, ScannedFile]:
    """Open a file and prefetch blocks of it, unless the record has this state."""
    number, file, known = item
    try:
        storage, key = opener.open(file.url)
        if file.size is None:
            file = with_state(file, storage, key)
        if known is not None and known.is_same(file):
            return None, ScannedFile(number=number, file=file, is_known=True)
        store = FileStore(storage, key, file)
        if not is_folder(file.url):
            store.fetch(blocks)
    except Exception as error:  # reported as the problem of the file
        return None, ScannedFile(number=number, file=file, problem=message_of(error))
    return store, ScannedFile(number=number, file=file)


def message_of(error: BaseException) -> str:
    """Format an error on one line, with its class unless it is an IcechunkError."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = "; ".join(lines) or "no reason was given"
    if isinstance(error, IcechunkError):
        return message
    if "truncated file" in message:  # part of a long error message of the HDF5 library
        return f"the file is truncated: {message}"[:600]
    return f"{type(error).__name__}: {message}"[:600]


class _Scanner:
    def __init__(self, context: ScanContext) -> None:
        self._context = context
        self.scanned: list[ScannedFile] = []
        self._headers: dict[Header, Header] = {}
        self._values: dict[bytes, NDArray[Any]] = {}
        self._rows: dict[str, list[pa.Table]] = {}
        self._totals: dict[str, int] = {}

    @property
    def rows(self) -> int:
        """The number of references to stage."""
        return sum(self._totals.values())

    def scan(self, scanned: ScannedFile, store: FileStore, opener: FileOpener) -> None:
        """Parse a file, collect its references, and fill in its receipt."""
        file = scanned.file
        try:
            arrays, groups = parse_file(file, store, self._context.parser, opener)
            for array in arrays:
                scanned.array = array.path
                _check_extent(array, file)
                _check_locations(array, opener)
            scanned.array = None
            arrays = with_inherited(arrays, groups)
            header = header_of(arrays, groups)
            self._read_values(scanned, arrays, store, opener)
            scanned.array = None
            scanned.header = self._headers.setdefault(header, header)
            scanned.unreferable = {a.path: a.unreferable for a in arrays if a.unreferable}
        except UnsupportedError as error:
            if error.facts.get("package"):
                raise
            scanned.array = scanned.array or error.facts.get("array")
            scanned.problem = message_of(error)
            return
        except Exception as error:  # libraries raise anything on broken files
            scanned.problem = message_of(error)
            return
        scanned.counts = [len(array.coords) for array in arrays]
        scanned.starts = [self._totals.get(array.path, 0) for array in arrays]
        scanned.lasts = [_count_last(array) for array in arrays]
        for array in arrays:
            if len(array.coords):
                self._rows.setdefault(array.path, []).append(_references(array))
                self._totals[array.path] = self._totals.get(array.path, 0) + len(array.coords)

    def finish(self) -> list[ScannedFile]:
        """Stage the references; return the receipts."""
        streams: dict[str, tuple[int, int]] = {}
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        for path, tables in self._rows.items():
            start = sink.tell()
            table = pa.concat_tables(tables, promote_options="default")
            with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
                stream.write_table(table.combine_chunks())
            streams[path] = (start, sink.tell())
        if streams and self._context.folder is not None:
            key = f"{self._context.folder}/{secrets.token_hex(16)}.arrow"
            data = sink.getvalue().to_pybytes()
            self._context.destination.open_storage().put_many([(key, data)])
            stage = Stage(key, streams)
            for scanned in self.scanned:
                scanned.stage = stage
        return self.scanned

    def _read_values(
        self,
        scanned: ScannedFile,
        arrays: Sequence[ParsedArray],
        store: FileStore,
        opener: FileOpener,
    ) -> None:
        """Read the values to load, and the values that must be equal in all files."""
        documents = {a.path: metadata_of(a.json_document, a.path) for a in arrays}
        inside = {dim for document in documents.values() for dim in document.dimension_names or ()}
        dims = inside & set(self._context.dims)
        coordinates, bounds = coordinate_paths(documents), bounds_of_scalars(documents)
        loaded = loaded_paths(documents, self._context.loadable)
        for array in arrays:
            scanned.array = array.path
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
                scanned.uncompared[array.path] = nbytes
                continue
            if not is_loaded and not self._context.dims:
                continue
            values = read_values(array, metadata, store, opener)
            digest = scanned.digests[array.path] = digest_of(values)
            if own or is_loaded or metadata.ndim == 0 or array.path in bounds:
                scanned.values[array.path] = self._values.setdefault(digest, values)


def _count_last(array: ParsedArray) -> int:
    if not array.coords.shape[1]:
        return 0
    [count, *_] = metadata_of(array.json_document, array.path).grid.num_chunks
    return int(np.count_nonzero(array.coords[:, 0] == count - 1))


def _check_extent(array: ParsedArray, file: SourceFile) -> None:
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


def _check_locations(array: ParsedArray, opener: FileOpener) -> None:
    """Raise an error if references of a file leave the prefixes that the caller gave.

    The file could name any object that the caller can read, such as a private file.
    """
    if array.locations is None:
        return
    urls = pa.array(array.locations, pa.string())
    if array.inline is not None:
        urls = urls.filter(pa.array([data is None for data in array.inline], pa.bool_()))
    # Folders stand for their files, except for names that percent-encoding may lead elsewhere.
    is_plain = pc.invert(pc.match_substring_regex(urls, r"%|\.\."))
    folders = pc.replace_substring_regex(urls.filter(is_plain), "[^/]*$", "x")
    checked = pc.unique(pa.concat_arrays([folders, urls.filter(pc.invert(is_plain))]))
    for url in sorted(checked.to_pylist()):
        try:
            opener.find(url)
        except UnauthorizedVirtualChunkError as error:
            folder = shown(url.rpartition("/")[0] + "/")
            raise UnauthorizedVirtualChunkError(
                f"it refers to files below {folder!r}, which is neither a folder of the files of "
                "the call nor authorized; if you trust it, add it to virtual_authorize",
                location=folder,
            ) from error


def _references(array: ParsedArray) -> pa.Table:
    columns: dict[str, pa.Array] = {
        f"c{axis}": pa.array(array.coords[:, axis]) for axis in range(array.coords.shape[1])
    }
    columns |= {"offset": pa.array(array.offsets), "length": pa.array(array.lengths)}
    if array.locations is not None:
        columns["location"] = pa.array(array.locations, pa.string())
    if array.inline is not None:
        columns["data"] = pa.array(array.inline, pa.binary())
    return pa.table(columns)


@lru_cache(maxsize=4096)
def _codecs_of(string: str, path: str) -> ChunkCodecs:
    return metadata_of(string, path).chunk_codecs()


def read_values(
    array: ParsedArray, metadata: ArrayMetadata, store: FileStore, opener: FileOpener
) -> NDArray[Any]:
    """Return the values of an array of a file."""
    if array.unreferable is not None:
        return read_hdf5(store, array.unreferable.dataset)
    codecs = _codecs_of(array.json_document, array.path)
    values = metadata.fill_array(metadata.shape)
    for row, index in enumerate(array.coords.tolist()):
        raw = None if array.inline is None else array.inline[row]
        if raw is None:
            start = int(array.offsets[row])
            stop = start + int(array.lengths[row])
            if array.locations is None:
                raw = store.get_range("", start=start, end=stop)
            else:
                storage, key = opener.open(array.locations[row])
                raw = storage.get(key, start=start, end=stop).data
        copy_chunk(values, [0] * metadata.ndim, metadata, codecs, index, raw)
    return values


def copy_chunk(
    values: NDArray[Any],
    lower: Sequence[int],
    metadata: ArrayMetadata,
    codecs: ChunkCodecs,
    index: Sequence[int],
    data: bytes,
) -> None:
    """Decode a chunk, and copy its part within `values`, a box that begins at `lower`."""
    chunk = codecs.decode(data, metadata.grid.full_chunk_shape(index))
    begin, end = metadata.grid.box_of(index)
    upper = np.add(lower, values.shape).tolist()
    box = list(map(max, begin, lower)), list(map(min, end, upper))
    values[index_of_box(lower, *box)] = chunk[index_of_box(begin, *box)]


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of dtype, shape and values."""
    found = hashlib.blake2b(f"{values.dtype} {values.shape}".encode(), digest_size=16)
    if values.dtype.hasobject:
        found.update(json.dumps(values.tolist(), default=str).encode())
    else:
        found.update(np.ascontiguousarray(values).tobytes())
    return found.digest()
