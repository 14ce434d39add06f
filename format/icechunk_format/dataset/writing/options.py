"""``WriteOptions``: the options of a write.

Rules of this file
------------------
1. ``icechunk_format.options`` parses and checks what users give. Checked here is what only the
   format knows: the words of an encoding, and values that metadata can hold.
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
"""What the option ``encoding`` may say that becomes an attribute by the CF conventions."""

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
"""What the option ``encoding`` may say of a variable; the last two in the layouts of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write.

    Parameters
    ----------
    mode
        ``append``, ``overwrite``, ``errorifexists`` or ``ignore``.
    group
        Path of the group; None is the root, or the only group that has arrays.
    branch
        The branch that the commit moves.
    create_branch
        Whether the branch may be made, from ``main``.
    dims
        Names of the dimension columns, in order; None finds them.
    chunks, shards
        Elements of a chunk, and of a shard, by dimension; for arrays that are new.
    order
        By dimension: ``ascending`` or ``descending``, for labels that are new.
    encoding
        By column, in xarray's words: see ``ENCODING_KEYS``.
    layout
        Meaning of a row.
    decoded
        In the layout ``chunks``: whether ``data`` are values, or the stored bytes.
    on_conflict, resolve
        What happens when others have committed: see ``WriteSession.commit``.
    min_density
        The least share of the grid of distinct coordinates that rows must cover.
    spec_version
        Of a repository that is new.
    message, metadata
        Of the commit.
    txn_app_id, txn_version
        Who writes, and the number of this write; what that writer has committed already is
        skipped.
    rows_per_unit
        About how many rows a unit of work has.
    """

    mode: Mode = "errorifexists"
    group: str | None = None
    branch: str = "main"
    create_branch: bool = False
    dims: tuple[str, ...] | None = None
    chunks: Mapping[str, int] | None = None
    shards: Mapping[str, int] | None = None
    order: Mapping[str, str] | None = None
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layout: WriteLayout = "cells"
    decoded: bool = True
    on_conflict: Literal["rebase", "fail"] = "rebase"
    resolve: Literal["ours", "theirs"] | None = None
    min_density: float = DEFAULT_MIN_DENSITY
    spec_version: int = 2
    message: str | None = None
    metadata: Mapping[str, Any] | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    rows_per_unit: int = DEFAULT_ROWS_PER_UNIT

    def __post_init__(self) -> None:
        """Refuse, before all the work, what only the end of a write would meet."""
        MetadataItems.of(self.metadata)
        for name, said in self.encoding.items():
            _check_encoding(name, said)


def _check_encoding(name: str, said: Mapping[str, Any]) -> None:
    for key in said:
        if key not in ENCODING_KEYS:
            raise InvalidInputError(
                f"encoding of {name!r} has {key!r}, which is not known; "
                f"{did_you_mean(str(key), ENCODING_KEYS)}",
                variable=name,
                key=key,
            )
