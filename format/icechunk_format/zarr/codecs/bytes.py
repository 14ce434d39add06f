"""Makes the byte-to-byte codecs by name: compressors and checksums.

Spec: Zarr v3 codecs ``gzip``, ``zstd``, ``blosc``, ``crc32c``; the registered ``numcodecs.*``.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final

import google_crc32c
import numpy as np
from numcodecs.registry import get_codec

from icechunk_format.zarr.codecs.compressors import Blosc, Lz4, Streamed, Zstd
from icechunk_format.zarr.codecs.steps import (
    Buffer,
    ByteCodec,
    CodecSpec,
    ConfigurationError,
    as_buffer,
    compressed_bound,
    integer_parameter,
)
from icechunk_format.zarr.named_configuration import shortened


def crc32c(data: Buffer) -> int:
    """Return the CRC-32C of the bytes, an integer below 2**32."""
    # google_crc32c accepts an array, but no memoryview.
    return int(google_crc32c.value(np.frombuffer(data, dtype=np.uint8)))


class Crc32c:
    """The ``crc32c`` codec: a checksum after or before the bytes."""

    is_fixed_size = True

    def __init__(self, name: str, at_start: bool) -> None:
        self.name = name
        self._at_start = at_start

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        if len(data) < 4:
            raise ValueError(f"the checksum takes 4 bytes, found {len(data)}")
        view = memoryview(data)
        body, stored = (view[4:], view[:4]) if self._at_start else (view[:-4], view[-4:])
        computed = crc32c(body)
        if computed != int.from_bytes(stored, "little"):
            raise ValueError(
                f"the bytes have checksum {computed:#010x}, stored is "
                f"{int.from_bytes(stored, 'little'):#010x}"
            )
        return body

    def encode(self, data: Buffer) -> Buffer:
        checksum = crc32c(data).to_bytes(4, "little")
        return checksum + bytes(data) if self._at_start else bytes(data) + checksum

    def encoded_bound(self, nbytes: int) -> int:
        return nbytes + 4


class Numcodec:
    """A numcodecs codec whose stream does not record the decoded size."""

    def __init__(self, name: str, codec: Any, extra: int | None) -> None:
        self.name = name
        self.is_fixed_size = extra is not None
        self._codec = codec
        self._extra = extra

    def decode(self, data: Buffer, limit: int, exact: bool) -> Buffer:
        if self._extra and len(data) < self._extra:
            raise ValueError(f"the checksum takes {self._extra} bytes, found {len(data)}")
        return as_buffer(self._codec.decode(data))

    def encode(self, data: Buffer) -> Buffer:
        return as_buffer(self._codec.encode(data))

    def encoded_bound(self, nbytes: int) -> int:
        return compressed_bound(nbytes) if self._extra is None else nbytes + self._extra


def _make_zstd(spec: CodecSpec) -> ByteCodec:
    level = integer_parameter(spec.configuration, "level", 0, -(1 << 17), 22)
    checksum = spec.configuration.get("checksum", False)
    if not isinstance(checksum, bool):
        raise ConfigurationError(f"checksum must be true or false, found {shortened(checksum)}")
    return Zstd(spec.name, level, checksum)


_BLOSC_CNAMES: Final = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_BLOSC_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


def _make_blosc(spec: CodecSpec) -> ByteCodec:
    is_core = spec.name == "blosc"
    cname = spec.configuration.get("cname", "zstd" if is_core else "lz4")
    if cname not in _BLOSC_CNAMES:
        raise ConfigurationError(
            f"cname must be one of {', '.join(_BLOSC_CNAMES)}, found {shortened(cname)}"
        )
    shuffle = spec.configuration.get("shuffle")
    typesize = spec.configuration.get("typesize")
    if is_core:
        if typesize is None:
            typesize = max(1, spec.data_type.itemsize)
        if shuffle is None:
            shuffle = "bitshuffle" if typesize == 1 else "shuffle"
        if not isinstance(shuffle, str) or shuffle not in _BLOSC_SHUFFLES:
            raise ConfigurationError(
                f"shuffle must be one of {', '.join(_BLOSC_SHUFFLES)}, found {shortened(shuffle)}"
            )
        shuffle_code = _BLOSC_SHUFFLES[shuffle]
    else:
        shuffle_code = integer_parameter(spec.configuration, "shuffle", 1, -1, 2)
    if typesize is not None:
        # The container stores the width in one byte; wider elements are not shuffled.
        typesize = integer_parameter({"typesize": typesize}, "typesize", 1, 1, 2**31 - 1)
        typesize = typesize if typesize <= 255 else 1
    clevel = integer_parameter(spec.configuration, "clevel", 5, 0, 9)
    blocksize = integer_parameter(spec.configuration, "blocksize", 0, 0, 2**31 - 1)
    return Blosc(spec.name, cname, clevel, shuffle_code, blocksize, typesize)


def _make_deflate(spec: CodecSpec) -> ByteCodec:
    is_gzip = spec.name != "numcodecs.zlib"
    level = integer_parameter(spec.configuration, "level", 5 if spec.name == "gzip" else 1, -1, 9)
    wbits = 31 if is_gzip else 15

    def compress(data: Buffer) -> bytes:
        stream = zlib.compressobj(level, zlib.DEFLATED, wbits)
        return stream.compress(data) + stream.flush()

    # gzip has members, optionally followed by zeros; zlib has one stream.
    return Streamed(
        spec.name,
        lambda: zlib.decompressobj(wbits),
        compress,
        follows="members" if is_gzip else "nothing",
    )


def _make_bz2(spec: CodecSpec) -> ByteCodec:
    level = integer_parameter(spec.configuration, "level", 1, 1, 9)
    return Streamed(spec.name, bz2.BZ2Decompressor, lambda data: bz2.compress(data, level))


def _make_lzma(spec: CodecSpec) -> ByteCodec:
    container = integer_parameter(spec.configuration, "format", lzma.FORMAT_XZ, 0, 3)
    check = integer_parameter(spec.configuration, "check", -1, -1, 15)
    preset, filters = spec.configuration.get("preset"), spec.configuration.get("filters")
    memory = None if container == lzma.FORMAT_RAW else 2**30

    def make_decompressor() -> Any:
        return lzma.LZMADecompressor(
            format=container,
            memlimit=memory,
            filters=filters if container == lzma.FORMAT_RAW else None,
        )

    def compress(data: Buffer) -> bytes:
        return lzma.compress(data, format=container, check=check, preset=preset, filters=filters)

    return Streamed(spec.name, make_decompressor, compress)


def _make_lz4(spec: CodecSpec) -> ByteCodec:
    return Lz4(spec.name, make_numcodec(spec.name, spec.configuration))


def _make_crc32c(spec: CodecSpec) -> ByteCodec:
    location = spec.configuration.get("location", "end")
    if location not in ("start", "end"):
        raise ConfigurationError(f"location must be 'start' or 'end', found {shortened(location)}")
    return Crc32c(spec.name, at_start=location == "start")


def _make_checksum(spec: CodecSpec) -> ByteCodec:
    return Numcodec(spec.name, make_numcodec(spec.name, spec.configuration), extra=4)


def _make_shuffle(spec: CodecSpec) -> ByteCodec:
    width = spec.configuration.get("elementsize")
    width = (
        max(1, spec.data_type.itemsize)
        if width is None
        else integer_parameter({"elementsize": width}, "elementsize", 4, 1, 2**31 - 1)
    )
    codec = make_numcodec(spec.name, {**spec.configuration, "elementsize": width})
    return Numcodec(spec.name, codec, extra=0)


def make_numcodec(name: str, configuration: dict[str, Any]) -> Any:
    """Return the numcodecs codec of a ``numcodecs.*`` name, or raise ConfigurationError."""
    config = {**configuration, "id": name.removeprefix("numcodecs.")}
    try:
        return get_codec(config)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"numcodecs refuses its parameters: {error}") from error


BYTE_CODECS: Final[dict[str, Callable[[CodecSpec], ByteCodec]]] = {
    "zstd": _make_zstd,
    "blosc": _make_blosc,
    "gzip": _make_deflate,
    "crc32c": _make_crc32c,
    "numcodecs.zstd": _make_zstd,
    "numcodecs.blosc": _make_blosc,
    "numcodecs.gzip": _make_deflate,
    "numcodecs.zlib": _make_deflate,
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
"""Makers of the byte-to-byte codecs by name; they raise ``ConfigurationError``."""
