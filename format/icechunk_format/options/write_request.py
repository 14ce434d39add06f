"""Parses and checks the options and the save mode of one write.

Planned and unplanned writes take the same options, so that a job has the same meaning without
`register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import shown
from icechunk_format.options.declare import Call
from icechunk_format.options.parse import (
    by_attribute,
    check_layout,
    collect_options,
    parse_read_options,
)
from icechunk_format.options.path import refuse_catalog_table, require_path, split_path
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import Mode, WriteOptions, WriteRequest

# Spark's spellings of its save modes.
_MODES: Final[dict[str, Mode]] = {
    "append": "append",
    "overwrite": "overwrite",
    "error": "errorifexists",
    "errorifexists": "errorifexists",
    "default": "errorifexists",
    "ignore": "ignore",
}


def parse_mode(string: str | None) -> Mode:
    """Return the save mode for Spark's name of it; None is Spark's default.

    Raises InvalidInputError if the mode does not exist.
    """
    mode = _MODES.get("default" if string is None else str(string).strip().lower())
    if mode is None:
        raise InvalidInputError(
            "mode must be 'append', 'overwrite', 'errorifexists' or 'ignore', but is"
            f" {shown(string)}",
            mode=string,
        )
    return mode


def parse_change(options: Mapping[str, Any], call: Call) -> tuple[ReadRequest, WriteOptions]:
    """Parse the options of a call that reads arrays and changes others: of the read, of the commit.

    Raises InvalidInputError if an option is unknown or invalid, excludes another one, or lacks its
    companion.
    """
    read = parse_read_options(options, call)
    given = by_attribute(collect_options(options, call))
    named = {item.name: given[item.name] for item in fields(WriteOptions) if item.name in given}
    write = WriteOptions(**{**named, "mode": "append"})
    _check_txn(write, "txn_app_id", "txn_version")
    return read, write


def _check_txn(options: WriteOptions, app_id: str, version: str) -> None:
    """Raise InvalidInputError if one of two options, given by their names, is missing."""
    if (options.txn_app_id is None) != (options.txn_version is None):
        missing = app_id if options.txn_app_id is None else version
        raise InvalidInputError(
            f"options {app_id!r} and {version!r} belong together: set {missing!r} as well",
            option=missing,
        )


def parse_write_options(
    options: Mapping[str, str], call: Call = "write", *, mode: Mode = "append"
) -> WriteRequest:
    """Parse and check the options of one write.

    Raises InvalidInputError if an option is unknown, invalid or given twice, lacks its companion,
    or does not apply to the call or the layout.

    Parameters
    ----------
    options
        Names in any spelling, values as strings, including the path.
    """
    refuse_catalog_table(options)
    given = collect_options(options, call)
    path, table = split_path(require_path(given, options, is_write=True))
    if table is not None:
        raise InvalidInputError(
            f"the path names the metadata table '{table}', and metadata tables are only read:"
            f" write to {path!r}",
            option="path",
        )
    request = WriteRequest(**by_attribute(given) | {"path": path, "mode": mode})
    if request.replace_where is not None and mode != "overwrite":
        raise InvalidInputError(
            f"replaceWhere goes with mode 'overwrite', and the mode is {mode!r}: add"
            " .mode('overwrite'), or leave replaceWhere out",
            option="replaceWhere",
            mode=mode,
        )
    if given.get("layout") == "summary":
        raise InvalidInputError(
            "layout=summary is for reading: rows are written as layout 'cells', 'chunks' or 'refs'",
            option="layout",
        )
    if call != "writeStream":
        _check_txn(request, "txnAppId", "txnVersion")
    # Virtual references need their containers, although no chunk is fetched.
    is_refs = request.layout == "refs"
    checked = [name for name in given if not (is_refs and name.startswith("virtual."))]
    check_layout({name: given[name] for name in checked}, request.layout)
    return request
