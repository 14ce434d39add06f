"""Compresses locations of virtual chunks one by one, with a zstd dictionary of their manifest.

Locations of one data set differ in a few characters. With a shared dictionary each becomes a small
zstd frame that can be read alone.

Rules of this file
------------------
1. A location has at most 1024 bytes. The size in a frame is checked before allocation, and a frame
   without a size must not expand beyond the limit.
2. Equal neighbouring frames are processed once; all frames of a call are decompressed in one batch.
3. If training fails, as on few or equal samples, locations are stored uncompressed.

Spec: "ChunkRef", ``compressed_location``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icechunk_format.encoding.tables.byte_ranges import ByteRanges, is_run_start, joined
from icechunk_format.errors import FormatError, InvalidInputError

MAX_LOCATION_SIZE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationCompression:
    """Conditions and parameters of compressed locations, with the reference's defaults.

    Parameters
    ----------
    min_num_chunks
        Manifests with fewer virtual references keep plain locations.
    dictionary_max_training_samples
        Locations that train a dictionary.
    compression_level
        The zstd level of dictionary and frames.
    """

    min_num_chunks: int = 1000
    dictionary_max_training_samples: int = 100
    dictionary_max_size_bytes: int = 2048
    compression_level: int = 3


def train_dictionary(samples: Sequence[bytes], *, max_size: int, level: int) -> bytes | None:
    """Return a zstd dictionary of at most ``max_size`` bytes; None if the samples give none."""
    try:
        return zstandard.train_dictionary(max_size, list(samples), level=level).as_bytes()
    except zstandard.ZstdError:
        return None


def compress(dictionary: bytes, ranges: ByteRanges, *, level: int) -> ByteRanges:
    """Compress locations to frames."""
    data, starts, lengths = ranges
    if lengths.size and int(np.max(lengths)) > MAX_LOCATION_SIZE:
        raise InvalidInputError(
            f"a location of {int(np.max(lengths))} bytes cannot be compressed; "
            f"at most {MAX_LOCATION_SIZE} are allowed",
            found=int(np.max(lengths)),
            allowed=MAX_LOCATION_SIZE,
        )
    if not starts.size:
        return ByteRanges(data[:0], starts, lengths)
    shared = zstandard.ZstdCompressionDict(dictionary)
    shared.precompute_compress(level=level)
    compressor = zstandard.ZstdCompressor(
        level=level, dict_data=shared, write_content_size=True, write_dict_id=True
    )
    is_new = is_run_start(starts, lengths)
    raw = data.data
    frames = [
        compressor.compress(raw[start : start + length])
        for start, length in zip(starts[is_new].tolist(), lengths[is_new].tolist(), strict=True)
    ]
    return _expand(frames, is_new)


def decompress(dictionary: bytes, ranges: ByteRanges, *, object_key: str) -> ByteRanges:
    """Decompress the frames of locations."""
    data, starts, lengths = ranges
    if not starts.size:
        return ByteRanges(data[:0], starts, lengths)
    where = {"object_key": object_key, "file_type": "manifest", "field": "refs.compressed_location"}
    is_new = is_run_start(starts, lengths)
    starts, lengths = starts[is_new], lengths[is_new]
    raw = data.data
    frames = [
        raw[start : start + length]
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    try:
        # The size is -1 if the frame does not record it.
        sizes = list(map(zstandard.frame_content_size, frames))
        if max(sizes) > MAX_LOCATION_SIZE:
            raise FormatError(
                f"a location expands to {max(sizes)} bytes; "
                f"at most {MAX_LOCATION_SIZE} are allowed",
                **where,
            )
        decompressor = zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary)
        )
        if min(sizes) > 0:
            table = np.stack([starts, lengths], axis=1).astype("<u8").tobytes()
            made = decompressor.multi_decompress_to_buffer(
                zstandard.BufferWithSegments(raw, table),
                decompressed_sizes=np.array(sizes, dtype="<u8").tobytes(),
            )
            return _expand([made[i] for i in range(len(made))], is_new)
        # Frames of other writers may omit their size.
        decompress_one = partial(decompressor.decompress, max_output_size=MAX_LOCATION_SIZE)
        return _expand(list(map(decompress_one, frames)), is_new)
    except (zstandard.ZstdError, ValueError, MemoryError) as error:
        raise FormatError(
            f"a location cannot be decompressed with the manifest's dictionary ({error})", **where
        ) from error


def _expand(items: Sequence[Any], is_new: NDArray[np.bool_]) -> ByteRanges:
    """Return the item of every row, given those of the rows that are new."""
    content, starts, sizes = joined(items)
    run_of_row = np.cumsum(is_new) - 1
    return ByteRanges(content, starts[run_of_row], sizes[run_of_row])
