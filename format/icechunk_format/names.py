"""Formats names in messages: allowed values, existing names by similarity, and long lists.

Also loads the public names of packages on first use.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from icechunk_format.errors import InvalidInputError

T = TypeVar("T")

_MOST_SHOWN = 200

# Comparing spellings is slow, so only this many names are compared.
_MOST_COMPARED = 2_000


def shown(value: object) -> str:
    """Return at most 200 characters of a value, and its type if it is not a string."""
    try:
        string = repr(value[:_MOST_SHOWN]) if isinstance(value, str | bytes) else repr(value)
    except Exception:  # of a class of the caller; integers of more than 4,300 digits
        string = ""
    string = f"{string[:_MOST_SHOWN]}…" if len(string) > _MOST_SHOWN else string
    kind = type(value).__name__
    return string if value is None or isinstance(value, str) else f"{string} of type {kind}".strip()


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to a name, ignoring case; None if none is similar."""
    folded = {other.casefold(): other for other in known}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def by_likeness(name: str, known: Iterable[str], most: int = 20) -> list[str]:
    """Return at most ``most`` known names, the most similar to a name first."""
    names = list(dict.fromkeys(known))
    return list(dict.fromkeys([*_near(name, names, most), *names]))[:most]


def _near(name: str, names: Sequence[str], most: int) -> list[str]:
    folded = {other.casefold(): other for other in names[:_MOST_COMPARED]}
    wanted = name.casefold()
    near = [other for other in folded if wanted and other.startswith(wanted)]
    near += difflib.get_close_matches(wanted, folded, n=most, cutoff=0.5)
    return [folded[other] for other in near]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist, with existing names, nearest first."""
    names = list(known)
    shown = by_likeness(name, names)
    near = _near(name, names, 1)
    hint = f"did you mean {near[0]!r}? There are: " if near else "there are: "
    more = ", …" if len(names) > len(shown) else ""
    return f"there is no {what} {name!r}; {hint}{', '.join(shown) or 'none'}{more}"


def check_names(option: str, what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidInputError for the first name in an option that does not exist.

    The error has the facts ``option`` and ``name``, and the name as the fact `what`.
    """
    names = tuple(known)
    for name in given:
        if name not in names:
            message = f"{option}: {unknown(what, name, names)}"
            raise InvalidInputError(message, option=option, **{"name": name, what: name})


def choose(option: str, given: object, allowed: Collection[T]) -> T:
    """Return the value given for an option, if it is allowed.

    Raises
    ------
    InvalidInputError
        The value is not allowed; the message lists the allowed ones.
    """
    for value in allowed:
        if value == given:
            return value
    raise InvalidInputError(
        f"{option}={shown(given)} is not known; choose {', '.join(map(str, allowed))}",
        option=option,
        found=given,
        allowed=tuple(allowed),
    )


def shortened(names: Sequence[str], most: int = 20) -> str:
    """Join names with commas, at most ``most`` of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Return the error of an attribute that does not exist.

    Words of other tools lead to `restore`; for other names, Python suggests the nearest one.
    """
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if hint := _restoring(name):
        return AttributeError(message + hint)
    return AttributeError(message, name=name, obj=owner)


def _restoring(name: str) -> str:
    is_meant = name in ("revert", "rollback", "undo")
    return ": an earlier snapshot is restored by Repository.restore" if is_meant else ""


def loaded_on_use(
    package: str, modules: Mapping[str, Sequence[str]], *more: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    ``modules`` gives the public names of each module; those of the package begin with a dot.
    ``more`` are further names for ``__dir__``.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_restoring(name)}")
        home = import_module(homes[name], package)
        return home if homes[name] == f".{name}" else getattr(home, name)

    return load, lambda: sorted({*homes, *more})
