"""Expects an error of the project, by its class and facts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def raises(
    error: type[Exception] | tuple[type[Exception], ...],
    /,
    *,
    match: str | None = None,
    **facts: Any,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error with at least these facts; ``...`` stands for any value of a fact.

    ``match`` is for the one test of a message's wording.
    """
    with pytest.raises(error, match=match) as caught:
        yield caught
    found = caught.value.facts
    assert facts.keys() <= found.keys()
    assert {name: ... if facts[name] is ... else found[name] for name in facts} == facts
