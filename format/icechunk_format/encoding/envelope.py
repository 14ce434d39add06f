"""Reads and writes the 39-byte header and the zstd frame around every metadata file.

Rules of this file
------------------
1. A file is the header and exactly one zstd frame. Frames with and without a content size are read
   (older writers streamed them); a second frame or trailing bytes are refused, as in other
   implementations.
2. The size limit is checked before memory is allocated: the headers of the frame's blocks give an
   upper bound of its content. Content above 256 MiB may be at most 2048 times as large as its
   frame: zstd compresses zeros by a factor of 16,000, the most repetitive files (lists of expired
   ancestors) by 1,600. The start of a large file is decompressed and checked before the rest.
3. Written frames carry their content size, no checksum and no dictionary.

Specification: "Binary File Format"; RFC 8878 for the frame.

======  =====  ==================================================
offset  bytes  content
======  =====  ==================================================
0       12     magic, the UTF-8 text ``ICE🧊CHUNK``
12      24     name of the writing client, padded with spaces
36      1      spec version: 1, or 2 (also for 2.1)
37      1      file type
38      1      compression: 1 = zstd, the only value in use
======  =====  ==================================================
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import zstandard

from icechunk_format.encoding.tables.writer import FILE_IDENTIFIER
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.version import __version__

MAGIC = "ICE🧊CHUNK".encode()
IMPLEMENTATION_NAME = f"icechunk_spark-{__version__}"
SPEC_V1 = 1
SPEC_V2 = 2
DEFAULT_LEVEL = 3
# Offsets inside a file are 32 bits and writers build at most 2 GiB, so a larger file is damaged.
DEFAULT_MAX_SIZE = 2**31

_UNLIMITED_SIZE = 2**28
_MOST_EXPANSION = 2048
_UNCHECKED_SIZE = 2**22
_HEAD = struct.Struct("<I4s")

_NAME_START = len(MAGIC)
_NAME_SIZE = 24
_SPEC_OFFSET = _NAME_START + _NAME_SIZE
_TYPE_OFFSET = _SPEC_OFFSET + 1
_COMPRESSION_OFFSET = _TYPE_OFFSET + 1
HEADER_SIZE = _COMPRESSION_OFFSET + 1
_ZSTD = 1

_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOCK_HEADER_SIZE = 3
_MAX_BLOCK_CONTENT = 128 * 1024
_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK = 0, 1, 2


class FileType(IntEnum):
    """Kind of a metadata file; 3 and 5 are reserved and never written."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO_INFO = 6

    @property
    def label(self) -> str:
        """The name of the type, for messages."""
        return _LABELS[self]


