"""Describes the keys of the documents that ``--json`` prints, and takes those of results.

Keys are never renamed, since scripts use them; keys may be added. Times are ISO 8601 in UTC with
microseconds, sizes are bytes, ids are strings in Crockford base 32. Unknown values are null.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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


def _in_json(about: str) -> str:
    """Return the meaning of a field as that of a key: with the constants of JSON, on a terminal."""
    for python, json in (("NULL", "null"), ("None", "null"), ("``", "'"), ("`", "'")):
        about = about.replace(python, json)
    first = about[0].lower() if about[1].islower() else about[0]
    return first + about[1:].removesuffix(".")


def _each(meaning: str, keys: str) -> Keys:
    """Return keys with the same meaning."""
    return dict.fromkeys(keys.split(), meaning)


def _columns(table: MetadataTable, leave_out: Container[str] = ()) -> Keys:
    """Return the columns of a metadata table as keys, with meanings for JSON."""
    keys: Keys = {}
    for column in table.columns:
        if column.name not in leave_out:
            keys[column.name] = _in_json(column.about)
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

_CATALOG: Final[Keys] = {"catalog": "path or URL of the catalog, without credentials"}
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
    "applications": {
        "branch": "name",
        "has_expired_snapshots": "whether snapshots have expired, whose versions are not listed",
        "applications": (
            "list, the latest first",
            {
                "app_id": "the option txnAppId; of a stream, the id of its query",
                "versions": "the committed versions, ascending: lists of first and last",
                "last_version": "the version that was committed last",
                "commits": "number of its commits on the branch",
                "snapshot_id": "the snapshot of its last commit",
                "committed_at": "time of its last commit",
                "query": "id of the streaming query of its last commit, else null",
            },
        ),
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
        "dimension": "the dimension of the deleted labels; null if cells become missing",
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
    "rewrite-manifests": {
        "branch": "name",
        "snapshot_id": "the new snapshot; null if nothing changed or in a dry run",
    },
    "copy": {"target": "path or URL of the other repository"},
    "import-draft": {"target": "path or URL of the new repository"},
    "rechunk": {
        **_DRY_RUN,
        "snapshot_id": "the new snapshot; null for a dry run",
    },
    "reduce": {
        **_DRY_RUN,
        "snapshot_id": "the new snapshot; null for a dry run, or if nothing changed",
    },
    "virtualize": {
        "files": "object: number of files by status (taken, copied, known, refreshed, refused)",
    },
    "mirror": {"target": "path or URL of the Delta table", "branch": "name"},
    "freshness": {"target": "path or URL of the Delta table"},
    "catalog check": {**_CATALOG, "problems": "number of tables with a problem"},
    "catalog list": _CATALOG,
    "config show": _CONFIG,
    "config set": _CONFIG,
}

# Commands whose document has the fields of a result; for catalogs, in a list.
_RESULTS: Final = {
    "explain": ("workflows.estimate", "Estimate"),
    "delete": ("workflows.deleting", "DeleteResult"),
    "expire": ("maintenance", "ExpireResult"),
    "gc": ("maintenance", "CollectResult"),
    "rewrite-manifests": ("maintenance", "RewriteResult"),
    "upgrade": ("repository.lifecycle.upgrade", "UpgradeReport"),
    "copy": ("maintenance", "CopyResult"),
    "import-draft": ("drafts", "ImportReport"),
    "rechunk": ("workflows.rechunking", "RechunkResult"),
    "reduce": ("workflows.reducing", "ReduceResult"),
    "virtualize": ("workflows.virtualizing.result", "VirtualizeResult"),
    "mirror": ("workflows.mirroring", "MirrorResult"),
    "freshness": ("workflows.mirroring", "Freshness"),
    "catalog check": ("tables", "TableFacts"),
    "catalog list": ("tables", "TableFacts"),
}
# Fields that other keys stand for, or that only a run on Spark has.
_NO_KEYS: Final = ("commit", "totals", "report", "dim", "target")
_FIELDS: Final = re.compile(r"^(\w+(?:, \w+)*)\n((?: +.*\n?)+)", re.MULTILINE)


def document_keys(command: str) -> Keys:
    """Return the keys of the document of a command."""
    is_other = command == "freshness" or command.startswith("catalog ")
    keys: Keys = {} if is_other else {"repository": _REPOSITORY}
    keys |= _KEYS.get(command, {})
    if command in _RESULTS:
        module, name = _RESULTS[command]
        found = _fields_of(getattr(import_module(f"icechunk_format.{module}"), name))
        is_listed = command.startswith("catalog ")
        keys |= {"tables": ("list, in the order of the catalog", found)} if is_listed else found
    return keys


def _fields_of(result: type[Any]) -> Keys:
    """Return the fields of a result as keys, with their meanings from its docstring."""
    meanings: Keys = {}
    for names, text in _FIELDS.findall(inspect.getdoc(result) or ""):
        about = _in_json(" ".join(text.split()).partition(". ")[0])
        meanings |= dict.fromkeys(names.split(", "), about)
    names = [one.name for one in fields(result) if one.name not in _NO_KEYS]
    return {name: meanings.get(name, "") for name in names}


def result_keys(result: Any) -> dict[str, Any]:
    """Return the keys of a result with their values; ``snapshot_id`` is its own or its commit's."""
    names = [one.name for one in fields(result) if one.name not in _NO_KEYS]
    keys = {name: getattr(result, name) for name in names}
    commit = getattr(result, "commit", None)
    if commit is not None and not getattr(commit, "is_skipped", False):
        keys["snapshot_id"] = commit.snapshot_id
    snapshot_id = keys.get("snapshot_id")
    return {**keys, "snapshot_id": None if snapshot_id is None else str(snapshot_id)}


def keys_text(command: str) -> str:
    """Return the list of keys for the ``--help`` of a command."""
    lines = _key_lines(document_keys(command), "  ")
    return "\n".join(["The document that --json prints:", *lines])


def _key_lines(keys: Keys, indent: str) -> Iterator[str]:
    for key, meaning in keys.items():
        about, inner = (meaning, None) if isinstance(meaning, str) else meaning
        yield f"{indent}{key}: {about}"
        if inner is not None:
            yield from _key_lines(inner, indent + "  ")
