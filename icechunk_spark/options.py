"""Every option of the data source, declared once: name, type, default, help and parser.

Users of array connectors have lost days to options that were silently ignored, so nothing here is
ignored silently.

Rules of this file
------------------
1. An option exists if and only if it stands in :data:`OPTIONS`. Parsing, defaults, error texts and
   the table in the README all come from there.
2. Names ignore case, ``-`` and ``_``: Spark hands them over in lower case anyway, and users come
   from tools that spell them in each of the three ways.
3. An unknown option is an error that names the nearest known one. Only what Spark itself adds for
   tables and views is let through (:data:`SPARK_OPTIONS`).
4. Options that exclude one another, and options that mean nothing for the chosen ``layout`` or
   metadata table, are errors as well.
5. No value of a ``storage.*`` option enters a message or a ``repr``: it may be a credential.
6. Only the standard library and our own errors are imported: this runs in Spark's planner.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from icechunk_format.errors import InvalidInputError

Use = Literal["read", "write"]
Parser = Callable[[str, str], Any]

LAYOUTS: Final = ("cells", "chunks", "refs", "summary")

#: Names of the metadata tables, as ``path#name`` or as the option ``table``.
METADATA_TABLES: Final = (
    "snapshots",
    "history",
    "refs",
    "groups",
    "variables",
    "manifests",
    "chunks",
    "operations",
    "changes",
)

# The tables about one version, and those of them about its nodes.
_OF_NODES: Final = ("groups", "variables", "manifests", "chunks")
_OF_VERSION: Final = ("history", *_OF_NODES)

#: What Spark itself puts among the options of tables, views and streams (compared after folding).
SPARK_OPTIONS: Final = frozenset(
    {
        "owner",
        "location",
        "provider",
        "comment",
        "collation",
        "external",
        "ismanagedlocation",
        "tabletype",
        "paths",
        "checkpointlocation",
        "serialization.format",
        "mergeschema",
    }
)

# Spark repeats the options of CREATE TABLE under "option." when it makes the table.
_SPARK_PREFIXES: Final = ("option.",)

# Words that mean something only behind "storage.": newcomers leave the prefix out.
_STORAGE_WORDS: Final = frozenset(
    {
        "key",
        "secret",
        "token",
        "anon",
        "region",
        "endpoint",
        "endpointurl",
        "profile",
        "accesskeyid",
        "secretaccesskey",
        "sessiontoken",
        "awsaccesskeyid",
        "awssecretaccesskey",
        "awssessiontoken",
        "awsregion",
        "accountname",
        "accountkey",
        "skipsignature",
    }
)


def fold_name(name: str) -> str:
    """Return `name` as options are compared: without case, ``-`` and ``_``."""
    return name.strip().lower().replace("-", "").replace("_", "")


# --- parsers: (documented option name, text) -> value -----------------------------------------


def _text(name: str, text: str) -> str:
    value = text.strip()
    if not value:
        raise InvalidInputError(
            f"option '{name}' is empty: give a value or leave the option out", option=name
        )
    return value


def _boolean(name: str, text: str) -> bool:
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise InvalidInputError(
            f"option '{name}' must be true or false, but is {text!r}", option=name, value=text
        )
    return value == "true"


def _choice(*allowed: str) -> Parser:
    def parse(name: str, text: str) -> str:
        value = text.strip().lower()
        if value not in allowed:
            nearest = difflib.get_close_matches(value, allowed, n=1)
            hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
            raise InvalidInputError(
                f"option '{name}' must be {_listed(allowed, 'or')}, but is {text!r}{hint}",
                option=name,
                value=text,
                allowed=allowed,
            )
        return value

    return parse


_NUMBER = re.compile(r"[0-9][0-9_]*")


def _positive_int(name: str, text: str) -> int:
    value = text.strip()
    if not _NUMBER.fullmatch(value) or not 0 < int(value) < 2**63:
        raise InvalidInputError(
            f"option '{name}' must be a whole number above 0, such as 4000000, but is {text!r}",
            option=name,
            value=text,
        )
    return int(value)


_SIZE = re.compile(r"([0-9][0-9_]*)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_FACTORS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _byte_size(name: str, text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) * _SIZE_FACTORS[found[2].lower()] if found else 0
    if not 0 < size < 2**63:
        raise InvalidInputError(
            f"option '{name}' must be a size in bytes above 0, such as 67108864, 512k, 64m or 1g,"
            f" but is {text!r}",
            option=name,
            value=text,
        )
    return size


def _instant(name: str, text: str) -> datetime:
    """Parse an ISO-8601 instant; one without a zone is UTC, and a date alone is its midnight."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInputError(
            f"option '{name}' must be an ISO-8601 instant such as 2024-07-01T12:00:00Z"
            f" (without a zone it is taken as UTC), but is {text!r}",
            option=name,
            value=text,
        ) from None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _names(name: str, text: str) -> tuple[str, ...]:
    """Parse ``a,b``, or a JSON list for names that hold a comma."""
    value = text.strip()
    if value.startswith("["):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, list) or not all(isinstance(item, str) for item in parsed):
            raise InvalidInputError(
                f"option '{name}' must be names separated by commas, or a JSON list of strings"
                f' such as ["a", "b"], but is {text!r}',
                option=name,
                value=text,
            )
        names = tuple(parsed)
    else:
        names = tuple(part.strip() for part in value.split(","))
    if not names or not all(names):
        raise InvalidInputError(
            f"option '{name}' must be names separated by commas, such as 'a,b', but is {text!r}",
            option=name,
            value=text,
        )
    twice = sorted({item for item in names if names.count(item) > 1})
    if twice:
        raise InvalidInputError(
            f"option '{name}' names {_listed(twice)} more than once", option=name, value=text
        )
    return names