_LABELS = {
    FileType.SNAPSHOT: "snapshot",
    FileType.MANIFEST: "manifest",
    FileType.TRANSACTION_LOG: "transaction log",
    FileType.REPO_INFO: "repo info",
}
_KNOWN_TYPES = {int(t): t for t in FileType}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A decompressed metadata file."""

    spec_version: int
    payload: bytes


def unwrap(
    data: bytes, *, file_type: FileType, object_key: str, max_size: int = DEFAULT_MAX_SIZE
) -> Envelope:
    """Check the header and decompress the payload, at most ``max_size`` bytes.

    Raises FormatError if the bytes are damaged or not of this file type, and UnsupportedError for
    a newer spec version.
    """
    label = file_type.label

    def broken(problem: str, field: str) -> FormatError:
        return FormatError(problem, object_key=object_key, file_type=label, field=field)

    if len(data) < HEADER_SIZE:
        raise broken(
            f"the object has {len(data)} bytes, but the header alone has {HEADER_SIZE}", "header"
        )
    if data[:_NAME_START] != MAGIC:
        raise broken(
            f"it starts with {bytes(data[:_NAME_START])!r} instead of the magic bytes {MAGIC!r}; "
            "it is not an Icechunk metadata file",
            "header.magic",
        )
    spec_version = data[_SPEC_OFFSET]
    if spec_version > SPEC_V2:
        raise UnsupportedError(
            f"{label} {object_key!r} has spec version {spec_version}, but this library reads "
            f"{SPEC_V1} and {SPEC_V2}; upgrade icechunk-spark to read this repository",
            object_key=object_key,
            found=spec_version,
            allowed=(SPEC_V1, SPEC_V2),
        )
    if spec_version < SPEC_V1:
        raise broken("spec version 0 does not exist; 1 or 2 is expected", "header.spec_version")
    found_type = data[_TYPE_OFFSET]
    if found_type != file_type:
        known = _KNOWN_TYPES.get(found_type)
        raise broken(
            f"the file is of type {found_type} ({known.label if known else 'unknown'}), but "
            f"{int(file_type)} ({label}) is expected under this key",
            "header.file_type",
        )
    if data[_COMPRESSION_OFFSET] != _ZSTD:
        raise broken(
            f"compression algorithm {data[_COMPRESSION_OFFSET]} is not valid; only {_ZSTD} "
            "(zstd) is",
            "header.compression",
        )
    try:
        payload = decompress_frame(memoryview(data)[HEADER_SIZE:], max_size=max_size)
    except ValueError as error:
        raise broken(str(error), "payload") from error
    return Envelope(spec_version=spec_version, payload=payload)


def wrap(
    payload: bytes, *, file_type: FileType, spec_version: int, level: int = DEFAULT_LEVEL
) -> bytes:
    """Return the header and the compressed payload."""
    header = _header(len(payload), file_type=file_type, spec_version=spec_version, level=level)
    return _checked(header + _compressor(level).compress(payload), len(payload), file_type)


def wrap_blocks(
    blocks: Iterable[bytes | memoryview],
    size: int,
    *,
    file_type: FileType,
    spec_version: int,
    level: int = DEFAULT_LEVEL,
) -> bytes:
    """Return the header and the compressed blocks of a payload of ``size`` bytes.

    Each block may reuse the memory of the previous one.
    """
    parts = [_header(size, file_type=file_type, spec_version=spec_version, level=level)]
    stream = _compressor(level).compressobj(size=size)
    try:
        parts += [stream.compress(block) for block in blocks]
        parts.append(stream.flush())
    except zstandard.ZstdError as error:
        raise InvalidInputError(
            f"the blocks of a {file_type.label} must have {size} bytes in total ({error})",
            expected=size,
        ) from error
    return _checked(b"".join(parts), size, file_type)


def _largest(frame_size: int) -> int:
    """Return the largest allowed content of a frame (rule 2)."""
    return max(_UNLIMITED_SIZE, _MOST_EXPANSION * frame_size)


def _checked(data: bytes, size: int, file_type: FileType) -> bytes:
    """Return a file, after checking that readers accept its expansion."""
    largest = _largest(len(data) - HEADER_SIZE)
    if size > largest:
        raise InvalidInputError(
            f"a {file_type.label} of {size} bytes cannot be written: it compresses to {len(data)} "
            f"bytes, and readers refuse files that expand beyond {largest}; store fewer or shorter "
            "inline chunks in it",
            found=size,
            allowed=largest,
        )
    return data


def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)


def _header(size: int, *, file_type: FileType, spec_version: int, level: int) -> bytes:
    """Return the header, after checking that the file can be written."""
    if spec_version not in (SPEC_V1, SPEC_V2):
        raise InvalidInputError(
            f"spec version {spec_version} cannot be written; choose {SPEC_V1} or {SPEC_V2}",
            found=spec_version,
            allowed=(SPEC_V1, SPEC_V2),
        )
    if not 0 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
        raise InvalidInputError(
            f"compression level {level} does not exist; choose 0 to "
            f"{zstandard.MAX_COMPRESSION_LEVEL}",
            found=level,
            allowed=(0, zstandard.MAX_COMPRESSION_LEVEL),
        )
    if size >= DEFAULT_MAX_SIZE:
        raise InvalidInputError(
            f"a {file_type.label} of {size} bytes cannot be written: a file must stay "
            f"below {DEFAULT_MAX_SIZE} bytes before compression; split it",
            found=size,
            allowed=DEFAULT_MAX_SIZE,
        )
    name = IMPLEMENTATION_NAME.encode()[:_NAME_SIZE].ljust(_NAME_SIZE)
    return b"".join((MAGIC, name, bytes((spec_version, file_type, _ZSTD))))


def decompress_frame(frame: memoryview | bytes, *, max_size: int) -> bytes:
    """Decompress one zstd frame that must fill the whole buffer."""
    content_size, capacity = _measure(frame)
    max_size = min(max_size, _largest(len(frame)))
    if content_size is not None:
        if content_size > capacity:
            raise ValueError(
                f"the zstd frame claims {content_size} bytes of content, but its blocks cannot "
                f"hold more than {capacity}"
            )
        capacity = content_size
    if content_size is not None and content_size > max_size:
        raise ValueError(
            f"the zstd frame expands to {content_size} bytes, but at most {max_size} are accepted"
        )
    if capacity == 0:
        return b""
    try:
        # The window of a frame may be as large as its content.
        decompressor = zstandard.ZstdDecompressor(max_window_size=DEFAULT_MAX_SIZE)
        if capacity > _UNCHECKED_SIZE:
            _check_head(decompressor.stream_reader(frame).read(_HEAD.size), capacity)
        content = decompressor.decompress(frame, max_output_size=min(capacity, max_size))
    except zstandard.ZstdError as error:
        raise ValueError(
            f"the zstd frame is damaged or expands beyond {max_size} bytes ({error})"
        ) from error
    return content


def _check_head(head: bytes, size: int) -> None:
    """Raise ValueError unless content starts like a flatbuffer of the format."""
    root, identifier = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, b"")
    if identifier != FILE_IDENTIFIER or not _HEAD.size <= root < size:
        raise ValueError(
            f"the content starts with {head!r}; the offset of a table and {FILE_IDENTIFIER!r} are "
            "expected"
        )


def _measure(frame: memoryview | bytes) -> tuple[int | None, int]:
    """Walk the blocks of a frame; return its recorded content size and an upper bound of it."""
    if bytes(frame[:4]) != _FRAME_MAGIC:
        raise ValueError("the content after the header is not a zstd frame")
    try:
        parameters = zstandard.get_frame_parameters(frame)
        header_size = zstandard.frame_header_size(frame)
    except zstandard.ZstdError as error:
        raise ValueError(f"the header of the zstd frame is damaged ({error})") from error
    if parameters.dict_id:
        raise ValueError("the zstd frame needs a dictionary, which metadata files never use")
    position, end, capacity, is_last = header_size, len(frame), 0, False
    while not is_last:
        if position + _BLOCK_HEADER_SIZE > end:
            raise ValueError("the zstd frame is cut short")
        header = int.from_bytes(frame[position : position + _BLOCK_HEADER_SIZE], "little")
        position += _BLOCK_HEADER_SIZE
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind > _COMPRESSED_BLOCK or size > _MAX_BLOCK_CONTENT:
            raise ValueError("the zstd frame holds a block of unknown kind or excessive size")
        position += 1 if kind == _RLE_BLOCK else size
        capacity += _MAX_BLOCK_CONTENT if kind == _COMPRESSED_BLOCK else size
    position += 4 if parameters.has_checksum else 0
    if position > end:
        raise ValueError("the zstd frame is cut short")
    if position < end:
        raise ValueError(
            f"{end - position} bytes follow the zstd frame; a file holds exactly one frame"
        )
    # zstandard reports an unknown size as one of the two largest 64-bit numbers.
    stated: int = parameters.content_size
    return (None if stated >= 2**64 - 2 else stated), capacity
