"""Finds the path of a load or a write, and separates a metadata table (``path#snapshots``).

Rules of this file
------------------
1. A load reads one repository, and a write writes to one.
2. Spark drops the path of catalog tables; the message names the alternative.
3. Only the standard library and the errors of this package are imported, since this module runs in
   Spark's planner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest
from icechunk_format.options.declare import TABLE_NAMES, fold_name
from icechunk_format.options.values import refused

#: The error of a table in Spark's catalog.
CATALOG_TABLE: Final = (
    "a catalog table cannot be read through icechunk, because Spark drops the options of tables of"
    " Python sources, the path included: use CREATE TEMPORARY VIEW v USING icechunk OPTIONS (path"
    " '...') instead of CREATE TABLE"
)


def refuse_catalog_table(options: Mapping[str, str]) -> None:
    """Raise InvalidInputError for a catalog table, which Spark would read without options."""
    if {"provider", "owner"} <= {fold_name(name) for name in options}:
        raise InvalidInputError(CATALOG_TABLE, option="path")


def require_path(
    given: Mapping[str, Any], options: Mapping[str, str], *, is_write: bool = False
) -> str:
    """Return the path, from option ``path`` or from the JSON list that ``load([...])`` passes."""
    paths: list[Any] = [given["path"]] if "path" in given else []
    for name, string in options.items():
        if fold_name(name) == "paths":
            try:
                listed = json.loads(string)
            except (ValueError, RecursionError):
                listed = [string]
            paths += [item for item in listed if item not in paths]
    if len(paths) == 1 and isinstance(paths[0], str) and paths[0].strip():
        return paths[0].strip()
    if paths:
        advice = (
            "one load reads one repository: load each path by itself and union the DataFrames"
            if not is_write
            else "one write fills one repository: write to each path by itself"
        )
        raise InvalidInputError(f"{len(paths)} paths were given, and {advice}", paths=len(paths))
    if is_write:
        raise refused(
            "path",
            "is missing: write df.write.format('icechunk').save(path), and of a stream"
            " df.writeStream.format('icechunk').start(path); CREATE TABLE ... AS SELECT cannot"
            " write, because Spark drops the path: write spark.sql('SELECT ...').write"
            ".format('icechunk').save(path)",
        )
    raise refused(
        "path",
        "is missing: write spark.read.format('icechunk').load(path), or in SQL CREATE TEMPORARY"
        " VIEW v USING icechunk OPTIONS (path '...'); Spark drops the options of a CREATE TABLE ..."
        " USING icechunk, so tables of the catalog cannot be read",
    )


def split_path(path: str) -> tuple[str, str | None]:
    """Split ``path#snapshots`` into the path and the metadata table.

    A ``#`` may also be part of a folder's name, so only names of tables are separated, and only
    near misses of them are refused.
    """
    root, mark, name = path.rpartition("#")
    if not mark or not root:
        return path, None
    folded = name.lower()
    if folded in TABLE_NAMES:
        return root, folded
    near = nearest(folded, TABLE_NAMES, cutoff=0.75)
    if near:
        raise InvalidInputError(
            f"path {path!r} ends in '#{name}': the metadata tables are"
            f" {', '.join(TABLE_NAMES)}; did you mean '#{near}'?",
            option="path",
        )
    return path, None
