"""Checks the encodings and the commit metadata in the options of a write."""

from __future__ import annotations

from typing import Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import unknown
from icechunk_format.options.write import WriteOptions
from icechunk_format.spec.values.metadata_items import MetadataItems

MISSING_KEYS: Final = ("_FillValue", "missing_value")
CF_KEYS: Final = (
    *MISSING_KEYS,
    "scale_factor",
    "add_offset",
    "_Unsigned",
    "units",
    "calendar",
)
"""Keys of the option ``encoding`` that become CF attributes."""

ENCODING_KEYS: Final = (
    "dtype",
    "chunks",
    "shards",
    "compressors",
    "codecs",
    "fill_value",
    *CF_KEYS,
    "attributes",
    "order",
    "shape",
    "dims",
)
"""Keys of the option ``encoding``; the last two are for the layouts of chunks."""


def check_options(options: WriteOptions) -> None:
    """Raise InvalidInputError before the write for metadata and encodings that cannot be stored."""
    MetadataItems.of(options.metadata)
    for name, encoding in options.encoding.items():
        for key in encoding:
            if key not in ENCODING_KEYS:
                raise InvalidInputError(
                    f"encoding of {name!r}: {unknown('key', str(key), ENCODING_KEYS)}",
                    variable=name,
                    key=key,
                )
