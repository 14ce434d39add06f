"""A way to damage a copy of the small sound repository, and what must be found then.

Each way changes one thing, by our own encoders where what it wants can be written, and by bytes
where no writer would write it. Each says which kinds of findings it must lead to, and no error
beside those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.damage.repository import Damaged


@dataclass(frozen=True)
class Damage:
    """One way to damage a repository, and what must be found."""

    name: str
    apply: Callable[[Damaged], None]
    kinds: frozenset[str]
    deep: bool = False
    authorized: bool = False


def planting(damages: list[Damage]):
    """Return the decorator that adds ways to damage a repository to ``damages``."""

    def damage(*kinds: str, deep: bool = False, authorized: bool = False):
        """Register a way to damage a repository, with the kinds of errors and warnings it makes."""

        def register(function):
            name = function.__name__.strip("_")
            damages.append(Damage(name, function, frozenset(kinds), deep, authorized))
            return function

        return register

    return damage


def with_columns(d: Damaged, path: str, **columns) -> None:
    """Replace columns of the references of an array."""
    refs = d.refs(path)
    made = {
        name: getattr(refs, name)
        for name in ("coords", "kind", "chunk_id", "offset", "length", "last_modified", "strings")
    }
    d.set_refs(path, type(refs)(**(made | columns)))


def changed(column, row: int, value):
    """Return a copy of a column with another value in one row."""
    copy = column.copy()
    copy[row] = value
    return copy
