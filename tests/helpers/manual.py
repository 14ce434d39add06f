"""Writes the parts of the manual that follow from others: tables of declarations, and the README.

``make format`` puts them between their marks.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Final, get_args

from icechunk_format.options import OPTIONS
from icechunk_format.options.declare import Call
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.tables.selection.where.syntax import FUNCTION_NAMES

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
REFERENCE: Final = DOCS / "reference"


# Calls that are no functions of their own.
_CALLS: Final = {
    "maintenance": "other functions of `maintenance`",
    "others": "a source in `others` of `map_blocks` and `read_blocks`",
}


def option_table(use: str) -> str:
    """Return the options for reading or writing, one line for each."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        if {use, f"{use}Stream"} & set(option.calls):
            names = f"`{option.name}`"
            if option.aliases:
                names += f" (also {', '.join(f'`{alias}`' for alias in option.aliases)})"
            default = option.shown_default or "–"
            meaning = (use == "write" and option.write_help) or option.help
            lines.append(f"| {names} | {option.shown_type} | {default} | {meaning} |")
    return "\n".join(lines)


def function_table() -> str:
    """Return the options of each function, one line for each."""
    lines = ["| function | options |", "|---|---|"]
    for call in get_args(Call):
        if call not in ("read", "readStream", "write", "writeStream", "merge"):
            names = [f"`{one.name}`" for one in OPTIONS if call in one.calls and one.name != "path"]
            name = _CALLS.get(call, f"`{call}`")
            lines.append(f"| {name} | {', '.join(names)} |")
    return "\n".join(lines)


def metadata_tables() -> str:
    """Return the metadata tables, one line for each."""
    lines = ["| table | one row for each | columns |", "|---|---|---|"]
    for table in METADATA_TABLES.values():
        columns = ", ".join(f"`{name}`" for name in table.names)
        lines.append(f"| `{table.name}` | {table.row.partition(' ')[2]} | {columns} |")
    return "\n".join(lines)


def for_the_readme(page: str, mark: str) -> str:
    """Return the part of a page between two marks, with links that lead from the README."""
    text = (DOCS / page).read_text("utf-8")
    part = text.partition(f"<!-- {mark} -->\n")[2].partition(f"\n<!-- /{mark} -->")[0]
    assert part, f"{page} has no <!-- {mark} -->"

    def link(match: re.Match[str]) -> str:
        target = os.path.relpath((DOCS / page).parent / match[1], ROOT)
        return f"]({target})"

    return re.sub(r"\]\(((?!https?:)[^)\s]+)\)", link, part)


def functions() -> str:
    """Return the functions of conditions as a list."""
    names = ", ".join(f"`{name}`" for name in FUNCTION_NAMES)
    return textwrap.fill(names, 120, break_on_hyphens=False)


# The README repeats these parts of the manual: the page and the marks.
README: Final = (("index.md", "first page"), ("start/installation.md", "extras"))

TABLES: Final = (
    ("options.md", "options", lambda: option_table("read")),
    ("options.md", "functions", functions),
    ("options.md", "write options", lambda: option_table("write")),
    ("options.md", "options of functions", function_table),
    ("tables.md", "tables", metadata_tables),
)


def with_table(text: str, mark: str, table: str) -> str:
    """Return a page with a table between its marks."""
    parts = rf"(<!-- {mark} -->\n)\n?.*?\n?(<!-- /{mark} -->)"
    found, count = re.subn(parts, lambda m: f"{m[1]}{table}\n{m[2]}", text, flags=re.DOTALL)
    assert count == 1, f"<!-- {mark} --> is not there, or has no end"
    return found


if __name__ == "__main__":
    for name, mark, made in TABLES:
        page = REFERENCE / name
        page.write_text(with_table(page.read_text("utf-8"), mark, made()), "utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, mark in README:
        readme = with_table(readme, mark, for_the_readme(name, mark))
    (ROOT / "README.md").write_text(readme, "utf-8")
