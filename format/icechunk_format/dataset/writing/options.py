"""``WriteOptions``: the checked options of a write.

Rules of this file
------------------
1. Texts are parsed elsewhere: sizes and encodings come in as mappings.
2. Meaningless combinations of options are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal

from icechunk_format.errors import InvalidInputError
from icechunk_format.spec.values.metadata_items import MetadataItems

Mode = Literal["append", "overwrite", "errorifexists", "ignore"]
WriteLayout = Literal["cells", "chunks", "refs"]

MODES: Final = ("append", "overwrite", "errorifexists", "ignore")
WRITE_LAYOUTS: Final = ("cells", "chunks", "refs")
ORDERS: Final = ("ascending", "descending")
DEFAULT_ROWS_PER_UNIT: Final = 2_000_000
DEFAULT_MIN_DENSITY: Final = 0.01

ENCODING_KEYS: Final = (
    "dtype",
    "chunks",
    "shards",
    "compressors",
    "codecs",
    "fill_value",
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "_Unsigned",
    "units",
    "calendar",
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
        """Refuse what no write can do."""
        _choice("mode", self.mode, MODES)
        _choice("layout", self.layout, WRITE_LAYOUTS)
        _choice("onConflict", self.on_conflict, ("rebase", "fail"))
        _choice("resolve", self.resolve, (None, "ours", "theirs"))
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise InvalidInputError(
                "txnAppId and txnVersion belong together: the first names the writer, the second "
                "numbers its writes; give both or neither"
            )
        if not 0 <= self.min_density <= 1:
            raise InvalidInputError(
                f"minDensity={self.min_density} must lie between 0 and 1: it is a share of the "
                "grid",
                found=self.min_density,
            )
        if self.rows_per_unit < 1:
            raise InvalidInputError(f"rowsPerUnit={self.rows_per_unit} must be at least 1")
        for option, sizes in (("chunks", self.chunks), ("shards", self.shards)):
            for dim, size in (sizes or {}).items():
                if size < 1:
                    raise InvalidInputError(
                        f"{option} has {dim}={size}; a whole number of at least 1 is needed",
                        option=option,
                    )
        for dim, wish in (self.order or {}).items():
            _choice(f"order of {dim}", wish, ORDERS)
        # The commit would refuse values that are not JSON, after all the work.
        MetadataItems.of(self.metadata)
        for name, said in self.encoding.items():
            _check_encoding(name, said)


def _choice(option: str, found: object, allowed: tuple[object, ...]) -> None:
    if found not in allowed:
        words = ", ".join(str(word) for word in allowed if word is not None)
        raise InvalidInputError(
            f"{option}={found!r} is not known; choose one of {words}", found=found, allowed=allowed
        )


def _check_encoding(name: str, said: object) -> None:
    if not isinstance(said, Mapping):
        raise InvalidInputError(
            f"encoding of {name!r} is {said!r}; an object like "
            f'{{"dtype": "int16", "scale_factor": 0.01}} is needed',
            variable=name,
        )
    for key in said:
        if key not in ENCODING_KEYS:
            near = get_close_matches(str(key), ENCODING_KEYS, n=1, cutoff=0.0)[0]
            raise InvalidInputError(
                f"encoding of {name!r} has {key!r}, which is not known; did you mean {near!r}? "
                f"Known are {', '.join(ENCODING_KEYS)}",
                variable=name,
                key=key,
            )
