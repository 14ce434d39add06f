"""Describes the keys of the documents that ``--json`` prints, for ``--help``.

Keys are never renamed, since scripts use them; keys may be added. Times are ISO 8601 in UTC with
microseconds, sizes are bytes, ids are strings in Crockford base 32. Unknown values are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from icechunk_format.options.metadata_tables import (
    CHANGES,
    GROUPS,
    OPERATIONS,
    SNAPSHOTS,
    VARIABLES,
    MetadataTable,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

Keys = dict[str, "str | tuple[str, Keys]"]
"""The meaning of each key; for lists and objects, with the keys in them."""


def _each(meaning: str, keys: str) -> Keys:
    """Return keys with the same meaning."""
    return dict.fromkeys(keys.split(), meaning)


def _columns(table: MetadataTable, leave_out: Container[str] = ()) -> Keys:
    """Return the columns of a metadata table as keys, with meanings for JSON."""
    keys: Keys = {}
    for column in table.columns:
        if column.name not in leave_out:
            about = column.about.replace("NULL", "null").replace("`", "'").removesuffix(".")
            keys[column.name] = about[0].lower() + about[1:]
    return keys


_REPOSITORY: Final = "path or URL, without credentials"
_DRY_RUN: Final[Keys] = {"dry_run": "whether nothing was changed"}
_SNAPSHOT: Final[Keys] = {
    **_columns(SNAPSHOTS, leave_out=("pruned_logs",)),
    "pruned_ancestors": "number of expired ancestors whose changes are included in its own",
}
_COUNTS: Final[Keys] = {
    **_each("number", "new_groups new_arrays deleted_groups deleted_arrays"),
    "updated_groups": "number of groups whose metadata changed",
    "updated_arrays": "number of arrays whose metadata changed",
    "moved_nodes": "number",
    "chunks": "number of chunks written or deleted",
    "arrays_with_chunks": "number of arrays with these chunks",
}
_CHANGE: Final[Keys] = {
    **_columns(CHANGES),
    "resized": (
        "list if lengths of an array changed, else null",
        {"dimension": "its name", "from": "length before", "to": "length now"},
    ),
    "only_resized": "whether nothing else of its metadata changed",
}
_STORED: Final[Keys] = {
    "total_chunks": "chunks of the grids, stored or missing",
    "missing_chunks": "chunks that read as fill value (omitted with --no-sizes, like the next)",
    "stored_bytes": "bytes in the repository",
    "stored_chunks": "chunks that exist",
    "virtual_bytes": "bytes elsewhere",
    "virtual_chunks": "chunks elsewhere",
}
_NODE: Final[Keys] = {
    "type": "'group' or 'array', which determines the other keys",
    **_columns(GROUPS),
    **_columns(VARIABLES),
    "path": "path",
    "name": "last part of it",
    **_STORED,
}
_REF: Final[Keys] = {
    "name": "name",
    "snapshot_id": "id",
    "committed_at": "when that snapshot was committed",
    "message": "its message",
}
_BRANCH: Final[Keys] = {"branch": "name", "snapshot_id": "its current or last snapshot"}
_TAG: Final[Keys] = {"tag": "name", "snapshot_id": "its current or last snapshot"}
_MOVED: Final[Keys] = {
    "branch": "name",
    "previous_snapshot_id": "its previous snapshot",
    "snapshot_id": "its snapshot",
}
_MERGE: Final[Keys] = {
    **_DRY_RUN,
    "branch": "the target branch",
    "source_snapshot_id": "the snapshot whose changes are merged",
    "base_snapshot_id": "the common snapshot since which changes are merged",
    "snapshot_id": "the new snapshot; null if nothing was committed",
    "conflicts": "list of strings: what both sides changed",
    **{key: about for key, about in _COUNTS.items() if key != "arrays_with_chunks"},
}
_EDIT: Final[Keys] = {"branch": "name", "snapshot_id": "the new snapshot; null if nothing changed"}

_CONFIG: Final[Keys] = {
    "stored": "settings that the repository stores, an object",
    "effective": "stored settings and defaults, an object",
}

_KEYS: Final[dict[str, Keys]] = {
    "log": {
        "snapshots": (
            "list, newest first",
            {
                **_SNAPSHOT,
                "changes": ("number of changes; null without a transaction log", _COUNTS),
            },
        ),
        "truncated": "whether older ones exist",
    },
    "show": {
        **_SNAPSHOT,
        "group_count": "number of groups, the root among them",
        "array_count": "number of arrays",
        "manifest_count": "number of manifest files",
        "manifest_bytes": "their size",
        "chunk_references": "references in them",
        "changes": ("list by path; null if the parent no longer exists", _CHANGE),
        **_STORED,
    },
    "tree": {
        "snapshot_id": "the snapshot",
        "group": "path of the selected group",
        "nodes": ("list by path", _NODE),
    },
    "head": {
        "snapshot_id": "the snapshot that was read",
        "columns": "names",
        "rows": "list of objects: text by column, NULL for missing values",
    },
    "diff": {
        "from_snapshot_id": "the older snapshot",
        "to_snapshot_id": "the newer snapshot",
        "changes": ("list by path", _CHANGE),
    },
    "operations": {
        "operations": (
            "list, newest first",
            # The time is the first key.
            {"at": "", **_columns(OPERATIONS)},
        ),
        "truncated": "whether older ones exist",
    },
    "explain": {
        "partitions": "Spark tasks",
        "chunks": "chunks to fetch and decode",
        "stored_bytes": "bytes to fetch; null with --no-exact",
        "decoded_bytes": "bytes of the decoded chunks",
        "requests": "storage requests for chunks",
        "cells": "selected cells",
        "rows": "rows before a condition on values",
        "is_exact": "whether manifests were read",
    },
    "branch list": {"branches": ("list by name", _REF)},
    "branch create": _BRANCH,
    "branch delete": _BRANCH,
    "branch fast-forward": _MOVED,
    "tag list": {"tags": ("list by name", _REF), "deleted_tags": "names of deleted tags"},
    "tag create": _TAG,
    "tag delete": _TAG,
    "merge": _MERGE,
    "cherry-pick": _MERGE,
    "reset": _MOVED,
    "restore": {
        "branch": "name",
        "restored_snapshot_id": "the earlier snapshot",
        "previous_snapshot_id": "the previous snapshot of the branch",
        "snapshot_id": "the new snapshot",
    },
    "attrs set": _EDIT,
    "attrs unset": _EDIT,
    "rename": _EDIT,
    "drop": _EDIT,
    "delete": {
        **_DRY_RUN,
        "snapshot_id": "the new snapshot; null for a dry run or an empty selection",
        "arrays": "list of paths of the arrays that change",
        "dimension": "the dimension that loses labels; null if cells become missing",
        "labels": "number of labels that are removed",
        "cells": "object: number of cells that become missing by path of the array",
    },
    "verify": {
        "errors": "number of findings of that severity; the exit code is 3 if there are any",
        **_each("number of findings of that severity", "warnings infos"),
        "findings": (
            "list, worst first",
            {
                "severity": "'error', 'warning' or 'info'",
                "kind": "stable code",
                "object_key": "affected object",
                "snapshot_id": "newest affected snapshot",
                "node_path": "node",
                "chunk": "coordinates of the chunk in the grid",
                "problem": "the problem",
                "advice": "the remedy",
            },
        ),
    },
    "expire": {
        "released_snapshots": "ids of snapshots that were removed from history",
        "edited_snapshots": "ids of snapshots that got another parent",
        "deleted_branches": "names",
        "deleted_tags": "names",
        **_DRY_RUN,
    },
    "gc": {
        "bytes_deleted": "bytes",
        **_each(
            "number", "snapshots_deleted transaction_logs_deleted manifests_deleted chunks_deleted"
        ),
        "overwritten_deleted": "number of old copies of the repository file",
        "staged_deleted": "number of unfinished files of killed writers",
        "objects_failed_to_delete": "number; the exit code is 1 if there are any",
        "throttled_requests": "requests that the storage throttled",
        "delete_errors": "reasons, at most 10",
        "skipped_phases": "kinds that were skipped because of failures",
        **_DRY_RUN,
    },
    "rewrite-manifests": {
        "branch": "name",
        "snapshot_id": "the new snapshot; null if nothing changed or in a dry run",
        "manifests_before": "number of files; in a dry run an estimate, like the next",
        "manifests_after": "number of files",
        "references": "references that were or would be rewritten",
        "bytes_before": "size of the files",
        "bytes_after": "size of the files; null in a dry run",
        "left_out": "paths of arrays that other writers changed meanwhile",
        **_DRY_RUN,
    },
    "upgrade": {
        **_DRY_RUN,
        "was_needed": "whether the repository had version 1",
        "was_half_done": "whether an interrupted upgrade was finished",
        **_each("number", "snapshots branches tags deleted_tags"),
        "files_deleted": "keys of files of version 1",
    },
    "copy": {
        "target": "path or URL of the other repository",
        "branch": "name in the target",
        **_each("number of stored files", "snapshots manifests chunks"),
        "bytes": "size of the stored files",
        "skipped_chunks": "number of chunks that existed already",
        "snapshot_id": "the snapshot of the branch in the target",
        **_DRY_RUN,
    },
    "import-draft": {
        "target": "path or URL of the new repository",
        **_DRY_RUN,
        "kind": "kind of draft: 'numbered refs' or 'state file'",
        "snapshots": "number",
        "branches": "names",
        "tags": "names",
        "chosen_main": "snapshot of main if the draft has no such branch, else null",
        **_each("number", "native_chunks inline_chunks virtual_chunks"),
        "bytes_copied": "size of native chunks",
        "virtual_prefixes": "URL prefixes of virtual chunks",
        "snapshot_ids": "object of ids in the draft to new ids",
    },
    "rechunk": {
        **_DRY_RUN,
        "snapshot_id": "the new snapshot; null for a dry run",
        "arrays": "list of paths of the new arrays",
        "tasks": "number of steps",
        "decoded_bytes": "size of the arrays, decoded",
        "buffer_bytes": "maximum size of values in memory",
        "requests": "maximum number of chunks to read and write",
    },
    "virtualize": {
        **_DRY_RUN,
        "snapshot_id": "the newest snapshot of the branch; null if there is no repository",
        "files": "object: number of files by status (taken, copied, known, refreshed, refused)",
        "files_copied": "number of files that were copied, wholly or in part",
    },
    "mirror": {
        "target": "path or URL of the Delta table",
        "branch": "name",
        "version": "version of the table that holds the snapshot",
        "snapshot_id": "the snapshot that the table holds now",
        "files_added": "number of files that were written",
        "files_removed": "number of files that were removed from the table",
        "rows": "number of rows that were written",
        "bytes": "size of the files that were written",
        "full_copy": "reason for writing all cells; null if only changes were written",
        **_DRY_RUN,
    },
    "freshness": {
        "target": "path or URL of the Delta table",
        "version": "version of the table that holds the snapshot",
        "snapshot_id": "the snapshot that the table holds",
        "committed_at": "when that was committed",
        "branch": "name",
        "branch_snapshot_id": "newest snapshot of the branch",
        "branch_committed_at": "when that was committed",
        "snapshots_behind": "number of snapshots in between; null if the branch was reset or the"
        " snapshot expired",
    },
    "config show": _CONFIG,
    "config set": _CONFIG,
}

DOCUMENTS: Final = {
    command: keys if command == "freshness" else {"repository": _REPOSITORY, **keys}
    for command, keys in _KEYS.items()
}
"""The keys of the document of each command."""


def keys_text(command: str) -> str:
    """Return the list of keys for the ``--help`` of a command."""
    lines = _key_lines(DOCUMENTS[command], "  ")
    return "\n".join(["The document that --json prints:", *lines])


def _key_lines(keys: Keys, indent: str) -> Iterator[str]:
    for key, meaning in keys.items():
        about, inner = (meaning, None) if isinstance(meaning, str) else meaning
        yield f"{indent}{key}: {about}"
        if inner is not None:
            yield from _key_lines(inner, indent + "  ")
