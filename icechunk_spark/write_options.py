"""The options of one write, parsed and checked; and options given as Python values, as text.

Rules of this file
------------------
1. The options themselves are declared in :mod:`icechunk_spark.writing_options`.
2. The planned and the unplanned write take the same options, so that a job does not change its
   meaning when `register` is forgotten.
3. Python values are spelled as a user of `option()` would spell them; what has no such spelling
   is refused rather than passed on as its ``repr``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icechunk_format.errors import InvalidInputError
from icechunk_spark.options import (
    OPTIONS,
    check_layout,
    collect_options,
    default_of,
    refuse_catalog_table,
    require_path,
    split_path,
)

Mode = Literal["append", "overwrite", "errorifexists", "ignore"]

# Spark's spellings of its save modes.
_MODES: Final[dict[str, Mode]] = {
    "append": "append",
    "overwrite": "overwrite",
    "error": "errorifexists",
    "errorifexists": "errorifexists",
    "default": "errorifexists",
    "ignore": "ignore",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The options of one write, parsed and checked; attributes are documented in `OPTIONS`."""

    path: str
    branch: str | None
    storage_client: Literal["auto", "obstore", "fsspec"]
    storage_options: Mapping[str, str] = field(repr=False)
    virtual_authorize: tuple[str, ...]
    virtual_storage_options: Mapping[str, str] = field(repr=False)
    layout: Literal["cells", "chunks", "refs"]
    group: str | None
    dims: tuple[str, ...] | None
    chunks: Mapping[str, int] | None
    shards: Mapping[str, int] | None
    encoding: Mapping[str, Mapping[str, Any]] | None
    create_branch: bool
    message: str | None
    metadata: Mapping[str, Any] | None
    on_conflict: Literal["rebase", "fail"]
    resolve: Literal["ours", "theirs"] | None
    decoded: bool
    distribution: Literal["hash", "none"]
    min_density: float
    txn_app_id: str | None
    txn_version: int | None
    spec_version: int
    max_unplanned_bytes: int


def parse_mode(text: str | None) -> Mode:
    """Return the save mode that Spark's spelling `text` means; None is Spark's default.

    Raises
    ------
    InvalidInputError
        There is no such mode.
    """
    mode = _MODES.get((text or "default").strip().lower())
    if mode is None:
        raise InvalidInputError(
            f"mode must be 'append', 'overwrite', 'errorifexists' or 'ignore', but is {text!r}",
            mode=text,
        )
    return mode


def parse_write_options(options: Mapping[str, str]) -> WriteRequest:
    """Parse and check the options of one write.

    Parameters
    ----------
    options
        Names in any spelling, values as text; the path among them.

    Raises
    ------
    InvalidInputError
        An option is unknown, is not an option of writing, has a bad value, is given twice, lacks
        its companion, or means nothing for the layout.
    """
    refuse_catalog_table(options)
    given = collect_options(options, use="write")
    values = {
        item.attribute: given.get(item.name, default_of(item))
        for item in OPTIONS
        if "write" in item.uses
    }
    path, table = split_path(require_path(given, options, use="write"))
    if table is not None:
        raise InvalidInputError(
            f"the path names the metadata table '{table}', and metadata tables are only read:"
            f" write to {path!r}",
            option="path",
        )
    values["path"] = path
    if values["layout"] == "summary":
        raise InvalidInputError(
            "layout=summary is for reading: rows are written as layout 'cells', 'chunks' or 'refs'",
            option="layout",
        )
    if (values["txn_app_id"] is None) != (values["txn_version"] is None):
        missing = "txnAppId" if values["txn_app_id"] is None else "txnVersion"
        raise InvalidInputError(
            f"options 'txnAppId' and 'txnVersion' belong together: give '{missing}' as well",
            option=missing,
        )
    check_layout(given, values["layout"])
    return WriteRequest(**values)


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options given as Python values in the text that `option()` takes; None is left out.

    Numbers and truth values are spelled as Spark spells them, mappings as JSON, and sequences of
    names as a JSON list.

    Raises
    ------
    InvalidInputError
        A value has no such spelling.
    """
    return {name: _as_text(name, value) for name, value in options.items() if value is not None}


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping | list | tuple):
        plain = dict(value) if isinstance(value, Mapping) else list(value)
        try:
            return json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"option '{name}' cannot be written as JSON: {error}", option=name
            ) from None
    raise InvalidInputError(
        f"option '{name}' must be text, a number, a truth value, a list or a dictionary, but is"
        f" of type {type(value).__name__}",
        option=name,
    )
