"""Parses the option ``block``: elements along dimensions, like ``"time=24,latitude=10"``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse_block(text: str, dims: Sequence[str]) -> tuple[int | None, ...]:
    """Parse elements of a block along each dimension.

    Returns
    -------
    tuple
        For each of ``dims``, in their order: the number given, or None.

    Raises
    ------
    InvalidInputError
        The text is no list of ``dimension=number``, a dimension is unknown or comes twice, or a
        number is not a whole number of at least 1.
    """
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.replace(";", ",").split(","))):
        name, equals, number = (part.strip() for part in item.partition("="))
        if name not in dims:
            near = get_close_matches(name, dims, n=1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidInputError(
                f"block={text!r} names {name!r}, which is no dimension of the table "
                f"({', '.join(dims)}){hint}",
                block=text,
                dims=tuple(dims),
            )
        if not equals or not number.isascii() or not number.isdigit() or int(number) < 1:
            raise InvalidInputError(
                f"block={text!r} has {item!r}; write a whole number of elements, at least 1, "
                f"like {name}=24",
                block=text,
            )
        if name in found:
            raise InvalidInputError(f"block={text!r} names {name!r} twice", block=text)
        found[name] = int(number)
    return tuple(found.get(dim) for dim in dims)
