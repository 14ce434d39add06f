"""Declares the options of writing: those shared with reading first, then the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from icechunk_format.options.declare import CHANGING, WRITING, option, option_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import (
    parse_byte_size,
    parse_fraction,
    parse_json_of_objects,
    parse_orders,
    parse_spec_version,
    parse_whole_number,
)
from icechunk_format.storage.credentials import Credentials

_option = partial(option, calls=("write", "writeStream"))
_of_a_commit = partial(option, calls=(*WRITING, *CHANGING))


Mode = Literal["append", "overwrite", "errorifexists", "ignore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, without its location."""

    mode: Mode = "errorifexists"
    branch: str = option_of(ReadRequest, "branch", default="main")
    layout: Literal["cells", "chunks", "refs"] = option_of(ReadRequest, "layout")
    group: str | None = option_of(ReadRequest, "group")
    decoded: bool = option_of(ReadRequest, "decoded")
    dims: tuple[str, ...] | None = _option(
        "dims",
        shown_default="from the columns' metadata, or the existing group",
        help="Dimension columns, in the order of the axes; the other columns are variables.",
        layouts=("cells",),
    )
    chunks: Mapping[str, int] | None = _option(
        "chunks",
        shown_type="sizes, such as `time=24,latitude=180`",
        shown_default="the existing arrays', else about 8 MiB a chunk",
        help="Chunk shape of new arrays, in elements per dimension.",
        layouts=("cells",),
    )
    shards: Mapping[str, int] | None = _option(
        "shards",
        shown_type="sizes, such as `time=240,latitude=720`",
        shown_default="no sharding",
        help="Shard shape of new arrays: one object holds all `chunks` of a shard.",
        layouts=("cells",),
    )
    order: Mapping[str, str] | None = _option(
        "order",
        shown_type="`ascending`, `descending` or `unsorted` per dimension, such as"
        " `latitude=descending`",
        parse=parse_orders,
        shown_default="from the columns' metadata, else ascending",
        help="Order of the labels of new dimensions. In an append, new labels between existing ones"
        " are inserted in order if few chunks have to move, and otherwise refused; `unsorted` puts"
        " them at the end.",
        layouts=("cells",),
    )
    encoding: Mapping[str, Mapping[str, Any]] = _option(
        "encoding",
        default={},
        shown_type="JSON object per variable",
        parse=parse_json_of_objects,
        shown_default="from the columns' metadata",
        help="How new arrays are stored, with the names of xarray: `dtype`, `chunks`, `shards`,"
        " `compressors`, `codecs`, `order`, `fill_value`, `_FillValue`, `missing_value`,"
        " `scale_factor`, `add_offset`, `_Unsigned`, `units`, `calendar`, `attributes`; in the"
        " layouts `chunks` and `refs` also `shape` and `dims`.",
    )
    create_branch: bool = _of_a_commit(
        "createBranch",
        default=False,
        help="Creates `branch` from the newest snapshot of `main` if it does not exist.",
    )
    message: str | None = _of_a_commit(
        "message",
        shown_default="a description of the write",
        help="Message of the commit.",
    )
    metadata: Mapping[str, Any] | None = _of_a_commit(
        "metadata",
        shown_default="none",
        help="Properties of the snapshot, for programs.",
    )
    on_conflict: Literal["rebase", "fail"] = _of_a_commit(
        "onConflict",
        default="rebase",
        help="If the branch has moved during the write: `rebase` commits the write on top of the"
        " other commits, `fail` raises a `ConflictError`.",
    )
    resolve: Literal["ours", "theirs"] | None = _option(
        "resolve",
        shown_default="an error",
        help="Values of cells (in `layout=chunks` and `refs`: chunks) that another write changed"
        " as well: `ours` keeps those of this write, `theirs` those of the other.",
    )
    merge_schema: bool = _option(
        "mergeSchema",
        default=False,
        help="Whether an append may add variables that the group does not have. Variables that"
        " `encoding` names may be added without it.",
        layouts=("cells",),
    )
    replace_where: str | None = option(
        "replaceWhere",
        calls=("write",),
        shown_type="SQL condition on dimensions",
        shown_default="the whole group",
        help="With mode `overwrite`: replaces only the cells of this region, such as"
        " `time >= '2024-07-01' AND time < '2024-07-02'`, by the rows, which must be in it. Cells"
        " of the region without a row become missing.",
        layouts=("cells",),
    )
    min_density: float = _option(
        "minDensity",
        shown_type="number from 0 to 1",
        parse=parse_fraction,
        default=0.01,
        help="Refuses a write whose rows cover less than this fraction of the grid that their"
        " coordinates span, such as points and tracks.",
        layouts=("cells",),
    )
    txn_app_id: str | None = _of_a_commit(
        "txnAppId",
        help="With `txnVersion`: a version that this application has already committed is"
        " skipped, so that a job can be repeated; the result and the log (WARN) name the skipped"
        " version. An older version that was not committed, such as a backfill, is written; if"
        " snapshots have expired, so that this cannot be determined, it is refused.",
    )
    txn_version: int | None = option(
        "txnVersion",
        calls=("write", "virtualize", *CHANGING),
        parse=parse_whole_number,
        help="Version of the application's work, see `txnAppId`.",
    )
    spec_version: int = option(
        "specVersion",
        calls=WRITING,
        shown_type="`2`, `1`",
        parse=parse_spec_version,
        default=2,
        shown_default="`2`",
        help="Version of the Icechunk specification for a repository that the write creates.",
    )
    rows_per_unit: int = 2_000_000
    """Approximate number of rows of a unit, the chunks of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest(WriteOptions):
    """The parsed and checked options of a write, its location, and Spark's handling of the rows."""

    path: str = option_of(ReadRequest, "path")
    storage_client: Literal["auto", "obstore", "fsspec"] = option_of(ReadRequest, "storage_client")
    storage_options: Mapping[str, str] = option_of(ReadRequest, "storage_options")
    credentials: Credentials | None = option_of(ReadRequest, "credentials")  # noqa: RUF009 - a field
    virtual_authorize: tuple[str, ...] = option_of(ReadRequest, "virtual_authorize")
    virtual_storage_options: Mapping[str, str] = option_of(ReadRequest, "virtual_storage_options")
    virtual_credentials: Credentials | None = option_of(ReadRequest, "virtual_credentials")  # noqa: RUF009 - a field
    distribution: Literal["hash", "none"] = _option(
        "distribution",
        default="hash",
        help="`hash` shuffles the rows by chunk; `none` skips the shuffle for rows that are"
        " grouped by chunk already (a chunk with rows in two tasks is an error).",
    )
    compute_once: Literal["auto", "true", "false"] = _option(
        "computeOnce",
        default="auto",
        help="Whether rows are kept on executors, in memory and on disk, between the two passes of"
        " a write; `auto` keeps those behind a shuffle or a Python function, and those that are not"
        " deterministic.",
        layouts=("cells",),
    )
    max_unplanned_bytes: int = _option(
        "maxUnplannedBytes",
        has_keyword=False,
        shown_type="size, such as `256m`",
        parse=parse_byte_size,
        default=256 * 2**20,
        shown_default="`256m`",
        help="Maximum size of a write without `icechunk_spark.register(spark)`, which one process"
        " assembles.",
    )
    rewrite_manifests_every: int | None = option(
        "rewriteManifestsEvery",
        calls=("writeStream",),
        shown_default="never",
        help="Streams only: rewrites the manifests after this number of batches, since each"
        " commit adds manifests.",
    )