def _url_prefixes(name: str, text: str) -> tuple[str, ...]:
    prefixes = _names(name, text)
    bad = [prefix for prefix in prefixes if "://" not in prefix]
    if bad:
        raise InvalidInputError(
            f"option '{name}' must be URL prefixes separated by commas, such as"
            f" 's3://bucket/folder/', but {_listed(bad)} has no '://'",
            option=name,
            value=text,
        )
    return prefixes


_SIZE_OF = re.compile(r"\s*([^=]+?)\s*=\s*([0-9][0-9_]*)\s*")


def _sizes(name: str, text: str) -> dict[str, int]:
    """Parse ``time=24,latitude=180``, or the same as a JSON object."""
    sizes: dict[str, Any] = {}
    if text.strip().startswith("{"):
        sizes = _json_object(name, text)
    else:
        for part in text.split(","):
            found = _SIZE_OF.fullmatch(part)
            if found is None or found[1] in sizes:
                sizes = {}
                break
            sizes[found[1]] = int(found[2])
    usable = all(type(size) is int and 0 < size < 2**63 for size in sizes.values())
    if not sizes or not usable:
        raise InvalidInputError(
            f"option '{name}' must be sizes above 0 by dimension, such as"
            f" 'time=24,latitude=180', each dimension once, but is {text!r}",
            option=name,
            value=text,
        )
    return sizes


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(
            f'option \'{name}\' must be a JSON object such as {{"name": "value"}}, but'
            f" {text!r} is no JSON: {error}",
            option=name,
            value=text,
        ) from None
    if not isinstance(value, dict):
        raise InvalidInputError(
            f'option \'{name}\' must be a JSON object such as {{"name": "value"}}, but is {text!r}',
            option=name,
            value=text,
        )
    return value


def _json_of_objects(name: str, text: str) -> dict[str, dict[str, Any]]:
    value = _json_object(name, text)
    for key, item in value.items():
        if not isinstance(item, dict):
            raise InvalidInputError(
                f"option '{name}' must hold one JSON object per variable, such as"
                f' {{"t2m": {{"dtype": "float32"}}}}, but {key!r} is {json.dumps(item)}',
                option=name,
                variable=key,
            )
    return value


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(
            f"option '{name}' must be a number from 0 to 1, such as 0.01, but is {text!r}",
            option=name,
            value=text,
        )
    return value


