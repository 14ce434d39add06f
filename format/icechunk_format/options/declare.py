"""Defines `Option`, and declares options as fields of dataclasses.

Rules of this file
------------------
1. An option is declared once, as a field of `ReadRequest` or `WriteRequest`, which defines its
   parser, default, errors, documentation and the calls that take it. The type of the field
   determines the parser of most options.
2. Only the standard library and the errors of this package are imported, since this module runs in
   Spark's planner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from keyword import iskeyword
from typing import Any, Final, Literal, get_args, get_type_hints

from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.options.values import Parser, parser_of, shown_type

Call = Literal[
    "read",
    "readStream",
    "sample",
    "zonal",
    "mirror",
    "mirrored",
    "verify",
    "maintenance",
    "write",
    "writeStream",
    "virtualize",
    "delete",
    "rechunk",
    "map_blocks",
    "read_blocks",
    "reduce",
    "others",
    "merge",
]
"""A call that takes options: Spark's, a function or command, or all of maintenance."""

WRITING: Final[tuple[Call, ...]] = ("write", "writeStream", "virtualize")

#: Calls that read arrays and store others in one commit.
CHANGING: Final[tuple[Call, ...]] = ("delete", "rechunk", "map_blocks", "reduce")

#: Calls that read blocks and commit nothing; ``others`` are further sources of blocks.
OF_BLOCKS: Final[tuple[Call, ...]] = ("read_blocks", "others")

Layout = Literal["cells", "chunks", "refs", "summary"]
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

#: Names of the metadata tables, as ``path#name`` or as the option ``table``.
TABLE_NAMES: Final = tuple(METADATA_TABLES)

# Key of a field's metadata that holds its option.
_DECLARED: Final = "option"
_SNAPSHOT_ID: Final = re.compile(r"[0-9A-Za-z]{20}")


def fold_name(name: str) -> str:
    """Return `name` in lower case without ``-`` and ``_``, for comparing names of options."""
    return name.strip().lower().replace("-", "").replace("_", "")


def is_snapshot_id(string: str) -> bool:
    """Return True if `string` has the form of a snapshot id."""
    return _SNAPSHOT_ID.fullmatch(string.strip()) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, or a family of options with a common prefix if its name ends in ``*``."""

    name: str
    """The documented spelling."""
    shown_type: str
    """The type, in words."""
    help: str
    """One line that describes the option."""
    write_help: str = ""
    """The same line for writing, if it differs."""
    calls: tuple[Call, ...] = ("read", "readStream")
    """The calls that take the option."""
    has_keyword: bool = True
    """False if functions take it only in ``**options``, not as a keyword."""
    parse: Parser
    default: Any
    """The value of the field if the option is not given."""
    shown_default: str
    """The default, in words; empty if there is none."""
    aliases: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = LAYOUTS
    """The layouts that the option applies to."""
    tables: tuple[str, ...] = ()
    """The metadata tables that the option applies to."""
    attribute: str
    """The field of `ReadRequest` and `WriteRequest` with the value."""

    @property
    def is_prefix(self) -> bool:
        """True if the option is a family such as ``storage.*``."""
        return self.name.endswith(".*")

    @property
    def keyword(self) -> str:
        """The keyword for the option in Python functions."""
        name = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", self.name)
        name = name.removesuffix(".*").replace(".", "_")
        return f"{name}_" if iskeyword(name) else name

    @property
    def spellings(self) -> tuple[str, ...]:
        """The documented name and the aliases."""
        return (self.name, *self.aliases)


def option(name: str, *, default: Any = None, **declared: Any) -> Any:
    """Declare a field of a dataclass as an option; `declared` are the fields of `Option`.

    The parser follows from the type of the field, ``shown_type`` from the parser, and
    ``shown_default`` from the default value, unless they are declared.
    """
    held = {"name": name, "default": default, "shown_default": _shown_default(default), **declared}
    metadata = {_DECLARED: held}
    if name.endswith(".*"):  # may hold credentials
        return field(default_factory=dict, repr=False, metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _shown_default(default: Any) -> str:
    if default is None:
        return ""
    return "none" if default == () else f"`{str(default).lower()}`"


def option_of(cls: type, attribute: str, **changed: Any) -> Any:
    """Declare a field as the same option as the field `attribute` of another dataclass."""
    same = next(item for item in fields(cls) if item.name == attribute)
    return option(**same.metadata[_DECLARED] | changed)


def declared_options(*classes: type) -> tuple[Option, ...]:
    """Return the options that the fields of dataclasses declare, each once."""
    found: dict[str, Option] = {}
    for cls in classes:
        types = get_type_hints(cls)
        for item in fields(cls):
            declared = item.metadata.get(_DECLARED)
            if declared is not None and item.name not in found:
                parse = declared.get("parse") or parser_of(types[item.name])
                derived = {"attribute": item.name, "parse": parse, "shown_type": shown_type(parse)}
                found[item.name] = Option(**derived | declared)
    return tuple(found.values())
