"""Declares the options of reading, in the order of the manual's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, get_args

from icechunk_format.options.declare import (
    CHANGING,
    OF_BLOCKS,
    TABLE_NAMES,
    WRITING,
    Call,
    Layout,
    option,
)
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.options.values import (
    Choice,
    parse_byte_size,
    parse_credentials,
    parse_url_prefixes,
)
from icechunk_format.storage.credentials import Credentials

_VALUES: Final = ("cells", "chunks", "summary")

_EVERY_CALL: Final[tuple[Call, ...]] = get_args(Call)
_SELECTING: Final[tuple[Call, ...]] = ("read", "readStream", "sample", "zonal", "mirror")
_OF_REGIONS: Final[tuple[Call, ...]] = (*_SELECTING, *CHANGING, *OF_BLOCKS)
_FETCHING: Final[tuple[Call, ...]] = (*_OF_REGIONS, "verify", "merge", *WRITING)
_WITH_HISTORY: Final[tuple[Call, ...]] = (
    *("read", "sample", "zonal", "mirrored"),
    *("rechunk", "map_blocks", *OF_BLOCKS, "reduce"),
)

# The tables about one snapshot, and those of them about its nodes.
_TABLES: Final = METADATA_TABLES.values()
_OF_NODES: Final = tuple(table.name for table in _TABLES if table.scope == "group")
_OF_SNAPSHOT: Final = tuple(t.name for t in _TABLES if t.scope in ("snapshot", "group"))
_OF_CHANGES: Final = tuple(table.name for table in _TABLES if table.scope == "changes")
_CUT: Final = tuple(table.name for table in _TABLES if table.cut != "nowhere")

# Options that hold for the same calls, layouts and tables.
_of_history = partial(option, calls=_WITH_HISTORY, tables=_OF_SNAPSHOT)
_of_storage = partial(option, calls=_EVERY_CALL, tables=TABLE_NAMES)
_of_virtual_chunks = partial(option, calls=_FETCHING, layouts=_VALUES)
_of_selecting = partial(option, calls=_SELECTING)
_of_regions = partial(option, calls=_OF_REGIONS)
_of_decoding = partial(_of_selecting, layouts=("cells", "summary"))
_of_two_snapshots = partial(
    option,
    calls=("read",),
    shown_type="branch, tag or snapshot id",
    layouts=(),
    tables=_OF_CHANGES,
)
_of_changing = partial(option, layouts=("cells", "chunks", "refs"))
_of_a_stream = partial(_of_changing, calls=("readStream",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The options of one load, parsed and checked."""

    path: str = option(
        "path",
        calls=tuple(call for call in _EVERY_CALL if call != "mirrored"),
        has_keyword=False,
        shown_type="URL or local path",
        help="Root of the repository: a local path, `file://`, `s3://`, `gs://`, `az://`,"
        " `abfs://`, `http(s)://` (read only), or any URL that fsspec opens."
        " Usually given as `load(path)`.",
        tables=TABLE_NAMES,
    )
    branch: str | None = option(
        "branch",
        calls=("read", "readStream", "sample", "zonal", *WRITING, *CHANGING, *OF_BLOCKS),
        shown_type="name",
        shown_default="`main`",
        help="Branch whose newest snapshot is read.",
        write_help="Branch to commit to.",
        tables=_OF_SNAPSHOT,
    )
    tag: str | None = _of_history(
        "tag",
        shown_type="name",
        help="Tag to read. `versionAsOf` also takes one.",
    )
    snapshot: str | None = _of_history(
        "snapshot",
        shown_type="snapshot id",
        aliases=("snapshot-id", "versionAsOf"),
        help="Snapshot to read, by its id. `versionAsOf` also takes a tag: any value that is not"
        " an id.",
    )
    as_of: datetime | None = _of_history(  # noqa: RUF009 - a field
        "asOf",
        shown_type="ISO 8601 timestamp",
        aliases=("timestampAsOf", "as-of-timestamp"),
        help="Reads the newest snapshot of the branch at or before this time. A time without a"
        " zone is UTC.",
    )
    storage_client: Literal["auto", "obstore", "fsspec"] = _of_storage(
        "storage.client",
        default="auto",
        help="Client for the object store; `auto` takes obstore for s3, gs, az and http,"
        " and fsspec for every other URL.",
    )
    storage_options: Mapping[str, str] = _of_storage(
        "storage.*",
        help="Settings of the storage, with the names of fsspec: `storage.key`, `storage.secret`,"
        " `storage.token`, `storage.endpoint_url`, `storage.region`, `storage.anon`, …"
        " Without credentials, the environment's are used.",
    )
    credentials: Credentials | None = _of_storage(  # noqa: RUF009 - a field
        "credentials",
        shown_type="name",
        parse=parse_credentials,
        help="Name of the credentials of the storage, which `icechunk_spark.register`, Spark's"
        " configuration or the environment has. SQL, plans and logs contain only the name.",
    )
    virtual_authorize: tuple[str, ...] = _of_virtual_chunks(
        "virtual.authorize",
        shown_type="URL prefixes, comma-separated",
        parse=parse_url_prefixes,
        default=(),
        help="URL prefixes from which virtual chunks may be fetched, and endpoints that their"
        " containers may use. Other locations are refused.",
        write_help="URL prefixes from which virtual chunks may be fetched when a write changes a"
        " part of one; with `layout=refs`, prefixes for which a virtual chunk container is"
        " added.",
    )
    virtual_storage_options: Mapping[str, str] = _of_virtual_chunks(
        "virtual.storage.*",
        help="Settings of the storages that hold virtual chunks, with the names of `storage.*`.",
    )
    virtual_credentials: Credentials | None = _of_virtual_chunks(  # noqa: RUF009 - a field
        "virtual.credentials",
        shown_type="name",
        parse=parse_credentials,
        help="Name of the credentials of the storages that hold virtual chunks.",
    )
    layout: Layout = option(  # noqa: RUF009 - a field
        "layout",
        calls=("read", "readStream", "write", "writeStream"),
        default="cells",
        help="Meaning of a row: an array element, a chunk with its data, a chunk reference, or the"
        " statistics of a block.",
        write_help="Meaning of a row: an array element, a chunk with its data, or a chunk reference"
        " (`summary` is for reading).",
    )
    group: str | None = option(
        "group",
        calls=(*_OF_REGIONS, *WRITING),
        shown_type="node path",
        shown_default="the root, or the only group with arrays",
        help="Group to read. Of a metadata table: nodes at or below this group, all by default.",
        write_help="Group to write; it is created if it does not exist. The default is the only"
        " group with arrays if it has one of the columns, otherwise the root.",
        tables=_OF_NODES,
    )
    variables: tuple[str, ...] | None = _of_regions(
        "variables",
        shown_default="all on the largest set of dimensions",
        help="Variables to read. Fewer columns make a read faster.",
    )
    coords: tuple[str, ...] = option(
        "coords",
        calls=("read", "readStream", "mirror"),
        default=(),
        help="Further coordinates to add as columns, such as a 2-D latitude.",
        layouts=("cells",),
    )
    decode_cf: bool = _of_decoding(
        "decodeCf",
        default=True,
        help="Decodes times, scale factors, offsets and missing values by the CF conventions;"
        " with `false`, the stored values are read.",
    )
    missing_chunks: Literal["fill", "skip"] = option(
        "missingChunks",
        calls=("read", "readStream", "sample", "mirror"),
        default="fill",
        help="Whether cells of chunks that were never written hold the fill value or are left out.",
        layouts=("cells",),
    )
    timestamp_type: Literal["ntz", "utc"] = _of_decoding(
        "timestampType",
        default="ntz",
        help="Type of decoded times: TIMESTAMP_NTZ, or with `utc` TIMESTAMP.",
    )
    decoded: bool = option(
        "decoded",
        calls=("read", "readStream", "write", "writeStream"),
        default=True,
        help="With `layout=chunks`: whether `data` holds the decoded array (C order, little"
        " endian) or the stored bytes.",
        layouts=("chunks",),
    )
    block: Mapping[str, int] | None = option(
        "block",
        shown_type="sizes, such as `time=24,latitude=10`",
        shown_default="the chunk grid",
        help="With `layout=summary`: the block, in elements per dimension, that one row"
        " summarizes.",
        layouts=("summary",),
    )
    where: str | None = option(
        "where",
        calls=("read", "readStream", "zonal", "mirror", "delete"),
        shown_type="SQL boolean expression",
        help="Selects rows before they leave Python; conditions on dimensions also decide which"
        " chunks are fetched. Coordinates need not be columns.",
    )
    sel: str | Mapping[str, Any] | None = _of_regions(
        "sel",
        shown_type="labels, such as `time=2024-07-01:2024-07-07; latitude=35:45`",
        help="Selects by coordinate labels as xarray does: slices include both ends, one value"
        " must match exactly (see `sel.method`).",
    )
    sel_method: Literal["exact", "nearest"] = option(
        "sel.method",
        calls=(*_SELECTING, "delete"),
        default="exact",
        help="How one value in `sel` finds its label; `nearest` takes the higher one at a tie.",
    )
    isel: str | Mapping[str, Any] | None = _of_regions(
        "isel",
        shown_type="positions, such as `time=0:24; latitude=10`",
        help="Selects by position along dimensions, as Python slices do.",
    )
    rows_per_partition: int | None = option(
        "rowsPerPartition",
        calls=("read", "readStream", "mirror"),
        shown_default="`4000000`, and more for very many rows",
        help="Approximate number of rows of a partition, which consists of whole chunks. Of the"
        " metadata tables `chunks` and `variables`: references that a task reads, `1000000` by"
        " default.",
        tables=_CUT,
    )
    read_ahead_bytes: int = _of_selecting(
        "readAheadBytes",
        shown_type="size, such as `64m`",
        parse=parse_byte_size,
        default=64 * 2**20,
        shown_default="`64m`",
        help="Bytes that a task may hold of chunks fetched ahead of their use.",
        layouts=_VALUES,
    )
    table: str | None = option(
        "table",
        shown_type="name",
        parse=Choice(*TABLE_NAMES),
        help="Metadata table to read instead of arrays; also given as `path#name`.",
        tables=TABLE_NAMES,
    )
    from_version: str | None = _of_two_snapshots(
        "from",
        shown_default="the snapshot before `to`",
        help="With the metadata table `changes`: the older snapshot.",
    )
    to_version: str | None = _of_two_snapshots(
        "to",
        shown_default="`main`",
        help="With the metadata table `changes`: the newer snapshot.",
    )
    changes_since: str | None = _of_changing(
        "changesSince",
        calls=("read",),
        shown_type="branch, tag or snapshot id",
        help="Reads only what changed since this snapshot: rows that were written, and with"
        " `changeColumns` those that were deleted.",
    )
    changes_by: Literal["version", "snapshot"] = _of_changing(
        "changesBy",
        calls=("read",),
        default="version",
        help="`version` reads the differences of two snapshots, each row at most once; `snapshot`"
        " reads the changes of each snapshot in between. In a stream, the two are the first and"
        " the last snapshot of a batch.",
    )
    change_columns: bool = _of_changing(
        "changeColumns",
        default=False,
        help="Adds `_change` (`written` or `deleted`), `_snapshot_id` and `_committed_at`, and the"
        " deleted rows: their key, and NULL in all other columns.",
    )
    on_history_change: Literal["fail", "restart"] = _of_changing(
        "onHistoryChange",
        default="fail",
        help="If the older snapshot is not an ancestor of the newer one (the branch was reset, a"
        " commit amended) or has expired: `fail` raises an error; `restart` reads the"
        " differences of the two, or all rows if the older one has expired.",
    )
    starting_from: str | None = _of_a_stream(
        "startingFrom",
        shown_type="`earliest`, `latest`, a tag, a snapshot id, an ISO 8601 timestamp",
        shown_default="`earliest`",
        help="Streams only: where a new stream begins. `earliest` reads the whole table first,"
        " then the changes; all other values read only the changes after that snapshot.",
    )
    max_snapshots_per_trigger: int | None = _of_a_stream(
        "maxSnapshotsPerTrigger",
        shown_default="no limit",
        help="Streams only: the maximum number of snapshots of a batch.",
    )
    max_chunks_per_trigger: int | None = _of_a_stream(
        "maxChunksPerTrigger",
        shown_default="no limit",
        help="Streams only: the maximum number of changed chunks of a batch, which has at least"
        " one snapshot.",
    )