def _whole_number(name: str, text: str) -> int:
    value = text.strip()
    if not _NUMBER.fullmatch(value) or int(value) >= 2**63:
        raise InvalidInputError(
            f"option '{name}' must be a whole number from 0, but is {text!r}",
            option=name,
            value=text,
        )
    return int(value)


def _spec_version(name: str, text: str) -> int:
    return int(_choice("1", "2")(name, text))


# --- the table of options ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, or with a name ending in ``*`` a family of options that share a prefix."""

    name: str
    """The documented spelling."""
    attribute: str
    """The attribute of :class:`ReadOptions` (or of the write options) that takes the value."""
    type_text: str
    """The type, in words for people."""
    help: str
    """One line that says what the option does."""
    write_help: str = ""
    """The same line for writing, where it differs."""
    parse: Parser = _text
    default: Any = None
    default_text: str = ""
    """The default in words for people; empty where there is none."""
    aliases: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ("read",)
    layouts: tuple[str, ...] = LAYOUTS
    """The layouts for which the option means something."""
    tables: tuple[str, ...] = ()
    """The metadata tables for which the option means something."""

    @property
    def is_prefix(self) -> bool:
        """Whether this declares a family such as ``storage.*``."""
        return self.name.endswith(".*")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The documented name and the aliases."""
        return (self.name, *self.aliases)


_BOTH: Final[tuple[Use, ...]] = ("read", "write")
_WRITE: Final[tuple[Use, ...]] = ("write",)
_VALUES: Final = ("cells", "chunks", "summary")
_TABULAR: Final = ("cells", "summary")

OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="path",
        attribute="path",
        type_text="URL or local path",
        help="Root of the repository: a local path, `file://`, `s3://`, `gs://`, `az://`,"
        " `abfs://`, `http(s)://` (read only), or any URL that fsspec opens."
        " Usually given as `load(path)`.",
        uses=_BOTH,
        tables=METADATA_TABLES,
    ),
    Option(
        name="branch",
        attribute="branch",
        type_text="name",
        default_text="`main`",
        help="Branch whose newest snapshot is read.",
        write_help="Branch to commit to.",
        uses=_BOTH,
        tables=_OF_VERSION,
    ),
    Option(name="tag", attribute="tag", type_text="name", help="Tag to read.", tables=_OF_VERSION),
    Option(
        name="snapshot",
        attribute="snapshot",
        type_text="snapshot id",
        aliases=("snapshot-id", "versionAsOf"),
        help="Snapshot to read, by its id.",
        tables=_OF_VERSION,
    ),
    Option(
        name="asOf",
        attribute="as_of",
        type_text="ISO-8601 instant",
        aliases=("timestampAsOf", "as-of-timestamp"),
        parse=_instant,
        help="Reads the newest snapshot of the branch at or before this instant."
        " Without a zone it is taken as UTC.",
        tables=_OF_VERSION,
    ),
    Option(
        name="storage.client",
        attribute="storage_client",
        type_text="`auto`, `obstore`, `fsspec`",
        parse=_choice("auto", "obstore", "fsspec"),
        default="auto",
        default_text="`auto`",
        help="Client for the object store; `auto` takes obstore for s3, gs, az and http,"
        " and fsspec for every other URL.",
        uses=_BOTH,
        tables=METADATA_TABLES,
    ),
    Option(
        name="storage.*",
        attribute="storage_options",
        type_text="text",
        help="Settings of the store in fsspec's words: `storage.key`, `storage.secret`,"
        " `storage.token`, `storage.endpoint_url`, `storage.region`, `storage.anon`, …"
        " Without credentials, the environment's are used.",
        uses=_BOTH,
        tables=METADATA_TABLES,
    ),
    Option(
        name="virtual.authorize",
        attribute="virtual_authorize",
        type_text="URL prefixes, comma-separated",
        parse=_url_prefixes,
        default=(),
        default_text="none",
        help="Places from which virtual chunks may be fetched. Nothing else is ever fetched.",
        write_help="Places from which virtual chunks may be fetched when a write changes a part of"
        " one.",
        uses=_BOTH,
        layouts=_VALUES,
    ),
    Option(
        name="virtual.storage.*",
        attribute="virtual_storage_options",
        type_text="text",
        help="Settings of the stores that hold virtual chunks, in the words of `storage.*`.",
        uses=_BOTH,
        layouts=_VALUES,
    ),
    Option(
        name="layout",
        attribute="layout",
        type_text="`cells`, `chunks`, `refs`, `summary`",
        parse=_choice(*LAYOUTS),
        default="cells",
        default_text="`cells`",
        help="What a row is: an array element, a chunk with its data, a chunk reference, or the"
        " statistics of a block.",
        write_help="What a row is: an array element, a chunk with its data, or a chunk reference"
        " (`summary` is for reading).",
        uses=_BOTH,
    ),
    Option(
        name="group",
        attribute="group",
        type_text="node path",
        default_text="the root, or the only group with arrays",
        help="Group to read. Of a metadata table: nodes at or below this group, all by default.",
        write_help="Group to write; it is created where it does not exist.",
        uses=_BOTH,
        tables=_OF_NODES,
    ),
    Option(
        name="variables",
        attribute="variables",
        type_text="names, comma-separated",
        parse=_names,
        default_text="all on the largest set of dimensions",
        help="Variables to read. Fewer columns are the surest way to a faster read.",
    ),
    Option(
        name="coords",
        attribute="coords",
        type_text="names, comma-separated",
        parse=_names,
        default=(),
        default_text="none",
        help="Further coordinates to add as columns, such as a 2-D latitude.",
        layouts=("cells",),
    ),
    Option(
        name="decodeCf",
        attribute="decode_cf",
        type_text="boolean",
        parse=_boolean,
        default=True,
        default_text="`true`",
        help="Decodes times, scale factors, offsets and missing values by the CF conventions;"
        " with `false`, the stored values are read.",
        layouts=_TABULAR,
    ),
    Option(
        name="missingChunks",
        attribute="missing_chunks",
        type_text="`fill`, `skip`",
        parse=_choice("fill", "skip"),
        default="fill",
        default_text="`fill`",
        help="Whether cells of chunks that were never written hold the fill value or are left out.",
        layouts=("cells",),
    ),
    Option(
        name="timestampType",
        attribute="timestamp_type",
        type_text="`ntz`, `utc`",
        parse=_choice("ntz", "utc"),
        default="ntz",
        default_text="`ntz`",
        help="Type of decoded times: TIMESTAMP_NTZ, or with `utc` TIMESTAMP.",
        layouts=_TABULAR,
    ),
    Option(
        name="decoded",
        attribute="decoded",
        type_text="boolean",
        parse=_boolean,
        default=True,
        default_text="`true`",
        help="With `layout=chunks`: whether `data` holds the decoded array (C order, little"
        " endian) or the stored bytes.",
        uses=_BOTH,
        layouts=("chunks",),
    ),
    Option(
        name="block",
        attribute="block",
        type_text="sizes, such as `time=24,latitude=10`",
        default_text="the chunk grid",
        help="With `layout=summary`: the block, in elements per dimension, that one row sums up.",
        layouts=("summary",),
    ),
    Option(
        name="where",
        attribute="where",
        type_text="SQL boolean expression",
        help="Selects rows before they leave Python; conditions on dimensions also decide which"
        " chunks are fetched.",
    ),
    Option(
        name="sel",
        attribute="sel",
        type_text="labels, such as `time=2024-07-01:2024-07-07; latitude=35:45`",
        help="Selects by coordinate labels as xarray does: slices include both ends, one value"
        " must match exactly (see `sel.method`).",
    ),
    Option(
        name="sel.method",
        attribute="sel_method",
        type_text="`exact`, `nearest`",
        parse=_choice("exact", "nearest"),
        default="exact",
        default_text="`exact`",
        help="How one value in `sel` finds its label.",
    ),
    Option(
        name="isel",
        attribute="isel",
        type_text="positions, such as `time=0:24; latitude=10`",
        help="Selects by position along dimensions, as Python slices do.",
    ),
    Option(
        name="pushdown",
        attribute="pushdown",
        type_text="boolean",
        parse=_boolean,
        default=False,
        default_text="`false`",
        help="Takes part in Spark's filter pushdown. Only for a DataFrame that is used once: Spark"
        " (up to 4.3) returns wrong rows when one is used twice. Prefer `where`.",
        layouts=("cells",),
    ),
    Option(
        name="rowsPerPartition",
        attribute="rows_per_partition",
        type_text="integer",
        parse=_positive_int,
        default_text="`4000000`, and more for very many rows",
        help="Rows that a partition should hold, about; it is cut along chunks. Of the metadata"
        " tables `chunks` and `variables`: references that a task reads, `1000000` by default.",
        tables=("variables", "chunks"),
    ),
    Option(
        name="readAheadBytes",
        attribute="read_ahead_bytes",
        type_text="size, such as `64m`",
        parse=_byte_size,
        default=64 * 2**20,
        default_text="`64m`",
        help="Bytes that a task may hold of chunks fetched ahead of their use.",
        layouts=_VALUES,
    ),
    Option(
        name="table",
        attribute="table",
        type_text="name",
        parse=_choice(*METADATA_TABLES),
        help="Metadata table to read instead of arrays; also given as `path#name`.",
        tables=METADATA_TABLES,
    ),
    Option(
        name="from",
        attribute="from_version",
        type_text="branch, tag or snapshot id",
        default_text="the snapshot before `to`",
        help="With the metadata table `changes`: the older version.",
        layouts=(),
        tables=("changes",),
    ),
    Option(
        name="to",
        attribute="to_version",
        type_text="branch, tag or snapshot id",
        default_text="`main`",
        help="With the metadata table `changes`: the newer version.",
        layouts=(),
        tables=("changes",),
    ),
    Option(
        name="dims",
        attribute="dims",
        type_text="names, comma-separated",
        parse=_names,
        default_text="from the columns' metadata, or the existing group",
        help="Dimension columns, in the order of the axes; the other columns are variables.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="chunks",
        attribute="chunks",
        type_text="sizes, such as `time=24,latitude=180`",
        parse=_sizes,
        default_text="the existing arrays', else about 8 MiB a chunk",
        help="Chunk shape of new arrays, in elements per dimension.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="shards",
        attribute="shards",
        type_text="sizes, such as `time=240,latitude=720`",
        parse=_sizes,
        default_text="no sharding",
        help="Shard shape of new arrays: one object holds all `chunks` of a shard.",
        uses=_WRITE,
        layouts=("cells",),
    ),
    Option(
        name="encoding",
        attribute="encoding",
        type_text="JSON object per variable",
        parse=_json_of_objects,
        default_text="from the columns' metadata",
        help="How new arrays are stored, in xarray's words: `dtype`, `chunks`, `shards`,"
        " `compressors`, `_FillValue`, `scale_factor`, `add_offset`, `units`, `calendar`,"
        " `attributes`.",
        uses=_WRITE,
    ),
    Option(
        name="createBranch",
        attribute="create_branch",
        type_text="boolean",
        parse=_boolean,
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
        parse=_json_object,
        default_text="none",
        help="Properties of the snapshot, for programs.",
        uses=_WRITE,
    ),
    Option(
        name="onConflict",
        attribute="on_conflict",
        type_text="`rebase`, `fail`",
        parse=_choice("rebase", "fail"),
        default="rebase",
        default_text="`rebase`",
        help="What to do where the branch moved meanwhile: apply the write on top, if nothing"
        " that it changed was changed there, or give up.",
        uses=_WRITE,
    ),
    Option(
        name="resolve",
        attribute="resolve",
        type_text="`ours`, `theirs`",
        parse=_choice("ours", "theirs"),
        default_text="an error",
        help="Whose chunk stays where both writers wrote one.",
        uses=_WRITE,
    ),
    Option(
        name="distribution",
        attribute="distribution",
        type_text="`hash`, `none`",
        parse=_choice("hash", "none"),
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
        parse=_fraction,
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
        parse=_whole_number,
        help="Version of the application's work, see `txnAppId`.",
        uses=_WRITE,
    ),
    Option(
        name="specVersion",
        attribute="spec_version",
        type_text="`2`, `1`",
        parse=_spec_version,
        default=2,
        default_text="`2`",
        help="Version of the Icechunk specification for a repository that the write creates.",
        uses=_WRITE,
    ),
    Option(
        name="maxUnplannedBytes",
        attribute="max_unplanned_bytes",
        type_text="size, such as `256m`",
        parse=_byte_size,
        default=256 * 2**20,
        default_text="`256m`",
        help="Most that a write without `icechunk_spark.register(spark)` may hold, since it is put"
        " together in one process.",
        uses=_WRITE,
    ),
)

EXCLUSIVE: Final = (("branch", "tag", "snapshot"), ("asOf", "tag"), ("asOf", "snapshot"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one load, parsed and checked; attributes are documented in `OPTIONS`."""

    path: str
    branch: str | None
    tag: str | None
    snapshot: str | None
    as_of: datetime | None
    storage_client: Literal["auto", "obstore", "fsspec"]
    storage_options: Mapping[str, str] = field(repr=False)
    virtual_authorize: tuple[str, ...]
    virtual_storage_options: Mapping[str, str] = field(repr=False)
    layout: Literal["cells", "chunks", "refs", "summary"]
    group: str | None
    variables: tuple[str, ...] | None
    coords: tuple[str, ...]
    decode_cf: bool
    missing_chunks: Literal["fill", "skip"]
    timestamp_type: Literal["ntz", "utc"]
    decoded: bool
    block: str | None
    where: str | None
    sel: str | None
    sel_method: Literal["exact", "nearest"]
    isel: str | None
    pushdown: bool
    rows_per_partition: int | None
    read_ahead_bytes: int
    table: str | None
    from_version: str | None
    to_version: str | None


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of one load.

    Parameters
    ----------
    options
        As Spark hands them over: names in any spelling, values as text.

    Raises
    ------
    InvalidInputError
        An option is unknown, is not an option of reading, has a bad value, is given twice,
        excludes another one, or means nothing for the layout or the metadata table.
    """
    refuse_catalog_table(options)
    given = collect_options(options, use="read")
    _check_exclusive(given)
    values = {
        item.attribute: given.get(item.name, default_of(item))
        for item in OPTIONS
        if "read" in item.uses
    }
    path, table = split_path(require_path(given, options, use="read"))
    if table is not None and values["table"] not in (None, table):
        raise InvalidInputError(
            f"the path names the metadata table '{table}', but option 'table' names"
            f" '{values['table']}': give one of the two",
            option="table",
        )
    values["path"] = path
    values["table"] = table or values["table"]
    parsed = ReadOptions(**values)
    if parsed.table is None:
        check_layout(given, parsed.layout)
    else:
        _check_table(given, parsed.table)
    return parsed


def collect_options(options: Mapping[str, str], *, use: Use) -> dict[str, Any]:
    """Return the given options by documented name, parsed; families come as dictionaries.

    Raises
    ------
    InvalidInputError
        An option is unknown, is not meant for `use`, has a bad value, or is given twice.
    """
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for spelling, text in options.items():
        folded = fold_name(spelling)
        if folded in SPARK_OPTIONS or spelling.startswith(("__", *_SPARK_PREFIXES)):
            continue
        option, suffix = _find(spelling, folded, use)
        if use not in option.uses:
            other = "writing" if use == "read" else "reading"
            raise InvalidInputError(
                f"option '{option.name}' is for {other}, not for"
                f" {'reading' if use == 'read' else 'writing'}: leave it out",
                option=option.name,
            )
        if option.is_prefix:
            given.setdefault(option.name, {})[suffix] = text
            continue
        if option.name in given:
            raise InvalidInputError(
                f"options '{spelled[option.name]}' and '{spelling}' are the same option"
                f" '{option.name}': give one of them",
                option=option.name,
            )
        spelled[option.name] = spelling
        given[option.name] = option.parse(option.name, text)
    return given


def _find(spelling: str, folded: str, use: Use) -> tuple[Option, str]:
    """Return the option that `spelling` names, and what follows the prefix of a family."""
    exact = _BY_FOLDED_NAME.get(folded)
    if exact is not None:
        return exact, ""
    for option in OPTIONS:
        if option.is_prefix and folded.startswith(option.name[:-1]):
            suffix = spelling.strip()[len(option.name) - 1 :].lower()
            if suffix:
                return option, suffix
    if folded in _STORAGE_WORDS or folded.startswith(("fs.s3a.", "fs.gs.", "fs.azure.")):
        word = folded.rpartition(".")[2]
        raise InvalidInputError(
            f"unknown option '{spelling}': settings of the store start with 'storage.', such as"
            f" 'storage.{word if word in _STORAGE_WORDS else 'key'}'; see storage.* among the"
            " options",
            option=spelling,
            nearest="storage.*",
        )
    known = [name for option in OPTIONS if use in option.uses for name in option.spellings]
    by_folded = {fold_name(name): name for name in known}
    nearest = difflib.get_close_matches(folded, list(by_folded), n=1, cutoff=0.6)
    hint = f"did you mean '{by_folded[nearest[0]]}'? " if nearest else ""
    raise InvalidInputError(
        f"unknown option '{spelling}': {hint}Known options are"
        f" {', '.join(option.name for option in OPTIONS if use in option.uses)}",
        option=spelling,
        nearest=by_folded[nearest[0]] if nearest else None,
    )


def default_of(option: Option) -> Any:
    """Return the value of an option that was not given."""
    return {} if option.is_prefix else option.default


def _check_exclusive(given: Mapping[str, Any]) -> None:
    for names in EXCLUSIVE:
        both = [name for name in names if name in given]
        if len(both) > 1:
            advice = (
                "asOf selects a snapshot on a branch, and a tag or snapshot is already one"
                if "asOf" in both
                else "each of them selects the snapshot to read"
            )
            raise InvalidInputError(
                f"options {_listed(both)} exclude one another: {advice}; give only one",
                options=tuple(both),
            )


def check_layout(given: Mapping[str, Any], layout: str) -> None:
    """Refuse options that mean nothing for `layout`."""
    for option in OPTIONS:
        if option.name in given and layout not in option.layouts:
            meant = (
                f"layout {_listed(option.layouts, 'or')}"
                if option.layouts
                else f"the metadata table {_listed(option.tables, 'or')}"
            )
            raise InvalidInputError(
                f"option '{option.name}' means nothing for layout={layout}: it is for {meant}",
                option=option.name,
                layout=layout,
            )


def _check_table(given: Mapping[str, Any], table: str) -> None:
    """Refuse options that mean nothing for a metadata table."""
    allowed = [option.name for option in OPTIONS if table in option.tables]
    for option in OPTIONS:
        if option.name in given and option.name not in allowed:
            hint = (
                f"it is for {_listed(option.tables, 'or')}"
                if option.tables
                else "filter and select columns of the DataFrame instead"
                if option.name in ("where", "sel", "isel", "variables")
                else "it is about the values of arrays"
            )
            raise InvalidInputError(
                f"option '{option.name}' means nothing for the metadata table '{table}': {hint};"
                f" this table takes {', '.join(allowed)}",
                option=option.name,
                table=table,
            )


def refuse_catalog_table(options: Mapping[str, str]) -> None:
    """Fail while a catalog table is made: once made, Spark reads it without any option."""
    if {"provider", "owner"} <= {fold_name(name) for name in options}:
        raise InvalidInputError(
            "a catalog table cannot be read through icechunk, because Spark drops the options of"
            " tables of Python sources, the path included: use CREATE TEMPORARY VIEW v USING"
            " icechunk OPTIONS (path '...') instead of CREATE TABLE",
            option="path",
        )


def require_path(given: Mapping[str, Any], options: Mapping[str, str], *, use: Use) -> str:
    """Return the one path, from ``path`` or from the JSON list that ``load([...])`` makes."""
    paths: list[Any] = [given["path"]] if "path" in given else []
    for name, text in options.items():
        if fold_name(name) == "paths":
            try:
                listed = json.loads(text)
            except ValueError:
                listed = [text]
            paths += [item for item in listed if item not in paths]
    if len(paths) == 1 and isinstance(paths[0], str) and paths[0].strip():
        return paths[0].strip()
    if paths:
        advice = (
            "one load reads one repository: load each path by itself and union the DataFrames"
            if use == "read"
            else "one write fills one repository: write to each path by itself"
        )
        raise InvalidInputError(f"{len(paths)} paths were given, and {advice}", paths=len(paths))
    if use == "write":
        raise InvalidInputError(
            "option 'path' is missing: write df.write.format('icechunk').save(path)",
            option="path",
        )
    raise InvalidInputError(
        "option 'path' is missing: write spark.read.format('icechunk').load(path), or in SQL"
        " CREATE TEMPORARY VIEW v USING icechunk OPTIONS (path '...'); Spark drops the options of"
        " a CREATE TABLE ... USING icechunk, so tables of the catalog cannot be read",
        option="path",
    )


def split_path(path: str) -> tuple[str, str | None]:
    """Split ``path#snapshots`` into the path and the metadata table.

    A ``#`` may also belong to the name of a folder, so only a known name of a table is split
    off, and only a near miss of one is refused.
    """
    root, mark, name = path.rpartition("#")
    if not mark or not root:
        return path, None
    folded = name.lower()
    if folded in METADATA_TABLES:
        return root, folded
    nearest = difflib.get_close_matches(folded, METADATA_TABLES, n=1, cutoff=0.75)
    if nearest:
        raise InvalidInputError(
            f"path {path!r} ends in '#{name}': the metadata tables are"
            f" {', '.join(METADATA_TABLES)}; did you mean '#{nearest[0]}'?",
            option="path",
        )
    return path, None


def _listed(names: tuple[str, ...] | list[str], joiner: str = "and") -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {joiner} {quoted[-1]}"


_BY_FOLDED_NAME: Final[dict[str, Option]] = {
    fold_name(name): option
    for option in OPTIONS
    if not option.is_prefix
    for name in option.spellings
}


# --- the README's table -----------------------------------------------------------------------


def option_table_markdown(use: Use = "read") -> str:
    """Return the README's table of the options for `use`, one line per option."""
    return "\n".join(_table_lines(use)) + "\n"


def _table_lines(use: Use) -> Iterator[str]:
    yield "| option | type | default | meaning |"
    yield "|---|---|---|---|"
    for option in OPTIONS:
        if use in option.uses:
            names = f"`{option.name}`"
            if option.aliases:
                names += f" (also {', '.join(f'`{alias}`' for alias in option.aliases)})"
            default = option.default_text or "–"
            meaning = (use == "write" and option.write_help) or option.help
            yield f"| {names} | {option.type_text} | {default} | {meaning} |"
