"""``WriteOptions``: the options of a write.

Rules of this file
------------------
1. ``icechunk_format.options`` parses and checks the options of users. This module checks the keys
   of an encoding, and values of metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icechunk_format.dataset.name_lists import did_you_mean
from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.values.metadata_items import MetadataItems

Mode = Literal["append", "overwrite", "errorifexists", "ignore"]
WriteLayout = Literal["cells", "chunks", "refs"]

DEFAULT_ROWS_PER_UNIT: Final = 2_000_000
DEFAULT_MIN_DENSITY: Final = 0.01

MISSING_KEYS: Final = ("_FillValue", "missing_value")
CF_KEYS: Final = (
    *MISSING_KEYS,
    "scale_factor",
    "add_offset",
    "_Unsigned",
    "units",
    "calendar",
)
"""Keys of the option ``encoding`` that become attributes of the CF conventions."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write; the manual describes each."""

    mode: Mode = "errorifexists"
    group: str | None = None
    """None is the root, or the only group that has arrays."""
    branch: str = "main"
    create_branch: bool = False
    """True to create the branch from ``main`` if it does not exist."""
    dims: tuple[str, ...] | None = None
    """The dimension columns, in order; None finds them."""
    chunks: Mapping[str, int] | None = None
    shards: Mapping[str, int] | None = None
    """By dimension: elements of a chunk or shard of new arrays."""
    order: Mapping[str, str] | None = None
    """By dimension: ``ascending`` or ``descending``, for new labels."""
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By column, with the keys ``ENCODING_KEYS``, as in xarray."""
    layout: WriteLayout = "cells"
    decoded: bool = True
    """In the layout ``chunks``: True if ``data`` holds values, False for stored bytes."""
    on_conflict: Literal["rebase", "fail"] = "rebase"
    resolve: Literal["ours", "theirs"] | None = None
    min_density: float = DEFAULT_MIN_DENSITY
    """The least share of the grid of distinct coordinates that rows must cover."""
    spec_version: int = 2
    """Of a new repository."""
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    """The writer, and the number of this write: committed numbers are skipped."""
    rows_per_unit: int = DEFAULT_ROWS_PER_UNIT

    def __post_init__(self) -> None:
        """Refuse metadata and encodings that the end of the write could not store."""
        MetadataItems.of(self.metadata)
        for name, encoding in self.encoding.items():
            for key in encoding:
                if key not in ENCODING_KEYS:
                    raise InvalidInputError(
                        f"encoding of {name!r} has the unknown key {key!r}; "
                        f"{did_you_mean(str(key), ENCODING_KEYS)}",
                        variable=name,
                        key=key,
                    )
