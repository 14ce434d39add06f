"""Checks virtual references: locations, containers, and files.

Rules of this file
------------------
1. Each distinct location is checked once: a regular expression accepts plain locations, and only
   others are parsed one by one.
2. Files are requested (one HEAD each) only below authorized prefixes.
3. A location outside of all containers is one finding per array, not one per chunk.

Specification: "Virtual chunks", "Virtual chunk containers".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icechunk_format.encoding.manifest.chunk_refs import KIND_VIRTUAL
from icechunk_format.encoding.tables.byte_ranges import copy_ranges
from icechunk_format.errors import (
    FormatError,
    IcechunkError,
    NotFoundError,
    UnauthorizedVirtualChunkError,
)
from icechunk_format.maintenance.verifying.checks.manifests import UsedRefs, needed_bytes
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.repository.chunks import ChunkSource, shown
from icechunk_format.repository.chunks.virtual_url import MalformedUrlError, parse_url
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.location import open_storage
from icechunk_format.storage.protocol import ObjectInfo

# Absolute URLs of plain characters without '.' and '..' segments; other locations are parsed one by
# one.
_SEGMENT: Final = "/[A-Za-z0-9_=+~-][A-Za-z0-9._=+~,-]*"
_PLAIN: Final = rf"^(file://|[a-z][a-z0-9+-]*://[A-Za-z0-9._-]+)({_SEGMENT})+$"
_NAMED: Final = "vcc://"
_THREADS: Final = PacedThreads(16)
_MOST_REMEMBERED: Final = 100_000


class VirtualFiles:
    """Checks virtual references, and caches the responses of storages.

    If the configuration cannot be read, containers are unknown, and locations are not compared with
    them. Files are requested below the authorized URL prefixes of the source.
    """

    def __init__(self, source: ChunkSource, *, has_containers: bool = True) -> None:
        self._has_containers = has_containers
        self._prefixes = [c.url_prefix for c in source.containers if c.url_prefix.endswith("/")]
        self._names = {c.name for c in source.containers if c.name is not None}
        self._resolver = source.resolver()
        self._is_authorized = bool(source.access.authorized)
        self._known: dict[str, ObjectInfo | IcechunkError | None] = {}

    def check(self, used: UsedRefs, report: Report) -> None:
        """Check the virtual references of an array."""
        rows = np.flatnonzero(used.refs.kind == KIND_VIRTUAL)
        if not len(rows) or not used.uses:
            return
        try:
            strings, number = _distinct_locations(used, rows)
        except FormatError as error:
            used.at(report).add("virtual-location-bad", error.message)
            return
        _, first = np.unique(number, return_index=True)
        is_good = self._check_strings(strings, rows[first], used, report)
        if self._is_authorized:
            self._check_files(strings, is_good, rows, number, used, report)
        else:
            report.count("unchecked virtual references", len(rows))

    def _check_strings(
        self, strings: pa.Array, first_rows: NDArray[Any], used: UsedRefs, report: Report
    ) -> NDArray[np.bool_]:
        """Check distinct locations; return a mask of the valid ones."""
        is_plain = pc.match_substring_regex(strings, _PLAIN)
        covered = pa.array(np.zeros(len(strings), dtype=np.bool_))
        for prefix in self._prefixes:
            covered = pc.or_(covered, pc.starts_with(strings, prefix))
        is_good = np.ones(len(strings), dtype=np.bool_)
        unclear = ~np.asarray(pc.and_(is_plain, covered))
        for at in np.flatnonzero(unclear).tolist():
            location: str = strings[at].as_py()
            chunk = used.chunk(int(first_rows[at]))
            problem, uncovered = self._problem_of(location)
            if problem is not None:
                is_good[at] = False
                used.at(report).add(
                    "virtual-location-bad",
                    f"the location {shown(location)!r} cannot be read: {problem}",
                    chunk=chunk,
                )
            elif uncovered is not None:
                used.at(report).add(
                    "virtual-container-unknown",
                    f"virtual chunks are at {uncovered}, which no container covers",
                    subject=str(used.uses[0].node_id),
                )
        return is_good

    def _problem_of(self, location: str) -> tuple[str | None, str | None]:
        """Return the problem of a location, or its URL prefix if no container covers it."""
        if location[: len(_NAMED)].lower() == _NAMED:
            name = location[len(_NAMED) :].partition("/")[0]
            if name not in self._names and self._has_containers:
                return f"the repository has no container named {name!r}", None
            return None, None
        try:
            parts = parse_url(location)
        except MalformedUrlError as error:
            return str(error), None
        if not self._has_containers:
            return None, None
        spellings = (location, f"{parts.scheme}://{parts.authority}{parts.path}")
        if any(string.startswith(prefix) for string in spellings for prefix in self._prefixes):
            return None, None
        return None, shown(f"{parts.scheme}://{parts.authority}/")

    # -- files ----------------------------------------------------------------------------------

    def _check_files(
        self,
        strings: pa.Array,
        is_good: NDArray[np.bool_],
        rows: NDArray[Any],
        number: NDArray[Any],
        used: UsedRefs,
        report: Report,
    ) -> None:
        chosen = np.flatnonzero(is_good)
        files = _THREADS.map(self._head, [strings[at].as_py() for at in chosen.tolist()])
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(strings) + 1))
        for at, file in zip(chosen.tolist(), files, strict=True):
            mine = rows[order[bounds[at] : bounds[at + 1]]]
            if isinstance(file, UnauthorizedVirtualChunkError):
                report.count("unchecked virtual references", len(mine))
                continue
            report.count("virtual files")
            found = _problem_with(file, mine, used)
            if found is not None:
                kind, row, problem = found
                problem = f"{problem}: {shown(strings[at].as_py())}"
                used.at(report).add(kind, problem, chunk=used.chunk(row))

    def _head(self, location: str) -> ObjectInfo | IcechunkError | None:
        """Return the properties of a file, None if it does not exist, or the error."""
        if location not in self._known:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            found: ObjectInfo | IcechunkError | None
            try:
                resolved = self._resolver.resolve(location)
                found = open_storage(resolved.location).head(resolved.object_key)
            except IcechunkError as error:
                found = error
            self._known[location] = found
            return found
        return self._known[location]


def _problem_with(
    file: ObjectInfo | IcechunkError | None, rows: NDArray[Any], used: UsedRefs
) -> tuple[str, int, str] | None:
    """Return kind, row and problem of a file for its references, or None."""
    refs = used.refs
    if file is None or isinstance(file, NotFoundError):
        return "virtual-missing", int(rows[0]), "the file does not exist"
    if isinstance(file, IcechunkError):
        return "virtual-missing", int(rows[0]), file.message.splitlines()[-1]
    ends = needed_bytes(refs, rows)
    if int(np.max(ends)) > file.size:
        row = int(rows[int(np.argmax(ends))])
        problem = f"the file has {file.size} bytes, and {int(np.max(ends))} are needed"
        return "virtual-too-short", row, problem
    expected = refs.last_modified[rows]
    late = (expected != 0) & (expected < int(file.last_modified.timestamp()))
    if late.any():
        row = int(rows[int(late.argmax())])
        return "virtual-modified", row, "the file was changed after the reference was made"
    strings = refs.strings
    if file.version.etag is not None and strings is not None and strings.etag_starts is not None:
        for row, etag in zip(rows.tolist(), _etags(used, rows), strict=True):
            if etag and etag.strip('"') != file.version.etag:
                return "virtual-modified", row, "the file has another etag than the reference"
    return None


def _etags(used: UsedRefs, rows: NDArray[Any]) -> list[str | None]:
    try:
        return used.refs.etags(rows)
    except FormatError:
        # Damaged etags are reported elsewhere; they are not compared.
        return [None] * len(rows)


def _distinct_locations(used: UsedRefs, rows: NDArray[Any]) -> tuple[pa.Array, NDArray[Any]]:
    """Return the distinct locations of rows, and the index of each row's location."""
    buffer, starts, lengths = used.refs.location_ranges(rows)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    content = np.zeros(int(offsets[-1]), dtype=np.uint8)
    copy_ranges(buffer, starts, content, offsets[:-1], lengths)
    stored = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    encoded = stored.dictionary_encode()
    try:
        strings = encoded.dictionary.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise FormatError(
            "a location is not UTF-8; the manifest is damaged",
            object_key=used.object_key,
            file_type="manifest",
            field="refs.location",
        ) from error
    return strings, np.asarray(encoded.indices)
