"""The options that only writing has.

Rules of this file
------------------
1. Declarations only, in the order of the README's table; the rules of options stand in
   :mod:`icechunk_spark.options.options`.
"""

from __future__ import annotations

from typing import Final

from icechunk_spark.options.declare import Option, Use
from icechunk_spark.options.values import (
    choice,
    parse_boolean,
    parse_byte_size,
    parse_fraction,
    parse_json_object,
    parse_json_of_objects,
    parse_names,
    parse_orders,
    parse_sizes,
    parse_spec_version,
    parse_whole_number,
)

_WRITE: Final[tuple[Use, ...]] = ("write",)

WRITING: Final[tuple[Option, ...]] = (
    Option(
        name="dims",
        attribute="dims",
        type_text="names, comma-separated",
        parse=parse_names,
        default_text="from the columns' metadata, or the existing group",
        help="Dimension columns, in the order of the axes; the other columns are variables.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="chunks",
        attribute="chunks",
        type_text="sizes, such as `time=24,latitude=180`",
        parse=parse_sizes,
        default_text="the existing arrays', else about 8 MiB a chunk",
        help="Chunk shape of new arrays, in elements per dimension.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="shards",
        attribute="shards",
        type_text="sizes, such as `time=240,latitude=720`",
        parse=parse_sizes,
        default_text="no sharding",
        help="Shard shape of new arrays: one object holds all `chunks` of a shard.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="order",
        attribute="order",
        type_text="`ascending` or `descending` per dimension, such as `latitude=descending`",
        parse=parse_orders,
        default_text="from the columns' metadata, else ascending",
        help="Order of the labels of new dimensions.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="encoding",
        attribute="encoding",
        type_text="JSON object per variable",
        parse=parse_json_of_objects,
        default_text="from the columns' metadata",
        help="How new arrays are stored, in xarray's words: `dtype`, `chunks`, `shards`,"
        " `compressors`, `_FillValue`, `missing_value`, `scale_factor`, `add_offset`, `units`,"
        " `calendar`, `attributes`.",
        uses=_WRITE,
    ),
    Option(
        name="createBranch",
        attribute="create_branch",
        type_text="boolean",
        parse=parse_boolean,
        default=False,
        default_text="`false`",
        help="Creates `branch` from the newest snapshot of `main` where it does not exist.",
        uses=_WRITE,
    ),
    Option(
        name="message",
        attribute="message",
        type_text="text",
        default_text="says what was written",
        help="Message of the commit.",
        uses=_WRITE,
    ),
    Option(
        name="metadata",
        attribute="metadata",
        type_text="JSON object",
        parse=parse_json_object,
        default_text="none",
        help="Properties of the snapshot, for programs.",
        uses=_WRITE,
    ),
    Option(
        name="onConflict",
        attribute="on_conflict",
        type_text="`rebase`, `fail`",
        parse=choice("rebase", "fail"),
        default="rebase",
        default_text="`rebase`",
        help="What to do where the branch moved meanwhile: put the write on top of what others"
        " committed, or give up.",
        uses=_WRITE,
    ),
    Option(
        name="resolve",
        attribute="resolve",
        type_text="`ours`, `theirs`",
        parse=choice("ours", "theirs"),
        default_text="an error",
        help="Whose values stay in cells (in `layout=chunks` and `refs`: chunks) that both wrote.",
        uses=_WRITE,
    ),
    Option(
        name="distribution",
        attribute="distribution",
        type_text="`hash`, `none`",
        parse=choice("hash", "none"),
        default="hash",
        default_text="`hash`",
        help="`hash` brings the rows of a chunk together; `none` skips that shuffle for rows that"
        " lie together already (a chunk that two tasks met is an error).",
        uses=_WRITE,
    ),
    Option(
        name="minDensity",
        attribute="min_density",
        type_text="number from 0 to 1",
        parse=parse_fraction,
        default=0.01,
        default_text="`0.01`",
        help="Refuses the write where the rows cover less than this part of the grid that their"
        " coordinates span: points and tracks are not grids.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="txnAppId",
        attribute="txn_app_id",
        type_text="text",
        help="With `txnVersion`: a version that this application has committed already is skipped,"
        " so that a job can be run again.",
        uses=_WRITE,
    ),
    Option(
        name="txnVersion",
        attribute="txn_version",
        type_text="integer",
        parse=parse_whole_number,
        help="Version of the application's work, see `txnAppId`.",
        uses=_WRITE,
    ),
    Option(
        name="specVersion",
        attribute="spec_version",
        type_text="`2`, `1`",
        parse=parse_spec_version,
        default=2,
        default_text="`2`",
        help="Version of the Icechunk specification for a repository that the write creates.",
        uses=_WRITE,
    ),
    Option(
        name="maxUnplannedBytes",
        attribute="max_unplanned_bytes",
        type_text="size, such as `256m`",
        parse=parse_byte_size,
        default=256 * 2**20,
        default_text="`256m`",
        help="Most that a write without `icechunk_spark.register(spark)` may hold, since it is put"
        " together in one process.",
        uses=_WRITE,
    ),
)
