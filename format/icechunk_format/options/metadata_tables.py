"""Declares the metadata tables: their names, rows and columns.

Spark's schema, the comments of columns and the tables in the manual are generated from these
declarations.

Rules of this file
------------------
1. Times are timestamps in UTC, in microseconds. Sizes are in bytes. Ids are strings in Icechunk's
   usual form. Coordinates of chunks and indices count from 0; ends are exclusive.
2. JSON columns are strings, for Spark's ``from_json`` and ``get_json_object``, since users choose
   their structure.
3. Every column is nullable; its description defines the meaning of NULL.
4. Types are Spark's; lists and structs are written in Spark's syntax.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import starmap
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

Scope = Literal["repository", "snapshot", "group", "changes"]
"""The subject of a table: the repository, a snapshot with its history, the nodes of a snapshot at
or below a group, or the changes between two snapshots."""

Kind = Literal["string", "number", "timestamp", "boolean", "strings", "numbers", "extents"]
Cut = Literal["nowhere", "between arrays", "between manifests"]
"""Boundaries along which a read may be cut into tasks."""


@cache
def arrow_kinds() -> dict[Kind, pa.DataType]:
    """Return the Arrow type of each kind of column."""
    # Spark's planner imports this module and does not need Arrow.
    import pyarrow as pa

    string, numbers = pa.string(), pa.list_(pa.int64())
    extent = [pa.field("path", string), pa.field("start", numbers), pa.field("stop", numbers)]
    return {
        "string": string,
        "number": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "boolean": pa.bool_(),
        "strings": pa.list_(string),
        "numbers": numbers,
        "extents": pa.list_(pa.struct(extent)),
    }


class MetadataColumn(NamedTuple):
    """One column of a metadata table; ``about`` describes its values, with the unit."""

    name: str
    kind: Kind
    about: str

    @property
    def arrow_type(self) -> pa.DataType:
        """The type in the batches."""
        return arrow_kinds()[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTable:
    """One metadata table."""

    name: str
    row: str
    """The meaning of a row."""
    scope: Scope
    """Its subject, which determines the options that it takes."""
    columns: tuple[MetadataColumn, ...]
    cut: Cut = "nowhere"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches."""
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.arrow_type, nullable=True) for c in self.columns])


METADATA_TABLES: Final[dict[str, MetadataTable]] = {}
"""Every metadata table, by name."""


def _table(
    name: str, row: str, scope: Scope, *columns: tuple[str, Kind, str], cut: Cut = "nowhere"
) -> MetadataTable:
    """Declare a metadata table."""
    made = tuple(starmap(MetadataColumn, columns))
    table = MetadataTable(name=name, row=row, scope=scope, columns=made, cut=cut)
    METADATA_TABLES[name] = table
    return table


_SNAPSHOT_COLUMNS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("snapshot_id", "string", "Id of the snapshot."),
    ("parent_id", "string", "Id of the snapshot before it; NULL for the first of a history."),
    ("committed_at", "timestamp", "Time of the commit, by the clock of the writer."),
    ("message", "string", "Commit message."),
    ("metadata", "string", "Properties of the snapshot, a JSON object."),
)

SNAPSHOTS: Final = _table(
    "snapshots",
    "a snapshot of the repository, on a branch or not; the newest first",
    "repository",
    *_SNAPSHOT_COLUMNS,
    ("branches", "strings", "Names of the branches whose tip it is."),
    ("tags", "strings", "Names of the tags that point to it."),
    ("pruned_logs", "number", "Expired ancestors whose changes are counted with this snapshot's."),
)

HISTORY: Final = _table(
    "history",
    "a snapshot in the history of the selected snapshot; the newest first",
    "snapshot",
    ("position", "number", "Commits between it and the selected snapshot: 0 for that snapshot."),
    *_SNAPSHOT_COLUMNS,
)

REFS: Final = _table(
    "refs",
    "a branch or a tag, deleted tags included",
    "repository",
    ("name", "string", "Name of the branch or tag."),
    ("type", "string", "`branch`, `tag`, or `deleted tag`, whose name cannot be reused."),
    ("snapshot_id", "string", "Snapshot that it points to; NULL for a deleted tag."),
    ("committed_at", "timestamp", "When that snapshot was committed; NULL for a deleted tag."),
)

FRESHNESS: Final = _table(
    "freshness",
    "a branch, with the age of its newest snapshot when the query runs",
    "repository",
    ("branch", "string", "Name of the branch."),
    ("snapshot_id", "string", "Its newest snapshot."),
    ("committed_at", "timestamp", "When that snapshot was committed, by the clock of the writer."),
    ("age_seconds", "number", "Seconds from that time to the query, by the clock of its task."),
    ("message", "string", "Commit message of that snapshot."),
)

GROUPS: Final = _table(
    "groups",
    "a group",
    "group",
    ("path", "string", "Path of the group; `/` is the root."),
    ("name", "string", "Last part of the path; empty for the root."),
    ("array_count", "number", "Number of arrays directly in it."),
    ("group_count", "number", "Number of groups directly in it."),
    ("attributes", "string", "User attributes, a JSON object; NULL if the document is damaged."),
    ("problem", "string", "Why its metadata document cannot be read; NULL if it can."),
)

