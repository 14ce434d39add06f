"""Lists names in messages: those that exist where one does not, and the first of many."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name does not exist, with the existing ones, nearest first."""
    names = list(known)
    folded = {other.casefold(): other for other in names}
    wanted = name.casefold()
    close = [other for other in folded if other.startswith(wanted)]
    close += difflib.get_close_matches(wanted, folded, n=3, cutoff=0.5)
    ordered = [folded[other] for other in dict.fromkeys(close)]
    ordered += [other for other in names if other not in ordered]
    shown = ", ".join(ordered[:20]) + (", …" if len(ordered) > 20 else "")
    return f"there is no {what} {name!r}; there are: {shown}" if names else f"there is no {what}"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return the nearest of the known names, then all of them, for the end of a message."""
    near = [other for other in known if name and other.startswith(name)]
    near += difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"did you mean {near[0]!r}? There are {', '.join(known)}" if near else "there are none"


def shortened(names: Sequence[str], most: int = 20) -> str:
    """Return names as a list, which ends early where it is long."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
