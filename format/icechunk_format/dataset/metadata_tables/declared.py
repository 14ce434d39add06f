"""Declares the metadata tables: their names, rows and columns.

The schema that Spark shows, the comment of each column and the table in the manual are made from
these declarations.

Rules of this file
------------------
1. Times are instants in UTC, in microseconds. Sizes are bytes. Ids are texts as all Icechunk tools
   show them. Coordinates of chunks and indices count from 0; ends are exclusive.
2. JSON is text, for Spark's ``from_json`` and ``get_json_object``, since users choose its shape.
3. Every column is nullable. The text of a column says what NULL means: none, or not known.
4. Types are those that Spark has; lists and structs are spelled as Spark spells them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

Scope = Literal["repository", "version", "group", "changes"]
"""What a table is about: the repository, a version with its history, the nodes of a version at or
below a group, or the changes between two versions."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_TEXT: Final = pa.string()
_NUMBER: Final = pa.int64()
_FLAG: Final = pa.bool_()


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind)


_TEXTS: Final = _list_of(_TEXT)
_NUMBERS: Final = _list_of(_NUMBER)
EXTENT: Final = pa.struct(
    [pa.field("path", _TEXT), pa.field("start", _NUMBERS), pa.field("stop", _NUMBERS)]
)
"""A box of chunk coordinates of one array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataColumn:
    """One column of a metadata table; ``about`` says what it holds, with the unit."""

    name: str
    arrow_type: pa.DataType
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTable:
    """One metadata table.

    Parameters
    ----------
    name
        Its name, as in ``path#name``.
    row
        What a row is.
    scope
        What it is about; decides which options it takes.
    """

    name: str
    row: str
    scope: Scope
    columns: tuple[MetadataColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches."""
        return pa.schema([pa.field(c.name, c.arrow_type, nullable=True) for c in self.columns])


def _table(
    name: str, row: str, scope: Scope, *columns: tuple[str, pa.DataType, str]
) -> MetadataTable:
    made = (MetadataColumn(name=n, arrow_type=kind, about=about) for n, kind, about in columns)
    return MetadataTable(name=name, row=row, scope=scope, columns=tuple(made))


_VERSION_COLUMNS: Final = (
    ("snapshot_id", _TEXT, "Id of the snapshot."),
    ("parent_id", _TEXT, "Id of the snapshot before it; NULL for the first of a history."),
    ("committed_at", _INSTANT, "When it was committed, by the clock of the writer."),
    ("message", _TEXT, "Commit message."),
    ("metadata", _TEXT, "Properties of the snapshot, a JSON object."),
)

SNAPSHOTS: Final = _table(
    "snapshots",
    "a snapshot of the repository, on a branch or not; the newest first",
    "repository",
    *_VERSION_COLUMNS,
    ("branches", _TEXTS, "Names of the branches whose tip it is."),
    ("tags", _TEXTS, "Names of the tags that point to it."),
    (
        "pruned_logs",
        _NUMBER,
        "Number of expired ancestors whose changes are counted with this snapshot's.",
    ),
)

HISTORY: Final = _table(
    "history",
    "a snapshot in the history of the chosen version; the newest first",
    "version",
    ("position", _NUMBER, "Commits between it and the chosen version: 0 for that version."),
    *_VERSION_COLUMNS,
)

REFS: Final = _table(
    "refs",
    "a branch or a tag, deleted tags included",
    "repository",
    ("name", _TEXT, "Name of the branch or tag."),
    ("type", _TEXT, "`branch`, `tag`, or `deleted tag`, whose name is never given out again."),
    ("snapshot_id", _TEXT, "Snapshot that it points to; NULL for a deleted tag."),
    ("committed_at", _INSTANT, "When that snapshot was committed; NULL for a deleted tag."),
)

GROUPS: Final = _table(
    "groups",
    "a group",
    "group",
    ("path", _TEXT, "Path of the group; `/` is the root."),
    ("name", _TEXT, "Last part of the path; empty for the root."),
    ("array_count", _NUMBER, "Number of arrays directly in it."),
    ("group_count", _NUMBER, "Number of groups directly in it."),
    ("attributes", _TEXT, "User attributes, a JSON object; NULL where the document is damaged."),
    ("problem", _TEXT, "Why its metadata document cannot be read; NULL where it can."),
)

VARIABLES: Final = _table(
    "variables",
    "an array",
    "group",
    ("path", _TEXT, "Path of the array."),
    ("group", _TEXT, "Path of the group that it is in."),
    ("name", _TEXT, "Last part of its path."),
    ("dims", _TEXTS, "Names of its dimensions; `dim_0`, `dim_1`, ... where they have none."),
    ("shape", _NUMBERS, "Elements along each dimension."),
    (
        "chunks",
        _NUMBERS,
        "Elements of a chunk along each dimension, of an inner chunk under sharding; NULL where"
        " chunks differ in size.",
    ),
    ("shards", _NUMBERS, "Elements of a shard along each dimension; NULL without sharding."),
    ("dtype", _TEXT, "Stored data type, in the words of Zarr; JSON where it has parameters."),
    ("codecs", _TEXT, "Codecs, a JSON list."),
    ("fill_value", _TEXT, "What missing chunks hold, as JSON."),
    ("units", _TEXT, "Attribute `units`."),
    ("standard_name", _TEXT, "Attribute `standard_name`."),
    ("long_name", _TEXT, "Attribute `long_name`."),
    ("attributes", _TEXT, "All user attributes, a JSON object."),
    (
        "is_coordinate",
        _FLAG,
        "Whether it labels a dimension, or another array or its group names it as coordinate.",
    ),
    (
        "is_column",
        _FLAG,
        "Whether it is a column where nobody names variables; others come when named in"
        " `variables` or `coords`. NULL where variables have to be named.",
    ),
    ("total_chunks", _NUMBER, "Chunks of the grid (shards under sharding), stored or not."),
    (
        "stored_chunks",
        _NUMBER,
        "Chunks that exist: native, inline and virtual ones, and any outside of a shrunk grid.",
    ),
    ("virtual_chunks", _NUMBER, "Those of `stored_chunks` that lie outside of the repository."),
    ("missing_chunks", _NUMBER, "Chunks of the grid that do not exist and read as `fill_value`."),
    ("stored_bytes", _NUMBER, "Bytes of its native and inline chunks, as stored."),
    ("virtual_bytes", _NUMBER, "Bytes of its virtual chunks, as stored."),
    ("manifest_count", _NUMBER, "Number of manifests that list its chunks."),
    (
        "problem",
        _TEXT,
        "Why the array cannot be read here: damaged metadata, or a data type, codec or grid that"
        " is not known; NULL where it can.",
    ),
)