VARIABLES: Final = _table(
    "variables",
    "an array",
    "group",
    ("path", "string", "Path of the array."),
    ("group", "string", "Path of its group."),
    ("name", "string", "Last part of its path."),
    ("dims", "strings", "Names of its dimensions; `dim_0`, `dim_1`, ... where they have none."),
    ("shape", "numbers", "Elements along each dimension."),
    (
        "chunks",
        "numbers",
        "Elements of a chunk along each dimension, of an inner chunk under sharding; NULL where"
        " chunks differ in size.",
    ),
    ("shards", "numbers", "Elements of a shard along each dimension; NULL without sharding."),
    ("dtype", "string", "Stored data type, with the names of Zarr; JSON if it has parameters."),
    ("codecs", "string", "Codecs, a JSON list."),
    ("fill_value", "string", "Value of missing chunks, as JSON."),
    ("units", "string", "Attribute `units`."),
    ("standard_name", "string", "Attribute `standard_name`."),
    ("long_name", "string", "Attribute `long_name`."),
    ("attributes", "string", "All user attributes, a JSON object."),
    (
        "is_coordinate",
        "boolean",
        "True if it labels a dimension, or if another array or its group lists it as a coordinate.",
    ),
    (
        "is_column",
        "boolean",
        "True if it is a column by default; `variables` and `coords` add others. NULL if"
        " `variables` must be set.",
    ),
    ("total_chunks", "number", "Chunks of the grid (shards under sharding), stored or not."),
    (
        "stored_chunks",
        "number",
        "Chunks that exist: native, inline and virtual ones, and any outside of a shrunk grid.",
    ),
    ("virtual_chunks", "number", "Those of `stored_chunks` that are outside of the repository."),
    ("missing_chunks", "number", "Chunks of the grid that do not exist and read as `fill_value`."),
    ("stored_bytes", "number", "Bytes of its native and inline chunks, as stored."),
    ("virtual_bytes", "number", "Bytes of its virtual chunks, as stored."),
    ("manifest_count", "number", "Number of manifests that list its chunks."),
    (
        "problem",
        "string",
        "Why the array cannot be read here: damaged metadata, or a data type, codec or grid that"
        " is not known; NULL if it can.",
    ),
    cut="between arrays",
)
STORED_COLUMNS: Final = frozenset(
    {"stored_chunks", "virtual_chunks", "missing_chunks", "stored_bytes", "virtual_bytes"}
)
"""The columns of ``variables`` for which manifests must be read."""

MANIFESTS: Final = _table(
    "manifests",
    "a manifest file that the snapshot uses",
    "group",
    ("manifest_id", "string", "Id of the manifest."),
    ("size_bytes", "number", "Size of the file in bytes; NULL if it is not recorded."),
    ("num_chunk_refs", "number", "Chunk references in the file; NULL if it is not recorded."),
    ("arrays", "strings", "Paths of the arrays that use it."),
    ("extents", "extents", "For each use, the box of chunk coordinates that it covers."),
)

CHUNKS: Final = _table(
    "chunks",
    "a stored chunk, with the location of its bytes",
    "group",
    ("path", "string", "Path of the array."),
    ("chunk", "numbers", "Coordinates of the chunk in the grid (of the shard under sharding)."),
    (
        "kind",
        "string",
        "`native` (an object), `inline` (in the manifest), `virtual` (elsewhere).",
    ),
    ("chunk_id", "string", "Id of the chunk; NULL unless native."),
    ("location", "string", "URL of the object that holds a virtual chunk; NULL otherwise."),
    ("offset", "number", "First byte in that object; NULL for inline chunks."),
    ("length", "number", "Bytes of the chunk as stored."),
    ("etag", "string", "ETag that the object must have; NULL unless recorded for a virtual chunk."),
    (
        "last_modified",
        "timestamp",
        "Time after which the object must not have changed; NULL unless recorded for a"
        " virtual chunk.",
    ),
    ("manifest_id", "string", "Id of the manifest that lists it."),
    cut="between manifests",
)

OPERATIONS: Final = _table(
    "operations",
    "a change of the repository, of any kind; the newest first (none in spec version 1)",
    "repository",
    ("kind", "string", "`new_commit`, `branch_created`, `tag_deleted`, `gc_ran`, ..."),
    ("at", "timestamp", "Time of the change, by the clock of the writer."),
    ("branch", "string", "Branch that it changed; NULL if it changed none."),
    ("tag", "string", "Tag that it changed; NULL if it changed none."),
    ("snapshot_id", "string", "Snapshot that it added; NULL if it added none."),
    ("previous_snapshot_id", "string", "Snapshot that it pointed to before; NULL if unknown."),
    (
        "backup_path",
        "string",
        "Copy of the repository file just after it, below `overwritten/`; NULL for the newest.",
    ),
    ("details", "string", "All that is recorded of it, a JSON object."),
)

CHANGES: Final = _table(
    "changes",
    "a kind of change of a node between two snapshots",
    "changes",
    ("path", "string", "Path of the node; NULL if `change` is `unknown`."),
    ("node_type", "string", "`array` or `group`."),
    (
        "change",
        "string",
        "`added`, `removed`, `updated` (its metadata), `moved`, `chunks` (written or deleted), or"
        " `unknown`: the record of a snapshot in between is gone, so changes may be missing.",
    ),
    ("moved_from", "string", "Path before the move; NULL unless `moved`."),
    ("chunk_count", "number", "Chunks that were written or deleted; NULL unless `chunks`."),
    ("snapshot_id", "string", "Snapshot whose record is gone; NULL unless `unknown`."),
)
