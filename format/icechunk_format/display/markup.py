"""Escapes and shortens strings for HTML, and defines the parts and the style of pages.

Rules of this file
------------------
1. Strings enter HTML only through ``escaped``: non-printing characters become escapes, HTML
   characters become entities, and right-to-left text is isolated.
2. Pages have no links, images or scripts. Pictures are inline SVG.
3. Colours are transparent, so that they suit light and dark notebooks.
4. If a viewer removes styles, as for untrusted notebooks, plain text is displayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from icechunk_format.display.plain_text import counted, safe, shown_value

MOST_CHARACTERS: Final = 200
MOST_ITEMS: Final = 20
_DEEPEST: Final = 4
_MORE: Final = "…"

_STYLE: Final = """
.ick{display:block!important;font-size:13px;line-height:1.5;max-width:1000px;color:inherit;
overflow-x:auto}
.ick-text{display:none}
.ick header{border-bottom:1px solid rgba(128,128,128,.4);margin-bottom:4px;padding-bottom:3px}
.ick summary{cursor:pointer;padding:1px 0}
.ick details>:not(summary){margin-left:16px}
.ick code,.ick svg text{font-family:ui-monospace,Menlo,Consolas,monospace;background:none;
color:inherit;font-size:12px;padding:0}
.ick .quiet{opacity:.65}
.ick .wrong{color:#e5534b}
.ick table{border-collapse:collapse;border:0;margin:2px 0;font-size:inherit;color:inherit}
.ick tr,.ick td{border:0;background:none!important;text-align:left!important;
padding:1px 14px 1px 0;vertical-align:top;overflow-wrap:anywhere;max-width:640px;
white-space:normal}
.ick td:first-child{opacity:.65;white-space:nowrap;max-width:480px;overflow:hidden;
text-overflow:ellipsis}
.ick td+td{min-width:9em}
.ick .array{display:flex;flex-wrap:wrap;gap:18px;align-items:flex-start}
.ick .label{border-radius:8px;padding:0 7px;margin-right:5px;background:rgba(70,160,90,.28)}
.ick .tag{background:rgba(70,130,220,.28)}
.ick .graph{display:flex}
.ick .graph svg{flex:none}
.ick .graph ol{list-style:none;margin:0!important;padding:0;min-width:0}
.ick .graph li{height:24px;line-height:24px;margin:0;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis}
"""


def escaped(value: object, most: int = MOST_CHARACTERS) -> str:
    """Escape a string for HTML, shortened to ``most`` characters."""
    text = escape(safe(cut(str(value), most)), quote=True)
    return f"<bdi>{text}</bdi>" if text else ""


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Shorten a string to ``most`` characters, with an ellipsis."""
    return text if len(text) <= most else text[:most] + _MORE


def brief(value: Any, most: int = MOST_CHARACTERS) -> str:
    """Return a JSON value on one printable line, shortened to ``most`` characters."""
    return cut(shown_value(_pruned(value, most, _DEEPEST)), most)


def _pruned(value: Any, most: int, depth: int) -> Any:
    """Drop the parts of a value that would be cut, so that large values are cheap."""
    if isinstance(value, str):
        return value[: most + 1]
    if isinstance(value, int) and value.bit_length() > most:
        return f"a number of {counted(value.bit_length(), 'bit')}"
    if isinstance(value, Mapping):
        if depth == 0:
            return _MORE
        first = list(value.items())[: MOST_ITEMS + 1]
        return {cut(str(key), most): _pruned(item, most, depth - 1) for key, item in first}
    if isinstance(value, list | tuple):
        if depth == 0:
            return _MORE
        return [_pruned(item, most, depth - 1) for item in value[: MOST_ITEMS + 1]]
    return value


def more(count: int, noun: str, plural: str | None = None) -> str:
    """Return a line with the number of omitted items; empty if there are none."""
    words = counted(count, f"more {noun}", plural and f"more {plural}")
    return f"{_MORE} and {words}" if count > 0 else ""


def more_lines(count: int, noun: str, indent: str = "  ") -> list[str]:
    """Return the line of ``more`` as a list; empty if no items are omitted."""
    return [indent + more(count, noun)] if count > 0 else []


def page(text: str, title: str, *parts: str) -> str:
    """Return a page of HTML parts, and the plain text for viewers that remove styles."""
    plain = escape("\n".join(map(safe, text.split("\n"))), quote=True)
    return (
        f"<div><style>{_STYLE}</style><pre class='ick-text'>{plain}</pre>"
        f"<div class='ick' style='display:none'><header>{title}</header>{''.join(parts)}</div>"
        "</div>"
    )


def title(kind: str, *facts: str) -> str:
    """Return the head of a page: the kind of value and its main facts, as HTML."""
    return f"<b>{kind}</b> {soft(' · '.join(facts))}"


def soft(inside: str) -> str:
    """Return HTML in a muted style."""
    return f"<span class='quiet'>{inside}</span>"


def quiet(text: str) -> str:
    """Return plain text as a muted line; empty without text."""
    return f"<div class='quiet'>{escape(text)}</div>" if text else ""


def folded(summary: str, inside: str, *, is_open: bool = False) -> str:
    """Return an expandable part; both arguments are HTML."""
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{inside}</details>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values, both HTML, as a table, without empty values."""
    lines = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows if value)
    return f"<table><tbody>{lines}</tbody></table>" if lines else ""


def attributes(values: Mapping[str, Any]) -> str:
    """Return attributes or metadata as a collapsed table; empty without attributes."""
    if not values:
        return ""
    rows = [
        (escaped(name, 60), escaped(brief(value)))
        for name, value in list(values.items())[:MOST_ITEMS]
    ]
    inside = facts(rows) + quiet(more(len(values) - MOST_ITEMS, "attribute"))
    return folded(f"Attributes {soft(f'({len(values):,})')}", inside)


def attribute_lines(values: Mapping[str, Any]) -> list[str]:
    """Return attributes as lines of text."""
    if not values:
        return []
    lines = [
        f"    {safe(cut(name, 60))}: {brief(value, 70)}"
        for name, value in list(values.items())[:MOST_ITEMS]
    ]
    return ["Attributes:", *lines, *more_lines(len(values) - MOST_ITEMS, "attribute", "    ")]
