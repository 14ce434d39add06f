"""Commands for the configuration of a repository: ``config show``, ``config set``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.command_line.arguments import json_or_word
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import safe, shown_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Keys of this setting are URLs, whose dots are not separators.
_CONTAINERS: Final = "virtual_chunk_containers"
# Credentials do not belong in the configuration; if it has any, they are masked.
_SECRET: Final = re.compile("secret|password|token|access_key|account_key", re.IGNORECASE)


def show_config(call: Call) -> None:
    """Show the stored settings and the defaults."""
    _report(call, only=None)


def set_config(
    call: Call,
    setting: Annotated[
        str,
        typer.Argument(metavar="SETTING", help="Name, with dots between parts: compression.level."),
    ],
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="A JSON value or a word; null returns to the default."
        ),
    ],
) -> None:
    """Change one setting and keep all others."""
    tree: Any = json_or_word(value)
    for part in reversed(_parts(setting)):
        tree = {part: tree}
    call.repository.update_config(tree)
    _report(call, only=setting)


def _parts(setting: str) -> list[str]:
    if setting.startswith(f"{_CONTAINERS}."):
        return [_CONTAINERS, setting.removeprefix(f"{_CONTAINERS}.")]
    return setting.split(".")


def _report(call: Call, *, only: str | None) -> None:
    from icechunk_format.command_line.views.screen import columns_of, styled

    screen, config = call.screen, call.repository.config
    stored, effective = _masked(dict(config.raw)), _masked(config.effective())
    call.document(stored=stored, effective=effective)
    known = dict(_flat(stored))
    rows = []
    for name, value in _flat(effective):
        if only is not None and not (name == only or name.startswith(f"{only}.")):
            continue
        is_stored = name in known
        rows.append(
            [
                styled((safe(name), "bold" if is_stored else "")),
                styled(shown_value(value)),
                styled(("" if is_stored else "default", "dim")),
            ]
        )
    lines = columns_of(rows)
    fits = screen.fits(lines)
    for (label, shown, origin), line in zip(rows, lines, strict=True):
        if fits:
            screen.line(line)
            continue
        screen.line(label)
        string = shown.plain if not origin.plain else f"{shown.plain} ({origin.plain})"
        screen.wrapped(string, indent="    ")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _masked(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, key) for item in value]
    return "***" if isinstance(value, str) and _SECRET.search(key) else value
