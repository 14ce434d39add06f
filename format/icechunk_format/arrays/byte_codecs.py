"""The codecs of a chain that turn bytes into bytes: compressors and checksums.

Rules of this file
------------------
1. ``decode(data, limit, exact)`` gives at most ``limit`` bytes, and exactly that many where
   ``exact``. Sizes that a stream claims for itself are read and compared *before* memory is taken
   for them, and streams that claim nothing are decoded up to the limit and no further.
2. Failures are any exception; the chain turns them into ``FormatError`` with the codec's name.
3. Objects keep their configuration only, so that threads may share them.

Spec: Zarr v3 codecs ``gzip``, ``zstd``, ``blosc``, ``crc32c``; the registered ``numcodecs.*``.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numcodecs import blosc as numcodecs_blosc
from numcodecs import zstd as numcodecs_zstd
from numcodecs.registry import get_codec

from icechunk_format.arrays.crc32c import crc32c
from icechunk_format.arrays.named_configuration import is_integer, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

Buffer = bytes | memoryview

# blosc's own thread pool is one per process and takes a lock; chunks are decoded in parallel by
# the callers instead. zarr-python sets the same.
numcodecs_blosc.use_threads = False


class ByteCodec(Protocol):
    """A codec from bytes to bytes, as a step of a chain."""

    name: str
    is_fixed_size: bool

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """Return the bytes before encoding: at most ``limit``, and just as many if ``exact``."""
        ...

    def encode(self, data: Buffer) -> Buffer:
        """Return the encoded bytes."""
        ...

    def encoded_bound(self, nbytes: int) -> int:
        """Return the most bytes that ``nbytes`` are encoded to; exact where ``is_fixed_size``."""
        ...


class ConfigurationError(ValueError):
    """A codec was given parameters that it cannot have; the text says which."""


def make_byte_codec(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec | None:
    """Make the bytes-to-bytes codec of a name; ``None`` if the name is not one of them.

    ``itemsize`` is the width of what comes before, for codecs that shuffle and were not told.

    Raises
    ------
    ConfigurationError
        If the parameters are not possible.
    """
    maker = _MAKERS.get(name)
    return None if maker is None else maker(name, configuration, itemsize)


def compressed_bound(nbytes: int) -> int:
    """Return a size that no compressor exceeds for ``nbytes`` of input, however random."""
    return nbytes + nbytes // 16 + 65536


class _Compressor:
    is_fixed_size = False
    name: str

    def encoded_bound(self, nbytes: int) -> int:
        """See ``ByteCodec``."""
        return compressed_bound(nbytes)


class Zstd(_Compressor):
    """Zstandard frames."""

    def __init__(self, name: str, level: int, checksum: bool) -> None:
        self.name = name
        self._level = level
        self._checksum = checksum

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        size = _zstd_content_size(data)
        if size is not None:
            if size > limit or (exact and size != limit):
                raise ValueError(f"the frame holds {size} bytes, expected {_wanted(limit, exact)}")
            result: bytes = numcodecs_zstd.decompress(data)
            return result
        if exact:
            out = np.empty(limit, dtype=np.uint8)
            numcodecs_zstd.decompress(data, out)
            return memoryview(out)
        _check_zstd_blocks(data, limit)
        result = numcodecs_zstd.decompress(data)
        if len(result) > limit:
            raise ValueError(f"it decodes to {len(result)} bytes, allowed are {limit}")
        return result

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        result: bytes = numcodecs_zstd.compress(data, self._level, self._checksum)
        return result


class Blosc(_Compressor):
    """Blosc 1 containers."""

    def __init__(
        self, name: str, cname: str, clevel: int, shuffle: int, blocksize: int, typesize: int | None
    ) -> None:
        self.name = name
        self._arguments = (cname.encode("ascii"), clevel, shuffle, blocksize)
        self._typesize = typesize

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        if len(data) < 16:
            raise ValueError(f"a blosc header has 16 bytes, found {len(data)}")
        size = int.from_bytes(data[4:8], "little")
        # The library trusts this length, and would read beyond the end of shorter data.
        stored = int.from_bytes(data[12:16], "little")
        if stored != len(data):
            raise ValueError(f"the header says {stored} stored bytes, found {len(data)}")
        if size > limit or (exact and size != limit):
            raise ValueError(f"the header says {size} bytes, expected {_wanted(limit, exact)}")
        if size == 0:
            return b""
        result: bytes = numcodecs_blosc.decompress(data)
        return result

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        if self._typesize is None:
            result: bytes = numcodecs_blosc.compress(data, *self._arguments)
        else:
            result = numcodecs_blosc.compress(data, *self._arguments, typesize=self._typesize)
        return result


class Deflate(_Compressor):
    """DEFLATE streams: gzip members, or one zlib stream."""

    def __init__(self, name: str, level: int, gzip: bool) -> None:
        self.name = name
        self._level = level
        self._wbits = 31 if gzip else 15
        self._has_members = gzip

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        parts: list[bytes] = []
        left = limit
        rest: Buffer = data
        while True:
            stream = zlib.decompressobj(self._wbits)
            part = stream.decompress(rest, left + 1)
            left -= len(part)
            if left < 0:
                raise ValueError(f"it decodes to more than {limit} bytes")
            if not stream.eof:
                raise ValueError("the stream ends early")
            parts.append(part)
            rest = stream.unused_data
            if not self._has_members or not rest.strip(b"\0"):
                break
        if exact and left:
            raise ValueError(f"it decodes to {limit - left} bytes, expected {limit}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        stream = zlib.compressobj(self._level, zlib.DEFLATED, self._wbits)
        return stream.compress(data) + stream.flush()


class Streamed(_Compressor):
    """bzip2 and LZMA: the standard library's decompressors, which stop at a limit."""

    def __init__(
        self, name: str, make_decompressor: Callable[[], Any], compress: Callable[[Buffer], bytes]
    ) -> None:
        self.name = name
        self._make_decompressor = make_decompressor
        self._compress = compress

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        parts: list[bytes] = []
        left = limit
        rest: Buffer = data
        while rest:
            stream = self._make_decompressor()
            part = stream.decompress(rest, left + 1)
            left -= len(part)
            if left < 0:
                raise ValueError(f"it decodes to more than {limit} bytes")
            if not stream.eof:
                # Filters without a container have no end mark: complete is what was asked for.
                if not (stream.needs_input and exact and left == 0):
                    raise ValueError("the stream ends early")
                parts.append(part)
                break
            parts.append(part)
            rest = stream.unused_data
        if exact and left:
            raise ValueError(f"it decodes to {limit - left} bytes, expected {limit}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        return self._compress(data)


class Lz4(_Compressor):
    """LZ4 blocks behind a length of four bytes."""

    def __init__(self, name: str, codec: Any) -> None:
        self.name = name
        self._codec = codec

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        if len(data) < 4:
            raise ValueError(f"the length takes 4 bytes, found {len(data)}")
        size = int.from_bytes(data[:4], "little")
        if size > limit or (exact and size != limit):
            raise ValueError(f"the header says {size} bytes, expected {_wanted(limit, exact)}")
        return as_buffer(self._codec.decode(data))

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        return as_buffer(self._codec.encode(data))


class Crc32c:
    """CRC-32C behind or in front of the bytes."""

    is_fixed_size = True

    def __init__(self, name: str, at_start: bool) -> None:
        self.name = name
        self._at_start = at_start

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        if len(data) < 4:
            raise ValueError(f"the checksum takes 4 bytes, found {len(data)}")
        view = memoryview(data)
        body, stored = (view[4:], view[:4]) if self._at_start else (view[:-4], view[-4:])
        computed = crc32c(body)
        if computed != int.from_bytes(stored, "little"):
            raise ValueError(
                f"checksum {computed:#010x} of the bytes is not the stored "
                f"{int.from_bytes(stored, 'little'):#010x}"
            )
        return body

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        checksum = crc32c(data).to_bytes(4, "little")
        return checksum + bytes(data) if self._at_start else bytes(data) + checksum

    def encoded_bound(self, nbytes: int) -> int:
        """See ``ByteCodec``."""
        return nbytes + 4


class Numcodec:
    """Any numcodecs codec that has no size of its own to lie about."""

    def __init__(self, name: str, codec: Any, extra: int | None) -> None:
        self.name = name
        self.is_fixed_size = extra is not None
        self._codec = codec
        self._extra = extra

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        """See ``ByteCodec``."""
        if self._extra and len(data) < self._extra:
            raise ValueError(f"the checksum takes {self._extra} bytes, found {len(data)}")
        return as_buffer(self._codec.decode(data))

    def encode(self, data: Buffer) -> Buffer:
        """See ``ByteCodec``."""
        return as_buffer(self._codec.encode(data))

    def encoded_bound(self, nbytes: int) -> int:
        """See ``ByteCodec``."""
        return compressed_bound(nbytes) if self._extra is None else nbytes + self._extra


def as_buffer(result: Any) -> Buffer:
    """Return what a numcodecs codec gave as bytes or as a flat view of bytes."""
    if isinstance(result, bytes):
        return result
    if isinstance(result, np.ndarray):
        return memoryview(np.ascontiguousarray(result).reshape(-1).view(np.uint8))
    return memoryview(result).cast("B")


def _wanted(limit: int, exact: bool) -> str:
    return f"{limit}" if exact else f"at most {limit}"


def _zstd_content_size(data: Buffer) -> int | None:
    """Return the size that a Zstandard frame announces, if it does (RFC 8878, 3.1.1.1)."""
    if len(data) < 9 or data[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError("it is not a Zstandard frame")
    descriptor = data[4]
    flag = descriptor >> 6
    single_segment = descriptor & 0x20
    if flag == 0 and not single_segment:
        return None
    at = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    nbytes = (1, 2, 4, 8)[flag]
    if len(data) < at + nbytes:
        raise ValueError("the Zstandard frame ends in its header")
    size = int.from_bytes(data[at : at + nbytes], "little")
    return size + 256 if nbytes == 2 else size


def _check_zstd_blocks(data: Buffer, limit: int) -> None:
    """Refuse frames of unknown size whose blocks could hold more than ``limit`` bytes.

    Blocks say whether they are raw, one byte repeated, or compressed, and none holds more than
    128 KiB (RFC 8878, 3.1.1.2), so their headers alone bound what comes out.
    """
    at = 0
    total = 0
    while at < len(data):
        if data[at : at + 4] != b"\x28\xb5\x2f\xfd":
            raise ValueError("there are bytes behind the Zstandard frame")
        descriptor = data[at + 4] if at + 4 < len(data) else 0
        single_segment = descriptor & 0x20
        sizes = (1 if single_segment else 0, 2, 4, 8)
        at += 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
        at += sizes[descriptor >> 6]
        last = False
        while not last:
            header = data[at : at + 3]
            if len(header) < 3:
                raise ValueError("the Zstandard frame ends early")
            bits = int.from_bytes(header, "little")
            last, kind, size = bool(bits & 1), (bits >> 1) & 3, bits >> 3
            at += 3 + (1 if kind == 1 else size)
            total += 131072 if kind == 2 else size
            # The last block alone may be partly filled, so allow for one.
            if total > limit + 131072:
                raise ValueError(f"the frame may hold more than {limit} bytes")
        at += 4 if descriptor & 4 else 0


def _take(configuration: dict[str, Any], key: str, default: Any, lo: int, hi: int) -> int:
    value = configuration.get(key, default)
    if not is_integer(value) or not lo <= value <= hi:
        raise ConfigurationError(
            f"{key} must be an integer from {lo} to {hi}, found {shortened(value)}"
        )
    return int(value)


def _make_zstd(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    level = _take(configuration, "level", 0, -(1 << 17), 22)
    checksum = configuration.get("checksum", False)
    if not isinstance(checksum, bool):
        raise ConfigurationError(f"checksum must be true or false, found {shortened(checksum)}")
    return Zstd(name, level, checksum)


_BLOSC_CNAMES: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


def _make_blosc(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    is_core = name == "blosc"
    cname = configuration.get("cname", "zstd" if is_core else "lz4")
    if cname not in _BLOSC_CNAMES:
        raise ConfigurationError(
            f"cname must be one of {', '.join(_BLOSC_CNAMES)}, found {shortened(cname)}"
        )
    shuffle = configuration.get("shuffle")
    typesize = configuration.get("typesize")
    if is_core:
        if typesize is None:
            typesize = max(1, itemsize)
        if shuffle is None:
            shuffle = "bitshuffle" if typesize == 1 else "shuffle"
        if not isinstance(shuffle, str) or shuffle not in _BLOSC_SHUFFLES:
            raise ConfigurationError(
                f"shuffle must be one of {', '.join(_BLOSC_SHUFFLES)}, found {shortened(shuffle)}"
            )
        shuffle_code = _BLOSC_SHUFFLES[shuffle]
    else:
        shuffle_code = _take(configuration, "shuffle", 1, -1, 2)
    if typesize is not None:
        # The container keeps the width in one byte; wider elements are not shuffled.
        typesize = _take({"typesize": typesize}, "typesize", 1, 1, 2**31 - 1)
        typesize = typesize if typesize <= 255 else 1
    clevel = _take(configuration, "clevel", 5, 0, 9)
    blocksize = _take(configuration, "blocksize", 0, 0, 2**31 - 1)
    return Blosc(name, cname, clevel, shuffle_code, blocksize, typesize)


def _make_gzip(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    level = _take(configuration, "level", 5 if name == "gzip" else 1, -1, 9)
    return Deflate(name, level, gzip=True)


def _make_zlib(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    return Deflate(name, _take(configuration, "level", 1, -1, 9), gzip=False)


def _make_bz2(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    level = _take(configuration, "level", 1, 1, 9)
    return Streamed(name, bz2.BZ2Decompressor, lambda data: bz2.compress(data, level))


def _make_lzma(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    container = _take(configuration, "format", lzma.FORMAT_XZ, 0, 3)
    check = _take(configuration, "check", -1, -1, 15)
    preset, filters = configuration.get("preset"), configuration.get("filters")
    memory = None if container == lzma.FORMAT_RAW else 2**30

    def make_decompressor() -> Any:
        return lzma.LZMADecompressor(
            format=container,
            memlimit=memory,
            filters=filters if container == lzma.FORMAT_RAW else None,
        )

    def compress(data: Buffer) -> bytes:
        return lzma.compress(data, format=container, check=check, preset=preset, filters=filters)

    return Streamed(name, make_decompressor, compress)


def _make_lz4(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    return Lz4(name, make_numcodec(name, configuration))


def _make_crc32c(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    location = configuration.get("location", "end")
    if location not in ("start", "end"):
        raise ConfigurationError(f"location must be 'start' or 'end', found {shortened(location)}")
    return Crc32c(name, at_start=location == "start")


def _make_checksum(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    return Numcodec(name, make_numcodec(name, configuration), extra=4)


def _make_shuffle(name: str, configuration: dict[str, Any], itemsize: int) -> ByteCodec:
    width = configuration.get("elementsize")
    width = (
        max(1, itemsize)
        if width is None
        else _take({"elementsize": width}, "elementsize", 4, 1, 2**31 - 1)
    )
    return Numcodec(name, make_numcodec(name, {**configuration, "elementsize": width}), extra=0)


def make_numcodec(name: str, configuration: dict[str, Any]) -> Any:
    """Return the numcodecs object for a ``numcodecs.*`` name.

    Raises
    ------
    ConfigurationError
        If numcodecs does not take the parameters.
    """
    config = {**configuration, "id": name.removeprefix("numcodecs.")}
    try:
        return get_codec(config)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"numcodecs refuses its parameters: {error}") from error


_MAKERS: Final[dict[str, Callable[[str, dict[str, Any], int], ByteCodec]]] = {
    "zstd": _make_zstd,
    "blosc": _make_blosc,
    "gzip": _make_gzip,
    "crc32c": _make_crc32c,
    "numcodecs.zstd": _make_zstd,
    "numcodecs.blosc": _make_blosc,
    "numcodecs.gzip": _make_gzip,
    "numcodecs.zlib": _make_zlib,
    "numcodecs.bz2": _make_bz2,
    "numcodecs.lzma": _make_lzma,
    "numcodecs.lz4": _make_lz4,
    "numcodecs.shuffle": _make_shuffle,
    "numcodecs.crc32c": _make_crc32c,
    "numcodecs.crc32": _make_checksum,
    "numcodecs.adler32": _make_checksum,
    "numcodecs.fletcher32": _make_checksum,
    "numcodecs.jenkins_lookup3": _make_checksum,
}

BYTE_CODECS: Final = frozenset(_MAKERS)
"""Names of the codecs that are made here."""
