"""Prints the groups and arrays of a snapshot, with grids, codecs and sizes.

An array is one line with aligned columns, or several lines on a narrow terminal.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.command_line.views.reading import add_up, node_parts
from icechunk_format.command_line.views.screen import columns_of, styled
from icechunk_format.display.arrays import codecs_text, shown_data_type
from icechunk_format.display.plain_text import counted, safe, shown_value, size
from icechunk_format.encoding import node_path
from icechunk_format.errors import IcechunkError
from icechunk_format.zarr.data_types import parse_data_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.text import Text

    from icechunk_format.command_line.views.screen import Screen

Document = dict[str, Any]

_HEADER: Final = ("", "type", "shape", "chunks", "shards", "codecs", "stored", "size")


def show_tree(
    screen: Screen, nodes: Sequence[Document], *, top: str, with_attributes: bool
) -> None:
    """Print the tree below a group and the totals."""
    if not nodes:
        screen.line("no groups and no arrays yet")
        return
    by_path = {node["path"]: node for node in nodes}
    shows_shards = any(node.get("shards") for node in nodes)
    shows_sizes = any("stored_bytes" in node for node in nodes if node["type"] == "array")
    hidden = set() if shows_shards else {"shards"}
    hidden |= set() if shows_sizes else {"stored", "size"}
    walked = list(_walk(_children(by_path, top), top))
    table = [[styled((name, "dim")) for name in _HEADER if name not in hidden]]
    for path, guide, _ in walked:
        node = by_path.get(path)
        cells = [styled((screen.drawn(guide), "dim"), _name(path, top, node))]
        if node is not None and node["type"] == "array":
            shown = _cells(screen, node)
            cells += [shown[name] for name in _HEADER[1:] if name not in hidden]
        table.append(cells)
    lines = columns_of(table)
    fits = screen.fits(lines)
    if fits and any(len(cells) > 1 for cells in table[1:]):
        screen.line(lines[0])
    for (path, _, below), cells, line in zip(walked, table[1:], lines[1:], strict=True):
        node = by_path.get(path)
        screen.line(line if fits else _head(cells, node))
        if node is None:
            continue
        prefix = styled((screen.drawn(below), "dim"))
        details = [] if fits or node["type"] == "group" else _stacked(screen, node)
        if node.get("problem"):
            details.append(styled((f"! {safe(node['problem'])}", "red")))
        if with_attributes:
            details += [
                styled((f"{safe(key)}: {shown_value(value)}", "dim"))
                for key, value in (node.get("attributes") or {}).items()
            ]
        for detail in details:
            screen.line(prefix.copy().append_text(detail))
    screen.line()
    screen.line(styled((_totals(screen, nodes), "bold")))


def _children(by_path: Mapping[str, Document], top: str) -> dict[str, list[str]]:
    """Return the child paths of each path, including groups that are missing in the snapshot."""
    children: dict[str, list[str]] = {top: []}
    for path in by_path:
        while path != top:
            parent = str(node_path.parent(node_path.NodePath(path)) or node_path.ROOT)
            siblings = children.setdefault(parent, [])
            if path in siblings[-1:]:
                break
            siblings.append(path)
            if parent in by_path:
                break
            path = parent
    return children


def _walk(children: Mapping[str, list[str]], top: str) -> Iterator[tuple[str, str, str]]:
    """Yield each path with the prefixes of its own line and of the lines below it."""
    waiting = [(top, "", "")]
    while waiting:
        path, guide, prefix = waiting.pop()
        inside = children.get(path, [])
        yield path, guide, prefix + ("│   " if inside else "    ")
        for child in reversed(inside):
            is_last = child == inside[-1]
            waiting.append(
                (
                    child,
                    prefix + ("└── " if is_last else "├── "),
                    prefix + ("    " if is_last else "│   "),
                )
            )


def _name(path: str, top: str, node: Document | None) -> tuple[str, str]:
    text = safe(path if path == top else node_parts(path)[-1])
    if node is None:
        return f"{text} (missing group)", "red"
    return (text, "bold") if node["type"] == "array" else (text, "bold blue")


def _cells(screen: Screen, node: Document) -> dict[str, Text]:
    times = screen.drawn(" × ")
    shape = times.join(
        f"{safe(name)} {length:,}" if length is not None else f"{safe(name)} ?"
        for name, length in zip(node["dims"], node["shape"], strict=True)
    )
    chunks = node.get("chunks")
    sizes = "" if not node["shape"] else "unequal" if chunks is None else _product(times, chunks)
    if node.get("problem") and chunks is None:
        sizes = "?"
    return {
        "type": styled((safe(type_text(node.get("dtype"))), "magenta")),
        "shape": styled(shape or "scalar"),
        "chunks": styled(sizes),
        "shards": styled(_product(times, node.get("shards") or [])),
        "codecs": styled((codecs_text(node.get("codecs")), "dim")),
        "stored": _stored(node),
        "size": styled((_bytes(node), "green")),
    }


def type_text(dtype: str | None) -> str:
    """Return the display name of a data type; types with parameters are JSON."""
    if dtype is None or not dtype.startswith("{"):
        return dtype or "?"
    try:
        found = parse_data_type(json.loads(dtype))
    except (ValueError, IcechunkError):
        return dtype
    return shown_data_type(found)


def _product(times: str, lengths: Iterable[int | None]) -> str:
    return times.join("?" if length is None else f"{length:,}" for length in lengths)


def _stored(node: Document) -> Text:
    if "stored_chunks" not in node:
        return styled("")
    total, missing = node["total_chunks"], node["missing_chunks"]
    if total is None or missing is None:
        return styled(f"{node['stored_chunks']:,}")
    text = f"{node['stored_chunks']:,} of {total:,}"
    if node["virtual_chunks"]:
        text += f", {node['virtual_chunks']:,} virtual"
    return styled((text, "yellow" if missing else ""))


def _bytes(node: Mapping[str, Any]) -> str:
    if "stored_bytes" not in node:
        return ""
    own, virtual = node["stored_bytes"], node["virtual_bytes"]
    if not virtual:
        return size(own)
    return f"{size(virtual)} elsewhere" if not own else f"{size(own)} + {size(virtual)} elsewhere"


def _head(cells: Sequence[Text], node: Document | None) -> Text:
    line = cells[0].copy()
    if node is not None and node["type"] == "array":
        line.append("  ").append_text(cells[1])
    return line


def _stacked(screen: Screen, node: Document) -> list[Text]:
    cells = _cells(screen, node)
    dot = screen.drawn(" · ")
    grid = [f"{name} {cells[name].plain}" for name in ("chunks", "shards") if cells[name].plain]
    grid.append(cells["codecs"].plain)
    lines = [styled(cells["shape"].plain), styled((dot.join(grid), "dim"))]
    if "stored_chunks" in node:
        line = cells["stored"].copy()
        line.append(" chunks stored" + dot)
        lines.append(line.append_text(cells["size"]))
    return lines


def _totals(screen: Screen, nodes: Sequence[Document]) -> str:
    arrays = [node for node in nodes if node["type"] == "array"]
    words = [counted(len(nodes) - len(arrays), "group"), counted(len(arrays), "array")]
    if any("stored_bytes" in node for node in arrays):
        totals = add_up(arrays)
        words.append(f"{totals['stored_chunks']:,} of {counted(totals['total_chunks'], 'chunk')}")
        words.append(_bytes(totals))
    return screen.drawn(" · ").join(words)
