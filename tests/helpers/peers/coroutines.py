"""Runs tests and fixtures that are coroutines, in a loop of their own each."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a coroutine function to its end."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, or a property test of one."""
    property_test = getattr(pyfuncitem.obj, "hypothesis", None)
    if property_test and inspect.iscoroutinefunction(property_test.inner_test):
        property_test.inner_test = awaited(property_test.inner_test)
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**given))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> None:
    """Make a fixture that is a coroutine an ordinary one."""
    if inspect.iscoroutinefunction(fixturedef.func):
        fixturedef.func = awaited(fixturedef.func)