STORED_COLUMNS: Final = frozenset(
    {"stored_chunks", "virtual_chunks", "missing_chunks", "stored_bytes", "virtual_bytes"}
)
"""The columns of ``variables`` for which manifests must be read."""

MANIFESTS: Final = _table(
    "manifests",
    "a manifest file that the version uses",
    "group",
    ("manifest_id", _TEXT, "Id of the manifest."),
    ("size_bytes", _NUMBER, "Size of the file in bytes; NULL where it is not recorded."),
    (
        "num_chunk_refs",
        _NUMBER,
        "Chunk references in the file, of all its arrays; NULL where it is not recorded.",
    ),
    ("arrays", _TEXTS, "Paths of the arrays that use it."),
    (
        "extents",
        _list_of(EXTENT),
        "For each use the box of chunk coordinates that it covers, `start` to before `stop`.",
    ),
)

CHUNKS: Final = _table(
    "chunks",
    "a chunk that exists, with the place of its bytes",
    "group",
    ("path", _TEXT, "Path of the array."),
    ("chunk", _NUMBERS, "Coordinates of the chunk in the grid (of the shard under sharding)."),
    ("kind", _TEXT, "`native` (an object), `inline` (in the manifest) or `virtual` (elsewhere)."),
    ("chunk_id", _TEXT, "Id of the chunk; NULL unless native."),
    ("location", _TEXT, "URL of the object that holds a virtual chunk; NULL otherwise."),
    ("offset", _NUMBER, "First byte in that object; NULL for inline chunks."),
    ("length", _NUMBER, "Bytes of the chunk as stored."),
    ("etag", _TEXT, "ETag that the object must have; NULL unless recorded for a virtual chunk."),
    (
        "last_modified",
        _INSTANT,
        "Instant after which the object must not have changed; NULL unless recorded for a"
        " virtual chunk.",
    ),
    ("manifest_id", _TEXT, "Id of the manifest that lists it."),
)

OPERATIONS: Final = _table(
    "operations",
    "a change of the repository, of any kind; the newest first (none in spec version 1)",
    "repository",
    ("kind", _TEXT, "`new_commit`, `branch_created`, `tag_deleted`, `gc_ran`, ..."),
    ("at", _INSTANT, "When it happened, by the clock of the writer."),
    ("branch", _TEXT, "Branch that it changed; NULL where it changed none."),
    ("tag", _TEXT, "Tag that it changed; NULL where it changed none."),
    ("snapshot_id", _TEXT, "Snapshot that it added; NULL where it added none."),
    (
        "previous_snapshot_id",
        _TEXT,
        "Snapshot that the branch or tag pointed to; NULL where that is not recorded.",
    ),
    (
        "backup_path",
        _TEXT,
        "Copy of the repository file just after it, below `overwritten/`; NULL for the newest.",
    ),
    ("details", _TEXT, "All that is recorded of it, a JSON object."),
)

CHANGES: Final = _table(
    "changes",
    "a node that changed between two versions, once for each way in which it did",
    "changes",
    ("path", _TEXT, "Path of the node; NULL where `change` is `unknown`."),
    ("node_type", _TEXT, "`array` or `group`."),
    (
        "change",
        _TEXT,
        "`added`, `removed`, `updated` (its metadata), `moved`, `chunks` (written or deleted), or"
        " `unknown`: the record of a snapshot in between is gone, so changes may be missing.",
    ),
    ("moved_from", _TEXT, "Path before the move; NULL unless `moved`."),
    ("chunk_count", _NUMBER, "Chunks that were written or deleted; NULL unless `chunks`."),
    ("snapshot_id", _TEXT, "Snapshot whose record is gone; NULL unless `unknown`."),
)

METADATA_TABLES: Final[dict[str, MetadataTable]] = {
    table.name: table
    for table in (
        SNAPSHOTS,
        HISTORY,
        REFS,
        GROUPS,
        VARIABLES,
        MANIFESTS,
        CHUNKS,
        OPERATIONS,
        CHANGES,
    )
}
"""Every metadata table, by name."""


def tables_markdown() -> str:
    """Return the manual's list of the tables, one line for each."""
    lines = ["| table | one row for each | columns |", "|---|---|---|"]
    for table in METADATA_TABLES.values():
        columns = ", ".join(f"`{name}`" for name in table.names)
        lines.append(f"| `{table.name}` | {table.row.partition(' ')[2]} | {columns} |")
    return "\n".join(lines) + "\n"
