"""Holds inline bytes, locations and etags of chunk references as ranges of one shared buffer.

A row has at most one string (inline bytes or a location) and at most one etag. Locations may be
frames of a zstd dictionary; only those of the requested rows are decompressed.

Rules of this file
------------------
1. Ranges are inside the buffer, which the caller of the constructor has checked.
2. The content of a range is checked on access: a location that is not UTF-8, or cannot be
   decompressed, raises ``FormatError``.
3. Selections share the buffer. ``compact`` copies the used bytes, each once.

Spec: "ChunkRef"; the fields ``inline``, ``location``, ``compressed_location``, ``checksum_etag``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.manifest import location_dictionary
from icechunk_format.encoding.tables.byte_ranges import ByteRanges, collect, is_run_start
from icechunk_format.errors import FormatError

_MAX_SPAN_SHARE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RefStrings:
    """Ranges of a shared buffer, one row per reference.

    Parameters
    ----------
    starts, lengths
        The string of each row; length 0 if it has none.
    is_compressed
        True for strings compressed with ``dictionary``; None if all are plain.
    etag_starts, etag_lengths
        The etag of each row; a start of -1 if it has none. None if no row has one.
    dictionary
        The zstd dictionary of compressed rows, as the manifest stores it.
    object_key
        Key of the manifest, for messages.
    """

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.uint32]
    is_compressed: NDArray[np.bool_] | None = None
    etag_starts: NDArray[np.int64] | None = None
    etag_lengths: NDArray[np.uint32] | None = None
    dictionary: bytes | None = None
    object_key: str = "<bytes>"

    @classmethod
    def none(cls, n: int) -> RefStrings:
        """Return ``n`` rows without strings."""
        return cls(
            buffer=np.empty(0, dtype=np.uint8),
            starts=np.zeros(n, dtype=np.int64),
            lengths=np.zeros(n, dtype=np.uint32),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Memory of the buffer, the columns and the dictionary."""
        columns = (
            self.buffer,
            self.starts,
            self.lengths,
            self.is_compressed,
            self.etag_starts,
            self.etag_lengths,
        )
        taken = sum(column.nbytes for column in columns if column is not None)
        return taken + len(self.dictionary or b"")

    def raw(self, row: int) -> bytes:
        """Return the stored string of a row."""
        start = int(self.starts[row])
        return self.buffer[start : start + int(self.lengths[row])].tobytes()

    def stored(self, rows: NDArray[Any]) -> ByteRanges:
        """Return strings as they are stored."""
        return ByteRanges(self.buffer, self.starts[rows], self.lengths[rows].astype(np.int64))

    def located(self, rows: NDArray[Any]) -> ByteRanges:
        """Return decompressed strings."""
        stored = self.stored(rows)
        if self.is_compressed is None:
            return stored
        frames = np.flatnonzero(self.is_compressed[rows])
        if not frames.size:
            return stored
        if self.dictionary is None:
            raise FormatError(
                "a location is compressed, but the manifest has no dictionary to decompress it",
                object_key=self.object_key,
                file_type="manifest",
                field="location_dictionary",
            )
        buffer, starts, lengths = stored
        compressed = ByteRanges(buffer, starts[frames], lengths[frames])
        strings = location_dictionary.decompress(
            self.dictionary, compressed, object_key=self.object_key
        )
        if frames.size == len(starts):
            return strings
        starts[frames] = strings.starts + buffer.size
        lengths[frames] = strings.lengths
        return ByteRanges(np.concatenate([buffer, strings.buffer]), starts, lengths)

    def strings(self, rows: NDArray[Any]) -> list[str]:
        """Return decompressed strings as a list."""
        return self._decoded(self.located(rows), "location")

    def etags(self, rows: NDArray[Any]) -> list[str | None]:
        """Return the etag of each row, or None."""
        if self.etag_starts is None or self.etag_lengths is None:
            return [None] * len(self.starts[rows])
        starts, lengths = self.etag_starts[rows], self.etag_lengths[rows].astype(np.int64)
        at = np.flatnonzero(starts >= 0)
        found: list[str | None] = [None] * len(starts)
        ranges = ByteRanges(self.buffer, starts[at], lengths[at])
        strings = self._decoded(ranges, "checksum_etag")
        for row, string in zip(at.tolist(), strings, strict=True):
            found[row] = string
        return found

    def etag_ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and lengths of etags, int64 of shape (n,); a start of -1 for no etag."""
        if self.etag_starts is None or self.etag_lengths is None:
            return np.full(len(self), -1, dtype=np.int64), np.zeros(len(self), dtype=np.int64)
        return self.etag_starts, self.etag_lengths.astype(np.int64)

    def _decoded(self, ranges: ByteRanges, field: str) -> list[str]:
        """Return ranges as strings, decoded once per run of equal ranges."""
        buffer, starts, lengths = ranges
        is_new = is_run_start(starts, lengths)
        try:
            strings = cut_strings(buffer, starts[is_new], (starts + lengths)[is_new])
        except UnicodeDecodeError as error:
            raise FormatError(
                f"the text is not UTF-8 ({error.reason}); the manifest is damaged",
                object_key=self.object_key,
                file_type="manifest",
                field=f"refs.{field}",
            ) from error
        if len(strings) == len(starts):
            return strings
        return [strings[run] for run in (np.cumsum(is_new) - 1).tolist()]

    def take(self, rows: NDArray[Any]) -> RefStrings:
        """Return some rows, over the same buffer."""
        return replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            is_compressed=None if self.is_compressed is None else self.is_compressed[rows],
            etag_starts=None if self.etag_starts is None else self.etag_starts[rows],
            etag_lengths=None if self.etag_lengths is None else self.etag_lengths[rows],
        )

    def used_bytes(self) -> int:
        """Count the bytes of all ranges, once for equal neighbouring ranges."""
        ranges = [(self.starts, self.lengths.astype(np.int64))]
        if self.etag_starts is not None:
            ranges.append(self.etag_ranges())
        return sum(int(sizes[is_run_start(starts, sizes)].sum()) for starts, sizes in ranges)

    def compact(self) -> RefStrings:
        """Return the rows over a buffer that holds only their ranges.

        Rows that share so many ranges that the copy would exceed the buffer are returned unchanged.
        """
        if self.used_bytes() > self.buffer.size:
            return self
        has_frames = self.is_compressed is not None and bool(self.is_compressed.any())
        buffer, starts = collect(self.buffer, self.starts, self.lengths.astype(np.int64))
        made = replace(
            self,
            buffer=buffer,
            starts=starts,
            is_compressed=self.is_compressed if has_frames else None,
            dictionary=self.dictionary if has_frames else None,
        )
        if self.etag_starts is None:
            return made
        starts, lengths = self.etag_ranges()
        has_etag = starts >= 0
        sizes = np.where(has_etag, lengths, 0)
        etags, placed = collect(self.buffer, np.where(has_etag, starts, 0), sizes)
        return replace(
            made,
            buffer=np.concatenate([buffer, etags]),
            etag_starts=np.where(has_etag, placed + buffer.size, -1),
        )

    def plain(self) -> RefStrings:
        """Return the rows without compression."""
        if self.is_compressed is None:
            return replace(self, dictionary=None)
        rows = np.flatnonzero(self.is_compressed)
        strings, at, sizes = self.located(rows)
        starts, lengths = self.starts.copy(), self.lengths.copy()
        starts[rows] = at + self.buffer.size
        lengths[rows] = sizes
        return replace(
            self,
            buffer=np.concatenate([self.buffer, strings]),
            starts=starts,
            lengths=lengths,
            is_compressed=None,
            dictionary=None,
        ).compact()

    def compressed(
        self, rows: NDArray[np.intp], dictionary: bytes, *, compression_level: int
    ) -> RefStrings:
        """Return the rows with some plain locations compressed with a dictionary.

        Rows that are already compressed must have the same dictionary.
        """
        frames, at, sizes = location_dictionary.compress(
            dictionary, self.stored(rows), level=compression_level
        )
        starts, lengths = self.starts.copy(), self.lengths.copy()
        starts[rows] = at + self.buffer.size
        lengths[rows] = sizes
        is_compressed = np.zeros(len(self), dtype=np.bool_)
        if self.is_compressed is not None:
            is_compressed |= self.is_compressed
        is_compressed[rows] = True
        return replace(
            self,
            buffer=np.concatenate([self.buffer, frames]),
            starts=starts,
            lengths=lengths,
            is_compressed=is_compressed,
            dictionary=dictionary,
        )


def cut_strings(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[str]:
    """Return ranges of a buffer as strings."""
    if not starts.size:
        return []
    first, last = int(np.min(starts)), int(np.max(ends))
    if last - first > _MAX_SPAN_SHARE * int((ends - starts).sum()):
        raw = buffer.data
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        return [str(raw[start:end], "utf-8") for start, end in bounds]
    # The ranges are close together, so their whole span is decoded once and then cut.
    span = buffer[first:last].tobytes()
    bounds = zip((starts - first).tolist(), (ends - first).tolist(), strict=True)
    if span.isascii():
        string = span.decode("ascii")
        return [string[start:end] for start, end in bounds]
    return [span[start:end].decode("utf-8") for start, end in bounds]


def join_strings(parts: Sequence[tuple[RefStrings | None, int]]) -> RefStrings | None:
    """Join lists of strings, each with its number of rows; None is a list without strings.

    Compression is kept if all compressed parts share one dictionary, else undone.
    """
    held = [strings for strings, _ in parts if strings is not None]
    if not held:
        return None
    if len({strings.dictionary for strings in held if strings.dictionary is not None}) > 1:
        return join_strings([(None if t is None else t.plain(), n) for t, n in parts])
    has_frames = any(strings.is_compressed is not None for strings in held)
    has_etags = any(strings.etag_starts is not None for strings in held)
    starts, lengths, frames, etag_starts, etag_lengths = [], [], [], [], []
    shift = 0
    for given, n in parts:
        strings = RefStrings.none(n) if given is None else given
        starts.append(strings.starts + shift)
        lengths.append(strings.lengths)
        is_frame = strings.is_compressed
        frames.append(np.zeros(n, dtype=np.bool_) if is_frame is None else is_frame)
        etags_at, etag_sizes = strings.etag_ranges()
        etag_starts.append(np.where(etags_at >= 0, etags_at + shift, -1))
        etag_lengths.append(etag_sizes.astype(np.uint32))
        shift += strings.buffer.size
    return RefStrings(
        buffer=np.concatenate([strings.buffer for strings in held]),
        starts=np.concatenate(starts),
        lengths=np.concatenate(lengths),
        is_compressed=np.concatenate(frames) if has_frames else None,
        etag_starts=np.concatenate(etag_starts) if has_etags else None,
        etag_lengths=np.concatenate(etag_lengths) if has_etags else None,
        dictionary=next((t.dictionary for t in held if t.dictionary is not None), None),
        object_key=held[0].object_key,
    )
