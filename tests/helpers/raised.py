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
    """Expect an error with at least these facts; ``match`` is for the one test of its wording."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    found = caught.value.facts
    assert {name: found.get(name) for name in facts} == facts
